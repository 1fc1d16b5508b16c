//! Executable graphs, as CUDA graphs of the machine's driver.
//!
//! The client sends a graph flat: nodes with the places of those before them. A copy from or to the client becomes two
//! nodes, one that moves bytes between the network and pinned memory and one that moves them between pinned memory and
//! the device.

#![allow(unsafe_code)]

mod build;
mod conditional;
mod transfer;

use crate::{
    context::LiveContext,
    op::Work,
    pinned::Word,
    progress::{Until, Watch},
    stream::{LiveEvent, LiveStream},
    sys::{Api, DeviceAddress, Graph, GraphExec},
    tables::Tables,
};
use build::{Built, Keeper};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{GraphNode, Op, Reader, Wire};
use sharing::GraphTime;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An executable graph.
pub(crate) struct Exec {
    pub(crate) context: Arc<LiveContext>,
    work: Arc<Work>,
    /// What a launch takes, as far as an offline session has learned it.
    pub(crate) time: Mutex<GraphTime>,
    state: Mutex<State>,
}

struct State {
    /// The nodes as they came, for changes to some of them.
    nodes: Vec<Vec<u8>>,
    /// `None` after a change, until the next launch.
    ready: Option<Ready>,
    /// Present when nodes of it wait for the session's gate.
    gates: Option<GraphGates>,
}

/// How a graph is cut into groups that wait for a gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphGates {
    /// Zero while the gate is open.
    pub(crate) word: DeviceAddress,
    /// What a launch takes.
    pub(crate) time_ns: u64,
    /// What a group may take.
    pub(crate) budget_ns: u64,
}

/// A graph that the driver has made executable.
struct Ready {
    raw: RawExec,
    /// What its nodes point to.
    keepers: Vec<Keeper>,
    records: Vec<Weak<LiveEvent>>,
    run: Arc<AtomicU32>,
    /// Present when nodes talk to the client: then launches follow each other one by one.
    turns: Option<Turns>,
    work: Arc<Work>,
}

struct Turns {
    /// Recorded after each launch.
    last: LiveEvent,
    /// Launches that are over; streams write it.
    over: Arc<Word>,
    launched: u64,
    stream: Option<Arc<LiveStream>>,
    /// The stream of a launch that failed in the middle: its nodes may run, and no word tells when they are over.
    unmarked: Option<Arc<LiveStream>>,
}

/// A handle of an executable graph.
struct RawExec {
    api: Api,
    raw: GraphExec,
}

impl Drop for RawExec {
    fn drop(&mut self) {
        // SAFETY: only this object has the handle; a launch under way goes on to its end.
        let _ = unsafe { self.api.graph_exec_destroy(self.raw) };
    }
}

/// A handle of a graph.
struct RawGraph {
    api: Api,
    raw: Graph,
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        // SAFETY: only this object has the handle; what was made executable from it does not need it.
        let _ = unsafe { self.api.graph_destroy(self.raw) };
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let Some(mut turns) = self.turns.take() else { return };
        if let Some(stream) = turns.unmarked.take() {
            // The stream's last launch waited for the launches before it, so all are over when the stream is idle.
            let keepers = std::mem::take(&mut self.keepers);
            self.work.progress.keep_until_idle(&stream, (keepers, turns));
            return;
        }
        let Some(stream) = turns.stream.clone() else { return };
        // A launch under way still uses what its nodes point to.
        let keepers = std::mem::take(&mut self.keepers);
        self.work.progress.watch(Watch {
            until: Until::Written { word: Arc::clone(&turns.over), value: turns.launched },
            stream,
            then: Box::new(move |_| drop((keepers, turns))),
        });
    }
}

impl Exec {
    pub(crate) fn new(
        work: &Arc<Work>,
        tables: &Mutex<Tables>,
        context: Arc<LiveContext>,
        nodes: &[GraphNode<'_>],
    ) -> CuResult<Self> {
        let ready = make(work, tables, &context, nodes, None)?;
        let nodes = nodes.iter().map(encoded).collect();
        let state = Mutex::new(State { nodes, ready: Some(ready), gates: None });
        Ok(Self { context, work: Arc::clone(work), time: Mutex::default(), state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces all nodes.
    pub(crate) fn update(&self, tables: &Mutex<Tables>, nodes: &[GraphNode<'_>]) -> CuResult<()> {
        let gates = self.lock().gates;
        let ready = make(&self.work, tables, &self.context, nodes, gates)?;
        let mut state = self.lock();
        state.nodes = nodes.iter().map(encoded).collect();
        state.ready = Some(ready);
        Ok(())
    }

    /// Replaces one node. The graph is made anew by the next launch: programs change many nodes between two of them.
    pub(crate) fn set_node(&self, index: u32, op: Op<'_>, enabled: bool) -> CuResult<()> {
        let mut state = self.lock();
        let place = state.nodes.get_mut(index as usize).ok_or(CudaError::INVALID_VALUE)?;
        let after = decoded(place)?.after;
        *place = encoded(&GraphNode { op, after, enabled });
        state.ready = None;
        Ok(())
    }

    /// Its nodes wait for a gate from the next launch on, in groups. Said again, it changes nothing, unless the groups
    /// are to be half as long.
    pub(crate) fn wait_inside(&self, gates: GraphGates) {
        let mut state = self.lock();
        // To make a graph again takes as long as many launches of it: a little shorter is not worth it.
        if state.gates.is_none_or(|old| old.budget_ns >= 2 * gates.budget_ns) {
            state.gates = Some(gates);
            state.ready = None;
        }
    }

    /// Whether nodes of it wait for a gate.
    pub(crate) fn waits_inside(&self) -> bool {
        self.lock().gates.is_some()
    }

    pub(crate) fn work(&self) -> &Arc<Work> {
        &self.work
    }

    fn with_ready<R>(
        &self,
        tables: &Mutex<Tables>,
        run: impl FnOnce(&mut Ready) -> CuResult<R>,
    ) -> CuResult<R> {
        let mut state = self.lock();
        if state.ready.is_none() {
            let nodes = state.nodes.iter().map(|bytes| decoded(bytes)).collect::<CuResult<Vec<_>>>()?;
            let ready = make(&self.work, tables, &self.context, &nodes, state.gates)?;
            state.ready = Some(ready);
        }
        let result = run(state.ready.as_mut().ok_or(CudaError::UNKNOWN)?);
        // The next launch cannot be put behind one that failed in the middle: it gets a graph with memory of its own.
        state.ready.take_if(|ready| ready.turns.as_ref().is_some_and(|turns| turns.unmarked.is_some()));
        result
    }

    pub(crate) fn launch(&self, tables: &Mutex<Tables>, stream: &Arc<LiveStream>, run: u32) -> CuResult<()> {
        self.with_ready(tables, |ready| ready.launch(stream, run))
    }

    pub(crate) fn upload(&self, tables: &Mutex<Tables>, stream: &Arc<LiveStream>) -> CuResult<()> {
        self.with_ready(tables, |ready| {
            let raw = stream.enter()?;
            // SAFETY: both handles live until the call returns.
            unsafe { ready.work.api.graph_upload(ready.raw.raw, raw) }
        })
    }
}

impl Ready {
    fn launch(&mut self, stream: &Arc<LiveStream>, run: u32) -> CuResult<()> {
        let raw = stream.enter()?;
        self.records.iter().filter_map(Weak::upgrade).for_each(|event| event.forget_age());
        let api = &self.work.api;
        let Some(turns) = &mut self.turns else {
            // SAFETY: both handles live until the call returns.
            return unsafe { api.graph_launch(self.raw.raw, raw) };
        };
        if turns.launched > 0 {
            // SAFETY: the event lives as long as `self`.
            unsafe { api.stream_wait_event(raw, turns.last.raw(), 0)? };
        }
        let set = Box::into_raw(Box::new(SetRun { run: Arc::clone(&self.run), number: run }));
        // SAFETY: the driver calls the function once with its argument; the other handles live until the calls return.
        unsafe {
            if let Err(error) = api.launch_host(raw, set_run, set.cast()) {
                drop(Box::from_raw(set));
                return Err(error);
            }
            api.graph_launch(self.raw.raw, raw)?;
            turns.launched += 1;
            turns.stream = Some(Arc::clone(stream));
            // The word before the event: the next launch waits for the event in another stream and writes a higher number,
            // which this one must not overwrite.
            let marked = api
                .stream_write_value(raw, turns.over.device(), turns.launched, 0)
                .and_then(|()| api.event_record(turns.last.raw(), raw, 0));
            if marked.is_err() {
                turns.unmarked = Some(Arc::clone(stream));
            }
            marked
        }
    }
}

/// Tells the nodes of a launch which launch it is.
struct SetRun {
    run: Arc<AtomicU32>,
    number: u32,
}

unsafe extern "C" fn set_run(argument: *mut c_void) {
    // SAFETY: the argument is a box of `SetRun`, handed over to this one call.
    let set = unsafe { Box::from_raw(argument.cast::<SetRun>()) };
    set.run.store(set.number, Ordering::SeqCst);
}

fn make(
    work: &Arc<Work>,
    tables: &Mutex<Tables>,
    context: &Arc<LiveContext>,
    nodes: &[GraphNode<'_>],
    gates: Option<GraphGates>,
) -> CuResult<Ready> {
    context.enter()?;
    let run = Arc::new(AtomicU32::new(0));
    let Built { graph, keepers, records, talks } = {
        let tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
        build::build(work, &tables, context, nodes, gates, &run)?
    };
    let mut raw = GraphExec::default();
    // SAFETY: `raw` is valid for the call, the graph lives until it returns.
    unsafe { work.api.graph_instantiate(&mut raw, graph.raw, 0) }.inspect_err(
        |error| tracing::warn!(%error, nodes = nodes.len(), "the driver does not instantiate a graph"),
    )?;
    let raw = RawExec { api: work.api, raw };
    /// `CU_EVENT_DISABLE_TIMING`
    const NO_TIMING: u32 = 2;
    let turns = match talks {
        false => None,
        true => Some(Turns {
            last: LiveEvent::create(&work.api, Arc::clone(context), NO_TIMING)?,
            over: Arc::new(work.words.take()?),
            launched: 0,
            stream: None,
            unmarked: None,
        }),
    };
    Ok(Ready { raw, keepers, records, run, turns, work: Arc::clone(work) })
}

fn encoded(node: &GraphNode<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    node.put(&mut bytes);
    bytes
}

fn decoded(bytes: &[u8]) -> CuResult<GraphNode<'_>> {
    GraphNode::take(&mut Reader::new(bytes)).map_err(|_| CudaError::UNKNOWN)
}
