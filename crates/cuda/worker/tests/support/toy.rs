//! The smallest driver that has memory, streams and errors: enough to see what the worker does with one.
//! It has no method for each command: what no test needs, it does not support.

use super::window::{Into, Window};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{
    Driver, Exported, Exports, HostLink, PageHandle, Parcel, PendingRead, Snapshots, StatusSource, WaitTarget,
};
use cuda_wire::*;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

/// So much of a pulled copy is on its way at a time.
const PART_BYTES: u64 = 2 << 20;
const PARTS: u64 = 2;

type Job = Box<dyn FnOnce(&Inner) -> CuResult<()> + Send>;

#[derive(Default)]
pub struct Toy {
    inner: Arc<Inner>,
    /// What its sessions share.
    page: Option<PageHandle>,
}

#[derive(Default)]
pub struct Inner {
    link: Mutex<Option<Arc<dyn HostLink>>>,
    memory: Mutex<BTreeMap<u64, Vec<u8>>>,
    streams: Mutex<HashMap<StreamId, Arc<Stream>>>,
    deferred: Mutex<VecDeque<(ContextId, CudaError)>>,
    images: Mutex<Vec<Vec<u8>>>,
    limit_bytes: Mutex<Option<u64>>,
}

#[derive(Default)]
struct Stream {
    state: Mutex<StreamState>,
    changed: Condvar,
}

#[derive(Default)]
struct StreamState {
    jobs: VecDeque<Job>,
    busy: bool,
    ended: bool,
    error: Option<CudaError>,
}

const MEMORY_BYTES: u64 = 1 << 30;

impl Inner {
    fn link(&self) -> Arc<dyn HostLink> {
        self.link.lock().unwrap().clone().unwrap()
    }

    fn with_memory<T>(&self, address: u64, bytes: u64, use_it: impl FnOnce(&mut [u8]) -> T) -> CuResult<T> {
        let mut memory = self.memory.lock().unwrap();
        let (start, data) = memory.range_mut(..=address).next_back().ok_or(CudaError::INVALID_VALUE)?;
        let from = (address - start) as usize;
        let data = data.get_mut(from..from + bytes as usize).ok_or(CudaError::INVALID_VALUE)?;
        Ok(use_it(data))
    }

    /// As a GPU does it whose copies go through a few pinned slots.
    fn pull_in_order(&self, transfer: TransferId, address: u64, bytes: u64) -> CuResult<()> {
        let window = Window::new(bytes, PART_BYTES, PARTS);
        let (over, is_over) = std::sync::mpsc::channel();
        let done = Box::new(move |result| {
            let _ = over.send(result);
        });
        self.link().receive_later(transfer, bytes, true, Box::new(Into(Arc::clone(&window))), done);
        is_over.recv().map_err(|_| CudaError::UNKNOWN)??;
        self.with_memory(address, bytes, |to| to.copy_from_slice(&window.take()))
    }

    fn stream(&self, stream: StreamId) -> CuResult<Arc<Stream>> {
        self.streams.lock().unwrap().get(&stream).cloned().ok_or(CudaError::INVALID_HANDLE)
    }

    fn all(&self) -> Vec<Arc<Stream>> {
        self.streams.lock().unwrap().values().cloned().collect()
    }

    fn of(&self, target: WaitTarget) -> CuResult<Vec<Arc<Stream>>> {
        match target {
            WaitTarget::Stream(stream) => Ok(vec![self.stream(stream)?]),
            WaitTarget::Context(_) => Ok(self.all()),
            WaitTarget::Event(_) => Err(CudaError::INVALID_HANDLE),
        }
    }
}

impl Stream {
    fn run(&self, inner: &Inner) {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.busy = true;
                let failed = state.error.is_some();
                drop(state);
                let result = if failed { Ok(()) } else { job(inner) };
                state = self.state.lock().unwrap();
                state.busy = false;
                if let Err(error) = result {
                    state.error = Some(error);
                    inner.deferred.lock().unwrap().push_back((ContextId(0), error));
                }
                self.changed.notify_all();
            } else if state.ended {
                return;
            } else {
                state = self.changed.wait(state).unwrap();
            }
        }
    }

    fn poll(&self) -> CuResult<bool> {
        let state = self.state.lock().unwrap();
        match state.error {
            Some(error) => Err(error),
            None => Ok(!state.busy && state.jobs.is_empty()),
        }
    }

    fn wait(&self) -> CuResult<()> {
        let mut state = self.state.lock().unwrap();
        while (state.busy || !state.jobs.is_empty()) && !state.ended {
            state = self.changed.wait(state).unwrap();
        }
        state.error.map_or(Ok(()), Err)
    }
}

struct Reading {
    stream: Arc<Stream>,
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
}

impl PendingRead for Reading {
    fn poll(&mut self, out: &mut Vec<u8>) -> CuResult<bool> {
        if let Some(mut bytes) = self.bytes.lock().unwrap().take() {
            out.append(&mut bytes);
            return Ok(true);
        }
        self.stream.poll().map(|_| false)
    }

    fn wait(self: Box<Self>, out: &mut Vec<u8>) -> CuResult<()> {
        let mut state = self.stream.state.lock().unwrap();
        loop {
            if let Some(mut bytes) = self.bytes.lock().unwrap().take() {
                out.append(&mut bytes);
                return Ok(());
            }
            if let Some(error) = state.error {
                return Err(error);
            }
            if state.ended {
                return Err(CudaError::DEVICE_UNAVAILABLE);
            }
            state = self.stream.changed.wait(state).unwrap();
        }
    }
}

impl Toy {
    /// One whose sessions share a page.
    pub fn sharing(page: Option<PageHandle>) -> Self {
        Self { page, ..Self::default() }
    }
}

/// What a toy shares: nothing but a number.
struct Number(u64);

impl Exported for Number {
    fn pieces(&self) -> u32 {
        1
    }

    fn offset(&self) -> u64 {
        0
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn parcel(&self, _: u32) -> CuResult<Parcel> {
        Ok(Parcel { words: self.0.to_le_bytes().to_vec(), fd: None })
    }
}

impl Exports for Toy {
    fn share_memory(&self, _: u64, bytes: u64) -> CuResult<Arc<dyn Exported>> {
        Ok(Arc::new(Number(bytes)))
    }

    fn share_physical(&self, _: MemoryHandleId) -> CuResult<Arc<dyn Exported>> {
        Err(CudaError::INVALID_HANDLE)
    }

    fn share_event(&self, event: EventId) -> CuResult<Arc<dyn Exported>> {
        Ok(Arc::new(Number(event.0.into())))
    }

    fn import_memory(&self, _: MemoryHandleId, parcel: Parcel) -> CuResult<Imported> {
        let bytes = parcel.words.try_into().map(u64::from_le_bytes).map_err(|_| CudaError::INVALID_VALUE)?;
        Ok(Imported { offset: 0, bytes, device: 0 })
    }

    fn import_event(&self, _: EventId, _: ContextId, _: Parcel) -> CuResult<()> {
        Ok(())
    }
}

/// The variable that names a file for the slice of a session.
pub const SLICE_FILE: &str = "TOY_SLICE_FILE";

impl Driver for Toy {
    fn exports(&self) -> Option<&dyn Exports> {
        Some(self)
    }

    fn share_host(&self, _: RegionId, _: Arc<cuda_driver::SharedPages>) -> CuResult<()> {
        Ok(())
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            name: "toy".to_owned(),
            uuid: [7; 16],
            memory_bytes: MEMORY_BYTES.min(self.inner.limit_bytes.lock().unwrap().unwrap_or(u64::MAX)),
            attributes: vec![],
            stream_priorities: (0, 0),
            granularity: (4096, 4096),
            limits: vec![],
        }]
    }

    fn limit_memory(&self, bytes: u64, _: cuda_driver::LimitOf) {
        *self.inner.limit_bytes.lock().unwrap() = Some(bytes);
    }

    /// Told to a test in a file that it names.
    fn set_slice(&self, slice_us: Option<u64>) {
        if let Some(file) = std::env::var_os(SLICE_FILE) {
            std::fs::write(file, format!("{slice_us:?}")).unwrap();
        }
    }

    fn cuda_version(&self) -> i32 {
        13000
    }

    fn reserve_addresses(&self, candidates: &[VaRange]) -> Option<VaRange> {
        candidates.first().copied()
    }

    fn attach(&self, link: Arc<dyn HostLink>) {
        *self.inner.link.lock().unwrap() = Some(link);
    }

    fn poll(&self, target: WaitTarget) -> CuResult<bool> {
        self.inner.of(target)?.iter().try_fold(true, |done, stream| Ok(done & stream.poll()?))
    }

    fn wait(&self, target: WaitTarget) -> CuResult<()> {
        self.inner.of(target)?.iter().try_for_each(|stream| stream.wait())
    }

    fn read_back_begin(
        &self,
        stream: StreamId,
        source: Plane,
        shape: Shape,
    ) -> CuResult<Box<dyn PendingRead>> {
        let bytes = Arc::new(Mutex::new(None));
        let kept = bytes.clone();
        let job = move |inner: &Inner| {
            let data = inner.with_memory(source.address, shape.width, |data| data.to_vec())?;
            *kept.lock().unwrap() = Some(data);
            Ok(())
        };
        self.put(stream, Box::new(job))?;
        Ok(Box::new(Reading { stream: self.inner.stream(stream)?, bytes }))
    }

    fn page(&self) -> Option<PageHandle> {
        self.page.clone()
    }

    fn quiet(&self) -> CuResult<bool> {
        self.poll(WaitTarget::Context(ContextId(0)))
    }

    /// All work counts as one kernel.
    fn running(&self) -> Option<u64> {
        self.quiet().is_ok_and(|is_quiet| !is_quiet).then_some(1)
    }

    fn take_deferred(&self) -> Option<(ContextId, CudaError)> {
        self.inner.deferred.lock().unwrap().pop_front()
    }

    fn grant_memory_credit(&self) -> u64 {
        1000
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn abort(&self) {
        for stream in self.inner.all() {
            stream.state.lock().unwrap().ended = true;
            stream.changed.notify_all();
        }
    }
}

/// It can be protected, and takes no cuts.
impl Snapshots for Toy {
    fn protect(&self, _: Arc<snapshot::Key>) -> CuResult<()> {
        Ok(())
    }
}

impl Execute for Toy {
    fn execute(&self, command: DriverCommand<'_>, answer: &mut Vec<u8>) -> CuResult<()> {
        use DriverCommand as C;
        match command {
            C::ContextCreate { context, .. } => makes(context.0),
            C::ContextDestroy { context: ContextId(0) } => panic!("a driver that panics"),
            C::ContextDestroy { context } | C::ContextReset { context } => ends(context.0),
            C::ContextSetLimit { limit: ERROR_LIMIT, value, .. } => {
                CudaError::from_code(value as u32).map_or(Ok(()), Err)
            }
            C::ContextSetLimit { .. } => Err(CudaError::UNSUPPORTED_LIMIT),
            C::ContextEnablePeer { .. } => Ok(()),
            C::MemoryAllocate { bytes, .. } if bytes > MEMORY_BYTES => Err(CudaError::OUT_OF_MEMORY),
            C::MemoryAllocate { address, bytes, .. } => {
                self.inner.memory.lock().unwrap().insert(address, vec![0; bytes as usize]);
                Ok(())
            }
            C::MemoryFree { address } => {
                let freed = self.inner.memory.lock().unwrap().remove(&address);
                freed.map(drop).ok_or(CudaError::INVALID_VALUE)
            }
            C::MemoryInfo { .. } => {
                let used: u64 =
                    self.inner.memory.lock().unwrap().values().map(|data| data.len() as u64).sum();
                (MEMORY_BYTES - used, MEMORY_BYTES).put(answer);
                Ok(())
            }
            C::PhysicalCreate { handle, .. } => makes(handle.0),
            C::PhysicalRelease { handle } => ends(handle.0),
            C::ModuleLoad { module, image, .. } => {
                makes(module.0)?;
                self.load(image).map(|info| info.put(answer))
            }
            C::ModuleUnload { module } => ends(module.0),
            C::StreamCreate { stream, .. } => {
                makes(stream.0)?;
                self.create_stream(stream);
                Ok(())
            }
            C::StreamDestroy { stream } => {
                ends(stream.0)?;
                let stream = self.inner.streams.lock().unwrap().remove(&stream);
                let stream = stream.ok_or(CudaError::INVALID_HANDLE)?;
                stream.state.lock().unwrap().ended = true;
                stream.changed.notify_all();
                Ok(())
            }
            C::StreamQuery { stream } => match self.poll(WaitTarget::Stream(stream))? {
                true => Ok(()),
                false => Err(CudaError::NOT_READY),
            },
            C::Enqueue { stream, op } => self.enqueue(stream, op),
            C::EventCreate { event, .. } => makes(event.0),
            C::EventDestroy { event } => ends(event.0),
            // It keeps no graph and runs none: what the worker counts is the same.
            C::GraphInstantiate { exec, .. } => makes(exec.0),
            C::GraphUpdate { nodes, .. } if nodes.is_empty() => Err(CudaError::GRAPH_EXEC_UPDATE_FAILURE),
            C::GraphUpdate { .. } => Ok(()),
            C::GraphSetNode { index, .. } if index >= NODES_MAX => Err(CudaError::INVALID_VALUE),
            C::GraphSetNode { .. } => Ok(()),
            C::GraphDestroy { exec } => ends(exec.0),
            _ => Err(CudaError::NOT_SUPPORTED),
        }
    }
}

/// The driver refuses to make what has this number or a higher one.
pub const IMPOSSIBLE: u32 = 0x2000_0000;

/// The driver makes what has this number or a higher one, and refuses to end it.
pub const STUBBORN: u32 = 0x1000_0000;

/// Setting this limit fails with the error whose code is the value.
pub const ERROR_LIMIT: u32 = 0x7777;

/// Nodes of a graph that can be set.
pub const NODES_MAX: u32 = 8;

fn makes(number: u32) -> CuResult<()> {
    if number < IMPOSSIBLE { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

fn ends(number: u32) -> CuResult<()> {
    if number < STUBBORN { Ok(()) } else { Err(CudaError::INVALID_CONTEXT) }
}

impl Toy {
    /// The information log says how many images came before this one.
    fn load(&self, image: ImageSource<'_>) -> CuResult<ModuleInfo> {
        let ImageSource::Inline { bytes } = image else { return Err(CudaError::INVALID_SOURCE) };
        let mut images = self.inner.images.lock().unwrap();
        images.push(bytes.0.to_vec());
        let info_log = format!("image {} has {} bytes", images.len(), bytes.0.len());
        Ok(ModuleInfo { kernels: vec![], variables: vec![], info_log, managed: Default::default() })
    }

    fn create_stream(&self, id: StreamId) {
        let stream = Arc::new(Stream::default());
        self.inner.streams.lock().unwrap().insert(id, stream.clone());
        let inner = self.inner.clone();
        std::thread::spawn(move || stream.run(&inner));
    }

    fn enqueue(&self, stream: StreamId, op: Op<'_>) -> CuResult<()> {
        let job: Job = match op {
            Op::CopyIn { target, shape, data } => {
                self.inner.with_memory(target.address, shape.width, |_| ())?;
                let (address, bytes) = (target.address, shape.width);
                let (transfer, pull) = match data {
                    HostData::Inline { bytes } => {
                        let data = bytes.0.to_vec();
                        let job = move |inner: &Inner| {
                            inner.with_memory(address, data.len() as u64, |target| {
                                target.copy_from_slice(&data)
                            })
                        };
                        return self.put(stream, Box::new(job));
                    }
                    HostData::Pushed { transfer } => (transfer, false),
                    HostData::Pulled { transfer } => (transfer, true),
                };
                if pull {
                    let copy = move |inner: &Inner| inner.pull_in_order(transfer, address, bytes);
                    return self.put(stream, Box::new(copy));
                }
                Box::new(move |inner: &Inner| {
                    let sink = |offset: u64, piece: &[u8]| {
                        let place = address + offset;
                        let _ = inner.with_memory(place, piece.len() as u64, |to| to.copy_from_slice(piece));
                    };
                    Ok(inner.link().receive(transfer, bytes, pull, &sink)?)
                })
            }
            Op::CopyOut { source, shape, transfer } => Box::new(move |inner: &Inner| {
                let fill = |offset: u64, target: &mut [u8]| {
                    let place = source.address + offset;
                    let _ =
                        inner.with_memory(place, target.len() as u64, |from| target.copy_from_slice(from));
                };
                Ok(inner.link().send(transfer, shape.width, &fill)?)
            }),
            Op::Fill { target, shape, value, .. } => Box::new(move |inner: &Inner| {
                inner.with_memory(target.address, shape.width, |data| data.fill(value as u8))
            }),
            Op::HostCall { token } => Box::new(move |inner: &Inner| Ok(inner.link().host_call(token)?)),
            // A kernel without parameters fails, with the code that its grid says.
            Op::Launch { parameters, grid, .. } => {
                let text = parameters.0.to_vec();
                let error = CudaError::from_code(grid[0]).filter(|error| error.code() > 1);
                Box::new(move |inner: &Inner| match text.is_empty() {
                    true => Err(error.unwrap_or(CudaError::ILLEGAL_ADDRESS)),
                    false => {
                        inner.link().print(&text);
                        Ok(())
                    }
                })
            }
            Op::Empty {} => Box::new(|_: &Inner| Ok(())),
            _ => return Err(CudaError::NOT_SUPPORTED),
        };
        self.put(stream, job)
    }

    fn put(&self, stream: StreamId, job: Job) -> CuResult<()> {
        let stream = self.inner.stream(stream)?;
        stream.state.lock().unwrap().jobs.push_back(job);
        stream.changed.notify_all();
        Ok(())
    }
}

/// Two devices that say their number.
pub struct ToyStatus;

impl StatusSource for ToyStatus {
    fn device_count(&self) -> u32 {
        2
    }

    fn device_status(&self, device: u32) -> CuResult<DeviceStatus> {
        if device >= self.device_count() {
            return Err(CudaError::INVALID_DEVICE);
        }
        Ok(DeviceStatus { name: format!("toy {device}"), ..Default::default() })
    }
}
