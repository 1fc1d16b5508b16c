//! Cordon, removal, capacity and accounting.

use super::bench::{Bench, model, name, tenant};
use super::*;
use pool_api::{Quota, TenantRequest};

fn cordon(bench: &mut Bench, box_name: &str) {
    let (reason, by) = ("fan".to_owned(), "ann".to_owned());
    bench.apply(&Command::CordonBox { box_name: name(box_name), reason, by }).unwrap();
}

#[test]
fn a_cordon_moves_nothing_and_lets_nothing_new_in() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2), ("b", BoxKind::Pcie, "H200", 2)]);
    let held = bench.lease(LeaseRequest { ttl_ms: 3_600_000, ..LeaseRequest::default() });
    let owner = held.grants[0].gpu.box_name.to_string();
    cordon(&mut bench, &owner);
    for _ in 0..3 {
        bench.reload();
        bench.settle();
    }
    assert_eq!(bench.show(held.id).grants, held.grants, "also after a change of leader");
    for _ in 0..2 {
        let new = bench.lease(LeaseRequest::default());
        assert_ne!(new.grants[0].gpu.box_name.as_str(), owner);
    }
    let waits = bench.lease(LeaseRequest::default());
    assert_eq!(waits.state, LeaseState::Pending);
    // A drain moves what a cordon has left there; nothing else is free, so it waits where it is.
    let drain = Command::DrainBox { box_name: name(&owner), reason: "now".into(), by: "ann".into() };
    bench.apply(&drain).unwrap();
    assert!(bench.ledger.gpu_box(&name(&owner)).unwrap().drain.unwrap().drain, "the cordon is a drain now");
    bench.apply(&Command::UndrainBox { box_name: name(&owner) }).unwrap();
    assert_eq!(bench.state(waits.id), LeaseState::Granted);
}

#[test]
fn a_box_is_removed_when_it_is_dead_and_empty_and_may_come_back() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let remove = Command::RemoveBox { box_name: name("a") };
    let refused = bench.apply(&remove).unwrap_err().to_string();
    assert_eq!(refused, "box a cannot be removed: it reports to the manager");
    bench.pass_silently(60_000);
    bench.apply(&remove).unwrap();
    assert!(
        !bench.store.keys().any(|key| key.starts_with("box/") || key.starts_with("gpu/")),
        "{:?}",
        bench.store.keys()
    );
    assert_eq!(bench.apply(&remove), Err(Refusal::NoBox { box_name: name("a") }));
    assert_eq!(bench.ledger.counts().gpus.len(), 0);
    bench.reload();
    bench.report("a");
    bench.settle();
    assert_eq!(bench.lease(LeaseRequest { gpus: 2, ..LeaseRequest::default() }).state, LeaseState::Granted);
}

#[test]
fn a_machine_that_takes_the_name_of_a_removed_box_gets_none_of_its_epochs() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let mut last = 0;
    for _ in 0..3 {
        let lease = bench.lease(LeaseRequest::default());
        last = lease.grants[0].epoch;
        bench.release(lease.id);
        bench.settle();
    }
    bench.pass_silently(60_000);
    bench.apply(&Command::RemoveBox { box_name: name("a") }).unwrap();
    bench.forget_epochs("a");
    bench.reload();
    bench.report("a");
    bench.settle();
    let new = bench.lease(LeaseRequest::default());
    assert!(new.grants[0].epoch > last, "{} after {last}", new.grants[0].epoch);
}

#[test]
fn a_tenant_sees_what_there_is_and_what_it_may_have() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 4)]);
    let quotas = [(model("H200"), Quota { guaranteed: 1, limit: Some(2) })].into();
    let request = TenantRequest { quotas, ..TenantRequest::default() };
    bench.apply(&Command::SetTenant { name: tenant(), request }).unwrap();
    bench.lease(LeaseRequest::default());
    let own = &bench.ledger.capacity(Some(&tenant()))[0];
    assert_eq!((own.working, own.free, own.spares), (4, 3, 0));
    assert_eq!((own.used_milli, own.guaranteed, own.limit, own.available), (1000, 1, Some(2), 1));
    let any = &bench.ledger.capacity(None)[0];
    assert_eq!((any.used_milli, any.limit, any.available), (0, None, 3));
    bench.pass_silently(60_000);
    let own = &bench.ledger.capacity(Some(&tenant()))[0];
    assert_eq!((own.working, own.free), (0, 0), "its box is dead");
}

#[test]
fn gpu_time_is_counted_once_whoever_leads() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 3)]);
    let lease = bench.lease(LeaseRequest { gpus: 2, ttl_ms: 3_600_000, ..LeaseRequest::default() });
    bench.pass(10_000);
    let used = |bench: &Bench| {
        let all = bench.ledger.usage(None);
        let sum = |times: &BTreeMap<Model, u64>| times.values().sum::<u64>();
        all.first()
            .map_or((0, 0, 0), |one| (one.leases_ended, sum(&one.ended_gpu_ms), sum(&one.running_gpu_ms)))
    };
    assert_eq!(used(&bench), (0, 0, 20_000), "two GPUs for ten seconds, and going on");
    bench.reload();
    bench.settle();
    bench.release(lease.id);
    let (count, ended, running) = used(&bench);
    assert_eq!((count, running), (1, 0));
    assert!(ended >= 20_000, "{ended}");
    bench.settle();
    bench.reload();
    assert_eq!(used(&bench), (1, ended, 0), "the next leader counts the same");
    bench.settle();
    let share = pool_api::Share { milli: 250, memory_bytes: 1 << 30 };
    let part = bench.lease(LeaseRequest { share: Some(share), ..LeaseRequest::default() });
    bench.pass(8_000);
    assert_eq!(used(&bench).2, 2_000, "a quarter of a GPU");
    bench.release(part.id);
}
