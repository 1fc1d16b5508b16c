//! The slots of a host: each shows a device that is elsewhere to a virtual machine.
//!
//! ```text
//!   empty ── plug: row, link, greeting, a look at the device, socket ──▶ plugged ── the box is silent ──▶ lost
//!     ▲                                                                   │                                │
//!     └───────────────── unplug: socket, link, row ───────────────────────┴────────────────────────────────┘
//! ```

mod slot;

pub use slot::{AttachError, HostSlot, HostSlotDevice};

use crate::carrier::{Carrier, CarrierOptions, Side};
use crate::pairing::{Pairing, PairingError};
use fabric::{Event, Role};
use locks::lock;
use pcie::TlpBuf;
use pcie::flow::RequesterOptions;
use pcie::host::{HostPortOptions, Violations};
use pcie::tables::{EntryId, HostTable, TableError};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use units::{Epoch, LinkName, PathId, Time};
use vfio_user::{Options, Server, Stop};

/// The link is given this long to say that its box is silent before what the guest waits for is given up: the guest should
/// lose one device, not one answer. Then the guest's own request, then the virtual machine's, each this much later.
const VERDICT_MARGIN: Duration = Duration::from_secs(1);
/// How often to look whether the box has greeted.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How a host's proxy behaves.
#[derive(Clone, Debug)]
pub struct HostProxyOptions {
    /// How many slots it has.
    pub slots: u8,
    /// Where the sockets of slots are: `slot-0`, `slot-1` and so on.
    pub directory: PathBuf,
    /// Show devices' MSI-X capability. QEMU 11.1 cannot unplug a device that has it.
    pub msix: bool,
    /// How long the virtual machines wait for an answer, where that is known: a reply that is later than this confuses them
    /// (QEMU: `x-msg-timeout`). Without it they wait for as long as [`HostProxy::answers_within`] says.
    pub guest_waits: Option<Duration>,
    /// The network.
    pub carrier: CarrierOptions,
}

/// Why a slot shows nothing.
#[derive(Debug, thiserror::Error)]
pub enum HostSlotError {
    /// The pairing cannot be.
    #[error(transparent)]
    Pairing(#[from] PairingError),
    /// The table refuses it.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The box does not greet.
    #[error("the box does not answer")]
    NoBox,
    /// It was no longer wanted before the box greeted.
    #[error("it is no longer wanted")]
    NotWanted,
    /// The device does not answer, or cannot be shown.
    #[error(transparent)]
    Device(#[from] AttachError),
    /// The socket cannot be made.
    #[error("cannot listen at {path}")]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There is no such slot.
    #[error("there is no slot {0}")]
    NoSlot(u8),
    /// The proxy's thread has ended.
    #[error("the proxy has stopped")]
    Stopped,
}

/// How a slot stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSlotStatus {
    /// A device is shown, or was until its box fell silent.
    pub plugged: bool,
    /// Of the pairing, or of the last one.
    pub epoch: Epoch,
    /// The box is silent: whatever the guest asks is answered as if no device were there.
    pub lost: bool,
    /// How long an answer takes.
    pub round_trip: Option<Duration>,
    /// What was wrong with packets from the network.
    pub violations: Violations,
}

struct Attached {
    slot: HostSlot,
    lost: Arc<AtomicBool>,
}

#[derive(Default)]
struct HostSide {
    links: HashMap<LinkName, Attached>,
}

impl Side for HostSide {
    fn receive(&mut self, link: LinkName, packet: TlpBuf, _now: Time) {
        if let Some(attached) = self.links.get(&link) {
            attached.slot.deliver(&packet);
        }
    }

    fn event(&mut self, link: LinkName, event: Event) {
        let Some(attached) = self.links.get(&link) else { return };
        match event {
            Event::Established => tracing::info!(%link, "the box has answered"),
            Event::PathDown(path) => tracing::warn!(%link, %path, "a path does not answer"),
            Event::PathUp(path) => tracing::info!(%link, %path, "a path answers again"),
            Event::Silent => {
                tracing::error!(%link, "the box is silent: its device is gone");
                attached.lost.store(true, Ordering::SeqCst);
                attached.slot.remove();
            }
        }
    }

    fn transmit(&mut self, link: LinkName, _now: Time) -> Option<TlpBuf> {
        self.links.get(&link)?.slot.transmit()
    }

    fn on_tick(&mut self, _now: Time) {
        // Each slot has a clock of its own and knows what is due.
        self.links.values().for_each(|attached| {
            attached.slot.tick();
        });
    }

    fn wake_in(&self, _now: Time) -> Option<Duration> {
        self.links.values().filter_map(|attached| attached.slot.wake_in()).min()
    }
}

struct Plugged {
    pairing: Pairing,
    slot: HostSlot,
    lost: Arc<AtomicBool>,
    stop: Stop,
    server: JoinHandle<()>,
}

/// The host's proxy at work.
pub struct HostProxy {
    carrier: Carrier<HostSide>,
    wake: Arc<dyn Fn() + Send + Sync>,
    table: Mutex<HostTable>,
    slots: Vec<Mutex<Option<Plugged>>>,
    directory: PathBuf,
    msix: bool,
    guest_waits: Option<Duration>,
}

impl HostProxy {
    /// A proxy with empty slots.
    pub fn start(options: &HostProxyOptions) -> io::Result<Self> {
        let mut wake: Option<Arc<dyn Fn() + Send + Sync>> = None;
        let carrier = Carrier::start(&options.carrier, "dxpu-host-proxy", |waker| {
            wake = Some(Arc::new(move || waker.wake()));
            HostSide::default()
        })?;
        Ok(Self {
            carrier,
            wake: wake.expect("the carrier has called"),
            table: Mutex::new(HostTable::new(options.slots.into())),
            slots: (0..options.slots).map(|_| Mutex::new(None)).collect(),
            directory: options.directory.clone(),
            msix: options.msix,
            guest_waits: options.guest_waits,
        })
    }

    /// Where it listens, by path.
    pub fn paths(&self) -> &[SocketAddr] {
        self.carrier.paths()
    }

    /// How long a virtual machine may have to wait for an answer from a slot that is paired like this. One that waits for less
    /// loses the thread of the conversation.
    pub fn answers_within(pairing: &Pairing) -> Duration {
        pairing.patience + 3 * VERDICT_MARGIN
    }

    /// Where virtual machines find a slot's device.
    pub fn socket(&self, slot: u8) -> PathBuf {
        self.directory.join(format!("slot-{slot}"))
    }

    fn slot(&self, slot: u8) -> Result<MutexGuard<'_, Option<Plugged>>, HostSlotError> {
        self.slots.get(usize::from(slot)).map(lock).ok_or(HostSlotError::NoSlot(slot))
    }

    /// Writes the row of a slot and shows the device: when this returns, its socket can be connected to. The same
    /// pairing once more changes nothing. Waits for a paused box as long as the pairing's patience and `is_wanted`
    /// allow.
    ///
    /// A link is greeted once in its epoch, and the box may have heard the greeting of a plug that failed. So what failed can
    /// be tried again in another epoch only.
    pub fn plug(
        &self,
        slot: u8,
        pairing: &Pairing,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<PathBuf, HostSlotError> {
        let mut place = self.slot(slot)?;
        if place.as_ref().is_some_and(|plugged| plugged.pairing.epoch == pairing.epoch) {
            return Ok(self.socket(slot));
        }
        let entry = EntryId(slot.into());
        let Pairing { box_node, box_slot, epoch, .. } = *pairing;
        lock(&self.table).pair(entry, box_node, box_slot, PathId(1), epoch)?;
        match self.show(slot, pairing, is_wanted) {
            Ok(plugged) => {
                *place = Some(plugged);
                Ok(self.socket(slot))
            }
            Err(error) => {
                self.forget(pairing.link());
                lock(&self.table).forget(entry);
                Err(error)
            }
        }
    }

    fn show(
        &self,
        slot: u8,
        pairing: &Pairing,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Plugged, HostSlotError> {
        let lost = Arc::new(AtomicBool::new(false));
        let timeout = pairing.patience + VERDICT_MARGIN;
        let requester = RequesterOptions { timeout, ..RequesterOptions::default() };
        let options = HostPortOptions { msix: self.msix, requester, ..HostPortOptions::default() };
        let wake = self.wake.clone();
        let shown = HostSlot::new(options, move || wake());
        let attached = Attached { slot: shown.clone(), lost: lost.clone() };
        let its = pairing.clone();
        let begun = self.carrier.call(move |core| {
            core.begin(&its, Role::Host)?;
            core.side.links.insert(its.link(), attached);
            Ok::<(), PairingError>(())
        });
        begun.ok_or(HostSlotError::Stopped)??;
        self.wait_for_box(pairing, is_wanted)?;
        let device = shown.attach(timeout)?;
        let mut device = if self.msix { device } else { device.without_msix() };
        let path = self.socket(slot);
        let failed = |source: io::Error| HostSlotError::Socket { path: path.clone(), source };
        let unhurried = pairing.patience + 2 * VERDICT_MARGIN;
        let completion_timeout = self.guest_waits.map_or(unhurried, |most| most.min(unhurried));
        let server = Server::bind(&path, Options { completion_timeout }).map_err(failed)?;
        let stop = server.stop_handle();
        let thread = std::thread::Builder::new().name(format!("dxpu-slot-{slot}"));
        let server = thread
            .spawn(move || {
                if let Err(error) = server.serve(&mut device) {
                    tracing::error!(%error, "a slot's socket has failed");
                }
            })
            .map_err(failed)?;
        Ok(Plugged { pairing: pairing.clone(), slot: shown, lost, stop, server })
    }

    fn wait_for_box(&self, pairing: &Pairing, is_wanted: &dyn Fn() -> bool) -> Result<(), HostSlotError> {
        let (link, until) = (pairing.link(), Instant::now() + pairing.patience);
        loop {
            let (is_established, _) =
                self.carrier.call(move |core| core.link_state(link)).ok_or(HostSlotError::Stopped)?;
            if is_established {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(HostSlotError::NoBox);
            }
            if !is_wanted() {
                return Err(HostSlotError::NotWanted);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn forget(&self, link: LinkName) {
        self.carrier.call(move |core| {
            core.side.links.remove(&link);
            core.end(link);
        });
    }

    /// Ends what a slot shows, if its epoch is not newer than this one, and clears its row: what is still on its way
    /// is dropped. Unplug it from the virtual machine first.
    pub fn unplug(&self, slot: u8, epoch: Epoch) -> Result<(), HostSlotError> {
        let mut place = self.slot(slot)?;
        if place.as_ref().is_some_and(|plugged| plugged.pairing.epoch > epoch) {
            return Ok(());
        }
        if let Some(plugged) = place.take() {
            plugged.slot.remove();
            plugged.stop.stop();
            let _ = plugged.server.join();
            self.forget(plugged.pairing.link());
            lock(&self.table).forget(EntryId(slot.into()));
        }
        Ok(())
    }

    /// How a slot stands.
    pub fn status(&self, slot: u8) -> HostSlotStatus {
        let Ok(place) = self.slot(slot) else { return HostSlotStatus::default() };
        let Some(plugged) = place.as_ref() else { return HostSlotStatus::default() };
        let (low, high) = plugged.slot.windows();
        lock(&self.table).learn_windows(EntryId(slot.into()), low, high);
        let link = plugged.pairing.link();
        let round_trip = self.carrier.call(move |core| core.link_state(link).1).flatten();
        HostSlotStatus {
            plugged: true,
            epoch: plugged.pairing.epoch,
            lost: plugged.lost.load(Ordering::SeqCst),
            round_trip,
            violations: plugged.slot.violations(),
        }
    }

    /// The table, as it is now.
    pub fn table(&self) -> HostTable {
        lock(&self.table).clone()
    }

    /// Where the sockets are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for HostProxy {
    fn drop(&mut self) {
        for (slot, _) in (0..=u8::MAX).zip(&self.slots) {
            let _ = self.unplug(slot, Epoch(u64::MAX));
        }
    }
}
