//! GPUs in the slots of hosts.

use super::bench::{Bench, name, tenant};
use crate::{Answer, Command, Refusal, Settings};
use pool_api::{
    BoxKind, GpuState, HostOrders, HostReport, HostRequest, HostSlotReport, HostState, HostWant, Lease,
    LeaseRequest, LeaseState, PCIE_EPOCH_MAX, Phase, Plane, Want,
};

/// A host that does as it is told.
pub(super) struct TestHost {
    name: &'static str,
    agent: &'static str,
    sequence: u64,
    pub(super) slots: Vec<HostSlotReport>,
}

impl TestHost {
    fn new(name: &'static str, slots: u8) -> Self {
        let slot = |slot| HostSlotReport {
            slot,
            bound_epoch: 0,
            cleared_epoch: 0,
            plugged: false,
            monitor_silent: false,
            detail: String::new(),
        };
        Self { name, agent: "proxy", sequence: 0, slots: (0..slots).map(slot).collect() }
    }

    fn tell(&mut self, bench: &mut Bench) -> Result<HostOrders, Refusal> {
        self.sequence += 1;
        let report = HostReport {
            agent: self.agent.into(),
            sequence: self.sequence,
            paths: vec!["udp:10.0.1.1:7000".into()],
            slots: self.slots.clone(),
        };
        match bench.apply(&Command::ReportHost { host: name(self.name), report })? {
            Answer::HostOrders(orders) => Ok(orders),
            other => panic!("{other:?}"),
        }
    }

    /// Reports, and does what it is told.
    pub(super) fn turn(&mut self, bench: &mut Bench) -> HostOrders {
        let orders = self.tell(bench).unwrap();
        for order in &orders.slots {
            let slot = &mut self.slots[usize::from(order.slot)];
            match &order.want {
                HostWant::Empty => slot.plugged = false,
                HostWant::Plug { epoch, .. } => {
                    assert!(*epoch > slot.cleared_epoch, "what was cleared never comes back");
                    assert!(!slot.plugged || slot.bound_epoch == *epoch, "one at a time");
                    slot.bound_epoch = *epoch;
                    slot.plugged = true;
                }
                HostWant::Unplug { epoch } => {
                    slot.plugged = false;
                    slot.cleared_epoch = *epoch;
                }
            }
        }
        orders
    }
}

pub(super) fn bench(gpus: u8) -> (Bench, TestHost) {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", gpus)]);
    let mut host = TestHost::new("h", 2);
    host.turn(&mut bench);
    allow(&mut bench);
    (bench, host)
}

fn allow(bench: &mut Bench) {
    let request = HostRequest { tenants: vec![tenant()] };
    bench.apply(&Command::SetHost { host: name("h"), request }).unwrap();
}

pub(super) fn plugged(gpus: u32) -> LeaseRequest {
    LeaseRequest {
        gpus,
        plane: Plane::Pcie,
        host: Some(name("h")),
        ttl_ms: 600_000,
        ..LeaseRequest::default()
    }
}

fn phase(lease: &Lease) -> Phase {
    lease.grants[0].attachment.as_ref().unwrap().phase
}

fn want(orders: &HostOrders) -> &HostWant {
    &orders.slots[0].want
}

/// Both sides report until nothing changes any more.
pub(super) fn settle(bench: &mut Bench, host: &mut TestHost) {
    for _ in 0..4 {
        bench.report_all();
        host.turn(bench);
    }
}

#[test]
fn the_host_is_told_after_the_box_has_bound_and_the_box_cleans_after_the_host_has_unplugged() {
    let (mut bench, mut host) = bench(1);
    let lease = bench.lease(plugged(1));
    assert_eq!((lease.state, phase(&lease)), (LeaseState::Granted, Phase::Binding));
    assert_eq!(want(&host.turn(&mut bench)), &HostWant::Empty, "the box has not bound");
    let why = bench.ledger.explain(lease.id).unwrap().reasons;
    assert_eq!(why[1], "a/0 is not in slot 0 of host h yet: box a has not let the host in yet");

    let orders = bench.report("a");
    let Want::Serve { pcie: Some(pairing), epoch, .. } = &orders.slots[0].want else { panic!("{orders:?}") };
    assert_eq!((pairing.host_node, pairing.host_slot, *epoch), (2, 0, 1));
    assert_eq!((orders.node, pairing.host_paths.as_slice()), (1, &["udp:10.0.1.1:7000".to_owned()][..]));
    bench.report("a");
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugging);
    let orders = host.turn(&mut bench);
    let HostWant::Plug { gpu, epoch, box_node, box_paths, .. } = want(&orders) else { panic!("{orders:?}") };
    assert_eq!((gpu.to_string().as_str(), *epoch, *box_node), ("a/0", 1, 1));
    assert_eq!(box_paths, &["udp:10.0.0.1:7000"]);
    host.turn(&mut bench);
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
    assert_eq!(bench.ledger.explain(lease.id).unwrap().reasons.len(), 1);

    let over = bench.release(lease.id);
    assert_eq!((over.state, phase(&over)), (LeaseState::Releasing, Phase::Unplugging));
    let orders = bench.report("a");
    assert!(matches!(orders.slots[0].want, Want::Serve { pcie: Some(_), .. }), "{orders:?}");
    assert_eq!(want(&host.turn(&mut bench)), &HostWant::Unplug { epoch: 1 });
    let orders = bench.report("a");
    assert!(matches!(orders.slots[0].want, Want::Serve { .. }), "the host has not said so yet: {orders:?}");
    host.turn(&mut bench);
    let orders = bench.report("a");
    assert!(matches!(orders.slots[0].want, Want::Clean { epoch: 1 }), "{orders:?}");
    bench.report("a");
    assert_eq!((bench.gpu("a/0").state, bench.state(lease.id)), (GpuState::Free, LeaseState::Ended));
    let detail = bench.ledger.host_detail(&name("h")).unwrap();
    assert!(detail.slots.iter().all(|slot| slot.phase.is_none()), "{detail:?}");
}

#[test]
fn a_host_that_was_never_told_holds_nobody_up() {
    let (mut bench, mut host) = bench(1);
    let lease = bench.lease(plugged(1));
    bench.report("a");
    bench.release(lease.id);
    assert!(matches!(bench.report("a").slots[0].want, Want::Clean { epoch: 1 }));
    assert_eq!(want(&host.turn(&mut bench)), &HostWant::Empty);
    bench.report("a");
    let next = bench.lease(plugged(1));
    assert_eq!((next.state, next.grants[0].epoch), (LeaseState::Granted, 2));
}

#[test]
fn a_box_does_not_wait_for_ever_and_the_slot_is_not_given_away_meanwhile() {
    for dies in [false, true] {
        let (mut bench, mut host) = bench(2);
        let lease = bench.lease(plugged(2));
        settle(&mut bench, &mut host);
        assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
        bench.release(lease.id);
        let mut waited_ms = 0;
        while !matches!(bench.report("a").slots[0].want, Want::Clean { .. }) {
            bench.pass(500);
            waited_ms += 500;
            if !dies {
                // It is there, and its guest does not let go.
                host.tell(&mut bench).unwrap();
            }
        }
        assert_eq!(waited_ms, 10_000, "dies: {dies}");
        bench.settle();
        assert_eq!(bench.state(lease.id), LeaseState::Ended);
        let waits = bench.lease(plugged(1));
        assert_eq!(waits.state, LeaseState::Pending, "both slots still have something");
        bench.pass(10_000);
        settle(&mut bench, &mut host);
        assert_eq!(bench.state(waits.id), LeaseState::Granted, "dies: {dies}");
    }
}

#[test]
fn a_dead_host_keeps_its_lease_and_plugs_again_when_it_is_back() {
    let (mut bench, mut host) = bench(1);
    let lease = bench.lease(plugged(1));
    settle(&mut bench, &mut host);
    bench.pass(20_000);
    assert_eq!(bench.ledger.host(&name("h")).unwrap().state, HostState::Dead);
    assert_eq!(bench.state(lease.id), LeaseState::Granted);
    // It has forgotten everything.
    let mut host = TestHost { sequence: 100, ..TestHost::new("h", 2) };
    let orders = host.turn(&mut bench);
    assert!(matches!(want(&orders), HostWant::Plug { epoch: 1, .. }), "{orders:?}");
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugging);
    host.turn(&mut bench);
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
    bench.pass(20_000);
    bench.release(lease.id);
    assert!(matches!(bench.report("a").slots[0].want, Want::Clean { .. }), "nobody waits for the dead");
}

#[test]
fn a_proxy_that_starts_anew_is_granted_anew() {
    let (mut bench, mut host) = bench(1);
    let lease = bench.lease(plugged(1));
    settle(&mut bench, &mut host);
    let old = bench.show(lease.id).grants[0].epoch;
    let mut host = TestHost { agent: "next", ..TestHost::new("h", 2) };
    assert_eq!(want(&host.turn(&mut bench)), &HostWant::Empty);
    assert_eq!(bench.state(lease.id), LeaseState::Granted, "the same device, which nobody has cleaned");
    assert_eq!(since(&bench.report("a"), 0), Some((old + 1, old)));
    settle(&mut bench, &mut host);
    let lease = bench.show(lease.id);
    assert_eq!(phase(&lease), Phase::Plugged);
    assert!(lease.grants[0].epoch > old, "{lease:?}");
}

#[test]
fn another_gpu_takes_the_place_of_a_broken_one_in_the_same_slot() {
    let (mut bench, mut host) = bench(2);
    let lease = bench.lease(plugged(1));
    settle(&mut bench, &mut host);
    let old = bench.show(lease.id).grants[0].clone();
    bench.slot("a", usize::from(old.gpu.slot)).health = pool_api::Health::bad("fell off the bus");
    let orders = bench.report("a");
    assert!(matches!(orders.slots[usize::from(old.gpu.slot)].want, Want::Off), "{orders:?}");
    let moved = bench.show(lease.id).grants[0].clone();
    assert_ne!(moved.gpu, old.gpu);
    let slot = |grant: &pool_api::Grant| grant.attachment.as_ref().unwrap().slot;
    assert_eq!((slot(&moved), slot(&old)), (0, 0));
    assert!(moved.epoch > old.epoch, "{moved:?}");
    bench.report("a");
    bench.report("a");
    assert_eq!(want(&host.turn(&mut bench)), &HostWant::Unplug { epoch: old.epoch });
    host.turn(&mut bench);
    let orders = host.turn(&mut bench);
    assert!(matches!(want(&orders), HostWant::Plug { epoch, .. } if *epoch == moved.epoch), "{orders:?}");
    host.turn(&mut bench);
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
}

#[test]
fn a_drained_gpu_is_unplugged_before_it_is_cleaned() {
    let (mut bench, mut host) = bench(2);
    let lease = bench.lease(plugged(1));
    settle(&mut bench, &mut host);
    let old = bench.show(lease.id).grants[0].gpu.clone();
    let (reason, by) = (String::new(), "o".into());
    bench.apply(&Command::Taint { gpu: old.clone(), reason, by, drain: true }).unwrap();
    assert_ne!(bench.show(lease.id).grants[0].gpu, old);
    let order = |bench: &mut Bench| bench.report("a").slots[usize::from(old.slot)].want.clone();
    assert!(matches!(order(&mut bench), Want::Serve { pcie: Some(_), .. }));
    host.turn(&mut bench);
    host.turn(&mut bench);
    assert!(matches!(order(&mut bench), Want::Clean { .. }));
    settle(&mut bench, &mut host);
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
}

#[test]
fn what_the_host_gives_up_is_granted_anew() {
    let (mut bench, mut host) = bench(2);
    let lease = bench.lease(plugged(1));
    settle(&mut bench, &mut host);
    let old = bench.show(lease.id).grants[0].clone();
    host.slots[0].cleared_epoch = old.epoch;
    host.slots[0].plugged = false;
    host.turn(&mut bench);
    let new = bench.show(lease.id).grants[0].clone();
    assert!(new.epoch > old.epoch && new.gpu == old.gpu, "what it has written is there: {new:?}");
    assert_eq!(bench.show(lease.id).moves[0].reason, "its host has given it up");
    settle(&mut bench, &mut host);
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
}

/// The epoch that a box is to serve, and since which what is there is the lease's own.
fn since(orders: &pool_api::BoxOrders, slot: usize) -> Option<(u64, u64)> {
    match orders.slots[slot].want {
        Want::Serve { epoch, since_epoch, .. } => Some((epoch, since_epoch)),
        _ => None,
    }
}

/// However often its link breaks, a lease gets its own device again as it was; the next lease gets it scrubbed.
#[test]
fn between_two_grants_of_one_lease_nothing_is_scrubbed() {
    let (mut bench, mut host) = bench(1);
    let lease = bench.lease(plugged(1));
    settle(&mut bench, &mut host);
    let first = bench.show(lease.id).grants[0].epoch;
    for round in 1..=3 {
        let epoch = bench.show(lease.id).grants[0].epoch;
        (host.slots[0].cleared_epoch, host.slots[0].plugged) = (epoch, false);
        host.turn(&mut bench);
        bench.reload();
        let orders = bench.report("a");
        assert_eq!(since(&orders, 0), Some((first + round, first)), "{orders:?}");
        settle(&mut bench, &mut host);
        assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
        assert_eq!(bench.gpu("a/0").cleaned_epoch, 0, "never cleaned");
    }
    bench.release(lease.id);
    host.turn(&mut bench);
    host.turn(&mut bench);
    assert_eq!(bench.report("a").slots[0].want, Want::Clean { epoch: first + 3 });
    settle(&mut bench, &mut host);
    let other = bench.lease(plugged(1));
    let orders = bench.report("a");
    assert_eq!(since(&orders, 0), Some((first + 4, first + 4)), "{orders:?}");
    bench.release(other.id);
}

/// A box that is dead for a while comes back with what its lease has left there, unless the lease has another device by then.
#[test]
fn a_device_is_kept_for_a_lease_that_waits_for_its_box() {
    for released in [false, true] {
        let (mut bench, mut host) = bench(1);
        let lease = bench.lease(plugged(1));
        settle(&mut bench, &mut host);
        let old = bench.show(lease.id).grants[0].epoch;
        for _ in 0..20 {
            bench.pass_silently(1_000);
            host.turn(&mut bench);
        }
        assert_eq!(bench.state(lease.id), LeaseState::Pending, "its box is dead, and there is no other");
        bench.reload();
        if released {
            bench.release(lease.id);
        }
        let orders = bench.report("a");
        host.turn(&mut bench);
        bench.settle();
        if released {
            assert!(matches!(orders.slots[0].want, Want::Clean { .. }), "{orders:?}");
            continue;
        }
        assert_eq!(orders.slots[0].want, Want::Idle, "what is there is the lease's");
        assert_eq!(bench.state(lease.id), LeaseState::Granted);
        assert_eq!(since(&bench.report("a"), 0), Some((old + 1, old)));
        settle(&mut bench, &mut host);
        settle(&mut bench, &mut host);
        assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
    }
}

/// A box whose agent was started again has forgotten its end of the link, and says so.
#[test]
fn a_box_that_starts_anew_gets_its_lease_again_at_once() {
    let (mut bench, mut host) = bench(2);
    let lease = bench.lease(plugged(1));
    settle(&mut bench, &mut host);
    let old = bench.show(lease.id).grants[0].clone();
    let slot = usize::from(old.gpu.slot);
    bench.slot("a", slot).bound_epoch = old.epoch - 1;
    let report = bench.next_report("a");
    bench.send("a", report).unwrap();
    let new = bench.show(lease.id).grants[0].clone();
    assert!(new.epoch > old.epoch && new.gpu == old.gpu, "{new:?}");
    assert_eq!(bench.show(lease.id).moves[0].reason, "its box has started anew");
    assert_eq!(since(&bench.report("a"), slot), Some((new.epoch, old.epoch)));
    settle(&mut bench, &mut host);
    settle(&mut bench, &mut host);
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
}

#[test]
fn a_monitor_that_does_not_answer_is_told_once_and_again_when_it_does() {
    let (mut bench, mut host) = bench(1);
    let silent = |bench: &Bench| bench.ledger.host(&name("h")).unwrap().monitors_silent;
    host.slots[1].monitor_silent = true;
    for _ in 0..3 {
        host.turn(&mut bench);
    }
    assert_eq!(silent(&bench), 1);
    host.slots[1].monitor_silent = false;
    host.turn(&mut bench);
    assert_eq!(silent(&bench), 0);
    let events: Vec<_> = bench.ledger.events(0).map(|event| event.kind).collect();
    let count = |kind| events.iter().filter(|known| **known == kind).count();
    use pool_api::EventKind::{HostMonitorBack, HostMonitorSilent};
    assert_eq!((count(HostMonitorSilent), count(HostMonitorBack)), (1, 1), "{events:?}");
}

#[test]
fn a_lease_waits_for_its_host_and_is_told_why() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4)]);
    let lease = bench.lease(plugged(2));
    let why = |bench: &Bench| bench.ledger.explain(lease.id).unwrap().reasons.join("; ");
    assert_eq!(why(&bench), "there is no host h");
    let other = bench.lease(LeaseRequest { gpus: 4, priority: 1, ..LeaseRequest::default() });
    assert_eq!(other.state, LeaseState::Granted, "who waits for a host keeps nobody from GPUs");
    bench.release(other.id);
    let mut host = TestHost::new("h", 1);
    host.turn(&mut bench);
    assert!(why(&bench).starts_with("host h does not serve tenant t; host h has 1 slots"), "{}", why(&bench));
    allow(&mut bench);
    host.slots = TestHost::new("h", 2).slots;
    host.turn(&mut bench);
    bench.settle();
    assert_eq!(bench.state(lease.id), LeaseState::Granted);
    let next = bench.lease(plugged(1));
    let explanation = bench.ledger.explain(next.id).unwrap();
    assert_eq!(explanation.reasons[0], "0 of 2 slots of host h are free, 1 are asked for");
    host.slots.pop();
    host.turn(&mut bench);
    assert_eq!(bench.state(lease.id), LeaseState::Pending, "one of its slots is gone");
}

#[test]
fn boxes_that_hosts_cannot_reach_are_left_out() {
    let (mut bench, mut host) = bench(1);
    bench.boxes.get_mut(&name("a")).unwrap().paths = vec!["10.0.0.1".into()];
    bench.report("a");
    let lease = bench.lease(plugged(1));
    assert_eq!(lease.state, LeaseState::Pending);
    let filters = bench.ledger.explain(lease.id).unwrap().filters;
    assert_eq!(filters[0].filter, pool_api::Filter::Plane);
    bench.boxes.get_mut(&name("a")).unwrap().paths = vec!["10.0.0.1".into(), "udp:10.0.0.1:7000".into()];
    settle(&mut bench, &mut host);
    assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged);
}

#[test]
fn a_new_leader_goes_on_where_the_last_one_was() {
    let (mut bench, mut host) = bench(1);
    let lease = bench.lease(plugged(1));
    for step in 0..14 {
        bench.reload();
        match step {
            7 => drop(bench.release(lease.id)),
            _ if step % 2 == 0 => drop(bench.report("a")),
            _ => drop(host.turn(&mut bench)),
        }
        if step == 6 {
            assert_eq!(phase(&bench.show(lease.id)), Phase::Plugged, "{:?}", bench.show(lease.id));
        }
    }
    settle(&mut bench, &mut host);
    assert_eq!((bench.state(lease.id), bench.gpu("a/0").state), (LeaseState::Ended, GpuState::Free));
    let numbers =
        (bench.ledger.gpu_box(&name("a")).unwrap().node, bench.ledger.host(&name("h")).unwrap().node);
    assert_eq!(numbers, (1, 2), "numbers stay");
    TestHost::new("h2", 1).turn(&mut bench);
    assert_eq!(bench.ledger.host(&name("h2")).unwrap().node, 3);
}

#[test]
fn epochs_are_common_to_both_sides_and_bounded() {
    let (mut bench, mut host) = bench(1);
    host.slots[0].bound_epoch = 40;
    host.slots[0].cleared_epoch = 40;
    host.turn(&mut bench);
    let lease = bench.lease(plugged(1));
    assert_eq!(lease.grants[0].epoch, 41, "higher than either side has seen");
    settle(&mut bench, &mut host);
    host.slots[0].bound_epoch = 1 << 30;
    assert!(matches!(host.tell(&mut bench), Err(Refusal::StrangeEpoch { slot: 0, given: 41, .. })));
    // Nor does it get there step by step.
    let mut told = Ok(());
    for step in 1..=10u64 {
        host.slots[0].bound_epoch = 41 + (step << 18);
        told = host.tell(&mut bench).map(drop);
    }
    assert!(matches!(told, Err(Refusal::StrangeEpoch { slot: 0, .. })), "{told:?}");
    bench.release(lease.id);

    // A GPU without epochs left is for the api plane only.
    let mut bench = Bench::with_settings(Settings::default(), &[("a", BoxKind::Pcie, "H200", 1)]);
    TestHost::new("h", 1).turn(&mut bench);
    allow(&mut bench);
    bench.apply(&Command::DrainBox { box_name: name("a"), reason: String::new(), by: "o".into() }).unwrap();
    let waits = bench.lease(plugged(1));
    // As after four thousand million grants: the ledger would not believe its box that, but the store remembers.
    let mut worn = bench.gpu("a/0");
    worn.epoch = PCIE_EPOCH_MAX;
    worn.cleaned_epoch = PCIE_EPOCH_MAX;
    bench.store.insert("gpu/a/0".to_owned(), serde_json::to_vec(&worn).unwrap());
    bench.reload();
    bench.slot("a", 0).cleaned_epoch = PCIE_EPOCH_MAX;
    bench.report("a");
    bench.apply(&Command::UndrainBox { box_name: name("a") }).unwrap();
    bench.settle();
    assert_eq!(bench.state(waits.id), LeaseState::Pending);
    assert_eq!(bench.lease(LeaseRequest::default()).state, LeaseState::Granted);
}

#[test]
fn something_nobody_gave_is_unplugged_before_the_slot_is_used() {
    let (mut bench, mut host) = bench(1);
    host.slots[0].bound_epoch = 7;
    host.slots[0].plugged = true;
    assert_eq!(want(&host.tell(&mut bench).unwrap()), &HostWant::Unplug { epoch: 7 });
    let lease = bench.lease(plugged(1));
    assert_eq!(lease.grants[0].attachment.as_ref().unwrap().slot, 1, "the other slot is free");
}

#[test]
fn a_disk_is_leased_for_a_host_and_never_to_a_program() {
    let (mut bench, mut host) = bench(1);
    bench.slot("a", 0).only_pcie = true;
    settle(&mut bench, &mut host);
    let program = bench.lease(LeaseRequest::default());
    assert_eq!(program.state, LeaseState::Pending);
    let guest = bench.lease(plugged(1));
    assert_eq!(guest.state, LeaseState::Granted);
}

/// A device that is lost, comes back and is lost again waits for its host from the second time on alone.
#[test]
fn a_box_waits_for_a_host_once_at_a_time() {
    let (mut bench, _) = bench(1);
    let gpu: pool_api::GpuId = "a/0".parse().unwrap();
    let host = bench.ledger.hosts.keys().next().unwrap().clone();
    for wait_ms in [1_000, 2_000] {
        bench.ledger.hold(&gpu, &host, 0, bench.now_ms + wait_ms);
    }
    assert_eq!(bench.ledger.unplug_due.len(), 1);
    bench.pass_silently(2_500);
    assert!(bench.ledger.unplug_due.is_empty() && bench.ledger.held.is_empty());
}
