//! Between a session's command stream and the driver: what the worker adds to commands.
//!
//! Module images are found or taken in, names are remembered for errors that surface later, pushed data of failed
//! copies is thrown away, allocated memory is counted against the client's credit, and what the client has made against
//! what it may have of this machine's memory. Everything else passes through.

use crate::{
    images::ImageCache,
    session::{
        holdings::{Change, Holdings, Thing, node_costs, op_cost},
        link::Link,
        names::{Names, Subject},
    },
    sync::lock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Driver, HostLink};
use cuda_wire::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// No real module is near this; a hostile client might claim to have one.
const IMAGE_BYTES_MAX: u64 = 1 << 30;

/// The longest message: a compiler's log, not a book.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

pub(crate) struct Gate {
    driver: Arc<dyn Driver>,
    link: Arc<Link>,
    images: Option<ImageCache>,
    names: Names,
    holdings: Holdings,
    /// First error of one-way commands by context, oldest first, not reported yet.
    deferred: Mutex<Vec<(ContextId, CudaError)>>,
    /// Memory the client may still allocate without asking.
    credit_bytes: AtomicU64,
    /// Below this the client is given more.
    credit_low_bytes: u64,
}

impl Gate {
    /// `credit_bytes`: what the welcome has granted; `host_bytes_max`: how much of this machine's memory the client's things
    /// may take.
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        link: Arc<Link>,
        images: Option<ImageCache>,
        credit_bytes: u64,
        host_bytes_max: u64,
    ) -> Self {
        Self {
            driver,
            link,
            images,
            names: Names::default(),
            holdings: Holdings::new(host_bytes_max),
            deferred: Mutex::default(),
            credit_bytes: AtomicU64::new(credit_bytes),
            credit_low_bytes: credit_bytes / 2,
        }
    }

    /// Remembers the failure of a one-way command, if it is the first of its context.
    pub(crate) fn defer(&self, subject: Subject, error: CudaError) {
        let context = self.names.context_of(subject);
        let mut deferred = lock(&self.deferred);
        if deferred.iter().all(|(known, _)| *known != context) {
            deferred.push((context, error));
        }
    }

    /// The driver's words about the command that just failed, cut to what a reply may carry.
    pub(crate) fn take_message(&self) -> String {
        let mut message = self.driver.take_message().unwrap_or_default();
        let mut end = message.len().min(MESSAGE_BYTES_MAX);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message
    }

    /// The next error that a reply should carry.
    pub(crate) fn take_deferred(&self) -> Option<(ContextId, CudaError)> {
        let mut deferred = lock(&self.deferred);
        if deferred.is_empty() {
            drop(deferred);
            return self.driver.take_deferred();
        }
        Some(deferred.remove(0))
    }

    /// Further credit for the next reply.
    pub(crate) fn memory_credit(&self) -> u64 {
        if self.credit_bytes.load(Ordering::Relaxed) >= self.credit_low_bytes {
            return 0;
        }
        let granted = self.driver.grant_memory_credit();
        self.credit_bytes.fetch_add(granted, Ordering::Relaxed);
        granted
    }

    fn spend(&self, bytes: u64) {
        let spent = |credit: u64| Some(credit.saturating_sub(bytes));
        // Never fails: the closure always gives a value.
        let _ = self.credit_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
    }

    fn image(&self, hash: &[u8; 32], image: ImageSource<'_>) -> CuResult<std::borrow::Cow<'_, [u8]>> {
        let bytes = match image {
            ImageSource::Known {} => {
                let known = self.images.as_ref().and_then(|images| images.get(hash));
                return known.map(Into::into).ok_or(CudaError::NOT_FOUND);
            }
            ImageSource::Inline { bytes } => bytes.0.to_vec(),
            ImageSource::Pushed { bytes, .. } if bytes > IMAGE_BYTES_MAX => {
                return Err(CudaError::INVALID_VALUE);
            }
            ImageSource::Pushed { transfer, bytes } => self.pushed_image(transfer, bytes)?,
        };
        if blake3::hash(&bytes).as_bytes() != hash {
            return Err(CudaError::INVALID_IMAGE);
        }
        if let Some(images) = &self.images
            && let Err(error) = images.put(hash, &bytes)
        {
            // The next load of it travels again; nothing else is lost.
            tracing::warn!(%error, "cannot keep a module image");
        }
        Ok(bytes.into())
    }

    fn pushed_image(&self, transfer: TransferId, bytes: u64) -> CuResult<Vec<u8>> {
        let image = Mutex::new(vec![0; bytes as usize]);
        self.link.receive(transfer, bytes, false, &|offset, piece: &[u8]| {
            let at = offset as usize;
            lock(&image)[at..at + piece.len()].copy_from_slice(piece);
        })?;
        Ok(image.into_inner().unwrap_or_default())
    }
}

/// What was pushed for a copy, if it was pushed.
fn pushed(op: &Op<'_>) -> Option<(TransferId, u64)> {
    match op {
        Op::CopyIn { data: HostData::Pushed { transfer }, shape, .. } => Some((*transfer, shape.bytes()?)),
        _ => None,
    }
}

impl Commands for Gate {
    fn context_create(&self, context: ContextId, device: u32, flags: u32) -> CuResult<()> {
        self.holdings
            .add(Thing::Context(context), None, 0, || self.driver.context_create(context, device, flags))
    }

    fn context_destroy(&self, context: ContextId) -> CuResult<()> {
        self.names.forget_context(context);
        self.holdings.forget_context(context);
        self.holdings.remove(Thing::Context(context));
        self.driver.context_destroy(context)
    }

    fn context_reset(&self, context: ContextId) -> CuResult<()> {
        self.names.forget_context(context);
        self.holdings.forget_context(context);
        self.driver.context_reset(context)
    }

    fn context_synchronize(&self, context: ContextId) -> CuResult<()> {
        self.driver.context_synchronize(context)
    }

    fn context_set_limit(&self, context: ContextId, limit: u32, value: u64) -> CuResult<()> {
        self.driver.context_set_limit(context, limit, value)
    }

    fn context_enable_peer(&self, context: ContextId, peer: ContextId, enable: bool) -> CuResult<()> {
        self.driver.context_enable_peer(context, peer, enable)
    }

    fn memory_allocate(&self, context: ContextId, address: u64, bytes: u64) -> CuResult<()> {
        self.spend(bytes);
        self.driver.memory_allocate(context, address, bytes)
    }

    fn memory_free(&self, address: u64) -> CuResult<()> {
        self.driver.memory_free(address)
    }

    fn memory_info(&self, device: u32) -> CuResult<(u64, u64)> {
        self.driver.memory_info(device)
    }

    fn physical_create(&self, handle: MemoryHandleId, device: u32, bytes: u64) -> CuResult<()> {
        self.spend(bytes);
        self.holdings
            .add(Thing::Physical(handle), None, 0, || self.driver.physical_create(handle, device, bytes))
    }

    fn physical_release(&self, handle: MemoryHandleId) -> CuResult<()> {
        self.holdings.remove(Thing::Physical(handle));
        self.driver.physical_release(handle)
    }

    fn physical_map(&self, address: u64, bytes: u64, offset: u64, handle: MemoryHandleId) -> CuResult<()> {
        self.driver.physical_map(address, bytes, offset, handle)
    }

    fn physical_unmap(&self, address: u64, bytes: u64) -> CuResult<()> {
        self.driver.physical_unmap(address, bytes)
    }

    fn physical_set_access(&self, address: u64, bytes: u64, device: u32, protection: u32) -> CuResult<()> {
        self.driver.physical_set_access(address, bytes, device, protection)
    }

    fn device_status(&self, device: u32) -> CuResult<DeviceStatus> {
        self.driver.device_status(device)
    }

    fn module_load<'a>(
        &self,
        module: ModuleId,
        context: ContextId,
        hash: [u8; 32],
        image: ImageSource<'a>,
        options: Vec<JitOption>,
    ) -> CuResult<ModuleInfo> {
        let image = self.image(&hash, image)?;
        let source = ImageSource::Inline { bytes: Bytes(&image) };
        let thing = Thing::Module(module);
        let info = self.holdings.add(thing, Some(context), image.len() as u64, || {
            self.driver.module_load(module, context, hash, source, options)
        })?;
        self.names.with(|maps| maps.modules.insert(module, context));
        Ok(info)
    }

    fn module_unload(&self, module: ModuleId) -> CuResult<()> {
        self.names.with(|maps| maps.modules.remove(&module));
        self.holdings.remove(Thing::Module(module));
        self.driver.module_unload(module)
    }

    fn kernel_set_attribute(&self, kernel: KernelRef, attribute: u32, value: i32) -> CuResult<()> {
        self.driver.kernel_set_attribute(kernel, attribute, value)
    }

    fn link<'a>(
        &self,
        context: ContextId,
        inputs: Vec<LinkInput<'a>>,
        options: Vec<JitOption>,
    ) -> CuResult<LinkOutput> {
        self.driver.link(context, inputs, options)
    }

    fn active_clusters(
        &self,
        kernel: KernelRef,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        attributes: Vec<LaunchAttribute>,
    ) -> CuResult<i32> {
        self.driver.active_clusters(kernel, grid, block, shared_bytes, attributes)
    }

    fn largest_cluster(
        &self,
        kernel: KernelRef,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        attributes: Vec<LaunchAttribute>,
    ) -> CuResult<i32> {
        self.driver.largest_cluster(kernel, grid, block, shared_bytes, attributes)
    }

    fn stream_create(&self, stream: StreamId, context: ContextId, kind: u32, priority: i32) -> CuResult<()> {
        self.holdings.add(Thing::Stream(stream), Some(context), 0, || {
            self.driver.stream_create(stream, context, kind, priority)
        })?;
        self.names.with(|maps| maps.streams.insert(stream, context));
        Ok(())
    }

    fn stream_destroy(&self, stream: StreamId) -> CuResult<()> {
        self.names.with(|maps| maps.streams.remove(&stream));
        self.holdings.remove(Thing::Stream(stream));
        self.driver.stream_destroy(stream)
    }

    fn stream_synchronize(&self, stream: StreamId) -> CuResult<()> {
        self.driver.stream_synchronize(stream)
    }

    fn stream_query(&self, stream: StreamId) -> CuResult<()> {
        self.driver.stream_query(stream)
    }

    fn enqueue<'a>(&self, stream: StreamId, op: Op<'a>) -> CuResult<()> {
        if let Op::Allocate { bytes, .. } = op {
            self.spend(bytes);
        }
        let pushed = pushed(&op);
        self.driver.enqueue(stream, op).inspect_err(|_| {
            // The bytes are on their way and nobody else will take them.
            if let Some((transfer, bytes)) = pushed {
                self.link.discard(transfer, bytes);
            }
        })
    }

    fn read_back(&self, stream: StreamId, source: Plane, shape: Shape) -> CuResult<Blob> {
        self.driver.read_back(stream, source, shape)
    }

    fn event_create(&self, event: EventId, context: ContextId, flags: u32) -> CuResult<()> {
        self.holdings
            .add(Thing::Event(event), Some(context), 0, || self.driver.event_create(event, context, flags))?;
        self.names.with(|maps| maps.events.insert(event, context));
        Ok(())
    }

    fn event_destroy(&self, event: EventId) -> CuResult<()> {
        self.names.with(|maps| maps.events.remove(&event));
        self.holdings.remove(Thing::Event(event));
        self.driver.event_destroy(event)
    }

    fn event_synchronize(&self, event: EventId) -> CuResult<()> {
        self.driver.event_synchronize(event)
    }

    fn event_query(&self, event: EventId) -> CuResult<()> {
        self.driver.event_query(event)
    }

    fn event_elapsed(&self, start: EventId, end: EventId) -> CuResult<f32> {
        self.driver.event_elapsed(start, end)
    }

    fn graph_instantiate<'a>(
        &self,
        exec: ExecId,
        context: ContextId,
        nodes: Vec<GraphNode<'a>>,
    ) -> CuResult<()> {
        self.holdings.add_graph(exec, context, node_costs(&nodes), || {
            self.driver.graph_instantiate(exec, context, nodes)
        })?;
        self.names.with(|maps| maps.execs.insert(exec, context));
        Ok(())
    }

    fn graph_update<'a>(&self, exec: ExecId, nodes: Vec<GraphNode<'a>>) -> CuResult<()> {
        let change = Change::All(node_costs(&nodes));
        self.holdings.change_graph(exec, change, || self.driver.graph_update(exec, nodes))
    }

    fn graph_set_node<'a>(&self, exec: ExecId, index: u32, op: Op<'a>, enabled: bool) -> CuResult<()> {
        let change = Change::One(index, op_cost(&op));
        self.holdings.change_graph(exec, change, || self.driver.graph_set_node(exec, index, op, enabled))
    }

    fn graph_launch(&self, exec: ExecId, stream: StreamId, run: u32) -> CuResult<()> {
        self.driver.graph_launch(exec, stream, run)
    }

    fn graph_upload(&self, exec: ExecId, stream: StreamId) -> CuResult<()> {
        self.driver.graph_upload(exec, stream)
    }

    fn graph_destroy(&self, exec: ExecId) -> CuResult<()> {
        self.names.with(|maps| maps.execs.remove(&exec));
        self.holdings.remove(Thing::Exec(exec));
        self.driver.graph_destroy(exec)
    }

    fn goodbye(&self) -> CuResult<()> {
        self.driver.goodbye()
    }
}
