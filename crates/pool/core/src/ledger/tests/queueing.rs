//! The order in which leases are served, and what waiting ones are told.

use super::bench::{Bench, model, name};
use super::*;
use pool_api::{Filter, Quota, SpareRequest, TenantRequest};

fn one() -> LeaseRequest {
    LeaseRequest { ttl_ms: 3_600_000, ..LeaseRequest::default() }
}

fn quota(bench: &mut Bench, tenant: &str, weight: u32, guaranteed: u32, limit: Option<u32>) {
    let quotas = [(model("H200"), Quota { guaranteed, limit })].into();
    let request = TenantRequest { weight, quotas, priority_max: 1000, ..TenantRequest::default() };
    bench.apply(&Command::SetTenant { name: name(tenant), request }).unwrap();
}

/// Frees one GPU and returns the tenant of the pending lease that got it.
fn next_tenant(bench: &mut Bench) -> String {
    let granted: BTreeSet<LeaseId> = granted(bench);
    let oldest = *granted.iter().min_by_key(|id| bench.show(**id).granted_ms).unwrap();
    bench.release(oldest);
    bench.pass(2_000);
    let new: Vec<LeaseId> = self::granted(bench).difference(&granted).copied().collect();
    assert_eq!(new.len(), 1);
    bench.show(new[0]).tenant.to_string()
}

fn granted(bench: &Bench) -> BTreeSet<LeaseId> {
    bench
        .ledger
        .leases(None)
        .filter(|lease| lease.state == LeaseState::Granted)
        .map(|lease| lease.id)
        .collect()
}

#[test]
fn higher_priority_is_served_first_and_then_who_came_first() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    quota(&mut bench, "t", 100, 0, None);
    let first = bench.lease(one());
    let low = bench.lease(LeaseRequest { priority: 1, ..one() });
    bench.pass(1);
    let high = bench.lease(LeaseRequest { priority: 900, ..one() });
    for (done, next) in [(first.id, high.id), (high.id, low.id)] {
        bench.release(done);
        bench.settle();
        assert_eq!(bench.state(next), LeaseState::Granted);
    }
}

#[test]
fn a_tenant_gets_its_guarantee_before_others_get_more_than_theirs() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    quota(&mut bench, "promised", 100, 1, None);
    for _ in 0..6 {
        bench.lease_for(&name("greedy"), one());
    }
    for _ in 0..3 {
        bench.lease_for(&name("promised"), one());
    }
    assert_eq!(next_tenant(&mut bench), "promised");
    // Beyond its guarantee a tenant has no precedence: the one that has less comes first.
    assert_eq!(next_tenant(&mut bench), "greedy");
}

#[test]
fn beyond_guarantees_weights_decide() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 8)]);
    quota(&mut bench, "heavy", 300, 0, None);
    quota(&mut bench, "light", 100, 0, None);
    let filler: Vec<LeaseId> = (0..8).map(|_| bench.lease_for(&name("filler"), one()).id).collect();
    for _ in 0..20 {
        bench.lease_for(&name("heavy"), one());
        bench.lease_for(&name("light"), one());
    }
    for id in filler {
        bench.release(id);
        bench.pass(2_000);
    }
    let share = |tenant| bench.ledger.tenant_status(&name(tenant)).unwrap().leases_granted;
    assert_eq!((share("heavy"), share("light")), (6, 2));
}

#[test]
fn a_limit_holds_and_keeps_nobody_else_waiting() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4)]);
    quota(&mut bench, "a", 100, 0, Some(2));
    let high = || LeaseRequest { priority: 900, ..one() };
    let leases: Vec<LeaseId> = (0..3).map(|_| bench.lease_for(&name("a"), high()).id).collect();
    assert_eq!(bench.state(leases[2]), LeaseState::Pending);
    assert_eq!(bench.lease_for(&name("b"), one()).state, LeaseState::Granted);
    let told = bench.ledger.explain(leases[2]).unwrap();
    assert!(told.reasons.contains(&"quota of tenant a for H200 is 2, 2 used".to_owned()), "{told:?}");
    assert!(told.filters.iter().any(|count| count.filter == Filter::Quota && count.gpus == 1), "{told:?}");
    quota(&mut bench, "a", 100, 0, Some(3));
    assert_eq!(bench.state(leases[2]), LeaseState::Granted);
}

#[test]
fn a_large_lease_is_overtaken_for_a_while_but_not_for_ever() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Nvlink, "H200", 4)]);
    let first = bench.lease(one());
    let large = bench.lease(LeaseRequest { gpus: 4, topology: Topology::Nvlink, ..one() });
    assert_eq!(
        bench.lease(one()).state,
        LeaseState::Granted,
        "it fits beside, and the large one has just come"
    );
    bench.pass(60_000);
    let small = bench.lease(one());
    assert_eq!(small.state, LeaseState::Pending);
    for id in granted(&bench) {
        bench.release(id);
    }
    bench.settle();
    assert_eq!((bench.state(large.id), bench.state(small.id)), (LeaseState::Granted, LeaseState::Pending));
    assert_eq!(bench.state(first.id), LeaseState::Ended);
}

#[test]
fn what_can_never_be_served_keeps_nobody_waiting() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Nvlink, "H200", 4)]);
    quota(&mut bench, "t", 100, 0, None);
    let first = bench.lease(one());
    let whole = bench.lease(LeaseRequest { gpus: 4, topology: Topology::Nvlink, priority: 1000, ..one() });
    assert_eq!(whole.state, LeaseState::Pending);
    bench.apply(&Command::Break { gpu: "a/3".parse().unwrap(), reason: "demo".into() }).unwrap();
    bench.pass(120_000);
    assert_eq!(bench.lease(one()).state, LeaseState::Granted);
    let told = bench.ledger.explain(whole.id).unwrap();
    assert!(told.reasons[0].contains("3 at most"), "{told:?}");
    let remedy = "3 more H200 free in one nvlink box, of these: 2 leased, 1 broken or absent";
    let remedy = remedy.replace("H200", "GPUs (nvlink)");
    assert_eq!(told.remedies, [remedy], "no single thing would let it run: {told:?}");
    assert_eq!(bench.state(first.id), LeaseState::Granted);
}

#[test]
fn explain_counts_gpus_by_filter_and_says_what_would_help() {
    let mut bench = Bench::with_boxes(&[
        ("n", BoxKind::Nvlink, "H200", 4),
        ("p", BoxKind::Pcie, "H200", 2),
        ("q", BoxKind::Pcie, "A100", 3),
    ]);
    quota(&mut bench, "t", 100, 0, None);
    let taint = |gpu: &str| Command::Taint {
        gpu: gpu.parse().unwrap(),
        reason: "noisy".into(),
        by: "ann".into(),
        drain: false,
    };
    bench.apply(&taint("n/0")).unwrap();
    bench.apply(&Command::Break { gpu: "n/1".parse().unwrap(), reason: "demo".into() }).unwrap();
    let h200 = |gpus, topology| LeaseRequest { gpus, topology, model: Some(model("H200")), ..one() };
    assert_eq!(bench.lease(h200(1, Topology::Nvlink)).state, LeaseState::Granted);
    let waits = bench.lease(h200(3, Topology::Nvlink));
    let told = bench.ledger.explain(waits.id).unwrap();
    let count =
        |filter| told.filters.iter().find(|count| count.filter == filter).map_or(0, |count| count.gpus);
    let counts =
        [Filter::Model, Filter::Kind, Filter::Health, Filter::Taint, Filter::Leased, Filter::Topology];
    assert_eq!(counts.map(count), [3, 2, 1, 1, 1, 1]);
    let all =
        "2 more H200 (nvlink) free in one nvlink box, of these: 1 leased, 1 tainted, 1 broken or absent";
    assert_eq!(told.remedies, [all], "one of the three would not be enough");
    let two = bench.lease(h200(2, Topology::Nvlink));
    let told = bench.ledger.explain(two.id).unwrap();
    let each = [
        "1 more H200 (nvlink) free in one nvlink box",
        "untaint n/0: 1 GPU that would do is tainted",
        "repair n/1: 1 GPU that would do is broken or absent",
    ];
    assert_eq!(told.remedies, each);
    bench.release(two.id);

    for _ in 0..3 {
        bench.lease(LeaseRequest { priority: 500, ..h200(3, Topology::Nvlink) });
    }
    let told = bench.ledger.explain(waits.id).unwrap();
    assert_eq!(told.ahead, 3);
    assert!(told.reasons.contains(&"waits behind 3 leases of higher priority".to_owned()), "{told:?}");
}

#[test]
fn spares_are_held_back_from_everybody_but_those_who_lost_a_gpu() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 3)]);
    let set = |count| Command::SetSpares { model: model("H200"), request: SpareRequest { count } };
    bench.apply(&set(2)).unwrap();
    bench.reload();
    bench.settle();
    let first = bench.lease(one());
    let second = bench.lease(one());
    assert_eq!((first.state, second.state), (LeaseState::Granted, LeaseState::Pending));
    let told = bench.ledger.explain(second.id).unwrap();
    assert!(
        told.remedies.iter().any(|remedy| remedy.contains("2 GPUs that would do are held back (")),
        "{told:?}"
    );
    bench.apply(&set(1)).unwrap();
    assert_eq!(bench.state(second.id), LeaseState::Granted);
    assert_eq!(bench.ledger.spares()[0].held.len(), 1);
}

#[test]
fn a_lease_that_waits_lives_as_long_as_its_borrower_looks() {
    let mut bench = Bench::with_boxes(&[]);
    let lease = bench.lease(LeaseRequest::default());
    for _ in 0..4 {
        bench.pass(20_000);
        bench.apply(&Command::Look { lease: lease.id }).unwrap();
    }
    assert_eq!(bench.state(lease.id), LeaseState::Pending);
    bench.pass(30_000);
    assert_eq!(bench.show(lease.id).ended.unwrap().reason, "expired");
}
