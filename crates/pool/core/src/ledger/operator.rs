//! What people do by hand.

use super::command::{Answer, Refusal};
use super::gpu_life::GpuEvent;
use super::grants::next_epoch;
use super::{Ledger, Note};
use pool_api::{
    EventKind, GpuId, GpuState, Model, Name, SpareRecord, SpareRequest, Taint, TenantRecord, TenantRequest,
};

impl Ledger {
    pub(super) fn taint(
        &mut self,
        id: &GpuId,
        reason: &str,
        by: &str,
        drain: bool,
    ) -> Result<Answer, Refusal> {
        self.check_known(id)?;
        self.parts_beside(id).iter().for_each(|one| self.taint_one(one, reason, by, drain));
        Ok(self.show_gpu(id))
    }

    fn check_known(&self, id: &GpuId) -> Result<(), Refusal> {
        self.entry(id).map(drop).ok_or_else(|| Refusal::NoGpu { gpu: id.clone() })
    }

    fn taint_one(&mut self, id: &GpuId, reason: &str, by: &str, drain: bool) {
        let since_ms = self.now_ms;
        let Some(entry) = self.entry_mut(id) else { return };
        let taint = Taint { reason: reason.to_owned(), by: by.to_owned(), since_ms, drain };
        // Doing it again changes nothing, so that it may be repeated.
        let same = |old: &Taint| old.reason == taint.reason && old.by == taint.by && old.drain == taint.drain;
        if !entry.gpu.taint.as_ref().is_some_and(same) {
            *entry.gpu.edit().taint = Some(taint);
            *entry.gpu.edit().spare = false;
            self.draft.gpus.insert(id.clone());
            let what = if drain { "drained" } else { "tainted" };
            self.note(Note::new(EventKind::GpuTainted, format!("{id} is {what} by {by}: {reason}")).gpu(id));
            self.restand(id);
            self.spares_stirred = true;
        }
        if drain {
            self.want_empty(id);
        }
    }

    fn want_empty(&mut self, id: &GpuId) {
        let holders = self.entry(id).into_iter().flat_map(|entry| &entry.gpu.holders);
        let holders: Vec<_> = holders.map(|holder| holder.lease).collect();
        self.unwanted.extend(holders);
        self.unwanted_tried = u64::MAX;
    }

    pub(super) fn untaint(&mut self, id: &GpuId) -> Result<Answer, Refusal> {
        self.check_known(id)?;
        for id in &self.parts_beside(id) {
            let Some(entry) = self.entry_mut(id) else { continue };
            if entry.gpu.edit().taint.take().is_some() {
                self.draft.gpus.insert(id.clone());
                self.note(Note::new(EventKind::GpuUntainted, format!("{id} takes leases again")).gpu(id));
                self.restand(id);
            }
        }
        Ok(self.show_gpu(id))
    }

    pub(super) fn drain_box(&mut self, name: &Name, reason: &str, by: &str) -> Result<Answer, Refusal> {
        let since_ms = self.now_ms;
        let entry = self.boxes.get_mut(name).ok_or_else(|| Refusal::NoBox { box_name: name.clone() })?;
        // A cordon becomes a drain.
        if !entry.record.drain.as_ref().is_some_and(|old| old.drain) {
            let taint = Taint { reason: reason.to_owned(), by: by.to_owned(), since_ms, drain: true };
            entry.record.drain = Some(taint);
            self.draft.boxes.insert(name.clone());
            self.note(
                Note::new(EventKind::BoxDrained, format!("box {name} is drained by {by}: {reason}"))
                    .of_box(name),
            );
            self.restand_box(name);
        }
        for id in self.gpus_of(name) {
            self.want_empty(&id);
        }
        Ok(self.show_box(name))
    }

    pub(super) fn undrain_box(&mut self, name: &Name) -> Result<Answer, Refusal> {
        let entry = self.boxes.get_mut(name).ok_or_else(|| Refusal::NoBox { box_name: name.clone() })?;
        if entry.record.drain.take().is_some() {
            self.draft.boxes.insert(name.clone());
            self.note(
                Note::new(EventKind::BoxUndrained, format!("box {name} takes leases again")).of_box(name),
            );
            self.restand_box(name);
        }
        Ok(self.show_box(name))
    }

    pub(super) fn break_gpu(&mut self, id: &GpuId, reason: &str) -> Result<Answer, Refusal> {
        self.check_known(id)?;
        for id in &self.parts_beside(id) {
            if self.entry(id).is_some_and(|entry| entry.gpu.state != GpuState::Bad) {
                self.go_bad(id, reason);
            }
        }
        Ok(self.show_gpu(id))
    }

    pub(super) fn repair(&mut self, id: &GpuId) -> Result<Answer, Refusal> {
        self.check_known(id)?;
        let parts = self.parts_beside(id);
        let state = |id: &GpuId| self.entry(id).map(|entry| entry.gpu.state);
        // One that is tested was said to be repaired before.
        if !parts.iter().any(|one| matches!(state(one), Some(GpuState::Bad | GpuState::BurnIn))) {
            return Err(Refusal::NotBad { gpu: id.clone() });
        }
        for id in parts.iter().filter(|one| state(one) == Some(GpuState::Bad)).cloned().collect::<Vec<_>>() {
            let Some(entry) = self.entry_mut(&id) else { continue };
            // The test has an epoch of its own: what was reported of an earlier one does not count.
            *entry.gpu.edit().epoch = next_epoch(entry.gpu.epoch);
            entry.gpu.on(GpuEvent::Repaired);
            self.draft.gpus.insert(id.clone());
            self.note(Note::new(EventKind::GpuRepaired, format!("{id} is said to be repaired")).gpu(&id));
            self.restand(&id);
        }
        Ok(self.show_gpu(id))
    }

    pub(super) fn set_tenant(&mut self, name: &Name, request: &TenantRequest) -> Result<Answer, Refusal> {
        request.check()?;
        let record = TenantRecord::set(name.clone(), request);
        let entry = self.tenant(name);
        if entry.record != record || !entry.stored {
            entry.record = record.clone();
            entry.stored = true;
            self.draft.tenants.insert(name.clone());
            self.note(
                Note::new(EventKind::TenantChanged, format!("tenant {name} has new quotas")).tenant(name),
            );
            self.queue_stirred = true;
        }
        Ok(Answer::Tenant(record))
    }

    pub(super) fn set_spares(&mut self, model: &Model, request: &SpareRequest) -> Result<Answer, Refusal> {
        request.check()?;
        if self.spares_wanted.get(model) != Some(&request.count) {
            self.spares_wanted.insert(model.clone(), request.count);
            self.draft.spares.insert(model.clone());
            let message = format!("{} spares of {model} shall be held back", request.count);
            self.note(Note::new(EventKind::SparesChanged, message));
            self.spares_stirred = true;
        }
        Ok(Answer::Spare(SpareRecord { model: model.clone(), count: request.count }))
    }

    fn show_gpu(&self, id: &GpuId) -> Answer {
        Answer::Gpu(Box::new(self.gpu(id).expect("it was there just now")))
    }

    pub(super) fn show_box(&self, name: &Name) -> Answer {
        Answer::Box(self.gpu_box(name).expect("it was there just now"))
    }
}
