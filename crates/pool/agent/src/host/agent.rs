//! The agent of a host: reports what is plugged, takes the manager's orders, and runs a thread for each slot.

use super::slot::Slot;
use crate::given::Given;
use crate::membership::{Home, Membership};
use crate::reporting::{Member, Orders, Reporting, Running, Said};
use pool_api::{HostReport, HostSlotReport, HostWant, Name};
use pool_client::{Client, ClientError};
use std::time::Duration;

/// A host, as managers know it.
pub(super) struct Host {
    pub(super) name: Name,
    pub(super) home: Home,
    pub(super) paths: Vec<String>,
}

impl Member for Host {
    type Slot = HostSlotReport;
    /// With the host's number on the network.
    type Want = (u16, HostWant);
    type Rest = ();

    fn home(&self) -> Home {
        self.home.clone()
    }

    fn is_news(before: &HostSlotReport, now: &HostSlotReport) -> bool {
        before != now
    }

    fn report(
        &self,
        client: &Client,
        said: Said<HostSlotReport>,
        wait: Duration,
    ) -> Result<Orders<Self>, ClientError> {
        let Said { run: agent, sequence, slots } = said;
        let report = HostReport { agent, sequence, paths: self.paths.clone(), slots };
        let orders = client.report_host(&self.name, &report, wait)?;
        let want = |order: pool_api::HostSlotOrder| (order.slot, (orders.node, order.want));
        Ok(Orders {
            given: Given { tenure: orders.tenure, at_ms: orders.now_ms },
            report_after_ms: orders.report_after_ms,
            wants: orders.slots.into_iter().map(want).collect(),
            rest: (),
        })
    }
}

/// Keeps a slot as the manager ordered it, until the agent stops.
fn keep(reporting: &Reporting<Host>, mut slot: Slot) {
    while !reporting.is_stopping() {
        let ordered = reporting.ordered();
        // Until a manager has given orders, everything stays as it is.
        let want = reporting.want(slot.number());
        let number = slot.number();
        let has_more = want.is_some_and(|(node, want)| {
            // Plugging waits for a box that is paused, as long as nothing else is ordered.
            let is_wanted =
                || !reporting.is_stopping() && reporting.want(number).is_some_and(|now| now.1 == want);
            slot.step(node, &want, &is_wanted)
        });
        reporting.note(slot.number(), slot.report());
        if !has_more {
            reporting.await_orders(ordered);
        }
    }
    slot.stop();
}

/// Starts an agent. The slots are empty when it has stopped.
pub(super) fn start(
    host: Host,
    membership: Membership,
    slots: Vec<Slot>,
) -> anyhow::Result<Running<Host, ()>> {
    let reports = slots.iter().map(|slot| (slot.number(), slot.report())).collect();
    Running::start(host, membership, reports, slots, keep)
}
