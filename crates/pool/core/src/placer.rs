//! Where a request goes.

use crate::fragment::Leftover;
use crate::policy::Judge;
use crate::ranking::Rankings;
use crate::{
    BoxId, BoxSpec, Dice, Fragment, GpuNeed, Inventory, InventoryError, Mix, Policy, Request, Scale, Shape,
    Slots,
};

/// Where a request should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The box.
    pub id: BoxId,
    /// The slots of it; none for a request without GPUs.
    pub slots: Slots,
    /// How good it is, from 0 to 100; of no meaning for the random policy.
    pub score: u8,
}

/// How many boxes stop a request at which wall, in the order they are met: a box counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walls {
    /// Boxes of a model the request does not accept.
    pub model: usize,
    /// Boxes without enough free slots.
    pub gpus: usize,
    /// Boxes with the slots, but without the processors.
    pub cpu: usize,
    /// Boxes with slots and processors, but without the memory.
    pub memory: usize,
    /// Boxes that could serve it.
    pub none: usize,
}

/// An inventory with a policy over it.
#[derive(Clone, Debug)]
pub struct Placer {
    inventory: Inventory,
    judge: Judge,
    rankings: Rankings,
    /// What each box wastes, as of `fragments_seen` changes of the inventory.
    wasted: Vec<f64>,
    fragments_seen: u64,
}

impl Placer {
    /// Places into this inventory by this policy. The mix is what fragments are measured against.
    pub fn new(inventory: Inventory, policy: Policy, scale: Scale, mix: Mix) -> Self {
        let judge = Judge { policy, scale, mix };
        let mut placer =
            Self { inventory, judge, rankings: Rankings::default(), wasted: Vec::new(), fragments_seen: 0 };
        placer.measure_fragments();
        placer
    }

    /// What there is, and what is left of it.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// What fragments are measured against.
    pub fn mix(&self) -> &Mix {
        &self.judge.mix
    }

    /// Where this request should go, or nothing if no box can serve it now. Changes nothing that counts: only what is
    /// remembered of earlier answers.
    pub fn choose(&mut self, request: &Request, dice: &mut dyn Dice) -> Option<Choice> {
        let shape = &request.shape;
        let (id, score) = match self.judge.policy {
            Policy::Random => (self.draw(request, dice)?, 0),
            _ => {
                let ranking = self.rankings.of(shape, &self.inventory, &self.wasted, &self.judge);
                let has_memory = |id: BoxId| self.inventory.get(id).memory_mib_free >= request.memory_mib;
                let best = ranking.best_first().find(|rank| has_memory(rank.id))?;
                (best.id, best.score.0)
            }
        };
        let wasted = self.wasted[id.0 as usize];
        let slots = self.judge.slots(self.inventory.get(id), shape, wasted, dice);
        Some(Choice { id, slots, score })
    }

    /// Does now what the next request of each shape would have to do first. Changes no answer: a manager calls it
    /// between requests, so that a shape that is rarely asked for finds little to catch up with.
    pub fn catch_up(&mut self) {
        self.rankings.catch_up(&self.inventory, &self.wasted, &self.judge);
    }

    /// One of the boxes that fit, by lot. Looks at every box: this policy is for comparison only.
    fn draw(&self, request: &Request, dice: &mut dyn Dice) -> Option<BoxId> {
        let fits = |(id, state): (BoxId, &crate::GpuBox)| {
            (state.memory_mib_free >= request.memory_mib && state.fits(&request.shape)).then_some(id)
        };
        let fitting: Vec<BoxId> = self.inventory.iter().filter_map(fits).collect();
        match fitting.len() {
            0 => None,
            1 => Some(fitting[0]),
            count => Some(fitting[dice.below(count as u32) as usize]),
        }
    }

    /// Gives a request what was chosen for it.
    pub fn grant(&mut self, choice: &Choice, request: &Request) {
        self.inventory.take(choice.id, choice.slots, request);
        self.measure_fragments();
    }

    /// Takes back what a request had.
    pub fn release(&mut self, id: BoxId, slots: Slots, request: &Request) {
        self.inventory.give_back(id, slots, request);
        self.measure_fragments();
    }

    /// Keeps an idle slot from all requests: it is a spare, or broken.
    pub fn hold(&mut self, id: BoxId, slot: usize) {
        self.inventory.hold(id, slot);
        self.measure_fragments();
    }

    /// Lets requests have a held slot again.
    pub fn unhold(&mut self, id: BoxId, slot: usize) {
        self.inventory.unhold(id, slot);
        self.measure_fragments();
    }

    /// Adds a box.
    pub fn add(&mut self, spec: &BoxSpec) -> Result<BoxId, InventoryError> {
        let id = self.inventory.add(spec)?;
        self.measure_fragments();
        Ok(id)
    }

    /// Adds a held slot to a box, and tells its number.
    pub fn add_slot(&mut self, id: BoxId) -> Result<usize, InventoryError> {
        let slot = self.inventory.add_slot(id)?;
        self.measure_fragments();
        Ok(slot)
    }

    /// What stops this request at each box. Looks at every box, so call it only to explain a refusal.
    pub fn walls(&self, request: &Request) -> Walls {
        let mut walls = Walls::default();
        let Shape { cpu_milli, gpus, models } = &request.shape;
        for (_, state) in self.inventory.iter() {
            let wall = match () {
                () if *gpus != GpuNeed::None && !models.accepts(state.model) => &mut walls.model,
                () if !state.has_gpus_for(*gpus) => &mut walls.gpus,
                () if state.cpu_milli_free < *cpu_milli => &mut walls.cpu,
                () if state.memory_mib_free < request.memory_mib => &mut walls.memory,
                () => &mut walls.none,
            };
            *wall += 1;
        }
        walls
    }

    /// Thousandths of idle GPU that the mix cannot use, over all boxes.
    ///
    /// Adds up all boxes in order, so that the sum never depends on history. A manager that shows it all the time
    /// should keep partial sums over ranges of boxes.
    pub fn wasted(&self) -> f64 {
        self.wasted.iter().sum()
    }

    /// The same by what is lacking.
    pub fn fragment(&self) -> Fragment {
        let mut total = Fragment::default();
        for (_, state) in self.inventory.iter() {
            total.add(&Leftover::of(state).fragment(&self.judge.mix));
        }
        total
    }

    fn measure_fragments(&mut self) {
        let Self { inventory, judge, wasted, .. } = self;
        wasted.resize(inventory.len(), 0.0);
        let mut measure = |id: BoxId| {
            wasted[id.0 as usize] = Leftover::of(inventory.get(id)).fragment(&judge.mix).wasted();
        };
        match inventory.changed_since(self.fragments_seen) {
            Some(changed) => changed.for_each(measure),
            None => inventory.iter().for_each(|(id, _)| measure(id)),
        }
        self.fragments_seen = self.inventory.change_count();
    }
}

#[cfg(test)]
mod tests;
