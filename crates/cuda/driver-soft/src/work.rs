//! Work that was admitted to a line, and its execution.

use crate::{
    conditional::Conditional,
    graph::GraphRun,
    launch,
    line::{Line, Record},
    op::{Incoming, KernelLaunch, SharedCopy, memory_op},
    session::Session,
    space::{BadAddress, Block, Cursor},
    sync::{Lock, lock},
    transfer,
    turns::Turn,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{MemoryOp, Plane, Shape, TransferId};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, fence},
    },
    time::Duration,
};

/// What a line does at one place. Everything that depends on the order of the program's calls is settled already.
pub(crate) enum Work {
    Nothing,
    Launch(Box<KernelLaunch>, Option<Arc<Record>>),
    Fill {
        target: Plane,
        shape: Shape,
        element_bytes: u8,
        value: u32,
    },
    CopyDevice {
        target: Plane,
        source: Plane,
        shape: Shape,
    },
    CopyIn {
        target: Plane,
        shape: Shape,
        data: Incoming,
    },
    CopyOut {
        source: Plane,
        shape: Shape,
        transfer: TransferId,
    },
    CopyShared(SharedCopy),
    ReadBack {
        source: Plane,
        shape: Shape,
        bytes: Arc<Lock<Vec<u8>>>,
    },
    HostCall {
        token: u64,
    },
    Record(Arc<Record>),
    Wait(Arc<Record>),
    /// Puts an allocation at its address when what was there before is gone.
    Map(Box<Lock<Option<PendingBlock>>>),
    Unmap {
        address: u64,
        turn: u64,
    },
    MemoryOps {
        ops: Vec<MemoryOp>,
    },
    Graph(Arc<GraphRun>),
    Conditional(Box<Conditional>),
}

/// An allocation that waits for its address.
pub(crate) struct PendingBlock {
    pub(crate) turn: Turn,
    pub(crate) device: u32,
    pub(crate) life: u64,
    pub(crate) charge: crate::account::Charge,
}

impl From<BadAddress> for CudaError {
    fn from(_: BadAddress) -> Self {
        Self::ILLEGAL_ADDRESS
    }
}

impl Work {
    /// Memory that the work holds until it is done.
    pub(crate) fn held_bytes(&self) -> usize {
        /// What a queue element costs beside its data, about.
        const BASE: usize = 256;
        BASE + match self {
            Self::CopyIn { data: Incoming::Inline(bytes), .. } => bytes.len(),
            Self::Launch(launch, _) => launch.parameters.len(),
            Self::MemoryOps { ops } => std::mem::size_of_val(ops.as_slice()),
            Self::Graph(run) => run.held_bytes(),
            Self::Conditional(node) => node.held_bytes(),
            _ => 0,
        }
    }

    /// Whether it occupies the device, so that an offline session's waits until no online one is busy. Copies to and
    /// from the host do not.
    fn waits_at_sharing_gate(&self) -> bool {
        matches!(self, Self::Launch(..) | Self::Fill { .. } | Self::CopyDevice { .. })
    }

    /// Does it on `line`'s thread. An error ends the context.
    pub(crate) fn execute(&self, session: &Arc<Session>, line: &Arc<Line>) -> CuResult<()> {
        if session.is_aborted() {
            return Ok(());
        }
        // In a dead context nothing runs any more, but records are still reached, so that no thread waits for ever.
        let is_dead = line.context.check().is_err();
        let space = &session.space;
        let gate = session.sharing_gate.get().filter(|_| !is_dead && self.waits_at_sharing_gate());
        let passed = gate.map(|gate| gate.pass(session));
        if matches!(passed, Some(None)) {
            return Ok(());
        }
        match self {
            Self::Record(record) => record.reach(),
            Self::Launch(_, Some(record)) if is_dead => record.reach(),
            Self::CopyIn { shape, data: Incoming::Lane { transfer, pull: false }, .. } if is_dead => {
                discard(session, *transfer, shape.bytes().unwrap_or(0))?;
            }
            Self::Graph(run) => run.execute(session, line)?,
            _ if is_dead => {}
            Self::Nothing => {}
            Self::Conditional(node) => node.execute(session, line)?,
            Self::Launch(kernel, record) => {
                let working = session.activity.kernel(line.context.device);
                let outcome = launch::run(session, line, kernel);
                drop(working);
                if let Some(record) = record {
                    record.reach();
                }
                outcome?;
            }
            Self::Fill { target, shape, element_bytes, value } => {
                let _working = session.activity.memory(line.context.device);
                transfer::fill(space, target, shape, *element_bytes, *value)?;
            }
            Self::CopyDevice { target, source, shape } => {
                let _working = session.activity.memory(line.context.device);
                transfer::copy(space, target, source, shape)?;
            }
            Self::CopyIn { target, shape, data: Incoming::Inline(bytes) } => {
                let _working = session.activity.memory(line.context.device);
                transfer::scatter(space, target, shape, 0, bytes)?;
            }
            Self::CopyIn { target, shape, data: Incoming::Lane { transfer, pull } } => {
                let bytes = shape.bytes().unwrap_or(0);
                let missed = AtomicBool::new(false);
                let sink = |offset: u64, piece: &[u8]| {
                    // Per piece, not for the whole copy: the time on the network must not count as work of the memory.
                    let _working = session.activity.memory(line.context.device);
                    // Bytes beyond the copy's end are refused: a peer must not reach other memory.
                    let end = offset.saturating_add(piece.len() as u64);
                    if end > bytes || transfer::scatter(space, target, shape, offset, piece).is_err() {
                        missed.store(true, Relaxed);
                    }
                };
                session.link()?.receive(*transfer, bytes, *pull, &sink).map_err(|_| session.lost_link())?;
                fail_if(&missed)?;
            }
            Self::CopyOut { source, shape, transfer } => {
                let bytes = shape.bytes().unwrap_or(0);
                let missed = AtomicBool::new(false);
                let give = |offset: u64, piece: &mut [u8]| {
                    let _working = session.activity.memory(line.context.device);
                    let end = offset.saturating_add(piece.len() as u64);
                    if end > bytes || transfer::gather(space, source, shape, offset, piece).is_err() {
                        piece.fill(0);
                        missed.store(true, Relaxed);
                    }
                };
                session.link()?.send(*transfer, bytes, &give).map_err(|_| session.lost_link())?;
                fail_if(&missed)?;
            }
            Self::CopyShared(copy) => {
                let _working = session.activity.memory(line.context.device);
                transfer::shared(space, copy)?;
            }
            Self::ReadBack { source, shape, bytes } => {
                let mut packed = vec![0; shape.bytes().unwrap_or(0) as usize];
                transfer::gather(space, source, shape, 0, &mut packed)?;
                *lock(bytes) = packed;
            }
            Self::HostCall { token } => {
                session.link()?.host_call(*token).map_err(|_| session.lost_link())?;
            }
            Self::Wait(record) => record.wait()?,
            Self::Map(pending) => {
                if let Some(pending) = lock(pending).take() {
                    session.map_pending(pending)?;
                }
            }
            Self::Unmap { address, turn } => space.remove(*address, *turn),
            Self::MemoryOps { ops } => {
                ops.iter().try_for_each(|op| memory_op(session, line, op))?;
            }
        }
        Ok(())
    }
}

fn fail_if(missed: &AtomicBool) -> CuResult<()> {
    if missed.load(Relaxed) { Err(CudaError::ILLEGAL_ADDRESS) } else { Ok(()) }
}

/// Receives the bytes that the client pushes for a copy that does not happen, and drops them.
fn discard(session: &Session, transfer: TransferId, bytes: u64) -> CuResult<()> {
    session.link()?.receive(transfer, bytes, false, &|_: u64, _: &[u8]| {}).map_err(|_| session.lost_link())
}

/// Waits for or writes one word.
fn memory_op(session: &Session, line: &Line, op: &MemoryOp) -> CuResult<()> {
    let width = match op.kind {
        memory_op::WAIT_32 | memory_op::WRITE_32 => 4,
        memory_op::WAIT_64 | memory_op::WRITE_64 => 8,
        _ => return Ok(()),
    };
    // A thread that sees the word also sees what the stream wrote before, and the other way round.
    fence(SeqCst);
    if matches!(op.kind, memory_op::WRITE_32 | memory_op::WRITE_64) {
        Cursor::new(&session.space).write(op.address, &op.value.to_le_bytes()[..width])?;
        fence(SeqCst);
        return Ok(());
    }
    let mut pause = Pause::default();
    loop {
        let block = session.space.find(op.address).ok_or(CudaError::ILLEGAL_ADDRESS)?;
        if is_met(&block, op, width).ok_or(CudaError::ILLEGAL_ADDRESS)? {
            fence(SeqCst);
            return Ok(());
        }
        // The block must not be held between two looks: it may be freed.
        drop(block);
        if session.is_aborted() || line.context.check().is_err() {
            return Ok(());
        }
        pause.rest();
    }
}

/// Whether the word at `op.address` is what is waited for (`CU_STREAM_WAIT_VALUE_*`).
fn is_met(block: &Block, op: &MemoryOp, width: usize) -> Option<bool> {
    let (now, value) = match width {
        4 => (block.mapping.load32(op.address)?.into(), op.value & u64::from(u32::MAX)),
        _ => (block.mapping.load64(op.address)?, op.value),
    };
    Some(match op.flags & 3 {
        // Cyclic: whether `now` is not behind `value`.
        0 if width == 4 => (now as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => now.wrapping_sub(value) as i64 >= 0,
        1 => now == value,
        2 => now & value != 0,
        _ if width == 4 => !(now as u32 | value as u32) != 0,
        _ => !(now | value) != 0,
    })
}

/// Polls ever more rarely.
#[derive(Default)]
struct Pause {
    turns: u32,
}

impl Pause {
    fn rest(&mut self) {
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            0..=64 => std::thread::yield_now(),
            // From 10 us up to 1 ms: a wait of seconds ends late by at most that.
            turns => {
                std::thread::sleep(Duration::from_micros(u64::from(turns - 64).saturating_mul(10).min(1000)))
            }
        }
    }
}
