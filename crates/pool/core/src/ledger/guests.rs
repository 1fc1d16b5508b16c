//! Seats for guests: a slot of its own for an offline lease, on a GPU that an online lease has or none has.
//!
//! ```text
//!   slot 3   a GPU        free, or an online lease's       a dedicated lease: only when the seat is clean
//!   slot 35  its seat     an offline lease's, or empty
//! ```
//!
//! A seat is a GPU record with an epoch, a fence, a worker and a cleaning of its own, so no record ever has two holders. What
//! ties the two slots together is here:
//!
//! - a seat can be had while its host is free or an online lease's, and only by a tenant that may meet that lease's;
//! - a host whose seat is taken counts as busy. An online lease may have it all the same if the two may meet. For any other
//!   lease the guest is evicted first: it loses its seat and waits for another, and the host is granted when its box has
//!   cleaned the seat;
//! - a guest whose host is bad, drained or gone loses its seat at once. One whose program outlives losses is suspended first
//!   if there is time for that: see `leaving_guests.rs`.
//!
//! Offline leases are served after all others, so that a seat that was emptied for one is not taken again before. Which of the seats
//! each gets, `seating.rs` says.

use super::boxes::{BoxEntry, is_clean};
use super::explain::{Fallen, OBSTACLES, counted};
use super::possible::gibibytes;
use super::queue::Wish;
use super::stock::{Need, Place, Seat, Standing, Tightness};
use super::{GpuEntry, Ledger};
use pool_api::{
    BoxReport, Class, Explanation, FIRST_GUEST_SLOT, Filter, Gpu, GpuId, GpuReport, GpuState, Guest, LeaseId,
    LeaseRequest, Name,
};

/// Why a guest leaves: others may need the whole GPU.
const NEEDED: &str = "the GPU of its seat is needed as a whole";
/// Why a guest leaves when its box does not say it.
const UNWELCOME: &str = "its box wants no guest on that GPU for a while";

/// A host that could be had if its seat were empty.
struct Blocked {
    place: Place,
    /// The guest that is in it now; `None` while it leaves and while the seat is being cleaned.
    guest: Option<LeaseId>,
}

/// Whether a seat is emptied by hand: by itself, with its GPU, or with its box.
fn is_drained(owner: &BoxEntry, seat: &Gpu) -> bool {
    let drains = |gpu: &Gpu| gpu.taint.as_ref().is_some_and(|taint| taint.drain);
    owner.is_emptied() || drains(seat) || owner.partner(seat).is_some_and(|host| drains(&host.gpu))
}

/// What kind of place a box reports.
pub(super) fn seat_of(whole: &BoxReport, report: &GpuReport) -> Seat {
    let is_its = |other: &&GpuReport| other.guest.is_some_and(|guest| guest.of == report.slot);
    match (report.guest, report.part) {
        (Some(_), _) => Seat::Guest,
        (None, Some(part)) => Seat::Part { milli: part.milli },
        (None, None) => {
            let seat = whole.gpus.iter().find(is_its);
            let guest_bytes = seat.and_then(|gpu| Some(kept_for(gpu.guest?, gpu.memory_bytes)));
            Seat::Whole { guest_bytes: guest_bytes.unwrap_or(0) }
        }
    }
}

/// Memory that an online lease leaves a seat of so much: none where it is promised twice.
pub(super) fn kept_for(seat: Guest, seat_bytes: u64) -> u64 {
    if seat.overcommit { 0 } else { seat_bytes }
}

impl BoxEntry {
    /// The seat on this GPU, or the GPU of this seat.
    pub(super) fn partner(&self, gpu: &Gpu) -> Option<&GpuEntry> {
        match gpu.guest {
            Some(guest) => self.slots.get(&guest.of).filter(|host| host.gpu.guest.is_none()),
            None => self
                .slots
                .get(&gpu.slot.checked_add(FIRST_GUEST_SLOT)?)
                .filter(|seat| seat.gpu.guest.is_some_and(|guest| guest.of == gpu.slot)),
        }
    }
}

/// Whether a lease is in a seat, or may still be: it is not clean. A seat that its box no longer reports has no worker: an
/// agent that begins ends those that no slot wants before it reports.
fn is_taken(seat: &Gpu) -> bool {
    seat.state != GpuState::Absent && (!is_clean(seat) || !seat.holders.is_empty())
}

impl Ledger {
    /// The name of the seat on this GPU, or of the GPU of this seat.
    pub(super) fn partner_of(&self, id: &GpuId) -> Option<GpuId> {
        let owner = self.boxes.get(&id.box_name)?;
        let gpu = &owner.slots.get(&id.slot)?.gpu;
        owner.partner(gpu).map(|partner| partner.gpu.id.clone())
    }

    /// How a GPU stands, by what its seat or its host does.
    pub(super) fn standing_together(&self, owner: &BoxEntry, gpu: &Gpu, alone: Standing) -> Standing {
        let partner = owner.partner(gpu).map(|entry| &*entry.gpu);
        #[cfg(test)]
        if gpu.guest.is_none() && self.mutated(crate::simulation::Mutation::GrantBesideGuest) {
            return alone;
        }
        #[cfg(test)]
        if gpu.guest.is_none()
            && self.mutated(crate::simulation::Mutation::GrantBesideLeavingGuest)
            && partner.is_some_and(|seat| seat.holders.iter().any(|holder| self.is_noticed(holder.lease)))
        {
            return alone;
        }
        match (gpu.guest, partner) {
            (None, Some(seat)) if is_taken(seat) && alone != Standing::Gone => Standing::Busy,
            (None, _) => alone,
            (Some(_), None) => Standing::Gone,
            (Some(_), Some(host)) => match host.state {
                GpuState::Bad | GpuState::BurnIn | GpuState::Absent => Standing::Gone,
                _ if alone != Standing::Usable => alone,
                _ if !host.health.ok || host.taint.is_some() || host.spare => Standing::Busy,
                GpuState::Free if is_clean(host) && host.holders.is_empty() => Standing::Usable,
                GpuState::Leased if self.is_online(host) => Standing::Usable,
                GpuState::Free | GpuState::Leased | GpuState::Cleaning => Standing::Busy,
            },
        }
    }

    /// Whether online leases alone have a GPU.
    fn is_online(&self, host: &Gpu) -> bool {
        let class = |lease: &LeaseId| self.leases.get(lease).map(|entry| entry.lease.request.class);
        host.holders.iter().all(|holder| class(&holder.lease) == Some(Class::Online))
    }

    /// Whether a tenant may be beside the holders of this GPU. `seat` says whether strangers may meet on it.
    pub(super) fn may_meet(&self, tenant: &Name, seat: &Gpu, holders: &Gpu) -> bool {
        let is_own =
            |lease: &LeaseId| self.leases.get(lease).is_some_and(|entry| entry.lease.tenant == *tenant);
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::MeetStrangers) {
            return true;
        }
        seat.guest.is_some_and(|guest| guest.any_tenant)
            || holders.holders.iter().all(|holder| is_own(&holder.lease))
    }

    /// Whether the guest in a seat has to leave at once because of what happened to its host or its box.
    pub(super) fn is_forsaken(&self, owner: &BoxEntry, seat: &Gpu) -> bool {
        if seat.guest.is_none() {
            return false;
        }
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::GrantBesideGuest) {
            return false;
        }
        let Some(host) = owner.partner(seat).map(|entry| &*entry.gpu) else { return true };
        let is_gone = matches!(host.state, GpuState::Bad | GpuState::BurnIn | GpuState::Absent);
        let is_whole = host.state == GpuState::Leased && !self.is_online(host);
        is_gone || is_whole || (is_drained(owner, seat) && !self.has_time(seat))
    }

    /// Why a guest has to leave, in words.
    pub(super) fn why_forsaken(&self, owner: &BoxEntry, seat: &Gpu) -> String {
        let host = owner.partner(seat).map(|entry| (entry.gpu.id.clone(), entry.gpu.state));
        match host {
            _ if owner.is_emptied() => format!("box {} is being drained", seat.box_name),
            Some((host, GpuState::Bad | GpuState::BurnIn)) => format!("{host}, the GPU of its seat, is bad"),
            Some((host, GpuState::Free | GpuState::Leased | GpuState::Cleaning)) => {
                format!("{host}, the GPU of its seat, is being drained")
            }
            Some((_, GpuState::Absent)) | None => "the GPU of its seat is no longer there".into(),
        }
    }

    /// Has the lease of a seat settled if it has to leave, or asked if it has time. To be called after every change to its host.
    pub(super) fn unseat_forsaken(&mut self, id: &GpuId) {
        let Some(owner) = self.boxes.get(&id.box_name) else { return };
        let Some(seat) = owner.slots.get(&id.slot).map(|entry| &*entry.gpu) else { return };
        if seat.state != GpuState::Leased || seat.guest.is_none() {
            return;
        }
        let holders: Vec<LeaseId> = seat.holders.iter().map(|holder| holder.lease).collect();
        if self.is_forsaken(owner, seat) {
            self.unsettled.extend(holders);
        } else if is_drained(owner, seat) {
            let why = self.why_forsaken(owner, seat);
            let unasked = holders.into_iter().filter(|lease| !self.is_noticed(*lease));
            let unasked: Vec<_> = unasked.map(|lease| (lease, why.clone())).collect();
            self.evicted.extend(unasked);
        }
    }

    /// Memory that a lease gets of a GPU: an online one leaves the seat its own, unless that is promised twice.
    pub(super) fn memory_for(&self, id: &GpuId, request: &LeaseRequest) -> u64 {
        let owner = self.boxes.get(&id.box_name);
        let Some((owner, gpu)) = owner.and_then(|owner| Some((owner, &owner.slots.get(&id.slot)?.gpu)))
        else {
            return 0;
        };
        let seat = owner.partner(gpu).filter(|_| gpu.guest.is_none()).map(|entry| &entry.gpu);
        let kept_bytes = seat.and_then(|seat| Some(kept_for(seat.guest?, seat.memory_bytes))).unwrap_or(0);
        let all = match request.class {
            Class::Online => gpu.memory_bytes.saturating_sub(kept_bytes),
            Class::Dedicated | Class::Offline => gpu.memory_bytes,
        };
        request.share.map_or(all, |share| share.memory_bytes.min(all))
    }

    /// GPUs for a lease that found none, of those whose seats are taken. An online lease may have them beside a guest that it
    /// may meet. Otherwise guests are told to leave; the lease gets the GPUs when their boxes have cleaned.
    pub(super) fn find_beside_guests(
        &mut self,
        tenant: &Name,
        wish: &Wish,
        need: &Need,
    ) -> Option<Vec<Place>> {
        let blocked = self.blocked(wish, need);
        if blocked.is_empty() {
            return None;
        }
        let of = |some: &dyn Fn(&Blocked) -> bool| -> Vec<Place> {
            blocked.iter().filter(|one| some(one)).map(|one| one.place).collect()
        };
        let meets = |one: &Blocked| wish.class == Class::Online && self.meets_guest(tenant, one.place);
        let friendly = of(&meets);
        let cleaned_soon = of(&|one| one.guest.is_none() || meets(one));
        let all = of(&|_| true);
        if !friendly.is_empty()
            && let Some(found) = self.choose_with(&friendly, wish, need)
        {
            return Some(found);
        }
        if !cleaned_soon.is_empty() && self.choose_with(&cleaned_soon, wish, need).is_some() {
            return None;
        }
        for place in self.choose_with(&all, wish, need)? {
            let guest = blocked.iter().find(|one| one.place == place).and_then(|one| one.guest);
            let leaves = guest.filter(|_| !friendly.contains(&place));
            self.evicted.extend(leaves.map(|lease| (lease, NEEDED.to_owned())));
        }
        None
    }

    fn meets_guest(&self, tenant: &Name, place: Place) -> bool {
        let id = self.gpu_at(place);
        let seat = self.partner_of(&id).and_then(|seat| self.entry(&seat)).map(|entry| &*entry.gpu);
        seat.is_some_and(|seat| !seat.holders.is_empty() && self.may_meet(tenant, seat, seat))
    }

    /// GPUs that the lease could have if their seats were empty.
    fn blocked(&self, wish: &Wish, need: &Need) -> Vec<Blocked> {
        if !self.stock.has_seats() {
            return Vec::new();
        }
        let count = if need.tightness == Tightness::Anywhere { 1 } else { need.gpus };
        let mut found = Vec::new();
        for owner in self.boxes.values() {
            for entry in owner.slots.values().filter(|entry| entry.gpu.guest.is_none()) {
                let Some(seat) = owner.partner(&entry.gpu).filter(|seat| is_taken(&seat.gpu)) else {
                    continue;
                };
                // A seat that is bad is clean when its box has ended its worker, and the ledger cannot say when.
                if matches!(seat.gpu.state, GpuState::Bad | GpuState::BurnIn) {
                    continue;
                }
                let fits = self.stock.is_of(entry.place, need.classes) && wish.accepts_gpu(&entry.gpu.id);
                let guarded =
                    need.guard.is_none_or(|guard| self.is_guarded(owner, &entry.gpu, (guard, count), None));
                if fits && guarded && self.standing_alone(owner, &entry.gpu) == Standing::Usable {
                    let is_in = seat.gpu.state == GpuState::Leased;
                    let guest = seat.gpu.holders.first().filter(|_| is_in).map(|holder| holder.lease);
                    let guest = guest.filter(|lease| !self.is_noticed(*lease));
                    found.push(Blocked { place: entry.place, guest });
                }
            }
        }
        found
    }

    /// What the lease would get if these could be had, too.
    fn choose_with(&mut self, shown: &[Place], wish: &Wish, need: &Need) -> Option<Vec<Place>> {
        if !wish.given.is_empty() {
            let place = |id: &GpuId| Some(self.entry(id)?.place);
            let places: Option<Vec<Place>> = wish.given.iter().map(place).collect();
            let can_be_had =
                |place: &Place| shown.contains(place) || self.stock.standing(*place) == Standing::Usable;
            return places.filter(|places| places.iter().all(can_be_had));
        }
        let hidden = self.unguarded(need, None);
        let (stock, dice) = (&mut self.stock, &mut self.unused_dice);
        stock.with(shown, |stock| stock.without(&hidden, |stock| stock.choose(need, dice)))
    }

    /// A box may want the guest of a seat to leave.
    pub(super) fn hear_of_guest(&mut self, id: &GpuId, report: &GpuReport) {
        let Some(gpu) = self.entry(id).map(|entry| &entry.gpu).filter(|_| report.must_leave) else { return };
        // The box speaks of the guest that it has let in; the seat may be granted to another one by now.
        let is_meant =
            gpu.guest.is_some() && gpu.state == GpuState::Leased && gpu.epoch == report.bound_epoch;
        if let Some(holder) = gpu.holders.first().filter(|_| is_meant) {
            let why = report.unready.clone().unwrap_or_else(|| UNWELCOME.to_owned());
            self.evicted.insert(holder.lease, why);
        }
    }

    /// Whether a lease could have a free GPU, by the lease in its seat, or a free seat, by the lease that has its GPU.
    pub(super) fn may_be_beside(&self, owner: &BoxEntry, gpu: &Gpu, tenant: &Name, wish: &Wish) -> bool {
        let Some(partner) = owner.partner(gpu).map(|entry| &*entry.gpu) else { return gpu.guest.is_none() };
        let seat = if gpu.guest.is_some() { gpu } else { partner };
        let meets = self.may_meet(tenant, seat, partner);
        match gpu.guest {
            Some(_) => self.standing_together(owner, gpu, Standing::Usable) == Standing::Usable && meets,
            None => !is_taken(partner) || (wish.class == Class::Online && meets),
        }
    }

    /// What leases on a GPU and in its seat should know of their memory, if it is promised twice.
    pub(super) fn explain_overcommit(&self, entry: &GpuEntry, answer: &mut Explanation) {
        let gpu = &entry.gpu;
        let partner =
            self.boxes.get(&gpu.box_name).and_then(|owner| owner.partner(gpu)).map(|entry| &entry.gpu);
        let (seat, host) = match (gpu.guest, partner) {
            (Some(_), Some(host)) => (gpu, host),
            (None, Some(seat)) => (seat, gpu),
            (_, None) => return,
        };
        if !seat.guest.is_some_and(|guest| guest.overcommit) {
            return;
        }
        match gpu.guest {
            Some(_) => answer.reasons.push(format!(
                "the memory of its seat is promised twice: when an online program needs it, this lease leaves {} at once, \
                 and waits for another seat",
                gpu.id
            )),
            None if self.is_online(host) && !host.holders.is_empty() => answer.reasons.push(format!(
                "{} of its memory are promised to a guest, too: an allocation that needs them waits until the guest has left",
                gibibytes(seat.memory_bytes)
            )),
            None => {}
        }
    }

    /// Why no seat is there for an offline lease.
    pub(super) fn explain_seats(&self, fallen: &Fallen, answer: &mut Explanation) {
        let count = |filter: &Filter| fallen.get(filter).map_or(0, Vec::len) as u64;
        let beside = count(&Filter::Beside);
        let others: u64 = OBSTACLES.iter().map(count).sum();
        answer.reasons.push(format!(
            "no seat for guests is free that would do: {} on GPUs of dedicated leases or of other tenants, {others} taken \
             or not working",
            counted(beside, "seat")
        ));
        answer.remedies.push(
            "wait until an online lease of its tenant has a GPU with a seat, or a GPU with a seat is free"
                .into(),
        );
        if beside > 0 {
            answer
                .remedies
                .push("boxes with `--guests-of any` seat guests beside leases of other tenants".into());
        }
    }

    /// What must not be: a guest beside a lease that has its GPU for itself, or beside a stranger.
    pub(super) fn guest_inconsistencies(&self) -> Vec<String> {
        let mut found = Vec::new();
        for owner in self.boxes.values() {
            for entry in owner.slots.values() {
                let seat = &*entry.gpu;
                let is_held = seat.state == GpuState::Leased && !self.is_forsaken(owner, seat);
                let Some(host) = owner.partner(seat).filter(|_| seat.guest.is_some() && is_held) else {
                    continue;
                };
                let guest = seat.holders.first().and_then(|holder| self.leases.get(&holder.lease));
                let Some(guest) = guest.map(|entry| &entry.lease) else { continue };
                if guest.request.class != Class::Offline || !self.may_meet(&guest.tenant, seat, &host.gpu) {
                    found.push(format!("{} has a guest that does not belong there: {}", seat.id, guest.id));
                }
                if guest.request.memory_bytes.is_some_and(|bytes| bytes > seat.memory_bytes) {
                    found.push(format!("{} has less memory than its guest asked for: {}", seat.id, guest.id));
                }
            }
        }
        found
    }
}
