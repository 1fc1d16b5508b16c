//! What a box says, and what it is told.
//!
//! Which states a GPU goes through by that, `gpu_life.rs` shows. A slot that is no longer reported is absent; when it is
//! reported again it is cleaned first, if it needs to be.

use super::attach::speaks_pcie;
use super::boxes::{BoxEntry, Presence, is_clean};
use super::command::{Answer, Refusal};
use super::gpu_life::{self, GpuEvent, TrackedGpu};
use super::grants::{EPOCH_LEAP_MAX, is_current, next_epoch};
use super::guests::seat_of;
use super::stock::Class;
use super::{GpuEntry, Ledger, Note};
use pool_api::{
    BoxOrders, BoxRecord, BoxReport, BoxState, EventKind, Gpu, GpuId, GpuReport, GpuState, LeaseId, Name,
    PCIE_EPOCH_MAX, SlotOrder, Want,
};

impl Ledger {
    pub(super) fn report(&mut self, name: &Name, report: &BoxReport) -> Result<Answer, Refusal> {
        report.check()?;
        self.check_kinds(name, report)?;
        let node = self.node_of_box(name)?;
        self.meet(name, node, report);
        let entry = self.boxes.get_mut(name).expect("it was met just now");
        if entry.agents.hear(&report.agent, report.sequence) {
            self.hear_box(name, report);
            for gpu in &report.gpus {
                self.hear_gpu(name, report, gpu);
            }
            self.miss_gpus(name, report);
        }
        Ok(Answer::Orders(self.orders(name, report)))
    }

    /// Refuses a report before anything of it has been done.
    fn check_kinds(&self, name: &Name, report: &BoxReport) -> Result<(), Refusal> {
        let known = self.stock.classes();
        let mut new: Vec<Class> = Vec::new();
        for gpu in &report.gpus {
            let entry = self.boxes.get(name).and_then(|owner| owner.slots.get(&gpu.slot));
            let pcie = self.can_be_plugged(report, entry.map(|entry| &*entry.gpu), gpu);
            let class = class_of(report, gpu, pcie);
            if !known.contains(&class) && !new.contains(&class) {
                new.push(class);
            }
        }
        let count = known.len() + new.len();
        if count > crate::model::MODELS_MAX { Err(Refusal::TooManyKinds) } else { Ok(()) }
    }

    fn meet(&mut self, name: &Name, node: u16, report: &BoxReport) {
        if let Some(known) = self.boxes.get_mut(name) {
            // Only a box that was stored before there were numbers has none.
            if known.record.node != node {
                known.record.node = node;
                self.draft.boxes.insert(name.clone());
            }
            return;
        }
        let record = BoxRecord {
            name: name.clone(),
            node,
            kind: report.kind,
            rack: report.rack.clone(),
            paths: report.paths.clone(),
            state: BoxState::Ready,
            last_seen_ms: self.now_ms,
            gpus: Vec::new(),
            drain: None,
            revoked: None,
        };
        self.boxes.insert(name.clone(), BoxEntry::new(record, Presence::Ready, self.now_ms));
        self.draft.boxes.insert(name.clone());
        let gpus = report.gpus.iter().filter(|gpu| gpu.is_counted()).count();
        let message = format!("box {name} joined with {gpus} GPUs");
        self.note(Note::new(EventKind::BoxJoined, message).of_box(name));
    }

    fn hear_box(&mut self, name: &Name, report: &BoxReport) {
        self.listen_to(name);
        let entry = self.boxes.get_mut(name).expect("it was met before");
        let was = std::mem::replace(&mut entry.presence, Presence::Ready);
        let guard_before = std::mem::replace(&mut entry.guard, report.guard.clone());
        let record = &mut entry.record;
        let same = record.kind == report.kind && record.rack == report.rack && record.paths == report.paths;
        if !same {
            record.kind = report.kind;
            record.rack.clone_from(&report.rack);
            record.paths.clone_from(&report.paths);
            self.draft.boxes.insert(name.clone());
        }
        // Managers take reports from members alone, so a revoked box has joined anew.
        let was_revoked = self.boxes.get_mut(name).and_then(|entry| entry.record.revoked.take()).is_some();
        if was == Presence::Dead || was_revoked {
            self.draft.boxes.insert(name.clone());
            self.note(Note::new(EventKind::BoxReturned, format!("box {name} reports again")).of_box(name));
        }
        if was != Presence::Ready {
            self.restand_box(name);
        }
        self.hear_guard(name, guard_before);
    }

    fn hear_gpu(&mut self, name: &Name, whole: &BoxReport, report: &GpuReport) {
        let id = GpuId { box_name: name.clone(), slot: report.slot };
        if self.entry(&id).is_none() {
            self.add_gpu(&id, whole, report);
        }
        if self.is_strange(&id, report) {
            return;
        }
        let entry = self.entry_mut(&id).expect("it was added before");
        let before = std::mem::replace(&mut entry.counters, report.counters.clone());
        if std::mem::replace(&mut entry.sharing, report.sharing) != report.sharing {
            self.restand_seat(name, report.slot);
        }
        if report.guest.is_some() {
            self.hear_of_hunger(&id);
        }
        self.hear_work(&id, before.as_ref(), report.counters.as_ref());
        let entry = self.entry(&id).expect("it was added before");
        let class = self.stock.class_of(entry.place);
        let same_class = class.kind == whole.kind
            && class.seat == seat_of(whole, report)
            && class.pcie == self.can_be_plugged(whole, Some(&entry.gpu), report);
        if is_old_news(entry, report) && same_class {
            return;
        }
        self.hear_identity(&id, whole, report);
        let floor = self.epoch_floor;
        let entry = self.entry_mut(&id).expect("it was added before");
        let is_attached = entry.attachment.is_some();
        let before = entry.gpu.clone();
        let gpu = &mut entry.gpu;

        // The report replaces what the ledger knew, also where the box has lost its memory.
        *gpu.edit().cleaned_epoch = report.cleaned_epoch;
        let mut box_began_anew = false;
        if is_attached {
            box_began_anew = gpu.bound_epoch >= gpu.epoch && report.bound_epoch < gpu.epoch;
            *gpu.edit().bound_epoch = report.bound_epoch;
        }
        *gpu.edit().epoch = gpu.epoch.max(report.cleaned_epoch).max(report.bound_epoch);
        let leap = gpu.epoch - before.epoch;
        let renumbered = leap > 0;
        gpu.edit().endpoints.clone_from(&report.endpoints);
        *gpu.edit().guest = report.guest;
        *gpu.edit().part = report.part;
        *gpu.edit().unready = unready(report);
        if gpu.state == GpuState::Absent {
            gpu.on(GpuEvent::Returned);
        }
        // Bounded by `EPOCH_LEAP_MAX`: `is_strange` catches reports beyond it.
        entry.leapt += leap.min(entry.gpu.epoch.saturating_sub(floor));
        self.hear_health(&id, report);
        self.hear_of_guest(&id, report);

        let gpu = &mut self.entry_mut(&id).expect("it is still there").gpu;
        match gpu.state {
            GpuState::Free if !is_clean(gpu) => gpu.on(GpuEvent::Soiled),
            GpuState::Cleaning if is_clean(gpu) => {
                gpu.on(GpuEvent::Cleaned);
                self.let_go_of(&id);
                self.lose_holders(&id);
                // The box has cleaned: what a host still has plugged has no device behind it.
                self.stop_waiting_for_host(&id);
            }
            // Its box has thrown the borrower out, or admitted an unknown one: the grant is worth nothing any more.
            GpuState::Leased if is_clean(gpu) || renumbered || box_began_anew => self.lose_holders(&id),
            _ => {}
        }
        self.follow(&id, &before);
    }

    /// Does what follows from a change of a GPU that its box has told of.
    fn follow(&mut self, id: &GpuId, before: &Gpu) {
        let after = &self.entry(id).expect("it is still there").gpu;
        let (changed, worker_moved) = (**after != *before, after.endpoints != before.endpoints);
        let bound = after.bound_epoch != before.bound_epoch;
        if after.guest != before.guest {
            // Leases of strangers that waited may meet there now.
            self.stock.gained();
            self.queue_stirred = true;
        }
        if changed {
            self.draft.gpus.insert(id.clone());
            if bound {
                self.stir_attachment(id);
            }
            if worker_moved {
                // Its borrower must know where its worker is now.
                self.unsettled.extend(before.holders.iter().map(|holder| holder.lease));
            }
            self.restand(id);
        }
    }

    /// Whether a box speaks of an epoch that this pool cannot have given it. Then the ledger believes nothing
    /// it says of this GPU and marks the GPU bad: the box may have admitted a borrower that the pool does not know.
    fn is_strange(&mut self, id: &GpuId, report: &GpuReport) -> bool {
        let entry = self.entry(id).expect("it was added before");
        let (given, claimed) =
            (entry.gpu.epoch.max(self.epoch_floor), report.bound_epoch.max(report.cleaned_epoch));
        let leap = claimed.saturating_sub(given);
        if leap == 0 || leap.saturating_add(entry.leapt) <= EPOCH_LEAP_MAX {
            return false;
        }
        if entry.gpu.state != GpuState::Bad {
            let reason = format!(
                "its box speaks of epoch {claimed}, and this pool has given it {given} at most; \
                 give the box a new state directory, then repair the GPU"
            );
            self.go_bad(id, &reason);
        }
        true
    }

    fn add_gpu(&mut self, id: &GpuId, whole: &BoxReport, report: &GpuReport) {
        let class = class_of(whole, report, self.can_be_plugged(whole, None, report));
        let place = self.stock.add(&id.box_name, id.slot, class, report.nvlink_group);
        let place = place.expect("the report was checked before");
        let gpu = Gpu {
            id: id.clone(),
            box_name: id.box_name.clone(),
            slot: id.slot,
            model: report.model.clone(),
            memory_bytes: report.memory_bytes,
            uuid: report.uuid.clone(),
            nvlink_group: report.nvlink_group,
            only_pcie: report.only_pcie,
            guest: report.guest,
            part: report.part,
            state: gpu_life::FIRST,
            taint: None,
            spare: false,
            epoch: 0,
            bound_epoch: 0,
            cleaned_epoch: 0,
            holders: Vec::new(),
            kept: None,
            health: pool_api::Health::OK,
            unready: unready(report),
            endpoints: Vec::new(),
            counters: None,
        };
        let entry = self.boxes.get_mut(&id.box_name).expect("it was met before");
        let gpu = TrackedGpu::found(gpu);
        entry.slots.insert(id.slot, GpuEntry::new(gpu, place));
        entry.record.gpus = entry.slots.keys().copied().collect();
        self.draft.boxes.insert(id.box_name.clone());
        self.draft.gpus.insert(id.clone());
        self.note(Note::new(EventKind::GpuAdded, format!("{} in {id}", report.model)).gpu(id));
    }

    /// Another GPU in the same slot is a new one: nothing that was granted of the old one counts.
    fn hear_identity(&mut self, id: &GpuId, whole: &BoxReport, report: &GpuReport) {
        let entry = self.entry(id).expect("it was added before");
        let (gpu, place) = (&entry.gpu, entry.place);
        let class = class_of(whole, report, self.can_be_plugged(whole, Some(gpu), report));
        let known = self.stock.class_of(place);
        let same_gpu =
            known.is_alike(&class) && gpu.nvlink_group == report.nvlink_group && gpu.uuid == report.uuid;
        let same_place = *known == class && gpu.nvlink_group == report.nvlink_group;
        if same_gpu && same_place {
            return;
        }
        if !same_place {
            self.stock.set(place, super::stock::Standing::Gone);
            self.seating.forget(place);
            let place = self.stock.add(&id.box_name, id.slot, class, report.nvlink_group);
            let place = place.expect("the report was checked before");
            self.entry_mut(id).expect("it is still there").place = place;
            self.restand(id);
        }
        if same_gpu {
            return;
        }
        self.lose_holders(id);
        let gpu = &mut self.entry_mut(id).expect("it is still there").gpu;
        let new = gpu.edit();
        *new.model = report.model.clone();
        *new.memory_bytes = report.memory_bytes;
        *new.only_pcie = report.only_pcie;
        *new.nvlink_group = report.nvlink_group;
        new.uuid.clone_from(&report.uuid);
        *new.spare = false;
        let kept = new.kept.take();
        // A new epoch, which no lease gets: the box has to clean before the next grant.
        *new.epoch = next_epoch(*new.epoch);
        if matches!(gpu.state, GpuState::Free | GpuState::Absent) {
            gpu.on(GpuEvent::Swapped);
        }
        self.draft.gpus.insert(id.clone());
        self.note(
            Note::new(EventKind::GpuAdded, format!("{} in {id} instead of another", report.model)).gpu(id),
        );
        self.unlist_kept(id, kept);
        self.restand(id);
    }

    fn hear_health(&mut self, id: &GpuId, report: &GpuReport) {
        let gpu = &mut self.entry_mut(id).expect("it was added before").gpu;
        match gpu.state {
            // It waits for an operator to repair it; that its box thinks better of it is not enough.
            GpuState::Bad => {}
            GpuState::BurnIn => {
                // What the box says of its health is from before the test, until the test is over.
                let Some(result) = report.burn_in.as_ref().filter(|result| result.epoch == gpu.epoch) else {
                    return;
                };
                let message;
                let kind = if result.passed && report.health.ok {
                    gpu.on(GpuEvent::BurnInPassed);
                    *gpu.edit().health = report.health.clone();
                    message = format!("{id} passed its burn-in");
                    EventKind::GpuBurnInPassed
                } else {
                    gpu.on(GpuEvent::BurnInFailed);
                    let reason = report.health.reason.clone().unwrap_or_else(|| result.detail.clone());
                    message = format!("{id} failed its burn-in: {reason}");
                    *gpu.edit().health = pool_api::Health::bad(reason);
                    EventKind::GpuBurnInFailed
                };
                self.note(Note::new(kind, message).gpu(id));
            }
            GpuState::Free | GpuState::Leased | GpuState::Cleaning | GpuState::Absent => {
                if report.health.ok {
                    *gpu.edit().health = pool_api::Health::OK;
                } else {
                    let reason = report.health.reason.clone().unwrap_or_else(|| "its box says so".into());
                    self.go_bad(id, &reason);
                }
            }
        }
    }

    /// A GPU that is not bad is bad from now on.
    pub(super) fn go_bad(&mut self, id: &GpuId, reason: &str) {
        let Some(entry) = self.entry_mut(id) else { return };
        entry.gpu.on(GpuEvent::Failed);
        *entry.gpu.edit().health = pool_api::Health::bad(reason);
        *entry.gpu.edit().spare = false;
        self.draft.gpus.insert(id.clone());
        self.let_go_of(id);
        self.note(Note::new(EventKind::GpuBad, format!("{id} is bad: {reason}")).gpu(id));
        self.restand(id);
        self.lose_holders(id);
    }

    fn miss_gpus(&mut self, name: &Name, report: &BoxReport) {
        for id in self.gpus_of(name) {
            if report.gpus.iter().any(|gpu| gpu.slot == id.slot) {
                continue;
            }
            let entry = self.entry_mut(&id).expect("it is one of the box");
            // Whatever its state: what it measured last is not what it measures.
            entry.counters = None;
            entry.sharing = None;
            let gpu = &mut entry.gpu;
            if !matches!(gpu.state, GpuState::Free | GpuState::Leased | GpuState::Cleaning) {
                continue;
            }
            gpu.on(GpuEvent::Missed);
            *gpu.edit().spare = false;
            self.draft.gpus.insert(id.clone());
            self.note(Note::new(EventKind::GpuAbsent, format!("{id} is no longer reported")).gpu(&id));
            self.restand(&id);
            self.lose_holders(&id);
        }
    }

    /// Whether hosts can reach it, and epochs are left for them.
    fn can_be_plugged(&self, whole: &BoxReport, known: Option<&Gpu>, report: &GpuReport) -> bool {
        let known = known.map_or(0, |gpu| gpu.epoch).max(self.epoch_floor);
        let epoch = known.max(report.bound_epoch).max(report.cleaned_epoch);
        let is_gpu = report.guest.is_none() && report.part.is_none();
        is_gpu && speaks_pcie(&whole.paths) && epoch < PCIE_EPOCH_MAX
    }

    /// What should be so in the slots a box reported.
    fn orders(&self, name: &Name, report: &BoxReport) -> BoxOrders {
        let slots = report.gpus.iter().filter_map(|gpu| {
            let entry = self.boxes.get(name)?.slots.get(&gpu.slot)?;
            Some(SlotOrder { slot: gpu.slot, want: self.want(&entry.gpu) })
        });
        BoxOrders {
            tenure: 0,
            now_ms: self.now_ms,
            node: self.boxes.get(name).map_or(0, |entry| entry.record.node),
            lease_keys: Vec::new(),
            denied_leases: Vec::new(),
            ended_leases: self.ended_leases(report),
            slots: slots.collect(),
            report_after_ms: self.settings.report_after_ms,
        }
    }

    /// The leases of a guardian's images that are not live any more. A lease that this ledger has never granted or has
    /// forgotten is none of them either.
    fn ended_leases(&self, report: &BoxReport) -> Vec<LeaseId> {
        let guarded = report.guard.iter().flat_map(|guard| &guard.leases).map(|guarded| guarded.lease);
        guarded.filter(|id| !self.lease(*id).is_some_and(|lease| lease.state.is_live())).collect()
    }

    fn want(&self, gpu: &Gpu) -> Want {
        #[cfg(test)]
        if self.mutated(crate::simulation::Mutation::NeverClean) && gpu.state == GpuState::Cleaning {
            return Want::Idle;
        }
        match gpu.state {
            GpuState::Free => Want::Idle,
            // It waits for the lease whose data are on it.
            GpuState::Cleaning if self.is_kept(gpu) => Want::Idle,
            // A host unplugs first, so that the guest's driver can let go.
            GpuState::Cleaning => self.want_until_unplugged(gpu).unwrap_or(Want::Clean { epoch: gpu.epoch }),
            GpuState::Absent => Want::Clean { epoch: gpu.epoch },
            GpuState::Bad => Want::Off,
            GpuState::BurnIn => Want::BurnIn { epoch: gpu.epoch },
            GpuState::Leased => {
                let holder = gpu.holders.first();
                let lease = holder.and_then(|holder| Some((holder, &self.leases.get(&holder.lease)?.lease)));
                match lease {
                    Some((holder, lease)) if is_current(lease, gpu) => Want::Serve {
                        lease: lease.id,
                        epoch: gpu.epoch,
                        since_epoch: self.since_epoch(gpu, lease.id),
                        expires_ms: lease.expires_ms,
                        memory_bytes: holder.memory_bytes,
                        share_milli: holder.share_milli,
                        tenant: lease.tenant.clone(),
                        pcie: self.pairing_of(lease, gpu),
                    },
                    // What was granted is worth nothing any more, and is about to be granted anew.
                    _ => Want::Clean { epoch: gpu.epoch },
                }
            }
        }
    }
}

fn class_of(whole: &BoxReport, report: &GpuReport, pcie: bool) -> Class {
    let api = !report.only_pcie;
    let (model, memory_bytes, seat) = (report.model.clone(), report.memory_bytes, seat_of(whole, report));
    Class { model, memory_bytes, kind: whole.kind, pcie, api, seat }
}

/// Why no borrower could use a GPU now, as its box says it.
fn unready(report: &GpuReport) -> Option<String> {
    let unsaid = || "its worker is not there yet".to_owned();
    (!report.ready).then(|| report.unready.clone().unwrap_or_else(unsaid))
}

/// Whether a report says nothing that is not known. Nearly all do, so this is asked before anything is copied.
fn is_old_news(entry: &GpuEntry, report: &GpuReport) -> bool {
    let gpu = &entry.gpu;
    let same_gpu = gpu.uuid == report.uuid
        && gpu.model == report.model
        && gpu.memory_bytes == report.memory_bytes
        && gpu.only_pcie == report.only_pcie
        && gpu.guest == report.guest
        && gpu.part == report.part
        && gpu.nvlink_group == report.nvlink_group;
    // On the api plane the ledger does not wait to hear that a borrower is in.
    let bound_known = report.bound_epoch == gpu.bound_epoch || entry.attachment.is_none();
    let same_epochs =
        gpu.cleaned_epoch == report.cleaned_epoch && report.bound_epoch <= gpu.epoch && bound_known;
    let settled = match gpu.state {
        GpuState::Free => is_clean(gpu) && report.health.ok && gpu.health.ok,
        GpuState::Leased | GpuState::Cleaning => !is_clean(gpu) && report.health.ok && gpu.health.ok,
        GpuState::Bad => true,
        GpuState::BurnIn => report.burn_in.as_ref().is_none_or(|result| result.epoch != gpu.epoch),
        GpuState::Absent => false,
    };
    let same_worker = gpu.endpoints == report.endpoints && gpu.unready == unready(report);
    same_gpu && same_epochs && settled && same_worker && !report.must_leave
}
