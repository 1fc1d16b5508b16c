//! The agent of a box: reports what is, hears what should be, and has the slots reconcile the two.
//!
//! ```text
//!   slot threads ──▶ reports ──▶ teller: at once when something changed ──┐
//!        ▲                  └──▶ listener: again and again, waits for news ┼──▶ whichever manager leads
//!        └──── orders ◀── the newest, by the manager's clock ◀─────────────┘
//! ```
//!
//! Nothing here waits for a manager: slots go on with the last orders, and borrowers are let in by what the trust file
//! says.

use super::slot::Surroundings;
use crate::given::Given;
use crate::membership::Membership;
use lease_fence::{Moment, Refusals, Trust};
use pool_api::{BoxKind, BoxOrders, BoxReport, ErrorCode, GpuReport, Name, RefusalReport, SlotRefusal, Want};
use pool_client::{Client, ClientError, Patience};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What reconciles one slot.
pub(crate) trait Hands: Send {
    /// Looks, and does one thing. Says whether there may be more to do at once.
    fn step(&mut self, want: &Want) -> bool;

    /// What the manager hears of the slot.
    fn report(&self) -> GpuReport;

    /// Ends what serves, for good.
    fn stop(&mut self);
}

/// How often slots look around.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between attempts to reach a manager.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// What counts as the same time: less than a report takes.
const CLOCK_SLACK_MS: u64 = 200;

/// What does not change while an agent runs.
#[derive(Clone)]
pub(crate) struct BoxFacts {
    pub(crate) name: Name,
    pub(crate) kind: BoxKind,
    pub(crate) rack: String,
    pub(crate) paths: Vec<String>,
}

pub(crate) struct Agent {
    facts: BoxFacts,
    around: Surroundings,
    /// A random name of this run.
    run: String,
    state: Mutex<State>,
    changed: Condvar,
    member: Mutex<(Membership, Arc<Client>)>,
}

#[derive(Default)]
struct State {
    wants: BTreeMap<u8, Want>,
    /// Who gave them, and when by its clock.
    ordered: Given,
    reports: BTreeMap<u8, GpuReport>,
    /// Grows with every change of the reports that a manager should hear of at once.
    version: u64,
    told_version: u64,
    sequence: u64,
    report_after_ms: u64,
    trust: Option<Trust>,
    stopping: bool,
    /// That managers do not accept the certificate was said already.
    is_refused: bool,
    /// Why this agent must not go on.
    retired: Option<String>,
}

impl Agent {
    pub(crate) fn new(
        facts: BoxFacts,
        around: Surroundings,
        membership: Membership,
        run: String,
    ) -> Result<Arc<Self>, ClientError> {
        let client = Arc::new(Client::new(membership.credential.clone(), Patience::ONCE)?);
        let trust = Trust::read(&around.trust_file()).ok();
        let state = Mutex::new(State { trust, ..State::default() });
        let member = Mutex::new((membership, client));
        Ok(Arc::new(Self { facts, around, run, state, changed: Condvar::new(), member }))
    }

    /// Starts a thread for each group of slots, and those that speak with managers.
    pub(crate) fn start(self: &Arc<Self>, groups: Vec<Vec<Box<dyn Hands>>>) -> std::io::Result<Running> {
        // Reports are whole from the first one on: a GPU that is missing counts as gone.
        {
            let mut state = self.lock();
            for hands in groups.iter().flatten() {
                let report = hands.report();
                state.reports.insert(report.slot, report);
            }
            state.version += 1;
        }
        let mut slots = Vec::new();
        for group in groups {
            let agent = self.clone();
            let thread = std::thread::Builder::new().name("dxpu-slot".to_owned());
            slots.push(thread.spawn(move || agent.keep(group))?);
        }
        for (name, is_teller) in [("dxpu-teller", true), ("dxpu-listener", false)] {
            let agent = self.clone();
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(move || if is_teller { agent.tell() } else { agent.listen() })?;
        }
        Ok(Running { agent: self.clone(), slots })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a group of slots as they should be, until the agent stops.
    fn keep(&self, mut group: Vec<Box<dyn Hands>>) -> Vec<Box<dyn Hands>> {
        loop {
            let mut has_more = false;
            for hands in &mut group {
                let slot = hands.report().slot;
                let want = self.lock().wants.get(&slot).cloned().unwrap_or(Want::Idle);
                has_more |= hands.step(&want);
                self.note(hands.report());
            }
            let state = self.lock();
            if state.stopping {
                drop(state);
                return group;
            }
            if !has_more {
                let ordered = state.ordered;
                drop(self.changed.wait_timeout_while(state, LOOK_EVERY, |state| {
                    state.ordered == ordered && !state.stopping
                }));
            }
        }
    }

    fn note(&self, report: GpuReport) {
        let mut state = self.lock();
        let known = state.reports.insert(report.slot, report.clone());
        // Counters change all the time and can wait.
        let quiet = |report: &GpuReport| GpuReport { counters: None, ..report.clone() };
        if known.as_ref().map(quiet) != Some(quiet(&report)) {
            state.version += 1;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The report to send now, and the version of what it says.
    fn compose(&self) -> (BoxReport, u64) {
        let mut state = self.lock();
        state.sequence += 1;
        let report = BoxReport {
            agent: self.run.clone(),
            sequence: state.sequence,
            kind: self.facts.kind,
            rack: self.facts.rack.clone(),
            paths: self.facts.paths.clone(),
            gpus: state.reports.values().cloned().collect(),
        };
        (report, state.version)
    }

    fn client(&self) -> Arc<Client> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Reports changes at once.
    fn tell(&self) {
        loop {
            let state = self.lock();
            let waited = self.changed.wait_timeout_while(state, Duration::from_secs(1), |state| {
                state.version == state.told_version && !state.stopping
            });
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.stopping {
                return;
            }
            if state.version == state.told_version {
                continue;
            }
            drop(state);
            if !self.report(Duration::ZERO) {
                std::thread::sleep(TRY_AGAIN_AFTER);
            }
        }
    }

    /// Reports again and again, and waits for orders meanwhile.
    fn listen(&self) {
        let mut wait = Duration::ZERO;
        while !self.lock().stopping {
            let began = Instant::now();
            let heard = self.report(wait);
            if heard {
                self.tell_refusals();
            }
            let after_ms = self.report_after();
            wait = if heard { after_ms } else { Duration::ZERO };
            let pause = if heard { after_ms.saturating_sub(began.elapsed()) } else { TRY_AGAIN_AFTER };
            // A manager that does not wait with its answer is asked no more often than it wants.
            let state = self.lock();
            drop(self.changed.wait_timeout_while(state, pause, |state| !state.stopping));
        }
    }

    /// How often the manager wants to hear from this box.
    fn report_after(&self) -> Duration {
        Duration::from_millis(self.lock().report_after_ms.clamp(50, 10_000))
    }

    /// Sends a report. False when nobody took it.
    fn report(&self, wait: Duration) -> bool {
        let (report, version) = self.compose();
        match self.client().report(&self.facts.name, &report, wait) {
            Ok(orders) => {
                let heard = Moment::now().ok();
                let mut state = self.lock();
                state.told_version = state.told_version.max(version);
                state.is_refused = false;
                drop(state);
                self.obey(&orders, heard);
                self.renew(orders.now_ms);
                true
            }
            Err(ClientError::Refused(detail))
                if detail.code == ErrorCode::Gone || detail.code == ErrorCode::Conflict =>
            {
                let mut state = self.lock();
                state.retired = Some(detail.message);
                drop(state);
                self.changed.notify_all();
                false
            }
            Err(error @ ClientError::Certificate { .. }) => {
                let is_new = !std::mem::replace(&mut self.lock().is_refused, true);
                if is_new {
                    tracing::error!(%error, hint = error.hint(), "no manager takes the report");
                }
                false
            }
            Err(error) => {
                tracing::debug!(%error, "no manager takes the report");
                false
            }
        }
    }

    /// Tells of those whom slots have turned away. What nobody takes is told again later.
    fn tell_refusals(&self) {
        let slots: Vec<u8> = self.lock().reports.keys().copied().collect();
        let of = |slot: u8| Refusals::beside(&self.around.slot_directory(slot).join("fence"));
        let mut refusals = Vec::new();
        for slot in &slots {
            let taken = of(*slot).take().unwrap_or_else(|error| {
                tracing::warn!(slot, %error, "cannot read who was turned away");
                Vec::new()
            });
            refusals.extend(taken.into_iter().map(|reason| SlotRefusal { slot: *slot, reason }));
        }
        if refusals.is_empty() {
            return;
        }
        refusals.truncate(RefusalReport::REFUSALS_MAX);
        match self.client().tell_refusals(&self.facts.name, &RefusalReport { refusals }) {
            Ok(_) => slots.iter().for_each(|slot| {
                let _ = of(*slot).told();
            }),
            Err(error) => tracing::debug!(%error, "nobody hears who was turned away"),
        }
    }

    fn obey(&self, orders: &BoxOrders, heard: Option<Moment>) {
        let mut state = self.lock();
        let given = Given { tenure: orders.tenure, at_ms: orders.now_ms };
        if given.is_late_after(state.ordered) {
            return;
        }
        state.ordered = given;
        if let Some(plane) = &self.around.pcie {
            plane.set_node(orders.node);
        }
        state.report_after_ms = orders.report_after_ms;
        state.wants = orders.slots.iter().map(|order| (order.slot, order.want.clone())).collect();
        if let Some(at) = heard {
            let is_known = state.trust.as_ref().is_some_and(|trust| {
                let believed = trust.manager_ms_at(&at).unwrap_or(0);
                trust.keys == orders.lease_keys && believed.abs_diff(orders.now_ms) <= CLOCK_SLACK_MS
            });
            if !is_known {
                let trust = Trust { keys: orders.lease_keys.clone(), manager_ms: orders.now_ms, at };
                match trust.write(&self.around.trust_file()) {
                    Ok(()) => state.trust = Some(trust),
                    Err(error) => tracing::error!(%error, "workers cannot be told whom to trust"),
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Has the certificate renewed in good time.
    fn renew(&self, now_ms: u64) {
        let Ok(mut member) = self.member.try_lock() else { return };
        if !member.0.is_ageing(now_ms) {
            return;
        }
        let renewed = member.0.renewed(&self.around.home(), &member.1).and_then(|membership| {
            let client = Client::new(membership.credential.clone(), Patience::ONCE)?;
            Ok((membership, Arc::new(client)))
        });
        match renewed {
            Ok(renewed) => {
                tracing::info!("the certificate was renewed");
                *member = renewed;
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the certificate cannot be renewed yet")
            }
        }
    }
}

/// An agent at work.
pub(crate) struct Running {
    agent: Arc<Agent>,
    slots: Vec<std::thread::JoinHandle<Vec<Box<dyn Hands>>>>,
}

impl Running {
    /// Why it must not go on, if somebody else has taken its place.
    pub(crate) fn retired(&self) -> Option<String> {
        self.agent.lock().retired.clone()
    }

    /// Stops. Workers are left to serve on, or ended.
    pub(crate) fn stop(self, ends_workers: bool) {
        self.agent.lock().stopping = true;
        self.agent.changed.notify_all();
        for thread in self.slots {
            let Ok(mut slots) = thread.join() else { continue };
            if ends_workers {
                slots.iter_mut().for_each(|slot| slot.stop());
            }
        }
    }
}
