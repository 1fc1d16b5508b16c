//! What a client has made and the worker keeps in this machine's memory, against a bound; and in which context it is.
//!
//! Device memory is the driver's to count. This counts what lies beside it: graphs with their data, modules, streams,
//! events, contexts. Costs are estimates from above for what this crate knows; a driver may need somewhat more.
//!
//! ```text
//!   claim: is there room? ─▶ the driver makes it ─▶ keep: counted ─▶ the driver ends it, or its context ─▶ remove
//! ```
//!
//! Commands come one after the other, so what was free at the claim is still free when the thing is kept.

use cuda_abi::{CuResult, CudaError};
use cuda_wire::{
    ArrayId, ContextId, EventId, ExecId, GraphNode, GreenId, HostData, MemoryHandleId, ModuleId, Op,
    SamplerId, StreamId, Subject,
};
use locks::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// What an object costs that has no data of its own.
const SMALL_BYTES: u64 = 1 << 10;
/// A stream has a queue, and a thread while it works.
const STREAM_BYTES: u64 = 64 << 10;
/// A context has tables, limits and streams.
const CONTEXT_BYTES: u64 = 1 << 20;
/// Bytes of a module beside its image (the compiled code), as a multiple of the image.
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
    Array(ArrayId),
    Sampler(SamplerId),
    Green(GreenId),
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

/// A thing that is about to be made, and for which there is room.
#[must_use]
pub(crate) struct Claim {
    thing: Thing,
    held: Held,
}

/// Nodes of a graph that are about to change, and for which there is room.
#[must_use]
pub(crate) struct GraphChange {
    exec: ExecId,
    nodes: Nodes,
}

/// What new nodes cost.
enum Nodes {
    /// Every node of the graph is a new one.
    All(Vec<u64>),
    /// The node of this number is.
    One(u32, u64),
}

impl Holdings {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// Makes sure that there is room for a thing with `data_bytes` of data. It ends with `context`.
    pub(crate) fn claim(&self, thing: Thing, context: Option<ContextId>, data_bytes: u64) -> CuResult<Claim> {
        let bytes = thing.cost(data_bytes);
        self.check(bytes)?;
        Ok(Claim { thing, held: Held { context, bytes, nodes: Vec::new() } })
    }

    /// The same for a graph.
    pub(crate) fn claim_graph(
        &self,
        exec: ExecId,
        context: ContextId,
        nodes: &[GraphNode<'_>],
    ) -> CuResult<Claim> {
        self.claim_graph_of(exec, context, node_costs(nodes))
    }

    fn claim_graph_of(&self, exec: ExecId, context: ContextId, nodes: Vec<u64>) -> CuResult<Claim> {
        let bytes = SMALL_BYTES + nodes.iter().sum::<u64>();
        self.check(bytes)?;
        Ok(Claim { thing: Thing::Exec(exec), held: Held { context: Some(context), bytes, nodes } })
    }

    /// Makes sure that there is room for new nodes of a graph in place of all it has.
    pub(crate) fn claim_nodes(&self, exec: ExecId, nodes: &[GraphNode<'_>]) -> CuResult<GraphChange> {
        self.claim_change(exec, Nodes::All(node_costs(nodes)))
    }

    /// The same for one node.
    pub(crate) fn claim_node(&self, exec: ExecId, index: u32, op: &Op<'_>) -> CuResult<GraphChange> {
        self.claim_change(exec, Nodes::One(index, op_cost(op)))
    }

    fn claim_change(&self, exec: ExecId, nodes: Nodes) -> CuResult<GraphChange> {
        let (before, after) = {
            let state = lock(&self.state);
            let held = state.things.get(&Thing::Exec(exec)).map(|held| held.nodes.as_slice());
            let held = held.unwrap_or_default();
            match &nodes {
                Nodes::All(costs) => (held.iter().sum::<u64>(), costs.iter().sum::<u64>()),
                Nodes::One(index, cost) => (held.get(*index as usize).copied().unwrap_or(0), *cost),
            }
        };
        self.check(after.saturating_sub(before))?;
        Ok(GraphChange { exec, nodes })
    }

    fn check(&self, bytes: u64) -> CuResult<()> {
        match lock(&self.state).bytes.checked_add(bytes) {
            Some(bytes) if bytes <= self.most => Ok(()),
            _ => Err(CudaError::OUT_OF_MEMORY),
        }
    }

    /// The driver has made it. What had its name before is gone.
    pub(crate) fn keep(&self, Claim { thing, held }: Claim) {
        let mut state = lock(&self.state);
        state.bytes += held.bytes;
        if let Some(before) = state.things.insert(thing, held) {
            state.bytes -= before.bytes;
        }
    }

    /// The driver has changed the graph.
    pub(crate) fn change(&self, GraphChange { exec, nodes }: GraphChange) {
        let mut state = lock(&self.state);
        let State { bytes, things } = &mut *state;
        let Some(held) = things.get_mut(&Thing::Exec(exec)) else { return };
        match nodes {
            Nodes::All(costs) => held.nodes = costs,
            Nodes::One(index, cost) => {
                if let Some(node) = held.nodes.get_mut(index as usize) {
                    *node = cost;
                }
            }
        }
        let now = SMALL_BYTES + held.nodes.iter().sum::<u64>();
        *bytes = *bytes - held.bytes + now;
        held.bytes = now;
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

    /// The context to which errors of a command about `subject` belong. The first context, if the subject is not known.
    pub(crate) fn context_of(&self, subject: Subject) -> ContextId {
        let thing = match subject {
            Subject::Context(context) => return context,
            // The primary context of a device has the device's number.
            Subject::Device(device) => return ContextId(device),
            Subject::Stream(stream) => Thing::Stream(stream),
            Subject::Event(event) => Thing::Event(event),
            Subject::Module(module) => Thing::Module(module),
            Subject::Exec(exec) => Thing::Exec(exec),
            Subject::Nothing => return ContextId::default(),
        };
        lock(&self.state).things.get(&thing).and_then(|held| held.context).unwrap_or_default()
    }
}

impl Thing {
    fn cost(self, data_bytes: u64) -> u64 {
        let base = match self {
            Self::Context(_) | Self::Green(_) => CONTEXT_BYTES,
            Self::Stream(_) => STREAM_BYTES,
            Self::Module(_) => return data_bytes.saturating_mul(IMAGE_FACTOR).saturating_add(SMALL_BYTES),
            Self::Event(_) | Self::Exec(_) | Self::Physical(_) => SMALL_BYTES,
            Self::Array(_) | Self::Sampler(_) => SMALL_BYTES,
        };
        base.saturating_add(data_bytes)
    }
}

/// What a piece of work costs that is kept in a graph.
fn op_cost(op: &Op<'_>) -> u64 {
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
fn node_costs(nodes: &[GraphNode<'_>]) -> Vec<u64> {
    nodes.iter().map(|node| op_cost(&node.op) + std::mem::size_of_val(node.after.as_slice()) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ContextId = ContextId(1);

    fn bytes(holdings: &Holdings) -> u64 {
        lock(&holdings.state).bytes
    }

    fn add(holdings: &Holdings, thing: Thing, context: ContextId) -> CuResult<()> {
        holdings.claim(thing, Some(context), 0).map(|claim| holdings.keep(claim))
    }

    fn change(holdings: &Holdings, exec: ExecId, nodes: Nodes) -> CuResult<()> {
        holdings.claim_change(exec, nodes).map(|claim| holdings.change(claim))
    }

    #[test]
    fn what_is_too_much_is_refused_and_what_goes_makes_room() {
        let holdings = Holdings::new(3 * SMALL_BYTES);
        let add = |number| add(&holdings, Thing::Event(EventId(number)), CONTEXT);
        assert!((0..3).all(|number| add(number).is_ok()));
        assert_eq!(add(3), Err(CudaError::OUT_OF_MEMORY));
        holdings.remove(Thing::Event(EventId(1)));
        holdings.remove(Thing::Event(EventId(1)));
        assert_eq!(add(3), Ok(()));
        holdings.forget_context(CONTEXT);
        assert_eq!(bytes(&holdings), 0);
    }

    #[test]
    fn what_is_not_made_costs_nothing_and_what_is_made_again_is_counted_once() {
        let holdings = Holdings::new(1 << 30);
        drop(holdings.claim(Thing::Module(ModuleId(1)), None, 100).unwrap());
        assert_eq!(bytes(&holdings), 0);
        assert!(holdings.claim(Thing::Module(ModuleId(1)), None, u64::MAX).is_err());
        for _ in 0..3 {
            add(&holdings, Thing::Event(EventId(1)), CONTEXT).unwrap();
        }
        assert_eq!(bytes(&holdings), SMALL_BYTES);
    }

    #[test]
    fn everything_costs_what_it_takes() {
        let cost = |thing: Thing| thing.cost(100);
        assert_eq!(cost(Thing::Context(CONTEXT)), CONTEXT_BYTES + 100);
        assert_eq!(cost(Thing::Stream(StreamId(1))), STREAM_BYTES + 100);
        assert_eq!(cost(Thing::Module(ModuleId(1))), IMAGE_FACTOR * 100 + SMALL_BYTES);
        assert_eq!(cost(Thing::Physical(MemoryHandleId(1))), SMALL_BYTES + 100);
        let (ten, op) = (cuda_wire::Bytes(&[7; 10]), Op::Empty {});
        let (target, shape) = (cuda_wire::Plane::line(0), cuda_wire::Shape::line(10));
        let inline = Op::CopyIn { target, shape, data: HostData::Inline { bytes: ten } };
        assert_eq!(op_cost(&inline), NODE_BYTES + 10);
        let nodes = [
            GraphNode { op, after: vec![], enabled: true },
            GraphNode { op: inline, after: vec![0, 0, 0], enabled: true },
        ];
        assert_eq!(node_costs(&nodes), [NODE_BYTES, NODE_BYTES + 10 + 3 * 4]);
    }

    #[test]
    fn a_graph_costs_its_nodes_and_changes_with_them() {
        let holdings = Holdings::new(SMALL_BYTES + 1000);
        let exec = ExecId(7);
        holdings.keep(holdings.claim_graph_of(exec, CONTEXT, vec![100, 200]).unwrap());
        // However often a node is set, it is kept once.
        for _ in 0..100 {
            change(&holdings, exec, Nodes::One(1, 600)).unwrap();
        }
        assert_eq!(bytes(&holdings), SMALL_BYTES + 700);
        assert_eq!(change(&holdings, exec, Nodes::One(0, 500)), Err(CudaError::OUT_OF_MEMORY));
        change(&holdings, exec, Nodes::All(vec![500, 500])).unwrap();
        assert_eq!(change(&holdings, exec, Nodes::All(vec![1001])), Err(CudaError::OUT_OF_MEMORY));
        holdings.remove(Thing::Exec(exec));
        assert_eq!(bytes(&holdings), 0);
    }

    #[test]
    fn the_context_of_a_thing_answers_for_it_as_long_as_the_thing_is_there() {
        let (holdings, other) = (Holdings::new(1 << 30), ContextId(0x100));
        let (stream, event) = (StreamId(5), EventId(5));
        let (module, exec) = (ModuleId(5), ExecId(5));
        add(&holdings, Thing::Stream(stream), CONTEXT).unwrap();
        add(&holdings, Thing::Event(event), other).unwrap();
        add(&holdings, Thing::Module(module), other).unwrap();
        holdings.keep(holdings.claim_graph_of(exec, other, vec![1]).unwrap());
        let subjects =
            [Subject::Stream(stream), Subject::Event(event), Subject::Module(module), Subject::Exec(exec)];
        let contexts = || subjects.map(|subject| holdings.context_of(subject));
        assert_eq!(contexts(), [CONTEXT, other, other, other], "one number, four things");
        holdings.remove(Thing::Event(event));
        assert_eq!(contexts(), [CONTEXT, ContextId(0), other, other]);
        holdings.forget_context(other);
        assert_eq!(contexts(), [CONTEXT, ContextId(0), ContextId(0), ContextId(0)]);
        assert_eq!(holdings.context_of(Subject::Context(other)), other, "named by the command itself");
        assert_eq!(holdings.context_of(Subject::Device(3)), ContextId(3));
        assert_eq!(holdings.context_of(Subject::Nothing), ContextId(0));
    }
}
