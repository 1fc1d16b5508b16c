//! Seats for guests: which leases get them, beside which, and which have to leave.

use super::bench::{Bench, gpu_report, name, tenant};
use super::*;
use pool_api::{Class, Filter, GpuReport, Guest, Plane, Want};

/// The memory of a GPU of the bench, and of the seats here.
pub(super) const GPU: u64 = 140 << 30;
pub(super) const SEAT: u64 = 40 << 30;

pub(super) fn of(class: Class) -> LeaseRequest {
    LeaseRequest { class, ttl_ms: 86_400_000, ..LeaseRequest::default() }
}

pub(super) fn seat(of: u8, any_tenant: bool) -> GpuReport {
    GpuReport {
        slot: 32 + of,
        memory_bytes: SEAT,
        guest: Some(Guest { of, any_tenant, overcommit: false }),
        uuid: format!("uuid-H200-{of}"),
        ..gpu_report("H200", 32 + of, BoxKind::Pcie)
    }
}

/// One box with so many GPUs, and a seat on each.
pub(super) fn seated(gpus: u8, any_tenant: bool) -> Bench {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", gpus)]);
    for slot in 0..gpus {
        bench.add_slot("a", seat(slot, any_tenant));
    }
    bench.report("a");
    bench
}

pub(super) fn place(bench: &Bench, id: LeaseId) -> String {
    let lease = bench.show(id);
    lease.grants.iter().map(|grant| grant.gpu.to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn offline_leases_get_seats_and_others_get_gpus() {
    let mut bench = seated(2, false);
    let guest = bench.lease(of(Class::Offline));
    assert_eq!((guest.state, place(&bench, guest.id).as_str()), (LeaseState::Granted, "a/32"));
    let whole = bench.lease(of(Class::Dedicated));
    assert_eq!(place(&bench, whole.id), "a/1", "a GPU without a guest comes first");
    let second = bench.lease(of(Class::Offline));
    assert_eq!(second.state, LeaseState::Pending, "the other seat is on a dedicated lease's GPU");
    let why = bench.ledger.explain(second.id).unwrap();
    assert!(why.filters.iter().any(|count| count.filter == Filter::Beside && count.gpus == 1), "{why:?}");
    assert!(why.reasons.join("\n").contains("no seat for guests is free"), "{why:?}");
    bench.release(whole.id);
    bench.settle();
    assert_eq!(place(&bench, second.id), "a/33");
}

#[test]
fn a_pool_without_seats_refuses_offline_leases_in_words() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    let refusal = bench.try_lease(of(Class::Offline)).unwrap_err().to_string();
    assert!(refusal.contains("seat for guests"), "{refusal}");
    let mut bench = seated(1, false);
    let large = LeaseRequest { memory_bytes: Some(SEAT + 1), ..of(Class::Offline) };
    assert!(bench.try_lease(large).unwrap_err().to_string().contains("the largest has 40 GiB"));
    // An online lease leaves the seat its memory; a dedicated one has all.
    let online = LeaseRequest { memory_bytes: Some(GPU - SEAT + 1), ..of(Class::Online) };
    assert!(bench.try_lease(online.clone()).unwrap_err().to_string().contains("the largest has 100 GiB"));
    let dedicated = bench.lease(LeaseRequest { class: Class::Dedicated, ..online });
    assert_eq!(dedicated.state, LeaseState::Granted);
    let named = LeaseRequest { gpu_ids: vec!["a/32".parse().unwrap()], ..of(Class::Dedicated) };
    assert!(bench.try_lease(named).unwrap_err().to_string().contains("seats for guests"));
}

#[test]
fn an_online_lease_and_a_guest_of_its_tenant_share_a_gpu() {
    let mut bench = seated(1, false);
    let online = bench.lease(of(Class::Online));
    assert_eq!(bench.gpu("a/0").holders[0].memory_bytes, GPU - SEAT);
    let guest = bench.lease(of(Class::Offline));
    assert_eq!((place(&bench, online.id), place(&bench, guest.id)), ("a/0".into(), "a/32".into()));
    let holder = bench.gpu("a/32").holders[0].clone();
    assert_eq!((holder.memory_bytes, holder.share_milli), (SEAT, 0), "it counts for no quota");
    let orders = bench.report("a");
    assert!(orders.slots.iter().all(|order| matches!(order.want, Want::Serve { .. })), "{orders:?}");
    // The online lease goes, the guest stays, and the next online lease comes beside it.
    bench.release(online.id);
    bench.settle();
    assert_eq!(bench.state(guest.id), LeaseState::Granted);
    let next = bench.lease(of(Class::Online));
    assert_eq!((next.state, bench.state(guest.id)), (LeaseState::Granted, LeaseState::Granted));
    bench.reload();
    bench.settle();
    assert_eq!((bench.state(next.id), bench.state(guest.id)), (LeaseState::Granted, LeaseState::Granted));
    assert_eq!(bench.show(guest.id).version, 2, "nothing happened to it");
}

#[test]
fn an_online_lease_has_all_memory_where_the_seat_s_is_promised_twice() {
    let mut bench = seated(1, false);
    let whole = LeaseRequest { memory_bytes: Some(GPU), ..of(Class::Online) };
    let refusal = bench.try_lease(whole.clone()).unwrap_err().to_string();
    assert!(refusal.contains("the largest has 100 GiB"), "{refusal}");
    bench.slot("a", 1).guest = Some(Guest { of: 0, any_tenant: false, overcommit: true });
    bench.report("a");
    let (online, guest) = (bench.lease(whole.clone()), bench.lease(of(Class::Offline)));
    assert_eq!((place(&bench, online.id), place(&bench, guest.id)), ("a/0".into(), "a/32".into()));
    let memory = |bench: &Bench, gpu: &str| bench.gpu(gpu).holders[0].memory_bytes;
    assert_eq!((memory(&bench, "a/0"), memory(&bench, "a/32")), (GPU, SEAT));
    let reasons = |bench: &Bench, id| bench.ledger.explain(id).unwrap().reasons.join("\n");
    assert!(reasons(&bench, online.id).contains("40 GiB of its memory are promised to a guest, too"));
    assert!(reasons(&bench, guest.id).contains("leaves a/32 at once"), "{}", reasons(&bench, guest.id));
    bench.reload();
    bench.settle();
    bench.release(online.id);
    bench.settle();
    let next = bench.lease(whole.clone());
    assert_eq!((memory(&bench, "a/0"), next.state), (GPU, LeaseState::Granted), "a new leader knows it, too");
    // The box is started without the option: leases keep what they were promised, the next one gets less.
    bench.slot("a", 1).guest = Some(Guest { of: 0, any_tenant: false, overcommit: false });
    bench.report("a");
    assert_eq!((memory(&bench, "a/0"), bench.state(guest.id)), (GPU, LeaseState::Granted));
    assert!(!reasons(&bench, guest.id).contains("promised twice"));
    bench.release(next.id);
    bench.settle();
    assert!(bench.try_lease(whole).unwrap_err().to_string().contains("the largest has 100 GiB"));
}

#[test]
fn strangers_meet_only_where_the_box_lets_them() {
    let mut bench = seated(1, false);
    let online = bench.lease(of(Class::Online));
    let guest = bench.lease_for(&name("other"), of(Class::Offline));
    assert_eq!(guest.state, LeaseState::Pending);
    bench.slot("a", 1).guest = Some(Guest { of: 0, any_tenant: true, overcommit: false });
    bench.report("a");
    assert_eq!((bench.state(online.id), bench.state(guest.id)), (LeaseState::Granted, LeaseState::Granted));
    // The other way round: the guest was there first.
    let mut bench = seated(1, false);
    let guest = bench.lease_for(&name("other"), of(Class::Offline));
    let online = bench.lease(of(Class::Online));
    assert_eq!(bench.state(guest.id), LeaseState::Pending, "evicted");
    bench.settle();
    assert_eq!((bench.state(online.id), bench.state(guest.id)), (LeaseState::Granted, LeaseState::Pending));
    let mut bench = seated(1, true);
    let guest = bench.lease_for(&name("other"), of(Class::Offline));
    let online = bench.lease(of(Class::Online));
    assert_eq!((online.state, bench.state(guest.id)), (LeaseState::Granted, LeaseState::Granted));
}

#[test]
fn a_guest_that_its_box_cannot_bear_leaves_for_another_seat_and_does_not_come_back() {
    let mut bench = seated(2, false);
    let guest = bench.lease(of(Class::Offline));
    let seat = if place(&bench, guest.id) == "a/32" { 2 } else { 3 };
    bench.settle();
    let complain = |bench: &mut Bench, must_leave: bool| {
        let report = bench.slot("a", seat);
        (report.must_leave, report.ready) = (must_leave, !must_leave);
        report.unready = must_leave.then(|| "a guest held the online programs up".to_owned());
        bench.report("a");
    };
    let before = place(&bench, guest.id);
    complain(&mut bench, true);
    bench.settle();
    let told = bench.show(guest.id);
    assert_eq!(told.state, LeaseState::Granted, "the other GPU has a seat");
    assert_ne!(place(&bench, guest.id), before);
    assert!(told.moves[0].reason.contains("held the online programs up"), "{told:?}");
    complain(&mut bench, true);
    bench.settle();
    assert_eq!(bench.show(guest.id).moves.len(), 1, "its new box did not complain");
    // One that was not let in yet is not meant.
    complain(&mut bench, false);
    let next = bench.lease(of(Class::Offline));
    assert_eq!(place(&bench, next.id), before);
    bench.slot("a", seat).bound_epoch = 0;
    complain(&mut bench, true);
    assert_eq!(bench.state(next.id), LeaseState::Granted);
}

#[test]
fn a_dedicated_lease_gets_the_gpu_when_the_guest_has_left_and_its_seat_is_clean() {
    let mut bench = seated(1, false);
    let guest = bench.lease(of(Class::Offline));
    let other = bench.lease(of(Class::Offline));
    assert_eq!(bench.state(other.id), LeaseState::Pending);
    let whole = bench.lease(of(Class::Dedicated));
    assert_eq!((bench.state(whole.id), bench.state(guest.id)), (LeaseState::Pending, LeaseState::Pending));
    let told = bench.show(guest.id);
    assert!(told.moves[0].reason.contains("needed as a whole") && told.moves[0].to.is_none(), "{told:?}");
    assert_eq!(bench.gpu("a/32").state, GpuState::Cleaning);
    assert_eq!(bench.gpu("a/0").state, GpuState::Free, "not before the seat is clean");
    bench.settle();
    assert_eq!((place(&bench, whole.id).as_str(), bench.state(guest.id)), ("a/0", LeaseState::Pending));
    assert_eq!(bench.gpu("a/0").holders[0].memory_bytes, GPU, "all of it");
    assert_eq!(bench.state(other.id), LeaseState::Pending, "it was not faster than the lease that evicts");
    bench.release(whole.id);
    bench.settle();
    assert_eq!(place(&bench, guest.id), "a/32", "the one that lost its seat is first");
    assert_eq!(bench.show(guest.id).moves[0].to.as_ref().unwrap().to_string(), "a/32");
}

#[test]
fn no_more_guests_are_evicted_than_a_lease_needs() {
    let mut bench = seated(3, false);
    let guests: Vec<_> = (0..3).map(|_| bench.lease(of(Class::Offline)).id).collect();
    let whole = bench.lease(of(Class::Dedicated));
    bench.tick();
    bench.report("a");
    let evicted = |bench: &Bench| guests.iter().filter(|guest| !bench.show(**guest).moves.is_empty()).count();
    assert_eq!(evicted(&bench), 1);
    bench.settle();
    assert_eq!((bench.state(whole.id), evicted(&bench)), (LeaseState::Granted, 1));
    // Named by name, through the same door.
    let named = place(&bench, guests.iter().copied().find(|g| bench.show(*g).moves.is_empty()).unwrap());
    let host = format!("a/{}", named.strip_prefix("a/").unwrap().parse::<u8>().unwrap() - 32);
    let given = LeaseRequest { gpu_ids: vec![host.parse().unwrap()], ..of(Class::Dedicated) };
    let given = bench.lease(given);
    bench.settle();
    assert_eq!((place(&bench, given.id), evicted(&bench)), (host, 2));
}

#[test]
fn what_happens_to_a_gpu_happens_to_its_guest_first() {
    let broken = |bench: &mut Bench| {
        bench.slot("a", 0).health = pool_api::Health::bad("Xid 79");
    };
    let drained = |bench: &mut Bench| {
        let gpu = "a/0".parse().unwrap();
        let (reason, by) = ("fan".to_owned(), "ann".to_owned());
        bench.apply(&Command::Taint { gpu, reason, by, drain: true }).unwrap();
    };
    let box_drained = |bench: &mut Bench| {
        let (reason, by) = ("fan".to_owned(), "ann".to_owned());
        bench.apply(&Command::DrainBox { box_name: name("a"), reason, by }).unwrap();
    };
    let whys: [(&dyn Fn(&mut Bench), &str); 3] =
        [(&broken, "is bad"), (&drained, "is being drained"), (&box_drained, "box a is being drained")];
    for (happens, why) in whys {
        let mut bench = seated(1, false);
        let guest = bench.lease(of(Class::Offline));
        happens(&mut bench);
        bench.report("a");
        let told = bench.show(guest.id);
        assert_eq!(told.state, LeaseState::Pending, "{why}");
        assert!(told.moves[0].reason.contains(why), "{told:?}");
        bench.settle();
        assert!(bench.gpu("a/32").holders.is_empty());
    }
    // A GPU that is only kept from new leases keeps its guest.
    let mut bench = seated(1, false);
    let guest = bench.lease(of(Class::Offline));
    let (gpu, reason, by) = ("a/0".parse().unwrap(), "fan".to_owned(), "ann".to_owned());
    bench.apply(&Command::Taint { gpu, reason, by, drain: false }).unwrap();
    bench.settle();
    assert_eq!(bench.state(guest.id), LeaseState::Granted);
}

#[test]
fn seats_are_no_spares_and_plugged_into_no_host() {
    let mut bench = seated(2, false);
    let request = pool_api::SpareRequest { count: 4 };
    bench.apply(&Command::SetSpares { model: bench::model("H200"), request }).unwrap();
    let spares: Vec<_> = bench.ledger.gpus(None).filter(|gpu| gpu.spare).map(|gpu| gpu.id.slot).collect();
    assert_eq!(spares, [0, 1]);
    assert_eq!(bench.ledger.capacity(Some(&tenant()))[0].working, 2);
    assert_eq!(bench.ledger.counts().gpus.values().sum::<u64>(), 2);
    let guest = bench.lease(of(Class::Offline));
    assert_eq!(guest.state, LeaseState::Pending, "spares are for leases that lose a GPU");
    let plugged = LeaseRequest { plane: Plane::Pcie, host: Some(name("h")), ..of(Class::Offline) };
    assert!(bench.try_lease(plugged).is_err());
}

/// A box that is started again without seats has ended their workers: a dedicated lease need not wait for them.
#[test]
fn seats_that_are_gone_are_in_nobodys_way() {
    let mut bench = seated(1, false);
    let guest = bench.lease(of(Class::Offline));
    bench.forget_slot("a", 1);
    bench.report("a");
    assert_eq!(bench.state(guest.id), LeaseState::Pending);
    let whole = bench.lease(of(Class::Dedicated));
    assert_eq!((whole.state, bench.gpu("a/0").holders[0].memory_bytes), (LeaseState::Granted, GPU));
}
