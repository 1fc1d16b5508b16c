//! A warp: registers, frames, and the groups of lanes that are at different places.
//!
//! Lanes that took different ways form *groups*. The group with the deepest call, and among those the one that is
//! furthest behind in the code, runs first; groups that meet at a label become one again. Since compilers lay out
//! the join of two ways behind both, lanes reconverge as early as they can. A group that runs long while others
//! could run must let them, so that lanes may wait for each other.

use crate::code::{Kernel, LANES, Pred, Row, SINK, Src};

/// Why a group does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It can.
    No,
    /// At a barrier of the block.
    Barrier(u8),
    /// At an instruction that other lanes of the warp must reach too.
    Lanes,
}

/// Lanes at one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) pc: u32,
    pub(super) mask: u32,
    pub(super) frame: u32,
    pub(super) wait: Wait,
    /// Goes on although some of the lanes it waits for are elsewhere.
    pub(super) forced: bool,
    /// When it last ran.
    pub(super) stamp: u64,
}

/// A function that some lanes are in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The caller's frame; the kernel's own has none.
    pub(super) parent: Option<u32>,
    /// Where the call is.
    pub(super) site: u32,
    pub(super) function: u32,
    pub(super) base_row: u32,
    pub(super) base_pred: u32,
    pub(super) base_local: u32,
    pub(super) depth: u32,
    /// Lanes that have not returned.
    pub(super) lanes: u32,
}

pub(super) struct Warp {
    pub(super) rows: Vec<Row>,
    pub(super) preds: Vec<u32>,
    pub(super) carry: u32,
    /// Local memory of each lane.
    pub(super) local: Vec<Vec<u8>>,
    pub(super) groups: Vec<Group>,
    pub(super) frames: Vec<Frame>,
    /// Lanes that have not exited.
    pub(super) live: u32,
    pub(super) index: u32,
    pub(super) tid: [Row; 3],
    clock: u64,
}

impl Warp {
    pub(super) fn new(index: u32) -> Self {
        Self {
            rows: Vec::new(),
            preds: Vec::new(),
            carry: 0,
            local: Vec::new(),
            groups: Vec::new(),
            frames: Vec::new(),
            live: 0,
            index,
            tid: [[0; LANES]; 3],
            clock: 0,
        }
    }

    /// Puts all threads at the beginning of the kernel.
    pub(super) fn reset(&mut self, kernel: &Kernel, block: [u32; 3]) {
        let threads = u64::from(block[0]) * u64::from(block[1]) * u64::from(block[2]);
        let first = u64::from(self.index) * LANES as u64;
        let present = threads.saturating_sub(first).min(LANES as u64);
        self.live = if present == 32 { u32::MAX } else { (1 << present) - 1 };
        let function = &kernel.functions[0];
        if self.rows.len() < function.rows as usize || self.local.is_empty() {
            // The first block of this warp. Later ones find the registers as they were left: PTX promises nothing
            // about a register that was not written.
            self.rows.resize(function.rows as usize, [0; LANES]);
            self.local.resize_with(LANES, Vec::new);
            let (x, y) = (u64::from(block[0]), u64::from(block[1]));
            for lane in 0..LANES {
                let thread = first + lane as u64;
                self.tid[0][lane] = thread % x;
                self.tid[1][lane] = thread / x % y;
                self.tid[2][lane] = thread / (x * y);
            }
        }
        self.preds.clear();
        self.preds.resize(function.preds as usize, 0);
        for memory in &mut self.local {
            if memory.len() < function.frame as usize {
                memory.resize(function.frame as usize, 0);
            }
        }
        self.carry = 0;
        self.frames.clear();
        self.frames.push(Frame {
            parent: None,
            site: 0,
            function: 0,
            base_row: 0,
            base_pred: 0,
            base_local: 0,
            depth: 0,
            lanes: self.live,
        });
        self.groups.clear();
        let group =
            Group { pc: function.entry, mask: self.live, frame: 0, wait: Wait::No, forced: false, stamp: 0 };
        self.groups.push(group);
    }

    fn key(&self, group: &Group) -> (u32, u32) {
        (u32::MAX - self.frames[group.frame as usize].depth, group.pc)
    }

    /// Takes the group that should run next. `None` if none can.
    pub(super) fn pick(&mut self, fair: bool) -> Option<Group> {
        let mut best: Option<usize> = None;
        for (index, group) in self.groups.iter().enumerate() {
            if group.wait != Wait::No {
                continue;
            }
            let better = match best {
                None => true,
                Some(other) if fair => group.stamp < self.groups[other].stamp,
                Some(other) => self.key(group) < self.key(&self.groups[other]),
            };
            if better {
                best = Some(index);
            }
        }
        let index = match best {
            Some(index) => index,
            // All groups wait for lanes that exited or that wait elsewhere: the lowest group goes on without them.
            None if !self.groups.is_empty() && self.groups.iter().all(|group| group.wait == Wait::Lanes) => {
                let index = self.lowest();
                self.groups[index].forced = true;
                self.groups[index].wait = Wait::No;
                index
            }
            None => return None,
        };
        let mut group = self.groups.swap_remove(index);
        self.clock += 1;
        group.stamp = self.clock;
        Some(group)
    }

    fn lowest(&self) -> usize {
        let indices = 0..self.groups.len();
        indices.min_by_key(|&index| self.key(&self.groups[index])).unwrap_or(0)
    }

    /// Takes in the groups that stand at the same place.
    pub(super) fn merge(&mut self, current: &mut Group) {
        let mut index = 0;
        while index < self.groups.len() {
            let group = self.groups[index];
            if group.pc == current.pc && group.frame == current.frame && group.wait == Wait::No {
                current.mask |= group.mask;
                self.groups.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Whether another group should run before this one.
    pub(super) fn outranked(&self, current: &Group) -> bool {
        let key = self.key(current);
        self.groups.iter().any(|group| group.wait == Wait::No && self.key(group) < key)
    }

    pub(super) fn has_runnable(&self) -> bool {
        self.groups.iter().any(|group| group.wait == Wait::No)
    }

    /// Whether all of `members` are here; takes in the lanes that wait at the same place.
    pub(super) fn gather(&mut self, current: &mut Group, members: u32) -> bool {
        let missing = |mask: u32, live: u32| members & live & !mask;
        if missing(current.mask, self.live) == 0 || std::mem::take(&mut current.forced) {
            return true;
        }
        let mut index = 0;
        while index < self.groups.len() {
            let group = self.groups[index];
            if group.wait == Wait::Lanes && group.pc == current.pc && group.frame == current.frame {
                current.mask |= group.mask;
                self.groups.swap_remove(index);
            } else {
                index += 1;
            }
        }
        missing(current.mask, self.live) == 0
    }

    /// Lanes that wait at `bar.warp.sync` in several places meet all the same.
    pub(super) fn release_lanes(&mut self) {
        for group in &mut self.groups {
            if group.wait == Wait::Lanes {
                group.wait = Wait::No;
            }
        }
    }

    /// Ends the threads of `mask`.
    pub(super) fn exit(&mut self, mask: u32) {
        self.live &= !mask;
        for frame in &mut self.frames {
            frame.lanes &= !mask;
        }
        // Other lanes may have waited for just these: they look again.
        self.release_lanes();
    }

    #[inline]
    pub(super) fn row<'w>(&'w self, kernel: &'w Kernel, base: usize, src: Src) -> &'w Row {
        if src.is_constant() { &kernel.constants[src.index()] } else { &self.rows[base + src.index()] }
    }

    /// The lanes of a predicate.
    #[inline]
    pub(super) fn pred(&self, base: usize, pred: Pred) -> u32 {
        let value = match pred.index() {
            Some(index) => self.preds[base + index],
            None => 0,
        };
        if pred.is_negated() { !value } else { value }
    }

    #[inline]
    pub(super) fn set_pred(&mut self, base: usize, index: u32, value: u32, mask: u32) {
        if index != SINK {
            let place = &mut self.preds[base + index as usize];
            *place = *place & !mask | value & mask;
        }
    }

    #[inline]
    pub(super) fn set_row(&mut self, base: usize, index: u32, value: &Row, mask: u32) {
        if index == SINK {
            return;
        }
        let row = &mut self.rows[base + index as usize];
        if mask == u32::MAX {
            *row = *value;
        } else {
            for lane in 0..LANES {
                if mask >> lane & 1 == 1 {
                    row[lane] = value[lane];
                }
            }
        }
    }
}
