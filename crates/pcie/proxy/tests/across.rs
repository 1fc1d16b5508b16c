//! A device in a box, shown by a host, over real sockets: our client plays the virtual machine.

#![allow(missing_docs, reason = "tests")]

use pcie::endpoint::dma::{DmaDevice, DmaOptions};
use pcie::endpoint::nvme::{Nvme, NvmeOptions};
use pcie_proxy::{
    BoxProxy, CarrierOptions, Epoch, FileStore, HostProxy, HostProxyOptions, HostSlotError, NodeId, Pairing,
    SlotId,
};
use std::path::Path;
use std::time::{Duration, Instant};
use vfio_user::message::region;
use vfio_user::{Client, ClientEvent};

fn carrier(paths: usize) -> CarrierOptions {
    CarrierOptions { listen: vec!["127.0.0.1:0".parse().unwrap(); paths], ..CarrierOptions::default() }
}

/// Longer than any of the pauses here, short enough to see a box give up.
const PATIENCE: Duration = Duration::from_secs(2);

struct World {
    folder: tempfile::TempDir,
    host: HostProxy,
    boxes: BoxProxy,
}

impl World {
    fn new(paths: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = HostProxyOptions {
            slots: 2,
            directory: folder.path().to_owned(),
            msix: false,
            guest_waits: None,
            carrier: carrier(paths),
        };
        let boxes = BoxProxy::start(4, &carrier(paths)).unwrap();
        Self { host: HostProxy::start(&options).unwrap(), boxes, folder }
    }

    fn pairing(&self, box_slot: u8, epoch: u64, secret: u8) -> [Pairing; 2] {
        let both = |remote_paths: &[std::net::SocketAddr]| Pairing {
            epoch: Epoch(epoch),
            host_node: NodeId(7),
            box_node: NodeId(9),
            box_slot: SlotId(box_slot.into()),
            remote_paths: remote_paths.to_vec(),
            secret: [secret; 32],
            patience: PATIENCE,
        };
        [both(self.boxes.paths()), both(self.host.paths())]
    }

    fn nvme(&self, name: &str) -> Box<Nvme<FileStore>> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        Box::new(Nvme::new(FileStore::open(&path).unwrap(), NvmeOptions::default()))
    }
}

fn connect(socket: &Path) -> Client {
    Client::connect(socket).unwrap()
}

/// What a virtual machine gets for a read of configuration space; nothing when it is refused.
fn config_read(client: &mut Client, bytes: usize) -> Option<Vec<u8>> {
    client.begin_read(region::CONFIG, 0, bytes).unwrap();
    match client.next_event(Duration::from_secs(30)).unwrap() {
        Some(ClientEvent::Read { data, .. }) => data,
        other => panic!("{other:?}"),
    }
}

fn config_word(client: &mut Client, at: u64) -> u32 {
    let mut bytes = [0; 4];
    client.read(region::CONFIG, at, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

#[test]
fn a_device_is_plugged_read_unplugged_and_another_takes_its_place() {
    let world = World::new(1);
    world.boxes.insert(SlotId(0), world.nvme("disk")).unwrap();
    world.boxes.insert(SlotId(3), Box::new(DmaDevice::new(DmaOptions::default()))).unwrap();

    let [hosts, boxs] = world.pairing(0, 5, 1);
    world.boxes.pair(&boxs).unwrap();
    let socket = world.host.plug(1, &hosts, &|| true).unwrap();
    assert_eq!(world.host.plug(1, &hosts, &|| true).unwrap(), socket, "once more is the same");
    let mut client = connect(&socket);
    let class = config_word(&mut client, 8) >> 8;
    assert_eq!(class, 0x01_08_02, "an NVMe controller");
    let status = world.host.status(1);
    assert!(status.plugged && !status.lost && status.epoch == Epoch(5) && status.round_trip.is_some());
    assert!(world.boxes.status(SlotId(0)).is_established);
    drop(client);

    world.host.unplug(1, Epoch(5)).unwrap();
    world.boxes.clear(SlotId(0), Epoch(5)).unwrap();
    assert!(!socket.exists(), "its socket is gone");
    // The same slot of the host, another slot of the box.
    let [hosts, boxs] = world.pairing(3, 6, 2);
    world.boxes.pair(&boxs).unwrap();
    let mut client = connect(&world.host.plug(1, &hosts, &|| true).unwrap());
    assert_eq!(config_word(&mut client, 8) >> 24, 0x12, "an accelerator");
    assert_eq!(world.host.table().entries().filter(|(_, entry)| entry.used).count(), 1);
}

#[test]
fn an_old_epoch_or_another_secret_gets_no_device() {
    let world = World::new(1);
    world.boxes.insert(SlotId(0), world.nvme("disk")).unwrap();
    let [hosts, boxs] = world.pairing(0, 5, 1);
    world.boxes.pair(&boxs).unwrap();
    for wrong in [Pairing { epoch: Epoch(4), ..hosts.clone() }, Pairing { secret: [9; 32], ..hosts.clone() }]
    {
        assert!(matches!(world.host.plug(0, &wrong, &|| true), Err(HostSlotError::NoBox)), "{wrong:?}");
    }
    world.host.plug(0, &hosts, &|| true).unwrap();
    // The box takes it back: an older pairing is refused for ever.
    world.boxes.clear(SlotId(0), Epoch(5)).unwrap();
    assert!(world.boxes.pair(&boxs).is_err());
}

#[test]
fn a_box_that_dies_is_noticed_and_the_slot_can_be_used_again() {
    let World { folder, host, boxes } = World::new(1);
    let world = World { folder, host, boxes };
    world.boxes.insert(SlotId(0), world.nvme("disk")).unwrap();
    let [hosts, boxs] = world.pairing(0, 5, 1);
    world.boxes.pair(&boxs).unwrap();
    let socket = world.host.plug(0, &hosts, &|| true).unwrap();
    let mut client = connect(&socket);
    let known = config_read(&mut client, 4096).unwrap();
    assert_ne!(known[..4], [0xff; 4]);
    let World { folder, host, boxes } = world;
    drop(boxes);
    let began = Instant::now();
    // The box may be back any moment: the guest waits. Then no device is there, as the device's identity says. The rest is
    // what it was: ones would lead a virtual machine in circles, an error would crash it.
    assert_eq!(config_read(&mut client, 4), Some(vec![0xff; 4]), "nobody is there");
    assert!(began.elapsed() >= PATIENCE, "{:?}", began.elapsed());
    assert!(host.status(0).lost);
    assert_eq!(config_read(&mut client, 4096), Some(known), "as it was when it was attached");
    host.unplug(0, Epoch(5)).unwrap();

    let boxes = BoxProxy::start(4, &carrier(1)).unwrap();
    let world = World { folder, host, boxes };
    world.boxes.insert(SlotId(2), world.nvme("other")).unwrap();
    let [hosts, boxs] = world.pairing(2, 1, 3);
    world.boxes.pair(&boxs).unwrap();
    let mut client = connect(&world.host.plug(0, &hosts, &|| true).unwrap());
    assert_ne!(config_word(&mut client, 0), u32::MAX);
}

#[test]
fn two_hosts_slots_have_two_devices_at_once_over_two_paths() {
    let world = World::new(2);
    for slot in [0, 1] {
        world.boxes.insert(SlotId(slot.into()), world.nvme(&format!("disk{slot}"))).unwrap();
        let [hosts, boxs] = world.pairing(slot, 3, slot + 1);
        world.boxes.pair(&boxs).unwrap();
        world.host.plug(slot, &hosts, &|| true).unwrap();
    }
    let mut clients = [0, 1].map(|slot| connect(&world.host.socket(slot)));
    for _ in 0..200 {
        for client in &mut clients {
            assert_eq!(config_word(client, 8) >> 8, 0x01_08_02);
        }
    }
}
