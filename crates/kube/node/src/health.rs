//! The health of the devices of prepared claims, as the kubelet is told it.

use crate::prepared::AllocatedDevice;
use crate::proto::{DeviceHealth, DeviceIdentifier, HealthStatus};
use kube_claims::device_name;
use pool_api::{Lease, LeaseState};

/// The kubelet takes a device for unknown when it hears nothing of it for so long. Longer than a change of the leading
/// manager takes, and several times as long as the pause between two reports.
const TIMEOUT_S: i64 = 60;

/// How the devices of a claim are, when the manager says this of the claim's lease. `now_s` is Unix time.
pub(crate) fn of_claim(devices: &[AllocatedDevice], lease: &Lease, now_s: i64) -> Vec<DeviceHealth> {
    let one = |allocated: &AllocatedDevice| {
        let (health, message) = of_device(&allocated.device, lease);
        DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: allocated.pool.clone(),
                device_name: allocated.device.clone(),
            }),
            health: health.into(),
            last_updated_time: now_s,
            health_check_timeout_seconds: TIMEOUT_S,
            message,
        }
    };
    devices.iter().map(one).collect()
}

fn of_device(device: &str, lease: &Lease) -> (HealthStatus, String) {
    if !lease.state.is_live() {
        let reason = lease.ended.as_ref().map_or("the manager does not say why", |ended| &ended.reason);
        return (HealthStatus::Unhealthy, format!("lease {} is over: {reason}", lease.id));
    }
    if lease.grants.iter().any(|grant| device_name(&grant.gpu) == device) {
        return (HealthStatus::Healthy, String::new());
    }
    if let Some(moved) = lease.moves.iter().rev().find(|moved| device_name(&moved.from) == device) {
        let then = match &moved.to {
            Some(gpu) => format!("the claim's lease has {gpu} in its place"),
            None => "the claim's lease waits for another".to_owned(),
        };
        return (HealthStatus::Unhealthy, format!("GPU {} is lost: {}; {then}", moved.from, moved.reason));
    }
    match lease.state {
        LeaseState::Pending => (HealthStatus::Unhealthy, format!("lease {} waits for its GPU", lease.id)),
        LeaseState::Parked => (HealthStatus::Healthy, format!("lease {} is suspended", lease.id)),
        LeaseState::Granted | LeaseState::Releasing | LeaseState::Ended => {
            (HealthStatus::Unknown, format!("lease {} has another GPU", lease.id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lease(changes: serde_json::Value) -> Lease {
        let mut all = json!({
            "id": 7, "tenant": "t", "owner": "o", "request": {}, "state": "granted", "version": 1,
            "grants": [{"gpu": "a/0", "epoch": 1, "endpoints": [], "model": "soft"}],
            "created_ms": 0, "expires_ms": 0,
        });
        if let Ok(id) = serde_json::to_value(pool_api::LeaseId(7)) {
            all["id"] = id;
        }
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    fn told(lease: &Lease) -> (i32, String) {
        let device = AllocatedDevice {
            request: "gpu".to_owned(),
            pool: "dxpu".to_owned(),
            device: "a-0".to_owned(),
            share: None,
        };
        let health = of_claim(&[device], lease, 5).remove(0);
        assert_eq!(health.last_updated_time, 5);
        assert_eq!(health.device.unwrap().device_name, "a-0");
        (health.health, health.message)
    }

    #[test]
    fn a_device_is_healthy_while_its_lease_has_it_and_says_why_when_not() {
        assert_eq!(told(&lease(json!({}))), (HealthStatus::Healthy.into(), String::new()));
        let moved = |to| json!([{"from": "a/0", "to": to, "at_ms": 0, "reason": "it fell off the bus"}]);
        let elsewhere = json!([{"gpu": "b/0", "epoch": 1, "endpoints": [], "model": "soft"}]);
        for (changes, words) in [
            (json!({"grants": elsewhere, "moves": moved(json!("b/0"))}), ["it fell off the bus", "has b/0"]),
            (
                json!({"grants": [], "state": "pending", "moves": moved(json!(null))}),
                ["a/0 is lost", "waits"],
            ),
            (json!({"state": "ended", "ended": {"at_ms": 0, "reason": "expired"}}), ["is over", "expired"]),
            (json!({"grants": [], "state": "pending"}), ["lease", "waits for its GPU"]),
        ] {
            let (health, message) = told(&lease(changes));
            assert_eq!(health, i32::from(HealthStatus::Unhealthy), "{message}");
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}
