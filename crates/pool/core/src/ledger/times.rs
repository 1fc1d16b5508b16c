//! Time limits of leases, and leases that leave their GPUs unused.
//!
//! A lease with a time limit ends so long after its first grant, however it is renewed. `dxpu run` ends its program at the
//! limit; the ledger waits [`GRACE_MS`] longer, so that the program can write down its state.
//!
//! A GPU is at work if its box reports that kernels ran on it since the last report, that the memory in use changed, or if
//! the box cannot tell. A lease is idle since none of its GPUs was at work. This is known to the leading manager alone, and
//! a new leader counts from when it began to lead: a lease is given more time, never less.

use super::lease_life::LeaseEvent;
use super::{Ledger, Note, Presence};
use pool_api::{Counters, EventKind, GpuId, IdleLease, LeaseId, LeaseState, Plane, time_in_words};

/// What a program gets beyond its time limit to end by itself.
pub(super) const GRACE_MS: u64 = 15_000;

/// How often it is looked for leases that are idle for too long.
const LOOK_EVERY_MS: u64 = 1_000;

/// Whether a GPU did anything between two reports.
pub(super) fn is_at_work(before: Option<&Counters>, now: Option<&Counters>) -> bool {
    let Some(now) = now else { return true };
    let is_same_memory = before.is_some_and(|before| before.memory_used_bytes == now.memory_used_bytes);
    now.utilization_pct != Some(0) || !is_same_memory
}

impl Ledger {
    /// When this lease is ended, if it has a time limit and was granted.
    fn limit_at_ms(&self, id: LeaseId) -> Option<u64> {
        let lease = &self.leases.get(&id)?.lease;
        let limit_ms = lease.request.time_limit_ms?;
        Some(lease.granted_ms?.saturating_add(limit_ms).saturating_add(GRACE_MS))
    }

    /// A lease has its GPUs, now or again.
    pub(super) fn watch_time(&mut self, id: LeaseId) {
        self.at_work_ms.insert(id, self.now_ms);
        if let Some(at_ms) = self.limit_at_ms(id) {
            self.limits.insert((at_ms, id));
        }
    }

    /// A lease is over.
    pub(super) fn forget_time(&mut self, id: LeaseId) {
        self.at_work_ms.remove(&id);
        if let Some(at_ms) = self.limit_at_ms(id) {
            self.limits.remove(&(at_ms, id));
        }
    }

    /// Ends a lease whose time limit is over. Tells whether there was one.
    pub(super) fn end_at_limit(&mut self) -> bool {
        let Some(&(at_ms, id)) = self.limits.first().filter(|(at_ms, _)| *at_ms <= self.now_ms) else {
            return false;
        };
        self.limits.remove(&(at_ms, id));
        let Some(entry) = self.leases.get(&id).filter(|entry| entry.lease.state.is_live()) else {
            return true;
        };
        let tenant = entry.lease.tenant.clone();
        let limit = time_in_words(entry.lease.request.time_limit_ms.unwrap_or(0));
        let reason = format!("its time limit of {limit} is over");
        self.end(id, LeaseEvent::Expired, &reason);
        self.note(Note::new(EventKind::LeaseExpired, format!("{id} is over: {reason}")).lease(id, &tenant));
        true
    }

    /// Hears whether a GPU was at work since the last report.
    pub(super) fn hear_work(&mut self, gpu: &GpuId, before: Option<&Counters>, now: Option<&Counters>) {
        if !is_at_work(before, now) {
            return;
        }
        let now_ms = self.now_ms;
        let holders = self.entry(gpu).into_iter().flat_map(|entry| &entry.gpu.holders);
        for lease in holders.map(|holder| holder.lease).collect::<Vec<_>>() {
            self.at_work_ms.insert(lease, now_ms);
        }
    }

    /// For how long a granted lease has left its GPUs unused, if that is known: a box that is silent does not tell.
    fn idle_ms(&self, id: LeaseId) -> Option<u64> {
        let lease = &self.leases.get(&id)?.lease;
        let is_heard = |gpu: &GpuId| {
            self.boxes.get(&gpu.box_name).is_some_and(|owner| owner.presence == Presence::Ready)
        };
        let is_known = lease.state == LeaseState::Granted
            && lease.request.plane == Plane::Api
            && lease.moving.is_none()
            && lease.grants.iter().all(|grant| is_heard(&grant.gpu));
        let since_ms = self.at_work_ms.get(&id).filter(|_| is_known)?;
        Some(self.now_ms.saturating_sub(*since_ms))
    }

    /// Leases that have left their GPUs unused for at least so long, those that did so for longest first.
    pub fn idle_leases(&self, at_least_ms: u64) -> Vec<IdleLease> {
        let mut idle: Vec<IdleLease> = self
            .at_work_ms
            .keys()
            .filter_map(|id| {
                let idle_ms = self.idle_ms(*id).filter(|idle_ms| *idle_ms >= at_least_ms)?;
                Some(IdleLease { lease: *id, tenant: self.leases[id].lease.tenant.clone(), idle_ms })
            })
            .collect();
        idle.sort_by_key(|idle| (std::cmp::Reverse(idle.idle_ms), idle.lease));
        idle
    }

    /// Ends or suspends one lease that is idle for longer than its tenant allows. Tells whether there was one.
    pub(super) fn reclaim_idle(&mut self) -> bool {
        let limit_of = |id: &LeaseId| {
            let lease = &self.leases.get(id)?.lease;
            self.tenants.get(&lease.tenant)?.record.times.idle_limit_ms
        };
        if self.now_ms < self.idle_look_ms
            || self.tenants.values().all(|tenant| tenant.record.times.idle_limit_ms.is_none())
        {
            return false;
        }
        let is_over = |id: &&LeaseId| {
            let is_asked = self.leases.get(*id).is_some_and(|entry| entry.lease.suspend_wanted);
            !is_asked
                && limit_of(id).is_some_and(|limit_ms| self.idle_ms(**id).is_some_and(|ms| ms >= limit_ms))
        };
        let Some((id, limit_ms)) =
            self.at_work_ms.keys().find(is_over).and_then(|id| Some((*id, limit_of(id)?)))
        else {
            self.idle_look_ms = self.now_ms + LOOK_EVERY_MS;
            return false;
        };
        let lease = &self.leases[&id].lease;
        let (tenant, survives) = (lease.tenant.clone(), !lease.request.survive.is_none());
        let limit = time_in_words(limit_ms);
        if survives && self.suspend(id).is_ok() {
            let message = format!("{id} is to be suspended: its GPUs computed nothing for {limit}");
            self.note(Note::new(EventKind::LeaseReclaimed, message).lease(id, &tenant));
            return true;
        }
        let reason = format!("its GPUs computed nothing for {limit}, the idle limit of tenant {tenant}");
        self.end(id, LeaseEvent::Reclaimed, &format!("reclaimed: {reason}"));
        self.note(
            Note::new(EventKind::LeaseReclaimed, format!("{id} was ended: {reason}")).lease(id, &tenant),
        );
        true
    }
}
