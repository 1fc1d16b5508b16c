//! The matchings against each other and against trying everything.

use crate::{
    hungarian::{Matching, best_matching, in_shards},
    kinds::{Guest, Seat, WEIGHT_ONE, of_guests, of_seats, weight},
    speed::{Offline, Online, SpeedModel},
    transport::{Plan, best_plan},
};

/// Chance from a seed (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn random_weights(dice: &mut Dice, guests: usize, seats: usize) -> Vec<Vec<Option<u32>>> {
    let mut one = || match dice.below(5) {
        0 => None,
        1 => Some(0),
        _ => Some(dice.below(50) as u32),
    };
    (0..guests).map(|_| (0..seats).map(|_| one()).collect()).collect()
}

/// The greatest worth, by trying everything.
fn by_force(weights: &[Vec<Option<u32>>], taken: &mut Vec<bool>) -> u64 {
    let Some((first, rest)) = weights.split_first() else { return 0 };
    let mut best = by_force(rest, taken);
    for seat in 0..taken.len() {
        if let (false, Some(worth)) = (taken[seat], first[seat]) {
            taken[seat] = true;
            best = best.max(u64::from(worth) + by_force(rest, taken));
            taken[seat] = false;
        }
    }
    best
}

/// The plan holds what it promises, and nothing is given twice.
fn check(plan: &Plan, supply: &[u64], capacity: &[u64], weights: &[Vec<Option<u32>>]) {
    let (mut given, mut taken, mut worth) = (vec![0; supply.len()], vec![0; capacity.len()], 0);
    for flow in &plan.flows {
        given[flow.guest] += flow.count;
        taken[flow.seat] += flow.count;
        worth += u64::from(weights[flow.guest][flow.seat].expect("a pair that may be")) * flow.count;
    }
    assert!(given.iter().zip(supply).all(|(given, supply)| given <= supply));
    assert!(taken.iter().zip(capacity).all(|(taken, capacity)| taken <= capacity));
    assert_eq!(worth, plan.weight);
}

#[test]
fn both_matchings_are_as_good_as_trying_everything() {
    let mut dice = Dice::new(1);
    for round in 0..1_000 {
        let (guests, seats) = (1 + dice.below(6) as usize, 1 + dice.below(7) as usize);
        let weights = random_weights(&mut dice, guests, seats);
        let best = by_force(&weights, &mut vec![false; seats]);
        let plan = best_plan(&vec![1; guests], &vec![1; seats], &weights);
        check(&plan, &vec![1; guests], &vec![1; seats], &weights);
        assert_eq!(plan.weight, best, "transport, round {round}");
        let matching = best_matching(guests, seats, |guest, seat| weights[guest][seat]);
        assert_eq!(matching.weight, best, "Kuhn-Munkres, round {round}");
    }
}

#[test]
fn kinds_with_many_members_are_as_good_as_each_member_by_itself() {
    let mut dice = Dice::new(2);
    for round in 0..200 {
        let (guests, seats) = (1 + dice.below(5) as usize, 1 + dice.below(6) as usize);
        let weights = random_weights(&mut dice, guests, seats);
        let supply: Vec<u64> = (0..guests).map(|_| dice.below(9)).collect();
        let capacity: Vec<u64> = (0..seats).map(|_| dice.below(9)).collect();
        let plan = best_plan(&supply, &capacity, &weights);
        check(&plan, &supply, &capacity, &weights);
        let each = |counts: &[u64]| -> Vec<usize> {
            counts.iter().enumerate().flat_map(|(kind, &count)| vec![kind; count as usize]).collect()
        };
        let (by_guest, by_seat) = (each(&supply), each(&capacity));
        let one_by_one = best_matching(by_guest.len(), by_seat.len(), |guest, seat| {
            weights[by_guest[guest]][by_seat[seat]]
        });
        assert_eq!(plan.weight, one_by_one.weight, "round {round}");
        let sharded = in_shards(by_guest.len(), by_seat.len(), 4, |guest, seat| {
            weights[by_guest[guest]][by_seat[seat]]
        });
        assert!(sharded.weight <= plan.weight, "round {round}");
    }
}

#[test]
fn no_seat_is_in_no_shard() {
    // The last seat alone is worth something, and guests are fewer than seats.
    let matching = in_shards(3, 10, 4, |_, seat| (seat == 9).then_some(7));
    assert_eq!((matching.weight, &matching.seats[2]), (7, &Some(9)));
    assert_eq!(in_shards(10, 3, 4, |guest, seat| (guest == 9 && seat == 2).then_some(7)).weight, 7);
    assert_eq!(in_shards(0, 0, 4, |_, _| None), Matching::default());
}

fn cluster(dice: &mut Dice, count: usize) -> (Vec<Seat>, Vec<Guest>) {
    let seat = |dice: &mut Dice| Seat {
        online: Online { load: (0.52 * dice.share()).min(1.0), busy_periods: 300.0 * dice.share() },
        free_bytes: (20 + dice.below(100)) << 30,
        slack_us: [100.0, 300.0, 2_000.0][dice.below(3) as usize],
    };
    let guest = |dice: &mut Dice| Guest {
        offline: Offline { busy: 0.4 + 0.6 * dice.share() },
        bytes: (2 + dice.below(70)) << 30,
        residual_us: [25.0, 150.0, 900.0][dice.below(3) as usize],
    };
    ((0..count).map(|_| seat(dice)).collect(), (0..count).map(|_| guest(dice)).collect())
}

/// A cluster by kinds.
struct Kinds {
    supply: Vec<u64>,
    capacity: Vec<u64>,
    weights: Vec<Vec<Option<u32>>>,
    guest_kind: Vec<usize>,
    seat_kind: Vec<usize>,
}

impl Kinds {
    fn of(seats: &[Seat], guests: &[Guest]) -> Self {
        let (seat_kinds, guest_kinds) = (of_seats(seats), of_guests(guests));
        let model = SpeedModel::default();
        let row = |guest: &Guest| seat_kinds.iter().map(|(seat, _)| weight(&model, seat, guest)).collect();
        let kind_of = |kinds: Vec<&Vec<usize>>, count: usize| {
            let mut of = vec![0; count];
            kinds.iter().enumerate().for_each(|(kind, members)| members.iter().for_each(|&at| of[at] = kind));
            of
        };
        Self {
            supply: guest_kinds.iter().map(|(_, members)| members.len() as u64).collect(),
            capacity: seat_kinds.iter().map(|(_, members)| members.len() as u64).collect(),
            weights: guest_kinds.iter().map(|(guest, _)| row(guest)).collect(),
            guest_kind: kind_of(guest_kinds.iter().map(|(_, members)| members).collect(), guests.len()),
            seat_kind: kind_of(seat_kinds.iter().map(|(_, members)| members).collect(), seats.len()),
        }
    }

    fn plan(&self) -> Plan {
        let plan = best_plan(&self.supply, &self.capacity, &self.weights);
        check(&plan, &self.supply, &self.capacity, &self.weights);
        plan
    }

    fn in_shards(&self) -> Matching {
        let (guests, seats) = (&self.guest_kind, &self.seat_kind);
        in_shards(guests.len(), seats.len(), 256, |guest, seat| self.weights[guests[guest]][seats[seat]])
    }
}

#[test]
fn ten_thousand_gpus_take_a_fraction_of_the_published_way_and_are_matched_better() {
    let mut dice = Dice::new(3);
    let (seats, guests) = cluster(&mut dice, 10_000);
    let all = Kinds::of(&seats, &guests);
    let began = std::time::Instant::now();
    let plan = all.plan();
    let took = began.elapsed();
    // The published way takes as long for each shard: four of the forty are enough to count them.
    let some = Kinds::of(&seats[..1024], &guests[..1024]);
    let began = std::time::Instant::now();
    let (shards, exact) = (some.in_shards(), some.plan());
    let shards_took = began.elapsed();
    let worth = |weight: u64| weight as f64 / f64::from(WEIGHT_ONE);
    println!(
        "10,000 GPUs in {} kinds, 10,000 programs in {}: {} steps, {took:?}, worth {:.1}. Of these 1,024: Kuhn-Munkres in \
         shards of 256 {} steps, {shards_took:?}, worth {:.1}; by kinds {:.1}",
        all.capacity.len(),
        all.supply.len(),
        plan.steps,
        worth(plan.weight),
        shards.steps,
        worth(shards.weight),
        worth(exact.weight),
    );
    assert!(shards.weight <= exact.weight, "{} in shards, {} by kinds", shards.weight, exact.weight);
    assert!(20 * plan.steps < 10 * shards.steps, "{} steps against {} for a tenth", plan.steps, shards.steps);
    // A few nanoseconds each: a round has a tenth of a second.
    assert!(plan.steps < 20_000_000, "{} steps", plan.steps);
}

#[test]
fn what_fits_a_kind_fits_each_of_its_members() {
    let mut dice = Dice::new(4);
    let (seats, guests) = cluster(&mut dice, 500);
    let model = SpeedModel::default();
    for (kind, members) in of_seats(&seats) {
        for (guest_kind, guest_members) in of_guests(&guests) {
            let Some(promised) = weight(&model, &kind, &guest_kind) else { continue };
            for (&seat, &guest) in members.iter().zip(&guest_members) {
                let real = weight(&model, &seats[seat], &guests[guest]).expect("it fits");
                assert!(real >= promised, "a member is at least as fast as its kind");
            }
        }
    }
}
