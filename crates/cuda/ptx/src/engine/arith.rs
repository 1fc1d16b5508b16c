//! Instructions that need more than one row function: carries and special registers.

use super::{block::Place, run::Launch, warp::Warp};
use crate::{
    code::{Carry, CarryKind, Combine, Kernel, LANES, Row, Special},
    hooks::Hooks,
};

/// Joins a comparison with another predicate.
#[inline]
pub(super) fn combine(how: Combine, value: u32, other: u32) -> u32 {
    match how {
        Combine::None => value,
        Combine::And => value & other,
        Combine::Or => value | other,
        Combine::Xor => value ^ other,
    }
}

/// Adds, subtracts or multiplies with the carry of the warp; returns the result and the new carry.
pub(super) fn carry(op: &Carry, a: &Row, b: &Row, c: &Row, carry: u32) -> (Row, u32) {
    let mut out = [0; LANES];
    let mut flags = 0;
    let bits = if op.wide { 64 } else { 32 };
    let cut = if op.wide { u64::MAX } else { u64::from(u32::MAX) };
    for lane in 0..LANES {
        let (x, y, z) = (a[lane] & cut, b[lane] & cut, c[lane] & cut);
        let carry_in = u128::from(op.carry_in && carry >> lane & 1 == 1);
        let (value, flag) = match op.kind {
            CarryKind::Add => {
                let sum = u128::from(x) + u128::from(y) + carry_in;
                (sum as u64, sum >> bits & 1 == 1)
            }
            CarryKind::Sub => {
                // A subtraction adds the complement: the flag is set where nothing was borrowed. Code that takes
                // up the flag of a subtraction with `addc` relies on it.
                let one = if op.carry_in { carry_in } else { 1 };
                let sum = u128::from(x) + u128::from(!y & cut) + one;
                (sum as u64, sum >> bits & 1 == 1)
            }
            CarryKind::MadLo | CarryKind::MadHi => {
                let product = if op.signed {
                    let extend =
                        |value: u64| if op.wide { value as i64 as i128 } else { value as i32 as i128 };
                    (extend(x) * extend(y)) as u128
                } else {
                    u128::from(x) * u128::from(y)
                };
                let part = if op.kind == CarryKind::MadHi { product >> bits } else { product } as u64 & cut;
                let sum = u128::from(part) + u128::from(z) + carry_in;
                (sum as u64, sum >> bits & 1 == 1)
            }
        };
        out[lane] = value & cut;
        flags |= u32::from(flag) << lane;
    }
    (out, flags)
}

/// The value of a special register in all lanes.
pub(super) fn special<H: Hooks>(
    kind: Special,
    warp: &Warp,
    place: &Place,
    launch: &Launch,
    kernel: &Kernel,
    hooks: &H,
) -> Row {
    let same = |value: u32| [u64::from(value); LANES];
    let each = |f: fn(u32) -> u32| {
        let mut row = [0; LANES];
        for (lane, value) in row.iter_mut().enumerate() {
            *value = u64::from(f(lane as u32));
        }
        row
    };
    match kind {
        Special::Tid(axis) => warp.tid[axis as usize],
        Special::Ntid(axis) => same(launch.block[axis as usize]),
        Special::Ctaid(axis) => same(place.block[axis as usize]),
        Special::Nctaid(axis) => same(launch.grid[axis as usize]),
        Special::LaneId => each(|lane| lane),
        Special::WarpId => same(warp.index),
        Special::NWarpId => same(32),
        Special::SmId => same(place.worker),
        Special::NSmId => same(launch.multiprocessors.max(1)),
        Special::GridId => [launch.grid_id; LANES],
        Special::LaneMaskEq => each(|lane| 1 << lane),
        Special::LaneMaskLt => each(|lane| (1 << lane) - 1),
        Special::LaneMaskLe => each(|lane| u32::MAX >> (31 - lane)),
        Special::LaneMaskGt => each(|lane| !(u32::MAX >> (31 - lane))),
        Special::LaneMaskGe => each(|lane| !((1 << lane) - 1)),
        Special::Clock => [hooks.clock(); LANES],
        Special::ClockHi => [hooks.clock() >> 32; LANES],
        Special::GlobalTimer => [hooks.global_timer(); LANES],
        Special::GlobalTimerHi => [hooks.global_timer() >> 32; LANES],
        // The driver hands cooperative groups their workspace in these two.
        Special::EnvReg(1) => same((launch.grid_workspace >> 32) as u32),
        Special::EnvReg(2) => same(launch.grid_workspace as u32),
        Special::EnvReg(_) | Special::Zero => same(0),
        Special::DynamicSmem => same(launch.dynamic_shared),
        Special::TotalSmem => same(kernel.static_shared + launch.dynamic_shared),
        Special::One => same(1),
    }
}
