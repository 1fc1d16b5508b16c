//! Why a lease is pending, and what would let it run.

use super::attach::speaks_pcie;
use super::boxes::{BoxEntry, is_clean};
use super::queue::{GroupKey, Wish, queued_ms};
use super::stock::{Need, Place, Standing, Stock, Tightness};
use super::{Ledger, Refusal};
use pool_api::{
    BoxKind, Class, Explanation, Filter, FilterCount, Gpu, GpuState, Lease, LeaseId, LeaseState, Model, Name,
    SEAT_IS_CLOSED, Topology,
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
                // A seat that takes no newcomers says how the guest that is in it fares.
                let seats = lease.grants.iter().filter_map(|grant| self.entry(&grant.gpu));
                let words = seats
                    .filter(|entry| entry.gpu.guest.is_some())
                    .filter_map(|entry| entry.gpu.unready.clone());
                answer.reasons.extend(words.map(|word| format!("{SEAT_IS_CLOSED}: {word}")));
                let seats = lease.grants.iter().filter_map(|grant| self.entry(&grant.gpu));
                for entry in seats {
                    self.explain_share(entry, &mut answer);
                    answer.reasons.extend(self.explain_hunger(id, entry).map(str::to_owned));
                    self.explain_overcommit(entry, &mut answer);
                }
                self.explain_notice(id, &mut answer);
            }
            LeaseState::Parked => {
                answer.reasons.push("it is parked: its program is kept as an image and has no GPU".into());
                answer.remedies.push(format!("dxpu lease resume {id}, or a CUDA call of its program"));
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
        let mut fallen = self.fallen(&lease.tenant, &wish);
        answer.filters = counts(&fallen);
        if let Some(usable) = fallen.remove(&Filter::Usable) {
            // They are there and it still waits: they are not together, not enough, or others come first.
            let need = wish.need(self.open_classes(&lease.tenant, &wish));
            let is_enough = if wish.given.is_empty() {
                let hidden = self.unguarded(&need, None);
                let choose = |stock: &mut Stock| stock.choose(&need, &mut self.unused_dice.clone());
                self.stock.clone().without(&hidden, choose).is_some()
            } else {
                usable.len() == wish.given.len()
            };
            let filter = if is_enough { Filter::Usable } else { Filter::Topology };
            answer.filters.retain(|count| count.filter != Filter::Usable);
            answer.filters.push(FilterCount { filter, gpus: usable.len() as u64 });
        }
        if let Some(last) = lease.moves.last().filter(|_| wish.lost) {
            answer.reasons.push(match lease.is_unseated() {
                true => format!(
                    "its program was suspended and left {}: {}; it waits for another seat, and goes on there from its image",
                    last.from, last.reason
                ),
                false => format!("it lost {}: {}", last.from, last.reason),
            });
        }
        self.explain_host(&lease.tenant, &wish, answer);
        self.explain_quota(&lease.tenant, &wish, answer);
        if wish.class == Class::Offline {
            self.explain_seats(&fallen, answer);
        } else if wish.given.is_empty() {
            self.explain_stock(&lease.tenant, &wish, &fallen, answer);
            self.explain_parts(&wish, answer);
        } else {
            self.explain_given(&wish, &fallen, answer);
        }
        if let Some(places) = fallen.get(&Filter::Beside).filter(|_| wish.class != Class::Offline) {
            let gpus = counted(places.len() as u64, "GPU");
            answer.reasons.push(format!("guests are in the seats of {gpus} that would do; they leave first"));
            self.explain_leaving_guests(places, &mut *answer);
        }
        if let Some(places) = fallen.get(&Filter::Guard) {
            self.explain_guard(&wish, places, answer);
        }
        self.explain_queue(lease, answer);
    }

    fn has_guard(&self, owner: &BoxEntry, gpu: &Gpu, wish: &Wish) -> bool {
        let count = if wish.topology == Topology::Any { 1 } else { wish.gpus };
        wish.guard.is_none_or(|guard| self.is_guarded(owner, gpu, (guard, count), None))
    }

    /// The GPUs of the pool, by the filter at which each falls out.
    fn fallen(&self, tenant: &Name, wish: &Wish) -> Fallen {
        let mut fallen = Fallen::new();
        let waits_for_parts = self.waits_for_parts(wish);
        for owner in self.boxes.values() {
            for entry in owner.slots.values() {
                let is_other = waits_for_parts && entry.gpu.part.is_none() && entry.gpu.guest.is_none();
                let filter = match is_other {
                    true => Filter::Part,
                    false => self.filter(owner, &entry.gpu, tenant, wish),
                };
                fallen.entry(filter).or_default().push(entry.place);
            }
        }
        fallen
    }

    fn filter(&self, owner: &BoxEntry, gpu: &Gpu, tenant: &Name, wish: &Wish) -> Filter {
        match gpu.state {
            _ if !wish.accepts_gpu(&gpu.id) => Filter::Given,
            _ if !wish.accepts_guest(gpu.guest.is_some()) => Filter::Seat,
            _ if !wish.accepts_model(&gpu.model) => Filter::Model,
            _ if !wish.accepts_part(gpu) => Filter::Part,
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
            GpuState::Free if !self.has_guard(owner, gpu, wish) => Filter::Guard,
            GpuState::Free if !self.may_be_beside(owner, gpu, tenant, wish) => Filter::Beside,
            GpuState::Free => Filter::Usable,
        }
    }

    fn explain_quota(&self, tenant: &Name, wish: &Wish, answer: &mut Explanation) {
        let classes = self.stock.classes().iter().filter(|class| wish.accepts(class));
        let models: BTreeSet<&Model> = classes.map(|class| &class.model).collect();
        let asked = u64::from(wish.gpus) * u64::from(wish.milli);
        for model in models {
            if self.is_within_limit(tenant, wish, model) {
                continue;
            }
            let entry = self.tenants.get(tenant);
            let limit = entry.and_then(|entry| entry.record.quotas.get(model)?.limit).unwrap_or(0);
            let used = self.used_milli(tenant, model);
            let used_text = thousandths(used);
            answer.reasons.push(format!("quota of tenant {tenant} for {model} is {limit}, {used_text} used"));
            let raise = format!("raise its limit of {limit} (`dxpu tenant set {tenant} --limit {model}=N`)");
            // A limit below what is asked for is not met by giving leases back.
            let is_beyond = asked > u64::from(limit) * u64::from(crate::GPU_MILLI);
            let remedy = match (is_beyond, used) {
                (true, _) if limit > 0 => format!("ask for {limit} {model} at most, or {raise}"),
                (true, _) | (false, 0) => raise,
                (false, _) => format!("release a lease of tenant {tenant} on {model}, or {raise}"),
            };
            let of_model = self.stock.mask(|class| class.model == *model);
            let need = wish.need(self.classes_for(wish) & of_model);
            let is_there = self.stock.have(&need) >= u64::from(wish.gpus);
            let then = if is_there || is_beyond { "" } else { "; then it waits for free GPUs" };
            answer.remedies.push(format!("{remedy}{then}"));
        }
    }

    fn explain_stock(&self, tenant: &Name, wish: &Wish, fallen: &Fallen, answer: &mut Explanation) {
        let what = describe(wish, self.waits_for_parts(wish));
        if self.stock.mask(|class| wish.accepts(class)) == 0 {
            answer.reasons.push(format!("the pool has no {what}"));
            answer.remedies.push(format!("add a box with {what}, or ask for something else"));
            return;
        }
        // Where the tenant may have none of them, more free ones would not help.
        let open = self.open_classes(tenant, wish);
        if open == 0 {
            return;
        }
        let need = wish.need(open);
        let together = match need.tightness {
            Tightness::Anywhere => "",
            Tightness::OneBox => " in one box",
            Tightness::OneBin => " in one nvlink box",
        };
        let (have, asked) = (self.stock.have(&need), u64::from(wish.gpus));
        if !self.stock.feasible(&need) {
            let most = match need.tightness {
                Tightness::Anywhere => "in the whole pool".to_owned(),
                _ => format!("together: {} at most", self.stock.present_together(open)),
            };
            answer.reasons.push(match asked {
                1 => format!("no {what} of the pool works now"),
                _ => format!("there are not {asked} {what} {most}, even if no other lease had any"),
            });
        } else if have < asked {
            let are = if have == 1 { "is" } else { "are" };
            let others = others(fallen);
            answer.reasons.push(format!("{have} of {asked} wanted {what} {are} free{together}{others}"));
        }
        if have < asked {
            self.remedy_stock(&need, &format!("{what} free{together}"), asked - have, fallen, answer);
        }
    }

    /// What would free enough GPUs: each kind of obstacle by itself if that is enough, otherwise all of them together.
    fn remedy_stock(&self, need: &Need, what: &str, missing: u64, fallen: &Fallen, answer: &mut Explanation) {
        let mut stock = self.stock.clone();
        let mut dice = self.unused_dice.clone();
        let mut all = Vec::new();
        for filter in OBSTACLES {
            let Some(places) = fallen.get(&filter) else { continue };
            all.push((filter, places));
            if (places.len() as u64) < missing {
                continue;
            }
            let before: Vec<Standing> = places.iter().map(|place| stock.standing(*place)).collect();
            places.iter().for_each(|place| stock.set(*place, Standing::Usable));
            if stock.choose(need, &mut dice).is_some() {
                let gpus: Vec<String> =
                    places.iter().take(NAMED_MAX).map(|place| self.gpu_at(*place).to_string()).collect();
                answer.remedies.push(remedy(filter, places.len(), missing, what, &gpus.join(", ")));
            }
            places.iter().zip(before).for_each(|(place, before)| stock.set(*place, before));
        }
        if all.len() < 2 || !answer.remedies.is_empty() {
            return;
        }
        all.iter()
            .for_each(|(_, places)| places.iter().for_each(|place| stock.set(*place, Standing::Usable)));
        if stock.choose(need, &mut dice).is_some() {
            let parts: Vec<String> = all
                .iter()
                .map(|(filter, places)| format!("{} {}", places.len(), obstacle(*filter)))
                .collect();
            answer.remedies.push(format!("{missing} more {what}, of these: {}", parts.join(", ")));
        }
    }

    fn explain_queue(&self, lease: &Lease, answer: &mut Explanation) {
        let own = GroupKey::of(lease);
        let own_mask = self.classes_for(&own.wish);
        let is_promised = |key: &GroupKey| self.promised_classes(&key.tenant, &key.wish, 0) != 0;
        let level = |key: &GroupKey| (!is_promised(key), key.priority);
        let own_level = level(&own);
        let (mut promised, mut higher, mut equal) = (0, 0, 0);
        for (key, group) in self.queue.groups() {
            let competes = own_mask == 0 || self.classes_for(&key.wish) & own_mask != 0;
            if !competes {
                continue;
            }
            match level(key).cmp(&own_level) {
                std::cmp::Ordering::Less if own_level.0 && is_promised(key) => promised += group.len() as u64,
                std::cmp::Ordering::Less => higher += group.len() as u64,
                std::cmp::Ordering::Equal => {
                    equal += group.range(..(queued_ms(lease), lease.id)).count() as u64;
                }
                std::cmp::Ordering::Greater => {}
            }
        }
        answer.ahead = promised + higher + equal;
        if promised > 0 {
            let leases = counted(promised, "lease");
            answer.reasons.push(format!("waits behind {leases} of tenants below their guarantee"));
        }
        if higher > 0 {
            answer.reasons.push(format!("waits behind {} of higher priority", counted(higher, "lease")));
        }
        if equal > 0 {
            let leases = counted(equal, "lease");
            answer.reasons.push(format!("{leases} of the same priority came before it"));
        }
    }
}

/// GPUs by the filter at which they fall out.
pub(super) type Fallen = BTreeMap<Filter, Vec<Place>>;

/// What stands between a lease and GPUs that would do, and can pass.
pub(super) const OBSTACLES: [Filter; 7] = [
    Filter::Leased,
    Filter::Cleaning,
    Filter::NotReady,
    Filter::BoxState,
    Filter::Taint,
    Filter::Health,
    Filter::Spare,
];

/// Where the GPUs are that would do and are not free: `; others: 1 leased, 1 being cleaned`.
fn others(fallen: &Fallen) -> String {
    let found = OBSTACLES.iter().filter_map(|filter| Some((*filter, fallen.get(filter)?.len())));
    let parts: Vec<String> = found.map(|(filter, count)| format!("{count} {}", obstacle(filter))).collect();
    if parts.is_empty() { String::new() } else { format!("; others: {}", parts.join(", ")) }
}

/// So many GPUs are named in a remedy; `dxpu gpu ls` shows all.
const NAMED_MAX: usize = 4;

fn counts(fallen: &Fallen) -> Vec<FilterCount> {
    fallen.iter().map(|(&filter, places)| FilterCount { filter, gpus: places.len() as u64 }).collect()
}

/// What would pass the obstacle, and which GPUs have it.
fn remedy(filter: Filter, count: usize, missing: u64, what: &str, gpus: &str) -> String {
    let that = if count == 1 { "1 GPU that would do is" } else { &format!("{count} GPUs that would do are") };
    let some = if count as u64 == missing { String::new() } else { format!("{missing} of ") };
    match filter {
        Filter::Cleaning => format!("wait a moment: {that} being cleaned ({gpus})"),
        Filter::NotReady => format!("{that} not ready yet; `dxpu gpu ls` says why ({gpus})"),
        Filter::BoxState => format!(
            "bring their boxes back or undrain them: {that} in silent, dead or drained boxes ({gpus})"
        ),
        Filter::Taint => format!("untaint {some}{gpus}: {that} tainted"),
        Filter::Health => format!("repair {some}{gpus}: {that} broken or absent"),
        Filter::Spare => format!("hold back fewer spares: {that} held back ({gpus})"),
        _ => format!("{missing} more {what}"),
    }
}

/// The same in one or two words.
pub(super) fn obstacle(filter: Filter) -> &'static str {
    match filter {
        Filter::Leased => "leased",
        Filter::Cleaning => "being cleaned",
        Filter::NotReady => "not ready",
        Filter::BoxState => "in silent, dead or drained boxes",
        Filter::Taint => "tainted",
        Filter::Health => "broken or absent",
        _ => "held back as spares",
    }
}

/// `1 lease`, `2 leases`.
pub(super) fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

fn describe(wish: &Wish, is_part: bool) -> String {
    let model = wish.model.as_ref().map_or("GPUs".to_owned(), ToString::to_string);
    let model = if is_part { format!("parts of {model}") } else { model };
    let memory = match (wish.memory_bytes, is_part) {
        (bytes, true) => {
            format!(" with at least {}/1000 and {}", wish.milli, super::possible::gibibytes(bytes))
        }
        (0, false) => String::new(),
        (bytes, false) => format!(" with at least {}", super::possible::gibibytes(bytes)),
    };
    let kind = match (wish.kind, wish.topology) {
        (_, Topology::Nvlink) | (Some(BoxKind::Nvlink), _) => " (nvlink)",
        (Some(BoxKind::Pcie), _) => " (pcie)",
        _ => "",
    };
    let plane = if wish.host.is_some() { " that hosts can reach" } else { "" };
    format!("{model}{memory}{kind}{plane}")
}

pub(super) fn thousandths(milli: u64) -> String {
    if milli.is_multiple_of(1000) {
        format!("{}", milli / 1000)
    } else {
        format!("{}.{:03}", milli / 1000, milli % 1000)
    }
}
