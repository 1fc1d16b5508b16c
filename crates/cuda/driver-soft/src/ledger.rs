//! Which session uses how much of a device's memory, and which is at work on it.
//!
//! Several sessions, each a process of its own, share a device. A [`MemoryLedger`] is what they agree on: it never lets
//! the sum of all charges exceed a device's memory. [`LocalLedger`] serves one process. [`SharedLedger`] serves all
//! sessions of one worker: every session writes only its own slot, and the sum of the slots is what is used, so a
//! session that was killed leaves nothing behind but its slot, which the listener empties.

use crate::activity::Unit;
use shared_words::SharedWords;
use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// What keeps the sum of all memory within a device's.
pub trait MemoryLedger: Send + Sync {
    /// Bytes of a device.
    fn total(&self, device: usize) -> u64;

    /// From now on a device has at most this many bytes for this session and all others together. Sessions that came
    /// before keep what they have.
    fn limit(&self, bytes: u64);

    /// From now on this session alone has at most this many bytes of a device.
    fn limit_own(&self, bytes: u64);

    /// Bytes of a device that are in use: by all sessions, or by this one if it has a limit of its own.
    fn used(&self, device: usize) -> u64;

    /// Bytes of a device that this session could take now.
    fn free(&self, device: usize) -> u64 {
        self.total(device).saturating_sub(self.used(device))
    }

    /// Takes memory for this session, unless there is not as much.
    fn charge(&self, device: usize, bytes: u64) -> bool;

    /// Gives memory of this session back.
    fn release(&self, device: usize, bytes: u64);

    /// This session begins to work, or stops.
    fn set_active(&self, device: usize, unit: Unit, now_ns: u64, is_active: bool);

    /// For how long sessions have been at work, all added up.
    fn active_ns(&self, device: usize, unit: Unit, now_ns: u64) -> u64;
}

/// How long something was active: the total of past times, and since when it is active now (0: it is not).
#[derive(Clone, Copy)]
struct ActiveTime<'a> {
    past_ns: &'a AtomicU64,
    since_ns: &'a AtomicU64,
}

impl ActiveTime<'_> {
    fn set(&self, now_ns: u64, is_active: bool) {
        if is_active {
            return self.since_ns.store(now_ns, SeqCst);
        }
        // A reader in between counts the time twice, for a moment. In the opposite order it would not count it at all.
        let since = self.since_ns.load(SeqCst);
        if since != 0 {
            self.past_ns.fetch_add(now_ns.saturating_sub(since), SeqCst);
            self.since_ns.store(0, SeqCst);
        }
    }

    fn total_ns(&self, now_ns: u64) -> u64 {
        let since = self.since_ns.load(SeqCst);
        let running = if since == 0 { 0 } else { now_ns.saturating_sub(since) };
        self.past_ns.load(SeqCst).saturating_add(running)
    }
}

/// A ledger for the sessions of one process.
#[derive(Debug)]
pub struct LocalLedger {
    devices: Vec<(u64, AtomicU64)>,
    limit: AtomicU64,
    /// Past and since, by device and unit.
    active: Vec<[[AtomicU64; 2]; 2]>,
}

impl LocalLedger {
    /// Devices with these many bytes.
    pub fn new(totals: &[u64]) -> Self {
        Self {
            devices: totals.iter().map(|&total| (total, AtomicU64::new(0))).collect(),
            limit: AtomicU64::new(u64::MAX),
            active: totals.iter().map(|_| Default::default()).collect(),
        }
    }

    fn active(&self, device: usize, unit: Unit) -> Option<ActiveTime<'_>> {
        let [past_ns, since_ns] = &self.active.get(device)?[unit as usize];
        Some(ActiveTime { past_ns, since_ns })
    }
}

impl MemoryLedger for LocalLedger {
    fn total(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |device| device.0).min(self.limit.load(SeqCst))
    }

    fn limit(&self, bytes: u64) {
        self.limit.fetch_min(bytes, SeqCst);
    }

    fn limit_own(&self, bytes: u64) {
        self.limit(bytes);
    }

    fn used(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |device| device.1.load(SeqCst))
    }

    fn charge(&self, device: usize, bytes: u64) -> bool {
        let Some((_, used)) = self.devices.get(device) else { return false };
        let total = self.total(device);
        let fits = |used: u64| used.checked_add(bytes).filter(|after| *after <= total);
        used.fetch_update(SeqCst, SeqCst, fits).is_ok()
    }

    fn release(&self, device: usize, bytes: u64) {
        if let Some((_, used)) = self.devices.get(device) {
            used.fetch_sub(bytes, SeqCst);
        }
    }

    fn set_active(&self, device: usize, unit: Unit, now_ns: u64, is_active: bool) {
        if let Some(time) = self.active(device, unit) {
            time.set(now_ns, is_active);
        }
    }

    fn active_ns(&self, device: usize, unit: Unit, now_ns: u64) -> u64 {
        self.active(device, unit).map_or(0, |time| time.total_ns(now_ns))
    }
}

/// First word of a shared ledger.
const MAGIC: u64 = u64::from_le_bytes(*b"dxpuldg2");
/// Words at the beginning: magic, devices, slots.
const HEADER_WORDS: usize = 3;
/// For each device: its memory, and how long sessions that are gone were at work.
const DEVICE_WORDS: usize = 3;
/// For each device in a slot: memory in use, and how long the session was at work (past and since, by unit).
const SLOT_DEVICE_WORDS: usize = 5;
/// More devices or slots than any worker has; a larger number is a wrong file.
const COUNT_MAX: u64 = 4096;

/// A ledger in shared memory, for all session processes of a worker.
///
/// ```text
/// words   magic | devices D | slots S | (total | past * 2) * D | (owner | (used | (past | since) * 2) * D) * S
/// ```
#[derive(Clone, Debug)]
pub struct SharedLedger {
    words: Arc<SharedWords>,
    devices: usize,
    slots: usize,
}

impl SharedLedger {
    /// Makes a ledger for devices with these many bytes and at most `slots` sessions at once.
    pub fn create(totals: &[u64], slots: usize) -> io::Result<Self> {
        let devices = totals.len();
        let words = SharedWords::create(word_count(devices, slots))?;
        for (device, &total) in totals.iter().enumerate() {
            words.words()[HEADER_WORDS + device * DEVICE_WORDS].store(total, SeqCst);
        }
        words.words()[1].store(devices as u64, SeqCst);
        words.words()[2].store(slots as u64, SeqCst);
        words.words()[0].store(MAGIC, SeqCst);
        Ok(Self { words: Arc::new(words), devices, slots })
    }

    /// Opens the ledger whose descriptor another process handed over.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        let words = SharedWords::open(fd)?;
        let header: Vec<u64> =
            words.words().iter().take(HEADER_WORDS).map(|word| word.load(SeqCst)).collect();
        let &[MAGIC, devices @ 1..=COUNT_MAX, slots @ 1..=COUNT_MAX] = header.as_slice() else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let (devices, slots) = (devices as usize, slots as usize);
        if words.words().len() != word_count(devices, slots) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { words: Arc::new(words), devices, slots })
    }

    /// The descriptor, to hand to session processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.words.fd()
    }

    /// Takes a free slot for a session. `owner` (not 0) is for display only; a process number, say.
    pub fn claim(&self, owner: u64) -> Option<usize> {
        let owner = owner.max(1);
        (0..self.slots).find(|&slot| self.owner(slot).compare_exchange(0, owner, SeqCst, SeqCst).is_ok())
    }

    /// Gives back all memory of a slot and the slot. To be called when its session's process is gone.
    pub fn reclaim(&self, slot: usize) {
        for device in 0..self.devices {
            self.used_by(slot, device).store(0, SeqCst);
            for unit in Unit::ALL {
                let time = self.active_by(slot, device, unit);
                self.past_of_gone(device, unit).fetch_add(time.past_ns.load(SeqCst), SeqCst);
                time.past_ns.store(0, SeqCst);
                time.since_ns.store(0, SeqCst);
            }
        }
        self.owner(slot).store(0, SeqCst);
    }

    /// The ledger as the session that has `slot` sees it.
    pub fn session(&self, slot: usize) -> SessionLedger {
        assert!(slot < self.slots, "slots come from `claim`");
        let unlimited = || Arc::new(AtomicU64::new(u64::MAX));
        SessionLedger { ledger: self.clone(), slot, limit: unlimited(), own_limit: unlimited() }
    }

    /// Bytes of a device that all sessions together use.
    pub fn used(&self, device: usize) -> u64 {
        if device >= self.devices {
            return 0;
        }
        (0..self.slots).map(|slot| self.used_by(slot, device).load(SeqCst)).fold(0, u64::saturating_add)
    }

    fn total(&self, device: usize) -> u64 {
        if device >= self.devices {
            return 0;
        }
        self.words.words()[HEADER_WORDS + device * DEVICE_WORDS].load(SeqCst)
    }

    fn active_ns(&self, device: usize, unit: Unit, now_ns: u64) -> u64 {
        if device >= self.devices {
            return 0;
        }
        let gone = self.past_of_gone(device, unit).load(SeqCst);
        let times = (0..self.slots).map(|slot| self.active_by(slot, device, unit).total_ns(now_ns));
        times.fold(gone, u64::saturating_add)
    }

    fn past_of_gone(&self, device: usize, unit: Unit) -> &AtomicU64 {
        &self.words.words()[HEADER_WORDS + device * DEVICE_WORDS + 1 + unit as usize]
    }

    fn slot_at(&self, slot: usize) -> usize {
        HEADER_WORDS + self.devices * DEVICE_WORDS + slot * (1 + self.devices * SLOT_DEVICE_WORDS)
    }

    fn owner(&self, slot: usize) -> &AtomicU64 {
        &self.words.words()[self.slot_at(slot)]
    }

    fn used_by(&self, slot: usize, device: usize) -> &AtomicU64 {
        &self.words.words()[self.slot_at(slot) + 1 + device * SLOT_DEVICE_WORDS]
    }

    fn active_by(&self, slot: usize, device: usize, unit: Unit) -> ActiveTime<'_> {
        let at = self.slot_at(slot) + 2 + device * SLOT_DEVICE_WORDS + 2 * unit as usize;
        let words = self.words.words();
        ActiveTime { past_ns: &words[at], since_ns: &words[at + 1] }
    }
}

/// The words of a ledger.
fn word_count(devices: usize, slots: usize) -> usize {
    HEADER_WORDS + devices * DEVICE_WORDS + slots * (1 + devices * SLOT_DEVICE_WORDS)
}

/// For processes that only look.
impl MemoryLedger for SharedLedger {
    fn total(&self, device: usize) -> u64 {
        Self::total(self, device)
    }

    fn used(&self, device: usize) -> u64 {
        Self::used(self, device)
    }

    fn limit(&self, _: u64) {}

    fn limit_own(&self, _: u64) {}

    fn charge(&self, _: usize, _: u64) -> bool {
        false
    }

    fn release(&self, _: usize, _: u64) {}

    fn set_active(&self, _: usize, _: Unit, _: u64, _: bool) {}

    fn active_ns(&self, device: usize, unit: Unit, now_ns: u64) -> u64 {
        Self::active_ns(self, device, unit, now_ns)
    }
}

/// One session's view of a [`SharedLedger`].
#[derive(Clone, Debug)]
pub struct SessionLedger {
    ledger: SharedLedger,
    slot: usize,
    /// For all sessions that have it together.
    limit: Arc<AtomicU64>,
    /// For this session alone.
    own_limit: Arc<AtomicU64>,
}

impl SessionLedger {
    /// Bytes of a device for this session and all others together.
    fn total_of_all(&self, device: usize) -> u64 {
        self.ledger.total(device).min(self.limit.load(SeqCst))
    }
}

/// How often a charge that met another session's charge is tried again before it counts as refused.
const CHARGE_TRIES: usize = 16;

impl MemoryLedger for SessionLedger {
    fn total(&self, device: usize) -> u64 {
        self.total_of_all(device).min(self.own_limit.load(SeqCst))
    }

    fn limit(&self, bytes: u64) {
        self.limit.fetch_min(bytes, SeqCst);
    }

    fn limit_own(&self, bytes: u64) {
        self.own_limit.fetch_min(bytes, SeqCst);
    }

    fn used(&self, device: usize) -> u64 {
        if self.own_limit.load(SeqCst) == u64::MAX {
            return self.ledger.used(device);
        }
        if device < self.ledger.devices { self.ledger.used_by(self.slot, device).load(SeqCst) } else { 0 }
    }

    fn free(&self, device: usize) -> u64 {
        let of_all = self.total_of_all(device).saturating_sub(self.ledger.used(device));
        of_all.min(self.total(device).saturating_sub(self.used(device)))
    }

    /// Announces the charge first and takes it back if the sum is too much then. Two sessions that want the last bytes at
    /// the same moment may both see too much; trying again settles that nearly always, and never over-commits.
    fn charge(&self, device: usize, bytes: u64) -> bool {
        let (total, own) = (self.total_of_all(device), self.total(device));
        if bytes > own {
            return false;
        }
        let mine = self.ledger.used_by(self.slot, device);
        for _ in 0..CHARGE_TRIES {
            let own_after = mine.fetch_add(bytes, SeqCst).saturating_add(bytes);
            // A limit for all together is kept by their sum alone.
            let is_within_own = own == total || own_after <= own;
            if is_within_own && self.ledger.used(device) <= total {
                return true;
            }
            mine.fetch_sub(bytes, SeqCst);
            if !is_within_own || self.ledger.used(device).saturating_add(bytes) > total {
                return false;
            }
            std::thread::yield_now();
        }
        false
    }

    fn release(&self, device: usize, bytes: u64) {
        if device < self.ledger.devices {
            self.ledger.used_by(self.slot, device).fetch_sub(bytes, SeqCst);
        }
    }

    fn set_active(&self, device: usize, unit: Unit, now_ns: u64, is_active: bool) {
        if device < self.ledger.devices {
            self.ledger.active_by(self.slot, device, unit).set(now_ns, is_active);
        }
    }

    fn active_ns(&self, device: usize, unit: Unit, now_ns: u64) -> u64 {
        self.ledger.active_ns(device, unit, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_what_a_device_has_and_a_killed_one_gives_it_back() {
        let listener = SharedLedger::create(&[1000, 500], 4).unwrap();
        let again = SharedLedger::open(listener.fd().try_clone_to_owned().unwrap()).unwrap();
        let (first, second) = (listener.claim(11).unwrap(), again.claim(12).unwrap());
        assert_ne!(first, second);
        let (first_view, second_view) = (listener.session(first), again.session(second));
        assert!(first_view.charge(0, 800));
        assert!(!second_view.charge(0, 201));
        assert!(second_view.charge(0, 200));
        assert!(second_view.charge(1, 500));
        assert_eq!(first_view.used(0), 1000);
        listener.reclaim(first);
        assert_eq!(second_view.used(0), 200);
        assert!(second_view.charge(0, 800));
        assert!(!second_view.charge(2, 1), "there is no such device");
    }

    #[test]
    fn a_limit_counts_for_all_sessions_that_have_it_together() {
        let listener = SharedLedger::create(&[1000], 4).unwrap();
        let (first, second) = (listener.session(0), listener.session(1));
        first.limit(300);
        second.limit(300);
        second.limit(800);
        assert_eq!((first.total(0), second.total(0)), (300, 300), "a limit never grows");
        assert!(first.charge(0, 200) && second.charge(0, 100));
        assert!(!first.charge(0, 1) && !second.charge(0, 1));
        let local = LocalLedger::new(&[1000]);
        local.limit(300);
        assert!(!local.charge(0, 301) && local.charge(0, 300));
        assert_eq!(local.total(0), 300);
    }

    #[test]
    fn a_limit_of_its_own_does_not_count_what_others_have() {
        let listener = SharedLedger::create(&[1000], 4).unwrap();
        let (small, large) = (listener.session(0), listener.session(1));
        small.limit_own(300);
        large.limit_own(600);
        assert!(large.charge(0, 600) && !large.charge(0, 1));
        assert_eq!((small.total(0), small.used(0), small.free(0)), (300, 0, 300));
        assert!(small.charge(0, 300) && !small.charge(0, 1));
        assert_eq!((small.used(0), small.free(0), large.used(0)), (300, 0, 600));
        let third = listener.session(2);
        third.limit_own(300);
        assert_eq!(third.free(0), 100, "the device has no more");
        assert!(!third.charge(0, 101) && third.charge(0, 100));
    }

    #[test]
    fn time_at_work_is_added_up_and_stays_when_a_session_is_gone() {
        let listener = SharedLedger::create(&[1000, 500], 2).unwrap();
        let (first, second) = (listener.claim(1).unwrap(), listener.claim(2).unwrap());
        let (first_view, second_view) = (listener.session(first), listener.session(second));
        first_view.set_active(1, Unit::Kernels, 100, true);
        second_view.set_active(1, Unit::Kernels, 150, true);
        assert_eq!(listener.active_ns(1, Unit::Kernels, 200), 150, "both still work");
        first_view.set_active(1, Unit::Kernels, 200, false);
        assert_eq!(second_view.active_ns(1, Unit::Kernels, 250), 200);
        listener.reclaim(first);
        assert_eq!(listener.active_ns(1, Unit::Kernels, 250), 200);
        for (device, unit) in [(0, Unit::Kernels), (1, Unit::Memory), (2, Unit::Memory)] {
            assert_eq!(listener.active_ns(device, unit, 250), 0, "{device} {unit:?}");
        }
        assert_eq!((listener.used(0), listener.used(1)), (0, 0), "time is no memory");
    }

    #[test]
    fn a_file_that_is_no_ledger_is_refused() {
        let words = SharedWords::create(10).unwrap();
        assert!(SharedLedger::open(words.fd().try_clone_to_owned().unwrap()).is_err());
    }

    #[test]
    fn charges_of_several_threads_never_exceed_the_total() {
        let listener = SharedLedger::create(&[1000], 8).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let view = listener.session(listener.claim(1).unwrap());
                scope.spawn(move || {
                    for _ in 0..2000 {
                        if view.charge(0, 400) {
                            // Others may have announced charges that they will take back; accepted ones fit.
                            view.release(0, 400);
                        }
                    }
                });
            }
        });
        assert_eq!(listener.used(0), 0);
        let view = listener.session(0);
        assert!(view.charge(0, 1000) && !view.charge(0, 1));
    }
}
