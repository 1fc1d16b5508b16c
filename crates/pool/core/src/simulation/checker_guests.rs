//! What must never be between a GPU and the seat for guests on it.

use super::checker::Checker;
use pool_api::{Class, FIRST_GUEST_SLOT, Gpu, GpuId, GpuState, Lease, LeaseId, LeaseState};

impl Checker {
    /// After each commit: a guest has its seat beside a free GPU or an online lease, and beside a tenant that it may meet. A
    /// lease that wants a GPU alone has it alone.
    pub(super) fn check_seats(&mut self) {
        let mut wrong = Vec::new();
        for seat in self.gpus.values().filter(|gpu| gpu.guest.is_some()) {
            let Some(host) = self.host_of(seat) else { continue };
            let guests: Vec<LeaseId> = match seat.state {
                GpuState::Leased => seat.holders.iter().map(|holder| holder.lease).collect(),
                _ => Vec::new(),
            };
            if guests.iter().any(|guest| self.class(*guest) != Some(Class::Offline)) {
                wrong.push(format!("{} is a seat, and {guests:?} are no guests", seat.id));
            }
            if host.state != GpuState::Leased {
                continue;
            }
            for holder in host.holders.iter().filter(|holder| self.class(holder.lease) == Some(Class::Online))
            {
                let is_promised_twice = seat.guest.is_some_and(|guest| guest.overcommit);
                let kept_bytes = if is_promised_twice { 0 } else { seat.memory_bytes };
                if holder.memory_bytes + kept_bytes != host.memory_bytes {
                    wrong.push(format!(
                        "{} has another amount of memory beside {}: {holder:?}",
                        host.id, seat.id
                    ));
                }
            }
            let is_alone = host.holders.iter().any(|holder| self.class(holder.lease) != Some(Class::Online));
            if is_alone && (!guests.is_empty() || self.sessions.contains_key(&seat.id)) {
                wrong.push(format!("{} has a guest beside a lease that wants it alone: {host:?}", seat.id));
            }
            let strangers = seat.guest.is_some_and(|guest| guest.any_tenant);
            let tenant = |lease: &LeaseId| self.leases.get(lease).map(|lease| &lease.tenant);
            let meets =
                |guest: &LeaseId| host.holders.iter().all(|holder| tenant(&holder.lease) == tenant(guest));
            if !strangers && !guests.iter().all(meets) {
                wrong.push(format!("{} has a guest beside a stranger", seat.id));
            }
        }
        wrong.into_iter().for_each(|what| self.violation(what));
    }

    fn host_of(&self, seat: &Gpu) -> Option<&Gpu> {
        self.gpus.get(&GpuId { slot: seat.guest?.of, ..seat.id.clone() })
    }

    fn class(&self, lease: LeaseId) -> Option<Class> {
        self.leases.get(&lease).map(|lease| lease.request.class)
    }

    /// A box has let a lease in: the lease that has the GPU and the one in its seat may be there together.
    pub(super) fn check_company(&mut self, gpu: &GpuId) {
        let (host, seat) = match gpu.slot.checked_sub(FIRST_GUEST_SLOT) {
            Some(slot) => (GpuId { slot, ..gpu.clone() }, gpu.clone()),
            None => (gpu.clone(), GpuId { slot: gpu.slot + FIRST_GUEST_SLOT, ..gpu.clone() }),
        };
        let Some(guest) = self.sessions.get(&seat).copied() else { return };
        self.guests += u64::from(*gpu == seat);
        let Some(holder) = self.sessions.get(&host).copied() else { return };
        self.meetings += 1;
        if self.class(holder.lease) == Some(Class::Dedicated) {
            let (holder, guest) = (holder.lease, guest.lease);
            self.violation(format!("{host}: {holder} is in beside a lease that wants it alone: {guest}"));
        }
    }

    /// A guest that loses its seat is told from which, and why. One that gave its seat back itself, or goes on in another one
    /// by itself, knows.
    pub(super) fn check_guest_is_told(&mut self, before: &Lease, after: &Lease) {
        let is_guest = before.request.class == Class::Offline && after.state.is_live();
        let Some(seat) = before.grants.first().filter(|_| is_guest) else { return };
        let is_it = |grant: &pool_api::Grant| grant.gpu == seat.gpu && grant.epoch == seat.epoch;
        if after.grants.iter().any(is_it) {
            return;
        }
        let last = after.moves.iter().rev().find(|moved| moved.from == seat.gpu);
        let (is_new, why) = (after.version > before.version, last.map_or("", |moved| &moved.reason));
        let (is_needed, is_unseated) = (why.contains("needed as a whole"), after.is_unseated());
        self.evictions += u64::from(is_needed && !is_unseated);
        self.suspensions += u64::from(is_needed && is_unseated);
        // A commit may show several changes at once: a guest that was parked and resumed may wait again, or have another seat.
        let may_have_parked = !after.request.survive.is_none() && !is_unseated;
        let knows = may_have_parked && (after.parking.is_some() || after.state != LeaseState::Pending);
        if !is_new || (why.is_empty() && !knows) {
            self.violation(format!("guest {} left {} and was not told: {after:?}", after.id, seat.gpu));
        }
    }
}
