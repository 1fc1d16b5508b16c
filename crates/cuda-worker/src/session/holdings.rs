//! What a client has made and the worker keeps in this machine's memory, against a bound.
//!
//! Device memory is the driver's to count. This counts what lies beside it: graphs with their data, modules, streams,
//! events, contexts. Costs are estimates from above for what this crate knows; a driver may need somewhat more.

use crate::sync::lock;
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{ContextId, EventId, ExecId, GraphNode, HostData, MemoryHandleId, ModuleId, Op, StreamId};
use std::collections::HashMap;
use std::sync::Mutex;

/// What an object costs that has no data of its own.
const SMALL_BYTES: u64 = 1 << 10;
/// A stream has a queue, and a thread while it works.
const STREAM_BYTES: u64 = 64 << 10;
/// A context has tables, limits and streams.
const CONTEXT_BYTES: u64 = 1 << 20;
/// What is kept of a module beside its image, as a multiple of it: what it was compiled to.
const IMAGE_FACTOR: u64 = 2;
/// A node of a graph without its data.
const NODE_BYTES: u64 = 512;

/// A thing that a client has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Thing {
    Context(ContextId),
    Stream(StreamId),
    Event(EventId),
    Module(ModuleId),
    Exec(ExecId),
    Physical(MemoryHandleId),
}

pub(crate) struct Holdings {
    most: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: u64,
    things: HashMap<Thing, Held>,
}

struct Held {
    /// It ends with it.
    context: Option<ContextId>,
    bytes: u64,
    /// Of a graph: what each node costs.
    nodes: Vec<u64>,
}

impl Holdings {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// Makes a thing with `make`, if there is room for what it costs.
    pub(crate) fn add<T>(
        &self,
        thing: Thing,
        context: Option<ContextId>,
        data_bytes: u64,
        make: impl FnOnce() -> CuResult<T>,
    ) -> CuResult<T> {
        self.keep(thing, context, thing.cost(data_bytes), Vec::new(), make)
    }

    /// The same for a graph.
    pub(crate) fn add_graph(
        &self,
        exec: ExecId,
        context: ContextId,
        nodes: Vec<u64>,
        make: impl FnOnce() -> CuResult<()>,
    ) -> CuResult<()> {
        let bytes = SMALL_BYTES + nodes.iter().sum::<u64>();
        self.keep(Thing::Exec(exec), Some(context), bytes, nodes, make)
    }

    fn keep<T>(
        &self,
        thing: Thing,
        context: Option<ContextId>,
        bytes: u64,
        nodes: Vec<u64>,
        make: impl FnOnce() -> CuResult<T>,
    ) -> CuResult<T> {
        // Commands come one after the other, so what is free now is still free when the thing is there.
        self.check(bytes)?;
        let made = make()?;
        let mut state = lock(&self.state);
        state.bytes += bytes;
        if let Some(before) = state.things.insert(thing, Held { context, bytes, nodes }) {
            state.bytes -= before.bytes;
        }
        Ok(made)
    }

    fn check(&self, bytes: u64) -> CuResult<()> {
        match lock(&self.state).bytes.checked_add(bytes) {
            Some(bytes) if bytes <= self.most => Ok(()),
            _ => Err(CudaError::OUT_OF_MEMORY),
        }
    }

    /// Changes nodes of a graph with `make`: all of them, or that one, to ones of this cost.
    pub(crate) fn change_graph(
        &self,
        exec: ExecId,
        change: Change,
        make: impl FnOnce() -> CuResult<()>,
    ) -> CuResult<()> {
        let before = {
            let state = lock(&self.state);
            let nodes = state.things.get(&Thing::Exec(exec)).map(|held| held.nodes.as_slice());
            match &change {
                Change::All(_) => nodes.unwrap_or_default().iter().sum(),
                Change::One(index, _) => nodes.unwrap_or_default().get(*index as usize).copied().unwrap_or(0),
            }
        };
        let after = match &change {
            Change::All(nodes) => nodes.iter().sum::<u64>(),
            Change::One(_, cost) => *cost,
        };
        self.check(after.saturating_sub(before))?;
        make()?;
        let mut state = lock(&self.state);
        let State { bytes, things } = &mut *state;
        if let Some(held) = things.get_mut(&Thing::Exec(exec)) {
            match change {
                Change::All(nodes) => held.nodes = nodes,
                Change::One(index, cost) => {
                    if let Some(node) = held.nodes.get_mut(index as usize) {
                        *node = cost;
                    }
                }
            }
            let now = SMALL_BYTES + held.nodes.iter().sum::<u64>();
            *bytes = *bytes - held.bytes + now;
            held.bytes = now;
        }
        Ok(())
    }

    /// It is gone.
    pub(crate) fn remove(&self, thing: Thing) {
        let mut state = lock(&self.state);
        if let Some(held) = state.things.remove(&thing) {
            state.bytes -= held.bytes;
        }
    }

    /// Everything in a context ended with it.
    pub(crate) fn forget_context(&self, gone: ContextId) {
        let mut state = lock(&self.state);
        let State { bytes, things } = &mut *state;
        things.retain(|_, held| {
            let stays = held.context != Some(gone);
            if !stays {
                *bytes -= held.bytes;
            }
            stays
        });
    }
}

/// What changes in a graph.
pub(crate) enum Change {
    /// Every node, to ones of these costs.
    All(Vec<u64>),
    /// The node of this number, to one of this cost.
    One(u32, u64),
}

impl Thing {
    fn cost(self, data_bytes: u64) -> u64 {
        let base = match self {
            Self::Context(_) => CONTEXT_BYTES,
            Self::Stream(_) => STREAM_BYTES,
            Self::Module(_) => return data_bytes.saturating_mul(IMAGE_FACTOR).saturating_add(SMALL_BYTES),
            Self::Event(_) | Self::Exec(_) | Self::Physical(_) => SMALL_BYTES,
        };
        base.saturating_add(data_bytes)
    }
}

/// What a piece of work costs that is kept in a graph.
pub(crate) fn op_cost(op: &Op<'_>) -> u64 {
    let data = match op {
        Op::CopyIn { data: HostData::Inline { bytes }, .. } => bytes.0.len(),
        Op::Launch { attributes, parameters, .. } => {
            parameters.0.len() + std::mem::size_of_val(attributes.as_slice())
        }
        Op::MemoryOps { ops } => std::mem::size_of_val(ops.as_slice()),
        _ => 0,
    };
    NODE_BYTES + data as u64
}

/// What each node of a graph costs.
pub(crate) fn node_costs(nodes: &[GraphNode<'_>]) -> Vec<u64> {
    nodes.iter().map(|node| op_cost(&node.op) + std::mem::size_of_val(node.after.as_slice()) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ContextId = ContextId(1);

    fn bytes(holdings: &Holdings) -> u64 {
        lock(&holdings.state).bytes
    }

    #[test]
    fn what_is_too_much_is_refused_and_what_goes_makes_room() {
        let holdings = Holdings::new(3 * SMALL_BYTES);
        let add = |number| holdings.add(Thing::Event(EventId(number)), Some(CONTEXT), 0, || Ok(()));
        assert!((0..3).all(|number| add(number).is_ok()));
        assert_eq!(add(3), Err(CudaError::OUT_OF_MEMORY));
        holdings.remove(Thing::Event(EventId(1)));
        holdings.remove(Thing::Event(EventId(1)));
        assert_eq!(add(3), Ok(()));
        holdings.forget_context(CONTEXT);
        assert_eq!(bytes(&holdings), 0);
    }

    #[test]
    fn what_the_driver_refuses_costs_nothing() {
        let holdings = Holdings::new(1 << 30);
        let refused: CuResult<()> =
            holdings.add(Thing::Module(ModuleId(1)), None, 100, || Err(CudaError::INVALID_IMAGE));
        assert_eq!((refused, bytes(&holdings)), (Err(CudaError::INVALID_IMAGE), 0));
        assert!(holdings.add(Thing::Module(ModuleId(1)), None, u64::MAX, || Ok(())).is_err());
    }

    #[test]
    fn a_graph_costs_its_nodes_and_changes_with_them() {
        let holdings = Holdings::new(SMALL_BYTES + 1000);
        let (exec, done) = (ExecId(7), || Ok(()));
        holdings.add_graph(exec, CONTEXT, vec![100, 200], done).unwrap();
        // However often a node is set, it is kept once.
        for _ in 0..100 {
            holdings.change_graph(exec, Change::One(1, 600), done).unwrap();
        }
        assert_eq!(bytes(&holdings), SMALL_BYTES + 700);
        let too_much = holdings.change_graph(exec, Change::One(0, 500), done);
        assert_eq!(too_much, Err(CudaError::OUT_OF_MEMORY));
        holdings.change_graph(exec, Change::All(vec![500, 500]), done).unwrap();
        assert_eq!(holdings.change_graph(exec, Change::All(vec![1001]), done), Err(CudaError::OUT_OF_MEMORY));
        holdings.remove(Thing::Exec(exec));
        assert_eq!(bytes(&holdings), 0);
    }
}
