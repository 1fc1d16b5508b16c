//! The page: words that the sessions of one GPU share.
//!
//! ```text
//! word 0   magic and version
//!      1   closers: bit i = online slot i is busy, bit 63 = paused; the gate is open when this is zero
//!      2   present: bit i = slot i belongs to an online session
//!      3   epoch of the page
//!      4   paused until (ns), while bit 63 is set
//!      5   turn: which equal slot has it, and how often it has changed hands ([`crate::Holding`])
//!      6   wants: bit i = equal slot i has work
//!      7   floor: the virtual time at which the turn was last given
//!      8   guests: bit i = slot i belongs to an offline session
//!      9   faults that ended the contexts of all sessions, where these are merged: how many, and the code of the last
//!     10   capacity: memory of the GPU, if its sessions are promised more than that together; 0 if they are not
//!     11   memory is on its way back until (ns): a guest has just left, or the box looks whether free memory is empty
//!     12   an online session is expected back until (ns)
//!     15   [`crate::FaultBackoff`] of these faults
//!   16..   63 slots of 16 words: 8 that the owner writes often, 8 that others read
//! ```
//!
//! A slot belongs to the process that its owner word names. Only the owner sets its bit of `closers`. [`crate::Sentry`]
//! clears the bit of an owner that is dead or frozen. An owner whose bit was cleared wrongly sets it again with its
//! next command or beat: a lost bit costs the online program a delay, never a result.
//!
//! What is done with words 5 to 7 and with the gates of equal slots is in `turn_words.rs`, with words 10 and 11 and with what slots
//! say of memory in `memory.rs`, with word 12 in `expected.rs`. Sessions of before there were such words find zero there and leave it.

use crate::backoff::FaultBackoff;
use crate::governor::Orders;
use crate::mutant::{Mutant, is_planted};
use crate::overstay::RUNS_ON_MAX_NS;
use crate::part::{Part, Share};
use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use work_class::Class;

/// How many sessions can share a GPU: a bit of `closers` for each, and one to pause all.
pub const SLOTS: usize = 63;
/// The words of a page.
pub const PAGE_WORDS: usize = HEADER_WORDS + SLOTS * SLOT_WORDS;

/// The last byte is the version: a page of another one is refused by [`Page::open`].
const MAGIC: u64 = u64::from_le_bytes(*b"dxpugat\x03");
const HEADER_WORDS: usize = 16;
const SLOT_WORDS: usize = 16;
const CLOSERS: usize = 1;
const PRESENT: usize = 2;
const EPOCH: usize = 3;
const PAUSED_UNTIL: usize = 4;
const GUESTS: usize = 8;
const FAULTS: usize = 9;
const BACKOFF: usize = 15;
const PAUSE_BIT: u64 = 1 << 63;

/// A process number has at most 22 bits on Linux (`PID_MAX_LIMIT`).
const PID_BITS: u32 = 22;
/// Start times in ticks of 10 ms fill these bits after a thousand years of uptime.
const START_BITS: u32 = 42;

/// Why words are no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The wrong number of words.
    #[error("a page of sharing has {PAGE_WORDS} words, this has {0}")]
    Length(usize),
    /// Not initialised, damaged, or of another version.
    #[error(
        "the page of sharing has an unknown beginning; its maker has another version of dxpu, or it is damaged"
    )]
    Magic,
}

/// What an offline session finds when it looks at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// No online session is busy.
    Open,
    /// Some are, or offline work is paused.
    Closed,
    /// The page is damaged. Offline work stops, because whether an online session is busy is not known.
    Damaged,
}

impl Gate {
    /// Whether offline work may start.
    pub fn is_open(self) -> bool {
        self == Self::Open
    }
}

/// The process that a slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64);

/// A process number or start time that an owner word has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {pid} that started at tick {start_ticks} has no place in an owner word")]
pub struct OwnerNumberTooLarge {
    /// The process number.
    pub pid: u32,
    /// Its start time.
    pub start_ticks: u64,
}

impl Owner {
    /// A process: its number and its start time in ticks since the machine started, as `/proc/PID/stat` has it. Together
    /// they name one process; a number alone is used again.
    pub fn new(pid: u32, start_ticks: u64) -> Result<Self, OwnerNumberTooLarge> {
        if pid == 0 || pid >> PID_BITS != 0 || start_ticks >> START_BITS != 0 {
            return Err(OwnerNumberTooLarge { pid, start_ticks });
        }
        Ok(Self(u64::from(pid) << START_BITS | start_ticks))
    }

    /// Its process number.
    pub fn pid(self) -> u32 {
        (self.0 >> START_BITS) as u32
    }

    /// When it started.
    pub fn start_ticks(self) -> u64 {
        self.0 & ((1 << START_BITS) - 1)
    }
}

/// What a slot's owner word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOwner {
    /// The slot is free.
    Nobody,
    /// It belongs to this process.
    Process(Owner),
}

/// A number in a slot that its owner writes and others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Field {
    /// Since when the session is busy (ns), 0 when it is not. Equal: since when it has the turn.
    BusySince = 3,
    /// Since when it is idle (ns), 0 when it is not.
    IdleSince = 4,
    /// How long it was busy before. Equal: how long it had the turn, up to the last look of its keeper; this is what it has used.
    BusyTotalNs = 5,
    /// How often it became busy. Equal: how often it had the turn.
    BusyPeriods = 6,
    /// Equal: what it has used, divided by its share. The session with the least is next.
    Virtual = 7,
    /// Online, offline: device memory in use.
    UsedBytes = 8,
    /// Online: device memory that it waits for, 0 while it waits for none.
    WantBytes = 9,
    /// Offline: groups started.
    Groups = 10,
    /// Online: how long groups of offline work may be beside it, in microseconds; 0 for no order. Offline: how long its longest group of
    /// late takes.
    GroupUs = 11,
    /// Offline: its kernels that ran on at a closed gate.
    Offences = 12,
    /// Online: what offline work adds to its requests, in thousandths of their time.
    CostMilli = 13,
    /// Online: a [`Distress`].
    Distress = 14,
    /// Equal: zero while its streams may run.
    Gate = 15,
}

/// How an online session fares beside offline ones. Ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Distress {
    /// They cost it no more than they may.
    None = 0,
    /// They cost it too much, and are given less.
    OverSlack = 1,
    /// To give them less did not help: they must go.
    Overlimit = 2,
}

impl Distress {
    pub(crate) fn of(orders: Orders) -> Self {
        match (orders.is_overlimit, orders.is_over_slack) {
            (true, _) => Self::Overlimit,
            (false, true) => Self::OverSlack,
            (false, false) => Self::None,
        }
    }

    fn from_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::OverSlack,
            _ => Self::Overlimit,
        }
    }
}

const OWNER: usize = 0;
const PART: usize = 1;
const BEAT: usize = 2;

/// The right to a slot, as its owner holds it. Closing checks it against the owner word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    slot: usize,
    owner: Owner,
    part: Part,
}

impl Ticket {
    /// Which slot.
    pub fn slot(self) -> usize {
        self.slot
    }

    /// What the slot was claimed for.
    pub fn part(self) -> Part {
        self.part
    }

    pub(crate) fn bit(self) -> u64 {
        1 << self.slot
    }
}

/// Memory that holds a page, however it is mapped.
pub trait Words: Send + Sync {
    /// All of it.
    fn words(&self) -> &[AtomicU64];
}

/// A page and the memory that it lies in.
#[derive(Clone)]
pub struct PageHandle(Arc<dyn Words>);

impl PageHandle {
    /// A page that was made before.
    pub fn open(words: Arc<dyn Words>) -> Result<Self, PageError> {
        Page::open(words.words())?;
        Ok(Self(words))
    }

    /// All of its words, for a driver that shows them to a device. [`Page::GATE_WORD`] is the one that streams wait for.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    /// The page. Whether it is still whole is looked at by [`Page::gate`].
    pub fn page(&self) -> Page<'_> {
        Page { words: self.0.words() }
    }
}

impl std::fmt::Debug for PageHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PageHandle").finish()
    }
}

/// A view of a page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Page<'a> {
    /// Makes a page of zero words. The magic comes last: a process that maps the words earlier finds no page.
    pub fn create(words: &'a [AtomicU64], epoch: u64) -> Result<Self, PageError> {
        let page = Self::sized(words)?;
        words.iter().for_each(|word| word.store(0, SeqCst));
        words[EPOCH].store(epoch, SeqCst);
        words[0].store(MAGIC, SeqCst);
        Ok(page)
    }

    /// A page that another process made.
    pub fn open(words: &'a [AtomicU64]) -> Result<Self, PageError> {
        let page = Self::sized(words)?;
        if page.is_whole() { Ok(page) } else { Err(PageError::Magic) }
    }

    fn sized(words: &'a [AtomicU64]) -> Result<Self, PageError> {
        if words.len() == PAGE_WORDS { Ok(Self { words }) } else { Err(PageError::Length(words.len())) }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.words[0].load(Relaxed) == MAGIC || is_planted(Mutant::DamagedIsOpen)
    }

    /// The index of the word that streams of offline sessions wait for on the device: they may go on when it is zero.
    pub const GATE_WORD: usize = CLOSERS;

    /// The index of the word that streams of this session wait for.
    pub fn gate_word(ticket: Ticket) -> usize {
        match ticket.part {
            Part::Equal(_) => HEADER_WORDS + ticket.slot * SLOT_WORDS + Field::Gate as usize,
            Part::Online | Part::Offline => Self::GATE_WORD,
        }
    }

    /// Counts how often the page was made anew.
    pub fn epoch(&self) -> u64 {
        self.words[EPOCH].load(SeqCst)
    }

    /// What an offline session may do.
    pub fn gate(&self) -> Gate {
        match (self.is_whole(), self.closers()) {
            (false, _) => Gate::Damaged,
            (true, 0) => Gate::Open,
            (true, _) => Gate::Closed,
        }
    }

    /// Bits of the slots that close the gate, and [`Page::is_paused`]'s.
    pub fn closers(&self) -> u64 {
        self.words[CLOSERS].load(SeqCst)
    }

    /// Whether an online session has work. A pause is for offline sessions alone.
    pub(crate) fn is_online_busy(&self) -> bool {
        self.closers() & !PAUSE_BIT != 0
    }

    /// Bits of the slots that belong to online sessions.
    pub fn present(&self) -> u64 {
        self.words[PRESENT].load(SeqCst)
    }

    /// Bits of the slots that belong to offline sessions.
    pub fn guests(&self) -> u64 {
        self.words[GUESTS].load(Relaxed)
    }

    /// Takes a free slot. `None` when all are taken, or for a dedicated session, which takes no part in sharing.
    pub fn claim(&self, owner: Owner, class: Class, now_ns: u64) -> Option<Ticket> {
        Part::of_class(class).and_then(|part| self.claim_part(owner, part, now_ns))
    }

    /// Takes a free slot for a session that takes turns. Its gate is closed until it has the turn.
    pub fn claim_share(&self, owner: Owner, share: Share, now_ns: u64) -> Option<Ticket> {
        self.claim_part(owner, Part::Equal(share), now_ns)
    }

    /// Takes a free slot. `None` when all are taken.
    pub fn claim_part(&self, owner: Owner, part: Part, now_ns: u64) -> Option<Ticket> {
        let is_taken =
            |&slot: &usize| self.word(slot, OWNER).compare_exchange(0, owner.0, SeqCst, SeqCst).is_ok();
        let slot = (0..SLOTS).find(is_taken)?;
        let ticket = Ticket { slot, owner, part };
        self.word(slot, PART).store(part.word(), SeqCst);
        self.set(ticket, Field::IdleSince, now_ns);
        self.beat(ticket);
        match part {
            Part::Online => drop(self.words[PRESENT].fetch_or(ticket.bit(), SeqCst)),
            Part::Offline => drop(self.words[GUESTS].fetch_or(ticket.bit(), SeqCst)),
            Part::Equal(_) => self.shut(slot, self.holding()),
        }
        Some(ticket)
    }

    /// Closes the gate, before the driver hears of the work. False when the slot is not the caller's any more; then the
    /// session claims another one.
    pub fn close(&self, ticket: Ticket, now_ns: u64) -> bool {
        if !self.is_owned(ticket) && !is_planted(Mutant::CloseWithoutOwning) {
            return false;
        }
        self.words[CLOSERS].fetch_or(ticket.bit(), SeqCst);
        // A sentry looks at closed gates alone: an owner that opened and closed again in between must not seem still.
        self.beat(ticket);
        self.set(ticket, Field::BusySince, now_ns.max(1));
        self.set(ticket, Field::IdleSince, 0);
        self.word(ticket.slot, Field::BusyPeriods as usize).fetch_add(1, Relaxed);
        true
    }

    /// Opens the gate, as far as this session is concerned.
    pub fn open_gate(&self, ticket: Ticket, now_ns: u64) {
        if !self.is_owned(ticket) {
            return;
        }
        let since = self.get(ticket.slot, Field::BusySince);
        if since != 0 {
            let busy_ns = now_ns.saturating_sub(since);
            self.word(ticket.slot, Field::BusyTotalNs as usize).fetch_add(busy_ns, Relaxed);
        }
        self.set(ticket, Field::BusySince, 0);
        self.set(ticket, Field::IdleSince, now_ns.max(1));
        self.words[CLOSERS].fetch_and(!ticket.bit(), SeqCst);
    }

    /// Says that the owner lives. A busy owner whose bit was cleared sets it again: `is_busy` is what it knows itself.
    /// False when the slot is not the caller's any more.
    pub fn beat_and_hold(&self, ticket: Ticket, is_busy: bool) -> bool {
        if !self.is_owned(ticket) {
            return false;
        }
        self.beat(ticket);
        if is_busy && !self.is_held(ticket) && !is_planted(Mutant::ForgetsToCloseAgain) {
            self.words[CLOSERS].fetch_or(ticket.bit(), SeqCst);
        }
        true
    }

    /// Whether the owner's bit is set. One load; a busy session looks at it with each command.
    pub fn is_held(&self, ticket: Ticket) -> bool {
        self.words[CLOSERS].load(Relaxed) & ticket.bit() != 0
    }

    /// Gives a slot back. Its owner calls it at its end.
    pub fn release(&self, ticket: Ticket) {
        if self.is_owned(ticket) {
            self.reclaim(ticket.slot);
        }
    }

    /// Empties the slot of a process that is gone. The owner word goes last: until then the slot cannot be claimed.
    pub fn reclaim(&self, slot: usize) {
        let bit = 1u64 << slot;
        self.words[PRESENT].fetch_and(!bit, SeqCst);
        self.words[GUESTS].fetch_and(!bit, SeqCst);
        if !is_planted(Mutant::ReclaimKeepsBit) {
            self.words[CLOSERS].fetch_and(!bit, SeqCst);
        }
        self.give_up_for(slot);
        for at in 1..SLOT_WORDS {
            if at == Field::UsedBytes as usize && is_planted(Mutant::ReclaimKeepsMemory) {
                continue;
            }
            self.word(slot, at).store(0, SeqCst);
        }
        self.word(slot, OWNER).store(0, SeqCst);
    }

    /// Makes the slot of a process that is gone the caller's, who then empties it. Several processes may find it gone at once, and
    /// another session may have the slot when the second of them comes to empty it: one of them alone is told yes.
    pub fn take_over(&self, slot: usize, gone: Owner, by: Owner) -> bool {
        self.word(slot, OWNER).compare_exchange(gone.0, by.0, SeqCst, SeqCst).is_ok()
    }

    /// Whose slot it is.
    pub fn owner(&self, slot: usize) -> SlotOwner {
        match self.word(slot, OWNER).load(SeqCst) {
            0 => SlotOwner::Nobody,
            owner => SlotOwner::Process(Owner(owner)),
        }
    }

    /// What a slot's session is to the others; `None` for a free slot.
    pub fn part(&self, slot: usize) -> Option<Part> {
        match self.owner(slot) {
            SlotOwner::Nobody => None,
            SlotOwner::Process(_) => Part::from_word(self.word(slot, PART).load(SeqCst)),
        }
    }

    /// The class of a slot's session; `None` for a free slot.
    pub fn class(&self, slot: usize) -> Option<Class> {
        self.part(slot).map(Part::class)
    }

    /// A number of a slot.
    pub fn get(&self, slot: usize, field: Field) -> u64 {
        self.word(slot, field as usize).load(Relaxed)
    }

    /// Writes a number of the caller's own slot.
    pub fn set(&self, ticket: Ticket, field: Field, value: u64) {
        self.word(ticket.slot, field as usize).store(value, Relaxed);
    }

    /// How long the longest group of an offline session takes, of late. One that ran on for longer would have ended its session: a word
    /// that is damaged does not make each request count as disturbed for good.
    pub fn longest_group_us(&self) -> u64 {
        let guests = self.guests();
        let slots = (0..SLOTS).filter(|slot| guests >> slot & 1 != 0);
        slots.map(|slot| self.get(slot, Field::GroupUs)).max().unwrap_or(0).min(RUNS_ON_MAX_NS / 1000)
    }

    /// The shortest budget of groups that an online session orders.
    pub fn group_budget_us(&self) -> Option<u64> {
        self.online().map(|slot| self.get(slot, Field::GroupUs)).filter(|us| *us != 0).min()
    }

    /// How the online session fares that fares worst.
    pub fn distress(&self) -> Distress {
        let of = |slot| Distress::from_word(self.get(slot, Field::Distress));
        self.online().map(of).max().unwrap_or(Distress::None)
    }

    /// What offline work adds to the requests of the online session that it costs most, in thousandths.
    pub fn cost_milli(&self) -> u64 {
        self.online().map(|slot| self.get(slot, Field::CostMilli)).max().unwrap_or(0)
    }

    /// Whether there is an offline session. One load; an online session looks at it whenever it becomes busy.
    pub fn has_guests(&self) -> bool {
        self.guests() != 0
    }

    /// The kernels of offline sessions that ran on at a closed gate.
    pub(crate) fn offences(&self) -> u64 {
        let guests = self.guests();
        let of_guests = (0..SLOTS).filter(|slot| guests & 1 << slot != 0);
        of_guests.map(|slot| self.get(slot, Field::Offences)).fold(0, u64::saturating_add)
    }

    /// A fault has ended the contexts of all sessions of this GPU. Written by a driver that models merged contexts.
    pub fn note_fault(&self, code: u32) {
        let next = |word: u64| Some(((word >> 32) + 1) << 32 | u64::from(code));
        let _ = self.words[FAULTS].fetch_update(SeqCst, SeqCst, next);
    }

    /// How many faults have ended the contexts of all sessions, and the code of the last one.
    pub fn faults(&self) -> (u64, u32) {
        let word = self.words[FAULTS].load(SeqCst);
        (word >> 32, word as u32)
    }

    /// A session has met a fault that ended the contexts of all.
    pub fn met_fault(&self, now_ns: u64) {
        let next = |word: u64| Some(FaultBackoff::from_word(word).after_fault(now_ns).word());
        let _ = self.words[BACKOFF].fetch_update(SeqCst, SeqCst, next);
    }

    /// What sessions have met of such faults.
    pub fn fault_backoff(&self) -> FaultBackoff {
        FaultBackoff::from_word(self.words[BACKOFF].load(Relaxed))
    }

    /// The slots of online sessions.
    fn online(&self) -> impl Iterator<Item = usize> {
        let present = self.present();
        (0..SLOTS).filter(move |slot| present & 1 << slot != 0)
    }

    /// Closes the gate for all offline sessions, by order of the monitor or an operator, until `until_ns`. The monitor
    /// says it again as long as it holds: the pause of a monitor that died ends by itself.
    pub fn pause(&self, until_ns: u64) {
        self.words[PAUSED_UNTIL].store(until_ns, SeqCst);
        self.words[CLOSERS].fetch_or(PAUSE_BIT, SeqCst);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.words[CLOSERS].fetch_and(!PAUSE_BIT, SeqCst);
    }

    /// Whether the monitor or an operator paused offline work.
    pub fn is_paused(&self) -> bool {
        self.closers() & PAUSE_BIT != 0
    }

    /// Ends a pause that was not renewed. True when it did.
    pub(crate) fn end_old_pause(&self, now_ns: u64) -> bool {
        let is_over = self.is_paused() && now_ns > self.words[PAUSED_UNTIL].load(SeqCst);
        if is_over {
            self.resume();
        }
        is_over
    }

    /// The owner's count of beats.
    pub(crate) fn beats(&self, slot: usize) -> u64 {
        self.word(slot, BEAT).load(SeqCst)
    }

    /// Clears the bit of a slot whose owner word is still `owner`.
    pub(crate) fn clear(&self, slot: usize, owner: SlotOwner) -> bool {
        let is_same = self.owner(slot) == owner;
        if is_same {
            self.words[CLOSERS].fetch_and(!(1u64 << slot), SeqCst);
        }
        is_same
    }

    pub(crate) fn is_owned(&self, ticket: Ticket) -> bool {
        self.owner(ticket.slot) == SlotOwner::Process(ticket.owner)
    }

    /// A word of the header.
    pub(crate) fn header(&self, at: usize) -> &'a AtomicU64 {
        assert!(at < HEADER_WORDS, "words of the header are constants");
        &self.words[at]
    }

    fn beat(&self, ticket: Ticket) {
        self.word(ticket.slot, BEAT).fetch_add(1, SeqCst);
    }

    pub(crate) fn word(&self, slot: usize, at: usize) -> &'a AtomicU64 {
        assert!(slot < SLOTS && at < SLOT_WORDS, "slots and fields are bounded by their types");
        &self.words[HEADER_WORDS + slot * SLOT_WORDS + at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn words_are_a_page_when_their_maker_says_so() {
        let words = words();
        assert_eq!(Page::open(&words).unwrap_err(), PageError::Magic);
        assert_eq!(Page::create(&words[1..], 1).unwrap_err(), PageError::Length(PAGE_WORDS - 1));
        Page::create(&words, 7).unwrap();
        assert_eq!(Page::open(&words).unwrap().epoch(), 7);
        words[0].store(MAGIC + 1, SeqCst);
        assert!(Page::open(&words).is_err());
    }

    #[test]
    fn owners_are_packed_without_loss_or_refused() {
        for (pid, start) in [(1, 0), (4_194_303, (1 << START_BITS) - 1), (77, 123_456_789)] {
            let owner = Owner::new(pid, start).unwrap();
            assert_eq!((owner.pid(), owner.start_ticks()), (pid, start));
        }
        for (pid, start) in [(0, 1), (1 << PID_BITS, 1), (1, 1 << START_BITS)] {
            assert!(Owner::new(pid, start).is_err(), "{pid} {start}");
        }
    }

    #[test]
    fn the_gate_is_closed_while_an_online_session_is_busy_and_a_dedicated_one_has_no_slot() {
        let words = words();
        let page = Page::create(&words, 1).unwrap();
        let owner = Owner::new(10, 1).unwrap();
        assert_eq!(page.claim(owner, Class::Dedicated, 0), None);
        let (online, offline) =
            (page.claim(owner, Class::Online, 0).unwrap(), page.claim(owner, Class::Offline, 0));
        assert_eq!(page.present(), 1 << online.slot(), "offline sessions are not present");
        assert_eq!(page.part(offline.unwrap().slot()), Some(Part::Offline));
        assert!(page.close(online, 100));
        assert_eq!(page.gate(), Gate::Closed);
        page.open_gate(online, 350);
        assert_eq!(page.gate(), Gate::Open);
        assert_eq!(page.get(online.slot(), Field::BusyTotalNs), 250);
        assert_eq!(page.get(online.slot(), Field::BusyPeriods), 1);
        page.release(online);
        assert_eq!((page.present(), page.owner(online.slot())), (0, SlotOwner::Nobody));
        assert!(!page.close(online, 400), "the slot is not its own any more");
        assert_eq!(page.gate(), Gate::Open);
    }

    #[test]
    fn guests_and_turns_have_words_of_their_own() {
        assert_eq!(PAGE_WORDS * size_of::<AtomicU64>(), 8192, "two pages of memory");
        let words = words();
        let page = Page::create(&words, 1).unwrap();
        let owner = Owner::new(10, 1).unwrap();
        let guest = page.claim(owner, Class::Offline, 0).unwrap();
        assert!(page.has_guests());
        assert_eq!((page.holding().slot, page.wants(), page.floor()), (None, 0, 0));
        let equal = page.claim_share(owner, Share::new(250, 1), 0).unwrap();
        page.want(equal);
        page.raise_floor(u64::MAX);
        page.release(guest);
        assert!(!page.has_guests(), "a session that takes turns is no guest");
        assert_eq!((page.wants(), page.floor()), (equal.bit(), u64::MAX));
    }

    #[test]
    fn a_damaged_page_stops_offline_work_and_not_online_work() {
        let words = words();
        let page = Page::create(&words, 1).unwrap();
        let online = page.claim(Owner::new(1, 1).unwrap(), Class::Online, 0).unwrap();
        words[0].store(0, SeqCst);
        assert_eq!(page.gate(), Gate::Damaged);
        assert!(!page.gate().is_open());
        assert!(page.close(online, 1), "doubt protects online");
        page.open_gate(online, 2);
        assert!(!page.gate().is_open());
    }

    #[test]
    fn slots_run_out_and_come_back() {
        let words = words();
        let page = Page::create(&words, 1).unwrap();
        let claim = |pid| page.claim(Owner::new(pid, 5).unwrap(), Class::Online, 0);
        let tickets: Vec<_> = (1..=SLOTS as u32).map(|pid| claim(pid).unwrap()).collect();
        assert_eq!(claim(1000), None);
        assert!(page.close(tickets[62], 1));
        assert!(!page.is_paused(), "the last slot's bit is not the pause");
        // Two processes find it gone. When the second one comes to it, another session has the slot.
        let (gone, first, second) = (Owner::new(63, 5), Owner::new(2000, 5), Owner::new(2001, 5));
        let take_over = |by: Result<Owner, _>| page.take_over(62, gone.unwrap(), by.unwrap());
        assert!(take_over(first));
        assert!(!take_over(second));
        page.reclaim(62);
        assert_eq!(page.gate(), Gate::Open);
        assert_eq!(claim(1000).unwrap().slot(), 62);
        assert!(!take_over(second));
    }
}
