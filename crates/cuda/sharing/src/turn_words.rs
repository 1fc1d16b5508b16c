//! The turn in the page: how it changes hands between processes, any of which may stop at any point.
//!
//! ```text
//!   turn ─▶ slot 4, for the 17th time          gate of slot 4: 0, its streams run       gates of the others: not 0
//!
//!   pass    close own gate ─▶ turn: from (4, 17) to (9, 18) ─▶ open the gate of 9, if it is still as it was before
//!   seize                     turn: from (4, 17) to (2, 18) ─▶ close the gate of 4 ─▶ open own gate
//! ```
//!
//! The word of the turn changes by compare-exchange and counts its changes, so it has one holder, whatever happens. A gate
//! follows: it is opened only from the closed value that was seen while the turn was right, and every closing writes another
//! value (a count of the turn). A process that stood still between its steps therefore opens nothing that was closed meanwhile.
//! Where a late step closes the holder's gate, the holder's next look opens it again.

use crate::{
    mutant::{Mutant, between_steps, is_planted},
    page::{Field, Gate, Page, SLOTS, Ticket},
    part::{Part, Share},
};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const TURN: usize = 5;
const WANTS: usize = 6;
const FLOOR: usize = 7;
const SLOT_BITS: u32 = 8;

/// Which slot has the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// None, or what a damaged word names: no slot.
    pub slot: Option<usize>,
    /// Counts how often the turn has changed hands.
    pub count: u64,
    /// The word itself.
    word: u64,
}

impl Holding {
    fn from_word(word: u64) -> Self {
        let named = (word & ((1 << SLOT_BITS) - 1)) as usize;
        Self { slot: named.checked_sub(1).filter(|slot| *slot < SLOTS), count: word >> SLOT_BITS, word }
    }

    /// Whether the word says that no slot has it. A damaged one does not: it names a slot that does not exist.
    pub(crate) fn is_free(self) -> bool {
        self.word & ((1 << SLOT_BITS) - 1) == 0
    }

    /// The same turn in other hands.
    fn next(self, slot: Option<usize>) -> u64 {
        let count = (self.count + 1) & (u64::MAX >> SLOT_BITS);
        count << SLOT_BITS | slot.map_or(0, |slot| slot as u64 + 1)
    }

    /// What a gate holds that is closed while the turn is this: never 0.
    fn closed(self) -> u64 {
        self.count + 1
    }
}

impl Page<'_> {
    /// Which slot has the turn.
    pub fn holding(&self) -> Holding {
        Holding::from_word(self.header(TURN).load(SeqCst))
    }

    /// Bits of the equal slots that have work.
    pub fn wants(&self) -> u64 {
        self.header(WANTS).load(SeqCst)
    }

    /// Whether streams of an equal slot may run.
    pub fn is_open(&self, slot: usize) -> bool {
        self.word(slot, Field::Gate as usize).load(SeqCst) == 0
    }

    /// What streams of this session find. Whether the page is whole is no question of an equal one's streams: its keeper opens its
    /// gate in doubt.
    pub fn gate_of(&self, ticket: Ticket) -> Gate {
        match ticket.part() {
            Part::Equal(_) if self.is_open(ticket.slot()) => Gate::Open,
            Part::Equal(_) => Gate::Closed,
            Part::Online | Part::Offline => self.gate(),
        }
    }

    /// The share of a slot's session, if it takes turns.
    pub fn share(&self, slot: usize) -> Option<Share> {
        self.part(slot).and_then(Part::share)
    }

    /// Whether another session takes turns with this one.
    pub(crate) fn has_equals(&self, slot: usize) -> bool {
        (0..SLOTS).any(|other| other != slot && self.share(other).is_some())
    }

    pub(crate) fn want(&self, ticket: Ticket) {
        self.header(WANTS).fetch_or(ticket.bit(), SeqCst);
    }

    /// The slot has no work, as its owner says, or will do none, as others have found.
    pub(crate) fn want_no_more(&self, slot: usize) {
        self.header(WANTS).fetch_and(!(1u64 << slot), SeqCst);
    }

    /// The virtual time at which the turn was last given.
    pub(crate) fn floor(&self) -> u64 {
        self.header(FLOOR).load(Relaxed)
    }

    pub(crate) fn raise_floor(&self, virtual_time: u64) {
        self.header(FLOOR).fetch_max(virtual_time, Relaxed);
    }

    /// Takes the turn, from no slot or from one that does nothing with it. `None`: it has changed hands since `seen`.
    pub(crate) fn take(&self, ticket: Ticket, seen: Holding) -> Option<Holding> {
        let taken = self.change(seen, Some(ticket.slot()))?;
        between_steps();
        if let Some(slot) = seen.slot
            && !is_planted(Mutant::SeizedGateStaysOpen)
        {
            // It is not given the turn again before it shows that it lives.
            self.want_no_more(slot);
            self.shut(slot, taken);
        }
        Some(taken)
    }

    /// Hands the turn on. The own gate is closed. False: another session took it.
    pub(crate) fn pass(&self, mine: Holding, to: Option<usize>) -> bool {
        let before = to.map(|slot| (slot, self.word(slot, Field::Gate as usize).load(SeqCst)));
        let Some(given) = self.change(mine, to) else { return false };
        let Some((slot, closed)) = before else { return true };
        between_steps();
        if self.wants() & 1 << slot == 0 && !is_planted(Mutant::GivesToTheIdle) {
            // Its work has ended meanwhile. Either it sees that it has the turn, or this sees that it does not want it.
            if let Some(free) = self.change(given, None) {
                self.shut(slot, free);
            }
        } else if !self.is_online_busy() {
            // The next holder would find out by itself; this saves the time until it looks.
            self.unshut(slot, closed);
        }
        true
    }

    /// Opens the own gate while the turn is still `mine`. False when it is not.
    pub(crate) fn open_own(&self, ticket: Ticket, mine: Holding) -> bool {
        let gate = self.word(ticket.slot(), Field::Gate as usize).load(SeqCst);
        let is_mine = self.holding() == mine || is_planted(Mutant::OpensWithoutTheTurn);
        between_steps();
        if is_mine && gate != 0 {
            self.unshut(ticket.slot(), gate);
        }
        is_mine
    }

    /// Closes the gate of a slot while the turn is this.
    pub(crate) fn shut(&self, slot: usize, holding: Holding) {
        self.word(slot, Field::Gate as usize).store(holding.closed(), SeqCst);
    }

    /// Opens the own gate whatever the turn is: the page cannot be trusted.
    pub(crate) fn open_in_doubt(&self, ticket: Ticket) {
        self.word(ticket.slot(), Field::Gate as usize).store(0, SeqCst);
    }

    /// A slot is emptied: its wish, and the turn if it has it.
    pub(crate) fn give_up_for(&self, slot: usize) {
        self.want_no_more(slot);
        while let holding = self.holding()
            && holding.slot == Some(slot)
            && !is_planted(Mutant::ReclaimKeepsTurn)
            && self.change(holding, None).is_none()
        {}
    }

    fn change(&self, from: Holding, to: Option<usize>) -> Option<Holding> {
        let to = from.next(to);
        self.header(TURN).compare_exchange(from.word, to, SeqCst, SeqCst).ok().map(|_| Holding::from_word(to))
    }

    fn unshut(&self, slot: usize, closed: u64) {
        let gate = self.word(slot, Field::Gate as usize);
        if is_planted(Mutant::OpensWhatWasClosedMeanwhile) {
            gate.store(0, SeqCst);
        } else {
            let _ = gate.compare_exchange(closed, 0, SeqCst, SeqCst);
        }
    }
}
