//! From what the program asked for to work in a line: everything that the order of its calls decides.

use crate::{
    line::{Line, Record, Task},
    op::OwnedOp,
    promises::Promise,
    retire::What,
    session::{Session, Tables},
    sync::{Lock, lock},
    work::{PendingBlock, Work},
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::EventId;
use std::{ops::Range, sync::Arc};

/// What an admission changed, so that a graph's launch can take it back when a later node is refused.
pub(crate) enum Undo {
    /// A promise was made; its block may be mapped already.
    Promised(u64),
    /// A promise was taken back.
    Unpromised(u64, Promise),
    /// An event had another latest record.
    Recorded(EventId, Option<Arc<Record>>),
}

impl Session {
    /// Admits `op` to the end of `line`. `undo` gets a record of every change; `from_credit` says whether allocations
    /// draw from the client's credit.
    pub(crate) fn admit(
        &self,
        tables: &mut Tables,
        line: &Arc<Line>,
        op: &OwnedOp,
        from_credit: bool,
        undo: &mut Vec<Undo>,
    ) -> CuResult<Work> {
        Ok(match op {
            OwnedOp::Empty => Work::Nothing,
            OwnedOp::Launch(launch) => {
                launch.kernel.check_context(&line.context)?;
                let record = launch.records.map(|event| record(tables, line, event, undo)).transpose()?;
                Work::Launch(launch.clone(), record)
            }
            &OwnedOp::Fill { target, shape, element_bytes, value } => {
                tables.promises.check(&target, &shape)?;
                Work::Fill { target, shape, element_bytes, value }
            }
            &OwnedOp::CopyDevice { target, source, shape } => {
                tables.promises.check(&target, &shape)?;
                tables.promises.check(&source, &shape)?;
                Work::CopyDevice { target, source, shape }
            }
            OwnedOp::CopyIn { target, shape, data } => {
                tables.promises.check(target, shape)?;
                Work::CopyIn { target: *target, shape: *shape, data: data.clone() }
            }
            &OwnedOp::CopyOut { source, shape, transfer } => {
                tables.promises.check(&source, &shape)?;
                Work::CopyOut { source, shape, transfer }
            }
            OwnedOp::CopyShared(copy) => {
                tables.promises.check(&copy.device, &copy.shape)?;
                Work::CopyShared(copy.clone())
            }
            // Only a graph knows its bodies.
            OwnedOp::Conditional { .. } => return Err(CudaError::INVALID_VALUE),
            &OwnedOp::HostCall { token } => Work::HostCall { token },
            &OwnedOp::Record { event } => Work::Record(record(tables, line, event, undo)?),
            &OwnedOp::Wait { event } => match tables.event(event)?.current() {
                Some(record) => Work::Wait(record),
                None => Work::Nothing,
            },
            &OwnedOp::Allocate { address, bytes } => {
                self.admit_allocate(tables, line, address, bytes, from_credit, undo)?
            }
            &OwnedOp::Free { address } => {
                let promise = self.freeable(tables, address)?;
                tables.promises.remove(address);
                undo.push(Undo::Unpromised(address, promise));
                Work::Unmap { address, turn: promise.turn }
            }
            OwnedOp::MemoryOps { ops } => {
                for op in ops {
                    use crate::op::memory_op::{WAIT_32, WAIT_64, WRITE_32, WRITE_64};
                    let bytes = match op.kind {
                        WAIT_32 | WRITE_32 => 4,
                        WAIT_64 | WRITE_64 => 8,
                        _ => continue,
                    };
                    if !tables.promises.holds(op.address, bytes) {
                        return Err(CudaError::INVALID_VALUE);
                    }
                }
                Work::MemoryOps { ops: ops.clone() }
            }
        })
    }

    /// Stream-ordered memory is mapped at once where its addresses are free, and else when its stream comes to it.
    fn admit_allocate(
        &self,
        tables: &mut Tables,
        line: &Arc<Line>,
        address: u64,
        bytes: u64,
        from_credit: bool,
        undo: &mut Vec<Undo>,
    ) -> CuResult<Work> {
        let context = &line.context;
        let charge = match from_credit {
            true => self.account.charge_from_credit(context.device as usize, bytes),
            false => self.account.charge(context.device as usize, bytes),
        };
        self.check_client_range(address, bytes)?;
        let turn = self.space.turns.take(address, bytes);
        let promise = Promise { bytes, life: context.life, turn: turn.number(), is_mapped: false };
        tables.promises.add(address, promise)?;
        let Some(charge) = charge else {
            tables.promises.remove(address);
            return Err(CudaError::OUT_OF_MEMORY);
        };
        undo.push(Undo::Promised(address));
        let (device, life) = (context.device, context.life);
        let pending = PendingBlock { turn, device, life, charge };
        if !self.space.is_clear_for(&pending.turn) {
            return Ok(Work::Map(Box::new(Lock::new(Some(pending)))));
        }
        if let Err(error) = self.map_pending(pending) {
            tables.promises.remove(address);
            undo.pop();
            return Err(error);
        }
        Ok(Work::Nothing)
    }

    /// Takes back what admissions changed, the last first.
    pub(crate) fn undo(&self, tables: &mut Tables, changes: Vec<Undo>) {
        for change in changes.into_iter().rev() {
            match change {
                Undo::Promised(address) => {
                    // Blocks that were not mapped yet are dropped with the works that would have mapped them.
                    if let Some(promise) = tables.promises.remove(address) {
                        self.space.remove(address, promise.turn);
                    }
                }
                Undo::Unpromised(address, promise) => {
                    let _ = tables.promises.add(address, promise);
                }
                Undo::Recorded(event, before) => {
                    if let Some(event) = tables.events.get_mut(&event) {
                        event.latest = before;
                    }
                }
            }
        }
    }

    /// Puts `op` at the end of `line`.
    pub(crate) fn enqueue(self: &Arc<Self>, line: &Arc<Line>, op: OwnedOp) -> CuResult<()> {
        line.wait_for_room(&self.load);
        let outcome = self.enqueue_once(line, &op, true);
        match op {
            OwnedOp::Allocate { bytes, .. } if is_full(&outcome) => {
                // Memory that is about to be freed counts as free; CUDA waits for it too.
                self.drain()?;
                self.enqueue_when_free(line, &op, bytes)
            }
            _ => outcome,
        }
    }

    /// The same for an allocation beyond the credit. A guest may have the memory.
    fn enqueue_when_free(self: &Arc<Self>, line: &Arc<Line>, op: &OwnedOp, bytes: u64) -> CuResult<()> {
        let attempt = || Some(self.enqueue_once(line, op, false)).filter(|outcome| !is_full(outcome));
        let attempt_again = || self.wait_for_memory(line.context.device, bytes, attempt);
        attempt().or_else(attempt_again).unwrap_or(Err(CudaError::OUT_OF_MEMORY))
    }

    fn enqueue_once(self: &Arc<Self>, line: &Arc<Line>, op: &OwnedOp, from_credit: bool) -> CuResult<()> {
        let mut tables = lock(&self.tables);
        let mut changes = Vec::new();
        line.context.check()?;
        // If a copy is refused, our caller takes the bytes that the client pushes all the same.
        let work = self.admit(&mut tables, line, op, from_credit, &mut changes)?;
        let after = tables.implicit_order(line);
        line.push(self, Task { after, work })?;
        Ok(())
    }

    /// Waits until all work so far is done and all that it holds back is free.
    pub(crate) fn drain(&self) -> CuResult<()> {
        let places = lock(&self.tables).all_busy_ends();
        places.iter().chain(&self.retiring.places()).try_for_each(|place| place.wait())?;
        self.retiring.gates().iter().for_each(|gate| gate.wait());
        self.sweep();
        drop(self.retiring.settled());
        Ok(())
    }

    /// Whether a client may have an allocation here: inside a region and outside what the driver keeps for itself.
    pub(crate) fn check_client_range(&self, address: u64, bytes: u64) -> CuResult<()> {
        let is_good = bytes > 0
            && self.space.region_of(address, bytes).is_some()
            && address.checked_add(bytes).is_some_and(|end| !self.is_drivers(&(address..end)));
        if is_good { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Whether addresses meet those that the driver keeps for itself, at the end of the first region.
    fn is_drivers(&self, addresses: &Range<u64>) -> bool {
        let end = self.space.region().map_or(0, |region| region.end());
        addresses.start < end && self.client_end() < addresses.end
    }

    /// What a program may free here: an allocation of its own, neither a mapping nor a module's variable.
    fn freeable(&self, tables: &Tables, address: u64) -> CuResult<Promise> {
        let promise = tables.promises.get(address).filter(|promise| !promise.is_mapped);
        promise.filter(|_| !self.is_drivers(&(address..address + 1))).ok_or(CudaError::INVALID_VALUE)
    }

    /// Frees what cuMemAlloc made.
    pub(crate) fn free(&self, address: u64) -> CuResult<()> {
        let mut tables = lock(&self.tables);
        let promise = self.freeable(&tables, address)?;
        tables.promises.remove(address);
        let owner = tables.contexts.values().find(|context| context.life == promise.life);
        let device = owner.map_or(0, |context| context.device);
        let after = tables.all_busy_ends();
        drop(tables);
        self.retire(What::Block { address, turn: promise.turn, device, bytes: promise.bytes }, after);
        Ok(())
    }
}

fn is_full(outcome: &CuResult<()>) -> bool {
    *outcome == Err(CudaError::OUT_OF_MEMORY)
}

fn record(
    tables: &mut Tables,
    line: &Arc<Line>,
    event: EventId,
    undo: &mut Vec<Undo>,
) -> CuResult<Arc<Record>> {
    let kept = tables.event(event)?;
    let record = match &kept.shared {
        None => Record::new(line),
        Some(shared) => Record::told(line, shared.clone()),
    };
    let before = kept.latest.replace(record.clone());
    undo.push(Undo::Recorded(event, before));
    Ok(record)
}
