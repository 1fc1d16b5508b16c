//! The borrower's word that a GPU is lost.
//!
//! A box that dies says nothing: by its silence alone the ledger knows after `dead_after_ms`. The borrower knows as soon
//! as its session breaks. So the ledger believes the borrower of a lease whose program can go on elsewhere, and moves the
//! lease at once. The old GPU is cleaned and lent again, not condemned: only its box or an operator can say that it is
//! bad. Epochs keep two holders apart as always, so a wrong word costs a cleaning and a recovery.
//!
//! A program that is wrong again and again would move through the whole pool. So the ledger follows two words an hour of
//! a lease that no box has confirmed; after that the word of the box counts alone.

use super::command::{Answer, Refusal};
use super::moves::Why;
use super::queue::Wish;
use super::stock::Place;
use super::{Ledger, Presence};
use pool_api::{GpuId, GpuState, Grant, Lease, LeaseId, LeaseState, LossAnswer, Verdict};

/// Words of one lease that are followed before a box has confirmed one of them.
pub(super) const UNCONFIRMED_WORDS_MAX: usize = 2;
/// For how long a word counts.
pub(super) const WORD_COUNTS_MS: u64 = 3_600_000;

impl Ledger {
    /// A live lease whose programs outlive losses.
    pub(super) fn surviving(&self, id: LeaseId) -> Result<&Lease, Refusal> {
        let lease = &*self.leases.get(&id).ok_or(Refusal::NoLease { lease: id })?.lease;
        if !lease.state.is_live() {
            let reason = lease.ended.as_ref().map_or_else(String::new, |ended| ended.reason.clone());
            return Err(Refusal::LeaseOver { lease: id, reason });
        }
        if lease.request.survive.is_none() {
            return Err(Refusal::NotSurviving { lease: id });
        }
        Ok(lease)
    }

    /// A live lease as it is now. What its keeper says also says that the borrower lives.
    pub(super) fn heard_of(&mut self, id: LeaseId) -> Answer {
        self.extend(id);
        self.show(id)
    }

    pub(super) fn lost(
        &mut self,
        id: LeaseId,
        gpu: &GpuId,
        epoch: u64,
        why: &str,
    ) -> Result<Answer, Refusal> {
        let lease = self.surviving(id)?;
        #[cfg(test)]
        let is_old_followed = self.mutated(crate::simulation::Mutation::FollowOldWords);
        #[cfg(not(test))]
        let is_old_followed = false;
        let is_meant = |grant: &Grant| grant.gpu == *gpu && (grant.epoch == epoch || is_old_followed);
        let grant = lease.grants.iter().find(|grant| is_meant(grant)).cloned();
        let moving = lease.moving.clone();
        if moving.as_ref().is_some_and(|moving| is_meant(&moving.to)) {
            self.leave_second_place(id, why);
            return Ok(self.loss(
                id,
                Verdict::Known,
                format!("{gpu} is given back; the lease has its first place"),
            ));
        }
        let Some(grant) = grant.filter(|_| lease.state == LeaseState::Granted) else {
            let message = format!("the lease does not have {gpu} under epoch {epoch} any more");
            return Ok(self.loss(id, Verdict::Known, message));
        };
        let is_confirmed = !self.is_alive(&grant, id);
        let reason = if is_confirmed { self.why_lost(&grant) } else { in_words(why) };
        let why = Why { reason, said_by_borrower: !is_confirmed, is_planned: false };
        if moving.is_some_and(|moving| moving.from == *gpu && moving.from_epoch == epoch) {
            self.arrive(id, &why);
            return Ok(self.loss(id, Verdict::Moved, "the lease has its second place alone now"));
        }
        if !is_confirmed && self.unconfirmed_words(id) >= UNCONFIRMED_WORDS_MAX {
            let message = format!(
                "{UNCONFIRMED_WORDS_MAX} words of this lease within an hour were confirmed by no box, so the lease \
                 stays on {gpu} until its box says that it is lost"
            );
            return Ok(self.loss(id, Verdict::BoxDecides, message));
        }
        self.unbind(&grant, id, false);
        let lost = [grant];
        let found = self.find_elsewhere(id, &lost[0]).map(|place| vec![place]);
        let found = found.or_else(|| self.find_replacements(id, &lost, true));
        self.exchange_or_requeue(id, &lost, found, &[why]);
        let is_granted = self.leases[&id].lease.state == LeaseState::Granted;
        let message =
            if is_granted { "the lease has another GPU" } else { "the lease waits for another GPU" };
        Ok(self.loss(id, Verdict::Moved, message))
    }

    /// A GPU of the box that the lost one is in, where the image of the program is; unless the others of the lease tie it.
    fn find_elsewhere(&self, id: LeaseId, lost: &Grant) -> Option<Place> {
        let lease = &self.leases[&id].lease;
        let is_tied = lease.grants.len() > 1 && lease.request.topology != pool_api::Topology::Any;
        // A guest waits in the queue, behind those that its seat may be needed for.
        if is_tied || lease.request.class == pool_api::Class::Offline {
            return None;
        }
        let wish = Wish { lost: true, ..Wish::of(lease) };
        let need = wish.need(self.classes_for(&wish));
        self.stock.inside(&lost.gpu.box_name, &need)
    }

    /// How many of its borrower's words within the last hour no box has confirmed.
    fn unconfirmed_words(&self, id: LeaseId) -> usize {
        let moves = self.leases[&id].lease.moves.iter();
        let counts = |at_ms: u64| at_ms.saturating_add(WORD_COUNTS_MS) > self.now_ms;
        let words = moves.filter(|moved| moved.said_by_borrower && counts(moved.at_ms));
        words.filter(|moved| !self.is_known_to_be_lost(&moved.from)).count()
    }

    /// Whether the pool itself says that a GPU is bad, gone, or in a dead box.
    fn is_known_to_be_lost(&self, gpu: &GpuId) -> bool {
        let Some(owner) = self.boxes.get(&gpu.box_name) else { return true };
        let state = owner.slots.get(&gpu.slot).map(|entry| entry.gpu.state);
        owner.presence == Presence::Dead
            || matches!(state, None | Some(GpuState::Bad | GpuState::BurnIn | GpuState::Absent))
    }

    fn loss(&mut self, id: LeaseId, verdict: Verdict, message: impl Into<String>) -> Answer {
        self.extend(id);
        let lease = Lease::clone(&self.leases[&id].lease);
        Answer::Loss(Box::new(LossAnswer { lease, verdict, message: message.into() }))
    }
}

fn in_words(why: &str) -> String {
    if why.is_empty() {
        "its borrower says that it is lost".to_owned()
    } else {
        format!("its borrower says that it is lost: {why}")
    }
}
