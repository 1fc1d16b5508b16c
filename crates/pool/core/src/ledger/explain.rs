//! Why a lease is pending, and what would let it run.

use super::attach::speaks_pcie;
use super::boxes::{BoxEntry, is_clean};
use super::queue::{GroupKey, Wish};
use super::{Ledger, Refusal};
use pool_api::{
    BoxKind, Explanation, Filter, FilterCount, Gpu, GpuState, Lease, LeaseId, LeaseState, Model, Name,
    Topology,
};
use std::collections::{BTreeMap, BTreeSet};

impl Ledger {
    /// Explains a lease. Looks at every GPU, so call it only when a user asks.
    pub fn explain(&self, id: LeaseId) -> Result<Explanation, Refusal> {
        let lease = self.lease(id).ok_or(Refusal::NoLease { lease: id })?;
        let mut answer = Explanation {
            lease: id,
            state: lease.state,
            ahead: 0,
            filters: Vec::new(),
            reasons: Vec::new(),
            remedies: Vec::new(),
        };
        match lease.state {
            LeaseState::Granted => {
                answer.reasons.push("it has what it asked for".into());
                self.explain_attachments(lease, &mut answer);
            }
            LeaseState::Releasing => answer.reasons.push("it is over, and its GPUs are being cleaned".into()),
            LeaseState::Ended => {
                let reason = lease.ended.as_ref().map_or("", |ended| &ended.reason);
                answer.reasons.push(format!("it is over: {reason}"));
            }
            LeaseState::Pending => self.explain_pending(lease, &mut answer),
        }
        Ok(answer)
    }

    fn explain_pending(&self, lease: &Lease, answer: &mut Explanation) {
        let wish = Wish::of(lease);
        let counts = self.count_filters(&lease.tenant, &wish);
        answer.filters = counts.iter().map(|(&filter, &gpus)| FilterCount { filter, gpus }).collect();
        let count = |filter| counts.get(&filter).copied().unwrap_or(0);

        if let Some(last) = lease.moves.last().filter(|_| wish.lost) {
            answer.reasons.push(format!("it lost {}: {}", last.from, last.reason));
        }
        self.explain_host(&lease.tenant, &wish, answer);
        self.explain_quota(&lease.tenant, &wish, answer);
        self.explain_stock(&wish, &counts, answer);
        self.explain_queue(lease, answer);
        for (filter, what) in [
            (Filter::Cleaning, "being cleaned and may be free in a moment"),
            (Filter::NotReady, "not ready yet (`dxpu gpu ls` says why)"),
            (Filter::BoxState, "in boxes that are silent, dead or drained"),
        ] {
            if count(filter) > 0 {
                answer.remedies.push(format!("{} GPUs that would do are {what}", count(filter)));
            }
        }
        for (filter, what) in [
            (Filter::Taint, "untaint one of the {} GPUs that would do"),
            (Filter::Health, "repair one of the {} GPUs that would do"),
            (Filter::Spare, "hold back fewer spares: {} GPUs that would do are spares"),
        ] {
            if count(filter) > 0 {
                answer.remedies.push(what.replace("{}", &count(filter).to_string()));
            }
        }
    }

    /// At which filter each GPU falls out.
    fn count_filters(&self, tenant: &Name, wish: &Wish) -> BTreeMap<Filter, u64> {
        let mut counts = BTreeMap::new();
        let mut usable = 0;
        for owner in self.boxes.values() {
            for entry in owner.slots.values() {
                let filter = self.filter(owner, &entry.gpu, tenant, wish);
                if filter == Filter::Usable {
                    usable += 1;
                } else {
                    *counts.entry(filter).or_default() += 1;
                }
            }
        }
        if usable > 0 {
            // They are there and it still waits: they are not together, not enough, or others come first.
            let open = self.open_classes(tenant, wish);
            let enough = self.could_serve(wish, open);
            counts.insert(if enough { Filter::Usable } else { Filter::Topology }, usable);
        }
        counts
    }

    fn could_serve(&self, wish: &Wish, open: super::stock::Mask) -> bool {
        let mut stock = self.stock.clone();
        stock.choose(&wish.need(open), &mut self.unused_dice.clone()).is_some()
    }

    fn filter(&self, owner: &BoxEntry, gpu: &Gpu, tenant: &Name, wish: &Wish) -> Filter {
        match gpu.state {
            _ if !wish.accepts_model(&gpu.model) => Filter::Model,
            _ if !wish.accepts_memory(gpu.memory_bytes) => Filter::Memory,
            _ if !wish.accepts_kind(owner.record.kind) => Filter::Kind,
            _ if !wish.accepts_plane(speaks_pcie(&owner.record.paths), !gpu.only_pcie) => Filter::Plane,
            GpuState::Bad | GpuState::BurnIn | GpuState::Absent => Filter::Health,
            _ if !gpu.health.ok => Filter::Health,
            _ if !owner.takes_leases() => Filter::BoxState,
            _ if gpu.taint.is_some() => Filter::Taint,
            GpuState::Leased => Filter::Leased,
            GpuState::Cleaning => Filter::Cleaning,
            GpuState::Free if !is_clean(gpu) || !gpu.holders.is_empty() => Filter::Cleaning,
            GpuState::Free if gpu.unready.is_some() => Filter::NotReady,
            GpuState::Free if gpu.spare && !wish.lost => Filter::Spare,
            GpuState::Free if !self.is_within_limit(tenant, wish, &gpu.model) => Filter::Quota,
            GpuState::Free => Filter::Usable,
        }
    }

    fn explain_quota(&self, tenant: &Name, wish: &Wish, answer: &mut Explanation) {
        let classes = self.stock.classes().iter().filter(|class| wish.accepts(class));
        let models: BTreeSet<&Model> = classes.map(|class| &class.model).collect();
        for model in models {
            if self.is_within_limit(tenant, wish, model) {
                continue;
            }
            let entry = self.tenants.get(tenant);
            let limit = entry.and_then(|entry| entry.record.quotas.get(model)?.limit).unwrap_or(0);
            let used = entry.and_then(|entry| entry.used.get(model)).map_or(0, |used| used.milli);
            let used = thousandths(used);
            answer.reasons.push(format!("quota of tenant {tenant} for {model} is {limit}, {used} used"));
            answer.remedies.push(format!(
                "release a lease of tenant {tenant} on {model}, or raise its limit of {limit}"
            ));
        }
    }

    fn explain_stock(&self, wish: &Wish, counts: &BTreeMap<Filter, u64>, answer: &mut Explanation) {
        let what = describe(wish);
        let classes = self.stock.mask(|class| wish.accepts(class));
        if classes == 0 {
            answer.reasons.push(format!("the pool has no {what}"));
            answer.remedies.push(format!("add a box with {what}, or ask for something else"));
            return;
        }
        let need = wish.need(classes);
        if !self.stock.feasible(&need) {
            let most = match need.tightness {
                super::stock::Tightness::Anywhere => "in the whole pool".to_owned(),
                _ => format!("together: {} at most", self.stock.present_together(classes)),
            };
            answer
                .reasons
                .push(format!("there are not {} {what} {most}, even if no other lease had any", wish.gpus));
            return;
        }
        let (have, together) = match need.tightness {
            super::stock::Tightness::Anywhere => (self.stock.usable(classes), ""),
            super::stock::Tightness::OneBox => {
                (u64::from(self.stock.usable_together(classes)), " in one box")
            }
            super::stock::Tightness::OneBin => {
                (u64::from(self.stock.usable_together(classes)), " in one nvlink box")
            }
        };
        let asked = u64::from(wish.gpus);
        if have < asked {
            let leased = counts.get(&Filter::Leased).copied().unwrap_or(0);
            answer.reasons.push(format!("{have} of {asked} {what} are free{together}; {leased} are leased"));
            answer.remedies.push(format!("{} more {what} free{together}", asked - have));
        }
    }

    fn explain_queue(&self, lease: &Lease, answer: &mut Explanation) {
        let own = GroupKey::of(lease);
        let own_mask = self.stock.mask(|class| own.wish.accepts(class));
        let is_promised = |key: &GroupKey| self.promised_classes(&key.tenant, &key.wish, 0) != 0;
        let level = |key: &GroupKey| (!is_promised(key), key.priority);
        let own_level = level(&own);
        let (mut promised, mut higher, mut equal) = (0, 0, 0);
        for (key, group) in self.queue.groups() {
            let competes = own_mask == 0 || self.stock.mask(|class| key.wish.accepts(class)) & own_mask != 0;
            if !competes {
                continue;
            }
            match level(key).cmp(&own_level) {
                std::cmp::Ordering::Less if own_level.0 && is_promised(key) => promised += group.len() as u64,
                std::cmp::Ordering::Less => higher += group.len() as u64,
                std::cmp::Ordering::Equal => {
                    equal += group.range(..(lease.created_ms, lease.id)).count() as u64;
                }
                std::cmp::Ordering::Greater => {}
            }
        }
        answer.ahead = promised + higher + equal;
        if promised > 0 {
            answer.reasons.push(format!("waits behind {promised} leases of tenants below their guarantee"));
        }
        if higher > 0 {
            answer.reasons.push(format!("waits behind {higher} leases of higher priority"));
        }
        if equal > 0 {
            answer.reasons.push(format!("{equal} leases of the same priority came before it"));
        }
    }
}

fn describe(wish: &Wish) -> String {
    let model = wish.model.as_ref().map_or("GPUs".to_owned(), ToString::to_string);
    let kind = match (wish.kind, wish.topology) {
        (_, Topology::Nvlink) | (Some(BoxKind::Nvlink), _) => " (nvlink)",
        (Some(BoxKind::Pcie), _) => " (pcie)",
        _ => "",
    };
    let plane = if wish.host.is_some() { " that hosts can reach" } else { "" };
    format!("{model}{kind}{plane}")
}

fn thousandths(milli: u64) -> String {
    if milli.is_multiple_of(1000) {
        format!("{}", milli / 1000)
    } else {
        format!("{}.{:03}", milli / 1000, milli % 1000)
    }
}
