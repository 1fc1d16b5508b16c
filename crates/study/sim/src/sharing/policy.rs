//! Who sits where: one round.

use matching::kinds::{self, Guest, Seat};
use matching::speed::SpeedModel;
use matching::{hungarian, transport};
use pool::{
    BoxId, BoxSpec, Choice, GPU_MILLI, GpuNeed, Inventory, Mix, ModelFilter, ModelId, Placer, Policy,
    Request, Scale, Shape, SplitMix,
};

/// A guest and an online program, by their numbers: who sits where.
pub type Seating = Vec<(usize, usize)>;

/// Guests and seats of one shard of Kuhn-Munkres. As published: matching all at once takes the cube of their number.
pub const SHARD: usize = 256;

/// How guests get seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seated {
    /// Nobody does.
    Nobody,
    /// Each goes to a seat that fits it, by lot.
    Random,
    /// By the placement that keeps the fewest fragments (FGD), with the share that each asked for.
    Fgd,
    /// Kuhn-Munkres in shards, as MuxFlow does.
    KuhnMunkres,
    /// The transport problem between kinds, as the ledger does.
    Transport,
}

impl Seated {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Nobody, Self::Random, Self::Fgd, Self::KuhnMunkres, Self::Transport];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "no guests",
            Self::Random => "random",
            Self::Fgd => "fgd",
            Self::KuhnMunkres => "kuhn-munkres in shards",
            Self::Transport => "transport by kinds",
        }
    }
}

/// Seats guests. Also returns how many basic steps it took, for the two that are matchings.
pub fn seat(
    policy: Seated,
    model: &SpeedModel,
    seats: &[Seat],
    guests: &[Guest],
    asked_milli: &[u16],
    seed: u64,
) -> (Seating, u64) {
    match policy {
        Seated::Nobody => (Vec::new(), 0),
        Seated::Random => (random(model, seats, guests, seed), 0),
        Seated::Fgd => (fgd(model, seats, guests, asked_milli), 0),
        Seated::KuhnMunkres => {
            let worth = |guest: usize, seat: usize| kinds::weight(model, &seats[seat], &guests[guest]);
            let matching = hungarian::in_shards(guests.len(), seats.len(), SHARD, worth);
            let pairs = matching.seats.iter().enumerate().filter_map(|(guest, seat)| Some((guest, (*seat)?)));
            (pairs.collect(), matching.steps)
        }
        Seated::Transport => by_kinds(model, seats, guests),
    }
}

fn random(model: &SpeedModel, seats: &[Seat], guests: &[Guest], seed: u64) -> Seating {
    let mut dice = SplitMix::new(seed);
    let mut free: Vec<usize> = (0..seats.len()).collect();
    let mut seated = Vec::new();
    for (at, guest) in guests.iter().enumerate() {
        // A few tries, as a scheduler that knows nothing would make.
        for _ in 0..8 {
            if free.is_empty() {
                return seated;
            }
            let drawn = ((dice.unit() * free.len() as f64) as usize).min(free.len() - 1);
            if kinds::weight(model, &seats[free[drawn]], guest).is_some() {
                seated.push((at, free.swap_remove(drawn)));
                break;
            }
        }
    }
    seated
}

/// Each GPU is a box of its own, of which the online program has its load.
fn fgd(model: &SpeedModel, seats: &[Seat], guests: &[Guest], asked_milli: &[u16]) -> Seating {
    let mut inventory = Inventory::default();
    let share = |milli: u16| {
        let shape = Shape { cpu_milli: 0, gpus: GpuNeed::Share(milli), models: ModelFilter::any() };
        Request { shape, memory_mib: 0 }
    };
    for (order, seat) in seats.iter().enumerate() {
        let spec = BoxSpec { model: ModelId(0), gpus: 1, cpu_milli: 0, memory_mib: 0, order: order as u32 };
        let id = inventory.add(&spec).expect("a box of one GPU fits");
        let milli = ((seat.online.load * 1000.0) as u16).clamp(1, 999);
        inventory.take(id, std::iter::once(0).collect(), &share(milli));
    }
    // In tenths, so that few shapes have to be ranked.
    let wanted = |milli: u16| share((milli.div_ceil(100) * 100).clamp(100, 900));
    let shapes: Vec<Shape> = asked_milli.iter().map(|&milli| wanted(milli).shape).collect();
    let scale = Scale { cpu_milli: 1, gpu_milli: GPU_MILLI };
    let mut placer = Placer::new(inventory, Policy::Fgd, scale, Mix::observe(&shapes, 100));
    let mut dice = SplitMix::new(1);
    let mut taken = vec![false; seats.len()];
    let mut seated = Vec::new();
    for (at, guest) in guests.iter().enumerate() {
        let request = wanted(asked_milli[at]);
        let Some(choice) = placer.choose(&request, &mut dice) else { continue };
        let Choice { id: BoxId(seat), .. } = choice;
        let seat = seat as usize;
        placer.grant(&choice, &request);
        // One guest on each GPU; the placement does not know of memory and of slack.
        if !taken[seat] && kinds::weight(model, &seats[seat], guest).is_some() {
            taken[seat] = true;
            seated.push((at, seat));
        }
    }
    seated
}

fn by_kinds(model: &SpeedModel, seats: &[Seat], guests: &[Guest]) -> (Seating, u64) {
    let (mut seat_kinds, mut guest_kinds) = (kinds::of_seats(seats), kinds::of_guests(guests));
    let worth = |(guest, _): &(Guest, Vec<usize>)| {
        seat_kinds.iter().map(|(seat, _)| kinds::weight(model, seat, guest)).collect::<Vec<_>>()
    };
    let weights: Vec<Vec<Option<u32>>> = guest_kinds.iter().map(worth).collect();
    let supply: Vec<u64> = guest_kinds.iter().map(|(_, members)| members.len() as u64).collect();
    let capacity: Vec<u64> = seat_kinds.iter().map(|(_, members)| members.len() as u64).collect();
    let plan = transport::best_plan(&supply, &capacity, &weights);
    let mut seated = Vec::new();
    for flow in plan.flows {
        for _ in 0..flow.count {
            let pair = guest_kinds[flow.guest].1.pop().zip(seat_kinds[flow.seat].1.pop());
            seated.push(pair.expect("a plan seats no more than there are"));
        }
    }
    (seated, plan.steps)
}
