//! Fills of pinned memory, which is the program's: done in this process, when a stream or a graph comes to them.

#![allow(unsafe_code)]

use super::{client, plane_span};
use crate::host::HostRegion;
use cuda_wire::{Plane, Shape};

/// What is written where.
pub(crate) struct PinnedFill {
    target: HostRegion,
    row: Vec<u8>,
    rows: u64,
}

impl PinnedFill {
    /// A fill of `shape` (its width in bytes) with elements of `value`; `None` where the memory is not pinned.
    pub(crate) fn new(target: &Plane, shape: &Shape, element_bytes: u8, value: u32) -> Option<Self> {
        let span = plane_span(target, shape).ok()?;
        if !client().ok()?.pinned.holds(target.address, span) {
            return None;
        }
        let element = &value.to_le_bytes()[..element_bytes.into()];
        let row = element.iter().copied().cycle().take(shape.width as usize).collect();
        // SAFETY: the range is pinned. Unpinning it waits for the streams that write it. A program that unpins it while
        // a graph may write it breaks the promise that every program makes for the memory of its graphs.
        let target = unsafe { HostRegion::new(target.address, *shape, target.row_pitch, 0) };
        Some(Self { target, row, rows: shape.height })
    }

    /// Does it.
    pub(crate) fn run(&self) {
        (0..self.rows).for_each(|at| self.target.write(at * self.row.len() as u64, &self.row));
    }
}
