//! A pool that goes on from a backup that is older than what it had granted.

use super::bench::{Bench, gpu_report};
use super::*;
use pool_api::Want;

const HOUR_MS: u64 = 3_600_000;

fn hour() -> LeaseRequest {
    LeaseRequest { ttl_ms: HOUR_MS, ..LeaseRequest::default() }
}

type Backup = BTreeMap<String, Vec<u8>>;

/// Puts an older state in place of the newest one, as `dxpu manager restore` does, and lets a leader begin.
fn restore(bench: &mut Bench, backup: Backup) -> Restored {
    let moments = Moments { backup_ms: 1, revision: 7, now_ms: bench.now_ms };
    let restored = restored(&backup, moments).unwrap();
    bench.store = backup;
    bench.store.insert(RESTORED_KEY.to_owned(), restored.record.clone());
    bench.reload();
    restored
}

/// A lease token that was signed after the backup and not shown yet opens a box with its epoch. No later grant may have it.
#[test]
fn an_epoch_that_was_given_after_the_backup_is_never_given_again() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    bench.settle();
    let backup = bench.store.clone();
    let forgotten = bench.lease(hour());
    let epoch = forgotten.grants[0].epoch;
    // The box has not seen the token: what it reports is as before.
    let restored = restore(&mut bench, backup.clone());
    let report = bench.next_report("a");
    bench.send("a", report).unwrap();
    let new = bench.lease(hour());
    assert_eq!(new.state, LeaseState::Granted);
    assert!(new.grants[0].epoch > restored.epoch_floor && restored.epoch_floor > epoch);

    // The same backup once more, a second later: what the first restore has granted is forgotten too.
    bench.now_ms += 1_000;
    let again = restore(&mut bench, backup);
    let report = bench.next_report("a");
    bench.send("a", report).unwrap();
    let newest = bench.lease(hour());
    assert_eq!(newest.state, LeaseState::Granted);
    assert!(newest.grants[0].epoch > new.grants[0].epoch, "{again:?}");
}

#[test]
fn a_lease_that_the_backup_knows_and_its_box_still_serves_goes_on() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let held = bench.lease(hour());
    bench.settle();
    let backup = bench.store.clone();
    bench.pass(10_000);
    let restored = restore(&mut bench, backup);
    assert_eq!((restored.boxes, restored.gpus, restored.leases), (1, 2, 1));
    let orders = bench.report("a");
    bench.settle();
    assert_eq!(bench.show(held.id).grants, held.grants);
    let served = orders.slots.iter().any(|order| {
        matches!(order.want, Want::Serve { lease, epoch, .. } if lease == held.id && epoch == held.grants[0].epoch)
    });
    assert!(served, "{orders:?}");
    // Its next GPU has an epoch that was never given.
    bench.release(held.id);
    bench.settle();
    let next = bench.lease(hour());
    assert!(next.grants[0].epoch > restored.epoch_floor);
}

/// The box has another lease inside by now, which the backup does not know.
#[test]
fn a_lease_that_came_after_the_backup_is_ended_before_the_gpu_is_lent_again() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let old = bench.lease(LeaseRequest { ttl_ms: 30_000, ..LeaseRequest::default() });
    bench.settle();
    let backup = bench.store.clone();
    bench.release(old.id);
    bench.settle();
    let unknown = bench.lease(hour());
    bench.settle();
    let inside = unknown.grants[0].epoch;
    assert!(inside > old.grants[0].epoch);

    restore(&mut bench, backup);
    let orders = bench.report("a");
    assert_eq!(orders.slots[0].want, Want::Clean { epoch: inside });
    assert_eq!(bench.ledger.lease(unknown.id), None);
    bench.settle();
    // The old lease gets the GPU once more, and no keeper renews it: it ends, and the next one is served.
    let next = bench.lease(hour());
    bench.pass(120_000);
    assert_eq!(bench.state(old.id), LeaseState::Ended);
    assert_eq!(bench.state(next.id), LeaseState::Granted);
}

#[test]
fn a_gpu_that_the_backup_does_not_know_is_lent_above_the_floor_too() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    bench.settle();
    let backup = bench.store.clone();
    bench.add_slot("a", gpu_report("B200", 1, BoxKind::Pcie));
    bench.settle();
    let request = LeaseRequest { model: Some(bench::model("B200")), ..hour() };
    let forgotten = bench.lease(request.clone());
    let restored = restore(&mut bench, backup);
    let report = bench.next_report("a");
    bench.send("a", report).unwrap();
    let new = bench.lease(request);
    assert!(new.grants[0].epoch > restored.epoch_floor.max(forgotten.grants[0].epoch));
}

/// A box from before the second restore speaks of epochs of the first one. They are far ahead, and no lie.
#[test]
fn epochs_of_an_earlier_restore_are_believed() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    bench.settle();
    let backup = bench.store.clone();
    restore(&mut bench, backup.clone());
    bench.settle();
    let first = bench.lease(hour());
    bench.settle();
    bench.now_ms += 5_000;
    restore(&mut bench, backup);
    bench.settle();
    assert_eq!(bench.gpu("a/0").state, GpuState::Free, "{:?}", bench.gpu("a/0").health);
    let second = bench.lease(hour());
    assert!(second.grants[0].epoch > first.grants[0].epoch);
}

#[test]
fn orders_after_a_restore_count_as_later_than_those_of_before() {
    let bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let mut store = bench.store.clone();
    let moments = Moments { backup_ms: 1, revision: 1_000_000, now_ms: 2 };
    store.insert(RESTORED_KEY.to_owned(), restored(&store, moments).unwrap().record);
    let first = Ledger::load(&store, Settings::default(), 1).unwrap().tenure_base();
    assert!(first > 1_000_000);
    store.insert(RESTORED_KEY.to_owned(), restored(&store, moments).unwrap().record);
    assert!(Ledger::load(&store, Settings::default(), 1).unwrap().tenure_base() > first + 1_000_000);
}
