//! Slots without GPUs, for trying out managers: the same brain, hands that only pretend.

use super::agent::Hands;
use super::brain::{self, Action, Seen, WorkerSeen};
use lease_fence::Epochs;
use pool_api::{BoxKind, BurnIn, Counters, GpuReport, Health, Model, Name, Want};
use serde::Deserialize;
use std::path::PathBuf;

/// Reads an amount of memory as people write it, such as `80GiB`.
pub type ReadBytes = fn(&str) -> anyhow::Result<u64>;

/// What `--simulate FILE` holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) boxes: Vec<PlannedBox>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlannedBox {
    pub(crate) name: Name,
    pub(crate) kind: BoxKind,
    #[serde(default)]
    pub(crate) rack: String,
    /// The file to join with, from the directory of the plan on.
    pub(crate) join: Option<PathBuf>,
    pub(crate) gpus: Vec<PlannedGpus>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlannedGpus {
    pub(crate) model: Model,
    /// As people write it: `80GiB`.
    pub(crate) memory: String,
    #[serde(default = "one")]
    pub(crate) count: u8,
    #[serde(default)]
    pub(crate) nvlink_group: Option<u32>,
}

fn one() -> u8 {
    1
}

impl PlannedBox {
    /// The slots of the box. They begin as new: a simulated box has no disk.
    pub(crate) fn slots(&self, read_bytes: ReadBytes) -> anyhow::Result<Vec<Box<dyn Hands>>> {
        let mut slots: Vec<Box<dyn Hands>> = Vec::new();
        for gpus in &self.gpus {
            let memory_bytes = read_bytes(&gpus.memory)?;
            for _ in 0..gpus.count {
                let slot = u8::try_from(slots.len())?;
                anyhow::ensure!(slot < pool_api::SLOTS_PER_BOX_MAX, "{} has too many GPUs", self.name);
                let report = GpuReport {
                    slot,
                    model: gpus.model.clone(),
                    memory_bytes,
                    uuid: format!("SIM-{}-{slot}", self.name),
                    nvlink_group: gpus.nvlink_group,
                    only_pcie: false,
                    guest: None,
                    part: None,
                    health: Health::OK,
                    bound_epoch: 0,
                    cleaned_epoch: 0,
                    ready: false,
                    unready: None,
                    endpoints: vec![format!("tls:{}.invalid:{}", self.name, 7400 + u16::from(slot))],
                    counters: None,
                    burn_in: None,
                    must_leave: false,
                    sharing: None,
                };
                slots.push(Box::new(Simulated {
                    report,
                    epochs: Epochs::default(),
                    is_running: false,
                    steps: 0,
                }));
            }
        }
        Ok(slots)
    }
}

struct Simulated {
    report: GpuReport,
    epochs: Epochs,
    is_running: bool,
    /// How often it was looked after: its clock.
    steps: u64,
}

impl Simulated {
    /// A GPU in use is busy, one more than the other and now more than then.
    fn counters(&self) -> Counters {
        let is_used = self.epochs.is_used();
        let wave = (self.steps / 4 + u64::from(self.report.slot) * 7) % 40;
        let busy = u32::try_from(if wave < 20 { wave } else { 40 - wave }).unwrap_or(0);
        Counters {
            utilization_pct: Some(if is_used { 60 + 2 * busy } else { 0 }),
            memory_used_bytes: Some(if is_used { self.report.memory_bytes / 5 * 4 } else { 0 }),
            temperature_c: Some(if is_used { 61 } else { 33 }),
            power_mw: Some(if is_used { 420_000 + 9_000 * u64::from(busy) } else { 72_000 }),
            ecc_uncorrected: Some(0),
            ..Counters::default()
        }
    }
}

impl Hands for Simulated {
    fn step(&mut self, want: &Want) -> bool {
        self.steps += 1;
        // The borrower of a lease comes at once.
        if let Want::Serve { epoch, .. } = want
            && self.is_running
            && let Ok(epochs) = self.epochs.admit(*epoch)
        {
            self.epochs = epochs;
        }
        let seen = Seen {
            worker: if self.is_running { WorkerSeen::Running } else { WorkerSeen::None },
            epochs: self.epochs,
            is_dirty: false,
            is_bad: false,
            is_unplugged: false,
            burn_in: self.report.burn_in.as_ref().map(|result| (result.epoch, result.passed)),
            is_resting: false,
            is_mute: false,
        };
        let action = brain::decide(&seen, want);
        match action {
            Action::Nothing | Action::Scrub => {}
            Action::Start => self.is_running = true,
            Action::Kill => self.is_running = false,
            Action::MarkClean(epoch) => self.epochs = self.epochs.clean(epoch),
            Action::MarkCleanIfUnused(epoch) if !self.epochs.is_used() => {
                self.epochs = self.epochs.clean(epoch)
            }
            Action::MarkCleanIfUnused(_) => {}
            Action::BurnIn(epoch) => {
                self.report.burn_in = Some(BurnIn { epoch, passed: true, detail: "pretended".to_owned() });
            }
        }
        self.report.bound_epoch = self.epochs.bound;
        self.report.cleaned_epoch = self.epochs.cleaned;
        self.report.ready = self.is_running;
        action != Action::Nothing
    }

    fn report(&self) -> GpuReport {
        GpuReport { counters: Some(self.counters()), ..self.report.clone() }
    }

    fn stop(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::LeaseId;

    #[test]
    fn a_plan_is_read_and_its_slots_obey() {
        let plan: Plan = serde_json::from_str(
            r#"{"boxes":[{"name":"a","kind":"nvlink","gpus":[{"model":"H200","memory":"141","count":8,"nvlink_group":0}]}]}"#,
        )
        .unwrap();
        let mut slots = plan.boxes[0].slots(|text| Ok(text.parse()?)).unwrap();
        assert_eq!(slots.len(), 8);
        let slot = &mut slots[3];
        let serve = Want::Serve {
            lease: LeaseId(1),
            epoch: 5,
            since_epoch: 0,
            expires_ms: 0,
            memory_bytes: 0,
            share_milli: 1000,
            tenant: Name::new("t").unwrap(),
            pcie: None,
        };
        while slot.step(&serve) {}
        assert!(!slot.step(&serve));
        assert_eq!(
            (slot.report().bound_epoch, slot.report().cleaned_epoch, slot.report().ready),
            (5, 4, true)
        );
        assert!(slot.report().counters.unwrap().utilization_pct.unwrap() >= 60, "somebody uses it");
        while slot.step(&Want::Clean { epoch: 5 }) {}
        assert_eq!((slot.report().cleaned_epoch, slot.report().ready), (5, true));
        assert_eq!(slot.report().counters.unwrap().utilization_pct, Some(0));
    }
}
