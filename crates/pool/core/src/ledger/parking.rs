//! Leases that give their GPUs back for a while.
//!
//! ```text
//!   granted ──suspend──▶ granted, suspend_wanted ──park──▶ parked ──resume──▶ pending ──served──▶ granted
//!                              │ keep_running                │ released, expired
//!                              ▼                             ▼
//!                           granted                        ended
//! ```
//!
//! The program's keeper sees that a suspension is wanted, has the program end its session with a safe image, and says so:
//! only then the ledger takes the GPUs. A keeper may park without being asked, when its program is idle. A parked lease
//! lives as long as it is renewed. When it asks for GPUs again it waits like a new lease, and has no claim to spares. A guest
//! that is parked because its seat was needed asks at once and by itself: see `leaving_guests.rs`.

use super::command::{Answer, Refusal};
use super::lease_life::LeaseEvent;
use super::moving::state_in_words;
use super::{Ledger, Note};
use pool_api::{EventKind, GpuId, LeaseId, LeaseState, Parking};

impl Ledger {
    pub(super) fn suspend(&mut self, id: LeaseId) -> Result<Answer, Refusal> {
        let lease = self.surviving(id)?;
        match lease.state {
            LeaseState::Parked => {}
            LeaseState::Granted => {
                if let Some(moving) = &lease.moving {
                    return Err(Refusal::AlreadyMoving { lease: id, gpu: moving.to.gpu.clone() });
                }
                self.suspend_for_good(id);
                self.set_suspend_wanted(id, true);
            }
            state => return Err(Refusal::NotGranted { lease: id, state: state_in_words(state) }),
        }
        Ok(self.show(id))
    }

    pub(super) fn set_suspend_wanted(&mut self, id: LeaseId, wanted: bool) {
        let lease = &mut self.leases.get_mut(&id).expect("the caller has looked").lease;
        if lease.suspend_wanted != wanted {
            *lease.edit().suspend_wanted = wanted;
            *lease.edit().version += 1;
            self.draft.leases.insert(id);
        }
    }

    pub(super) fn park(
        &mut self,
        id: LeaseId,
        gpu: &GpuId,
        epoch: u64,
        image_bytes: u64,
    ) -> Result<Answer, Refusal> {
        let lease = self.surviving(id)?;
        if lease.state == LeaseState::Parked {
            return Ok(self.heard_of(id));
        }
        // A word that is late must not park a program that runs again.
        if !lease.grants.iter().any(|grant| grant.gpu == *gpu && grant.epoch == epoch) {
            return Err(Refusal::NotItsGpu { lease: id, gpu: gpu.clone(), epoch: Some(epoch) });
        }
        let notice = self.take_notice(id);
        self.drop_second_place(id);
        let grants = self.leases[&id].lease.grants.clone();
        for grant in &grants {
            self.unbind(grant, id, false);
        }
        let since_ms = self.now_ms;
        let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
        lease.on(LeaseEvent::Parked);
        lease.edit().grants.clear();
        *lease.edit().parking = Some(Parking { since_ms, image_bytes, queued_ms: None });
        *lease.edit().suspend_wanted = false;
        *lease.edit().version += 1;
        let tenant = lease.tenant.clone();
        let entry = self.tenant(&tenant);
        entry.granted = entry.granted.saturating_sub(1);
        self.unsettled.remove(&id);
        self.forget_way(id);
        self.draft.leases.insert(id);
        let message = format!("{id} is parked with {image_bytes} bytes; its GPUs are given back");
        self.note(Note::new(EventKind::LeaseParked, message).lease(id, &tenant));
        if let Some(notice) = notice {
            self.wait_for_a_seat(id, notice);
        }
        Ok(self.heard_of(id))
    }

    pub(super) fn keep_running(&mut self, id: LeaseId, why: &str) -> Result<Answer, Refusal> {
        let lease = self.surviving(id)?;
        if lease.suspend_wanted {
            let tenant = lease.tenant.clone();
            self.set_suspend_wanted(id, false);
            let message = format!("{id} cannot be parked now: {why}");
            self.note(Note::new(EventKind::LeaseStayed, message).lease(id, &tenant));
            self.guest_refuses(id, why);
        }
        Ok(self.heard_of(id))
    }

    pub(super) fn resume(&mut self, id: LeaseId) -> Result<Answer, Refusal> {
        match self.surviving(id)?.state {
            LeaseState::Parked => {
                let now_ms = self.now_ms;
                let lease = &mut self.leases.get_mut(&id).expect("it is there").lease;
                lease.on(LeaseEvent::Unparked);
                if let Some(parking) = lease.edit().parking {
                    parking.queued_ms = Some(now_ms);
                }
                *lease.edit().version += 1;
                let tenant = lease.tenant.clone();
                self.draft.leases.insert(id);
                self.enqueue(id);
                let message = format!("{id} is resumed and waits for {}", self.wish(id));
                self.note(Note::new(EventKind::LeaseUnparked, message).lease(id, &tenant));
            }
            // Its seat is needed, whatever its program wants.
            LeaseState::Granted if self.is_noticed(id) => {}
            LeaseState::Granted => self.set_suspend_wanted(id, false),
            LeaseState::Pending | LeaseState::Releasing | LeaseState::Ended => {}
        }
        Ok(self.heard_of(id))
    }
}
