//! One guest to one seat, exactly: Kuhn and Munkres with potentials, and the same in shards.
//!
//! For `n` guests and `m` seats it takes about `n^2 m` steps, so clusters are cut into shards and each is matched by itself:
//! that is the published way, and the baseline that [`crate::transport`] is held against.

/// A matching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// The seat of each guest that has one.
    pub seats: Vec<Option<usize>>,
    /// Its worth.
    pub weight: u64,
    /// Arcs looked at.
    pub steps: u64,
}

/// The matching of the greatest worth. `weight(guest, seat)` is `None` where a pair may not be.
pub fn best_matching(guests: usize, seats: usize, weight: impl Fn(usize, usize) -> Option<u32>) -> Matching {
    // A guest that stays away takes a seat of its own that is worth nothing: then there are never too few.
    let columns = seats + guests;
    let cost = |guest: usize, seat: usize| match seat < seats {
        true => -weight(guest, seat).map_or(-1, i64::from),
        false => 0,
    };
    let mut steps = 0;
    let (mut row_potential, mut column_potential) = (vec![0i64; guests + 1], vec![0i64; columns + 1]);
    // Columns from 1 on; `owner[0]` is the guest that looks for a seat.
    let mut owner = vec![0usize; columns + 1];
    for guest in 1..=guests {
        owner[0] = guest;
        let (mut least, mut way) = (vec![i64::MAX; columns + 1], vec![0usize; columns + 1]);
        let mut used = vec![false; columns + 1];
        let mut column = 0;
        while owner[column] != 0 {
            used[column] = true;
            let (row, mut delta, mut next) = (owner[column], i64::MAX, 0);
            steps += columns as u64;
            for at in (1..=columns).filter(|&at| !used[at]) {
                let reduced = cost(row - 1, at - 1) - row_potential[row] - column_potential[at];
                if reduced < least[at] {
                    (least[at], way[at]) = (reduced, column);
                }
                if least[at] < delta {
                    (delta, next) = (least[at], at);
                }
            }
            for at in 0..=columns {
                if used[at] {
                    row_potential[owner[at]] += delta;
                    column_potential[at] -= delta;
                } else if least[at] < i64::MAX {
                    least[at] -= delta;
                }
            }
            column = next;
        }
        while column != 0 {
            owner[column] = owner[way[column]];
            column = way[column];
        }
    }
    let mut matching = Matching { seats: vec![None; guests], weight: 0, steps };
    for seat in 0..seats {
        let Some(guest) = owner[seat + 1].checked_sub(1) else { continue };
        if let Some(worth) = weight(guest, seat) {
            matching.seats[guest] = Some(seat);
            matching.weight += u64::from(worth);
        }
    }
    matching
}

/// The same in shards of at most so many guests and seats. Each shard has its part of both, in the order they come, so that no seat is
/// left out where there are fewer guests.
pub fn in_shards(
    guests: usize,
    seats: usize,
    shard: usize,
    weight: impl Fn(usize, usize) -> Option<u32>,
) -> Matching {
    let mut all = Matching { seats: vec![None; guests], ..Matching::default() };
    let shards = guests.max(seats).div_ceil(shard);
    for nth in 0..shards {
        let part_of = |count: usize| count * nth / shards..count * (nth + 1) / shards;
        let (here, there) = (part_of(guests), part_of(seats));
        let part = best_matching(here.len(), there.len(), |guest, seat| {
            weight(here.start + guest, there.start + seat)
        });
        for (guest, seat) in here.zip(part.seats) {
            all.seats[guest] = seat.map(|seat| there.start + seat);
        }
        all.weight += part.weight;
        all.steps += part.steps;
    }
    all
}
