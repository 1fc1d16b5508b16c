//! Parts of GPUs: which leases get them, what is said to others, and how they are counted.

use super::bench::{Bench, gpu_report, model, name, tenant};
use super::*;
use pool_api::{Class, Filter, GpuReport, Health, Part, Quota, Share, SpareRequest, Want};

/// The memory of a GPU of the bench.
const GPU: u64 = 140 << 30;

fn share(milli: u32, memory_bytes: u64) -> LeaseRequest {
    let share = Some(Share { milli, memory_bytes });
    LeaseRequest { share, ttl_ms: 86_400_000, ..LeaseRequest::default() }
}

/// A quarter of a GPU.
fn quarter() -> LeaseRequest {
    share(250, GPU / 4)
}

fn part(of: u8, count: u8, k: u8) -> GpuReport {
    let slot = of * count + k;
    GpuReport {
        memory_bytes: GPU / u64::from(count),
        part: Some(Part::new(of, count)),
        uuid: format!("uuid-H200-{of}"),
        ..gpu_report("H200", slot, BoxKind::Pcie)
    }
}

/// Adds a box with so many GPUs, each in so many parts.
fn add_parted(bench: &mut Bench, box_name: &str, gpus: u8, count: u8) {
    for slot in (0..gpus).flat_map(|of| (0..count).map(move |k| (of, k))) {
        bench.add_slot(box_name, part(slot.0, count, slot.1));
    }
    bench.report(box_name);
}

fn parted(gpus: u8, count: u8) -> Bench {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 0)]);
    add_parted(&mut bench, "a", gpus, count);
    bench
}

fn place(bench: &Bench, id: LeaseId) -> String {
    let lease = bench.show(id);
    lease.grants.iter().map(|grant| grant.gpu.to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn leases_with_shares_meet_on_one_gpu_and_the_next_waits_until_a_part_is_clean() {
    let mut bench = parted(1, 4);
    let four: Vec<LeaseId> = (0..4).map(|_| bench.lease(quarter()).id).collect();
    let mut places: Vec<String> = four.iter().map(|id| place(&bench, *id)).collect();
    places.sort();
    assert_eq!(places, ["a/0", "a/1", "a/2", "a/3"]);
    let holder = bench.gpu("a/2").holders[0].clone();
    assert_eq!((holder.share_milli, holder.memory_bytes), (250, GPU / 4));
    let orders = bench.report("a");
    let serves = |want: &Want| matches!(want, Want::Serve { share_milli: 250, memory_bytes, .. } if *memory_bytes == GPU / 4);
    assert!(orders.slots.iter().all(|order| serves(&order.want)), "{orders:?}");

    let fifth = bench.lease(quarter());
    assert_eq!(fifth.state, LeaseState::Pending);
    let why = bench.ledger.explain(fifth.id).unwrap();
    let told = why.reasons.join("\n");
    assert!(told.contains("0 of 1 wanted parts of GPUs with at least 250/1000 and 35 GiB"), "{told}");
    assert!(told.contains("others: 4 leased"), "{told}");
    bench.release(four[1]);
    assert_eq!(bench.state(fifth.id), LeaseState::Pending, "not before its box has cleaned");
    bench.settle();
    assert_eq!(place(&bench, fifth.id), place_of(&places, &bench, &four));
    bench.reload();
    bench.settle();
    assert_eq!(bench.show(fifth.id).version, 2, "nothing happened to it");
}

/// The place of those that none of the first leases has any more.
fn place_of(places: &[String], bench: &Bench, first: &[LeaseId]) -> String {
    let taken: Vec<String> = first.iter().map(|id| place(bench, *id)).collect();
    places.iter().find(|place| !taken.contains(place)).unwrap().clone()
}

#[test]
fn a_lease_gets_the_smallest_part_that_fits_on_the_gpu_with_the_most_free_ones() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 0), ("b", BoxKind::Pcie, "H200", 0)]);
    add_parted(&mut bench, "a", 2, 4);
    add_parted(&mut bench, "b", 1, 2);
    let places: Vec<String> = (0..4)
        .map(|_| {
            let id = bench.lease(share(100, 1 << 30)).id;
            place(&bench, id)
        })
        .collect();
    assert_eq!(places, ["a/0", "a/4", "a/1", "a/5"], "spread over the GPUs, in quarters");
    let half = bench.lease(share(251, 1 << 30)).id;
    assert_eq!(place(&bench, half), "b/0");
    let by_memory = bench.lease(share(100, GPU / 4 + 1)).id;
    assert_eq!(place(&bench, by_memory), "b/1");
}

#[test]
fn leases_without_a_share_and_of_other_classes_never_get_a_part() {
    let mut bench = parted(1, 2);
    for class in [Class::Dedicated, Class::Online] {
        let refusal =
            bench.try_lease(LeaseRequest { class, ..LeaseRequest::default() }).unwrap_err().to_string();
        assert!(
            refusal.contains("in parts alone, and the largest part has 500/1000 and 70 GiB"),
            "{refusal}"
        );
        assert!(refusal.contains("a whole GPU is asked for"), "{refusal}");
    }
    let online = LeaseRequest { class: Class::Online, ..share(100, 1) };
    assert!(bench.try_lease(online).unwrap_err().to_string().contains("in parts alone"));
    let larger = bench.try_lease(share(501, 1 << 30)).unwrap_err().to_string();
    assert!(
        larger.contains("the largest part has 500/1000 and 70 GiB; 501/1000 and 1 GiB is asked for"),
        "{larger}"
    );
    let offline = LeaseRequest { class: Class::Offline, ..LeaseRequest::default() };
    assert!(bench.try_lease(offline).unwrap_err().to_string().contains("seat for guests"));
    let named = LeaseRequest { gpu_ids: vec!["a/0".parse().unwrap()], ..LeaseRequest::default() };
    assert!(
        bench.try_lease(named.clone()).unwrap_err().to_string().contains("a part of a GPU is for leases")
    );
    let named = bench.lease(LeaseRequest { gpu_ids: named.gpu_ids, ..share(500, 1 << 30) });
    assert_eq!(place(&bench, named.id), "a/0");
}

#[test]
fn shares_get_parts_where_there_are_any_and_whole_gpus_only_where_there_are_none() {
    let mut bench = Bench::with_boxes(&[("w", BoxKind::Pcie, "H200", 1), ("a", BoxKind::Pcie, "H200", 0)]);
    add_parted(&mut bench, "a", 1, 2);
    let shares: Vec<LeaseId> = (0..3).map(|_| bench.lease(share(500, 1 << 30)).id).collect();
    assert_eq!([0, 1].map(|at| place(&bench, shares[at])), ["a/0", "a/1"]);
    assert_eq!(bench.state(shares[2]), LeaseState::Pending, "a whole GPU is free, for those that need it");
    let why = bench.ledger.explain(shares[2]).unwrap();
    let told = why.reasons.join("\n");
    assert!(told.contains("whole GPUs that are free are for leases without a share"), "{told}");
    assert!(why.filters.iter().any(|count| count.filter == Filter::Part && count.gpus == 1), "{why:?}");
    let larger = bench.lease(share(600, 1 << 30));
    assert_eq!(place(&bench, larger.id), "w/0", "no part is as large");
    let waits = bench.lease(share(600, 1 << 30));
    let told = bench.ledger.explain(waits.id).unwrap().reasons.join("\n");
    assert!(told.contains("the largest part has 500/1000 and 70 GiB"), "{told}");
    // The parts go: their leases move or wait, and shares get whole GPUs as before.
    bench.release(larger.id);
    bench.release(waits.id);
    bench.settle();
    bench.boxes.get_mut(&name("a")).unwrap().slots.clear();
    bench.settle();
    let on_whole = shares.iter().filter(|id| place(&bench, **id) == "w/0").count();
    assert_eq!(on_whole, 1, "the first of the three has the GPU");
}

#[test]
fn a_gpu_in_parts_counts_once_and_what_is_free_of_it_in_thousandths() {
    let mut bench = parted(2, 4);
    let lease = bench.lease(quarter());
    let capacity = bench.ledger.capacity(Some(&tenant())).remove(0);
    assert_eq!((capacity.working, capacity.free, capacity.available), (2, 0, 0), "none is free as a whole");
    assert_eq!((capacity.parts_milli, capacity.parts_free_milli, capacity.used_milli), (2000, 1750, 250));
    let h200 = model("H200");
    let counts = bench.ledger.counts().gpus;
    assert_eq!(counts, [((h200.clone(), GpuState::Free), 1), ((h200.clone(), GpuState::Leased), 1)].into());
    assert_eq!(bench.ledger.spares()[0].gpus, 2);
    bench.apply(&Command::SetSpares { model: h200.clone(), request: SpareRequest { count: 2 } }).unwrap();
    assert!(bench.ledger.gpus(None).all(|gpu| !gpu.spare), "a part is no spare");
    assert_eq!(bench.state(lease.id), LeaseState::Granted);
    // Quotas count thousandths, as for any share.
    let quotas = [(h200, Quota { guaranteed: 0, limit: Some(1) })].into();
    let request = pool_api::TenantRequest { quotas, ..pool_api::TenantRequest::default() };
    bench.apply(&Command::SetTenant { name: tenant(), request }).unwrap();
    let states: Vec<LeaseState> = (0..4).map(|_| bench.lease(quarter()).state).collect();
    assert_eq!(states.iter().filter(|state| **state == LeaseState::Granted).count(), 3, "{states:?}");
}

#[test]
fn what_is_done_to_one_part_by_hand_is_done_to_its_gpu() {
    let taint = |drain| Command::Taint {
        gpu: "a/1".parse().unwrap(),
        reason: "fan".to_owned(),
        by: "ann".to_owned(),
        drain,
    };
    let mut bench = parted(2, 2);
    let leases: Vec<LeaseId> = (0..2).map(|_| bench.lease(share(500, 1)).id).collect();
    assert_eq!([0, 1].map(|at| place(&bench, leases[at])), ["a/0", "a/2"]);
    bench.apply(&taint(true)).unwrap();
    bench.settle();
    assert_eq!([0, 1].map(|at| place(&bench, leases[at])), ["a/3", "a/2"], "it has left the drained GPU");
    assert!(["a/0", "a/1"].iter().all(|gpu| bench.gpu(gpu).taint.is_some()));
    bench.apply(&Command::Untaint { gpu: "a/0".parse().unwrap() }).unwrap();
    assert!(bench.ledger.gpus(None).all(|gpu| gpu.taint.is_none()));

    bench.apply(&Command::Break { gpu: "a/3".parse().unwrap(), reason: "smoke".to_owned() }).unwrap();
    bench.settle();
    let states = |bench: &Bench| [0, 1, 2, 3].map(|slot| bench.gpu(&format!("a/{slot}")).state);
    let (leased, bad) = (GpuState::Leased, GpuState::Bad);
    assert_eq!(states(&bench), [leased, leased, bad, bad], "both leases moved to the other GPU");
    bench.apply(&Command::Repair { gpu: "a/2".parse().unwrap() }).unwrap();
    assert_eq!(states(&bench), [leased, leased, GpuState::BurnIn, GpuState::BurnIn]);
    let refused = bench.apply(&Command::Repair { gpu: "a/0".parse().unwrap() });
    assert_eq!(refused, Err(Refusal::NotBad { gpu: "a/0".parse().unwrap() }));
}

/// A part whose worker cannot be kept alive is bad alone; a GPU that is bad is so in every part, as its box says.
#[test]
fn one_bad_part_leaves_the_others_to_their_leases() {
    let mut bench = parted(1, 2);
    let leases: Vec<LeaseId> = (0..2).map(|_| bench.lease(share(500, 1)).id).collect();
    bench.settle();
    bench.slot("a", 0).health = Health::bad("its worker died 3 times");
    bench.settle();
    assert_eq!([0, 1].map(|at| bench.state(leases[at])), [LeaseState::Pending, LeaseState::Granted]);
    bench.slot("a", 1).health = Health::bad("Xid 79");
    bench.settle();
    assert_eq!(bench.state(leases[1]), LeaseState::Pending);
    assert_eq!(bench.ledger.counts().gpus, [((model("H200"), GpuState::Bad), 1)].into());
}

/// A box that is started with other parts has other slots under the same numbers: what was granted of them is over.
#[test]
fn a_slot_that_becomes_a_part_or_another_part_is_cleaned_first() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let whole = bench.lease(LeaseRequest { ttl_ms: 86_400_000, ..LeaseRequest::default() });
    bench.settle();
    let epoch = bench.gpu("a/0").epoch;
    for count in [2, 4] {
        let GpuReport { bound_epoch, cleaned_epoch, .. } = bench.slot("a", 0).clone();
        bench.boxes.get_mut(&name("a")).unwrap().slots.clear();
        bench.add_slot("a", GpuReport { bound_epoch, cleaned_epoch, ..part(0, count, 0) });
        (1..count).for_each(|k| bench.add_slot("a", part(0, count, k)));
        bench.report("a");
        assert_eq!(bench.gpu("a/0").state, GpuState::Cleaning, "{count}");
        assert_eq!(bench.gpu("a/0").part, Some(Part::new(0, count)));
        bench.settle();
        assert_eq!(bench.gpu("a/0").state, GpuState::Free);
    }
    assert!(bench.gpu("a/0").epoch > epoch);
    assert_eq!(bench.state(whole.id), LeaseState::Pending, "its GPU is lent in parts now");
    let reloaded = bench.gpu("a/3");
    bench.reload();
    assert_eq!(bench.gpu("a/3"), reloaded);
}

#[test]
fn a_lease_that_waits_for_parts_of_a_dead_box_is_told() {
    let mut bench = parted(1, 2);
    bench.pass_silently(3_600_000);
    let waits = bench.lease(share(500, 1 << 30));
    let told = bench.ledger.explain(waits.id).unwrap().reasons.join("\n");
    assert!(
        told.contains("no parts of GPUs with at least 500/1000 and 1 GiB of the pool works now"),
        "{told}"
    );
    bench.settle();
    assert_eq!(place(&bench, waits.id), "a/0");
}
