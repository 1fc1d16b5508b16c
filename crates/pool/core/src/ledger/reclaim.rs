//! What a tenant is promised, and others have: leases beyond the guarantees of their tenants are ended for it.
//!
//! That a lease within its tenant's guarantee is the next to be served is worth nothing while others keep everything.
//! So when it has waited for `reclaim_after_ms`, as many leases are ended as it needs: only of tenants that have more of
//! the model than they are promised, first those that leave their tenant its guarantee, then by lowest priority, then
//! the youngest, which have least to lose. GPUs that are being cleaned already are waited for.

use super::lease_life::LeaseEvent;
use super::queue::Wish;
use super::stock::{Mask, Place, Standing, Stock};
use super::{Ledger, Note};
use pool_api::{EventKind, GpuState, LeaseId, LeaseState, Model, Name};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// How often the ledger looks for leases that wait for a guarantee: a small part of how long it waits.
const LOOK_EVERY_MS: u64 = 1_000;

/// Leases that are helped at one look. The next look is a second later.
const HELPED_AT_ONCE_MAX: usize = 64;

/// A lease that could be ended.
struct Candidate {
    id: LeaseId,
    tenant: Name,
    model: Model,
    milli: u64,
    places: Vec<Place>,
}

impl Ledger {
    /// Ends one lease for another tenant's guarantee, if one has to be. Tells whether there was anything to do.
    pub(super) fn reclaim(&mut self) -> bool {
        if let Some((id, reason)) = self.reclaimed.pop_front() {
            let is_granted = |entry: &super::LeaseEntry| entry.lease.state == LeaseState::Granted;
            if let Some(entry) = self.leases.get(&id).filter(|entry| is_granted(entry)) {
                let tenant = entry.lease.tenant.clone();
                self.end(id, LeaseEvent::Reclaimed, &format!("reclaimed: {reason}"));
                let message = format!("{id} of tenant {tenant} was ended: {reason}");
                self.note(Note::new(EventKind::LeaseReclaimed, message).lease(id, &tenant));
            }
            return true;
        }
        if self.now_ms < self.reclaim_look_ms || self.queue.is_empty() {
            return false;
        }
        self.reclaim_look_ms = self.now_ms + LOOK_EVERY_MS;
        let waiting = self.waiting_for_guarantees();
        if !waiting.is_empty() {
            self.choose_reclaimed(&waiting);
        }
        !self.reclaimed.is_empty()
    }

    /// Leases that have waited long enough for what their tenants are promised, and which classes that is, in the order
    /// in which they are served.
    fn waiting_for_guarantees(&self) -> Vec<(Name, Wish, Mask)> {
        let mut waiting = Vec::new();
        // What the leases before them in this list will have.
        let mut more: BTreeMap<&Name, u64> = BTreeMap::new();
        for (key, group) in self.queue.groups() {
            let is_promised = |milli: u64| {
                self.open_classes(&key.tenant, &key.wish)
                    & self.promised_classes(&key.tenant, &key.wish, milli)
            };
            // A scheduler that names GPUs has chosen free ones; no lease is ended for its choice.
            if !key.wish.given.is_empty() {
                continue;
            }
            if is_promised(0) == 0 || !self.has_slots(&key.tenant, &key.wish) {
                continue;
            }
            for &(_, id) in group.keys() {
                let before = more.entry(&key.tenant).or_default();
                let promised = is_promised(*before);
                if promised == 0 || waiting.len() >= HELPED_AT_ONCE_MAX {
                    break;
                }
                if self.now_ms.saturating_sub(self.waits_since_ms(id)) >= self.settings.reclaim_after_ms {
                    *before += u64::from(key.wish.gpus) * u64::from(key.wish.milli);
                    waiting.push((key.tenant.clone(), key.wish.clone(), promised));
                }
            }
        }
        waiting
    }

    /// Since when a pending lease waits: since it was asked for, or since it lost a GPU.
    fn waits_since_ms(&self, id: LeaseId) -> u64 {
        let lease = &self.leases[&id].lease;
        let queued_ms = super::queue::queued_ms(lease);
        lease.moves.last().map_or(queued_ms, |lost| lost.at_ms.max(queued_ms))
    }

    fn choose_reclaimed(&mut self, waiting: &[(Name, Wish, Mask)]) {
        let mut stock = self.stock_when_clean();
        let mut left = self.candidates();
        let mut used: BTreeMap<(Name, Model), u64> = BTreeMap::new();
        for (tenant, wish, promised) in waiting {
            let need = wish.need(*promised);
            let mut offered: Vec<Candidate> = Vec::new();
            let mut found = stock.choose(&need, &mut self.unused_dice);
            let mut at = 0;
            while found.is_none() && at < left.len() {
                if self.may_be_ended(&left[at], tenant, *promised, &mut used) {
                    let candidate = left.remove(at);
                    candidate.places.iter().for_each(|place| stock.set(*place, Standing::Usable));
                    offered.push(candidate);
                    found = stock.choose(&need, &mut self.unused_dice);
                } else {
                    at += 1;
                }
            }
            let chosen: BTreeSet<Place> = found.iter().flatten().copied().collect();
            for place in &chosen {
                stock.set(*place, Standing::Busy);
            }
            for candidate in offered {
                if candidate.places.iter().any(|place| chosen.contains(place)) {
                    let reason = format!("tenant {tenant} has less than its guarantee");
                    self.reclaimed.push_back((candidate.id, reason));
                } else {
                    // It keeps what it has.
                    candidate.places.iter().for_each(|place| stock.set(*place, Standing::Busy));
                    *used.entry((candidate.tenant, candidate.model)).or_default() += candidate.milli;
                }
            }
        }
    }

    /// Whether a lease may be ended for another tenant: its own has more than its guarantee, also after what was chosen
    /// before it. Counts it as ended if so.
    fn may_be_ended(
        &self,
        candidate: &Candidate,
        tenant: &Name,
        promised: Mask,
        used: &mut BTreeMap<(Name, Model), u64>,
    ) -> bool {
        let Candidate { tenant: owner, model, milli, places, .. } = candidate;
        let helps = owner != tenant && places.iter().any(|place| self.stock.is_of(*place, promised));
        let now = used.entry((owner.clone(), model.clone())).or_insert_with(|| self.used_milli(owner, model));
        let may = helps && *now > self.promised_milli(owner, model);
        if may {
            *now = now.saturating_sub(*milli);
        }
        may
    }

    /// Every lease whose tenant has more of its model than it is promised, the one to be ended first in front.
    fn candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        for entry in self.leases.values().filter(|entry| entry.lease.state == LeaseState::Granted) {
            let lease = &entry.lease;
            let Some(model) = &lease.model else { continue };
            let share = lease.request.share.map_or(crate::GPU_MILLI, |share| share.milli);
            let milli = u64::from(share) * lease.grants.len() as u64;
            let (used, promised) =
                (self.used_milli(&lease.tenant, model), self.promised_milli(&lease.tenant, model));
            if used <= promised {
                continue;
            }
            let mut places = Vec::new();
            for grant in &lease.grants {
                places.extend(
                    self.entry(&grant.gpu).filter(|_| self.comes_back(grant)).map(|entry| entry.place),
                );
            }
            let breaks_guarantee = used - promised < milli;
            let order = (breaks_guarantee, lease.request.priority, Reverse(lease.granted_ms), lease.id);
            let candidate =
                Candidate { id: lease.id, tenant: lease.tenant.clone(), model: model.clone(), milli, places };
            found.push((order, candidate));
        }
        found.sort_by_key(|(order, _)| *order);
        found.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Whether others could have a granted GPU if its lease were over.
    fn comes_back(&self, grant: &pool_api::Grant) -> bool {
        let owner = self.boxes.get(&grant.gpu.box_name);
        let takes = owner.is_some_and(super::BoxEntry::takes_leases);
        takes
            && self.entry(&grant.gpu).is_some_and(|entry| {
                entry.gpu.state == GpuState::Leased && entry.gpu.health.ok && entry.gpu.taint.is_none()
            })
    }

    /// The stock as it will be when every box has cleaned what it is cleaning.
    fn stock_when_clean(&self) -> Stock {
        let mut stock = self.stock.clone();
        for owner in self.boxes.values().filter(|owner| owner.takes_leases()) {
            for entry in owner.slots.values() {
                let gpu = &entry.gpu;
                if gpu.state == GpuState::Cleaning && gpu.health.ok && gpu.taint.is_none() {
                    stock.set(entry.place, Standing::Usable);
                }
            }
        }
        stock
    }
}
