//! Texture and surface instructions of a warp.

use super::{
    access::{Reach, Spans},
    fault::{FaultKind, Trouble},
    warp::Warp,
};
use crate::{
    code::{
        Kernel, LANES, Mem, Row, SamplerQuestion, Src, SurfaceOp, SurfaceWork, TextureLod, TextureOp, lanes,
    },
    hooks::Hooks,
    memory::DeviceMemory,
    texture::{Bounds, ChannelKind, Coordinates, Lod, Sampler},
};
use std::sync::Arc;

/// The sampler that a host thread used last: a warp uses the same one again and again.
#[derive(Default)]
pub(super) struct RecentSampler(Option<(u64, Arc<Sampler>)>);

impl RecentSampler {
    fn find<H: Hooks>(&mut self, hooks: &H, handle: u64, lane: usize) -> Result<Arc<Sampler>, Trouble> {
        if let Some((recent, sampler)) = &self.0
            && *recent == handle
        {
            return Ok(Arc::clone(sampler));
        }
        let Some(sampler) = hooks.sampler(handle) else {
            let message = format!("{handle:#x} is no texture or surface object");
            return Err(Trouble::saying(FaultKind::IllegalAddress, lane, message));
        };
        self.0 = Some((handle, Arc::clone(&sampler)));
        Ok(sampler)
    }
}

/// The registers of one instruction.
pub(super) struct Rows<'a> {
    pub(super) warp: &'a Warp,
    pub(super) kernel: &'a Kernel,
    pub(super) base: usize,
}

impl Rows<'_> {
    fn get(&self, src: Src, lane: usize) -> u64 {
        self.warp.row(self.kernel, self.base, src)[lane]
    }

    fn float(&self, src: Src, lane: usize) -> f64 {
        f64::from(f32::from_bits(self.get(src, lane) as u32))
    }

    fn floats(&self, all: &[Src], lane: usize) -> [f64; 3] {
        std::array::from_fn(|axis| all.get(axis).map_or(0.0, |&src| self.float(src, lane)))
    }

    fn integers(&self, all: &[Src], lane: usize) -> [i64; 3] {
        std::array::from_fn(|axis| all.get(axis).map_or(0, |&src| i64::from(self.get(src, lane) as i32)))
    }
}

/// Samples in every lane of the mask: four values each.
pub(super) fn texture<M: DeviceMemory, H: Hooks>(
    (hooks, recent): (&H, &mut RecentSampler),
    spans: &mut Spans<'_, M>,
    rows: &Rows<'_>,
    op: &TextureOp,
    mask: u32,
) -> Result<[Row; 4], Trouble> {
    let mut out = [[0; LANES]; 4];
    for lane in lanes(mask) {
        let sampler = recent.find(hooks, rows.get(op.handle, lane), lane)?;
        let at = match op.is_integer {
            true => rows.integers(&op.at, lane).map(|place| place as f64),
            false => rows.floats(&op.at, lane),
        };
        let coordinates = Coordinates {
            at,
            is_integer: op.is_integer,
            layer: op.layer.map(|layer| rows.get(layer, lane) as u32),
            dimensions: op.geometry.dimensions,
            is_cube: op.geometry.is_cube,
        };
        let lod = match &op.lod {
            TextureLod::Base => Lod::Base,
            TextureLod::Level(level) if op.is_integer => Lod::Level(f64::from(rows.get(*level, lane) as i32)),
            TextureLod::Level(level) => Lod::Level(rows.float(*level, lane)),
            TextureLod::Gradients(dx, dy) => Lod::Gradients(rows.floats(dx, lane), rows.floats(dy, lane)),
        };
        let mut missed = 0;
        let mut fetch = |address: u64, width: u32| {
            missed = address;
            spans.load(address, width).map(|bits| bits as u32)
        };
        let values = match op.gather {
            Some(component) => sampler.gather(&coordinates, component, &mut fetch),
            None => sampler.sample(&coordinates, lod, &mut fetch),
        };
        let Some(values) = values else { return Err(Trouble::at(FaultKind::IllegalAddress, lane, missed)) };
        for (row, value) in out.iter_mut().zip(values) {
            row[lane] = u64::from(value);
        }
    }
    Ok(out)
}

/// Answers `txq` and `suq`.
pub(super) fn query<H: Hooks>(
    (hooks, recent): (&H, &mut RecentSampler),
    rows: &Rows<'_>,
    (handle, level): (Src, Option<Src>),
    question: SamplerQuestion,
    mask: u32,
) -> Result<Row, Trouble> {
    use SamplerQuestion as Q;
    let mut out = [0; LANES];
    for lane in lanes(mask) {
        let sampler = recent.find(hooks, rows.get(handle, lane), lane)?;
        let number = level.map_or(0, |level| rows.get(level, lane) as u32 as usize);
        let level = sampler.levels.get(number);
        out[lane] = match question {
            Q::Width => level.map_or(0, |level| level.width),
            Q::Height => level.map_or(0, |level| level.height),
            Q::Depth | Q::Layers => level.map_or(0, |level| level.depth),
            Q::Levels => sampler.levels.len() as u64,
            Q::IsNormalized => u64::from(sampler.is_normalized),
            Q::ChannelType => channel_type(&sampler),
            Q::ChannelOrder => channel_order(&sampler),
        };
    }
    Ok(out)
}

/// OpenCL's numbers of channel types, which PTX uses.
fn channel_type(sampler: &Sampler) -> u64 {
    match (sampler.channel.kind, sampler.channel.bytes) {
        (ChannelKind::Snorm, 1) => 0x10d0,
        (ChannelKind::Snorm, _) => 0x10d1,
        (ChannelKind::Unorm, 1) => 0x10d2,
        (ChannelKind::Unorm, _) => 0x10d3,
        (ChannelKind::Signed, 1) => 0x10d7,
        (ChannelKind::Signed, 2) => 0x10d8,
        (ChannelKind::Signed, _) => 0x10d9,
        (ChannelKind::Unsigned, 1) => 0x10da,
        (ChannelKind::Unsigned, 2) => 0x10db,
        (ChannelKind::Unsigned, _) => 0x10dc,
        (ChannelKind::Float, 2) => 0x10dd,
        (ChannelKind::Float, _) => 0x10de,
    }
}

/// OpenCL's numbers of channel orders.
fn channel_order(sampler: &Sampler) -> u64 {
    match sampler.channel.count {
        1 => 0x10b0,
        2 => 0x10b2,
        _ => 0x10b5,
    }
}

/// Where the lanes of a surface access go, and which of them go anywhere.
pub(super) struct Places {
    pub(super) at: Row,
    pub(super) mask: u32,
    samplers: Option<Arc<Sampler>>,
}

/// Addresses of a surface access.
pub(super) fn places<H: Hooks>(
    (hooks, recent): (&H, &mut RecentSampler),
    rows: &Rows<'_>,
    op: &SurfaceOp,
    mask: u32,
) -> Result<Places, Trouble> {
    let mut places = Places { at: [0; LANES], mask: 0, samplers: None };
    let count = match &op.work {
        SurfaceWork::Load { d } => d.len() as u64,
        SurfaceWork::Store { values, .. } => values.len() as u64,
        SurfaceWork::Reduce(_) => 1,
    };
    for lane in lanes(mask) {
        let sampler = recent.find(hooks, rows.get(op.handle, lane), lane)?;
        let mut at = rows.integers(&op.at, lane);
        let mut bytes = count * u64::from(op.width);
        if op.counts_elements {
            at[0] = at[0].saturating_mul(sampler.element_bytes() as i64);
            bytes = sampler.element_bytes();
        }
        if let Some(layer) = op.layer {
            at[2] = i64::from(rows.get(layer, lane) as i32);
        }
        match sampler.surface_address(at, bytes, op.outside) {
            Bounds::Inside(address) => {
                places.at[lane] = address;
                places.mask |= 1 << lane;
            }
            Bounds::Nothing => {}
            Bounds::Trap => {
                let message = format!("{at:?} lies outside of a surface");
                return Err(Trouble::saying(FaultKind::IllegalAddress, lane, message));
            }
        }
        places.samplers = Some(sampler);
    }
    Ok(places)
}

impl<M: DeviceMemory> Reach<'_, '_, M> {
    /// Loads the elements of a surface that the lanes name, one after the other in memory.
    pub(super) fn load_surface(
        &mut self,
        places: &Places,
        width: u32,
        count: usize,
    ) -> Result<[Row; 4], Trouble> {
        let (mut out, mut at) = ([[0; LANES]; 4], places.at);
        for row in out.iter_mut().take(count) {
            self.load(Mem::Generic, &at, places.mask, width, false, row)?;
            at = at.map(|place| place.wrapping_add(u64::from(width)));
        }
        Ok(out)
    }

    /// Stores values as they are, or as the surface's format wants them.
    pub(super) fn store_surface(
        &mut self,
        places: &Places,
        width: u32,
        values: &[Row],
        is_formatted: bool,
    ) -> Result<(), Trouble> {
        let Some(sampler) = places.samplers.as_ref().filter(|_| places.mask != 0) else { return Ok(()) };
        let (width, count) = match is_formatted {
            true => (u32::from(sampler.channel.bytes), usize::from(sampler.channel.count)),
            false => (width, values.len()),
        };
        let mut at = places.at;
        for row in values.iter().take(count) {
            let row = match is_formatted {
                true => row.map(|value| u64::from(sampler.channel.encode(value as u32))),
                false => *row,
            };
            self.store(Mem::Generic, &at, places.mask, width, &row)?;
            at = at.map(|place| place.wrapping_add(u64::from(width)));
        }
        Ok(())
    }
}
