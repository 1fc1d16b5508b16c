//! GPUs and boxes that go bad, and what becomes of leases.

use super::bench::{Bench, gpu_report, model, name};
use super::*;
use pool_api::{BoxState, BurnIn, Health, SpareRequest};

#[test]
fn a_bad_gpu_is_replaced_by_a_spare_and_comes_back_after_a_burn_in() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 3)]);
    let spares = Command::SetSpares { model: model("H200"), request: SpareRequest { count: 1 } };
    bench.apply(&spares).unwrap();
    let spare = bench.ledger.spares()[0].held.clone();
    assert_eq!(spare.len(), 1);
    let lease = bench.lease(LeaseRequest::default());
    let lost = lease.grants[0].gpu.clone();
    assert_ne!(lost, spare[0]);

    bench.slot("a", usize::from(lost.slot)).health = Health::bad("XID 79");
    bench.report("a");
    let moved = bench.show(lease.id);
    assert_eq!((moved.state, &moved.grants[0].gpu), (LeaseState::Granted, &spare[0]));
    assert_eq!((&moved.moves[0].from, moved.moves[0].reason.as_str()), (&lost, "XID 79"));
    assert!(moved.version > lease.version);
    let held = bench.ledger.spares()[0].held.clone();
    assert!(held.len() == 1 && held != spare, "another is held back now");

    let id = lost.to_string();
    assert_eq!(bench.gpu(&id).state, GpuState::Bad);
    bench.slot("a", usize::from(lost.slot)).health = Health::OK;
    bench.report("a");
    assert_eq!(bench.gpu(&id).state, GpuState::Bad, "a GPU does not repair itself");
    bench.apply(&Command::Repair { gpu: lost.clone() }).unwrap();
    let epoch = bench.gpu(&id).epoch;
    bench.slot("a", usize::from(lost.slot)).burn_in =
        Some(BurnIn { epoch: epoch - 1, passed: true, detail: String::new() });
    bench.report("a");
    assert_eq!(bench.gpu(&id).state, GpuState::BurnIn, "that was an earlier test");
    bench.slot("a", usize::from(lost.slot)).burn_in =
        Some(BurnIn { epoch, passed: true, detail: String::new() });
    bench.settle();
    assert_eq!(bench.gpu(&id).state, GpuState::Free);
}

#[test]
fn a_failed_burn_in_leaves_the_gpu_bad() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let gpu: GpuId = "a/0".parse().unwrap();
    assert_eq!(bench.apply(&Command::Repair { gpu: gpu.clone() }), Err(Refusal::NotBad { gpu: gpu.clone() }));
    bench.apply(&Command::Break { gpu: gpu.clone(), reason: "demo".into() }).unwrap();
    bench.apply(&Command::Repair { gpu: gpu.clone() }).unwrap();
    let epoch = bench.gpu("a/0").epoch;
    bench.slot("a", 0).burn_in = Some(BurnIn { epoch, passed: false, detail: "wrong sum".into() });
    bench.report("a");
    let bad = bench.gpu("a/0");
    assert_eq!((bad.state, bad.health.reason.as_deref()), (GpuState::Bad, Some("wrong sum")));
}

#[test]
fn without_another_gpu_a_lease_waits_at_the_head_of_its_priority() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1), ("b", BoxKind::Pcie, "A100", 1)]);
    let h200 = || LeaseRequest { model: Some(model("H200")), ..LeaseRequest::default() };
    let first = bench.lease(h200());
    let second = bench.lease(h200());
    assert_eq!(second.state, LeaseState::Pending);
    bench.apply(&Command::Break { gpu: "a/0".parse().unwrap(), reason: "demo".into() }).unwrap();
    let waits = bench.show(first.id);
    assert_eq!((waits.state, waits.moves[0].to.as_ref()), (LeaseState::Pending, None));
    // It comes before the other, which has waited longer for its first GPU, and only the same model will do.
    bench.apply(&Command::Repair { gpu: "a/0".parse().unwrap() }).unwrap();
    let epoch = bench.gpu("a/0").epoch;
    bench.slot("a", 0).burn_in = Some(BurnIn { epoch, passed: true, detail: String::new() });
    bench.settle();
    let again = bench.show(first.id);
    assert_eq!(again.state, LeaseState::Granted);
    assert_eq!(again.moves[0].to, Some("a/0".parse().unwrap()));
    assert!(again.grants[0].epoch > first.grants[0].epoch);
    assert_eq!(bench.state(second.id), LeaseState::Pending);
}

#[test]
fn a_dead_box_is_quarantined_until_it_has_cleaned_up() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1), ("b", BoxKind::Pcie, "H200", 1)]);
    let lease = bench.lease(LeaseRequest { ttl_ms: 600_000, ..LeaseRequest::default() });
    assert_eq!(lease.grants[0].gpu.box_name, name("a"));
    let report_b = |bench: &mut Bench, ms| {
        bench.now_ms += ms;
        bench.report("b");
    };
    report_b(&mut bench, 2_900);
    assert_eq!(bench.ledger.gpu_box(&name("a")).unwrap().state, BoxState::Ready);
    report_b(&mut bench, 200);
    assert_eq!(bench.ledger.gpu_box(&name("a")).unwrap().state, BoxState::Suspect);
    assert_eq!(bench.show(lease.id).grants, lease.grants, "silence for a moment moves nobody");
    for _ in 0..6 {
        report_b(&mut bench, 2_000);
    }
    assert_eq!(bench.ledger.gpu_box(&name("a")).unwrap().state, BoxState::Dead);
    assert_eq!(bench.show(lease.id).grants[0].gpu.box_name, name("b"));
    let waits = bench.lease(LeaseRequest { ttl_ms: 600_000, ..LeaseRequest::default() });
    bench.reload();
    bench.report("b");
    assert_eq!(bench.state(waits.id), LeaseState::Pending);
    // It returns, with the old borrower still in: it is told to clean before the waiting lease gets it.
    let orders = bench.report("a");
    assert_eq!(orders.slots[0].want, pool_api::Want::Clean { epoch: 1 });
    assert_eq!(bench.state(waits.id), LeaseState::Pending);
    bench.report("a");
    let granted = bench.show(waits.id);
    assert_eq!((granted.state, granted.grants[0].epoch), (LeaseState::Granted, 2));
}

#[test]
fn a_lease_that_is_over_does_not_wait_for_a_dead_box() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let lease = bench.lease(LeaseRequest::default());
    bench.release(lease.id);
    assert_eq!(bench.state(lease.id), LeaseState::Releasing);
    bench.pass_silently(3_000);
    bench.pass_silently(12_000);
    assert_eq!(bench.state(lease.id), LeaseState::Ended);
    assert_eq!(bench.gpu("a/0").state, GpuState::Cleaning);
}

#[test]
fn a_box_that_threw_its_borrowers_out_gets_them_back_under_a_new_epoch() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let lease = bench.lease(LeaseRequest { gpus: 2, topology: Topology::SameBox, ..LeaseRequest::default() });
    bench.report("a");
    // The agent restarted and cleaned everything it found.
    for slot in 0..2 {
        bench.slot("a", slot).cleaned_epoch = 1;
    }
    bench.boxes.get_mut(&name("a")).unwrap().agent = "another".into();
    bench.report("a");
    let again = bench.show(lease.id);
    let grants: Vec<_> = again.grants.iter().map(|grant| (grant.gpu.slot, grant.epoch)).collect();
    assert_eq!((again.state, grants), (LeaseState::Granted, vec![(0, 2), (1, 2)]));
    assert_eq!(again.moves.len(), 2);
}

#[test]
fn what_stands_together_is_replaced_together() {
    let mut bench =
        Bench::with_boxes(&[("a", BoxKind::Nvlink, "H200", 4), ("b", BoxKind::Nvlink, "H200", 4)]);
    let four = LeaseRequest { gpus: 4, topology: Topology::Nvlink, ..LeaseRequest::default() };
    let lease = bench.lease(four.clone());
    let (old, new) = if lease.grants[0].gpu.box_name == name("a") { ("a", "b") } else { ("b", "a") };
    bench.apply(&Command::Break { gpu: format!("{old}/1").parse().unwrap(), reason: "demo".into() }).unwrap();
    let moved = bench.show(lease.id);
    assert_eq!(moved.state, LeaseState::Granted);
    assert!(moved.grants.iter().all(|grant| grant.gpu.box_name == name(new)), "{:?}", moved.grants);
    // One of two is replaced in its own box, beside the other.
    let mut bench =
        Bench::with_boxes(&[("a", BoxKind::Nvlink, "H200", 4), ("b", BoxKind::Nvlink, "H200", 4)]);
    let lease = bench.lease(LeaseRequest { gpus: 2, ..four });
    let broken = lease.grants[1].gpu.clone();
    bench.apply(&Command::Break { gpu: broken, reason: "demo".into() }).unwrap();
    let moved = bench.show(lease.id);
    assert_eq!(moved.grants[0], lease.grants[0]);
    assert_eq!(moved.grants[1].gpu.box_name, lease.grants[0].gpu.box_name);
}

#[test]
fn a_swapped_gpu_is_cleaned_before_it_serves_and_moves_its_lease() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let lease = bench.lease(LeaseRequest::default());
    *bench.slot("a", 0) = gpu_report("A100", 0, BoxKind::Pcie);
    bench.report("a");
    let swapped = bench.gpu("a/0");
    assert_eq!((swapped.model.as_str(), swapped.state), ("A100", GpuState::Cleaning));
    assert_eq!(bench.show(lease.id).grants[0].gpu.slot, 1);
    bench.settle();
    let other = bench.lease(LeaseRequest { model: Some(model("A100")), ..LeaseRequest::default() });
    assert!(other.grants[0].epoch >= 3, "{:?}", other.grants);
}

#[test]
fn a_slot_that_is_gone_is_absent_and_comes_back_clean() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let lease = bench.lease(LeaseRequest::default());
    bench.report("a");
    let kept = bench.slot("a", 0).clone();
    bench.forget_slot("a", 0);
    bench.report("a");
    assert_eq!(bench.gpu("a/0").state, GpuState::Absent);
    assert_eq!(bench.show(lease.id).grants[0].gpu.slot, 1);
    let mut report = bench.next_report("a");
    report.gpus.push(kept);
    let orders = bench.send("a", report).unwrap();
    assert_eq!(orders.slots[1].want, pool_api::Want::Clean { epoch: 1 });
}

#[test]
fn draining_moves_leases_and_never_breaks_them() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1), ("b", BoxKind::Pcie, "H200", 1)]);
    let (one, two) = (bench.lease(LeaseRequest::default()), bench.lease(LeaseRequest::default()));
    let drain = Command::DrainBox { box_name: name("a"), reason: "new fans".into(), by: "ann".into() };
    bench.apply(&drain).unwrap();
    assert_eq!(bench.show(one.id).grants, one.grants, "there is nowhere to go");
    bench.release(two.id);
    bench.settle();
    assert_eq!(bench.show(one.id).grants[0].gpu.box_name, name("b"));
    assert_eq!(bench.lease(LeaseRequest::default()).state, LeaseState::Pending);
    bench.apply(&Command::UndrainBox { box_name: name("a") }).unwrap();
    bench.settle();
    assert_eq!(bench.ledger.counts().leases[&LeaseState::Granted], 2);
}

/// Its leases move at once, no lease is granted anything there, and what it had counts no more when it has
/// joined again.
#[test]
fn a_revoked_box_is_out_until_it_is_heard_again() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1), ("b", BoxKind::Pcie, "H200", 1)]);
    let lease = bench.lease(LeaseRequest::default());
    let there = lease.grants[0].gpu.box_name.clone();
    let other = if there == name("a") { "b" } else { "a" };
    let revoke = Command::RevokeBox { box_name: there.clone(), reason: "stolen".into(), by: "op".into() };
    bench.apply(&revoke).unwrap();
    bench.tick();
    let moved = bench.show(lease.id);
    assert_eq!((moved.state, moved.grants[0].gpu.box_name.as_str()), (LeaseState::Granted, other));
    let shown = bench.ledger.gpu_box(&there).unwrap();
    assert_eq!((shown.state, shown.revoked.unwrap().reason.as_str()), (BoxState::Dead, "stolen"));
    let waiting = bench.lease(LeaseRequest::default());
    assert_eq!(waiting.state, LeaseState::Pending, "nothing is granted there");
    bench.reload();
    bench.report(other);
    bench.tick();
    assert_eq!(bench.state(waiting.id), LeaseState::Pending, "the next leader knows, too");
    assert!(bench.ledger.gpu_box(&there).unwrap().revoked.is_some());
    // It has joined with a new token: it cleans what it had, and is lent again under a new epoch.
    for _ in 0..3 {
        bench.report(there.as_str());
        bench.tick();
    }
    let granted = bench.show(waiting.id);
    assert_eq!((granted.state, granted.grants[0].gpu.box_name.clone()), (LeaseState::Granted, there.clone()));
    assert!(granted.grants[0].epoch > lease.grants[0].epoch);
    assert!(bench.ledger.gpu_box(&there).unwrap().revoked.is_none());
    // An identity that the pool has not met can be revoked, too.
    bench.apply(&Command::RevokeBox { box_name: name("z"), reason: String::new(), by: "op".into() }).unwrap();
    let kinds: Vec<_> = bench.ledger.events(0).map(|event| event.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::BoxRevoked).count(), 1);
}
