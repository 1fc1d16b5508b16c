//! Words that are true: what is refused at once, and what a waiting lease is told.

use super::bench::{Bench, model, name, tenant};
use super::*;
use pool_api::{ErrorCode, Quota, TenantRequest};

fn limit(bench: &mut Bench, limit: u32) {
    let quotas = [(model("H200"), Quota { guaranteed: 0, limit: Some(limit) })].into();
    let request = TenantRequest { quotas, ..TenantRequest::default() };
    bench.apply(&Command::SetTenant { name: tenant(), request }).unwrap();
}

fn h200(gpus: u32) -> LeaseRequest {
    LeaseRequest { gpus, model: Some(model("H200")), ..LeaseRequest::default() }
}

fn refused(bench: &mut Bench, request: LeaseRequest) -> (String, ErrorCode) {
    let refusal = bench.try_lease(request).unwrap_err();
    assert!(!refusal.to_answer().error.hint.is_empty(), "{refusal}");
    (refusal.to_string(), refusal.to_answer().error.code)
}

#[test]
fn what_no_gpu_of_the_pool_can_serve_is_refused_at_once() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2), ("b", BoxKind::Pcie, "L40S", 4)]);
    let any = LeaseRequest::default;
    let typo = LeaseRequest { model: Some(model("H20")), ..any() };
    let (said, code) = refused(&mut bench, typo);
    assert_eq!(said, "this pool has no model H20; it has H200 and L40S");
    assert_eq!(code, ErrorCode::Conflict);
    let huge = LeaseRequest { memory_bytes: Some(200 << 30), ..any() };
    let said = refused(&mut bench, huge).0;
    assert_eq!(said, "no GPU of this pool has 200 GiB of memory; the largest has 140 GiB");
    let said = refused(&mut bench, LeaseRequest { topology: Topology::Nvlink, ..any() }).0;
    assert_eq!(said, "no box of this pool joins GPUs by NVLink");
    let said = refused(&mut bench, LeaseRequest { gpus: 5, ..any() }).0;
    assert_eq!(said, "5 GPUs are asked for, and this pool has 4 at most", "all are of one model");
    assert_eq!(bench.lease(LeaseRequest { gpus: 4, ..any() }).state, LeaseState::Granted);
}

#[test]
fn a_gpu_that_is_away_may_come_back_so_a_lease_may_wait_for_it() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    bench.apply(&Command::Break { gpu: "a/0".parse().unwrap(), reason: "demo".into() }).unwrap();
    assert_eq!(bench.lease(h200(2)).state, LeaseState::Pending);
    assert_eq!(
        Bench::with_boxes(&[]).lease(h200(2)).state,
        LeaseState::Pending,
        "its first box may be starting"
    );
}

#[test]
fn more_than_the_limit_is_refused_and_no_lease_without_any_is_told_to_give_one_back() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4)]);
    limit(&mut bench, 2);
    let (said, code) = refused(&mut bench, h200(3));
    assert_eq!(said, "3 of H200 are asked for, and tenant t may have 2 at most");
    assert_eq!(code, ErrorCode::Forbidden);

    let others = bench.lease_for(&name("others"), h200(4));
    let waits = bench.lease(h200(2));
    let told = bench.ledger.explain(waits.id).unwrap();
    assert_eq!(told.remedies, ["2 more H200 free"], "the tenant has no lease, and its limit is wide enough");
    // The limit is lowered while the lease waits: more free GPUs would not help, nor would giving back.
    limit(&mut bench, 1);
    let told = bench.ledger.explain(waits.id).unwrap();
    assert_eq!(
        told.remedies,
        ["ask for 1 H200 at most, or raise its limit of 1 (`dxpu tenant set t --limit H200=N`)"]
    );
    limit(&mut bench, 0);
    let told = bench.ledger.explain(waits.id).unwrap();
    assert_eq!(
        told.remedies,
        ["raise its limit of 0 (`dxpu tenant set t --limit H200=N`)"],
        "none can be asked for"
    );
    bench.release(others.id);
    bench.settle();
    assert_eq!(bench.state(waits.id), LeaseState::Pending);
}

#[test]
fn memory_is_part_of_what_is_missing() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let first = bench.lease(LeaseRequest::default());
    let large = bench.lease(LeaseRequest { memory_bytes: Some(100 << 30), ..LeaseRequest::default() });
    let told = bench.ledger.explain(large.id).unwrap();
    assert_eq!(told.reasons[0], "0 of 1 wanted GPUs with at least 100 GiB are free; others: 1 leased");
    assert_eq!(bench.state(first.id), LeaseState::Granted);
    // While its box cleans the GPU, no lease has it.
    bench.release(first.id);
    let told = bench.ledger.explain(large.id).unwrap();
    assert_eq!(told.reasons[0], "0 of 1 wanted GPUs with at least 100 GiB are free; others: 1 being cleaned");
}

#[test]
fn a_dead_box_has_no_free_gpus() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    assert_eq!(bench.gpu("a/0").state, GpuState::Free);
    bench.pass_silently(60_000);
    assert_eq!(bench.gpu("a/0").state, GpuState::Absent);
    assert_eq!(bench.ledger.counts().gpus, [((model("H200"), GpuState::Absent), 2)].into());
    let waits = bench.lease(h200(1));
    let told = bench.ledger.explain(waits.id).unwrap();
    assert_eq!(told.reasons, ["no H200 of the pool works now"]);
    assert!(
        told.remedies[0].contains("2 GPUs that would do are in silent, dead or drained boxes"),
        "{told:?}"
    );
    bench.report("a");
    bench.settle();
    assert_eq!(bench.gpu("a/1").state, GpuState::Free, "it is back");
}
