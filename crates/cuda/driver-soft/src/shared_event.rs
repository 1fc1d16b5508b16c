//! Events that streams of several sessions record and wait for.
//!
//! A session has one file of words for all such events of its own. A record takes the event's next number; a stream that
//! comes to it writes the number down. Whoever waits looks every now and then, since no thread of another process can
//! wake it.
//!
//! ```text
//! words   pid | start of the process | event * EVENTS        event   latest number | reached, by number mod RING
//! ```

use crate::sync::{Lock, lock};
use cuda_abi::{CuResult, CudaError};
use shared_words::{SharedWords, process};
use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// The most events of a session that other sessions may know.
const EVENTS: usize = 4096;
/// Records that are told apart. Who waits for an older one waits for a later one instead.
const RING: usize = 64;
const EVENT_WORDS: usize = 1 + RING;
const HEADER_WORDS: usize = 2;

/// How often a thread looks, at first and at last.
const LOOK_SOONEST: Duration = Duration::from_micros(20);
const LOOK_LATEST: Duration = Duration::from_millis(1);
/// How often a thread that waits asks whether the process that made the event is still there.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// The events of a session.
#[derive(Debug, Default)]
pub(crate) struct SharedEvents(Lock<State>);

#[derive(Debug, Default)]
struct State {
    words: Option<Arc<SharedWords>>,
    used: usize,
    free: Vec<usize>,
}

/// One event.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    words: Arc<SharedWords>,
    slot: usize,
    /// Where the slot goes at the end; `None` for an event of another session.
    home: Option<Arc<SharedEvents>>,
}

impl SharedEvents {
    /// A new event, which was not recorded yet.
    pub(crate) fn create(self: &Arc<Self>) -> CuResult<Arc<SharedEvent>> {
        let mut state = lock(&self.0);
        let words = match &state.words {
            Some(words) => words.clone(),
            None => {
                let words = Arc::new(new_words().map_err(|_| CudaError::OPERATING_SYSTEM)?);
                state.words = Some(words.clone());
                words
            }
        };
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.used < EVENTS => {
                state.used += 1;
                state.used - 1
            }
            None => return Err(CudaError::OUT_OF_MEMORY),
        };
        Ok(Arc::new(SharedEvent { words, slot, home: Some(self.clone()) }))
    }
}

fn new_words() -> io::Result<SharedWords> {
    let words = SharedWords::create(HEADER_WORDS + EVENTS * EVENT_WORDS)?;
    let pid = std::process::id();
    words.words()[0].store(pid.into(), SeqCst);
    words.words()[1].store(process::start_ticks(pid)?.unwrap_or(0), SeqCst);
    Ok(words)
}

impl SharedEvent {
    /// An event of another session.
    pub(crate) fn open(fd: OwnedFd, slot: u32) -> io::Result<Arc<Self>> {
        let words = Arc::new(SharedWords::open(fd)?);
        let slot = slot as usize;
        if words.words().len() != HEADER_WORDS + EVENTS * EVENT_WORDS || slot >= EVENTS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Arc::new(Self { words, slot, home: None }))
    }

    /// What another session opens it by.
    pub(crate) fn descriptor(&self) -> io::Result<(OwnedFd, u32)> {
        Ok((self.words.fd().try_clone_to_owned()?, self.slot as u32))
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.words()[HEADER_WORDS + self.slot * EVENT_WORDS + index]
    }

    /// Takes the number of a new record.
    pub(crate) fn record(&self) -> u64 {
        self.word(0).fetch_add(1, SeqCst) + 1
    }

    /// The number of the latest record; 0 if there was none.
    pub(crate) fn latest(&self) -> u64 {
        self.word(0).load(SeqCst)
    }

    /// A stream has come to a record.
    pub(crate) fn reach(&self, number: u64) {
        self.word(1 + number as usize % RING).fetch_max(number, SeqCst);
    }

    pub(crate) fn is_reached(&self, number: u64) -> bool {
        self.word(1 + number as usize % RING).load(SeqCst) >= number
    }

    /// Waits for a record. The records of a process that is gone count as reached: nothing will ever come to them.
    pub(crate) fn wait(&self, number: u64, is_aborted: impl Fn() -> bool) -> CuResult<()> {
        let mut pause = LOOK_SOONEST;
        let mut asked = Instant::now();
        while !self.is_reached(number) {
            if is_aborted() {
                return Err(CudaError::DEVICE_UNAVAILABLE);
            }
            if asked.elapsed() >= ASK_EVERY {
                asked = Instant::now();
                if self.is_orphan() {
                    return Ok(());
                }
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LOOK_LATEST);
        }
        Ok(())
    }

    /// Whether the process that made it is gone.
    pub(crate) fn is_orphan(&self) -> bool {
        let owner = |index: usize| self.words.words()[index].load(SeqCst);
        let Ok(pid) = u32::try_from(owner(0)) else { return true };
        process::start_ticks(pid).is_ok_and(|found| found != Some(owner(1)))
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            lock(&home.0).free.push(self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sessions_see_one_event_and_each_record_by_itself() {
        let events = Arc::new(SharedEvents::default());
        let ours = events.create().unwrap();
        let (fd, slot) = ours.descriptor().unwrap();
        let theirs = SharedEvent::open(fd, slot).unwrap();
        assert_eq!(theirs.latest(), 0);
        let first = ours.record();
        let second = theirs.record();
        assert_eq!((first, second, ours.latest()), (1, 2, 2));
        ours.reach(second);
        assert!(theirs.is_reached(second) && !theirs.is_reached(first), "a later record says nothing of it");
        ours.reach(first);
        theirs.wait(first, || false).unwrap();
        assert!(!theirs.is_orphan());
    }

    #[test]
    fn an_event_in_a_used_place_has_no_pending_record() {
        let events = Arc::new(SharedEvents::default());
        let before = events.create().unwrap();
        let number = before.record();
        before.reach(number);
        drop(before);
        let after = events.create().unwrap();
        assert!(after.is_reached(after.latest()));
        assert_eq!(after.wait(after.record(), || true), Err(CudaError::DEVICE_UNAVAILABLE));
    }

    #[test]
    fn the_records_of_a_process_that_is_gone_hold_nobody_up() {
        let events = Arc::new(SharedEvents::default());
        let event = events.create().unwrap();
        let number = event.record();
        // A process with this number that began at another time is another one.
        event.words.words()[1].fetch_add(1, SeqCst);
        assert!(event.is_orphan());
        event.wait(number, || false).unwrap();
        assert!(!event.is_reached(number));
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let short = SharedWords::create(5).unwrap();
        assert!(SharedEvent::open(short.fd().try_clone_to_owned().unwrap(), 0).is_err());
        let events = Arc::new(SharedEvents::default());
        let (fd, _) = events.create().unwrap().descriptor().unwrap();
        assert!(SharedEvent::open(fd, EVENTS as u32).is_err());
        let all: Vec<_> = (0..EVENTS).map(|_| events.create().unwrap()).collect();
        assert_eq!(events.create().err(), Some(CudaError::OUT_OF_MEMORY));
        drop(all);
        events.create().unwrap();
    }
}
