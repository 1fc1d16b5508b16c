//! One slot of a host: brings what is plugged in line with what should be.

use pcie_proxy::{HostProxy, Pairing, Qmp, parse_path};
use pool_api::{HostSlotReport, HostWant};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a guest may take to let a device go, below what the manager waits for a host.
const LETS_GO_WITHIN: Duration = Duration::from_secs(9);
/// Linux's hot-plug driver ignores whatever happens to a slot in the second after it was switched off; a device that comes
/// then is never seen.
const GUEST_SETTLES: Duration = Duration::from_secs(3);
/// A box or guest that did not answer is tried again after this.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Slot {
    number: u8,
    proxy: Arc<HostProxy>,
    monitor: Option<PathBuf>,
    /// What the virtual machine calls this slot.
    port: String,
    bound_epoch: u64,
    cleared_epoch: u64,
    /// The epoch that is shown at the socket.
    shown: Option<u64>,
    /// The virtual machine has, or may have, a device in this slot.
    is_in_guest: bool,
    /// When the guest let go of the last device.
    left_at: Option<Instant>,
    detail: String,
    rest_until: Option<Instant>,
}

impl Slot {
    pub(super) fn new(number: u8, proxy: Arc<HostProxy>, monitor: Option<PathBuf>, port: String) -> Self {
        Self {
            number,
            proxy,
            port,
            bound_epoch: 0,
            cleared_epoch: 0,
            shown: None,
            // An agent before this one may have left something there.
            is_in_guest: monitor.is_some(),
            monitor,
            left_at: None,
            detail: String::new(),
            rest_until: None,
        }
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    pub(super) fn report(&self) -> HostSlotReport {
        HostSlotReport {
            slot: self.number,
            bound_epoch: self.bound_epoch,
            cleared_epoch: self.cleared_epoch,
            plugged: self.shown.is_some() && (self.monitor.is_none() || self.is_in_guest),
            detail: self.detail.chars().filter(|c| !c.is_control()).take(200).collect(),
        }
    }

    /// Looks, and does one thing. Says whether there may be more to do at once.
    pub(super) fn step(&mut self, node: u16, want: &HostWant) -> bool {
        if self.rest_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.rest_until = None;
        let done = match want {
            HostWant::Empty => self.empty(None),
            HostWant::Unplug { epoch } => self.empty(Some(*epoch)),
            HostWant::Plug { epoch, box_node, box_slot, box_paths, secret, .. } => {
                let paths = box_paths.iter().map(|path| parse_path(path)).collect::<Result<Vec<_>, _>>();
                match (paths, secret.to_bytes()) {
                    (Ok(remote_paths), Some(secret)) => self.plug(&Pairing {
                        epoch: *epoch,
                        host_node: node,
                        box_node: *box_node,
                        box_slot: *box_slot,
                        remote_paths,
                        secret,
                    }),
                    (Err(error), _) => Err(error.into()),
                    (_, None) => Err(anyhow::anyhow!("the manager gave no secret")),
                }
            }
        };
        match done {
            Ok(has_more) => has_more,
            Err(error) => {
                let detail = format!("{error:#}");
                if detail != self.detail {
                    tracing::warn!(slot = self.number, detail, "a slot is not as it should be");
                    self.detail = detail;
                }
                self.rest_until = Some(Instant::now() + TRY_AGAIN_AFTER);
                false
            }
        }
    }

    fn id(&self) -> String {
        format!("dxpu-slot-{}", self.number)
    }

    /// Nothing shall be there, or nothing of this epoch.
    fn empty(&mut self, epoch: Option<u64>) -> anyhow::Result<bool> {
        let is_meant = self.shown.is_none_or(|shown| epoch.is_none_or(|epoch| shown <= epoch));
        if is_meant && (self.shown.is_some() || self.is_in_guest) {
            self.take_out()?;
        }
        if let Some(epoch) = epoch
            && epoch > self.cleared_epoch
        {
            self.cleared_epoch = epoch;
            self.detail.clear();
            return Ok(true);
        }
        Ok(false)
    }

    /// The guest first, so that its driver can say goodbye; then the socket, the link and the row.
    fn take_out(&mut self) -> anyhow::Result<()> {
        let let_go = self.take_out_of_guest();
        if let Some(shown) = self.shown.take() {
            self.proxy.unplug(self.number, shown)?;
            tracing::info!(slot = self.number, epoch = shown, "unplugged");
        }
        // A guest that holds on sees a device that is gone; it is asked again before the next one comes.
        if let Err(error) = let_go {
            tracing::warn!(slot = self.number, error = format!("{error:#}"), "the guest does not let go");
        }
        Ok(())
    }

    fn take_out_of_guest(&mut self) -> anyhow::Result<()> {
        let Some(monitor) = self.monitor.as_ref().filter(|_| self.is_in_guest) else { return Ok(()) };
        // A virtual machine that is gone has nothing plugged in.
        if let Ok(mut qmp) = Qmp::connect(monitor)
            && qmp.unplug(&self.id(), LETS_GO_WITHIN)?
        {
            self.left_at = Some(Instant::now());
        }
        self.is_in_guest = false;
        Ok(())
    }

    fn plug(&mut self, pairing: &Pairing) -> anyhow::Result<bool> {
        if self.shown != Some(pairing.epoch) {
            if pairing.epoch <= self.cleared_epoch {
                // An order that came late.
                return Ok(false);
            }
            if self.shown.is_some() {
                self.take_out()?;
            }
            self.take_out_of_guest()?;
            self.proxy.plug(self.number, pairing)?;
            self.shown = Some(pairing.epoch);
            self.bound_epoch = self.bound_epoch.max(pairing.epoch);
            self.detail.clear();
            tracing::info!(slot = self.number, epoch = pairing.epoch, "the device is here");
            return Ok(true);
        }
        if self.proxy.status(self.number).lost {
            self.take_out()?;
            // A link is greeted once in its epoch. That this one is over is how the manager knows to grant anew.
            self.cleared_epoch = self.cleared_epoch.max(pairing.epoch);
            self.detail = "its box is silent".to_owned();
            return Ok(true);
        }
        let is_settled = self.left_at.is_none_or(|at| at.elapsed() >= GUEST_SETTLES);
        if let Some(monitor) = self.monitor.as_ref().filter(|_| !self.is_in_guest && is_settled) {
            let mut qmp = Qmp::connect(monitor)?;
            qmp.plug(&self.id(), &self.port, &self.proxy.socket(self.number))?;
            self.is_in_guest = true;
            self.detail.clear();
            tracing::info!(slot = self.number, port = self.port, "plugged into the guest");
        }
        Ok(false)
    }

    /// The agent ends: nothing is left in a guest whose device has no proxy any more.
    pub(super) fn stop(&mut self) {
        if self.shown.is_some()
            && let Err(error) = self.take_out()
        {
            tracing::error!(slot = self.number, error = format!("{error:#}"), "a slot is left as it is");
        }
    }
}
