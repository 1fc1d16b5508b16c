//! Guard memory: a box with a guardian takes only as many leases that survive as their images fit.
//!
//! ```text
//!   what a guardian may take ─ charge of each surviving lease with GPUs here ─ images of leases without GPUs here = left
//! ```
//!
//! A lease is charged for the memory of its GPUs here, or of its shares of them, because its images may become as large. It is
//! charged at most what the guardian has, so that a box with little guard memory takes one such lease. A box without a
//! guardian has nothing to charge: its programs are protected by their journals alone.

use super::boxes::BoxEntry;
use super::queue::Wish;
use super::stock::{Mask, Need, Place, Standing, Tightness};
use super::{GpuEntry, Ledger};
use pool_api::{Explanation, Gpu, GpuState, GuardReport, LeaseId, Name};
use std::collections::BTreeMap;

/// So long a resumed lease waits for a GPU next to its image.
pub(super) const NEAR_ITS_IMAGE_MS: u64 = 3_000;

impl Ledger {
    /// Guard memory that is left in a box, beside what one lease has there; `None` without a guardian.
    pub(super) fn guard_left(&self, owner: &BoxEntry, beside: Option<LeaseId>) -> Option<u64> {
        let guard = owner.guard.as_ref()?;
        let mut charges: BTreeMap<LeaseId, u64> = BTreeMap::new();
        let holders = owner.slots.values().flat_map(|entry| &entry.gpu.holders);
        for holder in holders.filter(|holder| self.survives(holder.lease)) {
            let charge = charges.entry(holder.lease).or_default();
            *charge = charge.saturating_add(holder.memory_bytes).min(guard.bytes);
        }
        for kept in &guard.leases {
            let charge = charges.entry(kept.lease).or_default();
            *charge = (*charge).max(kept.bytes);
        }
        let others = charges.into_iter().filter(|(lease, _)| Some(*lease) != beside);
        let taken = others.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes));
        Some(guard.bytes.saturating_sub(taken))
    }

    pub(super) fn survives(&self, lease: LeaseId) -> bool {
        self.leases.get(&lease).is_some_and(|entry| !entry.lease.request.survive.is_none())
    }

    /// Guard memory that a GPU needs of its box, beside others of the same lease that must be in it, too.
    fn guard_needed(&self, guard: u64, gpu: &Gpu, count: u32, limit: u64) -> u64 {
        let each = if guard == 0 { gpu.memory_bytes } else { guard };
        each.saturating_mul(count.into()).min(limit)
    }

    /// Whether a box has guard memory for so many GPUs of a lease.
    pub(super) fn is_guarded(
        &self,
        owner: &BoxEntry,
        gpu: &Gpu,
        need: (u64, u32),
        of: Option<LeaseId>,
    ) -> bool {
        let Some(left) = self.guard_left(owner, of) else { return true };
        let limit = owner.guard.as_ref().map_or(0, |guard| guard.bytes);
        left >= self.guard_needed(need.0, gpu, need.1, limit)
    }

    /// GPUs that could be had, if their boxes had the guard memory that is needed. `of` is charged there already.
    pub(super) fn unguarded(&self, need: &Need, of: Option<LeaseId>) -> Vec<Place> {
        let Some(guard) = need.guard else { return Vec::new() };
        let count = if need.tightness == Tightness::Anywhere { 1 } else { need.gpus };
        let boxes = self.boxes.values().filter(|owner| owner.guard.is_some());
        let slots = boxes.flat_map(|owner| owner.slots.values().map(move |entry| (owner, entry)));
        let hidden = slots.filter(|(owner, entry)| {
            self.stock.can_be_had(entry.place)
                && self.stock.is_of(entry.place, need.classes)
                && !self.is_guarded(owner, &entry.gpu, (guard, count), of)
        });
        hidden.map(|(_, entry)| entry.place).collect()
    }

    /// GPUs for a lease that was parked, in a box whose guardian has its image: an image from another box comes over the network
    /// first, and its program waits for every byte.
    pub(super) fn near_its_image(&self, id: LeaseId, need: &Need) -> Option<Vec<Place>> {
        let is_usable = |_: &BoxEntry, entry: &GpuEntry| self.stock.standing(entry.place) == Standing::Usable;
        self.beside_its_image(id, need, is_usable).map(|place| vec![place])
    }

    /// Whether a lease that is resumed should wait for a GPU of the box that has its image: one that is cleaned, or whose worker
    /// starts. Both take a second or two, and so does an image of some gigabytes over a network; it waits no longer than that.
    pub(super) fn awaits_its_image(&self, id: LeaseId, need: &Need) -> bool {
        let queued_ms = self.leases[&id].lease.parking.as_ref().and_then(|parking| parking.queued_ms);
        let is_new = |queued_ms: u64| self.now_ms.saturating_sub(queued_ms) < NEAR_ITS_IMAGE_MS;
        let is_soon_usable = |owner: &BoxEntry, entry: &GpuEntry| {
            let gpu = &entry.gpu;
            let is_on_its_way =
                gpu.state == GpuState::Cleaning || (gpu.state == GpuState::Free && gpu.unready.is_some());
            is_on_its_way && gpu.health.ok && gpu.taint.is_none() && !gpu.spare && owner.takes_leases()
        };
        queued_ms.is_some_and(is_new)
            && self.near_its_image(id, need).is_none()
            && self.beside_its_image(id, need, is_soon_usable).is_some()
    }

    /// A GPU for a lease that was parked, in a box whose guardian has its image.
    fn beside_its_image(
        &self,
        id: LeaseId,
        need: &Need,
        will_do: impl Fn(&BoxEntry, &GpuEntry) -> bool,
    ) -> Option<Place> {
        self.leases[&id].lease.parking.as_ref()?;
        // Several GPUs may have to be close together, which the stock knows.
        if need.gpus != 1 {
            return None;
        }
        let keeps = |guard: &GuardReport| guard.leases.iter().any(|kept| kept.lease == id);
        let boxes = self.boxes.values().filter(|owner| owner.guard.as_ref().is_some_and(keeps));
        let mut slots = boxes.flat_map(|owner| owner.slots.values().map(move |entry| (owner, entry)));
        let found = slots.find(|(owner, entry)| {
            will_do(owner, entry)
                && self.stock.is_of(entry.place, need.classes)
                && self.is_guarded(owner, &entry.gpu, (need.guard.unwrap_or(0), need.gpus), Some(id))
        });
        found.map(|(_, entry)| entry.place)
    }

    /// Whether there are GPUs enough for a lease, and only guard memory is missing: no GPU is held back for it then.
    pub(super) fn lacks_guard_alone(&self, wish: &Wish, open: Mask) -> bool {
        wish.guard.is_some() && self.stock.have(&wish.need(open)) >= u64::from(wish.gpus)
    }

    /// A box has said what its guardian keeps. Leases may have waited for what it keeps no more.
    pub(super) fn hear_guard(&mut self, name: &Name, before: Option<GuardReport>) {
        let entry = self.boxes.get_mut(name).expect("it was met before");
        if entry.guard == before {
            return;
        }
        let now = std::mem::replace(&mut entry.guard, before);
        let left_before = self.guard_left(&self.boxes[name], None);
        self.boxes.get_mut(name).expect("it was met before").guard = now;
        let left = self.guard_left(&self.boxes[name], None);
        if left.unwrap_or(u64::MAX) > left_before.unwrap_or(u64::MAX) {
            self.stock.gained();
            self.queue_stirred = true;
        }
    }

    /// Says which boxes have too little guard memory for a lease that waits.
    pub(super) fn explain_guard(&self, wish: &Wish, places: &[Place], answer: &mut Explanation) {
        /// So many boxes are named; `dxpu box ls` shows all.
        const NAMED_MAX: usize = 4;
        let names: std::collections::BTreeSet<Name> =
            places.iter().map(|place| self.gpu_at(*place).box_name).collect();
        if names.is_empty() {
            return;
        }
        let count = if wish.topology == pool_api::Topology::Any { 1 } else { wish.gpus };
        let mut parts = Vec::new();
        for name in names.iter().take(NAMED_MAX) {
            let owner = &self.boxes[name];
            let place = places.iter().find(|place| self.gpu_at(**place).box_name == *name);
            let Some(gpu) = place.and_then(|place| self.entry(&self.gpu_at(*place))).map(|entry| &entry.gpu)
            else {
                continue;
            };
            let all = owner.guard.as_ref().map_or(0, |guard| guard.bytes);
            let needed = self.guard_needed(wish.guard.unwrap_or(0), gpu, count, all);
            let left = self.guard_left(owner, None).unwrap_or(0);
            let [left, all, needed] = [left, all, needed].map(super::possible::gibibytes);
            parts.push(format!("{name} has {left} of {all} left, and it may need {needed}"));
        }
        let gpus = places.len();
        let are =
            if gpus == 1 { "1 GPU that would do is" } else { &format!("{gpus} GPUs that would do are") };
        answer.reasons.push(format!("{are} in boxes without guard memory for it: {}", parts.join("; ")));
        let boxes: Vec<&str> = names.iter().take(NAMED_MAX).map(Name::as_str).collect();
        answer.remedies.push(format!(
            "end, move or suspend protected leases in {}, give the box more --guard-memory, or ask without --survive",
            boxes.join(", ")
        ));
    }
}
