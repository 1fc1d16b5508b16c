//! Asking for leases, keeping them, giving them back.

use super::command::{Answer, Refusal};
use super::lease_life::{self, LeaseEvent, TrackedLease};
use super::queue::Wish;
use super::{LeaseEntry, Ledger, Note, keys};
use crate::{Dice, records};
use pool_api::{Ended, EventKind, Lease, LeaseId, LeaseRequest, LeaseState, Name, TenantRecord};

impl Ledger {
    pub(super) fn create_lease(
        &mut self,
        owner: &str,
        token: Option<&str>,
        tenant: &Name,
        request: &LeaseRequest,
        key: Option<&str>,
        dice: &mut dyn Dice,
    ) -> Result<Answer, Refusal> {
        request.check()?;
        let request = LeaseRequest { tenant: Some(tenant.clone()), ..request.clone() };
        let key = key.map(|key| {
            (
                keys::hash(&[owner.as_bytes(), key.as_bytes()]),
                keys::hash(&[&records::request_bytes(&request)]),
            )
        });
        if let Some((key, fingerprint)) = key
            && let Some(known) = self.keys.get(&key)
        {
            if known.request != fingerprint {
                return Err(Refusal::KeyUsed);
            }
            let lease = known.lease;
            return self.look(lease).map_err(|_| Refusal::KeyOver { lease });
        }
        self.check_ceilings(tenant, &request)?;
        self.check_room(tenant)?;
        self.check_possible(tenant, &Wish::asked(&request))?;

        // After the key's hash was made: a request that is sent again after a change of the tenant's settings is the same.
        let times = self.tenants.get(tenant).map(|entry| entry.record.times).unwrap_or_default();
        let request = LeaseRequest { time_limit_ms: times.limit_of(request.time_limit_ms), ..request };
        let id = self.new_id(dice);
        let now_ms = self.now_ms;
        let lease = Lease {
            id,
            tenant: tenant.clone(),
            owner: owner.to_owned(),
            token: token.map(str::to_owned),
            state: lease_life::FIRST,
            grants: Vec::new(),
            model: None,
            created_ms: now_ms,
            granted_ms: None,
            expires_ms: now_ms + request.ttl_ms,
            ended: None,
            moves: Vec::new(),
            moving: None,
            suspend_wanted: false,
            parking: None,
            version: 1,
            request,
        };
        let expires_ms = lease.expires_ms;
        let lease = TrackedLease::asked(lease);
        self.leases.insert(id, LeaseEntry { lease, stored_expires_ms: expires_ms });
        self.expiries.insert((expires_ms, id));
        self.draft.leases.insert(id);
        if let Some((key, fingerprint)) = key {
            self.keys.insert(key, id, fingerprint, now_ms);
            self.draft.keys.insert(key);
        }
        self.enqueue(id);
        // `tick` serves the other leases that can be served: one outcome has room for one grant.
        match self.next_in_line() {
            Some((next, places)) if next == id => self.serve(id, places),
            _ => {
                let message = format!("{id} waits for {}", self.wish(id));
                self.note(Note::new(EventKind::LeasePending, message).lease(id, tenant));
            }
        }
        Ok(self.show(id))
    }

    /// A tenant asks for no more than its operators allow. It is told rather than given less: what it has got would not
    /// be what it asked for.
    fn check_ceilings(&self, tenant: &Name, request: &LeaseRequest) -> Result<(), Refusal> {
        let record = self.tenants.get(tenant).map(|entry| entry.record.clone());
        let record = record.unwrap_or_else(|| TenantRecord::unspoken_of(tenant.clone()));
        if request.priority > record.priority_max {
            let (asked, limit) = (request.priority, record.priority_max);
            return Err(Refusal::PriorityTooHigh { tenant: tenant.clone(), asked, limit });
        }
        if request.ttl_ms > record.ttl_max_ms {
            let (asked_ms, limit_ms) = (request.ttl_ms, record.ttl_max_ms);
            return Err(Refusal::TtlTooLong { tenant: tenant.clone(), asked_ms, limit_ms });
        }
        if let (Some(asked_ms), Some(limit_ms)) = (request.time_limit_ms, record.times.limit_max_ms)
            && asked_ms > limit_ms
        {
            return Err(Refusal::TimeLimitTooLong { tenant: tenant.clone(), asked_ms, limit_ms });
        }
        Ok(())
    }

    fn check_room(&self, tenant: &Name) -> Result<(), Refusal> {
        let limit = self.settings.leases_max;
        if self.leases.len() - self.ended.len() >= limit {
            return Err(Refusal::TooManyLeases { limit });
        }
        let limit = self.settings.pending_per_tenant_max;
        if self.tenants.get(tenant).is_some_and(|entry| entry.pending >= limit as u64) {
            return Err(Refusal::TooManyPending { tenant: tenant.clone(), limit });
        }
        Ok(())
    }

    fn new_id(&self, dice: &mut dyn Dice) -> LeaseId {
        loop {
            let mut half = || u64::from(dice.below(1 << 31)) << 1 | u64::from(dice.below(2));
            let id = LeaseId(half() << 32 | half());
            if !self.leases.contains_key(&id) {
                return id;
            }
        }
    }

    /// What a lease asks for, in words.
    pub(super) fn wish(&self, id: LeaseId) -> String {
        let request = &self.leases[&id].lease.request;
        let model = request.model.as_ref().map_or("any model".to_owned(), ToString::to_string);
        let host = request.host.as_ref().map_or_else(String::new, |host| format!(" in host {host}"));
        if let [first, others @ ..] = request.gpu_ids.as_slice() {
            let more =
                if others.is_empty() { String::new() } else { format!(" and {} others", others.len()) };
            return format!("{first}{more}, which it names");
        }
        match &request.share {
            Some(share) => format!("{}/1000 of a GPU ({model})", share.milli),
            None if request.gpus == 1 => format!("1 GPU ({model}){host}"),
            None => format!("{} GPUs ({model}){host}", request.gpus),
        }
    }

    pub(super) fn show(&self, id: LeaseId) -> Answer {
        Answer::Lease(Box::new(Lease::clone(&self.leases[&id].lease)))
    }

    pub(super) fn renew(&mut self, id: LeaseId) -> Result<Answer, Refusal> {
        let entry = self.leases.get(&id).ok_or(Refusal::NoLease { lease: id })?;
        if !entry.lease.state.is_live() {
            let reason = entry.lease.ended.as_ref().map_or_else(String::new, |ended| ended.reason.clone());
            return Err(Refusal::LeaseOver { lease: id, reason });
        }
        self.extend(id);
        Ok(self.show(id))
    }

    pub(super) fn look(&mut self, id: LeaseId) -> Result<Answer, Refusal> {
        let entry = self.leases.get(&id).ok_or(Refusal::NoLease { lease: id })?;
        if entry.lease.state.is_live() {
            self.extend(id);
        }
        Ok(self.show(id))
    }

    /// Renews a lease for its whole time to live. The stored expiry lags behind by half of that at most.
    pub(super) fn extend(&mut self, id: LeaseId) {
        let entry = self.leases.get_mut(&id).expect("the caller has looked");
        let ttl_ms = entry.lease.request.ttl_ms;
        self.expiries.remove(&(entry.lease.expires_ms, id));
        *entry.lease.edit().expires_ms = entry.lease.expires_ms.max(self.now_ms + ttl_ms);
        self.expiries.insert((entry.lease.expires_ms, id));
        // `abs_diff`, since an earlier leader's clock may have been ahead.
        let lag_ms = entry.lease.expires_ms.abs_diff(entry.stored_expires_ms);
        if ttl_ms > self.settings.grace_ms && lag_ms > ttl_ms / 2 {
            self.draft.leases.insert(id);
        }
    }

    /// When a lease that was stored with this expiry really ends, for a leader that begins now.
    pub(super) fn expiry_after_load(&self, lease: &Lease) -> u64 {
        let ttl_ms = lease.request.ttl_ms;
        let grace_ms = self.settings.grace_ms.min(ttl_ms);
        let lag_ms = if ttl_ms > grace_ms { ttl_ms / 2 } else { 0 };
        // Never more than all of its time: an earlier leader's clock may have been hours ahead.
        (lease.expires_ms.saturating_add(lag_ms)).clamp(self.now_ms + grace_ms, self.now_ms + ttl_ms)
    }

    pub(super) fn release(&mut self, id: LeaseId, reason: &str) -> Result<Answer, Refusal> {
        let entry = self.leases.get(&id).ok_or(Refusal::NoLease { lease: id })?;
        if entry.lease.state.is_live() {
            let tenant = entry.lease.tenant.clone();
            self.end(id, LeaseEvent::Released, reason);
            self.note(
                Note::new(EventKind::LeaseReleased, format!("{id} is over: {reason}")).lease(id, &tenant),
            );
        }
        Ok(self.show(id))
    }

    pub(super) fn expire(&mut self, id: LeaseId) {
        let tenant = self.leases[&id].lease.tenant.clone();
        self.end(id, LeaseEvent::Expired, "expired");
        self.note(Note::new(EventKind::LeaseExpired, format!("{id} was not renewed")).lease(id, &tenant));
    }

    /// Ends a live lease by this event; its boxes clean its GPUs.
    pub(super) fn end(&mut self, id: LeaseId, event: LeaseEvent, reason: &str) {
        let now_ms = self.now_ms;
        let was = self.leases[&id].lease.state;
        if was == LeaseState::Pending {
            self.dequeue(id);
        }
        let entry = self.leases.get_mut(&id).expect("the caller has looked");
        self.expiries.remove(&(entry.lease.expires_ms, id));
        let lease = &mut entry.lease;
        lease.on(event);
        *lease.edit().ended = Some(Ended { at_ms: now_ms, reason: reason.to_owned() });
        *lease.edit().version += 1;
        // Its second place is cleaned like the others.
        if let Some(moving) = lease.edit().moving.take() {
            lease.edit().grants.push(moving.to);
        }
        *lease.edit().suspend_wanted = false;
        let grants = lease.grants.clone();
        let tenant = lease.tenant.clone();
        self.unsettled.remove(&id);
        self.forget_time(id);
        self.forget_way(id);
        if was == LeaseState::Granted {
            let entry = self.tenant(&tenant);
            entry.granted = entry.granted.saturating_sub(1);
        }
        for grant in &grants {
            let lingers = self.is_alive(grant, id);
            self.unbind(grant, id, lingers);
            self.show_unplugging(grant, id);
            if !lingers {
                let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
                lease.edit().grants.retain(|kept| kept != grant);
            }
        }
        self.account(id);
        self.draft.leases.insert(id);
        self.let_go(id);
        self.end_if_clean(id);
    }

    pub(super) fn end_if_clean(&mut self, id: LeaseId) {
        let entry = self.leases.get_mut(&id).expect("the caller has looked");
        if entry.lease.state == LeaseState::Releasing && entry.lease.grants.is_empty() {
            entry.lease.on(LeaseEvent::Emptied);
            *entry.lease.edit().version += 1;
            self.ended.insert((self.now_ms, id));
        }
    }
}
