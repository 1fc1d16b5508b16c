//! One session's account with the ledger: charges that end by themselves, and credit.
//!
//! **Credit.** A client that allocates without awaiting the answer must know that the allocation cannot fail. So the
//! session sets memory aside and tells the client how much. Both count alike: *every* allocation command (allocate, stream-
//! ordered allocate outside graphs, create physical memory), awaited or not, successful or not, draws its bytes from the
//! credit, and the credit may become negative. A client sends an allocation one-way only if its own count of the credit
//! covers it. Its count is never above ours, because grants travel towards it and allocations travel in order; so what it
//! counts on is set aside here.

use crate::{
    ledger::MemoryLedger,
    sync::{Lock, lock},
};
use std::sync::Arc;

/// What is set aside for a session on each device, when there is as much: enough for the small allocations of a start,
/// small against any device.
const CREDIT_TARGET: u64 = 64 << 20;

/// The credit is at most this part of what is free, so that many idle sessions do not lock up a device.
const CREDIT_PART: u64 = 16;

/// A session's account.
pub(crate) struct Account {
    ledger: Arc<dyn MemoryLedger>,
    devices: usize,
    credit: Lock<i64>,
}

/// Memory that is charged as long as this lives.
pub(crate) struct Charge {
    account: Arc<Account>,
    device: usize,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.ledger.release(self.device, self.bytes);
    }
}

impl Account {
    pub(crate) fn new(ledger: Arc<dyn MemoryLedger>, devices: usize) -> Arc<Self> {
        Arc::new(Self { ledger, devices, credit: Lock::new(0) })
    }

    /// Draws `bytes` from the credit and charges them to `device`. Set-aside bytes turn into charged ones; only what
    /// they do not cover is charged anew. The other devices get their set-aside bytes back.
    pub(crate) fn charge_from_credit(self: &Arc<Self>, device: usize, bytes: u64) -> Option<Charge> {
        let mut credit = lock(&self.credit);
        let drawn = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = credit.max(0) as u64;
        *credit = credit.saturating_sub(drawn);
        let set_free = before - credit.max(0) as u64;
        // On the device itself the set-aside bytes turn into charged ones without being free in between.
        let charged = set_free >= bytes || self.ledger.charge(device, bytes - set_free);
        for other in 0..self.devices {
            if other != device || !charged {
                self.ledger.release(other, set_free);
            }
        }
        charged.then(|| Charge { account: self.clone(), device, bytes })
    }

    /// Charges without touching the credit.
    pub(crate) fn charge(self: &Arc<Self>, device: usize, bytes: u64) -> Option<Charge> {
        self.ledger.charge(device, bytes).then(|| Charge { account: self.clone(), device, bytes })
    }

    /// Raises the credit towards its target; says by how much.
    pub(crate) fn grant(&self) -> u64 {
        let mut credit = lock(&self.credit);
        let set_aside = credit.max(0) as u64;
        let free = (0..self.devices).map(|device| self.free_for_others(device)).min().unwrap_or(0);
        let target = CREDIT_TARGET.min(free / CREDIT_PART);
        // Small raises are not worth a field in a reply.
        if target <= set_aside || target - set_aside < target / 4 {
            return 0;
        }
        let more = target - set_aside;
        for device in 0..self.devices {
            if !self.ledger.charge(device, more) {
                (0..device).for_each(|device| self.ledger.release(device, more));
                return 0;
            }
        }
        let granted = target as i64 - *credit;
        *credit = target as i64;
        granted as u64
    }

    /// `(free, total)` of a device as this session sees it.
    pub(crate) fn info(&self, device: usize) -> (u64, u64) {
        let set_aside = (*lock(&self.credit)).max(0) as u64;
        let total = self.ledger.total(device);
        (self.free_for_others(device).saturating_add(set_aside).min(total), total)
    }

    fn free_for_others(&self, device: usize) -> u64 {
        self.ledger.free(device)
    }
}

impl Account {
    /// Takes the credit back: the client is gone.
    pub(crate) fn settle(&self) {
        let set_aside = std::mem::take(&mut *lock(&self.credit)).max(0) as u64;
        (0..self.devices).for_each(|device| self.ledger.release(device, set_aside));
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::LocalLedger;
    use proptest::prelude::*;

    fn account(total: u64) -> (Arc<LocalLedger>, Arc<Account>) {
        let ledger = Arc::new(LocalLedger::new(&[total, total]));
        (ledger.clone(), Account::new(ledger, 2))
    }

    #[test]
    fn everything_is_given_back_at_the_end() {
        let (ledger, account) = account(4 << 30);
        assert_eq!(account.grant(), CREDIT_TARGET);
        let charge = account.charge_from_credit(1, 1 << 30).unwrap();
        assert_eq!((ledger.used(0), ledger.used(1)), (0, 1 << 30));
        drop(charge);
        account.grant();
        drop(account);
        assert_eq!((ledger.used(0), ledger.used(1)), (0, 0));
    }

    proptest! {
        /// A client that counts as the contract says, with grants that arrive late, never fails a one-way allocation,
        /// whatever another session takes meanwhile.
        #[test]
        fn what_the_client_counts_on_is_there(steps in proptest::collection::vec((0..4u8, 0u64..200 << 20), 1..200)) {
            let (ledger, account) = account(1 << 30);
            let mut client_credit = 0i64;
            let mut on_the_way = std::collections::VecDeque::new();
            let mut held = Vec::new();
            for (step, bytes) in steps {
                match step {
                    0 => on_the_way.push_back(account.grant()),
                    1 => client_credit += on_the_way.pop_front().unwrap_or(0) as i64,
                    2 => { ledger.charge(0, bytes); }
                    _ => {
                        let one_way = client_credit >= bytes as i64;
                        client_credit -= bytes as i64;
                        let charge = account.charge_from_credit((bytes % 2) as usize, bytes);
                        prop_assert!(charge.is_some() || !one_way);
                        held.extend(charge);
                        if bytes % 3 == 0 { held.clear(); }
                    }
                }
            }
        }
    }
}
