//! Whether a guest may come to a seat, and whether the one that is there may stay: the monitor of `sharing`, which hears once a
//! second how busy the online programs of the GPU were and what guests cost them. The page of the GPU tells. Where the memory of the seat
//! is promised twice, an online program that wants it is heard at the next look, and free memory decides whether a guest may come.

use super::minute::{Minute, Second};
use pool_api::SeatLoad;
use shared_words::{page, process};
use sharing::{
    Class, Distress, Field, Limits, Monitor, MonitorState, Page, PageHandle, Reading, SLOTS, SlotOwner,
    WantWatch,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
/// As [`Limits::busy_milli_max`] has it.
const BUSY_PERCENT: u32 = 80;
/// A guest that has less than a twentieth of the time is starved.
const STARVED_MILLI: u32 = 950;

/// The online session in a place of the page.
#[derive(Clone, Copy, Debug)]
struct Seen {
    owner: SlotOwner,
    /// How long it has been busy.
    busy_ns: u64,
    /// How often it became busy.
    periods: u64,
}

/// Watches one GPU with a seat.
pub(crate) struct Watch {
    path: PathBuf,
    page: Option<PageHandle>,
    monitor: Monitor,
    at: Option<Instant>,
    /// Of each place in the page, its online session at the last look.
    before: Vec<Seen>,
    minute: Minute,
    /// What guests cost the online programs, in thousandths of the time of their requests.
    cost_milli: u64,
    /// Memory of the seat, if it is promised twice.
    promised_bytes: Option<u64>,
    wants: WantWatch,
    /// What an online program wanted when the guest was told to leave; 0 if the guest leaves for what it costs.
    wanted_bytes: u64,
    /// The last look found less free memory than the seat has.
    is_short: bool,
}

impl Watch {
    /// `promised_bytes`: the memory of the seat, if an online lease is promised it, too.
    pub(crate) fn new(path: PathBuf, promised_bytes: Option<u64>) -> Self {
        // Otherwise the seat's memory is its own, so no lease runs short of it.
        let free_bytes_min = promised_bytes.unwrap_or(0);
        let monitor = Monitor::new(Limits { free_bytes_min, ..Limits::default() });
        Self {
            path,
            page: None,
            monitor,
            at: None,
            before: Vec::new(),
            minute: Minute::default(),
            cost_milli: 0,
            promised_bytes,
            wants: WantWatch::default(),
            wanted_bytes: 0,
            is_short: false,
        }
    }

    /// Looks, if it is time to. `free_bytes` is what the GPU itself says of its memory, if it does.
    pub(crate) fn look(&mut self, now: Instant, free_bytes: Option<u64>) {
        let Some(passed) = self.at.map_or(Some(EVERY), |at| now.checked_duration_since(at)) else { return };
        if self.page.is_none() {
            self.page = page::open_at(&self.path).ok().map(|(_, page)| page);
        }
        let Some(page) = &self.page else { return };
        let want_bytes = match self.promised_bytes {
            Some(_) => self.wants.look(page.page(), process::now_ns(), process::life),
            None => 0,
        };
        // An online program that waits for memory does not wait for the second to be over, too.
        let is_urgent = want_bytes != 0 && self.monitor.state() != MonitorState::Overlimit;
        if passed < EVERY && !is_urgent {
            return;
        }
        self.at = Some(now);
        // A worker that was ended has left what its sessions had in the page, and no front of its own looks after that any more.
        page::sweep(page.page());
        // While a guest is there, its memory is not free, and it stays all the same.
        let free_bytes = page
            .page()
            .free_bytes()
            .filter(|_| !page.page().has_guests())
            .map_or(u64::MAX, |counted| counted.min(free_bytes.unwrap_or(u64::MAX)));
        self.is_short = self.promised_bytes.is_some_and(|bytes| free_bytes < bytes);
        let seen = look_at(page.page(), process::now_ns());
        let second = second(&self.before, &seen, passed);
        self.before = seen;
        self.minute.second(second);
        let distress = page.page().distress();
        self.cost_milli = page.page().cost_milli();
        let before = self.monitor.state();
        let state = self.monitor.second(Reading {
            busy_milli: second.busy_milli,
            is_over_slack: distress >= Distress::OverSlack,
            is_overlimit: distress == Distress::Overlimit,
            free_bytes,
            wants_memory: want_bytes != 0,
            ..Reading::default()
        });
        if state == MonitorState::Overlimit && before != state {
            self.wanted_bytes = want_bytes;
            if want_bytes != 0 {
                tracing::info!(want_bytes, "an online program waits for memory: the guest must leave");
            }
        }
    }

    /// What the online programs did in the last minute, once it has looked for long enough.
    pub(crate) fn load(&self) -> Option<SeatLoad> {
        self.minute.load()
    }

    /// Whether the guest that is there must leave.
    pub(crate) fn guest_must_leave(&self) -> bool {
        self.monitor.state() == MonitorState::Overlimit
    }

    /// Why no guest may come now.
    pub(crate) fn closed(&self) -> Option<String> {
        let percent = self.monitor.busy_milli() / 10;
        match self.monitor.state() {
            MonitorState::Healthy => None,
            MonitorState::Init => Some("its GPU has not been watched for long enough yet".to_owned()),
            MonitorState::Unhealthy if self.monitor.busy_milli() >= STARVED_MILLI => Some(format!(
                "a guest is starved here: online programs have worked {percent} % of the last minute"
            )),
            MonitorState::Unhealthy if percent >= BUSY_PERCENT => {
                Some(format!("online programs of its GPU have worked {percent} % of the last minute"))
            }
            MonitorState::Unhealthy if self.is_short => {
                Some("online programs of its GPU leave less free memory than the seat has".to_owned())
            }
            MonitorState::Unhealthy if self.promised_bytes.is_some() && self.cost_milli == 0 => {
                Some("its GPU has had too little free memory until a moment ago".to_owned())
            }
            MonitorState::Unhealthy => Some(format!(
                "guests cost online programs of its GPU too much: {} % of their time",
                self.cost_milli / 10
            )),
            MonitorState::Overlimit if self.wanted_bytes != 0 => Some(format!(
                "the online program of its GPU needs the memory; it takes no guests until {} s after there is enough",
                self.monitor.penalty_s()
            )),
            MonitorState::Overlimit => Some(format!(
                "a guest held the online programs of its GPU up for too long; it takes none for {} s",
                self.monitor.penalty_s()
            )),
            MonitorState::Off(_) => Some("its GPU takes no guests for a while".to_owned()),
        }
    }
}

/// What online sessions have done between two looks. One that came in between counts from the next look on.
fn second(before: &[Seen], now: &[Seen], passed: Duration) -> Second {
    let passed_ns = passed.as_nanos().max(1);
    let milli = |count: u128| u32::try_from(count).unwrap_or(u32::MAX);
    let stayed = || now.iter().zip(before).filter(|(now, before)| now.owner == before.owner);
    let longest_ns = stayed().map(|(now, before)| now.busy_ns.saturating_sub(before.busy_ns)).max();
    let periods: u64 =
        stayed().map(|(now, before)| now.periods.saturating_sub(before.periods)).fold(0, u64::saturating_add);
    Second {
        has_online: now.iter().any(|seen| seen.owner != SlotOwner::Nobody),
        busy_milli: milli(u128::from(longest_ns.unwrap_or(0)) * 1000 / passed_ns).min(1000),
        periods_milli: milli(u128::from(periods) * 1_000_000_000_000 / passed_ns),
    }
}

/// The online session in each place.
fn look_at(page: Page<'_>, now_ns: u64) -> Vec<Seen> {
    let of = |slot: usize| {
        if page.class(slot) != Some(Class::Online) {
            return Seen { owner: SlotOwner::Nobody, busy_ns: 0, periods: 0 };
        }
        let since_ns = page.get(slot, Field::BusySince);
        let now_busy_ns = if since_ns == 0 { 0 } else { now_ns.saturating_sub(since_ns) };
        Seen {
            owner: page.owner(slot),
            busy_ns: page.get(slot, Field::BusyTotalNs).saturating_add(now_busy_ns),
            periods: page.get(slot, Field::BusyPeriods),
        }
    };
    (0..SLOTS).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_closed_while_online_programs_work_nearly_all_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        page::make_at(&path).unwrap();
        let (_words, handle) = page::open_at(&path).unwrap();
        let mut watch = Watch::new(path, None);
        let mut now = Instant::now();
        let mut pass = |watch: &mut Watch, seconds: u32| {
            for _ in 0..seconds {
                now += EVERY;
                watch.look(now, None);
            }
        };
        pass(&mut watch, 5);
        assert!(watch.closed().unwrap().contains("not been watched"));
        pass(&mut watch, 10);
        assert_eq!(watch.closed(), None, "no program is busy");
        // Busy since an hour ago, by the page's clock: what it was busy for is more than any second that passes here.
        let own = process::this_process().unwrap();
        let ticket = handle.page().claim(own, Class::Online, 1).unwrap();
        assert!(handle.page().close(ticket, 1));
        let mut busy_for = |watch: &mut Watch, seconds: u32| {
            for _ in 0..seconds {
                watch.before = look_at(handle.page(), process::now_ns());
                let ago = |one: &mut Seen| one.busy_ns = one.busy_ns.saturating_sub(1_000_000_000);
                watch.before.iter_mut().for_each(ago);
                pass(watch, 1);
            }
        };
        busy_for(&mut watch, 70);
        assert!(watch.closed().unwrap().contains("starved"), "{:?}", watch.closed());
        handle.page().open_gate(ticket, process::now_ns());
        handle.page().release(ticket);
        pass(&mut watch, 120);
        assert_eq!(watch.closed(), None);
    }

    /// The page counts; what is reported is a rate, of online sessions alone.
    #[test]
    fn what_online_sessions_did_is_reported_per_second() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        page::make_at(&path).unwrap();
        let (_words, handle) = page::open_at(&path).unwrap();
        let (page, own) = (handle.page(), process::this_process().unwrap());
        let online = page.claim(own, Class::Online, 1).unwrap();
        let guest = page.claim(own, Class::Offline, 1).unwrap();
        let mut watch = Watch::new(path, None);
        let mut now = Instant::now();
        for look in 0..20 {
            assert_eq!(watch.load().is_some(), look >= 10, "{look}");
            watch.look(now, None);
            // Looks may be late: the next one is after two seconds.
            now += 2 * EVERY;
            for _ in 0..100 {
                assert!(page.close(online, 1_000_000_001));
                page.open_gate(online, 1_006_000_001);
            }
            page.set(guest, Field::BusyPeriods, 1_000_000 * look);
            page.set(guest, Field::BusyTotalNs, 1_000_000_000 * look);
        }
        // The first look has nothing to compare with: nineteen of twenty seconds have 50 periods and 0.3 s of work.
        let load = watch.load().unwrap();
        assert_eq!((load.online_busy_milli, load.online_periods_milli), (285, 47_500));
    }

    /// A watch over a seat whose memory is promised twice, and its page.
    fn promised(seat_bytes: u64, capacity: u64) -> (tempfile::TempDir, PageHandle, Watch) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page");
        page::make_at(&path).unwrap();
        let (_words, handle) = page::open_at(&path).unwrap();
        handle.page().set_capacity(Some(capacity));
        (folder, handle, Watch::new(path, Some(seat_bytes)))
    }

    fn pass(watch: &mut Watch, now: &mut Instant, seconds: u32) {
        for _ in 0..seconds {
            *now += EVERY;
            watch.look(*now, None);
        }
    }

    #[test]
    fn a_guest_must_leave_at_once_when_an_online_program_wants_its_memory() {
        let (_folder, handle, mut watch) = promised(400, 1000);
        let (page, own) = (handle.page(), process::this_process().unwrap());
        let (online, guest) =
            (page.claim(own, Class::Online, 1).unwrap(), page.claim(own, Class::Offline, 1).unwrap());
        assert!(page.take_memory(guest, 400) && page.take_memory(online, 500));
        let mut now = Instant::now();
        pass(&mut watch, &mut now, 11);
        assert_eq!((watch.closed(), watch.guest_must_leave()), (None, false));
        let wait = sharing::MemoryWait::begin(page, online, 300, process::now_ns()).unwrap();
        watch.look(now + EVERY / 10, None);
        assert!(watch.guest_must_leave(), "it is not the next second yet");
        assert!(watch.closed().unwrap().contains("needs the memory"), "{:?}", watch.closed());
        page.release(guest);
        assert!(page.take_memory(online, 300));
        wait.end(page);
        // The online program has so much that no guest could work; then it gives some back.
        pass(&mut watch, &mut now, 100);
        assert!(watch.closed().unwrap().contains("until 30 s after"), "{:?}", watch.closed());
        page.give_memory(online, 700);
        pass(&mut watch, &mut now, 29);
        assert!(watch.closed().is_some(), "the quiet time begins when there is enough");
        pass(&mut watch, &mut now, 2);
        assert_eq!(watch.closed(), None);
    }

    #[test]
    fn a_want_of_a_process_that_is_gone_moves_no_guest() {
        let (_folder, handle, mut watch) = promised(400, 1000);
        let (page, own) = (handle.page(), process::this_process().unwrap());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = sharing::Owner::new(child.id(), 1).unwrap();
        child.wait().unwrap();
        let online = page.claim(gone, Class::Online, 1).unwrap();
        let _guest = page.claim(own, Class::Offline, 1).unwrap();
        assert!(sharing::MemoryWait::begin(page, online, 300, process::now_ns()).is_some());
        let mut now = Instant::now();
        pass(&mut watch, &mut now, 20);
        assert_eq!((watch.closed(), watch.guest_must_leave()), (None, false));
    }

    #[test]
    fn what_a_worker_that_was_ended_has_left_in_the_page_is_emptied() {
        let (_folder, handle, mut watch) = promised(400, 1000);
        let page = handle.page();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = sharing::Owner::new(child.id(), 1).unwrap();
        child.wait().unwrap();
        let guest = page.claim(gone, Class::Offline, 1).unwrap();
        assert!(page.take_memory(guest, 400) && page.has_guests());
        watch.look(Instant::now(), None);
        assert_eq!((page.has_guests(), page.used_bytes()), (false, 0));
    }

    #[test]
    fn a_seat_takes_no_guest_while_the_gpu_has_less_free_memory_than_it() {
        let (_folder, handle, mut watch) = promised(400, 1000);
        let (page, own) = (handle.page(), process::this_process().unwrap());
        let online = page.claim(own, Class::Online, 1).unwrap();
        let mut now = Instant::now();
        pass(&mut watch, &mut now, 11);
        assert_eq!(watch.closed(), None);
        // What the GPU says counts, too: the page knows nothing of contexts.
        watch.look(now + EVERY, Some(399));
        assert!(watch.closed().unwrap().contains("less free memory"), "{:?}", watch.closed());
        now += EVERY;
        pass(&mut watch, &mut now, 31);
        assert_eq!(watch.closed(), None);
        assert!(page.take_memory(online, 601));
        pass(&mut watch, &mut now, 1);
        assert!(watch.closed().unwrap().contains("less free memory"), "{:?}", watch.closed());
        assert!(!watch.guest_must_leave(), "a guest that is there stays");
    }
}
