//! Slots with other devices than GPUs: only the PCIe plane reaches them.
//!
//! They are here to carry anything that speaks PCIe, and because every guest has a driver for NVMe.

use super::agent::Hands;
use super::pcie::PciePlane;
use super::slot::Surroundings;
use anyhow::{Context, bail};
use lease_fence::{Epochs, Fence};
use machine::files;
use pcie::endpoint::dma::{DmaDevice, DmaOptions};
use pcie::endpoint::nvme::{Nvme, NvmeOptions};
use pcie::endpoint::{Endpoint, FunctionOptions};
use pcie::flow::RequesterOptions;
use pcie_proxy::{DEVICE_WAITS, FileStore, watch};
use pool_api::{BurnIn, GpuReport, Health, Model, Want};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use vfio_user::{Client, ClientEndpoint};

/// What the operator put into a slot, written `nvme:FILE`, `vfio-user:SOCKET` or `dma`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A disk whose blocks are in a file.
    Nvme(PathBuf),
    /// Engines that copy, for measurements.
    Dma,
    /// Whatever another program serves at a socket.
    VfioUser(PathBuf),
}

/// A text that names no [`DeviceKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write nvme:FILE, vfio-user:SOCKET or dma")]
pub struct UnknownDevice;

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text.split_once(':') {
            Some(("nvme", path)) if !path.is_empty() => Ok(Self::Nvme(path.into())),
            Some(("vfio-user", path)) if !path.is_empty() => Ok(Self::VfioUser(path.into())),
            None if text == "dma" => Ok(Self::Dma),
            _ => Err(UnknownDevice),
        }
    }
}

impl DeviceKind {
    fn model(&self) -> &'static str {
        match self {
            Self::Nvme(_) => "nvme",
            Self::Dma => "dma",
            Self::VfioUser(_) => "vfio-user",
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Nvme(path) | Self::VfioUser(path) => format!("{}:{}", self.model(), path.display()),
            Self::Dma => "dma".to_owned(),
        }
    }
}

pub(crate) struct DeviceSlot {
    slot: u8,
    kind: DeviceKind,
    plane: PciePlane,
    fence: Fence,
    memory_bytes: u64,
    /// The epoch in which a host has it.
    paired: Option<u64>,
    fault: Option<String>,
    burn_in: Option<BurnIn>,
    /// As long as this is kept, a thread looks whether the device has something to say.
    _watch: Option<Arc<dyn Send + Sync>>,
}

impl DeviceSlot {
    /// Puts the device into its slot.
    pub(crate) fn new(
        slot: u8,
        kind: DeviceKind,
        around: &Surroundings,
        plane: &PciePlane,
    ) -> anyhow::Result<Self> {
        let directory = around.slot_directory(slot);
        files::make_private(&directory)?;
        let (device, memory_bytes, watched) = make(&kind, around, slot, plane)?;
        plane.insert(slot, device)?;
        Ok(Self {
            slot,
            kind,
            plane: plane.clone(),
            fence: Fence::new(directory.join("fence")),
            memory_bytes,
            paired: None,
            fault: None,
            burn_in: None,
            _watch: watched,
        })
    }

    fn follow(&mut self, want: &Want) -> anyhow::Result<bool> {
        let epochs = self.fence.read()?;
        match want {
            Want::Serve { epoch, since_epoch, pcie: Some(pairing), .. } => {
                if self.paired == Some(*epoch) {
                    return Ok(false);
                }
                self.take_back()?;
                let since = if *since_epoch == 0 { *epoch } else { *since_epoch };
                // Scrubs what another lease left. What this lease itself left, before its link broke, stays.
                if epochs.is_used() && epochs.bound < since {
                    self.scrub()?;
                    self.fence.clean(since - 1)?;
                }
                // The fence has the epoch on disk before the proxy takes any packet of it.
                self.fence.admit_since(*epoch, since)?;
                self.plane.pair(self.slot, *epoch, pairing)?;
                self.paired = Some(*epoch);
                tracing::info!(slot = self.slot, epoch, host = %pairing.host, "a host has the device");
                Ok(true)
            }
            Want::Clean { epoch } if epochs.cleaned < *epoch => {
                // Not if a newer lease was admitted: then the order came late, and the data there are not meant.
                if epochs.bound <= *epoch {
                    self.take_back()?;
                    if epochs.is_used() {
                        self.scrub()?;
                    }
                }
                self.fence.clean(*epoch)?;
                Ok(true)
            }
            Want::BurnIn { epoch } if self.burn_in.as_ref().is_none_or(|done| done.epoch != *epoch) => {
                self.take_back()?;
                if epochs.is_used() {
                    self.scrub()?;
                }
                self.fence.clean(*epoch)?;
                self.fault = None;
                self.burn_in = Some(BurnIn { epoch: *epoch, passed: true, detail: "it is there".to_owned() });
                Ok(true)
            }
            Want::Serve { pcie: None, .. } => bail!("only the PCIe plane reaches this device"),
            Want::Clean { .. } | Want::BurnIn { .. } => Ok(false),
            Want::Idle | Want::Off => {
                self.take_back()?;
                Ok(false)
            }
        }
    }

    fn take_back(&mut self) -> anyhow::Result<()> {
        if let Some(epoch) = self.paired.take() {
            self.plane.clear(self.slot, epoch)?;
        }
        Ok(())
    }

    /// Deletes what a lease left before another lease can read it. The device itself was reset when it was taken back.
    fn scrub(&mut self) -> anyhow::Result<()> {
        if let DeviceKind::Nvme(path) = &self.kind {
            let file = std::fs::File::options().write(true).open(path);
            let file = file.with_context(|| format!("cannot empty {}", path.display()))?;
            let bytes = file.metadata()?.len();
            file.set_len(0).and_then(|()| file.set_len(bytes)).and_then(|()| file.sync_all())?;
        }
        Ok(())
    }
}

/// A device waits for its guest's memory for as long as a host has it.
pub(super) fn patient() -> FunctionOptions {
    FunctionOptions { timeout: DEVICE_WAITS, ..FunctionOptions::default() }
}

type Made = (Box<dyn Endpoint>, u64, Option<Arc<dyn Send + Sync>>);

fn make(kind: &DeviceKind, around: &Surroundings, slot: u8, plane: &PciePlane) -> anyhow::Result<Made> {
    match kind {
        DeviceKind::Nvme(path) => {
            let store = FileStore::open(path).with_context(|| format!("cannot use {}", path.display()))?;
            let bytes = std::fs::metadata(path)?.len();
            let serial = format!("{}-{slot}", around.box_name);
            let options = NvmeOptions { serial, function: patient(), ..NvmeOptions::default() };
            Ok((Box::new(Nvme::new(store, options)), bytes, None))
        }
        DeviceKind::Dma => {
            let options = DmaOptions { function: patient(), ..DmaOptions::default() };
            Ok((Box::new(DmaDevice::new(options)), options.memory_bytes, None))
        }
        DeviceKind::VfioUser(path) => {
            let client =
                Client::connect(path).with_context(|| format!("no device answers at {}", path.display()))?;
            let patient = RequesterOptions { timeout: DEVICE_WAITS, ..RequesterOptions::default() };
            let endpoint = ClientEndpoint::new(client, patient)?;
            let fds: Vec<_> = endpoint.fds().collect();
            let watched = watch(&fds, plane.waker())?;
            drop(fds);
            Ok((Box::new(endpoint), 0, Some(watched)))
        }
    }
}

impl Hands for DeviceSlot {
    fn step(&mut self, want: &Want) -> bool {
        match self.follow(want) {
            Ok(has_more) => {
                self.fault = None;
                has_more
            }
            Err(error) => {
                let reason = format!("{error:#}");
                if self.fault.as_ref() != Some(&reason) {
                    tracing::error!(slot = self.slot, reason, "a slot is not as it should be");
                }
                self.fault = Some(reason);
                false
            }
        }
    }

    fn report(&self) -> GpuReport {
        let epochs = self.fence.read().unwrap_or_else(|_| Epochs::default());
        let health = match &self.fault {
            None => Health::OK,
            Some(reason) => Health::bad(reason.chars().take(200).collect::<String>()),
        };
        GpuReport {
            slot: self.slot,
            model: Model::new(self.kind.model()).expect("a plain word"),
            memory_bytes: self.memory_bytes,
            uuid: self.kind.name().chars().filter(|c| !c.is_control()).take(256).collect(),
            nvlink_group: None,
            only_pcie: true,
            guest: None,
            part: None,
            health,
            // A bound epoch is reported only while the proxy is paired.
            bound_epoch: match self.paired {
                None if epochs.is_used() => epochs.bound - 1,
                _ => epochs.bound,
            },
            cleaned_epoch: epochs.cleaned,
            ready: true,
            unready: None,
            endpoints: Vec::new(),
            counters: None,
            burn_in: self.burn_in.clone(),
            must_leave: false,
            sharing: None,
        }
    }

    fn stop(&mut self) {
        // The proxy goes with this process, and every link with it.
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Carried;
    use super::*;

    fn serve(epoch: u64, since_epoch: u64) -> Want {
        let host = |text: &str| pool_api::Name::new(text).unwrap();
        let pairing = pool_api::PciePairing {
            host: host("hv"),
            host_node: 2,
            host_slot: 0,
            host_paths: vec!["udp:127.0.0.1:9".to_owned()],
            secret: pool_api::LinkSecret::from_bytes(&[7; 32]),
            pass: pool_api::SlotPass::default(),
            patience_ms: 15_000,
        };
        Want::Serve {
            lease: pool_api::LeaseId(1),
            epoch,
            since_epoch,
            expires_ms: 0,
            memory_bytes: 0,
            share_milli: 1000,
            tenant: host("lab"),
            pcie: Some(pairing),
        }
    }

    /// A disk keeps its blocks from one pairing of a lease to the next, also when its agent was started anew in between, and
    /// loses them before another lease, or when its lease is over. An order that comes late does not empty the disk.
    #[test]
    fn a_disk_is_emptied_for_another_lease_and_never_for_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        let (data, nothing) = (vec![0x5a; 1 << 20], vec![0; 1 << 20]);
        std::fs::write(&disk, &data).unwrap();
        let around = Surroundings {
            box_name: "a".to_owned(),
            state: folder.path().to_owned(),
            listen_host: String::new(),
            advertised_host: String::new(),
            port: 0,
            pcie: None,
            guardian: None,
            guarded: Default::default(),
            slack_percent: None,
            offline_slice_us: None,
            is_merged: false,
            carried: Carried { program: &[], client_environment: |_| Ok(Vec::new()) },
        };
        // As an agent that starts: its rows are empty, and only the disk knows.
        let new = || {
            let listen = ["127.0.0.1:0".parse().unwrap()];
            let plane = PciePlane::start(&listen, std::time::Duration::ZERO).unwrap();
            plane.set_node(1);
            DeviceSlot::new(0, DeviceKind::Nvme(disk.clone()), &around, &plane).unwrap()
        };
        let settle = |slot: &mut DeviceSlot, want: &Want| {
            while slot.step(want) {}
            assert!(slot.report().health.ok, "{:?}", slot.report().health);
        };
        let contents = || std::fs::read(&disk).unwrap();
        let mut slot = new();
        settle(&mut slot, &serve(3, 3));
        assert_eq!((slot.report().bound_epoch, contents() == data), (3, true), "nobody was there before");
        settle(&mut slot, &serve(5, 3));
        assert_eq!((slot.report().bound_epoch, contents() == data), (5, true), "its link broke");
        let mut slot = new();
        assert_eq!(
            slot.report().bound_epoch,
            4,
            "the host is not let in any more, and the manager hears of it"
        );
        settle(&mut slot, &serve(6, 3));
        assert_eq!((slot.report().bound_epoch, contents() == data), (6, true), "its agent started anew");
        settle(&mut slot, &Want::Idle);
        assert!(contents() == data, "it is kept for its lease");
        settle(&mut slot, &Want::Clean { epoch: 5 });
        assert!(contents() == data, "an order of before");
        settle(&mut slot, &serve(8, 8));
        assert!(contents() == nothing, "another lease");
        std::fs::write(&disk, &data).unwrap();
        settle(&mut slot, &Want::Clean { epoch: 8 });
        assert!(contents() == nothing && slot.report().cleaned_epoch == 8, "its lease is over");
    }

    #[test]
    fn devices_are_named_as_people_write_them() {
        assert_eq!("nvme:/a/b".parse(), Ok(DeviceKind::Nvme("/a/b".into())));
        assert_eq!("vfio-user:/run/x".parse(), Ok(DeviceKind::VfioUser("/run/x".into())));
        assert_eq!("dma".parse(), Ok(DeviceKind::Dma));
        for wrong in ["nvme", "nvme:", "gpu", "dma:1", ""] {
            assert!(wrong.parse::<DeviceKind>().is_err(), "{wrong}");
        }
    }
}
