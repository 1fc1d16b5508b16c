//! Places in a surface.

use super::{Level, Sampler};

/// What an access does outside of a surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outside {
    /// It ends the kernel.
    Trap,
    /// It touches the nearest element instead.
    Clamp,
    /// It reads zero and writes nothing.
    Zero,
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounds {
    Inside(u64),
    Nothing,
    Trap,
}

impl Sampler {
    /// The address of an access of `bytes` at byte `x` of row `y` of slice `z`; signed, as programs compute them.
    pub(crate) fn surface_address(&self, [x, y, z]: [i64; 3], bytes: u64, outside: Outside) -> Bounds {
        let Some(level) = self.levels.first() else { return Bounds::Trap };
        let row_bytes = level.width.saturating_mul(self.element_bytes());
        let ends = [row_bytes, level.height, level.depth];
        let fits = |at: i64, count: u64, end: u64| {
            u64::try_from(at).is_ok_and(|at| at.checked_add(count).is_some_and(|last| last <= end))
        };
        let is_inside = fits(x, bytes, ends[0]) && fits(y, 1, ends[1]) && fits(z, 1, ends[2]);
        if is_inside {
            return Bounds::Inside(address(level, [x as u64, y as u64, z as u64]));
        }
        match outside {
            Outside::Trap => Bounds::Trap,
            Outside::Zero => Bounds::Nothing,
            Outside::Clamp => {
                let clamp = |at: i64, last: u64| (at.max(0) as u64).min(last);
                let places =
                    [clamp(x, ends[0].saturating_sub(bytes)), clamp(y, ends[1] - 1), clamp(z, ends[2] - 1)];
                Bounds::Inside(address(level, places))
            }
        }
    }
}

fn address(level: &Level, [x, y, z]: [u64; 3]) -> u64 {
    level.address.wrapping_add(x).wrapping_add(y * level.row_pitch).wrapping_add(z * level.slice_pitch)
}
