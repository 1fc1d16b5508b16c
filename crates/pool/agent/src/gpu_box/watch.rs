//! Whether a guest may come to a seat, and whether the one that is there may stay: the monitor of `sharing`, which hears once a
//! second how busy the online programs of the GPU were and what guests cost them. The page of the GPU tells.

use super::minute::{Minute, Second};
use pool_api::SeatLoad;
use shared_words::{page, process};
use sharing::{
    Class, Distress, Field, Limits, Monitor, MonitorState, Page, PageHandle, Reading, SLOTS, SlotOwner,
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
}

impl Watch {
    pub(crate) fn new(path: PathBuf) -> Self {
        // The seat's memory is its own, so no lease runs short of it.
        let monitor = Monitor::new(Limits { free_bytes_min: 0, ..Limits::default() });
        Self {
            path,
            page: None,
            monitor,
            at: None,
            before: Vec::new(),
            minute: Minute::default(),
            cost_milli: 0,
        }
    }

    /// Looks, if it is time to.
    pub(crate) fn look(&mut self, now: Instant) {
        let Some(passed) = self.at.map_or(Some(EVERY), |at| now.checked_duration_since(at)) else { return };
        if passed < EVERY {
            return;
        }
        self.at = Some(now);
        if self.page.is_none() {
            self.page = page::open_at(&self.path).ok().map(|(_, page)| page);
        }
        let Some(page) = &self.page else { return };
        let seen = look_at(page.page(), process::now_ns());
        let second = second(&self.before, &seen, passed);
        self.before = seen;
        self.minute.second(second);
        let distress = page.page().distress();
        self.cost_milli = page.page().cost_milli();
        self.monitor.second(Reading {
            busy_milli: second.busy_milli,
            is_over_slack: distress >= Distress::OverSlack,
            is_overlimit: distress == Distress::Overlimit,
            ..Reading::default()
        });
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
            MonitorState::Unhealthy => Some(format!(
                "guests cost online programs of its GPU too much: {} % of their time",
                self.cost_milli / 10
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
        let mut watch = Watch::new(path);
        let mut now = Instant::now();
        let mut pass = |watch: &mut Watch, seconds: u32| {
            for _ in 0..seconds {
                now += EVERY;
                watch.look(now);
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
        let mut watch = Watch::new(path);
        let mut now = Instant::now();
        for look in 0..20 {
            assert_eq!(watch.load().is_some(), look >= 10, "{look}");
            watch.look(now);
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
}
