//! One slot of a host: plugs and unplugs until the slot is what the manager ordered.

use pcie_proxy::{Epoch, HostProxy, HostSlotError, NodeId, Pairing, Qmp, QmpError, SlotId, parse_path};
use pool_api::{HostSlotReport, HostWant};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a guest may take to let a device go, below what the manager waits for a host.
const LETS_GO_WITHIN: Duration = Duration::from_secs(9);
/// Linux's hot-plug driver ignores whatever happens to a slot in the second after it was switched off; a device that comes
/// then is never seen.
const GUEST_SETTLES: Duration = Duration::from_secs(3);
/// A box or guest that did not answer is tried again after this.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The pause doubles with each failure, so many times at most (half a minute): each attempt needs a new grant.
const FAILURES_COUNT_MAX: u32 = 5;

/// What an operator is told when the monitor does not answer. How long it has been so is in the events.
const MONITOR_SILENT: &str = "the virtual machine's monitor does not answer: if it stays so, its QEMU hangs; end it and start it again";

/// The monitor of the virtual machine, which talks to one client at a time.
pub(super) struct Monitor {
    path: PathBuf,
    turn: Mutex<()>,
}

impl Monitor {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, turn: Mutex::new(()) }
    }

    /// Takes the monitor's lock and talks to it. Every command of a slot there has a time limit.
    fn talk<R>(&self, talk: impl FnOnce(&mut Qmp) -> Result<R, QmpError>) -> Result<R, QmpError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        talk(&mut Qmp::connect(&self.path)?)
    }
}

/// Whether the virtual machine has a device in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InGuest {
    No,
    /// An agent before this one may have left something there, or the monitor did not say how a plugging ended.
    Perhaps,
    Yes,
}

pub(super) struct Slot {
    number: u8,
    proxy: Arc<HostProxy>,
    monitor: Option<Arc<Monitor>>,
    /// What the virtual machine calls this slot.
    port: String,
    bound_epoch: u64,
    cleared_epoch: u64,
    /// The epoch that is shown at the socket.
    shown: Option<u64>,
    in_guest: InGuest,
    /// The last command to the monitor was not answered.
    monitor_silent: bool,
    /// How often in a row a box could not be reached.
    failures: u32,
    /// When the guest let go of the last device.
    left_at: Option<Instant>,
    detail: String,
    rest_until: Option<Instant>,
}

impl Slot {
    pub(super) fn new(
        number: u8,
        proxy: Arc<HostProxy>,
        monitor: Option<Arc<Monitor>>,
        port: String,
    ) -> Self {
        Self {
            number,
            proxy,
            port,
            bound_epoch: 0,
            cleared_epoch: 0,
            shown: None,
            in_guest: if monitor.is_some() { InGuest::Perhaps } else { InGuest::No },
            monitor_silent: false,
            failures: 0,
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
            plugged: self.shown.is_some() && (self.monitor.is_none() || self.in_guest == InGuest::Yes),
            monitor_silent: self.monitor_silent,
            detail: self.detail.chars().filter(|c| !c.is_control()).take(200).collect(),
        }
    }

    /// Looks, and does one thing. Says whether there may be more to do at once.
    ///
    /// `is_wanted` says whether the order is still that one: what takes long is given up when it is not.
    pub(super) fn step(&mut self, node: u16, want: &HostWant, is_wanted: &dyn Fn() -> bool) -> bool {
        if self.rest_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.rest_until = None;
        let done = match want {
            HostWant::Empty => self.empty(None),
            HostWant::Unplug { epoch } => self.empty(Some(*epoch)),
            HostWant::Plug { epoch, box_node, box_slot, box_paths, secret, patience_ms, .. } => {
                let paths = box_paths.iter().map(|path| parse_path(path)).collect::<Result<Vec<_>, _>>();
                match (paths, secret.to_bytes()) {
                    (Ok(remote_paths), Some(secret)) => {
                        let pairing = Pairing {
                            epoch: Epoch(*epoch),
                            host_node: NodeId(node),
                            box_node: NodeId(*box_node),
                            box_slot: SlotId((*box_slot).into()),
                            remote_paths,
                            secret,
                            patience: Duration::from_millis(*patience_ms),
                        };
                        self.plug(&pairing, is_wanted)
                    }
                    (Err(error), _) => Err(error.into()),
                    (_, None) => Err(anyhow::anyhow!("the manager gave no secret")),
                }
            }
        };
        match done {
            Ok(has_more) => has_more,
            Err(error) => {
                self.rest(&error);
                false
            }
        }
    }

    /// Logs an error, if it is a new one, and pauses the slot: the more failures, the longer.
    fn rest(&mut self, error: &anyhow::Error) {
        let detail = if self.monitor_silent { MONITOR_SILENT.to_owned() } else { format!("{error:#}") };
        if detail != self.detail {
            tracing::warn!(slot = self.number, detail, "a slot is not as it should be");
            self.detail = detail;
        }
        let rest = TRY_AGAIN_AFTER * (1 << self.failures.min(FAILURES_COUNT_MAX));
        self.rest_until = Some(Instant::now() + rest);
    }

    fn id(&self) -> String {
        format!("dxpu-slot-{}", self.number)
    }

    /// Empties the slot: of everything, or of this epoch and older ones.
    fn empty(&mut self, epoch: Option<u64>) -> anyhow::Result<bool> {
        let is_meant = self.shown.is_none_or(|shown| epoch.is_none_or(|epoch| shown <= epoch));
        if is_meant && (self.shown.is_some() || self.in_guest != InGuest::No) {
            self.take_out()?;
        }
        if let Some(epoch) = epoch
            && epoch > self.cleared_epoch
        {
            self.cleared_epoch = epoch;
            if self.in_guest == InGuest::No {
                self.detail.clear();
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Unplugs the guest first, so that its driver can let go; then ends the socket, the link and the row.
    fn take_out(&mut self) -> anyhow::Result<()> {
        let let_go = self.take_out_of_guest();
        if let Some(shown) = self.shown.take() {
            self.proxy.unplug(self.number, Epoch(shown))?;
            tracing::info!(slot = self.number, epoch = shown, "unplugged");
        }
        // A guest that did not let go sees a dead device; it is asked again before the next one is plugged.
        match let_go {
            Ok(()) => self.detail.clear(),
            Err(error) => self.rest(&error),
        }
        Ok(())
    }

    fn take_out_of_guest(&mut self) -> anyhow::Result<()> {
        if self.in_guest == InGuest::No {
            return Ok(());
        }
        let id = self.id();
        match self.talk(|qmp| qmp.unplug(&id, LETS_GO_WITHIN)) {
            Ok(Some(true)) => self.left_at = Some(Instant::now()),
            // A virtual machine that is gone has nothing plugged in. One that does not answer may have.
            Ok(_) | Err(QmpError::Gone(_)) => {}
            Err(error) => return Err(error.into()),
        }
        self.in_guest = InGuest::No;
        Ok(())
    }

    /// Talks to the virtual machine's monitor, if there is one, and remembers whether it answers.
    fn talk<R>(&mut self, talk: impl FnOnce(&mut Qmp) -> Result<R, QmpError>) -> Result<Option<R>, QmpError> {
        let Some(monitor) = self.monitor.clone() else { return Ok(None) };
        let said = monitor.talk(talk);
        let is_silent = matches!(said, Err(QmpError::Silent));
        match (self.monitor_silent, is_silent) {
            (false, true) => tracing::error!(slot = self.number, "{MONITOR_SILENT}"),
            (true, false) => {
                tracing::info!(slot = self.number, "the virtual machine's monitor answers again")
            }
            _ => {}
        }
        self.monitor_silent = is_silent;
        said.map(Some)
    }

    fn plug(&mut self, pairing: &Pairing, is_wanted: &dyn Fn() -> bool) -> anyhow::Result<bool> {
        let Epoch(epoch) = pairing.epoch;
        if self.shown != Some(epoch) {
            if epoch <= self.cleared_epoch {
                // The order came late: this epoch is cleared already.
                return Ok(false);
            }
            if self.shown.is_some() {
                self.take_out()?;
            }
            self.take_out_of_guest()?;
            if let Err(error) = self.proxy.plug(self.number, pairing, is_wanted) {
                // The box may have taken this greeting, and takes no other in this epoch: only a new grant helps.
                self.cleared_epoch = self.cleared_epoch.max(epoch);
                self.failures += u32::from(!matches!(error, HostSlotError::NotWanted));
                return Err(error.into());
            }
            self.failures = 0;
            self.shown = Some(epoch);
            self.bound_epoch = self.bound_epoch.max(epoch);
            self.detail.clear();
            tracing::info!(slot = self.number, epoch, "the device is here");
            return Ok(true);
        }
        if self.proxy.status(self.number).lost {
            self.take_out()?;
            // A link is established once in its epoch. The cleared epoch in the report makes the manager grant anew.
            self.cleared_epoch = self.cleared_epoch.max(epoch);
            self.detail = "its box is silent".to_owned();
            return Ok(true);
        }
        let is_settled = self.left_at.is_none_or(|at| at.elapsed() >= GUEST_SETTLES);
        if self.monitor.is_some() && self.in_guest != InGuest::Yes && is_settled {
            self.plug_into_guest(HostProxy::answers_within(pairing))?;
            self.detail.clear();
            tracing::info!(slot = self.number, port = self.port, "plugged into the guest");
        }
        Ok(false)
    }

    fn plug_into_guest(&mut self, answers_within: Duration) -> Result<(), QmpError> {
        let (id, port, socket) = (self.id(), self.port.clone(), self.proxy.socket(self.number));
        // Until the monitor has answered.
        self.in_guest = InGuest::Perhaps;
        match self.talk(|qmp| qmp.plug(&id, &port, &socket, answers_within)) {
            Ok(_) => self.in_guest = InGuest::Yes,
            Err(error) => {
                if matches!(error, QmpError::Refused(_) | QmpError::Gone(_)) {
                    self.in_guest = InGuest::No;
                }
                return Err(error);
            }
        }
        Ok(())
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
