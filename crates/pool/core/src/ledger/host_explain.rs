//! Why a lease waits for its host, and whether hosts and leases agree.

use super::Ledger;
use super::boxes::Presence;
use super::hosts::is_free;
use super::queue::Wish;
use pool_api::{Attachment, Explanation, HostSlot, Lease, LeaseState, Name, Phase};

impl Ledger {
    pub(super) fn explain_host(&self, tenant: &Name, wish: &Wish, answer: &mut Explanation) {
        let Some(name) = &wish.host else { return };
        let Some(host) = self.hosts.get(name) else {
            answer.reasons.push(format!("there is no host {name}"));
            answer.remedies.push(format!("start the proxy of host {name}, or name another host"));
            return;
        };
        match host.presence {
            Presence::Ready => {}
            Presence::Suspect => answer.reasons.push(format!("host {name} has been silent for a moment")),
            Presence::Dead => {
                answer.reasons.push(format!("host {name} is dead"));
                answer.remedies.push(format!("start the proxy of host {name} again"));
            }
        }
        if !host.record.tenants.contains(tenant) {
            answer.reasons.push(format!("host {name} does not serve tenant {tenant}"));
            answer.remedies.push(format!("allow it: dxpu host allow {name} {tenant}"));
        }
        let there = host.slots.values().filter(|slot| !slot.gone).count();
        let free = host.slots.values().filter(|slot| is_free(slot)).count();
        let leaving =
            host.slots.values().filter(|slot| slot.lease.is_none() && slot.leaving.is_some()).count();
        let asked = wish.gpus as usize;
        if there < asked {
            answer.reasons.push(format!("host {name} has {there} slots, even if nothing were plugged there"));
        } else if free < asked {
            answer
                .reasons
                .push(format!("{free} of {there} slots of host {name} are free, {asked} are asked for"));
            answer.remedies.push(format!("{} more slots of host {name} free", asked - free));
            if leaving > 0 {
                answer.remedies.push(format!(
                    "{leaving} slots of host {name} are being unplugged and may be free in a moment"
                ));
            }
        }
    }

    /// What keeps a guest from GPUs that its lease has.
    pub(super) fn explain_attachments(&self, lease: &Lease, answer: &mut Explanation) {
        for grant in &lease.grants {
            let Some(Attachment { host, slot, phase }) = &grant.attachment else { continue };
            let presence = self.hosts.get(host).map(|host| host.presence);
            let leaving = self.host_slot(host, *slot).and_then(|slot| slot.leaving.as_ref());
            let why = match (phase, leaving) {
                (Phase::Plugged, _) => continue,
                _ if presence != Some(Presence::Ready) => format!("host {host} is silent"),
                (_, Some(leaving)) => format!("host {host} has to unplug {} first", leaving.gpu),
                (Phase::Binding, None) => format!("box {} has not let the host in yet", grant.gpu.box_name),
                _ => format!("host {host} has been told"),
            };
            answer.reasons.push(format!("{} is not in slot {slot} of host {host} yet: {why}", grant.gpu));
            let detail = self.host_slot(host, *slot).map_or("", |slot| slot.detail.as_str());
            if !detail.is_empty() {
                answer.reasons.push(format!("host {host} says of slot {slot}: {detail}"));
            }
        }
    }

    /// Where hosts and leases do not agree.
    pub(super) fn attachment_inconsistencies(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, host) in &self.hosts {
            for slot in host.slots.values().filter(|slot| slot.lease.is_some()) {
                if !self.is_granted(name, slot) {
                    found.push(format!(
                        "slot {} of host {name} is for {:?}, which knows nothing of it",
                        slot.slot, slot.lease
                    ));
                }
            }
        }
        for entry in self.leases.values().filter(|entry| entry.lease.state == LeaseState::Granted) {
            for grant in &entry.lease.grants {
                if entry.lease.request.host.is_some() != grant.attachment.is_some() {
                    found.push(format!(
                        "{} has {} with attachment {:?}",
                        entry.lease.id, grant.gpu, grant.attachment
                    ));
                }
            }
        }
        for (gpu, held) in &self.held {
            let leaving = self.host_slot(&held.host, held.slot).and_then(|slot| slot.leaving.as_ref());
            if !leaving.is_some_and(|leaving| leaving.box_waits && leaving.gpu == *gpu) {
                found.push(format!(
                    "{gpu} waits for slot {} of host {}, which has not got it",
                    held.slot, held.host
                ));
            }
        }
        found
    }

    fn is_granted(&self, name: &Name, slot: &HostSlot) -> bool {
        let lease = slot.lease.and_then(|lease| self.leases.get(&lease)).map(|entry| &entry.lease);
        lease.is_some_and(|lease| {
            lease.state == LeaseState::Granted
                && lease.grants.iter().any(|grant| {
                    let attachment = grant.attachment.as_ref();
                    Some(&grant.gpu) == slot.gpu.as_ref()
                        && attachment.is_some_and(|to| to.host == *name && to.slot == slot.slot)
                })
        })
    }
}
