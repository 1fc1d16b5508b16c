//! Which part of which GPU a lease with a share gets: the smallest that is large enough, on the GPU with the most free parts.
//!
//! Leases are spread, because parts of one GPU take turns: a lease that is alone on its GPU has all of its time. To crowd them
//! would leave no GPU free for another kind of lease, since a box with parts has no whole ones.

use super::{Mask, Place, Seat, Standing, Stock};
use crate::BoxId;
use pool_api::{BoxKind, Part};

impl Stock {
    /// The classes of parts.
    pub(crate) fn parts(&self) -> Mask {
        self.mask(|class| matches!(class.seat, Seat::Part { .. }))
    }

    /// A part that a lease could have, if any of these classes are parts and one is free.
    pub(super) fn a_part(&self, classes: Mask) -> Option<Place> {
        let size = |(bit, class): (usize, &super::Class)| match class.seat {
            Seat::Part { milli } if classes >> bit & 1 == 1 => {
                Some((milli, class.memory_bytes, class.kind == BoxKind::Nvlink, bit))
            }
            _ => None,
        };
        let sizes = self.classes.iter().enumerate().filter_map(size);
        let (milli, .., bit) = sizes.filter(|(.., bit)| self.by_class[*bit].usable_sum > 0).min()?;
        let &(_, bin) = self.by_class[bit].usable.last()?;
        self.emptiest(bin, milli)
    }

    /// A free part of the GPU in this bin that has the most free ones.
    fn emptiest(&self, bin: BoxId, milli: u32) -> Option<Place> {
        let slots = &self.bins[bin.0 as usize].slots;
        let count = Part { of: 0, milli }.count();
        let free = |of: u8| {
            let is_free =
                |(slot, standing): &&(u8, Standing)| slot / count == of && *standing == Standing::Usable;
            slots.iter().filter(is_free).count()
        };
        let usable = slots.iter().enumerate().filter(|(_, (_, standing))| *standing == Standing::Usable);
        // Of those that are equal the last is the greatest.
        let (index, _) = usable.rev().max_by_key(|(_, (slot, _))| free(slot / count))?;
        Some(Place { bin, index: index as u8 })
    }
}
