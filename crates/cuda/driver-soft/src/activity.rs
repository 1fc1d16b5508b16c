//! How busy a device is: what sessions write down while they work, and the percentages that follow from it.
//!
//! NVML asks for the part of the last moment in which a kernel ran, and the part in which device memory was read or
//! written. A soft device has no memory apart from its kernels, so a running kernel counts for both, copies and fills
//! count for memory. The times of several sessions are added up and end at 100 %.

use crate::{
    ledger::MemoryLedger,
    sync::{Lock, lock},
};
use std::{sync::Arc, time::Duration};

/// What is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Kernels run.
    Kernels = 0,
    /// Device memory is read or written.
    Memory = 1,
}

impl Unit {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Kernels, Self::Memory];
}

/// Nanoseconds on a clock that all processes of a machine share.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    // Never 0, which means "not since".
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0)).max(1)
}

/// One session's work under way.
pub(crate) struct Activity {
    ledger: Arc<dyn MemoryLedger>,
    /// How many pieces of work are under way, by device and unit.
    running: Vec<[Lock<u32>; 2]>,
}

/// A piece of work under way; it is over when this ends.
pub(crate) struct Working<'a> {
    activity: &'a Activity,
    device: usize,
    units: &'static [Unit],
}

impl Activity {
    pub(crate) fn new(ledger: Arc<dyn MemoryLedger>, devices: usize) -> Self {
        Self { ledger, running: (0..devices).map(|_| Default::default()).collect() }
    }

    /// A kernel begins.
    pub(crate) fn kernel(&self, device: u32) -> Working<'_> {
        self.begin(device, &Unit::ALL)
    }

    /// A copy or a fill begins.
    pub(crate) fn memory(&self, device: u32) -> Working<'_> {
        self.begin(device, &[Unit::Memory])
    }

    fn begin(&self, device: u32, units: &'static [Unit]) -> Working<'_> {
        let device = device as usize;
        units.iter().for_each(|&unit| self.count(device, unit, 1));
        Working { activity: self, device, units }
    }

    fn count(&self, device: usize, unit: Unit, change: i32) {
        let Some(units) = self.running.get(device) else { return };
        let mut running = lock(&units[unit as usize]);
        let was_active = *running > 0;
        *running = running.saturating_add_signed(change);
        if was_active != (*running > 0) {
            // Under the lock, so that beginnings and ends are written down in their order.
            self.ledger.set_active(device, unit, now_ns(), !was_active);
        }
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.units.iter().for_each(|&unit| self.activity.count(self.device, unit, -1));
    }
}

/// Times over which a percentage says something: shorter ones are chance, longer ones are not the last moment.
const WINDOW_MIN: Duration = Duration::from_millis(100);
const WINDOW_MAX: Duration = Duration::from_secs(1);

/// Percentages of the last moment, for all devices.
pub(crate) struct Meter {
    ledger: Arc<dyn MemoryLedger>,
    devices: usize,
    last: Lock<Sample>,
}

struct Sample {
    at_ns: u64,
    active_ns: Vec<[u64; 2]>,
    /// Between the sample before and this one.
    percent: Option<Vec<[u32; 2]>>,
}

impl Meter {
    pub(crate) fn new(ledger: Arc<dyn MemoryLedger>, devices: usize) -> Self {
        let at_ns = now_ns();
        let active_ns = read(&*ledger, devices, at_ns);
        Self { ledger, devices, last: Lock::new(Sample { at_ns, active_ns, percent: None }) }
    }

    /// `[kernels, memory]` in percent. Takes up to a tenth of a second when it was not called for a while.
    pub(crate) fn percent(&self, device: usize) -> [u32; 2] {
        let mut last = lock(&self.last);
        let age = |last: &Sample| Duration::from_nanos(now_ns().saturating_sub(last.at_ns));
        if age(&last) > WINDOW_MAX {
            // An average over minutes is not what is asked for: begin anew.
            self.sample(&mut last);
            last.percent = None;
        }
        if last.percent.is_none() {
            std::thread::sleep(WINDOW_MIN.saturating_sub(age(&last)));
        }
        if age(&last) >= WINDOW_MIN || last.percent.is_none() {
            self.sample(&mut last);
        }
        last.percent.as_ref().and_then(|percent| percent.get(device)).copied().unwrap_or_default()
    }

    fn sample(&self, last: &mut Sample) {
        let at_ns = now_ns();
        let active_ns = read(&*self.ledger, self.devices, at_ns);
        let window_ns = at_ns.saturating_sub(last.at_ns).max(1);
        let share = |now: u64, before: u64| {
            (now.saturating_sub(before).saturating_mul(100) / window_ns).min(100) as u32
        };
        let pairs = active_ns.iter().zip(&last.active_ns);
        let percent =
            pairs.map(|(now, before)| [share(now[0], before[0]), share(now[1], before[1])]).collect();
        *last = Sample { at_ns, active_ns, percent: Some(percent) };
    }
}

fn read(ledger: &dyn MemoryLedger, devices: usize, now_ns: u64) -> Vec<[u64; 2]> {
    (0..devices).map(|device| Unit::ALL.map(|unit| ledger.active_ns(device, unit, now_ns))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::LocalLedger;

    fn parts() -> (Arc<LocalLedger>, Activity, Meter) {
        let ledger = Arc::new(LocalLedger::new(&[1000, 1000]));
        (ledger.clone(), Activity::new(ledger.clone(), 2), Meter::new(ledger, 2))
    }

    #[test]
    fn only_the_time_between_first_and_last_of_overlapping_work_counts() {
        let (ledger, activity, _) = parts();
        let first = activity.kernel(1);
        let copy = activity.memory(1);
        std::thread::sleep(Duration::from_millis(20));
        drop(first);
        let kernels = ledger.active_ns(1, Unit::Kernels, now_ns());
        assert!(kernels >= 20_000_000);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(ledger.active_ns(1, Unit::Kernels, now_ns()), kernels, "no kernel runs");
        drop(copy);
        let memory = ledger.active_ns(1, Unit::Memory, now_ns());
        assert!(memory >= kernels + 20_000_000);
        assert_eq!(ledger.active_ns(1, Unit::Memory, now_ns()), memory);
        assert_eq!(ledger.active_ns(0, Unit::Memory, now_ns()), 0, "another device");
    }

    #[test]
    fn a_device_that_works_all_the_time_is_busy_and_one_that_rests_is_not() {
        let (_, activity, meter) = parts();
        let working = activity.memory(1);
        assert_eq!(meter.percent(0), [0, 0]);
        let [kernels, memory] = meter.percent(1);
        assert_eq!(kernels, 0);
        assert!(memory > 90, "{memory}");
        drop(working);
        std::thread::sleep(WINDOW_MAX + Duration::from_millis(10));
        assert_eq!(meter.percent(1), [0, 0], "what was long ago is not the last moment");
    }
}
