//! Leases that name their GPUs.

use super::bench::{Bench, name};
use super::*;
use pool_api::{BurnIn, ErrorCode, GpuId, Survive};

fn naming(gpus: &[&str]) -> LeaseRequest {
    let gpu_ids: Vec<GpuId> = gpus.iter().map(|id| id.parse().unwrap()).collect();
    LeaseRequest { gpus: gpu_ids.len() as u32, gpu_ids, ..LeaseRequest::default() }
}

fn has(lease: &Lease) -> Vec<String> {
    let mut gpus: Vec<String> = lease.grants.iter().map(|grant| grant.gpu.to_string()).collect();
    gpus.sort();
    gpus
}

fn pool() -> Bench {
    Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4), ("b", BoxKind::Pcie, "L40S", 2)])
}

#[test]
fn a_lease_gets_the_gpus_that_it_names_or_waits_for_them() {
    let mut bench = pool();
    let first = bench.lease(naming(&["a/3", "a/1"]));
    assert_eq!((first.state, has(&first)), (LeaseState::Granted, vec!["a/1".into(), "a/3".into()]));
    let second = bench.lease(naming(&["a/2", "a/3"]));
    assert_eq!(second.state, LeaseState::Pending);
    let said = bench.ledger.explain(second.id).unwrap();
    assert_eq!(said.reasons, ["a/3, which it names, is leased"]);
    assert!(said.remedies[0].contains("a/2, a/3"), "{said:?}");
    let other = bench.lease(LeaseRequest::default());
    assert_eq!(other.state, LeaseState::Granted, "the one that waits keeps others from nothing");
    bench.release(other.id);
    bench.release(first.id);
    bench.settle();
    assert_eq!(has(&bench.show(second.id)), ["a/2", "a/3"]);
}

#[test]
fn names_that_can_never_be_served_are_refused_in_words() {
    let mut bench = pool();
    let mut refused = |request: LeaseRequest| {
        let refusal = bench.try_lease(request).unwrap_err().to_answer().error;
        assert_eq!(refusal.code, ErrorCode::Conflict);
        assert!(!refusal.hint.is_empty());
        refusal.message
    };
    assert_eq!(refused(naming(&["c/0"])), "c/0 is asked for by name, but its box is not in this pool");
    assert_eq!(refused(naming(&["a/9"])), "a/9 is asked for by name, but its box has no such slot");
    assert!(refused(naming(&["a/0", "b/0"])).contains("all GPUs of a lease are of one model"));
    let model = LeaseRequest { model: Some(bench::model("H200")), ..naming(&["b/0"]) };
    assert!(refused(model).contains("another model"));
    let memory = LeaseRequest { memory_bytes: Some(200 << 30), ..naming(&["b/0"]) };
    assert!(refused(memory).contains("less memory"));
    let nvlink = LeaseRequest { topology: Topology::Nvlink, ..naming(&["b/0"]) };
    assert!(refused(nvlink).contains("another kind"));
}

#[test]
fn a_lease_that_names_its_gpu_waits_for_it_after_a_loss_unless_its_program_survives() {
    let mut bench = pool();
    let bound = bench.lease(naming(&["a/0"]));
    let survivor = bench.lease(LeaseRequest { survive: Survive::Gpu, ..naming(&["a/1"]) });
    for gpu in ["a/0", "a/1"] {
        bench.apply(&Command::Break { gpu: gpu.parse().unwrap(), reason: "demo".into() }).unwrap();
    }
    bench.settle();
    assert_eq!(bench.state(bound.id), LeaseState::Pending, "a/2 is free, and not what it names");
    let moved = bench.show(survivor.id);
    assert_eq!(moved.state, LeaseState::Granted);
    assert_ne!(has(&moved), ["a/1"]);
    bench.apply(&Command::Repair { gpu: "a/0".parse().unwrap() }).unwrap();
    bench.settle();
    let epoch = bench.gpu("a/0").epoch;
    bench.slot("a", 0).burn_in = Some(BurnIn { epoch, passed: true, detail: String::new() });
    bench.settle();
    let again = bench.show(bound.id);
    assert_eq!((again.state, has(&again)), (LeaseState::Granted, vec!["a/0".to_owned()]));
}

#[test]
fn a_drained_gpu_keeps_a_lease_that_names_it() {
    let mut bench = pool();
    let lease = bench.lease(naming(&["a/0"]));
    let drain = Command::DrainBox { box_name: name("a"), reason: "fans".into(), by: "o".into() };
    bench.apply(&drain).unwrap();
    bench.settle();
    assert_eq!(has(&bench.show(lease.id)), ["a/0"]);
}
