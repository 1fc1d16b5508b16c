//! The driver trait of one session.

#![allow(unsafe_code)]

use crate::{
    array::Arrays,
    context::LiveContext,
    cut::{Cuts, Room},
    device_info,
    known::Known,
    leaving::Leaving,
    memory::Memory,
    op::Work,
    pinned::{Slots, Words},
    printed::Printed,
    progress::Progress,
    pulse::Pulse,
    quota::Quota,
    read_back,
    seat::{Seat, SharingGate, Touched},
    shared::{Regions, Registered},
    slices::Slices,
    stream::LiveStream,
    sys::{Api, LoadError},
    tables::Tables,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{
    Descriptions, Driver, Exports, HostLink, LimitOf, PageHandle, Part, PendingRead, SharedPages, Snapshots,
    Ticket, WaitTarget,
};
use cuda_wire::{ContextId, DeviceInfo, Plane, RegionId, Shape, StreamId, VaRange};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What differs between workers.
#[derive(Clone, Debug, Default)]
pub struct NvidiaConfig {
    /// The most memory of each device that the session may use.
    pub memory_limit_bytes: Option<u64>,
    /// What it and the other sessions of its worker have together. `None`: it is alone.
    pub quota: Option<Arc<dyn Quota>>,
    /// Make standard output the way for text that kernels print; nothing else may then print there.
    pub take_standard_output: bool,
    /// The page that all sessions of these GPUs share. Without it there are dedicated sessions alone.
    pub page: Option<PageHandle>,
    /// Sessions of these GPUs have their contexts in one server (MPS): one that ends in the middle of a kernel ends the others, too.
    pub is_merged: bool,
    /// The device heeds time slices ([`crate::run_trial`]): a session that shares it may change its own.
    pub heeds_slices: bool,
}

/// Why a session cannot have the GPUs.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The driver's library is not usable.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver refused.
    #[error("{what}: {error}")]
    Driver {
        /// What it was asked.
        what: &'static str,
        /// What it said.
        error: CudaError,
    },
    /// The kernel refused.
    #[error("{what}")]
    System {
        /// What it was asked.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
}

/// Memory that a client may allocate without awaiting the answer. As much is set aside on the device meanwhile.
const CREDIT_BYTES: u64 = 1 << 30;
/// The least share of a device's memory that is set aside for it.
const CREDIT_SHARE: u64 = 32;

/// The NVIDIA driver of this machine, for one session.
pub struct NvidiaDriver {
    pub(crate) api: Api,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) work: Arc<Work>,
    pub(crate) cuts: Arc<Cuts>,
    pub(crate) devices: Vec<DeviceInfo>,
    pub(crate) message: Mutex<Option<String>>,
    pub(crate) known: Known,
    page: Option<PageHandle>,
    /// Where contexts are merged with those of other sessions.
    pulse: Option<Pulse>,
    slices: Option<Slices>,
    version: i32,
}

impl NvidiaDriver {
    /// Loads the driver and makes a context on every device that it shows. Takes some tenths of a second.
    pub fn new(config: &NvidiaConfig) -> Result<Self, StartError> {
        let refused = |what| move |source| StartError::System { what, source };
        let printed = match config.take_standard_output {
            true => Some(Printed::take_over().map_err(refused("standard output"))?),
            false => None,
        };
        Self::on(Api::load()?, printed, config)
    }

    /// The same over functions that are already there.
    pub(crate) fn on(api: Api, printed: Option<Printed>, config: &NvidiaConfig) -> Result<Self, StartError> {
        let failed = |what| move |error| StartError::Driver { what, error };
        let refused = |what| move |source| StartError::System { what, source };
        // Before the first context: its channels are born with it.
        let slices = config.heeds_slices.then(|| Slices::watch(&api)).flatten();
        let (mut version, mut count) = (0, 0);
        // SAFETY: every pointer is valid for its call.
        unsafe {
            api.init(0).map_err(failed("cuInit"))?;
            api.driver_version(&mut version).map_err(failed("cuDriverGetVersion"))?;
            api.device_count(&mut count).map_err(failed("cuDeviceGetCount"))?;
        }
        let limit = config.memory_limit_bytes.unwrap_or(u64::MAX);
        let mut tables = Tables::default();
        let mut devices = Vec::new();
        for device in 0..count as u32 {
            let context = LiveContext::primary(&api, device).map_err(failed("cuDevicePrimaryCtxRetain"))?;
            devices.push(device_info::of(&api, &context, limit).map_err(failed("the device's description"))?);
            tables.contexts.insert(ContextId(device), Arc::new(context));
        }
        if devices.is_empty() {
            return Err(StartError::Driver { what: "cuDeviceGetCount", error: CudaError::NO_DEVICE });
        }
        let memory = Memory::new(api, limit, config.quota.clone());
        memory.start().map_err(refused("a thread"))?;
        let work = Work {
            api,
            words: Words::new(api).map_err(failed("pinned memory"))?,
            slots: Slots::new(api).map_err(failed("pinned memory"))?,
            progress: Progress::start().map_err(refused("a thread"))?,
            memory,
            room: Arc::new(Room::new(api)),
            regions: Regions::default(),
            arrays: Arrays::default(),
            printed,
            seat: OnceLock::new(),
            link: OnceLock::new(),
            aborted: AtomicBool::new(false),
            leaving: config.is_merged.then(Leaving::default),
            deferred: Mutex::new(VecDeque::new()),
        };
        let cuts = Cuts::new(&work.words).map_err(failed("pinned memory"))?;
        let known = Known::new(format!("CUDA {version}{}", kernel_module()));
        let pulse = config.is_merged.then(|| Pulse::start(&work, tables.contexts.values()));
        let pulse = pulse.transpose().map_err(failed("a stream for signs of life"))?;
        let (work, tables) = (Arc::new(work), Mutex::new(tables));
        let (page, message) = (config.page.clone(), Mutex::new(None));
        Ok(Self { api, tables, work, cuts, devices, message, known, page, pulse, slices, version })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version of the driver's kernel module, such as `, 580.159.04`; the CUDA version alone does not tell two builds
/// apart. Empty where the machine hides it.
fn kernel_module() -> String {
    let told = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    told.split_whitespace().find(is_version).map(|version| format!(", {version}")).unwrap_or_default()
}

impl std::fmt::Debug for NvidiaDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvidiaDriver").field("devices", &self.devices.len()).finish_non_exhaustive()
    }
}

impl Driver for NvidiaDriver {
    fn devices(&self) -> Vec<DeviceInfo> {
        let limit_bytes = self.work.memory.limit_bytes();
        let limited = |device: &DeviceInfo| DeviceInfo {
            memory_bytes: device.memory_bytes.min(limit_bytes),
            ..device.clone()
        };
        self.devices.iter().map(limited).collect()
    }

    /// Each session counts its own, whatever the limit is of.
    fn limit_memory(&self, bytes: u64, of: LimitOf) {
        self.work.memory.limit(bytes, of);
    }

    fn cuda_version(&self) -> i32 {
        self.version
    }

    fn build(&self) -> String {
        self.known.build().to_owned()
    }

    fn reserve_addresses(&self, candidates: &[VaRange]) -> Option<VaRange> {
        let context = self.lock().context(ContextId(0)).ok()?;
        context.enter().ok()?;
        candidates.iter().copied().find(|range| self.work.memory.reserve_addresses(*range))
    }

    fn attach(&self, link: Arc<dyn HostLink>) {
        let _ = self.work.link.set(link);
    }

    fn know(&self, descriptions: Arc<dyn Descriptions>) {
        self.known.keep_in(descriptions);
    }

    fn poll(&self, target: WaitTarget) -> CuResult<bool> {
        let (is_done, context) = match target {
            WaitTarget::Stream(id) => {
                let stream = self.lock().stream(id)?;
                self.cuts.want(&stream);
                (stream.is_idle()?, Arc::clone(&stream.context))
            }
            WaitTarget::Event(id) => {
                let event = self.lock().event(id)?;
                (event.is_reached()?, Arc::clone(&event.context))
            }
            WaitTarget::Context(id) => {
                let tables = self.lock();
                let context = tables.context(id)?;
                let streams = tables.streams_of(&context);
                drop(tables);
                self.cuts.want_all();
                for stream in &streams {
                    if !stream.is_idle()? {
                        return Ok(false);
                    }
                }
                // The legacy stream may have work although the client has not named it; a dead context shows here.
                if !LiveStream::legacy(&self.api, Arc::clone(&context)).is_idle()? {
                    return Ok(false);
                }
                drop(streams);
                let departed = self.lock().take_departed();
                drop(departed);
                if context.may_print() {
                    // The driver writes the text of kernels only in a wait. This one returns at once: all work is done.
                    context.enter()?;
                    // SAFETY: no pointers.
                    unsafe { self.api.context_synchronize()? };
                }
                (true, context)
            }
        };
        if is_done {
            self.work.after_wait(&context);
        }
        Ok(is_done)
    }

    fn wait(&self, target: WaitTarget) -> CuResult<()> {
        let context = match target {
            WaitTarget::Stream(id) => {
                let stream = self.lock().stream(id)?;
                self.cuts.want(&stream);
                stream.wait()?;
                Arc::clone(&stream.context)
            }
            WaitTarget::Event(id) => {
                let event = self.lock().event(id)?;
                event.wait()?;
                Arc::clone(&event.context)
            }
            WaitTarget::Context(id) => {
                let context = self.lock().context(id)?;
                self.cuts.want_all();
                context.enter()?;
                // SAFETY: no pointers.
                unsafe { self.api.context_synchronize()? };
                context
            }
        };
        self.work.after_wait(&context);
        Ok(())
    }

    fn read_back_begin(
        &self,
        stream: StreamId,
        source: Plane,
        shape: Shape,
    ) -> CuResult<Box<dyn PendingRead>> {
        let _entered = self.work.enter()?;
        let stream = self.lock().stream(stream)?;
        self.cuts.want(&stream);
        let read = read_back::begin(&self.work, Arc::clone(&stream), source, shape)?;
        if let Some(seat) = self.work.seat.get() {
            seat.note_read(&stream);
        }
        Ok(Box::new(read))
    }

    fn take_deferred(&self) -> Option<(ContextId, CudaError)> {
        self.work.deferred.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn take_message(&self) -> Option<String> {
        self.message.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn grant_memory_credit(&self) -> u64 {
        let smallest = self.devices.iter().map(|device| device.memory_bytes).min().unwrap_or(0);
        let bytes = CREDIT_BYTES.min(smallest / CREDIT_SHARE);
        self.work.memory.grant(self.devices.len() as u32, bytes)
    }

    fn page(&self) -> Option<PageHandle> {
        self.page.clone()
    }

    fn share(&self, ticket: Ticket) -> CuResult<()> {
        let page = self.page.clone().ok_or(CudaError::NOT_SUPPORTED)?;
        self.work.memory.count_in(page.clone(), ticket);
        let gate = || -> CuResult<Box<SharingGate>> {
            self.lock().context(ContextId(0))?.enter()?;
            let gate = SharingGate::new(self.api, page, ticket)?.marking_long(self.work.is_merged());
            gate.watch_owners(&self.work).map_err(|_| CudaError::OPERATING_SYSTEM)?;
            Ok(Box::new(gate))
        };
        let seat = match ticket.part() {
            Part::Online => Seat::Online(Touched::default()),
            Part::Offline => Seat::Offline(gate()?),
            Part::Equal(_) => Seat::Equal(gate()?, Touched::default()),
        };
        let _ = self.work.seat.set(seat);
        Ok(())
    }

    fn set_slice(&self, slice_us: Option<u64>) {
        if let Some(slices) = &self.slices {
            slices.set(slice_us);
        }
    }

    fn quiet(&self) -> CuResult<bool> {
        Ok(self.work.seat.get().is_none_or(Seat::is_quiet))
    }

    fn rests(&self) -> bool {
        self.work.seat.get().is_none_or(Seat::rests)
    }

    fn running(&self) -> Option<u64> {
        self.work.seat.get().and_then(Seat::running)
    }

    fn share_host(&self, region: RegionId, pages: Arc<SharedPages>) -> CuResult<()> {
        // A primary context, which lives as long as the session.
        let context = self.lock().context(ContextId(0))?;
        context.enter()?;
        self.work.regions.insert(region, Registered::new(&self.api, pages)?);
        Ok(())
    }

    fn unshare_host(&self, region: RegionId) {
        let Some(registered) = self.work.regions.remove(region) else { return };
        let contexts = self.lock().contexts.values().cloned().collect();
        self.work.memory.let_go(contexts, registered);
    }

    fn exports(&self) -> Option<&dyn Exports> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn fault(&self) -> Option<CudaError> {
        self.pulse.as_ref().and_then(Pulse::fault)
    }

    fn drain(&self) {
        self.leave_in_order();
    }

    fn abort(&self) {
        // Contexts, memory and kernels that still run go with the process, which ends now.
        if let Some(seat) = self.work.seat.get() {
            seat.tell();
        }
        self.work.aborted.store(true, Ordering::SeqCst);
        if self.work.is_merged() {
            // What streams wait for stays unwritten: kernels behind it must not begin now.
            return;
        }
        self.work.progress.close();
        self.work.memory.close();
    }
}
