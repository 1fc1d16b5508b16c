//! Guard memory: leases that survive are charged for it, and placed only where it is.

use super::super::guarding::NEAR_ITS_IMAGE_MS;
use super::bench::{Bench, name};
use super::*;
use pool_api::{Filter, GuardReport, GuardedLease, Name, Share, Survive};

/// The memory of a GPU of the bench.
const GPU: u64 = 140 << 30;

fn surviving() -> LeaseRequest {
    LeaseRequest { survive: Survive::Gpu, ttl_ms: 86_400_000, ..LeaseRequest::default() }
}

fn mortal() -> LeaseRequest {
    LeaseRequest { ttl_ms: 86_400_000, ..LeaseRequest::default() }
}

/// Boxes of three GPUs with so much guard memory each.
fn guarded(boxes: &[(&str, u64)]) -> Bench {
    let kinds: Vec<_> = boxes.iter().map(|(name, _)| (*name, BoxKind::Pcie, "H200", 3)).collect();
    let mut bench = Bench::with_boxes(&kinds);
    for (name, bytes) in boxes {
        set(&mut bench, name, *bytes, &[]);
    }
    bench
}

/// A box says what its guardian may take, and what it keeps.
fn set(bench: &mut Bench, box_name: &str, bytes: u64, leases: &[(LeaseId, u64)]) {
    let leases: Vec<_> =
        leases.iter().map(|(lease, bytes)| GuardedLease { lease: *lease, bytes: *bytes }).collect();
    let used_bytes = leases.iter().map(|guarded| guarded.bytes).sum();
    let entry = bench.boxes.get_mut(&name(box_name)).unwrap();
    entry.guard = Some(GuardReport { bytes, used_bytes, leases });
    bench.report(box_name);
}

fn state(bench: &Bench, lease: &Lease) -> LeaseState {
    bench.ledger.lease(lease.id).unwrap().state
}

#[test]
fn leases_that_survive_wait_for_guard_memory_and_others_do_not() {
    let mut bench = guarded(&[("a", GPU + (20 << 30))]);
    let first = bench.lease(surviving());
    let second = bench.lease(surviving());
    let third = bench.lease(mortal());
    let states = [&first, &second, &third].map(|lease| state(&bench, lease));
    assert_eq!(states, [LeaseState::Granted, LeaseState::Pending, LeaseState::Granted]);
    let why = bench.ledger.explain(second.id).unwrap();
    assert!(why.filters.iter().any(|count| count.filter == Filter::Guard && count.gpus == 1), "{why:?}");
    let words = why.reasons.join("\n");
    assert!(words.contains("without guard memory for it: a has 20 GiB of 160 GiB left"), "{words}");
    assert!(words.contains("it may need 140 GiB"), "{words}");
    assert!(why.remedies.join("\n").contains("--guard-memory"), "{why:?}");
    // The operator gives the box more.
    set(&mut bench, "a", 2 * GPU, &[]);
    assert_eq!(state(&bench, &second), LeaseState::Granted);
}

#[test]
fn the_end_of_a_lease_gives_its_guard_memory_back() {
    let mut bench = guarded(&[("a", GPU)]);
    let first = bench.lease(surviving());
    let second = bench.lease(surviving());
    assert_eq!(state(&bench, &second), LeaseState::Pending);
    bench.apply(&Command::Release { lease: first.id, reason: "released".into() }).unwrap();
    bench.settle();
    assert_eq!(state(&bench, &second), LeaseState::Granted);
}

#[test]
fn images_of_leases_without_gpus_here_are_charged_and_shares_for_their_part() {
    let mut bench = guarded(&[("a", GPU)]);
    // A suspended program has left half of it.
    set(&mut bench, "a", GPU, &[(LeaseId(0x77), GPU / 2)]);
    let whole = bench.lease(surviving());
    assert_eq!(state(&bench, &whole), LeaseState::Pending);
    let share = Some(Share { milli: 250, memory_bytes: GPU / 4 });
    let part = bench.lease(LeaseRequest { share, ..surviving() });
    assert_eq!(state(&bench, &part), LeaseState::Granted);
}

#[test]
fn a_box_with_less_than_a_gpu_takes_one_and_one_without_a_guardian_takes_all() {
    let mut bench = guarded(&[("a", GPU / 4)]);
    let leases = [bench.lease(surviving()), bench.lease(surviving())];
    assert_eq!(leases.map(|lease| state(&bench, &lease)), [LeaseState::Granted, LeaseState::Pending]);
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let leases = [bench.lease(surviving()), bench.lease(surviving())];
    assert_eq!(leases.map(|lease| state(&bench, &lease)), [LeaseState::Granted; 2]);
}

#[test]
fn a_lease_moves_only_where_its_images_fit_and_after_a_loss_anywhere() {
    let mut bench = guarded(&[("a", 2 * GPU), ("b", GPU)]);
    let first = bench.lease(surviving());
    let second = bench.lease(surviving());
    let third = bench.lease(surviving());
    bench.settle();
    assert_eq!(state(&bench, &third), LeaseState::Granted);
    let all =
        [&first, &second, &third].map(|lease| bench.ledger.lease(lease.id).unwrap().grants[0].gpu.clone());
    let there = all.iter().filter(|gpu| gpu.box_name == name("b")).count();
    assert_eq!(there, 1, "two fit into a, one into b: {all:?}");
    let at_a =
        [&first, &second, &third].into_iter().zip(&all).find(|(_, gpu)| gpu.box_name == name("a")).unwrap().0;
    let request = Command::Move { lease: at_a.id, gpu: None, to_box: Some(name("b")), by: "ann".into() };
    let refused = bench.apply(&request).unwrap_err();
    assert!(refused.to_string().contains("guard memory"), "{refused}");
    // A GPU that is lost is replaced, guard memory or not.
    let grant = bench.ledger.lease(at_a.id).unwrap().grants[0].clone();
    for slot in &mut bench.boxes.get_mut(&name("a")).unwrap().slots {
        slot.report.health = pool_api::Health { ok: false, reason: Some("broken".into()) };
    }
    let why = "the link broke".into();
    bench.apply(&Command::Lost { lease: at_a.id, gpu: grant.gpu, epoch: grant.epoch, why }).unwrap();
    bench.report_all();
    assert_eq!(bench.ledger.lease(at_a.id).unwrap().grants[0].gpu.box_name, name("b"));
}

#[test]
fn a_resumed_lease_goes_where_its_image_is() {
    for at in ["a", "b"] {
        let mut bench = guarded(&[("a", 3 * GPU), ("b", 3 * GPU)]);
        let lease = bench.lease(surviving());
        let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
        bench.apply(&Command::Park { lease: lease.id, gpu, epoch, image_bytes: 7 }).unwrap();
        bench.settle();
        set(&mut bench, at, 3 * GPU, &[(lease.id, 7)]);
        bench.apply(&Command::Resume { lease: lease.id }).unwrap();
        bench.settle();
        let back = bench.show(lease.id);
        assert_eq!(back.grants[0].gpu.box_name, name(at), "{back:?}");
    }
}

/// Suspends a lease whose GPU has no worker for a while, and resumes it.
fn resumed_beside_a_worker_that_starts() -> (Bench, Lease, Name) {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1), ("b", BoxKind::Pcie, "H200", 1)]);
    ["a", "b"].iter().for_each(|at| set(&mut bench, at, 3 * GPU, &[]));
    let lease = bench.lease(surviving());
    let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
    let home = gpu.box_name.clone();
    bench.apply(&Command::Park { lease: lease.id, gpu, epoch, image_bytes: 7 }).unwrap();
    bench.settle();
    set_ready(&mut bench, &home, false);
    set(&mut bench, home.as_str(), 3 * GPU, &[(lease.id, 7)]);
    bench.apply(&Command::Resume { lease: lease.id }).unwrap();
    bench.tick();
    assert_eq!(state(&bench, &lease), LeaseState::Pending, "it waits for the GPU next to its image");
    (bench, lease, home)
}

fn set_ready(bench: &mut Bench, at: &Name, is_ready: bool) {
    let slot = bench.slot(at.as_str(), 0);
    slot.ready = is_ready;
    slot.unready = (!is_ready).then(|| "its worker starts".into());
    bench.report(at.as_str());
}

#[test]
fn a_resumed_lease_waits_a_moment_for_the_gpu_next_to_its_image() {
    let (mut bench, lease, home) = resumed_beside_a_worker_that_starts();
    bench.pass(1_000);
    assert_eq!(state(&bench, &lease), LeaseState::Pending);
    set_ready(&mut bench, &home, true);
    bench.settle();
    let back = bench.show(lease.id);
    assert_eq!((back.state, &back.grants[0].gpu.box_name), (LeaseState::Granted, &home));
}

#[test]
fn a_resumed_lease_waits_no_longer_than_its_image_would_travel() {
    let (mut bench, lease, home) = resumed_beside_a_worker_that_starts();
    bench.pass(NEAR_ITS_IMAGE_MS);
    let back = bench.show(lease.id);
    assert_eq!(back.state, LeaseState::Granted);
    assert_ne!(back.grants[0].gpu.box_name, home);
}

#[test]
fn a_resumed_lease_whose_image_s_box_is_full_goes_elsewhere() {
    let mut bench = guarded(&[("a", 9 * GPU), ("b", 9 * GPU)]);
    let lease = bench.lease(surviving());
    let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
    let home = gpu.box_name.clone();
    bench.apply(&Command::Park { lease: lease.id, gpu, epoch, image_bytes: 7 }).unwrap();
    bench.settle();
    set(&mut bench, home.as_str(), 9 * GPU, &[(lease.id, 7)]);
    // Everything is lent; then the other box has its GPUs back.
    let others: Vec<Lease> = (0..6).map(|_| bench.lease(mortal())).collect();
    for other in others.iter().filter(|other| other.grants[0].gpu.box_name != home) {
        bench.release(other.id);
    }
    bench.settle();
    bench.apply(&Command::Resume { lease: lease.id }).unwrap();
    bench.settle();
    let back = bench.show(lease.id);
    assert_eq!(back.state, LeaseState::Granted);
    assert_ne!(back.grants[0].gpu.box_name, home);
}
