//! How an online session gets memory that a guest has, where both are promised more than the GPU has.
//!
//! ```text
//!   online session                       page                      box                        guest
//!   no memory for an allocation ─▶ slot: WantBytes ─▶ WantWatch ─▶ monitor ─▶ must leave ─▶ suspended, or evicted
//!   tries again, for a bounded time ◀────────────────────────────────────── its memory is free
//! ```
//!
//! A session without a guest beside it does not wait: nothing would come. A want is in the slot of its owner, and goes with it. A want of a
//! process that is gone, or that shows no sign of life, moves no guest.

use crate::{
    memory::RETURNED_WITHIN_NS,
    mutant::{Mutant, is_planted},
    page::{Field, Owner, Page, SLOTS, SlotOwner, Ticket},
    part::Part,
    sentry::Life,
};

/// How long an allocation waits at most. A guest has 8 s to be suspended. Before that its box sees the want and the manager hears of it,
/// after it the worker of the seat is ended: a second or two each.
pub const MEMORY_PATIENCE_NS: u64 = 15_000_000_000;
/// A want whose owner shows no sign of life for so long is not heeded. Owners beat twenty times as often.
const FROZEN_AFTER_NS: u64 = 1_000_000_000;
/// The most that counts between two looks of the box: longer, and the box itself was held up.
const GAP_MAX_NS: u64 = 300_000_000;

/// An online session waits for memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryWait {
    ticket: Ticket,
    began_ns: u64,
    /// When memory could last be seen that may come back.
    seen_ns: u64,
}

impl MemoryWait {
    /// The device had no memory for an allocation of an online session, which is within its limit. `None` if waiting brings nothing: the
    /// answer is that there is no memory.
    pub fn begin(page: Page<'_>, ticket: Ticket, bytes: u64, now_ns: u64) -> Option<Self> {
        let waits = ticket.part() == Part::Online && page.capacity().is_some() && page.may_return(now_ns);
        if !waits || !page.is_owned(ticket) {
            return None;
        }
        page.set(ticket, Field::WantBytes, bytes.max(1));
        Some(Self { ticket, began_ns: now_ns, seen_ns: now_ns })
    }

    /// Whether to try again.
    pub fn goes_on(&mut self, page: Page<'_>, now_ns: u64) -> bool {
        if page.may_return(now_ns) {
            self.seen_ns = now_ns;
        }
        let waited_ns = now_ns.saturating_sub(self.began_ns);
        let in_vain_ns = now_ns.saturating_sub(self.seen_ns);
        let is_patient = waited_ns < MEMORY_PATIENCE_NS || is_planted(Mutant::WaitsForEver);
        is_patient && in_vain_ns < RETURNED_WITHIN_NS && page.is_owned(self.ticket)
    }

    /// The wait is over: there is memory, or none will be.
    pub fn end(self, page: Page<'_>) {
        if page.is_owned(self.ticket) && !is_planted(Mutant::WantStays) {
            page.set(self.ticket, Field::WantBytes, 0);
        }
    }
}

/// What was seen of a want.
#[derive(Clone, Copy, Debug)]
struct Seen {
    owner: Owner,
    beats: u64,
    still_ns: u64,
}

/// The box's look at the wants of a page.
#[derive(Clone, Debug)]
pub struct WantWatch {
    seen: [Option<Seen>; SLOTS],
    last_look_ns: Option<u64>,
}

impl Default for WantWatch {
    fn default() -> Self {
        Self { seen: [None; SLOTS], last_look_ns: None }
    }
}

impl WantWatch {
    /// The largest want of an online session that lives; 0 if there is none.
    pub fn look(&mut self, page: Page<'_>, now_ns: u64, mut life: impl FnMut(Owner) -> Life) -> u64 {
        let last_ns = self.last_look_ns.replace(now_ns).unwrap_or(now_ns);
        let passed_ns = now_ns.saturating_sub(last_ns).min(GAP_MAX_NS);
        let mut largest = 0;
        for (slot, seen) in self.seen.iter_mut().enumerate() {
            let want = page.want_of(slot);
            let SlotOwner::Process(owner) = page.owner(slot) else {
                *seen = None;
                continue;
            };
            if want == 0 || (life(owner) == Life::Dead && !is_planted(Mutant::WantOfTheDead)) {
                *seen = None;
                continue;
            }
            let beats = page.beats(slot);
            let one = seen.insert(match *seen {
                Some(one) if one.owner == owner && one.beats == beats => {
                    Seen { still_ns: one.still_ns + passed_ns, ..one }
                }
                _ => Seen { owner, beats, still_ns: 0 },
            });
            if one.still_ns < FROZEN_AFTER_NS || is_planted(Mutant::WantOfTheFrozen) {
                largest = largest.max(want);
            }
        }
        largest
    }
}

impl Page<'_> {
    /// Memory that the online session of a slot waits for.
    fn want_of(&self, slot: usize) -> u64 {
        if self.part(slot) == Some(Part::Online) { self.get(slot, Field::WantBytes) } else { 0 }
    }
}
