//! A block: its warps, shared memory and barriers. It can be set aside at any time and go on later.

use super::{
    fault::{Fault, FaultKind},
    run::Context,
    step,
    warp::{Wait, Warp},
};
use crate::{
    code::{BarrierKind, LANES, Op, Src},
    hooks::Hooks,
    memory::DeviceMemory,
};

/// Where a block is, for special registers and faults.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) block: [u32; 3],
    /// Number of the host thread, which stands for the multiprocessor.
    pub(super) worker: u32,
}

/// What threads have arrived at one barrier.
#[derive(Clone, Debug, Default)]
pub(super) struct BarrierState {
    /// Lanes of each warp; empty when no thread is here.
    pub(super) arrived: Vec<u32>,
    /// Threads to wait for; all of the block if `None`.
    pub(super) count: Option<u32>,
    pub(super) all: bool,
    pub(super) any: bool,
    pub(super) trues: u32,
}

/// Barriers of a block: 16 that programs can name, and the cluster's.
pub(super) const BARRIERS: usize = 17;

pub(super) struct Shared {
    pub(super) bytes: Vec<u8>,
    pub(super) barriers: Vec<BarrierState>,
    /// A thread arrived at a barrier or exited since the last look.
    pub(super) changed: bool,
    pub(super) place: Place,
}

pub(super) struct Block {
    warps: Vec<Warp>,
    shared: Shared,
}

/// How far a block came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All threads ended.
    Done,
    /// It used its time.
    Paused,
}

/// Instructions a warp runs before the next one's turn.
const SLICE: i64 = 20_000;
/// Turns of all warps before another block may run.
const ROUNDS: u32 = 64;

impl Block {
    pub(super) fn new(warps: u32, shared_bytes: usize) -> Self {
        let shared = Shared {
            bytes: vec![0; shared_bytes],
            barriers: vec![BarrierState::default(); BARRIERS],
            changed: false,
            place: Place::default(),
        };
        Self { warps: (0..warps).map(Warp::new).collect(), shared }
    }

    /// Makes it block `place` of the grid, at its beginning.
    pub(super) fn reset<M: DeviceMemory, H: Hooks>(&mut self, context: &Context<'_, M, H>, place: Place) {
        for warp in &mut self.warps {
            warp.reset(context.kernel, context.launch.block);
        }
        self.shared.bytes.fill(0);
        self.shared.barriers.fill(BarrierState::default());
        self.shared.changed = false;
        self.shared.place = place;
    }

    /// Runs for a while.
    pub(super) fn run<M: DeviceMemory, H: Hooks>(
        &mut self,
        context: &mut Context<'_, M, H>,
    ) -> Result<Progress, Fault> {
        for _ in 0..ROUNDS {
            let (mut ran, mut spinning, mut live) = (false, true, false);
            for index in 0..self.warps.len() {
                let warp = &mut self.warps[index];
                if warp.groups.is_empty() {
                    continue;
                }
                live = true;
                let outcome = step::run(context, &mut self.shared, warp, SLICE)?;
                ran |= outcome.ran;
                spinning &= !outcome.ran || outcome.spun;
                if self.shared.changed {
                    self.release(context);
                    ran = true;
                }
            }
            if !live {
                return Ok(Progress::Done);
            }
            if context.stop.is_set() {
                return Err(self.fault(context, FaultKind::Aborted, "stopped from outside"));
            }
            if !ran {
                let message = "every thread waits at a barrier that the others never reach";
                return Err(self.fault(context, FaultKind::LaunchFailed, message));
            }
            if spinning {
                break;
            }
        }
        Ok(Progress::Paused)
    }

    fn fault<M: DeviceMemory, H: Hooks>(
        &self,
        context: &Context<'_, M, H>,
        kind: FaultKind,
        message: &str,
    ) -> Fault {
        Fault {
            kind,
            kernel: context.kernel.name.to_string(),
            line: 0,
            block: self.shared.place.block,
            thread: [0; 3],
            address: 0,
            message: message.to_owned(),
        }
    }

    /// Lets threads go from every barrier that is complete.
    fn release<M: DeviceMemory, H: Hooks>(&mut self, context: &Context<'_, M, H>) {
        self.shared.changed = false;
        for id in 0..BARRIERS {
            let state = &self.shared.barriers[id];
            if state.arrived.is_empty() || !self.complete(state) {
                continue;
            }
            let state = std::mem::take(&mut self.shared.barriers[id]);
            for warp in &mut self.warps {
                for index in 0..warp.groups.len() {
                    let group = warp.groups[index];
                    if group.wait != Wait::Barrier(id as u8) {
                        continue;
                    }
                    warp.groups[index].wait = Wait::No;
                    warp.groups[index].pc += 1;
                    let frame = warp.frames[group.frame as usize];
                    let Op::Barrier(barrier) = &context.kernel.code[group.pc as usize].op else { continue };
                    let pred = |value: bool| if value { u32::MAX } else { 0 };
                    match barrier.kind {
                        BarrierKind::RedAnd => {
                            warp.set_pred(frame.base_pred as usize, barrier.d, pred(state.all), group.mask);
                        }
                        BarrierKind::RedOr => {
                            warp.set_pred(frame.base_pred as usize, barrier.d, pred(state.any), group.mask);
                        }
                        BarrierKind::RedPopc => {
                            let row = [u64::from(state.trues); LANES];
                            warp.set_row(frame.base_row as usize, barrier.d, &row, group.mask);
                        }
                        BarrierKind::Sync | BarrierKind::Arrive => {}
                    }
                }
            }
        }
    }

    fn complete(&self, state: &BarrierState) -> bool {
        let arrived = |warp: &Warp| state.arrived[warp.index as usize];
        match state.count {
            None => self.warps.iter().all(|warp| arrived(warp) & warp.live == warp.live),
            Some(count) => {
                // A warp whose threads are all here counts as 32, however many it has.
                let threads: u32 = self
                    .warps
                    .iter()
                    .map(|warp| match arrived(warp) {
                        0 => 0,
                        lanes if lanes & warp.live == warp.live => LANES as u32,
                        lanes => lanes.count_ones(),
                    })
                    .sum();
                threads >= count
            }
        }
    }
}

/// Notes the arrival of some lanes of a warp.
pub(super) fn arrive(
    shared: &mut Shared,
    warps: usize,
    warp: u32,
    id: usize,
    mask: u32,
    count: Option<u32>,
    trues: u32,
) {
    let state = &mut shared.barriers[id];
    if state.arrived.is_empty() {
        *state = BarrierState { arrived: vec![0; warps], count, all: true, any: false, trues: 0 };
    }
    state.arrived[warp as usize] |= mask;
    state.all &= trues & mask == mask;
    state.any |= trues & mask != 0;
    state.trues += (trues & mask).count_ones();
    shared.changed = true;
}

/// A uniform operand: the value of the first lane.
pub(super) fn uniform(warp: &Warp, kernel: &crate::code::Kernel, base: usize, src: Src, mask: u32) -> u64 {
    warp.row(kernel, base, src)[mask.trailing_zeros() as usize & 31]
}
