//! What the pool has for a tenant, and how much GPU time each tenant has used.
//!
//! A lease is accounted when it ends, in the transaction that ends it: so its time is counted once, whichever manager leads.

use super::Ledger;
use crate::GPU_MILLI;
use pool_api::{Capacity, Class, Lease, LeaseState, Model, Name, TenantUsage};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

/// GPU milliseconds of a lease from its first grant until `until_ms`, with the model that they are of.
fn gpu_ms(lease: &Lease, until_ms: u64) -> Option<(Model, u64)> {
    // A guest has what others leave of a GPU, and its tenant is charged nothing for it.
    let whole = if lease.request.class == Class::Offline { 0 } else { GPU_MILLI };
    let milli = lease.request.share.map_or(whole, |share| share.milli);
    let had_ms = until_ms.saturating_sub(lease.granted_ms?);
    let whole =
        u128::from(had_ms) * u128::from(lease.request.gpus) * u128::from(milli) / u128::from(GPU_MILLI);
    Some((lease.model.clone()?, u64::try_from(whole).unwrap_or(u64::MAX)))
}

impl Ledger {
    /// Adds a lease that ends now to what its tenant has used.
    pub(super) fn account(&mut self, id: pool_api::LeaseId) {
        let Some(entry) = self.leases.get(&id) else { return };
        let Some((model, used_ms)) = gpu_ms(&entry.lease, self.now_ms) else { return };
        let tenant = entry.lease.tenant.clone();
        let since_ms = entry.lease.granted_ms.unwrap_or(self.now_ms);
        let usage = self.usage.entry(tenant.clone()).or_insert_with(|| none_yet(&tenant, since_ms));
        usage.leases_ended += 1;
        let sum = usage.ended_gpu_ms.entry(model).or_default();
        *sum = sum.saturating_add(used_ms);
        self.draft.usage.insert(tenant);
    }

    /// The GPU time of the tenants after this one that have used any.
    pub fn usage(&self, after: Option<&Name>) -> Vec<TenantUsage> {
        let start = after.map_or(Unbounded, Excluded);
        let mut all = self.usage.clone();
        for entry in self.leases.values().filter(|entry| entry.lease.state == LeaseState::Granted) {
            let Some((model, used_ms)) = gpu_ms(&entry.lease, self.now_ms) else { continue };
            let tenant = &entry.lease.tenant;
            let since_ms = entry.lease.granted_ms.unwrap_or(self.now_ms);
            let usage = all.entry(tenant.clone()).or_insert_with(|| none_yet(tenant, since_ms));
            *usage.running_gpu_ms.entry(model).or_default() += used_ms;
        }
        all.range((start, Unbounded)).map(|(_, usage)| usage.clone()).collect()
    }

    /// What there is of each model, and what a lease of this tenant could have of it now.
    pub fn capacity(&self, tenant: Option<&Name>) -> Vec<Capacity> {
        let models: BTreeSet<&Model> =
            self.stock.classes().iter().filter(|class| class.api).map(|class| &class.model).collect();
        let of_model = |model: &Model| {
            let mask = self.stock.mask(|class| class.api && class.model == *model && class.seat.is_whole());
            let parts = self.parts_of_model(model);
            let (free, spares) = (self.stock.usable(mask), self.stock.spares(mask));
            let quota = tenant
                .and_then(|tenant| self.tenants.get(tenant)?.record.quotas.get(model).copied())
                .unwrap_or_default();
            let used_milli = tenant.map_or(0, |tenant| self.used_milli(tenant, model));
            let room = quota.limit.map_or(u64::MAX, |limit| {
                (u64::from(limit) * u64::from(GPU_MILLI)).saturating_sub(used_milli) / u64::from(GPU_MILLI)
            });
            Capacity {
                model: model.clone(),
                working: self.stock.present(mask) + parts.gpus,
                free,
                spares,
                used_milli,
                guaranteed: quota.guaranteed,
                limit: quota.limit,
                parts_milli: parts.milli,
                parts_free_milli: parts.free_milli,
                available: free.min(room).min(u64::from(pool_api::GPUS_PER_LEASE_MAX)),
            }
        };
        models.into_iter().map(of_model).collect()
    }
}

fn none_yet(tenant: &Name, since_ms: u64) -> TenantUsage {
    TenantUsage {
        tenant: tenant.clone(),
        since_ms,
        leases_ended: 0,
        ended_gpu_ms: Default::default(),
        running_gpu_ms: Default::default(),
    }
}
