//! The soft driver's own reader of images: objects of the host, what its linker made, everything in between.

use cuda_driver::{DRIVER_VA_BYTES, Departure, Driver, HostLink, Landing, LinkLost, Over, Sink, Source};
use cuda_wire::{Bytes, Commands, ContextId, ImageSource, LinkInput, ModuleId, TransferId, VaRange};
use driver_soft::{SoftConfig, SoftDriver};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, Ordering},
};

const CONTEXT: ContextId = ContextId(0);
/// Little, so that an image with huge variables meets the end of it.
const MEMORY_BYTES: u64 = 32 << 20;

/// No client: an image comes with its command, and nothing runs.
struct NoClient;

impl HostLink for NoClient {
    fn receive(&self, _: TransferId, _: u64, _: bool, _: &dyn Sink) -> Result<(), LinkLost> {
        Err(LinkLost)
    }

    fn send(&self, _: TransferId, _: u64, _: &dyn Source) -> Result<(), LinkLost> {
        Err(LinkLost)
    }

    // The soft driver's streams have threads of their own, which wait.
    fn receive_later(&self, _: TransferId, _: u64, _: bool, _: Box<dyn Landing>, over: Over) {
        over(Err(LinkLost));
    }

    fn send_part(&self, _: TransferId, _: u64, _: u64, _: Box<dyn Departure>, over: Over) {
        over(Err(LinkLost));
    }

    fn host_call(&self, _: u64) -> Result<(), LinkLost> {
        Err(LinkLost)
    }

    fn print(&self, _: &[u8]) {}
}

/// One device for all inputs, as a worker has one for all modules of a session.
fn device() -> &'static SoftDriver {
    static DEVICE: OnceLock<SoftDriver> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let config = SoftConfig { memory_bytes: MEMORY_BYTES, block_threads: 0, ..SoftConfig::default() };
        let driver = SoftDriver::new(config);
        let ranges: Vec<VaRange> = (0..16)
            .map(|slot| VaRange {
                base: 0x2000_0000_0000 + slot * (1 << 40),
                bytes: (1 << 30) + DRIVER_VA_BYTES,
            })
            .collect();
        driver.reserve_addresses(&ranges).expect("some range of addresses is free");
        driver.attach(Arc::new(NoClient));
        driver
    })
}

/// A linker input: its kind, then its bytes. What the linker makes must load, and its length must be measurable.
pub fn soft_link(data: &[u8]) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let Some((&kind, bytes)) = data.split_first() else { return };
    let device = device();
    let inputs = vec![LinkInput { kind: u32::from(kind), name: "input".to_owned(), bytes: Bytes(bytes) }];
    let output = device.link(CONTEXT, inputs, Vec::new()).expect("a link fails in its output");
    let linked = &output.cubin.0;
    assert_eq!(linked.is_empty(), output.status != 0);
    let module = ModuleId(NEXT.fetch_add(1, Ordering::Relaxed));
    let load = |image| {
        let source = ImageSource::Inline { bytes: Bytes(image) };
        if device.module_load(module, CONTEXT, [0; 32], source, Vec::new()).is_ok() {
            device.module_unload(module).expect("what was loaded can be unloaded");
        }
    };
    load(bytes);
    if output.status == 0 {
        let length = cuda_image::image_length(|offset, bytes| {
            let start = usize::try_from(offset).ok()?;
            linked.get(start..start.checked_add(bytes)?)
        });
        assert_eq!(length, Ok(linked.len() as u64));
        load(linked);
    }
    let _ = device.take_message();
}
