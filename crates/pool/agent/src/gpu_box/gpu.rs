//! The GPUs of a box.

use super::nvml::{Nvml, Sensors};
use crate::error::AgentError;
use driver_soft::SoftConfig;
use pool_api::{Counters, FIRST_GUEST_SLOT, Guest, Model};
use std::sync::Arc;

/// What a slot holds.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(crate) slot: u8,
    pub(crate) model: Model,
    pub(crate) memory_bytes: u64,
    pub(crate) uuid: String,
    pub(crate) nvlink_group: Option<u32>,
    pub(crate) what: What,
    /// It is a seat for guests on the GPU of another slot, whose UUID it has.
    pub(crate) guest: Option<Guest>,
    /// Memory that a seat on it has; 0 without one.
    pub(crate) seat_bytes: u64,
}

/// How a GPU is driven.
#[derive(Clone)]
pub(crate) enum What {
    /// In software.
    Soft {
        /// What tells it from others.
        identity: String,
    },
    /// By NVIDIA's driver.
    Nvidia(Arc<Sensors>),
}

/// A reading of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    pub(crate) counters: Option<Counters>,
    /// What is wrong with it.
    pub(crate) fault: Option<String>,
}

/// GPUs in software.
pub(crate) fn soft(box_name: &str, count: u8, memory_bytes: u64, model: &Model) -> Vec<Gpu> {
    let one = |slot: u8| {
        let identity = format!("{box_name}/{slot}");
        let config = SoftConfig { identity: identity.clone(), ..SoftConfig::default() };
        Gpu {
            slot,
            model: model.clone(),
            memory_bytes,
            uuid: uuid_text(&config.uuid(0)),
            nvlink_group: None,
            what: What::Soft { identity },
            guest: None,
            seat_bytes: 0,
        }
    };
    (0..count).map(one).collect()
}

/// The GPUs of this machine.
pub(crate) fn nvidia() -> anyhow::Result<Vec<Gpu>> {
    let nvml = Arc::new(Nvml::open().map_err(AgentError::NoDriver)?);
    let found = nvml.gpus()?;
    if found.is_empty() {
        return Err(AgentError::NoGpu.into());
    }
    let gpu = |(slot, found): (usize, super::nvml::Found)| Gpu {
        slot: slot as u8,
        model: model_of(&found.name),
        memory_bytes: found.memory_bytes,
        uuid: found.uuid.clone(),
        nvlink_group: found.is_nvlinked.then_some(0),
        what: What::Nvidia(Arc::new(Sensors::new(nvml.clone(), found.uuid))),
        guest: None,
        seat_bytes: 0,
    };
    Ok(found.into_iter().take(pool_api::SLOTS_PER_BOX_MAX.into()).enumerate().map(gpu).collect())
}

/// The GPUs of a box, and a seat for guests on each that has a slot for it.
pub(crate) fn with_seats(gpus: Vec<Gpu>, seat_bytes: u64, any_tenant: bool) -> Result<Vec<Gpu>, AgentError> {
    let least = gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(u64::MAX);
    if seat_bytes == 0 || seat_bytes >= least {
        return Err(AgentError::GuestMemory { asked_bytes: seat_bytes, least_bytes: least });
    }
    let has_seat = |gpu: &&Gpu| gpu.slot < FIRST_GUEST_SLOT;
    let seat = |gpu: &Gpu| Gpu {
        slot: FIRST_GUEST_SLOT + gpu.slot,
        memory_bytes: seat_bytes,
        nvlink_group: None,
        guest: Some(Guest { of: gpu.slot, any_tenant }),
        ..gpu.clone()
    };
    let seats: Vec<Gpu> = gpus.iter().filter(has_seat).map(seat).collect();
    // A slot beyond those that have seats would have the number of a seat.
    let hosts = gpus.into_iter().filter(|gpu| has_seat(&gpu)).map(|gpu| Gpu { seat_bytes, ..gpu });
    Ok(hosts.chain(seats).collect())
}

impl Gpu {
    /// The slot whose GPU it is on: its own, unless it is a seat.
    pub(crate) fn host_slot(&self) -> u8 {
        self.guest.map_or(self.slot, |guest| guest.of)
    }

    /// What it measures now, and whether that is alarming.
    pub(crate) fn read(&self) -> Reading {
        match &self.what {
            // A GPU in software has no sensors; whether it works shows when it is used.
            What::Soft { .. } => Reading::default(),
            What::Nvidia(sensors) => sensors.read(),
        }
    }
}

/// The model's name as people ask for it: `H200`, not `NVIDIA H200`.
fn model_of(name: &str) -> Model {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || " ._+-".contains(c) { c } else { ' ' })
        .collect();
    let short = plain.trim().strip_prefix("NVIDIA ").unwrap_or(plain.trim()).trim();
    let cut: String = short.chars().take(64).collect();
    Model::new(cut.trim_matches(|c: char| !c.is_ascii_alphanumeric()))
        .unwrap_or_else(|_| Model::new("unknown").expect("a plain word"))
}

/// A UUID as NVML writes it.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_as_people_ask_for_them() {
        for (name, model) in [
            ("NVIDIA H200", "H200"),
            ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
            ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
            ("NVIDIA GB200 (x)", "GB200  x"),
            ("", "unknown"),
        ] {
            assert_eq!(model_of(name).as_str(), model, "{name}");
        }
    }

    #[test]
    fn a_seat_is_on_its_gpu_and_has_memory_of_its_own() {
        let model = Model::new("soft").unwrap();
        let gpus = || soft("a", 2, 8 << 30, &model);
        let all = with_seats(gpus(), 2 << 30, true).unwrap();
        let seen: Vec<_> =
            all.iter().map(|gpu| (gpu.slot, gpu.host_slot(), gpu.memory_bytes >> 30)).collect();
        assert_eq!(seen, [(0, 0, 8), (1, 1, 8), (32, 0, 2), (33, 1, 2)]);
        assert_eq!((&all[2].uuid, all[0].seat_bytes >> 30), (&all[0].uuid, 2));
        assert!(with_seats(gpus(), 8 << 30, false).is_err() && with_seats(gpus(), 0, false).is_err());
    }

    #[test]
    fn soft_gpus_of_different_boxes_and_slots_are_different_gpus() {
        let model = Model::new("soft").unwrap();
        let (a, b) = (soft("a", 2, 1 << 30, &model), soft("b", 2, 1 << 30, &model));
        let mut uuids: Vec<&str> = a.iter().chain(&b).map(|gpu| gpu.uuid.as_str()).collect();
        uuids.sort_unstable();
        uuids.dedup();
        assert_eq!(uuids.len(), 4);
        assert!(uuids[0].starts_with("GPU-") && uuids[0].len() == 40, "{}", uuids[0]);
        assert_eq!(soft("a", 1, 1 << 30, &model)[0].uuid, a[0].uuid, "the same after a restart");
    }
}
