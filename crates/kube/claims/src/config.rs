//! The driver's opaque parameters, in a claim or a DeviceClass.
//!
//! ```yaml
//! apiVersion: dxpu.dev/v1
//! kind: GpuConfig
//! survive: "on"          # programs of the claim outlive the loss of a GPU
//! onLoss: survive        # restart: the pod is evicted and starts anew
//! shareMilli: 500        # half of a GPU's time
//! memory: 20Gi           # and so much of its memory
//! ```

use crate::{API_VERSION, CONFIG_KIND};
use pool_api::{Share, Survive};
use serde::{Deserialize, Serialize};

/// Thousandths of a whole GPU.
const WHOLE_MILLI: u32 = 1000;

/// What a claim wants of its GPUs beyond their number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct GpuConfig {
    /// Whether programs outlive the loss of a GPU.
    pub survive: SurviveConfig,
    /// What happens to the pod when a GPU of the claim is lost.
    pub on_loss: OnLoss,
    /// A part of one GPU instead of a whole one.
    pub share: Option<Share>,
}

/// Whether programs outlive the loss of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SurviveConfig {
    /// They see a CUDA error.
    #[default]
    Off,
    /// They go on at another GPU.
    On,
}

impl SurviveConfig {
    /// As a lease request says it.
    pub fn of_lease(self) -> Survive {
        match self {
            Self::Off => Survive::None,
            Self::On => Survive::Gpu,
        }
    }
}

/// What happens to the pod when a GPU of the claim is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// Kubernetes evicts it, and its owner starts it anew with another GPU.
    #[default]
    Restart,
    /// It goes on: its lease moves to another GPU. Needs `survive: "on"`.
    Survive,
}

/// The parameters are not what this version of the driver knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No JSON object of this form.
    #[error("the parameters of driver dxpu.dev cannot be read: {0}")]
    Form(String),
    /// Of another API.
    #[error(
        "the parameters of driver dxpu.dev must have apiVersion {API_VERSION} and kind {CONFIG_KIND}, not {api_version} and {kind}"
    )]
    Kind {
        /// What is written there.
        api_version: String,
        /// What is written there.
        kind: String,
    },
    /// A value that cannot be.
    #[error("{field} in the parameters of driver dxpu.dev {rule}")]
    Value {
        /// Where.
        field: &'static str,
        /// What would be right.
        rule: &'static str,
    },
}

impl GpuConfig {
    /// Reads opaque parameters.
    pub fn read(parameters: &serde_json::Value) -> Result<Self, ConfigError> {
        let written: Written = serde_json::from_value(parameters.clone())
            .map_err(|error| ConfigError::Form(error.to_string()))?;
        Self::try_from(written)
    }
}

/// As it is written in a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Written {
    api_version: String,
    kind: String,
    #[serde(default)]
    survive: SurviveConfig,
    #[serde(default)]
    on_loss: OnLoss,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    share_milli: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
}

impl TryFrom<Written> for GpuConfig {
    type Error = ConfigError;

    fn try_from(written: Written) -> Result<Self, ConfigError> {
        let Written { api_version, kind, survive, on_loss, share_milli, memory } = written;
        if api_version != API_VERSION || kind != CONFIG_KIND {
            return Err(ConfigError::Kind { api_version, kind });
        }
        if on_loss == OnLoss::Survive && survive == SurviveConfig::Off {
            let rule = "can be survive only with survive: \"on\"";
            return Err(ConfigError::Value { field: "onLoss", rule });
        }
        let share = match (share_milli, memory) {
            (None, None) => None,
            (None, Some(_)) | (Some(_), None) => {
                let rule = "and memory go together: a share has a part of the time and a part of the memory";
                return Err(ConfigError::Value { field: "shareMilli", rule });
            }
            (Some(milli), Some(memory)) => {
                if !(1..=WHOLE_MILLI).contains(&milli) {
                    return Err(ConfigError::Value { field: "shareMilli", rule: "must be 1 to 1000" });
                }
                let rule = "must be a quantity of bytes, such as 20Gi";
                let memory_bytes = bytes_of_quantity(&memory)
                    .filter(|bytes| *bytes > 0)
                    .ok_or(ConfigError::Value { field: "memory", rule })?;
                Some(Share { milli, memory_bytes })
            }
        };
        Ok(Self { survive, on_loss, share })
    }
}

impl From<GpuConfig> for Written {
    fn from(config: GpuConfig) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: CONFIG_KIND.to_owned(),
            survive: config.survive,
            on_loss: config.on_loss,
            share_milli: config.share.map(|share| share.milli),
            memory: config.share.map(|share| share.memory_bytes.to_string()),
        }
    }
}

/// The bytes of a Kubernetes quantity with a whole number: `20Gi`, `500M`, `1024`.
fn bytes_of_quantity(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("", 1),
    ];
    let (digits, unit) = UNITS.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(more: serde_json::Value) -> Result<GpuConfig, ConfigError> {
        let mut all = json!({"apiVersion": "dxpu.dev/v1", "kind": "GpuConfig"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        GpuConfig::read(&all)
    }

    #[test]
    fn parameters_are_read_and_what_is_unknown_is_refused() {
        assert_eq!(read(json!({})), Ok(GpuConfig::default()));
        let config =
            read(json!({"survive": "on", "onLoss": "survive", "shareMilli": 500, "memory": "20Gi"})).unwrap();
        assert_eq!(config.survive.of_lease(), Survive::Gpu);
        assert_eq!(config.share, Some(Share { milli: 500, memory_bytes: 20 << 30 }));
        assert_eq!(
            serde_json::from_value::<GpuConfig>(serde_json::to_value(&config).unwrap()).unwrap(),
            config
        );
        for (wrong, word) in [
            (json!({"survives": "on"}), "survives"),
            (json!({"kind": "MigConfig"}), "MigConfig"),
            (json!({"apiVersion": "dxpu.dev/v2"}), "dxpu.dev/v2"),
            (json!({"onLoss": "survive"}), "onLoss"),
            (json!({"onLoss": "ignore"}), "ignore"),
            (json!({"shareMilli": 500}), "shareMilli"),
            (json!({"memory": "1Gi"}), "shareMilli"),
            (json!({"shareMilli": 1001, "memory": "1Gi"}), "shareMilli"),
            (json!({"shareMilli": 1, "memory": "1.5 GB"}), "memory"),
            (json!({"shareMilli": 1, "memory": "0"}), "memory"),
        ] {
            let error = read(wrong.clone()).unwrap_err().to_string();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn quantities_are_bytes() {
        assert_eq!(bytes_of_quantity("20Gi"), Some(20 << 30));
        assert_eq!(bytes_of_quantity("500M"), Some(500_000_000));
        assert_eq!(bytes_of_quantity("7"), Some(7));
        assert_eq!(bytes_of_quantity("Gi"), None);
        assert_eq!(bytes_of_quantity("-1Gi"), None);
        assert_eq!(bytes_of_quantity("99999999999Ti"), None);
    }
}
