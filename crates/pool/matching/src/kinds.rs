//! GPUs and programs by kind: members of a kind are interchangeable up to the width of a bin.

use crate::speed::{Offline, Online, SpeedModel};
use std::collections::BTreeMap;

/// Weights are speeds in millionths, so that sums are exact.
pub const WEIGHT_ONE: u32 = 1_000_000;

/// An online program on its GPU, as a place for a guest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seat {
    /// The program.
    pub online: Online,
    /// Device memory that is left.
    pub free_bytes: u64,
    /// How much longer one of its requests may take.
    pub slack_us: f64,
}

/// An offline program that looks for a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guest {
    /// The program.
    pub offline: Offline,
    /// Device memory that it needs.
    pub bytes: u64,
    /// How long an online program waits for a group of its kernels, on average.
    pub residual_us: f64,
}

/// The worth of a guest in a seat; `None` where it may not sit.
pub fn weight(model: &SpeedModel, seat: &Seat, guest: &Guest) -> Option<u32> {
    let fits = guest.bytes <= seat.free_bytes && guest.residual_us <= seat.slack_us;
    fits.then(|| (model.speed(seat.online, guest.offline) * f64::from(WEIGHT_ONE)).round() as u32)
}

/// Shares of time are told apart in so many steps: the finest with which there are not too many kinds.
const LOAD_BINS: [f64; 2] = [32.0, 16.0];
const BUSY_BINS: [f64; 4] = [32.0, 16.0, 8.0, 4.0];
/// More kinds than these are too many: the work of a plan grows with their number, with that of guests most of all.
const SEAT_KINDS_MAX: usize = 512;
const GUEST_KINDS_MAX: usize = 128;
const MEMORY_STEP: u64 = 8 << 30;
const MEMORY_BINS: u64 = 16;
const SLACK_EDGES_US: [f64; 3] = [50.0, 200.0, 1000.0];

/// Seats by kind. A kind stands for its worst member: less memory, less slack and more load than any of them has, so that
/// what fits the kind fits each.
pub fn of_seats(seats: &[Seat]) -> Vec<(Seat, Vec<usize>)> {
    let key = |bins: f64, seat: &Seat| {
        let load = (seat.online.load.clamp(0.0, 1.0) * bins).floor() as u64;
        let slack = SLACK_EDGES_US.iter().filter(|edge| **edge <= seat.slack_us).count() as u64;
        [load, (seat.free_bytes / MEMORY_STEP).min(MEMORY_BINS), slack]
    };
    let worst = |all: Seat, next: &Seat| Seat {
        online: Online {
            load: all.online.load.max(next.online.load),
            busy_periods: all.online.busy_periods.max(next.online.busy_periods),
        },
        free_bytes: all.free_bytes.min(next.free_bytes),
        slack_us: all.slack_us.min(next.slack_us),
    };
    finest(&LOAD_BINS, SEAT_KINDS_MAX, |bins| grouped(seats, |seat| key(bins, seat), worst))
}

/// Guests by kind. A kind stands for the member that needs most.
pub fn of_guests(guests: &[Guest]) -> Vec<(Guest, Vec<usize>)> {
    let key = |bins: f64, guest: &Guest| {
        let busy = (guest.offline.busy.clamp(0.0, 1.0) * bins).floor() as u64;
        let residual = SLACK_EDGES_US.iter().filter(|edge| **edge < guest.residual_us).count() as u64;
        [busy, guest.bytes.div_ceil(MEMORY_STEP).min(MEMORY_BINS), residual]
    };
    let worst = |all: Guest, next: &Guest| Guest {
        offline: Offline { busy: all.offline.busy.max(next.offline.busy) },
        bytes: all.bytes.max(next.bytes),
        residual_us: all.residual_us.max(next.residual_us),
    };
    finest(&BUSY_BINS, GUEST_KINDS_MAX, |bins| grouped(guests, |guest| key(bins, guest), worst))
}

/// What the first of these bins give that give no more than so many kinds; else what the last ones give.
fn finest<T>(bins: &[f64], most: usize, kinds: impl Fn(f64) -> Vec<T>) -> Vec<T> {
    let (last, first) = bins.split_last().expect("there are bins");
    first.iter().map(|&bins| kinds(bins)).find(|kinds| kinds.len() <= most).unwrap_or_else(|| kinds(*last))
}

fn grouped<T: Copy>(
    items: &[T],
    key: impl Fn(&T) -> [u64; 3],
    worst: impl Fn(T, &T) -> T,
) -> Vec<(T, Vec<usize>)> {
    let mut kinds: BTreeMap<[u64; 3], (T, Vec<usize>)> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        kinds
            .entry(key(item))
            .and_modify(|(kind, members)| {
                *kind = worst(*kind, item);
                members.push(at);
            })
            .or_insert_with(|| (*item, vec![at]));
    }
    kinds.into_values().collect()
}
