//! The pool with its leases, spares and repairs.

use super::{FailingOutcome, ModelSpares, SparePlan};
use crate::replay::pooled::Pooled;
use crate::replay::spares::Day;
use crate::replay::{Curve, FailureProcess, Trace};
use pool::{
    BoxId, Choice, Dice, GpuNeed, ModelFilter, ModelId, Placer, Request, Slots, SplitMix, spares_for,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A GPU by box and slot.
type Place = (BoxId, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    InService,
    Spare,
    InRepair,
}

struct Lease {
    /// What was asked for: a share, or whole GPUs.
    gpus: GpuNeed,
    /// Where it is now; a lease of several GPUs may have come to sit in several boxes.
    parts: Vec<(BoxId, Slots)>,
    since_day: f64,
}

/// What a broken GPU left behind: leases that miss a slot of this model.
struct Stranded {
    leases: Vec<usize>,
    since_day: f64,
}

/// The pool with its leases, spares and repairs.
pub(super) struct Ward<'a> {
    trace: &'a Trace,
    pub(super) pool: Pooled,
    process: FailureProcess,
    dice: SplitMix,
    now_day: f64,
    next_failure_day: f64,
    places: Vec<Place>,
    conditions: BTreeMap<Place, Condition>,
    occupants: BTreeMap<Place, Vec<usize>>,
    repairs: BinaryHeap<(Reverse<Day>, Place)>,
    leases: Vec<Lease>,
    waiting: BTreeMap<ModelId, VecDeque<Stranded>>,
    in_service: BTreeMap<ModelId, usize>,
    in_service_wanted: BTreeMap<ModelId, usize>,
    interrupted_milli_days: f64,
    outcome: FailingOutcome,
}

impl<'a> Ward<'a> {
    pub(super) fn new(trace: &'a Trace, pool: Pooled, plan: &SparePlan, dice: SplitMix) -> Self {
        let mut ward = Self {
            trace,
            process: plan.process,
            dice,
            now_day: 0.0,
            next_failure_day: 0.0,
            places: Vec::new(),
            conditions: BTreeMap::new(),
            occupants: BTreeMap::new(),
            repairs: BinaryHeap::new(),
            leases: Vec::new(),
            waiting: BTreeMap::new(),
            in_service: BTreeMap::new(),
            in_service_wanted: BTreeMap::new(),
            interrupted_milli_days: 0.0,
            outcome: FailingOutcome {
                curve: Curve { allocation_pct: Vec::new(), fragment_pct: Vec::new() },
                spares: Vec::new(),
                failures: 0,
                failures_in_use: 0,
                replaced: 0,
                moved_whole: 0,
                split: 0,
                waited: 0,
                lease_time_kept: 1.0,
            },
            pool,
        };
        ward.open(plan.cover);
        ward.draw_failure();
        ward
    }

    /// Puts every GPU in service except the spares.
    fn open(&mut self, cover: f64) {
        for (id, state) in self.pool.gpus.inventory().iter() {
            for slot in 0..state.slot_milli_free().len() {
                self.places.push((id, slot));
                self.conditions.insert((id, slot), Condition::InService);
                *self.in_service.entry(state.model()).or_default() += 1;
            }
        }
        for (model, gpus) in self.in_service.clone() {
            let spares = spares_for_model(&self.process, gpus, cover);
            let name = self.trace.models.name(model).to_owned();
            self.outcome.spares.push(ModelSpares { model: name, gpus, spares });
            for place in spare_places(&self.pool.gpus, model, spares) {
                self.pool.gpus.hold(place.0, place.1);
                self.conditions.insert(place, Condition::Spare);
            }
            self.in_service.insert(model, gpus - spares);
        }
        self.in_service_wanted = self.in_service.clone();
    }

    fn gpus(&mut self) -> &mut Placer {
        &mut self.pool.gpus
    }

    fn model_of(&self, place: Place) -> ModelId {
        self.pool.gpus.inventory().get(place.0).model()
    }

    pub(super) fn lease(&mut self, choice: &Choice, request: &Request) {
        let lease = self.leases.len();
        self.leases.push(Lease {
            gpus: request.shape.gpus,
            parts: vec![(choice.id, choice.slots)],
            since_day: self.now_day,
        });
        for slot in choice.slots.iter() {
            self.occupants.entry((choice.id, slot)).or_default().push(lease);
        }
    }

    pub(super) fn pass_time_until(&mut self, day: f64) {
        loop {
            let repair_day = self.repairs.peek().map_or(f64::INFINITY, |(Reverse(back), _)| back.0);
            if repair_day.min(self.next_failure_day) > day {
                self.now_day = day;
                return;
            }
            if repair_day <= self.next_failure_day {
                let (_, place) = self.repairs.pop().expect("it was looked at just now");
                self.now_day = repair_day;
                self.repaired(place);
            } else {
                self.now_day = self.next_failure_day;
                self.fail_one();
            }
            self.draw_failure();
        }
    }

    /// GPUs do not remember how long they have worked, so the next failure may be drawn again after every change.
    fn draw_failure(&mut self) {
        let working: usize = self.in_service.values().sum();
        self.next_failure_day = self.now_day + self.process.days_to_failure(working, &mut self.dice);
    }

    fn fail_one(&mut self) {
        let place = loop {
            let number = self.dice.below(self.places.len() as u32) as usize;
            if self.conditions[&self.places[number]] == Condition::InService {
                break self.places[number];
            }
        };
        let model = self.model_of(place);
        self.outcome.failures += 1;
        let stranded = self.occupants.remove(&place).unwrap_or_default();
        for &lease in &stranded {
            self.detach(lease, place);
        }
        self.gpus().hold(place.0, place.1);
        self.conditions.insert(place, Condition::InRepair);
        *self.in_service.get_mut(&model).expect("every model was counted") -= 1;
        let back = self.now_day + self.process.days_of_repair(&mut self.dice);
        self.repairs.push((Reverse(Day(back)), place));

        let spare = self.call_up_spare(model, place.0);
        if !stranded.is_empty() {
            self.outcome.failures_in_use += 1;
            self.rescue(stranded, model, place.0, spare);
        }
    }

    /// Puts a spare of this model into service, one of the same box if there is one.
    fn call_up_spare(&mut self, model: ModelId, near: BoxId) -> Option<Place> {
        let spares = self.conditions.iter().filter(|&(&place, &condition)| {
            condition == Condition::Spare && self.pool.gpus.inventory().get(place.0).model() == model
        });
        let place = spares.map(|(&place, _)| place).min_by_key(|&place| (place.0 != near, place))?;
        self.enter_service(place);
        Some(place)
    }

    fn enter_service(&mut self, place: Place) {
        self.gpus().unhold(place.0, place.1);
        self.conditions.insert(place, Condition::InService);
        let model = self.model_of(place);
        *self.in_service.get_mut(&model).expect("every model was counted") += 1;
    }

    /// Finds a place for what a broken GPU of this box left behind.
    fn rescue(&mut self, stranded: Vec<usize>, model: ModelId, from: BoxId, spare: Option<Place>) {
        // Only a lease of several GPUs can have parts left, and it has its GPUs for itself.
        let together =
            stranded.len() == 1 && self.leases[stranded[0]].parts.iter().any(|part| part.0 == from);
        if together && spare.is_none_or(|spare| spare.0 != from) && self.move_whole(stranded[0], model) {
            self.outcome.moved_whole += 1;
            return;
        }
        match spare.or_else(|| self.idle_place(model)) {
            Some(place) => {
                self.attach_all(&stranded, place);
                let count = if together && place.0 != from {
                    &mut self.outcome.split
                } else {
                    &mut self.outcome.replaced
                };
                *count += 1;
            }
            None => {
                self.outcome.waited += 1;
                let waiting = Stranded { leases: stranded, since_day: self.now_day };
                self.waiting.entry(model).or_default().push_back(waiting);
            }
        }
    }

    /// Moves a lease of several GPUs, one of which broke, to another box of the same model with room for all of it.
    fn move_whole(&mut self, lease: usize, model: ModelId) -> bool {
        let Lease { gpus, ref parts, .. } = self.leases[lease];
        let has: u32 = parts.iter().map(|(_, slots)| slots.count()).sum();
        // A lease that waits for another GPU already gets that one where it is.
        if has + 1 < gpus.slots() {
            return false;
        }
        let request = Request::gpus(gpus, self.only(model));
        let Some(choice) = self.pool.gpus.choose(&request, &mut self.dice) else { return false };
        for (id, slots) in std::mem::take(&mut self.leases[lease].parts) {
            self.gpus().release(id, slots, &part_request(GpuNeed::Whole(1), slots));
            for slot in slots.iter() {
                self.occupants.remove(&(id, slot));
            }
        }
        self.gpus().grant(&choice, &request);
        self.leases[lease].parts = vec![(choice.id, choice.slots)];
        for slot in choice.slots.iter() {
            self.occupants.entry((choice.id, slot)).or_default().push(lease);
        }
        true
    }

    fn only(&self, model: ModelId) -> ModelFilter {
        ModelFilter::any().only(model, &self.trace.models).expect("any model is accepted")
    }

    /// An idle GPU of this model, where the policy would put a request for one.
    fn idle_place(&mut self, model: ModelId) -> Option<Place> {
        let request = Request::gpus(GpuNeed::Whole(1), self.only(model));
        let choice = self.pool.gpus.choose(&request, &mut self.dice)?;
        choice.slots.iter().next().map(|slot| (choice.id, slot))
    }

    /// Takes a slot from a lease.
    fn detach(&mut self, lease: usize, (id, slot): Place) {
        let gpus = self.leases[lease].gpus;
        let parts = &mut self.leases[lease].parts;
        let number = parts.iter().position(|part| part.0 == id && part.1.contains(slot));
        let (_, slots) = parts.swap_remove(number.expect("an occupant has a part in the slot"));
        let rest = slots.without(slot);
        self.gpus().release(id, slots, &part_request(gpus, slots));
        if !rest.is_empty() {
            self.grant_part(lease, id, rest);
        }
    }

    /// Gives leases a slot in place of the one they lost.
    fn attach_all(&mut self, leases: &[usize], place: Place) {
        for &lease in leases {
            self.grant_part(lease, place.0, Slots::one(place.1));
        }
        self.occupants.insert(place, leases.to_vec());
    }

    fn grant_part(&mut self, lease: usize, id: BoxId, slots: Slots) {
        let request = part_request(self.leases[lease].gpus, slots);
        self.gpus().grant(&Choice { id, slots, score: 0 }, &request);
        self.leases[lease].parts.push((id, slots));
    }

    fn repaired(&mut self, place: Place) {
        let model = self.model_of(place);
        if let Some(stranded) = self.waiting.get_mut(&model).and_then(VecDeque::pop_front) {
            self.enter_service(place);
            self.attach_all(&stranded.leases, place);
            self.count_interruption(&stranded);
        } else if self.in_service[&model] < self.in_service_wanted[&model] {
            self.enter_service(place);
        } else {
            self.conditions.insert(place, Condition::Spare);
        }
    }

    /// A lease without one of its GPUs is of no use: all of it counts as interrupted.
    fn count_interruption(&mut self, stranded: &Stranded) {
        let days = self.now_day - stranded.since_day;
        for &lease in &stranded.leases {
            self.interrupted_milli_days += f64::from(self.leases[lease].gpus.total_milli()) * days;
        }
    }

    pub(super) fn finish(mut self, curve: Curve) -> FailingOutcome {
        for stranded in std::mem::take(&mut self.waiting).into_values().flatten() {
            self.count_interruption(&stranded);
        }
        let milli_days =
            |lease: &Lease| f64::from(lease.gpus.total_milli()) * (self.now_day - lease.since_day);
        let leased: f64 = self.leases.iter().map(milli_days).sum();
        let lease_time_kept = if leased > 0.0 { 1.0 - self.interrupted_milli_days / leased } else { 1.0 };
        FailingOutcome { curve, lease_time_kept, ..self.outcome }
    }
}

/// What a part of a lease stands for in the inventory.
fn part_request(gpus: GpuNeed, slots: Slots) -> Request {
    let gpus = match gpus {
        GpuNeed::Whole(_) => GpuNeed::Whole(slots.count() as u8),
        share => share,
    };
    Request::gpus(gpus, ModelFilter::any())
}

/// Spares so that the rest of the model's GPUs is covered; never all of them.
fn spares_for_model(process: &FailureProcess, gpus: usize, cover: f64) -> usize {
    (spares_for(process.mean_in_repair(gpus), cover) as usize).min(gpus.saturating_sub(1))
}

/// The GPUs to hold back: from the smallest boxes, box by box, so that large requests keep their large boxes.
fn spare_places(gpus: &Placer, model: ModelId, count: usize) -> Vec<Place> {
    let of_model = gpus.inventory().iter().filter(|(_, state)| state.model() == model);
    let mut boxes: Vec<(usize, BoxId)> =
        of_model.map(|(id, state)| (state.slot_milli_free().len(), id)).collect();
    boxes.sort_unstable();
    boxes.into_iter().flat_map(|(slots, id)| (0..slots).map(move |slot| (id, slot))).take(count).collect()
}

#[cfg(test)]
impl Ward<'_> {
    /// What must be true between any two events.
    pub(super) fn check(&self) {
        let inventory = self.pool.gpus.inventory();
        for (&(id, slot), &condition) in &self.conditions {
            let held = inventory.get(id).held().contains(slot);
            assert_eq!(held, condition != Condition::InService, "only GPUs in service serve");
        }
        let mut missing = vec![0; self.leases.len()];
        for stranded in self.waiting.values().flatten() {
            stranded.leases.iter().for_each(|&lease| missing[lease] += 1);
        }
        let mut used_milli = 0;
        for (number, lease) in self.leases.iter().enumerate() {
            let has: u32 = lease.parts.iter().map(|(_, slots)| slots.count()).sum();
            assert_eq!(has + missing[number], lease.gpus.slots(), "a lease has its GPUs or waits for them");
            used_milli += u64::from(has * lease.gpus.slot_milli());
            for (id, slots) in &lease.parts {
                for slot in slots.iter() {
                    assert_eq!(self.conditions[&(*id, slot)], Condition::InService);
                    assert!(self.occupants[&(*id, slot)].contains(&number));
                }
            }
        }
        let in_service: usize = self.in_service.values().sum();
        let free = inventory.gpu_milli_free();
        assert_eq!(
            free + used_milli,
            in_service as u64 * u64::from(pool::GPU_MILLI),
            "no GPU has two holders"
        );
    }
}
