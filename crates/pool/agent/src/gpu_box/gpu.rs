//! The GPUs of a box.

use super::nvml::Nvml;
use crate::error::AgentError;
use driver_soft::SoftConfig;
use pool_api::{Counters, Model};
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
    Nvidia(Arc<Nvml>),
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
        uuid: found.uuid,
        nvlink_group: found.is_nvlinked.then_some(0),
        what: What::Nvidia(nvml.clone()),
    };
    Ok(found.into_iter().take(pool_api::SLOTS_PER_BOX_MAX.into()).enumerate().map(gpu).collect())
}

impl Gpu {
    /// What it measures now, and whether that is alarming.
    pub(crate) fn read(&self) -> Reading {
        match &self.what {
            // A GPU in software has no sensors; whether it works shows when it is used.
            What::Soft { .. } => Reading::default(),
            What::Nvidia(nvml) => nvml.read(&self.uuid),
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
