//! Contexts, and which one a thread has.

use super::{Fake, State, handle, put};
use crate::sys::{Context, ContextCreate};
use cuda_abi::{CuResult, CudaError};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};

/// `CUlimit` numbers that the fake knows, with their first values.
const LIMITS: [(c_uint, usize); 3] = [(0, 1024), (1, 1 << 20), (2, 8 << 20)];

#[derive(Debug)]
pub(super) struct ContextState {
    pub(super) device: c_int,
    pub(super) is_primary: bool,
    /// The error that killed it.
    pub(super) dead: Option<CudaError>,
    limits: BTreeMap<c_uint, usize>,
    peers: Vec<Context>,
}

impl ContextState {
    fn new(device: c_int, is_primary: bool) -> Self {
        Self { device, is_primary, dead: None, limits: LIMITS.into(), peers: Vec::new() }
    }
}

impl State {
    fn current_state(&mut self) -> CuResult<&mut ContextState> {
        let current = self.current()?;
        self.contexts.get_mut(&current).ok_or(CudaError::INVALID_CONTEXT)
    }

    fn known_device(&self, device: c_int) -> CuResult<()> {
        let known = 0..self.memory.free_bytes.len() as c_int;
        if known.contains(&device) { Ok(()) } else { Err(CudaError::INVALID_DEVICE) }
    }
}

impl Fake {
    /// Kills a context: its work is dropped and every later call in it returns `error`.
    pub(crate) fn kill(&self, context: Context, error: CudaError) {
        let mut state = self.lock();
        state.contexts.get_mut(&context).unwrap().dead = Some(error);
        for stream in state.streams.values_mut().filter(|stream| stream.context == context) {
            stream.queue.clear();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The fault of another client of an MPS server: every context is dead with it.
    pub(crate) fn kill_all(&self, error: CudaError) {
        let contexts: Vec<Context> = self.lock().contexts.keys().copied().collect();
        contexts.into_iter().for_each(|context| self.kill(context, error));
    }

    pub(crate) fn primary_retain(&self, out: *mut Context, device: c_int) -> CuResult<()> {
        let mut state = self.lock();
        state.known_device(device)?;
        let is_it = |(_, context): &(&Context, &ContextState)| context.is_primary && context.device == device;
        let found = state.contexts.iter().find(is_it).map(|(&context, _)| context);
        let context = found.unwrap_or_else(|| {
            let context = Context(handle());
            state.contexts.insert(context, ContextState::new(device, true));
            context
        });
        put(out, context);
        Ok(())
    }

    /// A context that no thread has yet, for a green context.
    pub(super) fn add_view(&self, device: c_int) -> Context {
        let context = Context(handle());
        self.lock().contexts.insert(context, ContextState::new(device, false));
        context
    }

    /// The new context becomes the calling thread's, as `cuCtxCreate` documents.
    pub(crate) fn context_create(
        &self,
        out: *mut Context,
        _params: *mut ContextCreate,
        _flags: c_uint,
        device: c_int,
    ) -> CuResult<()> {
        let mut state = self.lock();
        state.known_device(device)?;
        let context = Context(handle());
        state.contexts.insert(context, ContextState::new(device, false));
        state.current.insert(std::thread::current().id(), context);
        put(out, context);
        Ok(())
    }

    /// Ends a context with what is in it. Nothing may be left in it that a later call destroys.
    pub(crate) fn context_destroy(&self, context: Context) -> CuResult<()> {
        let mut state = self.lock();
        if state.contexts.remove(&context).is_none() {
            state.violation("cuCtxDestroy of a context that is not there");
            return Err(CudaError::INVALID_CONTEXT);
        }
        let streams = state.streams.values().filter(|stream| stream.context == context && !stream.is_legacy);
        let left = streams.filter(|stream| !stream.is_destroyed).count();
        if left > 0 {
            state.violation(format!("cuCtxDestroy with {left} streams left"));
        }
        state.streams.retain(|_, stream| stream.context != context);
        state.current.retain(|_, current| *current != context);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    pub(crate) fn context_set_current(&self, context: Context) -> CuResult<()> {
        let mut state = self.lock();
        if !state.contexts.contains_key(&context) {
            return Err(CudaError::INVALID_CONTEXT);
        }
        state.current.insert(std::thread::current().id(), context);
        Ok(())
    }

    pub(crate) fn context_synchronize(&self) -> CuResult<()> {
        let state = self.lock();
        let context = state.current()?;
        let is_over = |state: &State| {
            state.streams.values().all(|stream| stream.context != context || stream.is_idle())
        };
        let state = self.block(state, "cuCtxSynchronize", is_over);
        state.current().map(drop)
    }

    pub(crate) fn context_set_limit(&self, limit: c_uint, value: usize) -> CuResult<()> {
        let mut state = self.lock();
        let limits = &mut state.current_state()?.limits;
        *limits.get_mut(&limit).ok_or(CudaError::UNSUPPORTED_LIMIT)? = value;
        Ok(())
    }

    pub(crate) fn context_get_limit(&self, out: *mut usize, limit: c_uint) -> CuResult<()> {
        let mut state = self.lock();
        let value = state.current_state()?.limits.get(&limit).copied();
        put(out, value.ok_or(CudaError::UNSUPPORTED_LIMIT)?);
        Ok(())
    }

    pub(crate) fn context_priorities(&self, least: *mut c_int, greatest: *mut c_int) -> CuResult<()> {
        self.lock().current()?;
        put(least, 0);
        put(greatest, -5);
        Ok(())
    }

    pub(crate) fn context_enable_peer(&self, peer: Context, _flags: c_uint) -> CuResult<()> {
        let mut state = self.lock();
        let device = state.contexts.get(&peer).ok_or(CudaError::INVALID_CONTEXT)?.device;
        let current = state.current_state()?;
        if current.device == device {
            return Err(CudaError::INVALID_DEVICE);
        }
        if current.peers.contains(&peer) {
            return Err(CudaError::PEER_ACCESS_ALREADY_ENABLED);
        }
        current.peers.push(peer);
        Ok(())
    }

    pub(crate) fn context_disable_peer(&self, peer: Context) -> CuResult<()> {
        let mut state = self.lock();
        let peers = &mut state.current_state()?.peers;
        let place = peers.iter().position(|&known| known == peer);
        peers.swap_remove(place.ok_or(CudaError::PEER_ACCESS_NOT_ENABLED)?);
        Ok(())
    }
}
