//! Sampling: from coordinates to texels and their weights.

use super::{
    AddressMode, Level, Sampler,
    channel::{Channel, linear_of_srgb},
    cube,
};

/// Where an instruction samples. Dimensions that its geometry lacks are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coordinates {
    /// Of the image.
    pub(crate) at: [f64; 3],
    /// Whether they are integers, which name texels themselves.
    pub(crate) is_integer: bool,
    /// The layer, of a layered image.
    pub(crate) layer: Option<u32>,
    /// Dimensions of the geometry: 1, 2 or 3.
    pub(crate) dimensions: usize,
    /// `at` is a direction.
    pub(crate) is_cube: bool,
}

/// The level of detail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lod {
    /// The largest level, as far as bias and bounds let it.
    Base,
    /// This one.
    Level(f64),
    /// From how far apart neighbours sample, in coordinates.
    Gradients([f64; 3], [f64; 3]),
}

/// A texel: where it is, or `None` for the border.
type Place = Option<[u64; 3]>;

/// One or two texels along an axis, and the weight of the second in 256ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    places: [Option<u64>; 2],
    second: u64,
}

/// The texels of one level that a sample is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Footprint {
    axes: [Axis; 3],
}

impl Axis {
    const ONLY: Self = Self { places: [Some(0), None], second: 0 };
}

/// Weights have 8 bits behind the point.
const ONE: u64 = 256;

impl Sampler {
    /// Samples: four values as the instruction gives them. `fetch` gives the bits of a channel at an address.
    pub(crate) fn sample(
        &self,
        coordinates: &Coordinates,
        lod: Lod,
        fetch: &mut dyn FnMut(u64, u32) -> Option<u32>,
    ) -> Option<[u32; 4]> {
        let (first, second, weight) = self.levels_of(coordinates, lod);
        let Some(level) = self.levels.get(first) else { return Some([0; 4]) };
        let one = self.sample_level(level, coordinates, fetch)?;
        let Some(next) = self.levels.get(second).filter(|_| weight > 0 && self.reads_floats()) else {
            return Some(one);
        };
        let two = self.sample_level(next, coordinates, fetch)?;
        let blend = |place: usize| {
            let (a, b) = (f64::from(f32::from_bits(one[place])), f64::from(f32::from_bits(two[place])));
            ((a * (ONE - weight) as f64 + b * weight as f64) / ONE as f64) as f32
        };
        Some(std::array::from_fn(|place| blend(place).to_bits()))
    }

    /// The four texels around a place, one channel of each, as `tld4` orders them.
    pub(crate) fn gather(
        &self,
        coordinates: &Coordinates,
        component: usize,
        fetch: &mut dyn FnMut(u64, u32) -> Option<u32>,
    ) -> Option<[u32; 4]> {
        let Some(level) = self.levels.first() else { return Some([0; 4]) };
        let [x, y, z] = self.footprint(level, coordinates, true).axes;
        let mut values = [0; 4];
        for (value, (i, j)) in values.iter_mut().zip([(0, 1), (1, 1), (1, 0), (0, 0)]) {
            let place = texel(x.places[i], y.places[j], z.places[0]);
            *value = self.texel(level, place, fetch)?[component];
        }
        Some(values)
    }

    /// Two levels and the weight of the second in 256ths.
    fn levels_of(&self, coordinates: &Coordinates, lod: Lod) -> (usize, usize, u64) {
        let last = self.levels.len().saturating_sub(1);
        if last == 0 {
            return (0, 0, 0);
        }
        let lod = match lod {
            Lod::Base => 0.0,
            Lod::Level(level) => level,
            Lod::Gradients(dx, dy) => self.lod_of_gradients(coordinates, dx, dy),
        };
        let (lowest, highest) = (f64::from(self.lod_bounds.0), f64::from(self.lod_bounds.1));
        let lod = (lod + f64::from(self.lod_bias)).min(highest).max(lowest).clamp(0.0, last as f64);
        if !self.is_mip_linear {
            return ((lod + 0.5).floor() as usize, 0, 0);
        }
        // Cut off, not rounded, as an H200 does.
        let fixed = (lod * ONE as f64).floor() as u64;
        let first = (fixed / ONE) as usize;
        (first, (first + 1).min(last), fixed % ONE)
    }

    fn lod_of_gradients(&self, coordinates: &Coordinates, dx: [f64; 3], dy: [f64; 3]) -> f64 {
        let Some(level) = self.levels.first() else { return 0.0 };
        let sizes = [level.width as f64, level.height as f64, level.depth as f64];
        let length = |change: [f64; 3]| {
            let texels =
                |axis: usize| if self.is_normalized { change[axis] * sizes[axis] } else { change[axis] };
            (0..coordinates.dimensions).map(|axis| texels(axis).powi(2)).sum::<f64>().sqrt()
        };
        let longest = length(dx).max(length(dy));
        if longest > 0.0 { longest.log2() } else { f64::NEG_INFINITY }
    }

    fn sample_level(
        &self,
        level: &Level,
        coordinates: &Coordinates,
        fetch: &mut dyn FnMut(u64, u32) -> Option<u32>,
    ) -> Option<[u32; 4]> {
        let blends = self.is_linear && self.reads_floats() && !coordinates.is_integer;
        let [x, y, z] = self.footprint(level, coordinates, blends).axes;
        if !blends {
            return self.texel(level, texel(x.places[0], y.places[0], z.places[0]), fetch);
        }
        let mut sums = [0f64; 4];
        for corner in 0..8usize {
            let ends = [corner & 1, corner >> 1 & 1, corner >> 2];
            let weight = [x, y, z].iter().zip(ends).map(|(axis, end)| axis.weight(end)).product::<u64>();
            if weight == 0 {
                continue;
            }
            let place = texel(x.places[ends[0]], y.places[ends[1]], z.places[ends[2]]);
            let values = self.texel(level, place, fetch)?;
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += weight as f64 * f64::from(f32::from_bits(value));
            }
        }
        let whole = (ONE * ONE * ONE) as f64;
        Some(sums.map(|sum| ((sum / whole) as f32).to_bits()))
    }

    /// The texels that a sample of a level is made of.
    fn footprint(&self, level: &Level, coordinates: &Coordinates, blends: bool) -> Footprint {
        let mut at = coordinates.at;
        let mut axes = [Axis::ONLY; 3];
        let layer = coordinates.layer.map(u64::from);
        let mut slice = layer.map_or(0, |layer| layer.min(level.depth.saturating_sub(1)));
        let mut dimensions = coordinates.dimensions;
        if coordinates.is_cube {
            let (face, s, t) = cube::face(at);
            let cubes = (level.depth / 6).max(1);
            slice = layer.map_or(0, |layer| layer.min(cubes - 1)) * 6 + face;
            (at, dimensions) = ([s, t, 0.0], 2);
        }
        let sizes = [level.width, level.height, level.depth];
        for axis in 0..dimensions {
            let mode = if coordinates.is_cube { AddressMode::Clamp } else { self.address_modes[axis] };
            let is_normalized = (self.is_normalized || coordinates.is_cube) && !coordinates.is_integer;
            let scaled = if is_normalized { at[axis] * sizes[axis] as f64 } else { at[axis] };
            axes[axis] = self.axis(mode, scaled, sizes[axis], is_normalized, blends);
        }
        if dimensions < 3 {
            axes[2].places[0] = Some(slice);
        }
        Footprint { axes }
    }

    fn axis(&self, mode: AddressMode, at: f64, size: u64, is_normalized: bool, blends: bool) -> Axis {
        let at = if at.is_nan() { 0.0 } else { at };
        let bring = |texel: f64| match self.is_memory {
            true => inside(texel, size),
            false => bring_back(mode, texel, size, is_normalized),
        };
        if !blends {
            return Axis { places: [bring(at.floor()), None], second: 0 };
        }
        // Rounded to 8 bits behind the point, which also decides which two texels it lies between.
        let fixed = ((at - 0.5) * ONE as f64).round();
        let first = (fixed / ONE as f64).floor();
        let second = (fixed - first * ONE as f64) as u64;
        Axis { places: [bring(first), bring(first + 1.0)], second }
    }

    /// Four values of one texel.
    fn texel(
        &self,
        level: &Level,
        place: Place,
        fetch: &mut dyn FnMut(u64, u32) -> Option<u32>,
    ) -> Option<[u32; 4]> {
        let is_float = self.reads_floats();
        let Some([x, y, z]) = place else {
            return Some(if self.is_memory { [0; 4] } else { self.border.map(f32::to_bits) });
        };
        let start = level
            .address
            .wrapping_add(x.wrapping_mul(self.element_bytes()))
            .wrapping_add(y.wrapping_mul(level.row_pitch))
            .wrapping_add(z.wrapping_mul(level.slice_pitch));
        let width = u32::from(self.channel.bytes);
        let mut values: [u32; 4] = std::array::from_fn(|place| Channel::missing(place, is_float));
        for (index, value) in values.iter_mut().take(self.channel.count.into()).enumerate() {
            let bits = fetch(start.wrapping_add(index as u64 * u64::from(width)), width)?;
            *value = self.channel.decode(bits, self.reads_integers);
            if self.is_srgb && index < 3 && self.channel.bytes == 1 && is_float {
                *value = linear_of_srgb(f32::from_bits(*value)).to_bits();
            }
        }
        Some(values)
    }
}

impl Axis {
    fn weight(&self, end: usize) -> u64 {
        if end == 0 { ONE - self.second } else { self.second }
    }
}

fn texel(x: Option<u64>, y: Option<u64>, z: Option<u64>) -> Place {
    Some([x?, y?, z?])
}

fn inside(texel: f64, size: u64) -> Option<u64> {
    (texel >= 0.0 && texel < size as f64).then_some(texel as u64)
}

fn bring_back(mode: AddressMode, texel: f64, size: u64, is_normalized: bool) -> Option<u64> {
    let mode = match mode {
        AddressMode::Wrap | AddressMode::Mirror if !is_normalized => AddressMode::Clamp,
        mode => mode,
    };
    let count = size.max(1) as f64;
    match mode {
        AddressMode::Clamp => Some(texel.clamp(0.0, count - 1.0) as u64),
        AddressMode::Wrap => inside(texel.rem_euclid(count), size).or(Some(0)),
        AddressMode::Mirror => {
            let twice = texel.rem_euclid(2.0 * count);
            let place = if twice >= count { 2.0 * count - 1.0 - twice } else { twice };
            inside(place, size).or(Some(0))
        }
        AddressMode::Border => inside(texel, size),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
