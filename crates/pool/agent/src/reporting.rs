//! How the agent of a box or host speaks with managers.
//!
//! ```text
//!   slot threads ──▶ reports ──▶ teller: at once when something changed ──┐
//!        ▲                  └──▶ listener: again and again, waits for news ┼──▶ whichever manager leads
//!        └──── orders ◀── the newest, by the manager's clock ◀─────────────┘
//! ```
//!
//! Nothing here waits for a manager: slots go on with the last orders.

use crate::given::Given;
use crate::membership::{Home, Membership};
use anyhow::Context;
use pool_api::ErrorCode;
use pool_client::{Client, ClientError, Patience};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often slots look around.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between attempts to reach a manager.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Between attempts to be let in again without a certificate that is in time.
const RETURN_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// A box or a host.
pub(crate) trait Member: Send + Sync + Sized + 'static {
    /// What a report says of one slot.
    type Slot: Clone + Send;
    /// What should be so in one slot.
    type Want: Clone + Send;
    /// What else orders say.
    type Rest;

    /// Where it keeps its identity.
    fn home(&self) -> Home;

    /// Whether a manager should hear of this change of a slot at once.
    fn is_news(before: &Self::Slot, now: &Self::Slot) -> bool;

    /// Sends a report, and waits for so long for orders that were not told yet.
    fn report(
        &self,
        client: &Client,
        said: Said<Self::Slot>,
        wait: Duration,
    ) -> Result<Orders<Self>, ClientError>;

    /// Executes the rest of the orders. It is called with current orders only, by one thread at a time.
    fn heed(&self, _rest: Self::Rest, _given: Given) {}

    /// Called after a manager took a report: sends what else there is to tell of these slots.
    fn tell_more(&self, _client: &Client, _slots: Vec<u8>) {}
}

/// What a report says, of either kind.
pub(crate) struct Said<S> {
    /// A random name of this run.
    pub(crate) run: String,
    pub(crate) sequence: u64,
    pub(crate) slots: Vec<S>,
}

/// What orders say, of either kind.
pub(crate) struct Orders<M: Member> {
    pub(crate) given: Given,
    pub(crate) report_after_ms: u64,
    pub(crate) wants: BTreeMap<u8, M::Want>,
    pub(crate) rest: M::Rest,
}

/// What a member's threads share.
pub(crate) struct Reporting<M: Member> {
    member: M,
    run: String,
    state: Mutex<State<M>>,
    changed: Condvar,
    access: Mutex<(Membership, Arc<Client>)>,
    /// When a renewal of the certificate last failed.
    renewal_failed: Mutex<Option<Instant>>,
}

/// A renewal that failed is tried again after this: a certificate has two thirds of its life left by then, and a disk that
/// takes no new one must not have the manager make one with every report.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(60);

struct State<M: Member> {
    wants: BTreeMap<u8, M::Want>,
    /// The manager that gave them, and when by its clock.
    ordered: Given,
    reports: BTreeMap<u8, M::Slot>,
    /// Grows with every change of the reports that a manager should hear of at once.
    version: u64,
    told_version: u64,
    sequence: u64,
    report_after_ms: u64,
    is_stopping: bool,
    /// It was logged already that managers do not accept the certificate.
    is_refused: bool,
    /// When `come_back` last asked for a new certificate.
    return_tried: Option<Instant>,
    /// Why this agent must not go on.
    retired: Option<Retired>,
}

/// Why an agent must not go on.
#[derive(Clone, Debug)]
pub(crate) enum Retired {
    /// A manager refused this agent, because another one replaced it.
    Replaced(String),
    /// The machine is no member any more: nothing of it may serve.
    Revoked(String),
}

/// An agent at work.
pub(crate) struct Running<M: Member, T> {
    reporting: Arc<Reporting<M>>,
    keepers: Vec<JoinHandle<T>>,
}

impl<M: Member, T: Send + 'static> Running<M, T> {
    /// Starts the threads that speak with managers, and one that keeps each group of slots as ordered.
    ///
    /// Reports are whole from the first one on: a slot that is missing counts as gone.
    pub(crate) fn start<G: Send + 'static>(
        member: M,
        membership: Membership,
        reports: BTreeMap<u8, M::Slot>,
        groups: Vec<G>,
        keep: fn(&Reporting<M>, G) -> T,
    ) -> anyhow::Result<Self> {
        let client = Client::new(membership.credential.clone(), Patience::ONCE)?;
        let state = State {
            wants: BTreeMap::new(),
            ordered: Given::default(),
            reports,
            version: 1,
            told_version: 0,
            sequence: 0,
            report_after_ms: 0,
            is_stopping: false,
            is_refused: false,
            return_tried: None,
            retired: None,
        };
        let reporting = Arc::new(Reporting {
            member,
            run: machine::random_hex(8)?,
            state: Mutex::new(state),
            changed: Condvar::new(),
            access: Mutex::new((membership, Arc::new(client))),
            renewal_failed: Mutex::new(None),
        });
        let keeper = |group| spawn("dxpu-slot", &reporting, move |reporting| keep(reporting, group));
        let keepers = groups.into_iter().map(keeper).collect::<Result<_, _>>()?;
        spawn("dxpu-teller", &reporting, Reporting::tell)?;
        spawn("dxpu-listener", &reporting, Reporting::listen)?;
        Ok(Self { reporting, keepers })
    }

    /// Why it must not go on, if it must not.
    pub(crate) fn retired(&self) -> Option<Retired> {
        self.reporting.lock().retired.clone()
    }

    /// Stops, and gives what is left of the groups of slots.
    pub(crate) fn stop(self) -> Vec<T> {
        self.reporting.lock().is_stopping = true;
        self.reporting.changed.notify_all();
        self.keepers.into_iter().filter_map(|keeper| keeper.join().ok()).collect()
    }
}

fn spawn<M: Member, T: Send + 'static>(
    name: &str,
    reporting: &Arc<Reporting<M>>,
    work: impl FnOnce(&Reporting<M>) -> T + Send + 'static,
) -> anyhow::Result<JoinHandle<T>> {
    let (thread, reporting) = (std::thread::Builder::new().name(name.to_owned()), reporting.clone());
    thread.spawn(move || work(&reporting)).context("cannot start a thread")
}

impl<M: Member> Reporting<M> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Arc<Client> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// When the current orders were given, and by which leader.
    pub(crate) fn ordered(&self) -> Given {
        self.lock().ordered
    }

    /// What should be so in a slot, as far as a manager has said.
    pub(crate) fn want(&self, slot: u8) -> Option<M::Want> {
        self.lock().wants.get(&slot).cloned()
    }

    /// Takes the state of a slot for the next report, and wakes the teller if it is news.
    pub(crate) fn note(&self, slot: u8, report: M::Slot) {
        let mut state = self.lock();
        if state.reports.get(&slot).is_none_or(|known| M::is_news(known, &report)) {
            state.version += 1;
            self.changed.notify_all();
        }
        state.reports.insert(slot, report);
    }

    /// Waits until it is time to look around again, or there are orders later than these.
    pub(crate) fn await_orders(&self, ordered: Given) {
        let state = self.lock();
        drop(
            self.changed.wait_timeout_while(state, LOOK_EVERY, |state| {
                state.ordered == ordered && !state.is_stopping
            }),
        );
    }

    /// Whether the agent is stopping: then slots stay as they are.
    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
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
        while !self.is_stopping() {
            let began = Instant::now();
            let is_heard = self.report(wait);
            if is_heard {
                let slots = self.lock().reports.keys().copied().collect();
                self.member.tell_more(&self.client(), slots);
            }
            let after = Duration::from_millis(self.lock().report_after_ms.clamp(50, 10_000));
            wait = if is_heard { after } else { Duration::ZERO };
            // If the manager answers at once, the next report waits for the interval that it asked for.
            let pause = if is_heard { after.saturating_sub(began.elapsed()) } else { TRY_AGAIN_AFTER };
            let state = self.lock();
            drop(self.changed.wait_timeout_while(state, pause, |state| !state.is_stopping));
        }
    }

    /// The report to send now, and the version of what it says.
    fn compose(&self) -> (Said<M::Slot>, u64) {
        let mut state = self.lock();
        state.sequence += 1;
        let slots = state.reports.values().cloned().collect();
        (Said { run: self.run.clone(), sequence: state.sequence, slots }, state.version)
    }

    /// Sends a report. False when no manager took it.
    fn report(&self, wait: Duration) -> bool {
        let (said, version) = self.compose();
        match self.member.report(&self.client(), said, wait) {
            Ok(orders) => {
                let now_ms = orders.given.at_ms;
                self.obey(orders, version);
                self.renew(now_ms);
                return true;
            }
            Err(ClientError::Refused(detail))
                if detail.code == ErrorCode::Gone || detail.code == ErrorCode::Conflict =>
            {
                self.lock().retired = Some(Retired::Replaced(detail.message));
            }
            Err(ClientError::Refused(detail)) if detail.code == ErrorCode::Revoked => {
                self.retire(detail.message);
            }
            Err(ClientError::Refused(detail)) if detail.code == ErrorCode::Unauthenticated => {
                self.come_back(&detail.message);
            }
            Err(error @ ClientError::Certificate { is_over: true, .. }) => self.come_back(&error.to_string()),
            Err(error @ ClientError::Certificate { .. }) => self.complain(&error),
            // The manager is there, and will say the same again: most often it is of another version.
            Err(error) if error.code() == Some(ErrorCode::BadRequest) => self.complain(&error),
            Err(error) => tracing::debug!(%error, "no manager takes the report"),
        }
        false
    }

    /// Logs once why no manager takes reports, until one does again.
    fn complain(&self, error: &ClientError) {
        let is_new = !std::mem::replace(&mut self.lock().is_refused, true);
        if is_new {
            tracing::error!(%error, hint = error.hint(), "no manager takes the report");
        }
    }

    fn obey(&self, orders: Orders<M>, version: u64) {
        let mut state = self.lock();
        state.told_version = state.told_version.max(version);
        state.is_refused = false;
        if orders.given.is_late_after(state.ordered) {
            return;
        }
        state.ordered = orders.given;
        state.report_after_ms = orders.report_after_ms;
        state.wants = orders.wants;
        self.member.heed(orders.rest, orders.given);
        drop(state);
        self.changed.notify_all();
    }

    /// This machine is no member any more. Its key is of no use, and must not be to a thief.
    fn retire(&self, reason: String) {
        Membership::forget(&self.member.home());
        self.lock().retired = Some(Retired::Revoked(reason));
    }

    /// The certificate has ended, because this machine was off or heard no manager for so long: the key that it joined
    /// with brings a new one, unless it was revoked meanwhile.
    fn come_back(&self, why: &str) {
        let mut state = self.lock();
        if state.return_tried.is_some_and(|at| at.elapsed() < RETURN_AGAIN_AFTER) {
            return;
        }
        state.return_tried = Some(Instant::now());
        drop(state);
        let Ok(mut access) = self.access.try_lock() else { return };
        match access.0.ask_to_return() {
            Ok((key, answer)) => {
                let returned = access.0.returned(&self.member.home(), &key, answer).and_then(|membership| {
                    let client = Client::new(membership.credential.clone(), Patience::ONCE)?;
                    Ok((membership, Arc::new(client)))
                });
                match returned {
                    Ok(returned) => {
                        tracing::info!(why, "let in again, with a new certificate");
                        *access = returned;
                    }
                    Err(error) => tracing::error!(error = format!("{error:#}"), "cannot keep a certificate"),
                }
            }
            Err(ClientError::Refused(detail)) if detail.code == ErrorCode::Revoked => {
                drop(access);
                self.retire(detail.message);
            }
            Err(error) => {
                let is_new = !std::mem::replace(&mut self.lock().is_refused, true);
                if is_new {
                    tracing::error!(why, %error, hint = error.hint(), "no manager takes the report");
                }
            }
        }
    }

    /// Has the certificate renewed in good time.
    fn renew(&self, now_ms: u64) {
        let Ok(mut access) = self.access.try_lock() else { return };
        let mut failed = self.renewal_failed.lock().unwrap_or_else(PoisonError::into_inner);
        if !access.0.is_ageing(now_ms) || failed.is_some_and(|at| at.elapsed() < RENEW_AGAIN_AFTER) {
            return;
        }
        *failed = None;
        let renewed = access.0.renewed(&self.member.home(), &access.1).and_then(|membership| {
            let client = Client::new(membership.credential.clone(), Patience::ONCE)?;
            Ok((membership, Arc::new(client)))
        });
        match renewed {
            Ok(renewed) => {
                tracing::info!("the certificate was renewed");
                *access = renewed;
            }
            Err(error) => {
                *failed = Some(Instant::now());
                tracing::warn!(error = format!("{error:#}"), "the certificate cannot be renewed yet");
            }
        }
    }
}
