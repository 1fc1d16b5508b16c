//! A context: a device's state for one program, and the first error that killed it.

use super::{Client, Device, LocalStorage, Stream, StreamKind, client, lock};
use crate::link::SharedLink;
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Command, ContextId, DeviceInfo};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

/// The version cuCtxGetApiVersion reports for every context.
pub(crate) const API_VERSION: u32 = 3020;

/// A context, primary or created.
pub(crate) struct Context {
    /// Its handle.
    pub(crate) handle: u64,
    /// Its name on the worker.
    pub(crate) id: ContextId,
    /// The number of its device in this process.
    pub(crate) device: usize,
    /// The way to its worker.
    pub(crate) link: SharedLink,
    /// Whether it is a device's primary context.
    pub(crate) primary: bool,
    flags: AtomicU32,
    /// False after destroy, or while a primary context is not retained.
    alive: AtomicBool,
    /// The error that killed it, 0 while it is well.
    fatal: AtomicU32,
    /// An error that is reported once and leaves it well.
    passing: AtomicU32,
    /// A name that no other context of the process ever had.
    unique: AtomicU64,
    limits: Mutex<HashMap<u32, u64>>,
    first_limits: HashMap<u32, u64>,
    /// `CUfunc_cache`, kept because programs read back what they set.
    pub(crate) cache_config: AtomicU32,
    /// `CUsharedconfig`, likewise.
    pub(crate) shared_memory_config: AtomicU32,
    legacy: RwLock<Option<Arc<Stream>>>,
    /// Devices whose memory its kernels may reach.
    pub(crate) peers: Mutex<Vec<usize>>,
    /// What libraries keep in it (private table of context local storage).
    pub(crate) local_storage: LocalStorage,
    /// Events over all its streams.
    pub(super) gathering: super::context_event::Gathering,
    /// Its settings of core dumps, once the program has set any.
    pub(crate) coredump: Mutex<Option<cuda_client::coredump::Coredump>>,
    me: OnceLock<std::sync::Weak<Context>>,
}

static NEXT_UNIQUE: AtomicU64 = AtomicU64::new(1);

impl Context {
    /// Makes the client's side of a context.
    pub(super) fn register(
        client: &Client,
        device: usize,
        link: &SharedLink,
        id: ContextId,
        primary: bool,
        flags: u32,
        info: &DeviceInfo,
    ) -> CuResult<Arc<Self>> {
        let mut made = None;
        client.contexts.insert_with(|handle| {
            let context = Arc::new(Self {
                handle,
                id,
                device,
                link: Arc::clone(link),
                primary,
                flags: AtomicU32::new(flags),
                alive: AtomicBool::new(!primary),
                fatal: AtomicU32::new(0),
                passing: AtomicU32::new(0),
                unique: AtomicU64::new(NEXT_UNIQUE.fetch_add(1, Ordering::Relaxed)),
                limits: Mutex::new(info.limits.iter().copied().collect()),
                first_limits: info.limits.iter().copied().collect(),
                cache_config: AtomicU32::new(0),
                shared_memory_config: AtomicU32::new(0),
                legacy: RwLock::new(None),
                peers: Mutex::default(),
                local_storage: LocalStorage::default(),
                gathering: super::context_event::Gathering::default(),
                coredump: Mutex::default(),
                me: OnceLock::new(),
            });
            let _ = context.me.set(Arc::downgrade(&context));
            made = Some(Arc::clone(&context));
            context
        })?;
        made.ok_or(CudaError::UNKNOWN)
    }

    /// Creates a context on `device`.
    pub(crate) fn create(device: &Device, flags: u32) -> CuResult<Arc<Self>> {
        let client = client()?;
        let id = ContextId(client.next_id());
        let context = Self::register(client, device.ordinal, &device.link, id, false, flags, &device.info)?;
        context.link.post(&Command::ContextCreate { context: id, device: device.remote, flags })?;
        Ok(context)
    }

    /// The context behind a handle; behind that of a green context it is the primary one.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        match client()?.contexts.get(handle) {
            Some(context) => Ok(context),
            None => Ok(Arc::clone(&super::Green::of_view(handle)?.context)),
        }
    }

    /// The context behind a handle, if it can be used.
    pub(crate) fn find_alive(handle: u64) -> CuResult<Arc<Self>> {
        let context = Self::find(handle)?;
        context.check_alive()?;
        Ok(context)
    }

    /// A counted reference to this context.
    pub(crate) fn shared(&self) -> CuResult<Arc<Self>> {
        self.me.get().and_then(std::sync::Weak::upgrade).ok_or(CudaError::CONTEXT_IS_DESTROYED)
    }

    /// Its device.
    pub(crate) fn device(&self) -> CuResult<&'static Device> {
        client()?.devices.get(self.device).ok_or(CudaError::INVALID_DEVICE)
    }

    /// An error once it is destroyed.
    #[inline]
    pub(crate) fn check_alive(&self) -> CuResult<()> {
        if self.alive.load(Ordering::Acquire) { Ok(()) } else { Err(CudaError::CONTEXT_IS_DESTROYED) }
    }

    /// An error once it is destroyed or died of a fault: nothing more can be done in it.
    #[inline]
    pub(crate) fn check(&self) -> CuResult<()> {
        self.check_alive()?;
        match CudaError::from_code(self.fatal.load(Ordering::Relaxed)) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Notes an error of one-way work.
    pub(crate) fn remember(&self, error: CudaError) {
        // A load that finds no code fails in its own reply. As an error of one-way work it means that the worker's
        // device cannot execute the program's own code, and the context is dead there. Only soft GPUs do that.
        let is_fatal = error.kills_context() || error == CudaError::NO_BINARY_FOR_GPU;
        let place = if is_fatal { &self.fatal } else { &self.passing };
        let _ = place.compare_exchange(0, error.code(), Ordering::SeqCst, Ordering::SeqCst);
    }

    /// What a call that waited returns: its own result, or an earlier error that no call has returned yet.
    pub(crate) fn settle<T>(&self, result: CuResult<T>) -> CuResult<T> {
        if let Err(error) = &result
            && error.kills_context()
        {
            self.remember(*error);
        }
        self.check()?;
        let passing = self.passing.swap(0, Ordering::SeqCst);
        match (result, CudaError::from_code(passing)) {
            (Ok(_), Some(error)) => Err(error),
            (result, _) => result,
        }
    }

    /// Sends one-way work of this context.
    #[inline]
    pub(crate) fn post(&self, command: &Command<'_>) -> CuResult<()> {
        self.link.post(command)
    }

    /// Sends work of this context and waits for its answer.
    pub(crate) fn call(&self, command: &Command<'_>) -> CuResult<Vec<u8>> {
        let result = self.link.call(command);
        self.settle(result)
    }

    /// The stream that stands for 0.
    pub(crate) fn legacy_stream(&self) -> CuResult<Arc<Stream>> {
        if let Some(stream) = &*locks::read(&self.legacy) {
            return Ok(Arc::clone(stream));
        }
        let mut legacy = locks::write(&self.legacy);
        if let Some(stream) = &*legacy {
            return Ok(Arc::clone(stream));
        }
        let stream = Stream::create(&self.shared()?, StreamKind::Legacy, 0, 0)?;
        *legacy = Some(Arc::clone(&stream));
        Ok(stream)
    }

    /// Ends everything in it. A primary context keeps its name and can live again.
    pub(crate) fn end(&self, primary: bool) -> CuResult<()> {
        let client = client()?;
        super::managed::give_back_all_of(self.handle);
        self.alive.store(false, Ordering::SeqCst);
        self.local_storage.clear(self.handle);
        *locks::write(&self.legacy) = None;
        self.gathering.clear();
        super::forget_greens(self)?;
        let mine = |context: &Arc<Context>| std::ptr::eq(Arc::as_ptr(context), self);
        client.streams.snapshot().iter().filter(|(_, stream)| mine(&stream.context)).for_each(
            |(handle, _)| {
                client.streams.remove(*handle);
            },
        );
        client.events.snapshot().iter().filter(|(_, event)| mine(&event.context)).for_each(
            |(handle, event)| {
                client.events.remove(*handle);
                super::pool_order::forget_event(event);
            },
        );
        super::forget_modules_of(client, self);
        super::shadow::forget_context(self.handle);
        super::managed::forget_context(self.handle);
        super::close_all_of(self);
        self.device()?.memory.forget_context(self.handle);
        super::end_pools_of(self);
        super::forget_samplers(self);
        let posted = if primary {
            self.link.post(&Command::ContextReset { context: self.id })
        } else {
            client.contexts.remove(self.handle);
            self.link.post(&Command::ContextDestroy { context: self.id })
        };
        // Their names may be used again, so the worker is told first that they are gone.
        super::forget_arrays(self);
        posted
    }

    /// Begins a new life of a primary context. One that a fault killed stays dead for this process, as on NVIDIA's
    /// driver.
    pub(super) fn revive(&self, flags: u32) -> CuResult<()> {
        if let Some(error) = CudaError::from_code(self.fatal.load(Ordering::SeqCst)) {
            return Err(error);
        }
        self.flags.store(flags, Ordering::Relaxed);
        self.passing.store(0, Ordering::SeqCst);
        self.unique.store(NEXT_UNIQUE.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        *lock(&self.limits) = self.first_limits.clone();
        lock(&self.peers).clear();
        *lock(&self.coredump) = None;
        self.alive.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Its `CUctx_flags`.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes them.
    pub(crate) fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// cuCtxGetId.
    pub(crate) fn unique(&self) -> u64 {
        self.unique.load(Ordering::Relaxed)
    }

    /// A limit's value.
    pub(crate) fn limit(&self, limit: u32) -> Option<u64> {
        lock(&self.limits).get(&limit).copied()
    }

    /// Sets a limit.
    pub(crate) fn set_limit(&self, limit: u32, value: u64) -> CuResult<()> {
        let mut limits = lock(&self.limits);
        let place = limits.get_mut(&limit).ok_or(CudaError::INVALID_VALUE)?;
        *place = value;
        drop(limits);
        self.post(&Command::ContextSetLimit { context: self.id, limit, value })
    }
}
