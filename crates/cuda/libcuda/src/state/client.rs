//! The process's one client: its workers, devices, and the tables behind every handle.

use super::{
    Context, Device, Event, Function, Green, Kernel, Library, Linker, MemoryPool, Module, Physical, Pinned,
    Stream, Unawaited, pool_memory::PoolsAt,
};
use crate::link::{self, Config, Link};
use cuda_abi::{CuResult, CudaError};
use cuda_client::{slab::Slab, stream_order::StreamOrder};
pub(crate) use locks::lock;
use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicU32, Ordering},
};
use thiserror::Error;
use worker_link::Failure;

/// Kinds of handles, the top byte of each.
pub(crate) mod kind {
    pub(crate) const CONTEXT: u8 = 0x11;
    pub(crate) const STREAM: u8 = 0x12;
    pub(crate) const EVENT: u8 = 0x13;
    pub(crate) const MODULE: u8 = 0x14;
    pub(crate) const FUNCTION: u8 = 0x15;
    pub(crate) const LIBRARY: u8 = 0x16;
    pub(crate) const KERNEL: u8 = 0x17;
    pub(crate) const POOL: u8 = 0x18;
    pub(crate) const PHYSICAL: u8 = 0x19;
    pub(crate) const LINKER: u8 = 0x1a;
    // 0x20 and 0x21 are graphs and their nodes: see cuda_client::graph::ids.
    pub(crate) const GRAPH_EXEC: u8 = 0x22;
    pub(crate) const USER_OBJECT: u8 = 0x23;
    pub(crate) const ARRAY: u8 = 0x24;
    pub(crate) const MIPMAPPED: u8 = 0x25;
    pub(crate) const REFERENCE: u8 = 0x26;
    pub(crate) const GREEN: u8 = 0x28;
    pub(crate) const GREEN_VIEW: u8 = 0x29;
}

/// See the module's words.
pub(crate) struct Client {
    /// Devices of all workers, in the order of the workers.
    pub(crate) devices: Vec<Device>,
    /// `CUDA_VERSION` that all workers serve.
    pub(crate) cuda_version: i32,
    pub(crate) contexts: Slab<Context>,
    pub(crate) streams: Slab<Stream>,
    pub(crate) events: Slab<Event>,
    pub(crate) modules: Slab<Module>,
    pub(crate) functions: Slab<Function>,
    pub(crate) libraries: Slab<Library>,
    pub(crate) kernels: Slab<Kernel>,
    pub(crate) pools: Slab<MemoryPool>,
    pub(crate) physical: Slab<Physical>,
    pub(crate) linkers: Slab<Mutex<Linker>>,
    pub(crate) greens: Slab<Green>,
    /// The same by the handles that stand for contexts.
    pub(crate) green_views: Slab<Green>,
    pub(crate) pinned: Pinned,
    pub(crate) unawaited: Unawaited,
    /// Which stream comes after what another one freed to a pool.
    pub(crate) stream_order: StreamOrder,
    /// Names for what is made on workers. One counter for all kinds: a name never means two things.
    next_id: AtomicU32,
}

static CLIENT: OnceLock<Client> = OnceLock::new();

/// The client. Bodies run only after `process::check`, so it is there; a body allowed before cuInit gets the error.
#[inline]
pub(crate) fn client() -> CuResult<&'static Client> {
    CLIENT.get().ok_or(CudaError::NOT_INITIALIZED)
}

/// Why cuInit fails, as a sentence for the user.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error("{0}")]
    Configuration(String),
    #[error(transparent)]
    Worker(#[from] Failure),
    #[error("cannot make objects for the workers' devices: {0}")]
    Devices(CudaError),
    #[error("the workers have no devices")]
    NoDevices,
}

impl StartError {
    /// What cuInit returns.
    pub(crate) fn code(&self) -> CudaError {
        match self {
            Self::Configuration(_) | Self::NoDevices => CudaError::NO_DEVICE,
            Self::Worker(failure) => failure.code(),
            Self::Devices(error) => *error,
        }
    }
}

/// Created contexts are numbered from here; below are the primary contexts.
const FIRST_ID: u32 = 0x100;

impl Client {
    /// Connects to every worker of the environment.
    pub(crate) fn start() -> Result<&'static Self, StartError> {
        let config = Config::from_environment().map_err(StartError::Configuration)?;
        let mut sessions = Vec::new();
        for config in config.each() {
            for address in &config.workers {
                sessions.push(worker_link::patiently(&config, || link::connect(address, &config))?);
            }
        }
        let client = Self {
            cuda_version: sessions.iter().map(|session| session.cuda_version).min().unwrap_or(0),
            devices: Vec::new(),
            contexts: Slab::new(kind::CONTEXT),
            streams: Slab::new(kind::STREAM),
            events: Slab::new(kind::EVENT),
            modules: Slab::new(kind::MODULE),
            functions: Slab::new(kind::FUNCTION),
            libraries: Slab::new(kind::LIBRARY),
            kernels: Slab::new(kind::KERNEL),
            pools: Slab::new(kind::POOL),
            physical: Slab::new(kind::PHYSICAL),
            linkers: Slab::new(kind::LINKER),
            greens: Slab::new(kind::GREEN),
            green_views: Slab::new(kind::GREEN_VIEW),
            pinned: Pinned::default(),
            unawaited: Unawaited::default(),
            stream_order: StreamOrder::default(),
            next_id: AtomicU32::new(FIRST_ID),
        };
        let devices = Device::all(&client, sessions).map_err(StartError::Devices)?;
        let client = Self { devices, ..client };
        if client.devices.is_empty() {
            return Err(StartError::NoDevices);
        }
        let client = CLIENT.get_or_init(|| client);
        client.listen_for_errors();
        for link in client.links() {
            link.know_pools(Box::new(PoolsAt::new(link)));
        }
        Ok(client)
    }

    /// Errors of one-way work belong to a context; it remembers them.
    fn listen_for_errors(&'static self) {
        for device in &self.devices {
            let link = Arc::clone(&device.link);
            device.link.on_deferred(Box::new(move |context, error| {
                let found = self
                    .contexts
                    .snapshot()
                    .into_iter()
                    .find(|(_, known)| known.id.0 == context && Arc::ptr_eq(&known.link, &link));
                if let Some((_, context)) = found {
                    context.remember(error);
                }
            }));
        }
    }

    /// The device of an ordinal.
    #[inline]
    pub(crate) fn device(&self, ordinal: i32) -> CuResult<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(CudaError::INVALID_DEVICE)
    }

    /// A new name.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// All workers, each once.
    pub(crate) fn links(&self) -> Vec<&Arc<Link>> {
        let mut links: Vec<&Arc<Link>> = Vec::new();
        for device in &self.devices {
            if !links.iter().any(|link| Arc::ptr_eq(link, &device.link)) {
                links.push(&device.link);
            }
        }
        links
    }
}
