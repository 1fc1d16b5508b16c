//! Follows the requests of an online session, and says once a second what offline sessions may do beside it.
//!
//! ```text
//!   command ── begins a request, or belongs to it          wait ends ── the request is over ─▶ CostMeter
//!   each second: CostMeter ─▶ Governor ─▶ budget of groups and distress, in the session's slot; guard, for its presence
//! ```
//!
//! A request ends with a wait and not with the device's rest: a program that launches kernel by kernel lets the device rest at
//! random places within each request. What a program starts after its last wait and never waits for, as it resets a word for the next
//! request, is no part of that one, which may come much later: a request begins anew after a rest that is longer than any within one.

use crate::{
    cost::CostMeter,
    governor::{GUARD_MAX_US, Governor, GovernorReading, Orders},
    linger::PAUSE_MAX_NS,
    page::{Distress, Field, Page, Ticket},
    probe::Probe,
};

const SECOND_NS: u64 = 1_000_000_000;
/// An odd number with bits everywhere: each step of a kind depends on all commands before.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug)]
struct Request {
    /// A hash of its commands.
    kind: u64,
    began_ns: u64,
    is_disturbed: bool,
}

/// One online session's requests and governor.
#[derive(Clone, Debug)]
pub struct Regulator {
    meter: CostMeter,
    governor: Governor,
    probe: Probe,
    request: Option<Request>,
    /// Since when the meter counts.
    counts_since_ns: u64,
    second_at_ns: u64,
    offences: u64,
    reading: GovernorReading,
}

impl Regulator {
    /// For a program whose requests may take so much longer beside offline work: 0.1 is a tenth.
    pub fn new(slack: f64) -> Self {
        Self {
            meter: CostMeter::default(),
            governor: Governor::new(slack),
            probe: Probe::default(),
            request: None,
            counts_since_ns: 0,
            second_at_ns: 0,
            offences: 0,
            reading: GovernorReading::default(),
        }
    }

    /// A command that puts work into a stream, as a number that is the same for the same work. `is_disturbed`: the gate was open
    /// beside an offline session, or has not been closed for as long as its longest group: work of it may be on the device. `paused_ns`:
    /// for so long the session had no work before.
    pub fn command(&mut self, command: u64, is_disturbed: bool, paused_ns: u64, now_ns: u64) {
        if paused_ns >= PAUSE_MAX_NS {
            self.request = None;
        }
        let new = Request { kind: 0, began_ns: now_ns, is_disturbed };
        let request = self.request.get_or_insert(new);
        request.kind = (request.kind ^ command).wrapping_mul(STEP).rotate_left(23);
        // A program that computes for a while within a request finds the gate open again in the middle of it.
        request.is_disturbed |= is_disturbed;
    }

    /// The program has waited for work, and goes on.
    pub fn waited(&mut self, now_ns: u64) {
        if let Some(request) = self.request.take() {
            let us = now_ns.saturating_sub(request.began_ns) / 1000;
            self.meter.request(request.kind, request.is_disturbed, us);
        }
    }

    /// What the last second has shown.
    pub fn reading(&self) -> GovernorReading {
        self.reading
    }

    /// Once a second: the governor's orders, which offline sessions read in the slot.
    pub fn second(&mut self, page: Page<'_>, ticket: Ticket, now_ns: u64) -> Option<Orders> {
        if now_ns < self.second_at_ns {
            return None;
        }
        self.second_at_ns = now_ns + SECOND_NS;
        let offences = page.offences();
        let grown = offences.saturating_sub(self.offences);
        self.offences = offences;
        let counted_us = now_ns.saturating_sub(self.counts_since_ns) as f64 / 1000.0;
        let cost = self.meter.judge();
        if !page.has_guests() {
            // A time without guests is no part of what they cost, and the next one begins anew.
            self.meter.forget();
            self.governor.guest_left();
        }
        if cost.is_some() || !page.has_guests() || self.counts_since_ns == 0 {
            self.counts_since_ns = now_ns;
        }
        let reading = GovernorReading {
            cost: cost.filter(|_| page.has_guests()),
            load: cost.map_or(0.0, |cost| cost.usual_us / counted_us.max(1.0)),
            offences: grown,
            longest_group_us: page.longest_group_us(),
        };
        self.reading = reading;
        let mut orders = self.governor.second(reading);
        if self.probe.second(reading.cost.is_none() && self.meter.is_blind()) {
            orders.guard_us = GUARD_MAX_US;
        }
        if let Some(cost) = reading.cost {
            self.probe.told();
            page.set(ticket, Field::CostMilli, (cost.share * 1000.0).clamp(0.0, 1e9) as u64);
        }
        page.set(ticket, Field::GroupUs, orders.group_us as u64);
        page.set(ticket, Field::Distress, Distress::of(orders) as u64);
        Some(orders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Owner, PAGE_WORDS};
    use std::sync::atomic::AtomicU64;
    use work_class::Class;

    struct Bench {
        words: Vec<AtomicU64>,
        now_ns: u64,
    }

    impl Bench {
        fn new() -> Self {
            let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
            Page::create(&words, 1).unwrap();
            Self { words, now_ns: 0 }
        }

        fn page(&self) -> Page<'_> {
            Page::open(&self.words).unwrap()
        }

        fn claim(&self, pid: u32, class: Class) -> Ticket {
            self.page().claim(Owner::new(pid, 1).unwrap(), class, 0).unwrap()
        }

        /// A second of requests: 50 calm ones of 1 ms, then so many disturbed ones that take so long.
        fn second(&mut self, regulator: &mut Regulator, ticket: Ticket, disturbed: (u64, u64)) -> Orders {
            self.second_of(regulator, ticket, &[(50, 1_000, false), (disturbed.0, disturbed.1, true)])
        }

        /// A second of requests, all of the same kind: how many, how long each takes, and whether they are disturbed.
        fn second_of(
            &mut self,
            regulator: &mut Regulator,
            ticket: Ticket,
            requests: &[(u64, u64, bool)],
        ) -> Orders {
            for &(count, us, is_disturbed) in requests {
                for _ in 0..count {
                    regulator.command(7, is_disturbed, 0, self.now_ns);
                    regulator.command(8, false, 0, self.now_ns + 1);
                    self.now_ns += us * 1000;
                    regulator.waited(self.now_ns);
                }
            }
            self.now_ns += SECOND_NS;
            regulator.second(self.page(), ticket, self.now_ns).expect("a second has passed")
        }
    }

    #[test]
    fn offline_sessions_read_shorter_groups_while_they_cost_too_much() {
        let mut bench = Bench::new();
        let online = bench.claim(1, Class::Online);
        let mut regulator = Regulator::new(0.1);
        bench.second(&mut regulator, online, (0, 0));
        bench.claim(2, Class::Offline);
        assert_eq!(bench.page().group_budget_us(), Some(50));
        assert_eq!(bench.page().distress(), Distress::None);
        for _ in 0..2 {
            bench.second(&mut regulator, online, (50, 1_300));
        }
        assert_eq!(bench.page().group_budget_us(), Some(25), "0.3 ms in half of the requests are 15 %");
        assert_eq!(bench.page().distress(), Distress::OverSlack);
        assert_eq!(bench.page().get(online.slot(), Field::CostMilli), 150);
        bench.second(&mut regulator, online, (50, 1_100));
        assert_eq!(bench.page().distress(), Distress::None, "5 % are within the slack");
        bench.page().release(online);
        assert_eq!(bench.page().group_budget_us(), None, "its orders go with it");
    }

    #[test]
    fn without_an_offline_session_nothing_is_its_fault() {
        let mut bench = Bench::new();
        let online = bench.claim(1, Class::Online);
        let mut regulator = Regulator::new(0.1);
        for _ in 0..100 {
            let orders = bench.second(&mut regulator, online, (50, 5_000));
            assert!(!orders.is_over_slack && orders.guard_us == 0.0, "{orders:?}");
        }
    }

    #[test]
    fn a_program_whose_requests_are_all_disturbed_is_measured_after_a_second_with_the_gate_closed() {
        let mut bench = Bench::new();
        let (online, _guest) = (bench.claim(1, Class::Online), bench.claim(2, Class::Offline));
        let mut regulator = Regulator::new(0.1);
        let orders = bench.second_of(&mut regulator, online, &[(50, 1_300, true)]);
        assert_eq!(orders.guard_us, GUARD_MAX_US);
        assert_eq!(bench.page().distress(), Distress::None, "that is no reason to send the guest away");
        let orders = bench.second(&mut regulator, online, (0, 0));
        assert!(orders.is_over_slack && orders.guard_us == 0.0, "{orders:?}");
        bench.second_of(&mut regulator, online, &[(50, 1_300, true)]);
        assert_eq!(
            bench.page().group_budget_us(),
            Some(10),
            "30 % of 10: far too much. What a calm one takes stays known"
        );
        let orders = bench.second_of(&mut regulator, online, &[(50, 1_050, true)]);
        assert!(!orders.is_over_slack && orders.guard_us == 0.0, "{orders:?}");
    }

    #[test]
    fn kernels_that_run_on_at_a_closed_gate_are_counted_against_the_guest() {
        let mut bench = Bench::new();
        let (online, guest) = (bench.claim(1, Class::Online), bench.claim(2, Class::Offline));
        let mut regulator = Regulator::new(0.1);
        bench.page().set(guest, Field::Offences, 1);
        assert!(!bench.second(&mut regulator, online, (0, 0)).is_overlimit);
        bench.page().set(guest, Field::Offences, 2);
        assert!(bench.second(&mut regulator, online, (0, 0)).is_overlimit);
        assert_eq!(bench.page().distress(), Distress::Overlimit);
        bench.page().release(guest);
        assert!(!bench.second(&mut regulator, online, (0, 0)).is_overlimit, "the next guest begins anew");
    }

    #[test]
    fn what_is_started_after_the_last_wait_is_no_part_of_the_next_request() {
        let mut bench = Bench::new();
        let (online, _guest) = (bench.claim(1, Class::Online), bench.claim(2, Class::Offline));
        let mut regulator = Regulator::new(0.1);
        for _ in 0..100 {
            for is_disturbed in [false, true] {
                regulator.command(7, is_disturbed, 5 * PAUSE_MAX_NS, bench.now_ns);
                bench.now_ns += 1_000_000;
                regulator.waited(bench.now_ns);
                regulator.command(9, false, 10_000, bench.now_ns + 10_000);
                bench.now_ns += 5 * PAUSE_MAX_NS;
            }
        }
        let judged = regulator.meter.judge().unwrap();
        assert_eq!((judged.share, judged.noise, judged.usual_us), (0.0, 0.0, 200_000.0));
        regulator.command(7, false, PAUSE_MAX_NS - 1, bench.now_ns);
        regulator.command(7, true, PAUSE_MAX_NS - 1, bench.now_ns);
        assert!(regulator.request.unwrap().is_disturbed, "a short rest is within a request");
        assert!(regulator.second(bench.page(), online, bench.now_ns).is_some());
    }

    #[test]
    fn requests_of_other_commands_are_of_another_kind() {
        let mut regulator = Regulator::new(0.1);
        let mut request = |commands: &[u64], is_disturbed, us: u64| {
            commands.iter().for_each(|&command| regulator.command(command, is_disturbed, 0, 0));
            regulator.waited(us * 1000);
        };
        for _ in 0..100 {
            request(&[1, 2], false, 1_000);
            request(&[2, 1], true, 5_000);
            request(&[1, 2, 2], true, 5_000);
        }
        assert_eq!(regulator.meter.judge(), None, "nothing to compare them with");
    }
}
