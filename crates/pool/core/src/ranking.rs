//! The boxes that fit one shape, best first, kept up to date lazily.
//!
//! A ranking remembers how many changes of the inventory it has seen. When its shape is asked for, it scores only the
//! boxes that changed since then, and the best box is the first of an ordered set: a request costs the logarithm of
//! the pool and the changes since the last request of its shape, not a look at every box. Tiers (NVLink or PCIe,
//! path, rack) go in front of the score in [`Rank`].

use crate::policy::Judge;
use crate::{BoxId, Inventory, Shape};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Rankings kept at once. A tenant can ask for any number of shapes; each ranking is a few dozen bytes a box.
const RANKINGS_MAX: usize = 512;

/// Smaller is better: the higher score, then the smaller order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) score: Reverse<u8>,
    order: u32,
    pub(crate) id: BoxId,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ranking {
    changes_seen: u64,
    /// When it was last asked for, to forget the one that was not for the longest time.
    used_at: u64,
    /// By box: the version that was scored, and the score if the shape fits.
    scored: Vec<(u64, Option<u8>)>,
    ordered: BTreeSet<Rank>,
}

impl Ranking {
    fn catch_up(&mut self, inventory: &Inventory, wasted: &[f64], judge: &Judge, shape: &Shape) {
        // No box has version 0: joining is its first change.
        self.scored.resize(inventory.len(), (0, None));
        match inventory.changed_since(self.changes_seen) {
            Some(changed) => changed.for_each(|id| self.score_again(id, inventory, wasted, judge, shape)),
            None => {
                inventory.iter().for_each(|(id, _)| self.score_again(id, inventory, wasted, judge, shape))
            }
        }
        self.changes_seen = inventory.change_count();
    }

    fn score_again(
        &mut self,
        id: BoxId,
        inventory: &Inventory,
        wasted: &[f64],
        judge: &Judge,
        shape: &Shape,
    ) {
        let (state, number) = (inventory.get(id), id.0 as usize);
        let (version, old) = self.scored[number];
        if version == state.version {
            return;
        }
        let new = state.fits(shape).then(|| judge.score(state, shape, wasted[number]));
        self.scored[number] = (state.version, new);
        if old == new {
            return;
        }
        let rank = |score| Rank { score: Reverse(score), order: state.order, id };
        if let Some(old) = old {
            self.ordered.remove(&rank(old));
        }
        if let Some(new) = new {
            self.ordered.insert(rank(new));
        }
    }

    /// The boxes that fit, best first.
    pub(crate) fn best_first(&self) -> impl Iterator<Item = &Rank> {
        self.ordered.iter()
    }
}

/// The rankings of the shapes that were asked for lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rankings {
    by_shape: HashMap<Shape, Ranking>,
    uses: u64,
}

impl Rankings {
    /// The ranking of this shape, as things are now. `wasted` has each box's fragment.
    pub(crate) fn of(
        &mut self,
        shape: &Shape,
        inventory: &Inventory,
        wasted: &[f64],
        judge: &Judge,
    ) -> &Ranking {
        if !self.by_shape.contains_key(shape) {
            if self.by_shape.len() == RANKINGS_MAX {
                self.forget_oldest();
            }
            self.by_shape.insert(shape.clone(), Ranking::default());
        }
        self.uses += 1;
        let ranking = self.by_shape.get_mut(shape).expect("it was put there just now");
        ranking.used_at = self.uses;
        ranking.catch_up(inventory, wasted, judge, shape);
        ranking
    }

    /// Brings every ranking up to date.
    pub(crate) fn catch_up(&mut self, inventory: &Inventory, wasted: &[f64], judge: &Judge) {
        for (shape, ranking) in &mut self.by_shape {
            ranking.catch_up(inventory, wasted, judge, shape);
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.by_shape.iter().min_by_key(|(_, ranking)| ranking.used_at);
        if let Some(shape) = oldest.map(|(shape, _)| shape.clone()) {
            self.by_shape.remove(&shape);
        }
    }
}
