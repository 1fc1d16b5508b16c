//! Lanes that talk to each other: votes, shuffles, matches, reductions.

use crate::code::{LANES, ReduxKind, Row, ShuffleKind, lanes};

/// The shuffled row and the lanes whose source was in range.
pub(super) fn shuffle(kind: ShuffleKind, a: &Row, b: &Row, c: &Row, active: u32) -> (Row, u32) {
    let mut out = [0; LANES];
    let mut valid = 0;
    for lane in lanes(active) {
        let delta = b[lane] as i32 & 31;
        let clamp = c[lane] as i32 & 31;
        let segment = (c[lane] >> 8) as i32 & 31;
        let own = lane as i32;
        let high = own & segment | clamp & !segment;
        let low = own & segment;
        let (source, inside) = match kind {
            ShuffleKind::Up => (own - delta, own - delta >= high),
            ShuffleKind::Down => (own + delta, own + delta <= high),
            ShuffleKind::Bfly => (own ^ delta, (own ^ delta) <= high),
            ShuffleKind::Idx => {
                let source = low | delta & !segment;
                (source, source <= high)
            }
        };
        let source = if inside { source } else { own };
        // The value of a lane that does not take part is undefined; its register is as good as any.
        out[lane] = a[source as usize & 31] & 0xFFFF_FFFF;
        valid |= u32::from(inside) << lane;
    }
    (out, valid)
}

/// `match.any`: for each lane the lanes with its value.
pub(super) fn match_any(a: &Row, wide: bool, active: u32) -> Row {
    let value = |lane: usize| if wide { a[lane] } else { a[lane] & 0xFFFF_FFFF };
    let mut out = [0; LANES];
    for lane in lanes(active) {
        out[lane] = lanes(active)
            .filter(|&other| value(other) == value(lane))
            .fold(0, |mask, other| mask | 1 << other);
    }
    out
}

/// A reduction over the active lanes.
pub(super) fn redux(kind: ReduxKind, a: &Row, active: u32) -> u64 {
    let values = lanes(active).map(|lane| a[lane] as u32);
    let reduced = match kind {
        ReduxKind::Add => values.fold(0, u32::wrapping_add),
        ReduxKind::MinU => values.min().unwrap_or(0),
        ReduxKind::MaxU => values.max().unwrap_or(0),
        ReduxKind::MinS => values.map(|value| value as i32).min().unwrap_or(0) as u32,
        ReduxKind::MaxS => values.map(|value| value as i32).max().unwrap_or(0) as u32,
        ReduxKind::And => values.fold(!0, |all, value| all & value),
        ReduxKind::Or => values.fold(0, |all, value| all | value),
        ReduxKind::Xor => values.fold(0, |all, value| all ^ value),
        ReduxKind::Float { min, abs, nan } => {
            let numbers = values.map(f32::from_bits).map(|value| if abs { value.abs() } else { value });
            let pick = |a: f32, b: f32| {
                if nan && (a.is_nan() || b.is_nan()) {
                    return f32::NAN;
                }
                if a.is_nan() || (if min { b < a } else { b > a }) { b } else { a }
            };
            let value = numbers.reduce(pick).unwrap_or(0.0);
            if value.is_nan() { 0x7FFF_FFFF } else { value.to_bits() }
        }
    };
    u64::from(reduced)
}
