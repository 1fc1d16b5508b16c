//! A device with streams of offline work, and online sessions that close and open the gate at any time.
//!
//! The rule: an offline kernel that starts while the gate is closed belongs to a group whose wait was passed before the
//! gate closed, and the groups are no longer than their budget unless they are one kernel.

use super::{Dice, first_failure, is_found};
use crate::{
    Class, Demand, KernelShape, KernelTimes, Owner, PAGE_WORDS, Page, Turn, Turnstile, mutant::Mutant,
};
use std::{collections::VecDeque, sync::atomic::AtomicU64};

enum Queued {
    Wait,
    Kernel { shape: KernelShape, ns: u64, is_timed: bool, budget_ns: u64 },
}

#[derive(Default)]
struct Stream {
    queue: VecDeque<Queued>,
    busy_until: u64,
    /// When the wait in front of the running group was passed.
    passed_at: Option<u64>,
    kernels: u32,
    spent_ns: u64,
    /// The largest budget that a kernel of this group was planned with.
    budget_ns: u64,
}

struct Device {
    streams: Vec<Stream>,
    /// When the gate closed, while it is.
    closed_at: Option<u64>,
    starts_beside_closed: u64,
}

impl Device {
    fn queued(&self) -> usize {
        self.streams.iter().map(|stream| stream.queue.len()).sum()
    }

    /// Starts everything that can start at `now`.
    fn run(&mut self, now: u64, turnstile: &mut Turnstile, times: &mut KernelTimes) -> Result<(), String> {
        for stream in &mut self.streams {
            while stream.busy_until <= now {
                match stream.queue.front() {
                    Some(Queued::Wait) if self.closed_at.is_some() => break,
                    Some(_) => {}
                    None => break,
                }
                match stream.queue.pop_front() {
                    Some(Queued::Wait) => {
                        turnstile.passed(1);
                        stream.passed_at = Some(now);
                        (stream.kernels, stream.spent_ns, stream.budget_ns) = (0, 0, 0);
                    }
                    Some(Queued::Kernel { shape, ns, is_timed, budget_ns }) => {
                        stream.kernels += 1;
                        stream.spent_ns += ns;
                        stream.budget_ns = stream.budget_ns.max(budget_ns);
                        if let Some(closed_at) = self.closed_at {
                            self.starts_beside_closed += 1;
                            if stream.passed_at.is_none_or(|passed| passed > closed_at) {
                                return Err(format!(
                                    "a group began at {now}, the gate closed at {closed_at}"
                                ));
                            }
                        }
                        if stream.kernels > 1 && stream.spent_ns > stream.budget_ns {
                            let (spent, budget) = (stream.spent_ns, stream.budget_ns);
                            return Err(format!("a group of {spent} ns, planned for {budget}"));
                        }
                        if is_timed {
                            times.sample(shape, ns);
                        }
                        stream.busy_until = now + ns;
                    }
                    None => unreachable!("there was one"),
                }
            }
        }
        Ok(())
    }
}

/// One random schedule. Returns how many kernels started beside a closed gate.
fn schedule(seed: u64) -> Result<u64, String> {
    let mut dice = Dice::new(seed);
    let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    let page = Page::create(&words, 1).unwrap();
    let claim = |pid| page.claim(Owner::new(pid, 1).unwrap(), Class::Online, 0).unwrap();
    let online: Vec<_> = (1..=1 + dice.below(3) as u32).map(claim).collect();
    let own = page.claim(Owner::new(9, 1).unwrap(), Class::Offline, 0).unwrap();
    let (mut turnstile, mut times) = (Turnstile::default(), KernelTimes::default());
    let streams = 1 + dice.below(3);
    let mut length = || {
        let scale = 8 + dice.below(11);
        1_000 + dice.below(1 << scale)
    };
    let kernel_ns: Vec<u64> = (0..6).map(|_| length()).collect();
    let mut device = Device {
        streams: (0..streams).map(|_| Stream::default()).collect(),
        closed_at: None,
        starts_beside_closed: 0,
    };
    let mut now = 0;
    for _ in 0..200 {
        // Small steps, in which everything that the device can start is started.
        let until = now + dice.below(60_000);
        while now < until {
            now += 1 + dice.below(3_000);
            device.run(now, &mut turnstile, &mut times)?;
        }
        match dice.below(4) {
            0 => drop(page.close(online[dice.below(online.len() as u64) as usize], now)),
            1 => page.open_gate(online[dice.below(online.len() as u64) as usize], now),
            _ => {
                for _ in 0..dice.below(40) {
                    // Beyond 1,000 the driver's calls block until the device has got on.
                    if turnstile.must_hold(page.gate().is_open()) || device.queued() >= 1_000 {
                        break;
                    }
                    let (stream, kernel) = (dice.below(streams), dice.below(6));
                    let shape = KernelShape { function: kernel, grid: [1; 3], block: [1; 3] };
                    let (cost, is_timed) = times.launch(shape);
                    let demand = Demand::of(page, own, now);
                    let queue = &mut device.streams[stream as usize].queue;
                    if turnstile.before(stream, cost, demand, now) == Turn::Wait {
                        queue.push_back(Queued::Wait);
                    }
                    let budget_ns = turnstile.budget_ns(demand);
                    let ns = kernel_ns[kernel as usize];
                    queue.push_back(Queued::Kernel { shape, ns, is_timed, budget_ns });
                }
            }
        }
        device.closed_at = match (page.gate().is_open(), device.closed_at) {
            (true, _) => None,
            (false, since) => since.or(Some(now)),
        };
    }
    Ok(device.starts_beside_closed)
}

#[test]
fn no_offline_kernel_starts_more_than_one_group_after_the_gate_closed_in_10000_schedules() {
    assert_eq!(first_failure(0..10_000, |seed| schedule(seed).map(drop)), None);
    // The rule is about kernels that start beside a closed gate: there are such.
    let starts: u64 = (0..100).map(|seed| schedule(seed).unwrap()).sum();
    assert!(starts > 100, "only {starts} kernels started beside a closed gate");
}

#[test]
fn mistakes_at_the_turnstile_are_found() {
    for mutant in [Mutant::WaitBehindTheKernel, Mutant::NewStreamPasses, Mutant::UnknownCostsNothing] {
        assert!(is_found(mutant, 0..500, |seed| schedule(seed).map(drop)), "{mutant:?} was not found");
    }
}

/// What all streams together have begun and not waited for, when they take turns for a while.
fn begun_by_all(streams: u64) -> u64 {
    let (mut turnstile, mut begun) = (Turnstile::default(), vec![0; streams as usize]);
    let mut most = 0;
    for at in 0..2_000 {
        let stream = at % streams;
        let cost = 1_000;
        match turnstile.before(stream, Some(cost), Demand::Lately, at * 100) {
            Turn::Wait => begun[stream as usize] = cost,
            Turn::Pass => begun[stream as usize] += cost,
        }
        if at > 1_000 {
            most = most.max(begun.iter().sum());
        }
    }
    most
}

#[test]
fn an_online_session_waits_for_one_budget_however_many_streams_there_are() {
    let rule = |streams: u64| match begun_by_all(streams) {
        ns if ns <= 50_000 => Ok(()),
        ns => Err(format!("{ns} ns are begun")),
    };
    assert_eq!(first_failure(1..6, rule), None);
    assert!(is_found(Mutant::BudgetPerStream, 2..6, rule));
}
