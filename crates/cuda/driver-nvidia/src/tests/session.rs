//! A session over the fake driver, as a worker has one.

use super::link::{TestLink, until};
use crate::{
    driver::{NvidiaConfig, NvidiaDriver},
    fake::{Fake, Live},
    sys::{Api, Context},
};
use cuda_abi::CuResult;
use cuda_driver::{Driver, PageHandle};
use cuda_wire::*;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The primary contexts of the two devices.
pub(super) const CONTEXT: ContextId = ContextId(0);
pub(super) const SECOND: ContextId = ContextId(1);
/// A context that a test creates.
pub(super) const CREATED: ContextId = ContextId(0x100);
/// A stream that every session has, of the first context.
pub(super) const STREAM: StreamId = StreamId(1);
/// All addresses of the session.
pub(super) const ADDRESSES: VaRange = VaRange { base: 0x4000_0000_0000, bytes: 8 << 30 };
/// An allocation of [`DATA_BYTES`] that every session has.
pub(super) const DATA: u64 = ADDRESSES.base;
pub(super) const DATA_BYTES: u64 = 64 << 20;

/// A module with kernels that store, do nothing, and are loaded late; with a variable.
pub(super) const PTX: &str = "\
.version 8.0
.target sm_90
.visible .global .align 8 .b8 table[64];
.visible .entry store(.param .u64 address, .param .u64 value) { ret; }
.visible .entry nothing() { ret; }
.visible .entry lazy_one(.param .u64 a) { ret; }
";

/// Places of [`PTX`]'s kernels in the order of their names.
pub(super) const LAZY_ONE: u32 = 0;
pub(super) const NOTHING: u32 = 1;
pub(super) const STORE: u32 = 2;

pub(super) struct Session {
    pub(super) fake: &'static Fake,
    pub(super) link: Arc<TestLink>,
    driver: Option<NvidiaDriver>,
    slots: usize,
    words: usize,
    live: Live,
}

impl Deref for Session {
    type Target = NvidiaDriver;

    fn deref(&self) -> &NvidiaDriver {
        self.driver.as_ref().unwrap()
    }
}

impl Session {
    /// A session on two devices that has nothing yet.
    pub(super) fn bare(memory_limit_bytes: Option<u64>) -> Self {
        Self::with(NvidiaConfig { memory_limit_bytes, ..NvidiaConfig::default() })
    }

    /// The same with memory that it has together with others.
    pub(super) fn with_quota(quota: Arc<dyn crate::Quota>) -> Self {
        let quota = Some(quota);
        Self::with(NvidiaConfig { quota, ..NvidiaConfig::default() })
    }

    fn with(config: NvidiaConfig) -> Self {
        let fake = Fake::start(2);
        let driver = NvidiaDriver::on(Api::Fake(fake), None, &config).unwrap();
        assert_eq!(driver.reserve_addresses(&[ADDRESSES]), Some(ADDRESSES));
        let link = Arc::new(TestLink::default());
        driver.attach(link.clone());
        let (slots, words) = (driver.work.slots.free_ranges().len(), driver.work.words.free_ranges().len());
        Self { fake, link, driver: Some(driver), slots, words, live: fake.live() }
    }

    /// A session with a stream and some memory.
    pub(super) fn new() -> Self {
        let mut session = Self::bare(None);
        session.memory_allocate(CONTEXT, DATA, DATA_BYTES).unwrap();
        session.stream_create(STREAM, CONTEXT, 1, 0).unwrap();
        session.live = session.fake.live();
        session
    }

    /// The same with a page that it shares with others.
    pub(super) fn with_page(page: PageHandle) -> Self {
        Self::of_page(page, false)
    }

    /// The same with a context that is merged with those of others.
    pub(super) fn merged(page: PageHandle) -> Self {
        Self::of_page(page, true)
    }

    fn of_page(page: PageHandle, is_merged: bool) -> Self {
        let page = Some(page);
        let session = Self::with(NvidiaConfig { page, is_merged, ..NvidiaConfig::default() });
        session.memory_allocate(CONTEXT, DATA, DATA_BYTES).unwrap();
        session.stream_create(STREAM, CONTEXT, 1, 0).unwrap();
        session
    }

    /// What the session has now is what it may have later.
    pub(super) fn note_live(&mut self) {
        self.live = self.fake.live();
    }

    /// Loads [`PTX`].
    pub(super) fn load(&self, module: ModuleId, context: ContextId) -> CuResult<ModuleInfo> {
        let image = ImageSource::Inline { bytes: Bytes(PTX.as_bytes()) };
        self.module_load(module, context, [0; 32], image, Vec::new())
    }

    /// The driver's handle of a context.
    pub(super) fn raw(&self, context: ContextId) -> Context {
        self.lock().context(context).unwrap().raw()
    }

    /// No slot and no word is free that work in a stream will still touch.
    pub(super) fn check_pinned(&self) {
        let mut free = self.work.slots.free_ranges();
        free.extend(self.work.words.free_ranges());
        for used in self.fake.outstanding() {
            let overlaps = |free: &&Range<usize>| free.start < used.end && used.start < free.end;
            assert_eq!(free.iter().find(overlaps), None, "free, though a stream will use {used:x?}");
        }
    }

    /// Waits until all work is over and its slots and words are back.
    pub(super) fn drain(&self) {
        self.fake.release();
        until("the streams are empty", || self.fake.backlog() == 0);
        until("slots and words are back", || self.has_pinned_back());
    }

    /// More slots are made when many are in use; of what was made, all is free.
    fn has_pinned_back(&self) -> bool {
        let (slots, words) = (self.work.slots.free_ranges().len(), self.work.words.free_ranges().len());
        slots >= self.slots && slots.is_multiple_of(self.slots) && words == self.words
    }

    /// The session has nothing of the driver beyond what it had at its start, and broke no rule.
    pub(super) fn check_nothing_left(&self) {
        self.drain();
        self.work.memory.settle();
        // A stream that a watch held is destroyed by the thread that watched.
        until("everything was given back", || self.fake.live() == self.live);
        self.check_rules();
    }

    pub(super) fn check_rules(&self) {
        assert_eq!(self.fake.violations(), [""; 0]);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.fake.release();
        if let Some(driver) = self.driver.take() {
            driver.abort();
        }
        self.fake.close();
    }
}

/// A copy of `bytes` packed bytes from the client.
pub(super) fn pushed(target: Plane, shape: Shape, transfer: u64) -> Op<'static> {
    Op::CopyIn { target, shape, data: HostData::Pushed { transfer: TransferId(transfer) } }
}

pub(super) fn pulled(target: Plane, shape: Shape, transfer: u64) -> Op<'static> {
    Op::CopyIn { target, shape, data: HostData::Pulled { transfer: TransferId(transfer) } }
}

pub(super) fn out(source: Plane, shape: Shape, transfer: u64) -> Op<'static> {
    Op::CopyOut { source, shape, transfer: TransferId(transfer) }
}

pub(super) fn fill(address: u64, bytes: u64, value: u32) -> Op<'static> {
    Op::Fill { target: Plane::line(address), shape: Shape::line(bytes), element_bytes: 1, value }
}

/// A launch of kernel `index` of a module.
pub(super) fn launch(module: ModuleId, index: u32, parameters: &[u8]) -> Op<'_> {
    Op::Launch {
        kernel: KernelRef { module, index },
        grid: [1, 2, 3],
        block: [32, 1, 1],
        shared_bytes: 0,
        cooperative: false,
        attributes: Vec::new(),
        parameters: Bytes(parameters),
    }
}

/// The parameters of `store`.
pub(super) fn store(address: u64, value: u64) -> Vec<u8> {
    [address.to_le_bytes(), value.to_le_bytes()].concat()
}

pub(super) fn node<'a>(op: Op<'a>, after: &[u32]) -> GraphNode<'a> {
    GraphNode { op, after: after.to_vec(), enabled: true }
}
