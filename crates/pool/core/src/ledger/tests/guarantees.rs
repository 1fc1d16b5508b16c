//! What a guarantee is worth against tenants that want everything.

use super::bench::{Bench, model, name};
use super::*;
use crate::Dice;
use pool_api::{Lease, PRIORITY_MAX, Quota, TenantRequest};

const HOUR_MS: u64 = 3_600_000;

fn one() -> LeaseRequest {
    LeaseRequest { ttl_ms: HOUR_MS, ..LeaseRequest::default() }
}

fn set(bench: &mut Bench, tenant: &str, request: TenantRequest) {
    bench.apply(&Command::SetTenant { name: name(tenant), request }).unwrap();
}

pub(super) fn promise(bench: &mut Bench, tenant: &str, of: &str, guaranteed: u32) {
    let quotas = [(model(of), Quota { guaranteed, limit: None })].into();
    set(bench, tenant, TenantRequest { quotas, ..TenantRequest::default() });
}

fn of_high_priority(bench: &mut Bench, tenant: &str) {
    set(bench, tenant, TenantRequest { priority_max: PRIORITY_MAX, ..TenantRequest::default() });
}

fn granted(bench: &Bench, ids: &[LeaseId]) -> usize {
    ids.iter().filter(|id| bench.state(**id) == LeaseState::Granted).count()
}

#[test]
fn a_guarantee_comes_before_any_priority_of_others() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    promise(&mut bench, "promised", "H200", 1);
    of_high_priority(&mut bench, "greedy");
    let holder = bench.lease_for(&name("greedy"), one());
    let greedy = bench.lease_for(&name("greedy"), LeaseRequest { priority: 1000, ..one() });
    let promised = bench.lease_for(&name("promised"), LeaseRequest { priority: 0, ..one() });
    let told = bench.ledger.explain(greedy.id).unwrap();
    assert!(
        told.reasons.contains(&"waits behind 1 lease of tenants below their guarantee".to_owned()),
        "{told:?}"
    );
    bench.release(holder.id);
    bench.settle();
    assert_eq!(
        (bench.state(promised.id), bench.state(greedy.id)),
        (LeaseState::Granted, LeaseState::Pending)
    );
}

#[test]
fn a_guarantee_of_one_model_puts_nobody_first_at_another() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1), ("b", BoxKind::Pcie, "L40S", 1)]);
    promise(&mut bench, "promised", "L40S", 8);
    of_high_priority(&mut bench, "high");
    let held: Vec<Lease> = (0..2).map(|_| bench.lease_for(&name("other"), one())).collect();
    let any = bench.lease_for(&name("promised"), one());
    let high = bench.lease_for(&name("high"), LeaseRequest { priority: 900, ..one() });
    let h200 = held.iter().find(|lease| lease.grants[0].model == model("H200")).unwrap();
    bench.release(h200.id);
    bench.settle();
    assert_eq!((bench.state(high.id), bench.state(any.id)), (LeaseState::Granted, LeaseState::Pending));
}

#[test]
fn what_others_have_beyond_their_guarantees_is_taken_back_for_one_who_is_below() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4)]);
    promise(&mut bench, "promised", "H200", 2);
    of_high_priority(&mut bench, "greedy");
    let week = || LeaseRequest { priority: 1000, ..one() };
    let held: Vec<LeaseId> = (0..4).map(|_| bench.lease_for(&name("greedy"), week()).id).collect();
    let promised: Vec<LeaseId> = (0..3).map(|_| bench.lease_for(&name("promised"), one()).id).collect();
    bench.pass(50_000);
    assert_eq!((granted(&bench, &promised), granted(&bench, &held)), (0, 4), "it may come back by itself");
    bench.pass(40_000);
    assert_eq!((granted(&bench, &promised), granted(&bench, &held)), (2, 2), "its guarantee, and no more");
    let over = held.iter().map(|id| bench.show(*id)).find(|lease| !lease.state.is_live()).unwrap();
    assert_eq!(over.ended.unwrap().reason, "reclaimed: tenant promised has less than its guarantee");
    let events: Vec<&Event> =
        bench.ledger.events(0).filter(|event| event.kind == EventKind::LeaseReclaimed).collect();
    assert_eq!(events.len(), 2);
    bench.pass(300_000);
    assert_eq!((granted(&bench, &promised), granted(&bench, &held)), (2, 2), "and it stays so");
}

#[test]
fn what_is_guaranteed_to_others_is_not_taken_and_what_was_given_back_is_waited_for() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    promise(&mut bench, "first", "H200", 2);
    promise(&mut bench, "second", "H200", 2);
    let held: Vec<LeaseId> = (0..2).map(|_| bench.lease_for(&name("first"), one()).id).collect();
    let waits = bench.lease_for(&name("second"), one());
    bench.pass(300_000);
    assert_eq!((granted(&bench, &held), bench.state(waits.id)), (2, LeaseState::Pending));
    bench.release(held[0]);
    bench.settle();
    assert_eq!((granted(&bench, &held), bench.state(waits.id)), (1, LeaseState::Granted));
}

#[test]
fn a_tenant_asks_for_no_more_than_its_operators_allow() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4)]);
    let high = LeaseRequest { priority: 101, ..one() };
    let week = LeaseRequest { ttl_ms: 7 * 24 * HOUR_MS, ..one() };
    let refused = bench.lease_with_key("high", high.clone()).unwrap_err();
    let said = refused.to_answer().error;
    assert_eq!(said.code, pool_api::ErrorCode::Forbidden);
    assert!(said.message.contains("100 at most, and 101"), "{}", said.message);
    assert!(said.hint.contains("--priority-max"), "{}", said.hint);
    assert!(matches!(bench.lease_with_key("week", week.clone()), Err(Refusal::TtlTooLong { .. })));
    let generous =
        TenantRequest { priority_max: 101, ttl_max_ms: 7 * 24 * HOUR_MS, ..TenantRequest::default() };
    set(&mut bench, "t", generous);
    bench.reload();
    bench.settle();
    let first = bench.lease_with_key("high", high.clone()).unwrap();
    assert_eq!(bench.lease_with_key("week", week).unwrap().state, LeaseState::Granted);
    // What was granted under an older ceiling is told again, not refused.
    set(&mut bench, "t", TenantRequest::default());
    assert_eq!(bench.lease_with_key("high", high).unwrap().id, first.id);
}

/// Whatever tenants ask for and hold: in the end no waiting tenant is below its guarantee while another is
/// beyond its own.
#[test]
fn in_the_end_every_guarantee_is_kept() {
    let mut reclaims = 0;
    for seed in 0..40 {
        let mut dice = SplitMix::new(seed);
        let mut bench =
            Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4), ("b", BoxKind::Pcie, "H200", 4)]);
        let tenants = ["t0", "t1", "t2"];
        let mut left = 8;
        for tenant in tenants {
            let guaranteed = dice.below(left + 1);
            left -= guaranteed;
            let quotas = [(model("H200"), Quota { guaranteed, limit: None })].into();
            let priority_max = PRIORITY_MAX;
            set(&mut bench, tenant, TenantRequest { quotas, priority_max, ..TenantRequest::default() });
        }
        let mut all: Vec<LeaseId> = Vec::new();
        for _ in 0..60 {
            let tenant = name(tenants[dice.below(3) as usize]);
            let request = LeaseRequest {
                gpus: 1 + dice.below(2),
                priority: dice.below(PRIORITY_MAX + 1),
                ttl_ms: 24 * HOUR_MS,
                ..LeaseRequest::default()
            };
            match dice.below(4) {
                0 if !all.is_empty() => {
                    bench.release(all.swap_remove(dice.below(all.len() as u32) as usize));
                }
                1 => bench.pass(20_000),
                _ => all.push(bench.lease_for(&tenant, request).id),
            }
        }
        bench.pass(200_000);
        let status = |tenant: &str| bench.ledger.tenant_status(&name(tenant)).unwrap();
        let used = |tenant: &str| status(tenant).used.get(&model("H200")).map_or(0, |used| used.milli);
        let promised = |tenant: &str| {
            status(tenant).quotas.get(&model("H200")).map_or(0, |quota| u64::from(quota.guaranteed) * 1000)
        };
        let is_beyond = |tenant: &&&str| used(tenant) > promised(tenant);
        for lease in bench.ledger.leases(None).filter(|lease| lease.state == LeaseState::Pending) {
            let tenant = lease.tenant.as_str();
            let is_promised = used(tenant) + 1000 * u64::from(lease.request.gpus) <= promised(tenant);
            let others = tenants.iter().filter(|other| **other != tenant);
            let beyond: Vec<&&str> = others.filter(is_beyond).collect();
            assert!(
                !is_promised || beyond.is_empty(),
                "seed {seed}: {tenant} waits, and {beyond:?} has more"
            );
        }
        reclaims += bench.ledger.events(0).filter(|event| event.kind == EventKind::LeaseReclaimed).count();
    }
    assert!(reclaims > 10, "{reclaims}: nothing had to be taken back, so nothing was tested");
}
