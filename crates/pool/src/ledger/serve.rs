//! Who is next, and giving GPUs to them.

use super::queue::{GroupKey, Wish};
use super::stock::{Mask, Need, Place};
use super::{Ledger, Note};
use pool_api::{EventKind, GpuId, LeaseId, LeaseState, Model, Move, Name};
use std::cmp::Reverse;

/// In this order groups of one priority are served.
type Turn = (Reverse<bool>, bool, u64, u64, LeaseId);

impl Ledger {
    pub(super) fn enqueue(&mut self, id: LeaseId) {
        let lease = &self.leases[&id].lease;
        self.queue.insert(lease);
        let tenant = lease.tenant.clone();
        self.tenant(&tenant).pending += 1;
        self.queue_stirred = true;
    }

    pub(super) fn dequeue(&mut self, id: LeaseId) {
        let lease = &self.leases[&id].lease;
        self.queue.remove(lease);
        let tenant = lease.tenant.clone();
        let entry = self.tenant(&tenant);
        entry.pending = entry.pending.saturating_sub(1);
        self.queue_stirred = true;
    }

    /// The lease that is to be served next, if any can be.
    ///
    /// A lease that does not fit keeps those of lower priority from the GPUs it could use, and after a while also those
    /// behind it, or else small leases would keep large ones waiting for ever. One that could not be served even by an
    /// empty pool, or is beyond its tenant's limit, keeps nobody.
    pub(super) fn next_in_line(&mut self) -> Option<(LeaseId, Need)> {
        let mut walled: Mask = 0;
        let mut level: Option<Reverse<u32>> = None;
        let mut walled_below: Mask = 0;
        let mut turns: Vec<(Turn, GroupKey)> = Vec::new();
        let heads: Vec<(GroupKey, u64, LeaseId)> =
            self.queue.heads().map(|(key, at, id)| (key.clone(), at, id)).collect();
        let mut heads = heads.into_iter().peekable();
        while heads.peek().is_some() || !turns.is_empty() {
            // All groups of one priority are put into their order, then served.
            match heads.peek() {
                Some((key, ..)) if level.is_none_or(|level| level == key.priority) => {
                    level = Some(key.priority);
                    let (key, created_ms, id) = heads.next().expect("it was there just now");
                    turns.push((self.turn(&key, created_ms, id), key));
                    continue;
                }
                _ => {}
            }
            turns.sort();
            for ((.., created_ms, id), key) in turns.drain(..) {
                // Who waits for a host keeps nobody from the GPUs.
                if !self.has_slots(&key.tenant, &key.wish) {
                    continue;
                }
                let open = self.open_classes(&key.tenant, &key.wish);
                let need = key.wish.need(open & !walled);
                if need.classes != 0 && self.fits(&need) {
                    return Some((id, need));
                }
                let whole = key.wish.need(open);
                if open == 0 || !self.stock.feasible(&whole) {
                    continue;
                }
                walled_below |= open;
                if self.now_ms.saturating_sub(created_ms) >= self.settings.patience_ms {
                    walled |= open;
                }
            }
            walled |= walled_below;
            level = None;
        }
        None
    }

    fn fits(&mut self, need: &Need) -> bool {
        if self.queue.is_refused(need, self.stock.gains()) {
            return false;
        }
        let fits = self.stock.choose(need, &mut self.unused_dice).is_some();
        if !fits {
            self.queue.refuse(*need, self.stock.gains());
        }
        fits
    }

    fn turn(&self, key: &GroupKey, created_ms: u64, id: LeaseId) -> Turn {
        let beyond = !self.is_guaranteed(&key.tenant, &key.wish);
        (Reverse(key.wish.lost), beyond, self.weighted_use(&key.tenant), created_ms, id)
    }

    /// What a tenant has, for its weight.
    pub(super) fn weighted_use(&self, tenant: &Name) -> u64 {
        self.tenants.get(tenant).map_or(0, |entry| {
            let milli: u64 = entry.used.values().map(|used| used.milli).sum();
            milli * 1000 / u64::from(entry.record.weight.max(1))
        })
    }

    fn used_milli(&self, tenant: &Name, model: &Model) -> u64 {
        self.tenants.get(tenant).and_then(|entry| entry.used.get(model)).map_or(0, |used| used.milli)
    }

    /// Whether the tenant is promised this much of a model that will do.
    fn is_guaranteed(&self, tenant: &Name, wish: &Wish) -> bool {
        let Some(entry) = self.tenants.get(tenant) else { return false };
        let asked = u64::from(wish.gpus) * u64::from(wish.milli);
        let is_within = |model: &Model, guaranteed: u32| {
            self.used_milli(tenant, model) + asked <= u64::from(guaranteed) * u64::from(crate::GPU_MILLI)
        };
        let quotas = entry.record.quotas.iter().filter(|(model, _)| wish.accepts_model(model));
        quotas.into_iter().any(|(model, quota)| is_within(model, quota.guaranteed))
    }

    /// Whether the tenant's limit lets it have this much more of a model.
    pub(super) fn is_within_limit(&self, tenant: &Name, wish: &Wish, model: &Model) -> bool {
        let limit = self.tenants.get(tenant).and_then(|entry| entry.record.quotas.get(model)?.limit);
        let asked = u64::from(wish.gpus) * u64::from(wish.milli);
        limit.is_none_or(|limit| {
            self.used_milli(tenant, model) + asked <= u64::from(limit) * u64::from(crate::GPU_MILLI)
        })
    }

    /// The classes that will do and that the tenant may have.
    pub(super) fn open_classes(&self, tenant: &Name, wish: &Wish) -> Mask {
        self.stock.mask(|class| wish.accepts(class) && self.is_within_limit(tenant, wish, &class.model))
    }

    /// Gives a pending lease its GPUs, which [`Ledger::next_in_line`] has found.
    pub(super) fn serve(&mut self, id: LeaseId, need: &Need) {
        let tenant = self.leases[&id].lease.tenant.clone();
        let Some(slots) = self.free_slots(&tenant, &Wish::of(&self.leases[&id].lease)) else { return };
        let Some(places) = self.stock.choose(need, &mut self.unused_dice) else { return };
        self.give(id, places, slots);
    }

    /// Gives a pending lease these GPUs, and these slots.
    pub(super) fn give(&mut self, id: LeaseId, places: Vec<Place>, slots: Vec<Option<(Name, u8)>>) {
        let tenant = self.leases[&id].lease.tenant.clone();
        self.dequeue(id);
        let places = places.into_iter().zip(slots);
        let grants: Vec<_> = places.map(|(place, slot)| self.bind(&self.gpu_at(place), id, slot)).collect();
        let now_ms = self.now_ms;
        let lease = &mut self.leases.get_mut(&id).expect("it was there just now").lease;
        let mut arrivals = grants.iter().map(|grant| grant.gpu.clone());
        for lost in lease.moves.iter_mut().filter(|lost| lost.to.is_none()) {
            lost.to = arrivals.next();
        }
        drop(arrivals);
        lease.model = grants.first().map(|grant| grant.model.clone());
        let where_to = where_to(grants.iter().map(|grant| &grant.gpu));
        lease.grants = grants;
        lease.state = LeaseState::Granted;
        lease.granted_ms.get_or_insert(now_ms);
        lease.version += 1;
        self.tenant(&tenant).granted += 1;
        self.draft.leases.insert(id);
        self.let_go_of_others(id);
        self.note(Note::new(EventKind::LeaseGranted, format!("{id} has {where_to}")).lease(id, &tenant));
    }

    pub(super) fn gpu_at(&self, place: Place) -> GpuId {
        let (box_name, slot) = self.stock.locate(place);
        GpuId { box_name: box_name.clone(), slot }
    }
}

fn where_to<'a>(gpus: impl Iterator<Item = &'a GpuId>) -> String {
    let names: Vec<String> = gpus.take(9).map(ToString::to_string).collect();
    if names.len() == 9 { format!("{}, …", names[..8].join(", ")) } else { names.join(", ") }
}

/// A lease that moves again and again need not remember all of it.
const MOVES_MAX: usize = 64;

pub(super) fn remember_move(moves: &mut Vec<Move>, new: Move) {
    if moves.len() >= MOVES_MAX {
        moves.remove(0);
    }
    moves.push(new);
}
