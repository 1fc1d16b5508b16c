//! Who uses how much of a device's memory.
//!
//! Several sessions, each a process of its own, share a device. A [`MemoryLedger`] is what they agree on: it never lets
//! the sum of all charges exceed a device's memory. [`LocalLedger`] serves one process. [`SharedLedger`] serves all
//! sessions of one worker: every session writes only its own slot, and the sum of the slots is what is used, so a
//! session that was killed leaves nothing behind but its slot, which the listener empties.

use crate::memory::SharedWords;
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

    /// Bytes of a device that somebody uses.
    fn used(&self, device: usize) -> u64;

    /// Takes memory for this session, unless there is not as much.
    fn charge(&self, device: usize, bytes: u64) -> bool;

    /// Gives memory of this session back.
    fn release(&self, device: usize, bytes: u64);
}

/// A ledger for the sessions of one process.
#[derive(Debug)]
pub struct LocalLedger {
    devices: Vec<(u64, AtomicU64)>,
}

impl LocalLedger {
    /// Devices with these many bytes.
    pub fn new(totals: &[u64]) -> Self {
        Self { devices: totals.iter().map(|&total| (total, AtomicU64::new(0))).collect() }
    }
}

impl MemoryLedger for LocalLedger {
    fn total(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |device| device.0)
    }

    fn used(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |device| device.1.load(SeqCst))
    }

    fn charge(&self, device: usize, bytes: u64) -> bool {
        let Some((total, used)) = self.devices.get(device) else { return false };
        let fits = |used: u64| used.checked_add(bytes).filter(|after| after <= total);
        used.fetch_update(SeqCst, SeqCst, fits).is_ok()
    }

    fn release(&self, device: usize, bytes: u64) {
        if let Some((_, used)) = self.devices.get(device) {
            used.fetch_sub(bytes, SeqCst);
        }
    }
}

/// First word of a shared ledger.
const MAGIC: u64 = u64::from_le_bytes(*b"dxpuldg1");
/// Words before the slots: magic, devices, slots, then a total for each device.
const HEADER_WORDS: usize = 3;
/// More devices or slots than any worker has; a larger number is a wrong file.
const COUNT_MAX: u64 = 4096;

/// A ledger in shared memory, for all session processes of a worker.
///
/// ```text
/// words   magic | devices D | slots S | total * D | (owner | used * D) * S
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
        let words = SharedWords::create(HEADER_WORDS + devices + slots * (1 + devices))?;
        for (word, &total) in words.words()[HEADER_WORDS..].iter().zip(totals) {
            word.store(total, SeqCst);
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
        if words.words().len() != HEADER_WORDS + devices + slots * (1 + devices) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { words: Arc::new(words), devices, slots })
    }

    /// The descriptor, to hand to session processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.words.fd()
    }

    /// Takes a free slot for a session. `owner` (not 0) is for people who look; a process number, say.
    pub fn claim(&self, owner: u64) -> Option<usize> {
        let owner = owner.max(1);
        (0..self.slots).find(|&slot| self.owner(slot).compare_exchange(0, owner, SeqCst, SeqCst).is_ok())
    }

    /// Gives back all memory of a slot and the slot. To be called when its session's process is gone.
    pub fn reclaim(&self, slot: usize) {
        for device in 0..self.devices {
            self.used_by(slot, device).store(0, SeqCst);
        }
        self.owner(slot).store(0, SeqCst);
    }

    /// The ledger as the session that has `slot` sees it.
    pub fn session(&self, slot: usize) -> SessionLedger {
        assert!(slot < self.slots, "slots come from `claim`");
        SessionLedger { ledger: self.clone(), slot }
    }

    /// Bytes of a device that all sessions together use.
    pub fn used(&self, device: usize) -> u64 {
        if device >= self.devices {
            return 0;
        }
        (0..self.slots).map(|slot| self.used_by(slot, device).load(SeqCst)).fold(0, u64::saturating_add)
    }

    fn slot_at(&self, slot: usize) -> usize {
        HEADER_WORDS + self.devices + slot * (1 + self.devices)
    }

    fn owner(&self, slot: usize) -> &AtomicU64 {
        &self.words.words()[self.slot_at(slot)]
    }

    fn used_by(&self, slot: usize, device: usize) -> &AtomicU64 {
        &self.words.words()[self.slot_at(slot) + 1 + device]
    }
}

/// One session's view of a [`SharedLedger`].
#[derive(Clone, Debug)]
pub struct SessionLedger {
    ledger: SharedLedger,
    slot: usize,
}

/// How often a charge that met another session's charge is tried again before it counts as refused.
const CHARGE_TRIES: usize = 16;

impl MemoryLedger for SessionLedger {
    fn total(&self, device: usize) -> u64 {
        if device >= self.ledger.devices {
            return 0;
        }
        self.ledger.words.words()[HEADER_WORDS + device].load(SeqCst)
    }

    fn used(&self, device: usize) -> u64 {
        self.ledger.used(device)
    }

    /// Announces the charge first and takes it back if the sum is too much then. Two sessions that want the last bytes at
    /// the same moment may both see too much; trying again settles that nearly always, and never over-commits.
    fn charge(&self, device: usize, bytes: u64) -> bool {
        let total = self.total(device);
        if bytes > total {
            return false;
        }
        let mine = self.ledger.used_by(self.slot, device);
        for _ in 0..CHARGE_TRIES {
            mine.fetch_add(bytes, SeqCst);
            if self.used(device) <= total {
                return true;
            }
            mine.fetch_sub(bytes, SeqCst);
            if self.used(device).saturating_add(bytes) > total {
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
