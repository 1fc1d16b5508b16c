//! What there is and how much of it is left. Knows no policy; never over-commits.

use crate::{GPU_MILLI, GpuNeed, ModelId, Request, SLOTS_PER_BOX_MAX, Shape, Slots};
use std::collections::VecDeque;

/// A box, by its place in the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoxId(pub u32);

/// A box as it joins.
#[derive(Clone, Debug)]
pub struct BoxSpec {
    /// The model of its GPUs; of no meaning for a box without any.
    pub model: ModelId,
    /// How many GPUs it has.
    pub gpus: usize,
    /// Thousandths of a processor it lends with its GPUs; zero for a box of a pool.
    pub cpu_milli: u32,
    /// Memory it lends with its GPUs; zero for a box of a pool.
    pub memory_mib: u64,
    /// Among boxes that are equally good, the one with the smallest order is taken.
    pub order: u32,
}

/// A box cannot join.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InventoryError {
    /// It has more GPUs than a set of slots can name.
    #[error("a box has {gpus} GPUs, and {SLOTS_PER_BOX_MAX} is the most that can be told apart")]
    TooManySlots {
        /// How many it has.
        gpus: usize,
    },
}

/// A box and what is left of it.
#[derive(Clone, Debug)]
pub struct GpuBox {
    pub(crate) model: ModelId,
    pub(crate) order: u32,
    /// Grows with every change, so that an index knows what it has seen.
    pub(crate) version: u64,
    pub(crate) cpu_milli_free: u32,
    pub(crate) memory_mib_free: u64,
    pub(crate) gpu_milli_free: u32,
    /// Thousandths left of each slot; zero for a slot that is held.
    pub(crate) slot_milli_free: Vec<u16>,
    held: Slots,
    /// How many requests of each kind are here: shares first, then whole ones by how many GPUs they took.
    kinds: Vec<u32>,
}

impl GpuBox {
    /// The model of its GPUs.
    pub fn model(&self) -> ModelId {
        self.model
    }

    /// Thousandths of a processor that are left.
    pub fn cpu_milli_free(&self) -> u32 {
        self.cpu_milli_free
    }

    /// Memory that is left.
    pub fn memory_mib_free(&self) -> u64 {
        self.memory_mib_free
    }

    /// Thousandths of GPUs that are left, all slots together.
    pub fn gpu_milli_free(&self) -> u32 {
        self.gpu_milli_free
    }

    /// Thousandths that are left of each slot.
    pub fn slot_milli_free(&self) -> &[u16] {
        &self.slot_milli_free
    }

    /// The slots that are kept from all requests: spares and broken ones.
    pub fn held(&self) -> Slots {
        self.held
    }

    /// The slots that are neither in use nor held.
    pub fn idle_slots(&self) -> Slots {
        self.slots_with(GPU_MILLI).collect()
    }

    /// The slots that have so many thousandths left, lowest number first.
    pub(crate) fn slots_with(&self, milli: u32) -> impl Iterator<Item = usize> + '_ {
        let fits = move |(slot, free): (usize, &u16)| (u32::from(*free) >= milli).then_some(slot);
        self.slot_milli_free.iter().enumerate().filter_map(fits)
    }

    /// Whether the slots of this box can serve the request now.
    pub fn has_gpus_for(&self, gpus: GpuNeed) -> bool {
        let needed = gpus.slots() as usize;
        needed == 0 || self.slots_with(gpus.slot_milli()).nth(needed - 1).is_some()
    }

    /// Whether this box can serve a request of this shape now, memory aside.
    pub fn fits(&self, shape: &Shape) -> bool {
        self.cpu_milli_free >= shape.cpu_milli
            && (shape.gpus == GpuNeed::None
                || (shape.models.accepts(self.model) && self.has_gpus_for(shape.gpus)))
    }

    /// Whether requests of the same kind are here, and whether requests of any other kind are.
    pub(crate) fn kinds_beside(&self, gpus: GpuNeed) -> (bool, bool) {
        let own = kind(gpus);
        let others = self.kinds.iter().enumerate().any(|(kind, &count)| count > 0 && Some(kind) != own);
        (own.is_some_and(|own| self.kinds.get(own).is_some_and(|&count| count > 0)), others)
    }
}

fn kind(gpus: GpuNeed) -> Option<usize> {
    match gpus {
        GpuNeed::None => None,
        GpuNeed::Share(_) => Some(0),
        GpuNeed::Whole(count) => Some(usize::from(count)),
    }
}

/// All boxes, and which of them changed lately.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    boxes: Vec<GpuBox>,
    /// The boxes that changed, oldest first, at most as many entries as there are boxes: an index that lags further
    /// behind looks at every box again, which is no more work than reading a longer list.
    changes: VecDeque<BoxId>,
    /// How many changes have been dropped from the front of `changes`.
    changes_dropped: u64,
}

impl Inventory {
    /// Adds a box with everything in it free.
    pub fn add(&mut self, spec: &BoxSpec) -> Result<BoxId, InventoryError> {
        if spec.gpus > SLOTS_PER_BOX_MAX {
            return Err(InventoryError::TooManySlots { gpus: spec.gpus });
        }
        let id = BoxId(u32::try_from(self.boxes.len()).expect("boxes are counted in 32 bits"));
        self.boxes.push(GpuBox {
            model: spec.model,
            order: spec.order,
            version: 0,
            cpu_milli_free: spec.cpu_milli,
            memory_mib_free: spec.memory_mib,
            gpu_milli_free: GPU_MILLI * spec.gpus as u32,
            slot_milli_free: vec![GPU_MILLI as u16; spec.gpus],
            held: Slots::NONE,
            kinds: vec![0; spec.gpus + 1],
        });
        self.note_change(id);
        Ok(id)
    }

    /// Adds a slot to a box, held until [`Inventory::unhold`], and tells its number.
    pub fn add_slot(&mut self, id: BoxId) -> Result<usize, InventoryError> {
        let state = &mut self.boxes[id.0 as usize];
        let slot = state.slot_milli_free.len();
        if slot == SLOTS_PER_BOX_MAX {
            return Err(InventoryError::TooManySlots { gpus: slot + 1 });
        }
        state.slot_milli_free.push(0);
        state.kinds.push(0);
        state.held = state.held.with(slot);
        self.note_change(id);
        Ok(slot)
    }

    /// How many boxes there are.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }

    /// Whether there is no box at all.
    pub fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }

    /// One box.
    pub fn get(&self, id: BoxId) -> &GpuBox {
        &self.boxes[id.0 as usize]
    }

    /// Every box, in the order they joined.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (BoxId, &GpuBox)> {
        self.boxes.iter().enumerate().map(|(number, state)| (BoxId(number as u32), state))
    }

    /// Thousandths of GPUs that are left, held ones aside.
    pub fn gpu_milli_free(&self) -> u64 {
        self.boxes.iter().map(|state| u64::from(state.gpu_milli_free)).sum()
    }

    /// Gives a request what it asked for: these slots of this box.
    ///
    /// # Panics
    ///
    /// If it is not there: the caller chose the slots wrongly, and one GPU must never have two holders.
    pub fn take(&mut self, id: BoxId, slots: Slots, request: &Request) {
        let state = &mut self.boxes[id.0 as usize];
        let (shape, milli) = (&request.shape, request.shape.gpus.slot_milli());
        assert_eq!(slots.count(), shape.gpus.slots(), "a choice must have as many slots as were asked for");
        state.cpu_milli_free =
            state.cpu_milli_free.checked_sub(shape.cpu_milli).expect("processors are left");
        state.memory_mib_free =
            state.memory_mib_free.checked_sub(request.memory_mib).expect("memory is left");
        for slot in slots.iter() {
            let free = &mut state.slot_milli_free[slot];
            *free = free.checked_sub(milli as u16).expect("the slot has so much left");
        }
        state.gpu_milli_free -= shape.gpus.total_milli();
        if let Some(kind) = kind(shape.gpus) {
            state.kinds[kind] += 1;
        }
        self.note_change(id);
    }

    /// Takes back what [`Inventory::take`] gave.
    ///
    /// # Panics
    ///
    /// If more comes back than the box has: it was given back twice.
    pub fn give_back(&mut self, id: BoxId, slots: Slots, request: &Request) {
        let state = &mut self.boxes[id.0 as usize];
        let (shape, milli) = (&request.shape, request.shape.gpus.slot_milli());
        assert_eq!(slots.count(), shape.gpus.slots(), "as many slots come back as were taken");
        state.cpu_milli_free += shape.cpu_milli;
        state.memory_mib_free += request.memory_mib;
        for slot in slots.iter() {
            assert!(!state.held.contains(slot), "a held slot serves nobody, so nobody can give it back");
            let free = &mut state.slot_milli_free[slot];
            *free += milli as u16;
            assert!(u32::from(*free) <= GPU_MILLI, "a slot came back twice");
        }
        state.gpu_milli_free += shape.gpus.total_milli();
        if let Some(kind) = kind(shape.gpus) {
            state.kinds[kind] = state.kinds[kind].checked_sub(1).expect("it was counted when it was taken");
        }
        self.note_change(id);
    }

    /// Keeps an idle slot from all requests: it is a spare, or broken.
    ///
    /// # Panics
    ///
    /// If the slot is in use, or held already.
    pub fn hold(&mut self, id: BoxId, slot: usize) {
        let state = &mut self.boxes[id.0 as usize];
        assert_eq!(u32::from(state.slot_milli_free[slot]), GPU_MILLI, "only an idle slot can be held");
        state.slot_milli_free[slot] = 0;
        state.gpu_milli_free -= GPU_MILLI;
        state.held = state.held.with(slot);
        self.note_change(id);
    }

    /// Lets requests have a held slot again.
    ///
    /// # Panics
    ///
    /// If the slot is not held.
    pub fn unhold(&mut self, id: BoxId, slot: usize) {
        let state = &mut self.boxes[id.0 as usize];
        assert!(state.held.contains(slot), "only a held slot can be let go");
        state.slot_milli_free[slot] = GPU_MILLI as u16;
        state.gpu_milli_free += GPU_MILLI;
        state.held = state.held.without(slot);
        self.note_change(id);
    }

    fn note_change(&mut self, id: BoxId) {
        let state = &mut self.boxes[id.0 as usize];
        state.version += 1;
        self.changes.push_back(id);
        if self.changes.len() > self.boxes.len() {
            self.changes.pop_front();
            self.changes_dropped += 1;
        }
    }

    /// How many changes there have been; what [`Inventory::changed_since`] takes.
    pub(crate) fn change_count(&self) -> u64 {
        self.changes_dropped + self.changes.len() as u64
    }

    /// The boxes that changed since then, with repetitions, or nothing if that is too long ago to know.
    pub(crate) fn changed_since(&self, seen: u64) -> Option<impl Iterator<Item = BoxId> + '_> {
        let first = seen.checked_sub(self.changes_dropped)?;
        Some(self.changes.range(first as usize..).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelFilter, Models};

    fn two_boxes() -> Inventory {
        let mut inventory = Inventory::default();
        let model = Models::default().id("A").unwrap();
        for order in [1, 0] {
            inventory.add(&BoxSpec { model, gpus: 2, cpu_milli: 0, memory_mib: 0, order }).unwrap();
        }
        inventory
    }

    fn request(gpus: GpuNeed) -> Request {
        Request::gpus(gpus, ModelFilter::any())
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut inventory = two_boxes();
        let (id, slots) = (BoxId(0), [0, 1].into_iter().collect());
        let both = request(GpuNeed::Whole(2));
        inventory.take(id, slots, &both);
        assert_eq!((inventory.get(id).gpu_milli_free(), inventory.gpu_milli_free()), (0, 2000));
        assert!(!inventory.get(id).fits(&request(GpuNeed::Share(1)).shape));
        inventory.give_back(id, slots, &both);
        assert!(inventory.get(id).fits(&both.shape) && !inventory.get(id).has_gpus_for(GpuNeed::Whole(3)));
    }

    #[test]
    #[should_panic(expected = "so much left")]
    fn a_slot_never_has_two_whole_holders() {
        let mut inventory = two_boxes();
        inventory.take(BoxId(0), Slots::one(0), &request(GpuNeed::Whole(1)));
        inventory.take(BoxId(0), Slots::one(0), &request(GpuNeed::Whole(1)));
    }

    #[test]
    #[should_panic(expected = "came back twice")]
    fn a_slot_cannot_come_back_twice() {
        let mut inventory = two_boxes();
        inventory.give_back(BoxId(0), Slots::one(0), &request(GpuNeed::Share(1)));
    }

    #[test]
    fn a_held_slot_serves_nobody() {
        let mut inventory = two_boxes();
        inventory.hold(BoxId(1), 0);
        assert!(!inventory.get(BoxId(1)).has_gpus_for(GpuNeed::Whole(2)));
        assert_eq!(inventory.get(BoxId(1)).idle_slots(), Slots::one(1));
        assert_eq!(inventory.gpu_milli_free(), 3000);
        inventory.unhold(BoxId(1), 0);
        assert!(inventory.get(BoxId(1)).has_gpus_for(GpuNeed::Whole(2)));
    }

    #[test]
    fn a_slot_that_is_added_serves_once_it_is_let_go() {
        let mut inventory = two_boxes();
        assert_eq!(inventory.add_slot(BoxId(0)), Ok(2));
        assert!(!inventory.get(BoxId(0)).has_gpus_for(GpuNeed::Whole(3)));
        inventory.unhold(BoxId(0), 2);
        inventory.take(BoxId(0), [0, 1, 2].into_iter().collect(), &request(GpuNeed::Whole(3)));
        assert_eq!(inventory.get(BoxId(0)).gpu_milli_free(), 0);
        let full = BoxSpec { model: ModelId(0), gpus: 64, cpu_milli: 0, memory_mib: 0, order: 2 };
        let full = inventory.add(&full).unwrap();
        assert_eq!(inventory.add_slot(full), Err(InventoryError::TooManySlots { gpus: 65 }));
    }

    #[test]
    fn old_changes_are_forgotten() {
        let mut inventory = two_boxes();
        let seen = inventory.change_count();
        inventory.hold(BoxId(1), 0);
        assert_eq!(inventory.changed_since(seen).unwrap().collect::<Vec<_>>(), [BoxId(1)]);
        for _ in 0..3 {
            inventory.unhold(BoxId(1), 0);
            inventory.hold(BoxId(1), 0);
        }
        assert!(inventory.changed_since(seen).is_none());
    }

    #[test]
    fn a_box_with_too_many_slots_cannot_join() {
        let spec = BoxSpec { model: ModelId(0), gpus: 65, cpu_milli: 0, memory_mib: 0, order: 0 };
        assert_eq!(Inventory::default().add(&spec), Err(InventoryError::TooManySlots { gpus: 65 }));
    }
}
