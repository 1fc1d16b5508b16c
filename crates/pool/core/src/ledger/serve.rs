//! Chooses the lease that is served next, and gives GPUs to it.

use super::lease_life::LeaseEvent;
use super::queue::{GroupKey, Wish};
use super::stock::{Mask, Need, Place};
use super::{Ledger, Note};
use pool_api::{Class, EventKind, GpuId, LeaseId, Model, Move, Name};
use std::cmp::Reverse;

/// Groups are served level by level: guests last, those within the guarantees of their tenants first, then by priority.
pub(super) type Level = (IsGuest, Beyond, Reverse<u32>);

/// Whether a group waits for seats for guests: those are what others leave.
pub(super) type IsGuest = bool;

/// Whether a group is beyond the guarantee of its tenant.
pub(super) type Beyond = bool;

/// In this order groups of one level are served.
pub(super) type Turn = (Reverse<bool>, u64, u64, LeaseId);

impl Ledger {
    pub(super) fn enqueue(&mut self, id: LeaseId) {
        let lease = &self.leases[&id].lease;
        self.queue.insert(lease);
        let (tenant, is_guest) = (lease.tenant.clone(), lease.request.class == Class::Offline);
        self.stir_line(is_guest);
        self.tenant(&tenant).pending += 1;
        self.queue_stirred = true;
    }

    pub(super) fn dequeue(&mut self, id: LeaseId) {
        let lease = &self.leases[&id].lease;
        self.queue.remove(lease);
        let (tenant, is_guest) = (lease.tenant.clone(), lease.request.class == Class::Offline);
        self.stir_line(is_guest);
        let entry = self.tenant(&tenant);
        entry.pending = entry.pending.saturating_sub(1);
        self.queue_stirred = true;
    }

    fn stir_line(&mut self, is_guest: bool) {
        if is_guest {
            self.seating.stir();
        }
    }

    /// The lease that is to be served next, if any can be, and the GPUs that it gets.
    ///
    /// A lease that does not fit keeps those of lower levels from the GPUs it could use, and after a while also those
    /// behind it, or else small leases would keep large ones waiting for ever. One that could not be served even by an
    /// empty pool, or is beyond its tenant's limit, keeps no other lease from anything.
    pub(super) fn next_in_line(&mut self) -> Option<(LeaseId, Vec<Place>)> {
        let (mut walled, mut walled_below): (Mask, Mask) = (0, 0);
        let mut level: Option<Level> = None;
        for ((next_level, (.., created_ms, id)), open) in self.line() {
            if level != Some(next_level) {
                walled |= walled_below;
                level = Some(next_level);
            }
            let key = GroupKey::of(&self.leases[&id].lease);
            // A lease that waits for a host does not keep others from the GPUs.
            if !self.has_slots(&key.tenant, &key.wish) {
                continue;
            }
            if key.wish.class == Class::Offline {
                // It keeps other leases from no seat that it cannot have itself.
                match self.seat_for(id, &key.tenant, &key.wish, open) {
                    Some(place) => return Some((id, vec![place])),
                    None => continue,
                }
            }
            if !key.wish.given.is_empty() {
                let need = key.wish.need(open & !walled);
                let places = self.given_places(&key.wish, open & !walled);
                if let Some(places) =
                    places.or_else(|| self.find_beside_guests(&key.tenant, &key.wish, &need))
                {
                    return Some((id, places));
                }
                // It waits for these GPUs alone, and keeps other leases from none.
                continue;
            }
            let need = key.wish.need(open & !walled);
            if self.awaits_its_image(id, &need) {
                // Looked at again with every tick: its time may be over without anything else happening.
                self.queue_stirred = true;
                continue;
            }
            if need.classes != 0
                && let Some(places) = self
                    .near_its_image(id, &need)
                    .or_else(|| self.find(&need))
                    .or_else(|| self.find_beside_guests(&key.tenant, &key.wish, &need))
            {
                return Some((id, places));
            }
            if open == 0
                || !self.stock.feasible(&key.wish.need(open))
                || self.lacks_guard_alone(&key.wish, open)
            {
                continue;
            }
            walled_below |= open;
            if self.now_ms.saturating_sub(created_ms) >= self.settings.patience_ms {
                walled |= open;
            }
        }
        None
    }

    /// The first of each group, in the order in which they are served, with the classes it may have. A lease
    /// that is promised some of them is there twice: with those, and with all of them among the others.
    fn line(&self) -> Vec<((Level, Turn), Mask)> {
        let mut line = Vec::new();
        for (key, created_ms, id) in self.queue.heads() {
            let open = self.open_classes(&key.tenant, &key.wish);
            let (level, turn) = self.turn(key, created_ms, id);
            let promised = open & self.promised_classes(&key.tenant, &key.wish, 0);
            if promised != 0 {
                line.push((((level.0, false, level.2), turn), promised));
            }
            line.push(((level, turn), open));
        }
        line.sort_by_key(|one| one.0);
        line
    }

    /// When a lease of this group is served that is not within the guarantee of its tenant.
    pub(super) fn turn(&self, key: &GroupKey, created_ms: u64, id: LeaseId) -> (Level, Turn) {
        let turn = (Reverse(key.wish.lost), self.weighted_use(&key.tenant), created_ms, id);
        ((key.wish.class == Class::Offline, true, key.priority), turn)
    }

    /// GPUs for a need. What was not found is not looked for again before the stock has gained something.
    fn find(&mut self, need: &Need) -> Option<Vec<Place>> {
        if self.queue.is_refused(need, self.stock.gains()) {
            return None;
        }
        let hidden = self.unguarded(need, None);
        let (stock, dice) = (&mut self.stock, &mut self.unused_dice);
        let found = stock.without(&hidden, |stock| stock.choose(need, dice));
        if found.is_none() {
            self.queue.refuse(*need, self.stock.gains());
        }
        found
    }

    /// What a tenant has, for its weight.
    pub(super) fn weighted_use(&self, tenant: &Name) -> u64 {
        self.tenants.get(tenant).map_or(0, |entry| {
            let milli: u64 = entry.used.values().map(|used| used.milli).sum();
            milli * 1000 / u64::from(entry.record.weight.max(1))
        })
    }

    pub(super) fn used_milli(&self, tenant: &Name, model: &Model) -> u64 {
        self.tenants.get(tenant).and_then(|entry| entry.used.get(model)).map_or(0, |used| used.milli)
    }

    /// The classes of which the tenant is promised this much, beside what it has and `more_milli`.
    ///
    /// A guarantee of one model gives no precedence at another: a lease that takes any model is within its
    /// guarantee with the promised one alone.
    pub(super) fn promised_classes(&self, tenant: &Name, wish: &Wish, more_milli: u64) -> Mask {
        let Some(entry) = self.tenants.get(tenant) else { return 0 };
        // No seat for guests is promised.
        if wish.class == Class::Offline || entry.record.quotas.values().all(|quota| quota.guaranteed == 0) {
            return 0;
        }
        let asked = u64::from(wish.gpus) * u64::from(wish.milli);
        self.stock.mask(|class| {
            wish.accepts(class)
                && self.used_milli(tenant, &class.model) + more_milli + asked
                    <= self.promised_milli(tenant, &class.model)
        })
    }

    /// How much of a model a tenant is promised.
    pub(super) fn promised_milli(&self, tenant: &Name, model: &Model) -> u64 {
        let quota = self.tenants.get(tenant).and_then(|entry| entry.record.quotas.get(model));
        quota.map_or(0, |quota| u64::from(quota.guaranteed) * u64::from(crate::GPU_MILLI))
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
        let may_have = |class: &super::stock::Class| {
            wish.accepts(class) && self.is_within_limit(tenant, wish, &class.model)
        };
        self.parts_first(wish, self.stock.mask(may_have))
    }

    /// Gives a pending lease the GPUs that [`Ledger::next_in_line`] has found just now.
    pub(super) fn serve(&mut self, id: LeaseId, places: Vec<Place>) {
        let tenant = self.leases[&id].lease.tenant.clone();
        let Some(slots) = self.free_slots(&tenant, &Wish::of(&self.leases[&id].lease)) else { return };
        let planned = self.planned(id, &places);
        self.give(id, places, slots);
        planned.into_iter().for_each(|seat| self.is_seated(seat));
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
        for lost in lease.edit().moves.iter_mut().filter(|lost| lost.to.is_none()) {
            lost.to = arrivals.next();
        }
        drop(arrivals);
        *lease.edit().model = grants.first().map(|grant| grant.model.clone());
        let where_to = where_to(grants.iter().map(|grant| &grant.gpu));
        lease.on(LeaseEvent::Served);
        *lease.edit().parking = None;
        *lease.edit().grants = grants;
        lease.edit().granted_ms.get_or_insert(now_ms);
        *lease.edit().version += 1;
        self.tenant(&tenant).granted += 1;
        self.draft.leases.insert(id);
        self.watch_time(id);
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
