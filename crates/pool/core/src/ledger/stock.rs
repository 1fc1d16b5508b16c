//! Which GPUs can be had now, indexed so that a grant looks at few of them.
//!
//! A *bin* is the GPUs of one box that are alike and joined alike: same model, memory and NVLink group. Bins are what
//! the [`Placer`] places into. What the placer calls a model is a *class* here: model, memory, kind of box and plane, so that
//! every hard filter of a request is a set of classes, one machine word.

mod parts;

use crate::model::MODELS_MAX;
use crate::{
    BoxId, BoxSpec, Dice, GpuNeed, Inventory, Mix, ModelFilter, ModelId, Placer, Policy, Request, Scale,
    Shape, Slots,
};
use pool_api::{BoxKind, Model, Name};
use std::collections::{BTreeSet, HashMap};

/// A set of classes.
pub(crate) type Mask = u64;

/// GPUs that no filter of a request tells apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    pub(crate) model: Model,
    pub(crate) memory_bytes: u64,
    pub(crate) kind: BoxKind,
    /// Whether hosts can have it plugged in, on the PCIe plane.
    pub(crate) pcie: bool,
    /// Whether programs can use it, on the api plane.
    pub(crate) api: bool,
    pub(crate) seat: Seat,
}

impl Class {
    /// Whether GPUs of both classes can be one GPU, of which something else is said now.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let is_same = match (self.seat, other.seat) {
            (Seat::Whole { .. }, Seat::Whole { .. }) => true,
            (one, other) => one == other,
        };
        is_same && Self { pcie: other.pcie, seat: other.seat, ..self.clone() } == *other
    }
}

/// What of a GPU a lease gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seat {
    /// The GPU. An online lease leaves a guest so much of its memory.
    Whole {
        /// What the seat on it has; 0 without one, and where that is promised twice.
        guest_bytes: u64,
    },
    /// A seat for guests.
    Guest,
    /// A part of a GPU, for a lease with a share.
    Part {
        /// Thousandths of the GPU.
        milli: u32,
    },
}

impl Seat {
    /// Whether it is a GPU, and not something on it.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Self::Whole { .. })
    }
}

/// There are more kinds of GPU than a machine word has bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyClasses;

/// A GPU, by its place in the stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) bin: BoxId,
    pub(crate) index: u8,
}

/// Whether a GPU can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is not there, or broken: no lease can count on it.
    Gone,
    /// Not now: leased, being cleaned, tainted, or its box is silent.
    Busy,
    /// Only by a lease that lost a GPU.
    Spare,
    /// By any lease.
    Usable,
}

/// How close together the GPUs of a request must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tightness {
    Anywhere,
    OneBox,
    OneBin,
}

/// What a request needs of the stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Need {
    pub(crate) classes: Mask,
    pub(crate) gpus: u32,
    pub(crate) tightness: Tightness,
    /// Spares may be taken.
    pub(crate) spares: bool,
    /// Guard memory for each GPU, in its box; 0: as much as the GPU has. The stock does not know boxes' guard memory: the
    /// ledger hides GPUs whose boxes have too little ([`Stock::without`]).
    pub(crate) guard: Option<u64>,
}

#[derive(Clone, Debug)]
struct Bin {
    box_name: Name,
    class: ModelId,
    group: Option<u32>,
    /// By index: the slot in its box, and how it stands.
    slots: Vec<(u8, Standing)>,
    usable: u32,
    spare: u32,
    present: u32,
}

/// Bins of one class, by how many GPUs of them count.
type Counted = BTreeSet<(u32, BoxId)>;

#[derive(Clone, Debug, Default)]
struct ClassIndex {
    usable: Counted,
    /// Usable or spare.
    reachable: Counted,
    spare: Counted,
    present: Counted,
    usable_sum: u64,
    spare_sum: u64,
    present_sum: u64,
}

/// The stock.
#[derive(Clone, Debug)]
pub(crate) struct Stock {
    placer: Placer,
    classes: Vec<Class>,
    by_class: Vec<ClassIndex>,
    bins: Vec<Bin>,
    bins_of_box: HashMap<Name, Vec<BoxId>>,
    /// Boxes with several bins of one class, which only [`Tightness::OneBox`] has to look at.
    split: BTreeSet<Name>,
    /// Grows when a GPU can be had that could not before.
    gains: u64,
}

impl Stock {
    pub(crate) fn new() -> Self {
        let scale = Scale { cpu_milli: 1, gpu_milli: 8 * crate::GPU_MILLI };
        Self {
            placer: Placer::new(Inventory::default(), Policy::Fgd, scale, usual_mix()),
            classes: Vec::new(),
            by_class: Vec::new(),
            bins: Vec::new(),
            bins_of_box: HashMap::new(),
            split: BTreeSet::new(),
            gains: 0,
        }
    }

    pub(crate) fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Grows when a GPU can be had that could not before: what did not fit at one count does not fit until the next.
    pub(crate) fn gains(&self) -> u64 {
        self.gains
    }

    /// A place for a GPU, gone until [`Stock::set`] says otherwise.
    pub(crate) fn add(
        &mut self,
        box_name: &Name,
        slot: u8,
        class: Class,
        group: Option<u32>,
    ) -> Result<Place, TooManyClasses> {
        let class = self.class_id(class)?;
        let own = self.bins_of_box.entry(box_name.clone()).or_default();
        let alike = |id: &&BoxId| {
            let bin = &self.bins[id.0 as usize];
            bin.class == class && bin.group == group && bin.slots.len() < crate::SLOTS_PER_BOX_MAX
        };
        let id = match own.iter().find(alike) {
            Some(&id) => id,
            None => {
                let order = self.bins.len() as u32;
                let spec = BoxSpec { model: class, gpus: 0, cpu_milli: 0, memory_mib: 0, order };
                let id = self.placer.add(&spec).expect("a box without slots fits");
                if own.iter().any(|other| self.bins[other.0 as usize].class == class) {
                    self.split.insert(box_name.clone());
                }
                own.push(id);
                self.bins.push(Bin {
                    box_name: box_name.clone(),
                    class,
                    group,
                    slots: Vec::new(),
                    usable: 0,
                    spare: 0,
                    present: 0,
                });
                id
            }
        };
        let index = self.placer.add_slot(id).expect("the bin has room");
        self.bins[id.0 as usize].slots.push((slot, Standing::Gone));
        Ok(Place { bin: id, index: index as u8 })
    }

    fn class_id(&mut self, class: Class) -> Result<ModelId, TooManyClasses> {
        let number = match self.classes.iter().position(|known| *known == class) {
            Some(number) => number,
            None if self.classes.len() == MODELS_MAX => return Err(TooManyClasses),
            None => {
                self.classes.push(class);
                self.by_class.push(ClassIndex::default());
                self.classes.len() - 1
            }
        };
        Ok(ModelId(number as u8))
    }

    /// Box and slot of a place.
    pub(crate) fn locate(&self, place: Place) -> (&Name, u8) {
        let bin = &self.bins[place.bin.0 as usize];
        (&bin.box_name, bin.slots[usize::from(place.index)].0)
    }

    pub(crate) fn class_of(&self, place: Place) -> &Class {
        &self.classes[usize::from(self.bins[place.bin.0 as usize].class.0)]
    }

    /// The number of a place's class, as [`Mask`] counts them.
    pub(crate) fn class_number(&self, place: Place) -> u8 {
        self.bins[place.bin.0 as usize].class.0
    }

    /// Says how a GPU stands now.
    pub(crate) fn set(&mut self, place: Place, standing: Standing) {
        let bin = &mut self.bins[place.bin.0 as usize];
        let slot = &mut bin.slots[usize::from(place.index)].1;
        let old = std::mem::replace(slot, standing);
        if old == standing {
            return;
        }
        let class = &mut self.by_class[usize::from(bin.class.0)];
        class.forget(bin, place.bin);
        for (standing, add) in [(old, false), (standing, true)] {
            let step = |count: &mut u32, sum: &mut u64| {
                *count = if add { *count + 1 } else { *count - 1 };
                *sum = if add { *sum + 1 } else { *sum - 1 };
            };
            match standing {
                Standing::Gone => continue,
                Standing::Busy => {}
                Standing::Spare => step(&mut bin.spare, &mut class.spare_sum),
                Standing::Usable => step(&mut bin.usable, &mut class.usable_sum),
            }
            step(&mut bin.present, &mut class.present_sum);
        }
        class.count(bin, place.bin);
        match (old == Standing::Usable, standing == Standing::Usable) {
            (false, true) => self.placer.unhold(place.bin, usize::from(place.index)),
            (true, false) => self.placer.hold(place.bin, usize::from(place.index)),
            _ => {}
        }
        if matches!(standing, Standing::Usable | Standing::Spare) {
            self.gains += 1;
        }
    }

    /// A search in which these GPUs cannot be had.
    pub(crate) fn without<T>(&mut self, hidden: &[Place], search: impl FnOnce(&mut Self) -> T) -> T {
        // Hiding and showing them again is no gain.
        let gains = self.gains;
        let before: Vec<Standing> = hidden.iter().map(|place| self.standing(*place)).collect();
        hidden.iter().for_each(|place| self.set(*place, Standing::Busy));
        let found = search(self);
        hidden.iter().zip(before).for_each(|(place, before)| self.set(*place, before));
        self.gains = gains;
        found
    }

    /// A search in which these GPUs can be had, too.
    pub(crate) fn with<T>(&mut self, shown: &[Place], search: impl FnOnce(&mut Self) -> T) -> T {
        let gains = self.gains;
        let before: Vec<Standing> = shown.iter().map(|place| self.standing(*place)).collect();
        shown.iter().for_each(|place| self.set(*place, Standing::Usable));
        let found = search(self);
        shown.iter().zip(before).for_each(|(place, before)| self.set(*place, before));
        self.gains = gains;
        found
    }

    /// Whether any box has ever had seats for guests.
    pub(crate) fn has_seats(&self) -> bool {
        self.classes.iter().any(|class| class.seat == Seat::Guest)
    }

    /// Something else than a GPU can be had that could not before.
    pub(crate) fn gained(&mut self) {
        self.gains += 1;
    }

    /// How a GPU stands now.
    pub(crate) fn standing(&self, place: Place) -> Standing {
        self.bins[place.bin.0 as usize].slots[usize::from(place.index)].1
    }

    /// How many GPUs as close together as the need asks, and of one model, can be had now.
    pub(crate) fn have(&self, need: &Need) -> u64 {
        let counted = |bin: &Bin| bin.usable + if need.spares { bin.spare } else { 0 };
        let most = |index: &ClassIndex| {
            let counted = if need.spares { &index.reachable } else { &index.usable };
            counted.last().map(|&(count, _)| count)
        };
        let in_a_bin = self.each(need.classes).filter_map(most).max().unwrap_or(0);
        match need.tightness {
            Tightness::OneBin => u64::from(in_a_bin),
            Tightness::OneBox => {
                let masks: Vec<Mask> = self.model_masks(need.classes).collect();
                let split = self.split.iter().flat_map(|name| masks.iter().map(move |mask| (name, *mask)));
                let in_a_box = split.map(|(name, mask)| self.in_box(name, mask, counted)).max().unwrap_or(0);
                u64::from(in_a_bin.max(in_a_box))
            }
            Tightness::Anywhere => self
                .model_masks(need.classes)
                .map(|mask| self.usable(mask) + if need.spares { self.spares(mask) } else { 0 })
                .max()
                .unwrap_or(0),
        }
    }

    /// Whether a lease that lost a GPU could have this one now.
    pub(crate) fn can_be_had(&self, place: Place) -> bool {
        let standing = self.bins[place.bin.0 as usize].slots[usize::from(place.index)].1;
        matches!(standing, Standing::Usable | Standing::Spare)
    }

    /// Whether it is of one of these classes.
    pub(crate) fn is_of(&self, place: Place, mask: Mask) -> bool {
        mask >> self.bins[place.bin.0 as usize].class.0 & 1 == 1
    }

    /// The classes that pass.
    pub(crate) fn mask(&self, accepts: impl Fn(&Class) -> bool) -> Mask {
        self.classes
            .iter()
            .enumerate()
            .filter(|(_, class)| accepts(class))
            .fold(0, |mask, (bit, _)| mask | 1 << bit)
    }

    fn of_kind(&self, mask: Mask, kind: BoxKind) -> Mask {
        mask & self.mask(|class| class.kind == kind)
    }

    fn each(&self, mask: Mask) -> impl Iterator<Item = &ClassIndex> + '_ {
        self.by_class.iter().enumerate().filter(move |(bit, _)| mask >> bit & 1 == 1).map(|(_, index)| index)
    }

    /// How many GPUs of these classes any lease can have.
    pub(crate) fn usable(&self, mask: Mask) -> u64 {
        self.each(mask).map(|index| index.usable_sum).sum()
    }

    /// How many are held back.
    pub(crate) fn spares(&self, mask: Mask) -> u64 {
        self.each(mask).map(|index| index.spare_sum).sum()
    }

    /// How many are there at all: in use, held back or free.
    pub(crate) fn present(&self, mask: Mask) -> u64 {
        self.each(mask).map(|index| index.present_sum).sum()
    }

    /// The most usable GPUs in one bin.
    pub(crate) fn usable_together(&self, mask: Mask) -> u32 {
        self.each(mask).filter_map(|index| index.usable.last()).map(|&(count, _)| count).max().unwrap_or(0)
    }

    /// The most GPUs in one bin that are not gone.
    pub(crate) fn present_together(&self, mask: Mask) -> u32 {
        self.each(mask).filter_map(|index| index.present.last()).map(|&(count, _)| count).max().unwrap_or(0)
    }

    /// Whether it could be served if it were the only lease.
    pub(crate) fn feasible(&self, need: &Need) -> bool {
        match need.tightness {
            Tightness::OneBin => self.present_together(need.classes) >= need.gpus,
            Tightness::OneBox => {
                self.present_together(need.classes) >= need.gpus
                    || self.split.iter().any(|name| {
                        self.model_masks(need.classes)
                            .any(|mask| self.in_box(name, mask, |bin| bin.present) >= need.gpus)
                    })
            }
            Tightness::Anywhere => self.model_masks(need.classes).any(|mask| {
                self.each(mask).map(|index| index.present_sum).sum::<u64>() >= u64::from(need.gpus)
            }),
        }
    }

    fn in_box(&self, name: &Name, mask: Mask, count: impl Fn(&Bin) -> u32) -> u32 {
        let own = self.bins_of_box.get(name).into_iter().flatten();
        own.map(|id| &self.bins[id.0 as usize]).filter(|bin| mask >> bin.class.0 & 1 == 1).map(count).sum()
    }

    /// The classes of each model in the mask.
    fn model_masks(&self, mask: Mask) -> impl Iterator<Item = Mask> + '_ {
        let mut rest = mask;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let model = &self.classes.get(rest.trailing_zeros() as usize)?.model;
            let own = rest & self.mask(|class| class.model == *model);
            rest &= !own;
            Some(own)
        })
    }

    /// Where a request should go: GPUs of one model, or nothing.
    ///
    /// Tiers first: a PCIe box before an NVLink box, unless NVLink was asked for by the classes alone; one bin before
    /// several. Within a tier the placer's policy decides.
    pub(crate) fn choose(&mut self, need: &Need, dice: &mut dyn Dice) -> Option<Vec<Place>> {
        if need.gpus == 1
            && let Some(place) = self.a_part(need.classes)
        {
            return Some(vec![place]);
        }
        if need.spares
            && need.gpus == 1
            && let Some(place) = self.a_spare(need.classes)
        {
            return Some(vec![place]);
        }
        for kind in [BoxKind::Pcie, BoxKind::Nvlink] {
            let mask = self.of_kind(need.classes, kind);
            if self.usable_together(mask) < need.gpus {
                continue;
            }
            let gpus = GpuNeed::Whole(need.gpus as u8);
            let shape = Shape { cpu_milli: 0, gpus, models: ModelFilter::of_mask(mask) };
            if let Some(choice) = self.placer.choose(&Request { shape, memory_mib: 0 }, dice) {
                return Some(places(choice.id, choice.slots));
            }
        }
        if need.spares
            && let Some(found) = self.reachable_bin(need)
        {
            return Some(found);
        }
        match need.tightness {
            Tightness::OneBin => None,
            Tightness::OneBox => self.in_split_box(need),
            Tightness::Anywhere => self.spread(need),
        }
    }

    /// The spare in the bin that has most of them, so that spares stay spread over boxes.
    fn a_spare(&self, mask: Mask) -> Option<Place> {
        let &(count, bin) = self.each(mask).filter_map(|index| index.spare.last()).max()?;
        (count > 0).then(|| self.taken_from(bin, 1, &[Standing::Spare]).next()).flatten()
    }

    fn taken_from<'a>(
        &'a self,
        bin: BoxId,
        count: u32,
        order: &'a [Standing],
    ) -> impl Iterator<Item = Place> + 'a {
        let slots = &self.bins[bin.0 as usize].slots;
        let of = move |wanted: &'a Standing| {
            slots.iter().enumerate().filter(move |(_, slot)| slot.1 == *wanted).map(|(index, _)| index)
        };
        order.iter().flat_map(of).take(count as usize).map(move |index| Place { bin, index: index as u8 })
    }

    /// One bin, spares included, with as little left over as possible.
    fn reachable_bin(&self, need: &Need) -> Option<Vec<Place>> {
        let snug = |index: &ClassIndex| index.reachable.range((need.gpus, BoxId(0))..).next().copied();
        let (_, bin) = self.each(need.classes).filter_map(snug).min()?;
        Some(self.taken_from(bin, need.gpus, &[Standing::Usable, Standing::Spare]).collect())
    }

    /// A box whose GPUs are alike but not joined alike.
    fn in_split_box(&self, need: &Need) -> Option<Vec<Place>> {
        let counted = |bin: &Bin| bin.usable + if need.spares { bin.spare } else { 0 };
        let standings: &[Standing] =
            if need.spares { &[Standing::Usable, Standing::Spare] } else { &[Standing::Usable] };
        for name in &self.split {
            for mask in self.model_masks(need.classes) {
                if self.in_box(name, mask, counted) < need.gpus {
                    continue;
                }
                let own = self.bins_of_box.get(name).into_iter().flatten();
                let own = own.filter(|id| mask >> self.bins[id.0 as usize].class.0 & 1 == 1);
                let all = own.flat_map(|&id| self.taken_from(id, need.gpus, standings));
                return Some(all.take(need.gpus as usize).collect());
            }
        }
        None
    }

    /// Several boxes, as few as possible, PCIe ones first. Of the models that can serve, the one with the fewest left.
    fn spread(&self, need: &Need) -> Option<Vec<Place>> {
        let counted = |mask| self.usable(mask) + if need.spares { self.spares(mask) } else { 0 };
        let enough = self.model_masks(need.classes).filter(|&mask| counted(mask) >= u64::from(need.gpus));
        let mask = enough.min_by_key(|&mask| counted(mask))?;
        let standings: &[Standing] =
            if need.spares { &[Standing::Usable, Standing::Spare] } else { &[Standing::Usable] };
        let mut found = Vec::new();
        for kind in [BoxKind::Pcie, BoxKind::Nvlink] {
            let mut bins: Vec<(u32, BoxId)> = Vec::new();
            for index in self.each(self.of_kind(mask, kind)) {
                let counted = if need.spares { &index.reachable } else { &index.usable };
                bins.extend(counted.iter().rev().take(need.gpus as usize));
            }
            bins.sort_by_key(|&(count, id)| (std::cmp::Reverse(count), id));
            for (_, id) in bins {
                let missing = need.gpus - found.len() as u32;
                found.extend(self.taken_from(id, missing, standings));
            }
        }
        (found.len() == need.gpus as usize).then_some(found)
    }

    /// A GPU that can stand beside these: in the same bin, in the same box, or anywhere.
    pub(crate) fn beside(&mut self, kept: &[Place], need: &Need, dice: &mut dyn Dice) -> Option<Place> {
        let order: &[Standing] =
            if need.spares { &[Standing::Spare, Standing::Usable] } else { &[Standing::Usable] };
        match (need.tightness, kept.first()) {
            (Tightness::OneBin, Some(first)) => self.taken_from(first.bin, 1, order).next(),
            (Tightness::OneBox, Some(first)) => {
                let name = &self.bins[first.bin.0 as usize].box_name;
                let own = self.bins_of_box.get(name).into_iter().flatten();
                let own = own.filter(|id| need.classes >> self.bins[id.0 as usize].class.0 & 1 == 1);
                let mut found = own.flat_map(|&id| self.taken_from(id, 1, order));
                found.next()
            }
            _ => self.choose(&Need { gpus: 1, tightness: Tightness::Anywhere, ..*need }, dice)?.pop(),
        }
    }

    /// A GPU of this box that a lease could have, a spare first if spares may be taken.
    pub(crate) fn inside(&self, box_name: &Name, need: &Need) -> Option<Place> {
        let order: &[Standing] =
            if need.spares { &[Standing::Spare, Standing::Usable] } else { &[Standing::Usable] };
        let own = self.bins_of_box.get(box_name).into_iter().flatten();
        let own = own.filter(|id| need.classes >> self.bins[id.0 as usize].class.0 & 1 == 1);
        order.iter().find_map(|standing| {
            own.clone().flat_map(|&id| self.taken_from(id, 1, std::slice::from_ref(standing))).next()
        })
    }

    /// The next GPU to hold back as a spare: of the kind of box that has fewest spares for its size, in the bin with
    /// the fewest left, which can serve large requests least.
    pub(crate) fn spare_candidate(&self, mask: Mask) -> Option<Place> {
        let has_usable = |index: &&ClassIndex| index.usable_sum > 0;
        let load = |index: &&ClassIndex| index.present_sum * 1000 / (index.spare_sum + 1);
        let index = self.each(mask).filter(has_usable).max_by_key(load)?;
        let &(_, bin) = index.usable.range((1, BoxId(0))..).next()?;
        self.taken_from(bin, 1, &[Standing::Usable]).next()
    }

    /// The spare to let go first.
    pub(crate) fn spare_surplus(&self, mask: Mask) -> Option<Place> {
        self.a_spare(mask)
    }

    /// Catches up between requests; changes no answer.
    pub(crate) fn catch_up(&mut self) {
        self.placer.catch_up();
    }
}

impl ClassIndex {
    fn forget(&mut self, bin: &Bin, id: BoxId) {
        self.usable.remove(&(bin.usable, id));
        self.spare.remove(&(bin.spare, id));
        self.reachable.remove(&(bin.usable + bin.spare, id));
        self.present.remove(&(bin.present, id));
    }

    fn count(&mut self, bin: &Bin, id: BoxId) {
        let entries = [
            (&mut self.usable, bin.usable),
            (&mut self.spare, bin.spare),
            (&mut self.reachable, bin.usable + bin.spare),
            (&mut self.present, bin.present),
        ];
        for (index, count) in entries {
            if count > 0 {
                index.insert((count, id));
            }
        }
    }
}

fn places(bin: BoxId, slots: Slots) -> Vec<Place> {
    slots.iter().map(|index| Place { bin, index: index as u8 }).collect()
}

/// What fragments are measured against: mostly one GPU, now and then half a box or a whole one. Public traces of
/// training clusters look like this; a pool that keeps its own history can do better.
fn usual_mix() -> Mix {
    let shape = |count| Shape { cpu_milli: 0, gpus: GpuNeed::Whole(count), models: ModelFilter::any() };
    let times = [(1, 55), (2, 15), (4, 15), (8, 15)];
    let shapes: Vec<Shape> = times.iter().flat_map(|&(count, times)| vec![shape(count); times]).collect();
    Mix::observe(&shapes, 100)
}
