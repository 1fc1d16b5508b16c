//! The ledger's rules, one at a time.

mod bench;
mod failures;
mod given;
mod guarantees;
mod guarding;
mod guests;
mod hosts;
mod leaving_guests;
mod life;
mod operators_day;
mod parts;
mod possible;
mod queueing;
mod reports;
mod restored;
mod seating;
mod seating_round;
mod starving;
mod survival;
mod times;

use super::*;
use bench::Bench;
use pool_api::{BoxKind, GpuState, LeaseRequest, LeaseState, Topology};

#[test]
fn a_lease_is_granted_at_once_and_its_gpu_comes_back_when_it_is_clean() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let lease = bench.lease(LeaseRequest::default());
    assert_eq!(lease.state, LeaseState::Granted);
    let grant = &lease.grants[0];
    assert_eq!((grant.gpu.to_string().as_str(), grant.epoch), ("a/0", 1));
    assert_eq!(bench.gpu("a/0").state, GpuState::Leased);

    let over = bench.release(lease.id);
    assert_eq!(over.state, LeaseState::Releasing);
    assert_eq!(bench.gpu("a/0").state, GpuState::Cleaning);
    bench.report("a");
    assert_eq!(bench.gpu("a/0").state, GpuState::Cleaning, "the box has only now been told");
    bench.report("a");
    assert_eq!((bench.gpu("a/0").state, bench.gpu("a/0").cleaned_epoch), (GpuState::Free, 1));
    assert_eq!(bench.show(lease.id).state, LeaseState::Ended);
}

#[test]
fn the_same_key_gives_the_same_lease_and_never_another_request() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4)]);
    let first = bench.lease_with_key("k", LeaseRequest::default()).unwrap();
    let second = bench.lease_with_key("k", LeaseRequest::default()).unwrap();
    assert_eq!((first.id, &first.grants), (second.id, &second.grants));
    let other = LeaseRequest { gpus: 2, ..LeaseRequest::default() };
    assert_eq!(bench.lease_with_key("k", other), Err(Refusal::KeyUsed));
    bench.reload();
    assert_eq!(bench.lease_with_key("k", LeaseRequest::default()).unwrap().id, first.id);
}

#[test]
fn several_gpus_come_together_or_not_at_all() {
    let mut bench =
        Bench::with_boxes(&[("a", BoxKind::Nvlink, "H200", 4), ("b", BoxKind::Nvlink, "H200", 4)]);
    let six = |topology| LeaseRequest { gpus: 6, topology, ..LeaseRequest::default() };
    let spread = bench.lease(six(Topology::Any));
    assert_eq!(spread.grants.len(), 6);
    bench.release(spread.id);
    bench.settle();
    let together = bench.try_lease(six(Topology::SameBox)).unwrap_err();
    assert_eq!(together.to_string(), "6 GPUs are asked for, and one box of this pool has 4 at most");
    let four = bench.lease(LeaseRequest { gpus: 4, topology: Topology::Nvlink, ..LeaseRequest::default() });
    let boxes: BTreeSet<&Name> = four.grants.iter().map(|grant| &grant.gpu.box_name).collect();
    assert_eq!((four.grants.len(), boxes.len()), (4, 1));
}

#[test]
fn single_gpus_stay_off_nvlink_boxes_while_a_pcie_box_can_serve() {
    let mut bench = Bench::with_boxes(&[("n", BoxKind::Nvlink, "H200", 2), ("p", BoxKind::Pcie, "H200", 2)]);
    let boxes: Vec<String> =
        (0..3).map(|_| bench.lease(LeaseRequest::default()).grants[0].gpu.box_name.to_string()).collect();
    assert_eq!(boxes, ["p", "p", "n"]);
}

#[test]
fn a_lease_that_is_not_renewed_ends_and_one_that_is_renewed_does_not() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let (kept, lost) = (bench.lease(LeaseRequest::default()), bench.lease(LeaseRequest::default()));
    for _ in 0..4 {
        bench.pass(10_000);
        bench.renew(kept.id).unwrap();
    }
    bench.pass(1);
    assert_eq!(bench.show(kept.id).state, LeaseState::Granted);
    let over = bench.show(lost.id);
    assert_eq!(over.ended.unwrap().reason, "expired");
    assert!(matches!(bench.renew(lost.id), Err(Refusal::LeaseOver { .. })));
}

#[test]
fn renewals_are_written_rarely_and_a_new_leader_expires_nothing_at_once() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let short = bench.lease(LeaseRequest::default());
    let long = bench.lease(LeaseRequest { ttl_ms: 7_200_000, ..LeaseRequest::default() });
    let before = bench.writes;
    bench.pass(10_000);
    bench.renew(short.id).unwrap();
    bench.renew(long.id).unwrap();
    assert_eq!(bench.writes, before, "nothing of this need be on disk");
    // Hours later the long one has been renewed all the time; it must outlive the leader.
    for _ in 0..4 {
        bench.pass_with_reports(40 * 60_000, 1_000, |bench| {
            bench.renew(short.id).unwrap();
        });
        bench.renew(long.id).unwrap();
    }
    bench.reload();
    let rest = |bench: &Bench, id| bench.show(id).expires_ms - bench.now_ms;
    assert!(rest(&bench, long.id) == 7_200_000, "{}", rest(&bench, long.id));
    assert_eq!(rest(&bench, short.id), 30_000);
}

#[test]
fn a_share_is_charged_as_what_it_is() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let share = pool_api::Share { milli: 250, memory_bytes: 1 << 30 };
    let lease = bench.lease(LeaseRequest { share: Some(share), ..LeaseRequest::default() });
    let holder = &bench.gpu("a/0").holders[0];
    assert_eq!((holder.lease, holder.share_milli, holder.memory_bytes), (lease.id, 250, 1 << 30));
    let used = bench.ledger.tenant_status(&bench::tenant()).unwrap().used;
    assert_eq!(used.values().next().unwrap().milli, 250);
    let too_large = pool_api::Share { milli: 250, memory_bytes: 1 << 50 };
    let refused = bench.try_lease(LeaseRequest { share: Some(too_large), ..LeaseRequest::default() });
    assert!(matches!(refused, Err(Refusal::Impossible(Impossible::Memory { .. }))), "{refused:?}");
    bench.release(lease.id);
    assert!(bench.ledger.tenant_status(&bench::tenant()).unwrap().used.is_empty());
}

#[test]
fn another_leader_is_news_and_the_same_one_again_is_not() {
    let mut bench = Bench::with_boxes(&[]);
    for manager in ["m1", "m1", "m2", "m2", "m1"] {
        bench.reload();
        bench.apply(&Command::Lead { manager: manager.to_owned() }).unwrap();
    }
    bench.reload();
    let told: Vec<&str> = bench.ledger.events(0).map(|event| event.message.as_str()).collect();
    assert_eq!(told, ["m1 leads", "m2 leads", "m1 leads"]);
}

#[test]
fn old_leases_keys_and_events_are_forgotten() {
    let settings =
        Settings { ended_keep_max: 3, keys_keep_max: 5, events_keep_max: 4, ..Settings::default() };
    let mut bench = Bench::with_settings(settings, &[("a", BoxKind::Pcie, "H200", 1)]);
    for number in 0..20 {
        let lease = bench.lease_with_key(&format!("k{number}"), LeaseRequest::default()).unwrap();
        assert_eq!(lease.state, LeaseState::Granted, "{number}");
        bench.release(lease.id);
        bench.settle();
    }
    let stored = |prefix: &str| bench.store.keys().filter(|key| key.starts_with(prefix)).count();
    assert_eq!((stored("lease/"), stored("idem/"), stored("event/")), (3, 5, 4));
}
