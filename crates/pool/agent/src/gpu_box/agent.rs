//! The agent of a box: reports the state of its slots, takes the manager's orders, and lets the slots carry them out.
//!
//! How it speaks with managers is in `reporting.rs`. While none answers, borrowers are let in by what the trust file
//! says.

use super::guard;
use super::slot::Surroundings;
use crate::complaint::Complaint;
use crate::given::Given;
use crate::membership::{Home, Membership};
use crate::reporting::{Member, Orders, Reporting, Running, Said};
use lease_fence::{DeniedLease, Moment, Refusals, Trust};
use locks::lock;
use pool_api::{BoxKind, BoxReport, GpuReport, LeaseId, Name, RefusalReport, SlotRefusal, Want};
use pool_client::{Client, ClientError};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The hands of one slot: they make it what its orders say.
pub(crate) trait Hands: Send {
    /// Looks at the slot and does at most one action. Returns whether to call it again at once.
    fn step(&mut self, want: &Want) -> bool;

    /// What the manager hears of the slot.
    fn report(&self) -> GpuReport;

    /// Ends the slot's worker, if it has one, for good.
    fn stop(&mut self);
}

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

/// A box, as managers know it.
pub(crate) struct GpuBox {
    facts: BoxFacts,
    around: Surroundings,
    trusting: Mutex<Trusting>,
    /// Refusals that cannot be read.
    unread: Mutex<Complaint>,
}

/// What workers are told about the keys to trust.
#[derive(Default)]
struct Trusting {
    /// As it was last written.
    written: Option<Trust>,
    /// Why it could not be written since. Without it workers admit no borrower, so nothing is lent.
    trouble: Option<String>,
    complaint: Complaint,
}

/// What orders say to a box as a whole.
pub(crate) struct BoxRest {
    node: u16,
    lease_keys: Vec<String>,
    denied: Vec<DeniedLease>,
    /// Leases whose images the guardian keeps for nothing.
    ended: Vec<String>,
    heard: Option<Moment>,
}

impl Member for GpuBox {
    type Slot = GpuReport;
    type Want = Want;
    type Rest = BoxRest;

    fn home(&self) -> Home {
        self.around.home()
    }

    /// Ignores what is measured: that changes all the time and can wait for the next report.
    fn is_news(before: &GpuReport, now: &GpuReport) -> bool {
        let quiet = |report: &GpuReport| GpuReport { counters: None, sharing: None, ..report.clone() };
        quiet(before) != quiet(now)
    }

    fn report(
        &self,
        client: &Client,
        said: Said<GpuReport>,
        wait: Duration,
    ) -> Result<Orders<Self>, ClientError> {
        let BoxFacts { name, kind, rack, paths } = self.facts.clone();
        let Said { run: agent, sequence, slots: mut gpus } = said;
        let trouble = lock(&self.trusting).trouble.clone();
        if let Some(why) = trouble {
            for gpu in gpus.iter_mut().filter(|gpu| !gpu.only_pcie) {
                gpu.ready = false;
                gpu.unready.get_or_insert_with(|| why.clone());
            }
        }
        let guard = lock(&self.around.guarded).clone();
        let report = BoxReport { agent, sequence, kind, rack, paths, gpus, guard };
        let orders = client.report(&name, &report, wait)?;
        let heard = Moment::now().ok();
        let denied = orders.denied_leases.into_iter();
        let denied = denied.map(|one| DeniedLease { lease: one.lease.to_string(), until_ms: one.until_ms });
        Ok(Orders {
            given: Given { tenure: orders.tenure, at_ms: orders.now_ms },
            report_after_ms: orders.report_after_ms,
            wants: orders.slots.into_iter().map(|order| (order.slot, order.want)).collect(),
            rest: BoxRest {
                node: orders.node,
                lease_keys: orders.lease_keys,
                denied: denied.collect(),
                ended: orders.ended_leases.iter().map(LeaseId::to_string).collect(),
                heard,
            },
        })
    }

    fn heed(&self, rest: BoxRest, given: Given) {
        let BoxRest { node, lease_keys, denied, ended, heard } = rest;
        if let Some(socket) = self.around.guardian.clone().filter(|_| !ended.is_empty()) {
            // The next look at the guardian says again what it did not end.
            if let Some(guarded) = lock(&self.around.guarded).as_mut() {
                guarded.leases.retain(|guarded| !ended.contains(&guarded.lease.to_string()));
            }
            guard::end_leases(socket, ended);
        }
        if let Some(plane) = &self.around.pcie {
            plane.set_node(node);
        }
        let Some(at) = heard else { return };
        let mut trusting = lock(&self.trusting);
        let is_known = trusting.written.as_ref().is_some_and(|trust| {
            let believed = trust.manager_ms_at(&at).unwrap_or(0);
            trust.keys == lease_keys
                && trust.denied == denied
                && believed.abs_diff(given.at_ms) <= CLOCK_SLACK_MS
        });
        let trust = Trust { keys: lease_keys, manager_ms: given.at_ms, at, denied };
        match if is_known { Ok(()) } else { trust.write(&self.around.trust_file()) } {
            Ok(()) => {
                if !is_known {
                    if let Some(socket) = self.around.guardian.clone().filter(|_| !trust.denied.is_empty()) {
                        let leases = trust.denied.iter().map(|denied| denied.lease.clone()).collect();
                        guard::end_leases(socket, leases);
                    }
                    trusting.written = Some(trust);
                }
                trusting.trouble = None;
                trusting.complaint.right();
            }
            // `heed` tries again with the next orders.
            Err(error) => {
                let why =
                    format!("its workers cannot be told whom to trust: {:#}", anyhow::Error::new(error));
                if let Some(times) = trusting.complaint.wrong(&why, Instant::now()) {
                    tracing::error!(why, times, "nothing is lent from here meanwhile");
                }
                // A report has room for so much.
                trusting.trouble = Some(why.chars().filter(|c| !c.is_control()).take(200).collect());
            }
        }
    }

    /// Reports the borrowers that slots have turned away. What no manager takes is told again later.
    fn tell_more(&self, client: &Client, slots: Vec<u8>) {
        let of = |slot: u8| Refusals::beside(&self.around.slot_directory(slot).join("fence"));
        let mut refusals = Vec::new();
        for slot in &slots {
            let taken = of(*slot).take().unwrap_or_else(|error| {
                if let Some(times) = lock(&self.unread).wrong(&error.to_string(), Instant::now()) {
                    tracing::warn!(slot, %error, times, "cannot read who was turned away");
                }
                Vec::new()
            });
            refusals.extend(taken.into_iter().map(|reason| SlotRefusal { slot: *slot, reason }));
        }
        if refusals.is_empty() {
            return;
        }
        refusals.truncate(RefusalReport::REFUSALS_MAX);
        match client.tell_refusals(&self.facts.name, &RefusalReport { refusals }) {
            Ok(_) => slots.iter().for_each(|slot| {
                let _ = of(*slot).told();
            }),
            Err(error) => tracing::debug!(%error, "nobody hears who was turned away"),
        }
    }
}

/// Keeps a group of slots as the manager ordered them, until the agent stops.
fn keep(reporting: &Reporting<GpuBox>, mut group: Vec<Box<dyn Hands>>) -> Vec<Box<dyn Hands>> {
    loop {
        let ordered = reporting.ordered();
        let mut has_more = false;
        for hands in &mut group {
            let slot = hands.report().slot;
            has_more |= hands.step(&reporting.want(slot).unwrap_or(Want::Idle));
            reporting.note(slot, hands.report());
        }
        if reporting.is_stopping() {
            return group;
        }
        if !has_more {
            reporting.await_orders(ordered);
        }
    }
}

/// A box's agent at work. The slots that are left when it stops may still have workers that serve.
pub(crate) type BoxAgent = Running<GpuBox, Vec<Box<dyn Hands>>>;

/// Starts an agent.
pub(crate) fn start(
    facts: BoxFacts,
    around: Surroundings,
    membership: Membership,
    groups: Vec<Vec<Box<dyn Hands>>>,
) -> anyhow::Result<BoxAgent> {
    let reports = groups.iter().flatten().map(|hands| hands.report());
    let reports = reports.map(|report| (report.slot, report)).collect();
    let trusting = Trusting { written: Trust::read(&around.trust_file()).ok(), ..Trusting::default() };
    let agent = GpuBox { facts, around, trusting: Mutex::new(trusting), unread: Mutex::default() };
    Running::start(agent, membership, reports, groups, keep)
}
