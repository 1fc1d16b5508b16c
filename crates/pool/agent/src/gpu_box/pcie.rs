//! The PCIe plane of a box: one proxy for all slots, which lets each slot's device be a host's.

use anyhow::Context;
use fabric::Protection;
use gpu_function::{GpuEndpoint, Pass};
use pcie::endpoint::Endpoint;
use pcie_proxy::{BoxProxy, CarrierOptions, Epoch, NodeId, Pairing, SlotId, parse_path};
use pool_api::{PciePairing, SLOTS_PER_BOX_MAX};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Shared by all slots of a box.
#[derive(Clone)]
pub(crate) struct PciePlane {
    slots: Arc<BoxProxy>,
    /// This box's number on the network, once the manager has given it one.
    node: Arc<AtomicU16>,
}

impl PciePlane {
    pub(crate) fn start(listen: &[SocketAddr], spin: Duration) -> anyhow::Result<Self> {
        let options = CarrierOptions { listen: listen.to_vec(), spin, protection: Protection::Encrypted };
        let slots = BoxProxy::start(SLOTS_PER_BOX_MAX, &options).context("cannot start the PCIe proxy")?;
        Ok(Self { slots: Arc::new(slots), node: Arc::default() })
    }

    /// Where hosts reach it.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.slots.paths().iter().map(|path| format!("udp:{path}")).collect()
    }

    pub(crate) fn set_node(&self, node: u16) {
        self.node.store(node, Ordering::Relaxed);
    }

    /// What a device calls when it has something to say by itself.
    pub(crate) fn waker(&self) -> impl Fn() + Send + Sync + Clone + 'static {
        self.slots.waker()
    }

    pub(crate) fn insert(&self, slot: u8, device: Box<dyn Endpoint>) -> anyhow::Result<()> {
        Ok(self.slots.insert(SlotId(slot.into()), device)?)
    }

    /// Puts a GPU function into a slot, with the worker at this socket behind it.
    pub(crate) fn insert_gpu(&self, slot: u8, worker: PathBuf) -> anyhow::Result<Pass> {
        let device = GpuEndpoint::new(worker, super::device::patient(), Arc::new(self.waker()));
        let pass = device.pass();
        self.insert(slot, Box::new(device))?;
        Ok(pass)
    }

    /// Lets a host have a slot's device. Once more is the same.
    pub(crate) fn pair(&self, slot: u8, epoch: u64, with: &PciePairing) -> anyhow::Result<()> {
        let box_node = self.node.load(Ordering::Relaxed);
        anyhow::ensure!(box_node != 0, "the manager has given this box no number on the network yet");
        let paths = with.host_paths.iter().map(|path| parse_path(path));
        let pairing = Pairing {
            epoch: Epoch(epoch),
            host_node: NodeId(with.host_node),
            box_node: NodeId(box_node),
            box_slot: SlotId(slot.into()),
            remote_paths: paths.collect::<Result<_, _>>()?,
            secret: with.secret.to_bytes().context("the manager gave no secret")?,
            patience: Duration::from_millis(with.patience_ms),
        };
        Ok(self.slots.pair(&pairing)?)
    }

    /// Takes a slot's device back from its host; the device is as after power-on.
    pub(crate) fn clear(&self, slot: u8, epoch: u64) -> anyhow::Result<()> {
        Ok(self.slots.clear(SlotId(slot.into()), Epoch(epoch))?)
    }
}
