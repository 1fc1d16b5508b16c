//! Whether a guest may come to a seat, and whether the one that is there may stay: the monitor of `sharing`, which hears once a
//! second how busy the online programs of the GPU were and what guests cost them. The page of the GPU tells.

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

/// Watches one GPU with a seat.
pub(crate) struct Watch {
    path: PathBuf,
    page: Option<PageHandle>,
    monitor: Monitor,
    at: Option<Instant>,
    /// Of each place in the page, its session at the last look and how long that had been busy.
    before: Vec<(SlotOwner, u64)>,
    /// What guests cost the online programs, in thousandths of the time of their requests.
    cost_milli: u64,
}

impl Watch {
    pub(crate) fn new(path: PathBuf) -> Self {
        // The seat's memory is its own, so no lease runs short of it.
        let monitor = Monitor::new(Limits { free_bytes_min: 0, ..Limits::default() });
        Self { path, page: None, monitor, at: None, before: Vec::new(), cost_milli: 0 }
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
        let seen = busy(page.page(), process::now_ns());
        let grown = seen.iter().zip(&self.before).filter(|(now, before)| now.0 == before.0);
        let longest_ns = grown.map(|(now, before)| now.1.saturating_sub(before.1)).max().unwrap_or(0);
        let share = u128::from(longest_ns) * 1000 / passed.as_nanos().max(1);
        self.before = seen;
        let busy_milli = u32::try_from(share).unwrap_or(1000).min(1000);
        let distress = page.page().distress();
        self.cost_milli = page.page().cost_milli();
        self.monitor.second(Reading {
            busy_milli,
            is_over_slack: distress >= Distress::OverSlack,
            is_overlimit: distress == Distress::Overlimit,
            ..Reading::default()
        });
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

/// How long the online session in each place has been busy.
fn busy(page: Page<'_>, now_ns: u64) -> Vec<(SlotOwner, u64)> {
    let of = |slot: usize| {
        if page.class(slot) != Some(Class::Online) {
            return (SlotOwner::Nobody, 0);
        }
        let since_ns = page.get(slot, Field::BusySince);
        let now_busy_ns = if since_ns == 0 { 0 } else { now_ns.saturating_sub(since_ns) };
        (page.owner(slot), page.get(slot, Field::BusyTotalNs) + now_busy_ns)
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
                watch.before = busy(handle.page(), process::now_ns());
                watch.before.iter_mut().for_each(|one| one.1 = one.1.saturating_sub(1_000_000_000));
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
}
