//! The slots of a box: devices, each of which one host may have.

use crate::carrier::{Carrier, CarrierOptions, Side};
use crate::pairing::{Pairing, PairingError};
use fabric::{Event, Role};
use fabric_net::Waker;
use pcie::endpoint::Endpoint;
use pcie::tables::TableError;
use pcie::{BoxEndpoints, TlpBuf};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use units::{Epoch, LinkName, NodeId, PathId, SlotId, Time};

/// Why a slot was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoxSlotError {
    /// The pairing cannot be.
    #[error(transparent)]
    Pairing(#[from] PairingError),
    /// The table refuses it.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The proxy's thread has ended.
    #[error("the proxy has stopped")]
    Stopped,
}

/// How a slot stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoxSlotStatus {
    /// A device is in it.
    pub valid: bool,
    /// A host has it.
    pub used: bool,
    /// Of the last pairing.
    pub epoch: Epoch,
    /// The host has greeted.
    pub is_established: bool,
    /// How long an answer takes.
    pub round_trip: Option<Duration>,
}

struct BoxSide {
    endpoints: BoxEndpoints,
    /// Which slot each link serves, for which host, in which pairing.
    links: HashMap<LinkName, (SlotId, NodeId, Epoch)>,
}

impl Side for BoxSide {
    fn receive(&mut self, link: LinkName, packet: TlpBuf, now: Time) {
        if let Some((slot, host, epoch)) = self.links.get(&link) {
            self.endpoints.receive(*host, *slot, *epoch, packet, now);
        }
    }

    fn event(&mut self, link: LinkName, event: Event) {
        match event {
            Event::Established => tracing::info!(%link, "the host has greeted"),
            Event::PathDown(path) => tracing::warn!(%link, %path, "a path does not answer"),
            Event::PathUp(path) => tracing::info!(%link, %path, "a path answers again"),
            // The manager decides how long a silent host keeps its device.
            Event::Silent => tracing::warn!(%link, "the host is silent"),
        }
    }

    fn transmit(&mut self, link: LinkName, now: Time) -> Option<TlpBuf> {
        let (slot, ..) = self.links.get(&link)?;
        self.endpoints.transmit_slot(*slot, now)
    }

    fn on_tick(&mut self, now: Time) {
        self.endpoints.on_tick(now);
    }

    fn wake_in(&self, now: Time) -> Option<Duration> {
        self.endpoints.wake_at().map(|at| at.since(now))
    }
}

/// The box's proxy at work.
pub struct BoxProxy {
    carrier: Carrier<BoxSide>,
    waker: Waker,
}

impl BoxProxy {
    /// A proxy with empty slots.
    pub fn start(slots: u8, options: &CarrierOptions) -> io::Result<Self> {
        let mut kept = None;
        let carrier = Carrier::start(options, "dxpu-box-proxy", |waker| {
            kept = Some(waker);
            BoxSide { endpoints: BoxEndpoints::new(slots.into()), links: HashMap::new() }
        })?;
        let waker = kept.expect("the carrier has called");
        Ok(Self { carrier, waker })
    }

    /// Where it listens, by path.
    pub fn paths(&self) -> &[SocketAddr] {
        self.carrier.paths()
    }

    /// To be called whenever a device has something to send that no packet caused.
    pub fn waker(&self) -> impl Fn() + Send + Sync + Clone + 'static {
        let waker = self.waker.clone();
        move || waker.wake()
    }

    /// Puts a device into a slot.
    pub fn insert(&self, slot: SlotId, device: Box<dyn Endpoint>) -> Result<(), BoxSlotError> {
        let inserted = self.carrier.call(move |core| core.side.endpoints.insert(slot, device));
        Ok(inserted.ok_or(BoxSlotError::Stopped)??)
    }

    /// Takes a device out, whichever host has it.
    pub fn take_out(&self, slot: SlotId) -> Result<Option<Box<dyn Endpoint>>, BoxSlotError> {
        let taken = self.carrier.call(move |core| core.side.endpoints.take_out(slot));
        Ok(taken.ok_or(BoxSlotError::Stopped)??)
    }

    /// Writes the row of a slot: from now on its device is this host's. The same pairing once more changes nothing.
    pub fn pair(&self, pairing: &Pairing) -> Result<(), BoxSlotError> {
        let pairing = pairing.clone();
        let paired = self.carrier.call(move |core| {
            let (slot, host, epoch) = (pairing.box_slot, pairing.host_node, pairing.epoch);
            if core.side.endpoints.table().admits(slot, host, epoch) {
                return Ok(());
            }
            core.side.endpoints.pair(slot, host, PathId(1), epoch)?;
            if let Err(error) = core.begin(&pairing, Role::Box) {
                core.side.endpoints.clear(slot, epoch)?;
                return Err(error.into());
            }
            core.side.links.insert(pairing.link(), (slot, host, epoch));
            Ok::<(), BoxSlotError>(())
        });
        paired.ok_or(BoxSlotError::Stopped)?
    }

    /// Clears the row of a slot and resets its device. Nothing of this epoch or an older one is ever heard again.
    pub fn clear(&self, slot: SlotId, epoch: Epoch) -> Result<(), BoxSlotError> {
        let cleared = self.carrier.call(move |core| {
            core.side.endpoints.clear(slot, epoch)?;
            let ended: Vec<LinkName> =
                core.side.links.iter().filter(|(_, (of, ..))| *of == slot).map(|(link, _)| *link).collect();
            for link in ended {
                core.side.links.remove(&link);
                core.end(link);
            }
            Ok::<(), BoxSlotError>(())
        });
        cleared.ok_or(BoxSlotError::Stopped)?
    }

    /// How a slot stands.
    pub fn status(&self, slot: SlotId) -> BoxSlotStatus {
        let looked = self.carrier.call(move |core| {
            let entry = core.side.endpoints.table().entry(slot).copied().unwrap_or_default();
            let link = core.side.links.iter().find(|(_, (of, ..))| *of == slot).map(|(link, _)| *link);
            let (is_established, round_trip) = link.map_or((false, None), |link| core.link_state(link));
            BoxSlotStatus {
                valid: entry.valid,
                used: entry.used,
                epoch: entry.epoch,
                is_established,
                round_trip,
            }
        });
        looked.unwrap_or_default()
    }
}
