//! The best plan between kinds of seats and kinds of guests: a transport problem, solved exactly.
//!
//! ```text
//!   source ──supply──▶ guest kinds ──weight──▶ seat kinds ──capacity──▶ sink
//! ```
//!
//! Successive shortest paths with potentials. A path sends a guest to a seat that has room, or to one whose guest of another
//! kind goes on in the same way. So the search goes over kinds of guests alone, of which there are few: for each pair of them
//! the cheapest seat to displace the one by the other is kept up to date. The number of kinds decides the work, not the
//! number of GPUs. All numbers are integers: the plan is the best one, not nearly.

/// How many guests of one kind go to seats of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The kind of guest.
    pub guest: usize,
    /// The kind of seat.
    pub seat: usize,
    /// How many.
    pub count: u64,
}

/// A plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What goes where.
    pub flows: Vec<Flow>,
    /// Its worth.
    pub weight: u64,
    /// How many basic steps it took. For measurements that a loaded machine does not change.
    pub steps: u64,
}

const FAR: i64 = i64::MAX / 4;

/// The plan of the greatest worth. `weights[guest][seat]` is the worth of a pair, `None` where it may not be; a guest
/// that would be worth nothing stays where it is.
pub fn best_plan(supply: &[u64], capacity: &[u64], weights: &[Vec<Option<u32>>]) -> Plan {
    let mut solver = Solver::new(supply, capacity, weights);
    while solver.augment() {}
    solver.plan()
}

/// Sending a guest to a seat in place of a guest of another kind: the change of cost, and the seat.
type Exchange = (i64, usize);

struct Solver<'a> {
    weights: &'a [Vec<Option<u32>>],
    /// What is left.
    supply: Vec<u64>,
    capacity: Vec<u64>,
    flow: Vec<Vec<u64>>,
    /// The seats that have guests of each kind.
    seats_of: Vec<Vec<usize>>,
    /// For each kind of guest its possible seats, the best first, and how many of them are known to be full. A seat that is
    /// full stays full.
    preferred: Vec<(Vec<usize>, usize)>,
    /// `exchange[g][h]`: the cheapest way to put a `g` where an `h` is.
    exchange: Vec<Vec<Exchange>>,
    /// Distances of earlier searches: costs reduced by them are never negative.
    potential: Vec<i64>,
    sink_potential: i64,
    steps: u64,
}

/// What a search has found.
struct Paths {
    distance: Vec<i64>,
    /// The kind of guest that displaces this one on the way.
    from: Vec<Option<usize>>,
    to_sink: i64,
    last: usize,
}

impl<'a> Solver<'a> {
    fn new(supply: &[u64], capacity: &[u64], weights: &'a [Vec<Option<u32>>]) -> Self {
        let guests = supply.len();
        let ranked = |guest: usize| {
            let mut seats: Vec<usize> =
                (0..capacity.len()).filter(|&seat| weights[guest][seat].is_some()).collect();
            seats.sort_by_key(|&seat| std::cmp::Reverse(weights[guest][seat]));
            (seats, 0)
        };
        let mut solver = Self {
            weights,
            supply: supply.to_vec(),
            capacity: capacity.to_vec(),
            flow: vec![vec![0; capacity.len()]; guests],
            seats_of: vec![Vec::new(); guests],
            preferred: (0..guests).map(ranked).collect(),
            exchange: vec![vec![(FAR, 0); guests]; guests],
            potential: vec![0; guests],
            sink_potential: 0,
            steps: (guests * capacity.len()) as u64,
        };
        let least = (0..guests).filter_map(|guest| solver.room(guest)).map(|(cost, _)| cost).min();
        solver.sink_potential = least.unwrap_or(0);
        solver
    }

    fn cost(&self, guest: usize, seat: usize) -> Option<i64> {
        self.weights[guest][seat].map(|weight| -i64::from(weight))
    }

    /// The best seat with room for a kind of guest, and its cost.
    fn room(&mut self, guest: usize) -> Option<(i64, usize)> {
        let (seats, full) = &mut self.preferred[guest];
        while seats.get(*full).is_some_and(|&seat| self.capacity[seat] == 0) {
            *full += 1;
            self.steps += 1;
        }
        let seat = *seats.get(*full)?;
        Some((self.cost(guest, seat)?, seat))
    }

    /// Sends guests along the path of the greatest worth. False when none is worth anything.
    fn augment(&mut self) -> bool {
        let Some(paths) = self.search() else { return false };
        // The true cost of a path is its reduced one plus the potential of its end.
        if paths.to_sink + self.sink_potential >= 0 {
            return false;
        }
        self.send(&paths);
        for (potential, distance) in self.potential.iter_mut().zip(&paths.distance) {
            *potential += (*distance).min(paths.to_sink);
        }
        self.sink_potential += paths.to_sink;
        true
    }

    /// The shortest path over kinds of guests to a seat with room (Dijkstra). The search ends where farther kinds do not
    /// matter; their potentials rise by the distance of the seat.
    fn search(&mut self) -> Option<Paths> {
        let guests = self.supply.len();
        let begins = |guest: usize| if self.supply[guest] > 0 { -self.potential[guest] } else { FAR };
        let mut distance: Vec<i64> = (0..guests).map(begins).collect();
        let (mut from, mut done) = (vec![None; guests], vec![false; guests]);
        let (mut to_sink, mut last) = (FAR, None);
        loop {
            self.steps += 2 * guests as u64;
            let open = (0..guests).filter(|&guest| !done[guest] && distance[guest] < to_sink);
            let Some(guest) = open.min_by_key(|&guest| distance[guest]) else { break };
            done[guest] = true;
            if let Some((cost, _)) = self.room(guest) {
                let through = distance[guest] + cost + self.potential[guest] - self.sink_potential;
                if through < to_sink {
                    (to_sink, last) = (through, Some(guest));
                }
            }
            for other in (0..guests).filter(|&other| !done[other]) {
                let (cost, _) = self.exchange[guest][other];
                let through = distance[guest] + cost + self.potential[guest] - self.potential[other];
                if cost < FAR && through < distance[other] {
                    (distance[other], from[other]) = (through, Some(guest));
                }
            }
        }
        last.map(|last| Paths { distance, from, to_sink, last })
    }

    /// Sends as many as fit along a path.
    fn send(&mut self, paths: &Paths) {
        let (_, room) = self.room(paths.last).expect("the path ends at a seat with room");
        // From the end to the beginning: each guest takes a seat, and displaces the guest before it in this list.
        let mut moves = vec![(paths.last, room)];
        let mut count = self.capacity[room];
        let mut guest = paths.last;
        while let Some(displacer) = paths.from[guest] {
            let (_, seat) = self.exchange[displacer][guest];
            count = count.min(self.flow[guest][seat]);
            moves.push((displacer, seat));
            guest = displacer;
        }
        count = count.min(self.supply[guest]);
        self.supply[guest] -= count;
        self.capacity[room] -= count;
        for pair in moves.windows(2) {
            self.take(pair[0].0, pair[1].1, count);
        }
        for (guest, seat) in moves {
            self.put(guest, seat, count);
        }
    }

    fn put(&mut self, guest: usize, seat: usize, count: u64) {
        self.flow[guest][seat] += count;
        if self.flow[guest][seat] > count || self.seats_of[guest].contains(&seat) {
            return;
        }
        self.seats_of[guest].push(seat);
        self.steps += self.supply.len() as u64;
        for other in 0..self.supply.len() {
            let exchange = self.exchange_at(other, guest, seat);
            if exchange < self.exchange[other][guest] {
                self.exchange[other][guest] = exchange;
            }
        }
    }

    fn take(&mut self, guest: usize, seat: usize, count: u64) {
        self.flow[guest][seat] -= count;
        if self.flow[guest][seat] > 0 {
            return;
        }
        self.seats_of[guest].retain(|&other| other != seat);
        for other in 0..self.supply.len() {
            if self.exchange[other][guest].1 == seat {
                self.steps += self.seats_of[guest].len() as u64;
                let seats = self.seats_of[guest].iter().map(|&seat| self.exchange_at(other, guest, seat));
                self.exchange[other][guest] = seats.min().unwrap_or((FAR, 0));
            }
        }
    }

    fn exchange_at(&self, guest: usize, displaced: usize, seat: usize) -> Exchange {
        match (self.cost(guest, seat), self.cost(displaced, seat)) {
            (Some(comes), Some(goes)) if guest != displaced => (comes - goes, seat),
            _ => (FAR, seat),
        }
    }

    fn plan(self) -> Plan {
        let mut flows = Vec::new();
        let mut weight = 0;
        for (guest, row) in self.flow.iter().enumerate() {
            for (seat, &count) in row.iter().enumerate().filter(|(_, count)| **count > 0) {
                flows.push(Flow { guest, seat, count });
                weight += u64::from(self.weights[guest][seat].unwrap_or(0)) * count;
            }
        }
        Plan { flows, weight, steps: self.steps }
    }
}
