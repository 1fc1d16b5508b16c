//! The agent of a host: reports what is plugged, hears what should be, and has each slot's thread see to it.

use super::slot::Slot;
use crate::given::Given;
use crate::membership::{Home, Membership};
use pool_api::{ErrorCode, HostOrders, HostReport, HostSlotReport, HostWant, Name};
use pool_client::{Client, ClientError, Patience};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often slots look around.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between attempts to reach a manager.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(500);

pub(super) struct Agent {
    name: Name,
    home: Home,
    paths: Vec<String>,
    /// A random name of this run.
    run: String,
    state: Mutex<State>,
    changed: Condvar,
    member: Mutex<(Membership, Arc<Client>)>,
}

#[derive(Default)]
struct State {
    node: u16,
    wants: BTreeMap<u8, HostWant>,
    ordered: Given,
    reports: BTreeMap<u8, HostSlotReport>,
    version: u64,
    told_version: u64,
    sequence: u64,
    report_after_ms: u64,
    is_stopping: bool,
    retired: Option<String>,
}

impl Agent {
    pub(super) fn new(
        name: &str,
        home: Home,
        membership: Membership,
        paths: Vec<String>,
        run: String,
    ) -> anyhow::Result<Arc<Self>> {
        let client = Client::new(membership.credential.clone(), Patience::ONCE).map_err(super::failure)?;
        Ok(Arc::new(Self {
            name: Name::new(name)?,
            home,
            paths,
            run,
            state: Mutex::default(),
            changed: Condvar::new(),
            member: Mutex::new((membership, Arc::new(client))),
        }))
    }

    pub(super) fn start(self: &Arc<Self>, slots: Vec<Slot>) -> std::io::Result<Running> {
        {
            let mut state = self.lock();
            state.reports = slots.iter().map(|slot| (slot.number(), slot.report())).collect();
            state.version = 1;
        }
        let spawn = |name: &str, work: Box<dyn FnOnce(&Self) + Send>| {
            let agent = self.clone();
            std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&agent))
        };
        let mut threads = Vec::new();
        for slot in slots {
            threads.push(spawn("dxpu-slot", Box::new(move |agent| agent.keep(slot)))?);
        }
        spawn("dxpu-teller", Box::new(Self::tell))?;
        spawn("dxpu-listener", Box::new(Self::listen))?;
        Ok(Running { agent: self.clone(), threads })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a slot as it should be, until the agent stops.
    fn keep(&self, mut slot: Slot) {
        loop {
            let (node, want, ordered) = {
                let state = self.lock();
                if state.is_stopping {
                    break;
                }
                (state.node, state.wants.get(&slot.number()).cloned(), state.ordered)
            };
            // Until somebody has said what should be, everything stays as it is.
            let has_more = want.is_some_and(|want| slot.step(node, &want));
            let report = slot.report();
            let mut state = self.lock();
            if state.reports.get(&slot.number()) != Some(&report) {
                state.reports.insert(slot.number(), report);
                state.version += 1;
                self.changed.notify_all();
            }
            if !has_more {
                drop(self.changed.wait_timeout_while(state, LOOK_EVERY, |state| {
                    state.ordered == ordered && !state.is_stopping
                }));
            }
        }
        slot.stop();
    }

    /// Reports changes at once.
    fn tell(&self) {
        loop {
            let state = self.lock();
            let waited = self.changed.wait_timeout_while(state, Duration::from_secs(1), |state| {
                state.version == state.told_version && !state.is_stopping
            });
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_stopping {
                return;
            }
            let has_news = state.version != state.told_version;
            drop(state);
            if has_news && !self.report(Duration::ZERO) {
                std::thread::sleep(TRY_AGAIN_AFTER);
            }
        }
    }

    /// Reports again and again, and waits for orders meanwhile.
    fn listen(&self) {
        let mut wait = Duration::ZERO;
        while !self.lock().is_stopping {
            let began = Instant::now();
            let is_heard = self.report(wait);
            let after = Duration::from_millis(self.lock().report_after_ms.clamp(50, 10_000));
            wait = if is_heard { after } else { Duration::ZERO };
            let pause = if is_heard { after.saturating_sub(began.elapsed()) } else { TRY_AGAIN_AFTER };
            let state = self.lock();
            drop(self.changed.wait_timeout_while(state, pause, |state| !state.is_stopping));
        }
    }

    /// Sends a report. False when nobody took it.
    fn report(&self, wait: Duration) -> bool {
        let (report, version) = {
            let mut state = self.lock();
            state.sequence += 1;
            let report = HostReport {
                agent: self.run.clone(),
                sequence: state.sequence,
                paths: self.paths.clone(),
                slots: state.reports.values().cloned().collect(),
            };
            (report, state.version)
        };
        let client = self.member.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
        match client.report_host(&self.name, &report, wait) {
            Ok(orders) => {
                self.obey(&orders, version);
                self.renew(orders.now_ms);
                true
            }
            Err(ClientError::Refused(detail))
                if detail.code == ErrorCode::Gone || detail.code == ErrorCode::Conflict =>
            {
                self.lock().retired = Some(detail.message);
                false
            }
            Err(error) => {
                tracing::debug!(%error, "no manager takes the report");
                false
            }
        }
    }

    fn obey(&self, orders: &HostOrders, version: u64) {
        let mut state = self.lock();
        state.told_version = state.told_version.max(version);
        let given = Given { tenure: orders.tenure, at_ms: orders.now_ms };
        if given.is_late_after(state.ordered) {
            return;
        }
        state.ordered = given;
        state.node = orders.node;
        state.report_after_ms = orders.report_after_ms;
        state.wants = orders.slots.iter().map(|order| (order.slot, order.want.clone())).collect();
        drop(state);
        self.changed.notify_all();
    }

    /// Has the certificate renewed in good time.
    fn renew(&self, now_ms: u64) {
        let Ok(mut member) = self.member.try_lock() else { return };
        if !member.0.is_ageing(now_ms) {
            return;
        }
        let renewed = member.0.renewed(&self.home, &member.1).and_then(|membership| {
            let client = Client::new(membership.credential.clone(), Patience::ONCE)?;
            Ok((membership, Arc::new(client)))
        });
        match renewed {
            Ok(renewed) => *member = renewed,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the certificate cannot be renewed yet")
            }
        }
    }
}

/// An agent at work.
pub(super) struct Running {
    agent: Arc<Agent>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Why it must not go on, if somebody else has taken its place.
    pub(super) fn retired(&self) -> Option<String> {
        self.agent.lock().retired.clone()
    }

    /// Empties the slots and stops.
    pub(super) fn stop(self) {
        self.agent.lock().is_stopping = true;
        self.agent.changed.notify_all();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}
