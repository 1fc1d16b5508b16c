//! Reports that are late, repeated, from another agent, or absurd.

use super::bench::{Bench, gpu_report, name};
use super::*;

#[test]
fn a_report_that_says_nothing_new_writes_nothing() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 8)]);
    bench.settle();
    let before = bench.writes;
    bench.slot("a", 0).counters =
        Some(pool_api::Counters { utilization_pct: Some(50), ..Default::default() });
    bench.report("a");
    assert_eq!(bench.writes, before);
    assert_eq!(bench.gpu("a/0").counters.unwrap().utilization_pct, Some(50));
    assert_eq!(bench.ledger.version() & 0x3ff, 1, "only joining has changed anything");
}

#[test]
fn what_a_gpu_measured_before_it_went_is_not_told_as_of_now() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 3)]);
    let measured = || Some(pool_api::Counters { utilization_pct: Some(50), ..Default::default() });
    for slot in 0..3 {
        bench.slot("a", slot).counters = measured();
    }
    bench.slot("a", 1).health = pool_api::Health::bad("fell off the bus");
    bench.report("a");
    assert_eq!((bench.gpu("a/1").state, bench.gpu("a/1").counters), (GpuState::Bad, measured()));

    let mut without = bench.next_report("a");
    without.gpus.truncate(1);
    bench.send("a", without).unwrap();
    assert_eq!((bench.gpu("a/1").state, bench.gpu("a/1").counters), (GpuState::Bad, None), "bad and gone");
    assert_eq!((bench.gpu("a/2").state, bench.gpu("a/2").counters), (GpuState::Absent, None));
    assert_eq!(bench.gpu("a/0").counters, measured(), "it is still there");

    bench.report("a");
    assert_eq!(bench.gpu("a/2").counters, measured(), "it is back");
    bench.pass_silently(60_000);
    assert_eq!(
        (bench.gpu("a/0").state, bench.gpu("a/0").counters),
        (GpuState::Absent, None),
        "its box is dead"
    );
}

#[test]
fn old_reports_are_dropped() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let mut old = bench.next_report("a");
    bench.report("a");
    old.gpus[0].health = pool_api::Health::bad("late news");
    bench.send("a", old.clone()).unwrap();
    assert_eq!(bench.gpu("a/0").state, GpuState::Free);
    bench.boxes.get_mut(&name("a")).unwrap().agent = "second".into();
    bench.report("a");
    bench.send("a", old).unwrap();
    assert_eq!(bench.gpu("a/0").state, GpuState::Free, "also when another run of the agent has followed");
}

#[test]
fn a_late_report_of_an_earlier_agent_does_not_silence_the_present_one() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let late = bench.next_report("a");
    bench.boxes.get_mut(&name("a")).unwrap().agent = "second".into();
    bench.report("a");
    bench.reload();
    bench.report("a");
    bench.send("a", late).unwrap();
    let lease = bench.lease(LeaseRequest::default());
    bench.report("a");
    bench.release(lease.id);
    bench.settle();
    assert_eq!(bench.gpu("a/0").state, GpuState::Free);
}

#[test]
fn a_box_that_has_forgotten_what_it_let_in_is_cleaned_again() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let lease = bench.lease(LeaseRequest::default());
    bench.report("a");
    bench.release(lease.id);
    bench.settle();
    assert_eq!(bench.gpu("a/0").state, GpuState::Free);
    // A new disk: an old token would be let in again until the box has been told of the epoch.
    (bench.slot("a", 0).bound_epoch, bench.slot("a", 0).cleaned_epoch) = (0, 0);
    let report = bench.next_report("a");
    let orders = bench.send("a", report).unwrap();
    assert_eq!(orders.slots[0].want, pool_api::Want::Clean { epoch: 1 });
    assert_eq!(bench.lease(LeaseRequest::default()).state, LeaseState::Pending);
}

#[test]
fn a_box_that_knows_of_later_epochs_is_believed() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    // As after restoring an old copy of the store.
    bench.slot("a", 0).bound_epoch = 7;
    bench.settle();
    let gpu = bench.gpu("a/0");
    assert_eq!((gpu.state, gpu.epoch, gpu.cleaned_epoch), (GpuState::Free, 7, 7));
    assert_eq!(bench.lease(LeaseRequest::default()).grants[0].epoch, 8);
}

/// Epochs are what keeps two holders apart. A box that claims absurd ones must not make them begin anew.
#[test]
fn a_box_that_claims_an_absurd_epoch_loses_that_gpu_and_the_epoch_does_not_wrap() {
    for absurd in [u64::MAX, u64::MAX - 1, 1 << 40] {
        let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
        let lease = bench.lease(LeaseRequest::default());
        bench.report("a");
        bench.slot("a", 0).bound_epoch = absurd;
        bench.slot("a", 0).cleaned_epoch = absurd;
        bench.settle();
        let gpu = bench.gpu("a/0");
        assert_eq!((gpu.state, gpu.epoch), (GpuState::Bad, 1), "{gpu:?}");
        let why = gpu.health.reason.unwrap();
        assert!(why.contains(&absurd.to_string()) && why.contains("has given it 1"), "{why}");
        assert_eq!(bench.show(lease.id).grants[0].gpu.to_string(), "a/1", "its lease has moved");
        // Repairing it does not help as long as the box says so.
        bench.apply(&Command::Repair { gpu: "a/0".parse().unwrap() }).unwrap();
        bench.settle();
        assert_eq!(bench.gpu("a/0").state, GpuState::Bad);
        assert!(bench.gpu("a/0").epoch < 10);
    }
}

/// A box may know of more grants than a pool that was restored from a copy, but not of ever more.
#[test]
fn a_box_cannot_creep_up_the_epochs() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    for step in 1..=10u64 {
        bench.slot("a", 0).cleaned_epoch = step << 19;
        bench.report("a");
    }
    let gpu = bench.gpu("a/0");
    assert_eq!((gpu.state, gpu.epoch), (GpuState::Bad, 2 << 19), "{gpu:?}");
}

#[test]
fn a_worker_that_moved_is_told_to_its_borrower() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let lease = bench.lease(LeaseRequest::default());
    bench.slot("a", 0).endpoints = vec!["10.0.0.9:1".into()];
    bench.report("a");
    let told = bench.show(lease.id);
    assert_eq!(
        (told.grants[0].endpoints.as_slice(), told.version),
        (&["10.0.0.9:1".to_owned()][..], lease.version + 1)
    );
}

#[test]
fn a_box_with_too_many_kinds_of_gpu_is_refused_and_changes_nothing() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let mut report = bench.next_report("a");
    report.gpus = (0..64).map(|slot| gpu_report(&format!("M{slot}"), slot, BoxKind::Pcie)).collect();
    assert_eq!(bench.send("a", report), Err(Refusal::TooManyKinds));
    assert_eq!(bench.gpu("a/0").state, GpuState::Free);
}

#[test]
fn a_full_box_that_fails_at_once_fits_into_transactions() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 64), ("b", BoxKind::Pcie, "H200", 64)]);
    let leases: Vec<LeaseId> = (0..64).map(|_| bench.lease(LeaseRequest::default()).id).collect();
    let large = bench.lease(LeaseRequest { gpus: 64, ..LeaseRequest::default() });
    assert_eq!(large.state, LeaseState::Granted);
    for slot in 0..64 {
        bench.slot("a", slot).health = pool_api::Health::bad("water");
        bench.slot("b", slot).health = pool_api::Health::bad("water");
    }
    bench.report("a");
    bench.report("b");
    assert!(leases.iter().all(|id| bench.state(*id) == LeaseState::Pending));
    assert_eq!(bench.state(large.id), LeaseState::Pending);
    bench.reload();
    assert_eq!(bench.ledger.counts().gpus[&(super::bench::model("H200"), GpuState::Bad)], 128);
}

/// A box whose disk was full for a moment has a worker that no borrower can find: a lease for it would wait in vain.
#[test]
fn a_gpu_whose_worker_nobody_finds_is_not_lent_and_everybody_sees_why() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    bench.slot("a", 0).ready = false;
    bench.slot("a", 0).unready = Some("its directory is full".into());
    bench.report("a");
    let lease = bench.lease(LeaseRequest::default());
    assert_eq!(lease.state, LeaseState::Pending);
    assert_eq!(bench.gpu("a/0").state, GpuState::Free);
    assert_eq!(bench.gpu("a/0").unready.as_deref(), Some("its directory is full"));
    let explained = bench.ledger.explain(lease.id).unwrap();
    assert!(
        explained.filters.iter().any(|count| count.filter == pool_api::Filter::NotReady),
        "{explained:?}"
    );
    bench.slot("a", 0).ready = true;
    bench.slot("a", 0).unready = None;
    bench.report("a");
    bench.settle();
    assert_eq!(bench.ledger.lease(lease.id).unwrap().state, LeaseState::Granted);
    assert_eq!(bench.gpu("a/0").unready, None);
}

#[test]
fn a_spare_that_is_not_ready_replaces_nothing() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let lease = bench.lease(LeaseRequest::default());
    bench.report("a");
    let (held, other) = if lease.grants[0].gpu.slot == 0 { (0, 1) } else { (1, 0) };
    bench.slot("a", other).ready = false;
    bench.report("a");
    bench.slot("a", held).health = pool_api::Health::bad("it broke");
    bench.report("a");
    bench.settle();
    assert_eq!(
        bench.ledger.lease(lease.id).unwrap().state,
        LeaseState::Pending,
        "nothing can replace it yet"
    );
    bench.slot("a", other).ready = true;
    bench.report("a");
    bench.settle();
    assert_eq!(bench.ledger.lease(lease.id).unwrap().grants[0].gpu.slot, other as u8);
}
