//! Which seat an offline lease gets: the plan for all that wait, against trying every plan.

use super::bench::{Bench, gpu_report, name, tenant};
use super::*;
use crate::simulation::Mutation;
use pool_api::{Class, GpuReport, Guest, SeatLoad};

const GIB: u64 = 1 << 30;

/// A GPU with a seat: memory of the seat, and what online programs do there; `None` where no lease has the GPU.
#[derive(Clone, Copy, Debug)]
struct Place {
    gib: u64,
    online: Option<Load>,
}

/// Thousandths of the time, or not measured.
type Load = Option<u32>;

fn seat(gib: u64, busy_milli: u32) -> Place {
    Place { gib, online: Some(Some(busy_milli)) }
}

fn free(gib: u64) -> Place {
    Place { gib, online: None }
}

fn measured(busy_milli: u32) -> Option<SeatLoad> {
    Some(SeatLoad { online_busy_milli: busy_milli, online_periods_milli: 0 })
}

fn offline(gib: u64) -> LeaseRequest {
    LeaseRequest {
        class: Class::Offline,
        memory_bytes: Some(gib * GIB),
        ttl_ms: 86_400_000,
        ..LeaseRequest::default()
    }
}

/// One box with these GPUs. Its seats take no guests yet.
fn closed(places: &[Place], any_tenant: bool, mutation: Option<Mutation>) -> Bench {
    let settings = Settings { mutation, ..Settings::default() };
    let mut bench = Bench::with_settings(settings, &[("a", BoxKind::Pcie, "L40S", places.len() as u8)]);
    for (slot, place) in (0..).zip(places) {
        bench.add_slot(
            "a",
            GpuReport {
                slot: 32 + slot,
                memory_bytes: place.gib * GIB,
                guest: Some(Guest { of: slot, any_tenant, overcommit: false }),
                uuid: format!("uuid-L40S-{slot}"),
                ready: false,
                sharing: place.online.and_then(|load| measured(load?)),
                ..gpu_report("L40S", 32 + slot, BoxKind::Pcie)
            },
        );
    }
    bench.report("a");
    for (slot, _) in places.iter().enumerate().filter(|(_, place)| place.online.is_some()) {
        let gpu_ids = vec![format!("a/{slot}").parse().unwrap()];
        let request =
            LeaseRequest { class: Class::Online, gpu_ids, ttl_ms: 86_400_000, ..LeaseRequest::default() };
        assert_eq!(bench.lease(request).state, LeaseState::Granted);
    }
    bench
}

/// All seats take guests now.
fn open(bench: &mut Bench, places: &[Place]) {
    for at in 0..places.len() {
        bench.slot("a", places.len() + at).ready = true;
    }
    bench.report("a");
}

/// The place of each lease, when all seats open while all of them wait.
fn seated(places: &[Place], guests: &[u64], mutation: Option<Mutation>) -> Vec<Option<usize>> {
    let mut bench = closed(places, true, mutation);
    let leases: Vec<LeaseId> = guests.iter().map(|&gib| ask(&mut bench, gib)).collect();
    open(&mut bench, places);
    leases.into_iter().map(|id| place(&bench, id)).collect()
}

/// A lease that comes after all others.
fn ask(bench: &mut Bench, gib: u64) -> LeaseId {
    bench.now_ms += 1;
    bench.lease(offline(gib)).id
}

fn place(bench: &Bench, id: LeaseId) -> Option<usize> {
    bench.show(id).grants.first().map(|grant| usize::from(grant.gpu.slot) - 32)
}

fn lease_of(bench: &Bench, slot: usize) -> Option<LeaseId> {
    bench.gpu(&format!("a/{}", 32 + slot)).holders.first().map(|holder| holder.lease)
}

#[test]
fn the_small_guest_leaves_the_large_seat_to_the_large_one() {
    // One after the other, the first guest would take the seat that leaves more, and the second would have none.
    let places = [seat(48, 200), seat(16, 700)];
    assert_eq!(seated(&places, &[8, 40], None), [Some(1), Some(0)]);
    assert_eq!(seated(&places, &[40, 8], None), [Some(0), Some(1)]);
    assert_eq!(seated(&places, &[8], None), [Some(0)], "alone it has the better one");
}

#[test]
fn of_equal_seats_the_smallest_beside_an_online_lease_is_taken() {
    assert_eq!(seated(&[seat(48, 300), seat(16, 300), seat(32, 300)], &[8], None), [Some(1)]);
    // A whole GPU stays free, as long as the guest would not be much faster there.
    assert_eq!(seated(&[free(16), seat(48, 100)], &[8], None), [Some(1)]);
    assert_eq!(seated(&[free(16), seat(48, 250)], &[8], None), [Some(1)]);
    assert_eq!(seated(&[free(16), seat(48, 500)], &[8], None), [Some(0)]);
    assert_eq!(seated(&[free(16), seat(48, 950)], &[8], None), [Some(0)]);
    // A seat that leaves nothing is better than none.
    assert_eq!(seated(&[seat(48, 1000)], &[8], None), [Some(0)]);
}

#[test]
fn a_seat_that_was_not_measured_is_better_than_a_free_gpu_and_worse_than_a_quiet_one() {
    let unknown = Place { gib: 16, online: Some(None) };
    assert_eq!(seated(&[free(16), unknown], &[8], None), [Some(1)]);
    assert_eq!(seated(&[unknown, seat(16, 100)], &[8], None), [Some(1)]);
    assert_eq!(seated(&[seat(16, 500), unknown], &[8], None), [Some(1)]);
    // What was measured before the online lease left says nothing about a free GPU.
    let mut bench = closed(&[seat(16, 900), seat(16, 600)], true, None);
    let online = bench.gpu("a/0").holders[0].lease;
    bench.release(online);
    bench.settle();
    open(&mut bench, &[seat(16, 900), seat(16, 600)]);
    let guest = bench.lease(offline(8)).id;
    assert_eq!(place(&bench, guest), Some(0));
}

#[test]
fn busy_periods_count_as_well_as_the_load() {
    let mut bench = closed(&[seat(16, 300), seat(16, 400)], true, None);
    bench.slot("a", 2).sharing = Some(SeatLoad { online_busy_milli: 300, online_periods_milli: 1_000_000 });
    open(&mut bench, &[seat(16, 300), seat(16, 400)]);
    let guest = bench.lease(offline(8)).id;
    assert_eq!(place(&bench, guest), Some(1), "a thousand switches a second cost 0.3 of the time");
    let why = bench.ledger.explain(guest).unwrap().reasons.join("\n");
    assert!(why.contains("leaves it about 58 % of the GPU: online programs have worked 40 %"), "{why}");
}

#[test]
fn the_line_decides_who_has_a_seat_and_the_plan_only_where() {
    let places = [seat(16, 200)];
    let mut bench = closed(&places, true, None);
    let first = bench.lease(LeaseRequest { priority: 50, ..offline(8) }).id;
    let second = ask(&mut bench, 8);
    open(&mut bench, &places);
    assert_eq!((place(&bench, first), place(&bench, second)), (None, Some(0)));
    // Both could only have the large seat: the one that is ahead has it, and the small one stays empty.
    let places = [seat(48, 200), seat(16, 100)];
    let mut bench = closed(&places, true, None);
    let first = ask(&mut bench, 40);
    let second = ask(&mut bench, 32);
    open(&mut bench, &places);
    assert_eq!((place(&bench, first), place(&bench, second)), (Some(0), None));
    assert_eq!(lease_of(&bench, 1), None);
    let third = bench.lease(offline(8)).id;
    assert_eq!(place(&bench, third), Some(1));
    // When the first is over, the second has its seat.
    bench.release(first);
    bench.settle();
    assert_eq!(place(&bench, second), Some(0));
}

#[test]
fn a_lease_that_names_its_seat_gets_it_and_others_what_is_left() {
    let places = [seat(16, 100), seat(16, 600)];
    let mut bench = closed(&places, true, None);
    let any = bench.lease(LeaseRequest { priority: 50, ..offline(8) }).id;
    let gpu_ids = vec!["a/32".parse().unwrap()];
    let named = bench.lease(LeaseRequest { gpu_ids, ..offline(8) }).id;
    open(&mut bench, &places);
    assert_eq!((place(&bench, any), place(&bench, named)), (Some(1), Some(0)));
}

#[test]
fn no_seat_is_planned_for_a_tenant_that_its_host_may_not_meet() {
    // The quiet GPU is of another tenant.
    let places = [free(16), seat(16, 700)];
    let mut bench = closed(&places, false, None);
    let request = LeaseRequest {
        class: Class::Online,
        gpu_ids: vec!["a/0".parse().unwrap()],
        ttl_ms: 86_400_000,
        ..LeaseRequest::default()
    };
    bench.lease_for(&name("other"), request);
    let (own, others) = (bench.lease(offline(8)).id, bench.lease_for(&name("other"), offline(8)).id);
    let third = bench.lease_for(&name("third"), offline(8)).id;
    open(&mut bench, &places);
    assert_eq!((place(&bench, own), place(&bench, others)), (Some(1), Some(0)));
    assert_eq!(place(&bench, third), None);
    assert_eq!(bench.show(own).tenant, tenant());
}

/// Chance from a seed, as a small pool and those that wait.
fn scene(seed: u64) -> (Vec<Place>, Vec<u64>) {
    let mut dice = SplitMix::new(seed);
    let sizes = [8, 16, 32, 48];
    let place = |dice: &mut SplitMix| {
        let gib = sizes[dice.below(4) as usize];
        // In the middle of a step, so that what the plan counts is what is compared here.
        let load = 1000 * (2 * dice.below(16) + 1) / 32;
        if dice.below(5) == 0 { free(gib) } else { seat(gib, load) }
    };
    let places: Vec<Place> = (0..1 + dice.below(5)).map(|_| place(&mut dice)).collect();
    // More memory than any seat has is refused.
    let most = places.iter().map(|place| place.gib).max().unwrap_or(0);
    let guests = (0..1 + dice.below(5)).map(|_| sizes[dice.below(4) as usize].min(most)).collect();
    (places, guests)
}

/// What a seat is worth, as the ledger has it: speed, and a deduction where a whole GPU is used.
fn worth(place: Place) -> f64 {
    match place.online {
        Some(load) => 0.96 * (1.0 - f64::from(load.unwrap_or(250)) / 1000.0),
        None => 0.96 * 31.0 / 32.0 - 0.3,
    }
}

/// The leases that get seats, the first ones first, and the largest worth of their seats: by trying all.
fn tried(places: &[Place], guests: &[u64]) -> (Vec<bool>, f64) {
    let Some((&first, others)) = guests.split_first() else { return (Vec::new(), 0.0) };
    let without = |at: usize| {
        let mut left = places.to_vec();
        left.remove(at);
        left
    };
    let mut best: Option<(Vec<bool>, f64)> = None;
    let mut offer = |is_in: bool, at: Option<usize>| {
        let left = at.map_or_else(|| places.to_vec(), without);
        let (mut others_in, sum) = tried(&left, others);
        others_in.insert(0, is_in);
        let found = (others_in, sum + at.map_or(0.0, |at| worth(places[at])));
        if best.as_ref().is_none_or(|best| found.0 > best.0 || (found.0 == best.0 && found.1 > best.1)) {
            best = Some(found);
        }
    };
    offer(false, None);
    (0..places.len()).filter(|&at| places[at].gib >= first).for_each(|at| offer(true, Some(at)));
    best.expect("to seat nobody is possible")
}

/// How many of these scenes end otherwise than they should.
fn wrong(mutation: Option<Mutation>) -> usize {
    let is_wrong = |seed: u64| {
        let (places, guests) = scene(seed);
        let found = seated(&places, &guests, mutation);
        let (who, most) = tried(&places, &guests);
        let sum: f64 = found.iter().flatten().map(|&at| worth(places[at])).sum();
        let is_in: Vec<bool> = found.iter().map(Option::is_some).collect();
        let is_right = is_in == who && (sum - most).abs() < 0.002 * guests.len() as f64;
        if !is_right && mutation.is_none() {
            println!("seed {seed}: {places:?} {guests:?}: {found:?}, {sum}; should be {who:?}, {most}");
        }
        !is_right
    };
    (0..150).filter(|&seed| is_wrong(seed)).count()
}

#[test]
fn whoever_waits_and_whatever_is_there_the_plan_is_the_best_one_in_the_order_of_the_line() {
    assert_eq!(wrong(None), 0);
}

#[test]
fn a_plan_that_does_not_look_at_the_load_is_found() {
    assert!(wrong(Some(Mutation::SeatWithoutLoad)) > 20);
}

#[test]
#[should_panic(expected = "has less memory than its guest asked for")]
fn a_plan_that_does_not_look_at_the_memory_is_found() {
    wrong(Some(Mutation::SeatWithoutMemory));
}

#[test]
fn a_seat_is_planned_anew_when_what_it_leaves_has_changed() {
    let places = [seat(16, 100), seat(16, 600)];
    let mut bench = closed(&places, true, None);
    open(&mut bench, &places);
    bench.slot("a", 2).sharing = measured(800);
    bench.report("a");
    let guest = bench.lease(offline(8)).id;
    assert_eq!(place(&bench, guest), Some(1));
    // A box that is silent for good, and one whose seats come back, are looked at anew as well.
    bench.release(guest);
    bench.settle();
    bench.slot("a", 2).sharing = None;
    bench.report("a");
    let guest = bench.lease(offline(8)).id;
    assert_eq!(place(&bench, guest), Some(0), "not measured any more: a quarter is assumed");
    bench.reload();
    bench.settle();
    let next = bench.lease(offline(8)).id;
    assert_eq!((place(&bench, guest), place(&bench, next)), (Some(0), Some(1)));
}
