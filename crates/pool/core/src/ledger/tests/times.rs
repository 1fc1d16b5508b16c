//! Time limits, and leases that leave their GPUs unused.

use super::bench::{Bench, tenant};
use super::*;
use pool_api::{Counters, Survive, TenantRequest, TenantTimes};

const MINUTE_MS: u64 = 60_000;

fn set(bench: &mut Bench, times: TenantTimes) {
    let request = TenantRequest { times, ..TenantRequest::default() };
    bench.apply(&Command::SetTenant { name: tenant(), request }).unwrap();
}

fn counters(percent: u32, bytes: u64) -> Option<Counters> {
    Some(Counters { utilization_pct: Some(percent), memory_used_bytes: Some(bytes), ..Counters::default() })
}

fn limited(ms: u64) -> LeaseRequest {
    LeaseRequest { time_limit_ms: Some(ms), ttl_ms: 60 * MINUTE_MS, ..LeaseRequest::default() }
}

#[test]
fn a_lease_ends_at_its_time_limit_however_it_is_renewed() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let first = bench.lease(limited(10 * MINUTE_MS));
    let waits = bench.lease(limited(10 * MINUTE_MS));
    let renew = |bench: &mut Bench| {
        let _ = bench.renew(first.id);
        bench.renew(waits.id).unwrap();
    };
    bench.pass_with_reports(10 * MINUTE_MS + crate::ledger::times::GRACE_MS - 1_000, 1_000, renew);
    assert_eq!(bench.state(first.id), LeaseState::Granted, "a program has a moment to end by itself");
    // Another leader knows of it too.
    bench.reload();
    bench.pass_with_reports(3_000, 1_000, renew);
    let over = bench.show(first.id);
    assert_eq!(over.ended.unwrap().reason, "its time limit of 10m is over");
    let is_told = |event: &pool_api::Event| {
        event.kind == pool_api::EventKind::LeaseExpired
            && event.message.contains("its time limit of 10m is over")
    };
    assert!(bench.ledger.events(0).any(is_told));
    // The time that a lease waits does not count.
    assert_eq!(bench.state(waits.id), LeaseState::Granted);
    bench.pass_with_reports(9 * MINUTE_MS, 10_000, |bench| drop(bench.renew(waits.id)));
    assert_eq!(bench.state(waits.id), LeaseState::Granted);
}

#[test]
fn tenants_have_a_limit_by_default_and_a_longest_one() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4)]);
    let ask = |limit| LeaseRequest { time_limit_ms: limit, ..LeaseRequest::default() };
    assert_eq!(bench.lease(ask(None)).request.time_limit_ms, None);
    let key = bench.lease_with_key("k", ask(None)).unwrap();
    set(
        &mut bench,
        TenantTimes {
            limit_default_ms: Some(MINUTE_MS),
            limit_max_ms: Some(2 * MINUTE_MS),
            idle_limit_ms: None,
        },
    );
    bench.reload();
    bench.settle();
    assert_eq!(bench.lease(ask(None)).request.time_limit_ms, Some(MINUTE_MS));
    assert_eq!(bench.lease(ask(Some(2 * MINUTE_MS))).request.time_limit_ms, Some(2 * MINUTE_MS));
    let refused = bench.try_lease(ask(Some(2 * MINUTE_MS + 1_000))).unwrap_err();
    assert!(refused.to_string().contains("for 2m at most"), "{refused}");
    assert_eq!(
        bench.lease_with_key("k", ask(None)).unwrap().id,
        key.id,
        "the same request, before and after"
    );
}

#[test]
fn an_idle_lease_is_reclaimed_and_one_that_computes_never_is() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 3)]);
    for slot in 0..3 {
        bench.slot("a", slot).counters = counters(0, 1 << 30);
    }
    let week = LeaseRequest { ttl_ms: 20 * 60 * MINUTE_MS, ..LeaseRequest::default() };
    let (idle, busy, unknown) = (bench.lease(week.clone()), bench.lease(week.clone()), bench.lease(week));
    let slot = |lease: &Lease| usize::from(lease.grants[0].gpu.slot);
    bench.slot("a", slot(&unknown)).counters = None;
    let busy_slot = slot(&busy);
    let mut turn = 0u32;
    let mut works = move |bench: &mut Bench| {
        // Once in nine minutes, for one report; another time it only takes memory.
        turn += 1;
        let (percent, bytes) = match turn % 540 {
            0 => (3, 1 << 30),
            270 => (0, 2 << 30),
            _ => (0, 1 << 30),
        };
        bench.slot("a", busy_slot).counters = counters(percent, bytes);
    };
    bench.pass_with_reports(20 * MINUTE_MS, 1_000, &mut works);
    assert_eq!(bench.state(idle.id), LeaseState::Granted, "no tenant has a limit");
    let found = bench.ledger.idle_leases(10 * MINUTE_MS);
    assert_eq!(found.iter().map(|found| found.lease).collect::<Vec<_>>(), [idle.id]);

    set(&mut bench, TenantTimes { idle_limit_ms: Some(10 * MINUTE_MS), ..TenantTimes::default() });
    bench.pass_with_reports(30 * MINUTE_MS, 1_000, &mut works);
    let reason = bench.show(idle.id).ended.unwrap().reason;
    assert_eq!(reason, "reclaimed: its GPUs computed nothing for 10m, the idle limit of tenant t");
    assert_eq!(bench.state(busy.id), LeaseState::Granted);
    assert_eq!(bench.state(unknown.id), LeaseState::Granted, "a box that cannot tell is believed to work");
}

/// While a box is silent nothing is known of its GPUs, and a new leader has seen nothing yet.
#[test]
fn silence_is_not_idleness() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    bench.slot("a", 0).counters = counters(0, 0);
    set(&mut bench, TenantTimes { idle_limit_ms: Some(MINUTE_MS), ..TenantTimes::default() });
    let lease = bench.lease(LeaseRequest { ttl_ms: 60 * MINUTE_MS, ..LeaseRequest::default() });
    bench.pass(50_000);
    bench.reload();
    bench.pass(50_000);
    assert_eq!(bench.state(lease.id), LeaseState::Granted);
    bench.pass_silently(10_000);
    assert!(bench.ledger.idle_leases(0).is_empty(), "its box is suspect");
}

#[test]
fn a_program_that_outlives_it_is_suspended() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    bench.slot("a", 0).counters = counters(0, 0);
    set(&mut bench, TenantTimes { idle_limit_ms: Some(MINUTE_MS), ..TenantTimes::default() });
    let request = LeaseRequest { ttl_ms: 60 * MINUTE_MS, survive: Survive::Gpu, ..LeaseRequest::default() };
    let lease = bench.lease(request);
    bench.pass(2 * MINUTE_MS);
    let asked = bench.show(lease.id);
    assert!(asked.state == LeaseState::Granted && asked.suspend_wanted, "its keeper is asked: {asked:?}");
}
