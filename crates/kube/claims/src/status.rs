//! Writes the driver's words into a claim, as conditions of its devices.

use crate::decide::{Verdict, Word};
use crate::{CONDITION_GRANTED, CONDITION_REFUSED, DRIVER, FINALIZER, POOL};
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A server takes so many characters of a condition's message.
const MESSAGE_CHARS_MAX: usize = 32_768;

/// Says this of the claim's devices. What other drivers say stays.
pub fn write_word(claim: &mut ResourceClaim, word: &Word, now: &Time) {
    let generation = claim.metadata.generation;
    let statuses = claim.status.get_or_insert_default().devices.get_or_insert_default();
    for device in &word.devices {
        let is_own = |status: &AllocatedDeviceStatus| {
            status.driver == DRIVER && status.pool == POOL && status.device == *device
        };
        let at = statuses.iter().position(is_own).unwrap_or_else(|| {
            statuses.push(AllocatedDeviceStatus {
                driver: DRIVER.to_owned(),
                pool: POOL.to_owned(),
                device: device.clone(),
                ..AllocatedDeviceStatus::default()
            });
            statuses.len() - 1
        });
        let conditions = statuses[at].conditions.get_or_insert_default();
        for (name, is_true) in [
            (CONDITION_GRANTED, word.verdict == Verdict::Granted),
            (CONDITION_REFUSED, word.verdict == Verdict::Refused),
        ] {
            let status = if is_true { "True" } else { "False" };
            let before = conditions.iter().find(|one| one.type_ == name && one.status == status);
            let since = before.map_or_else(|| now.clone(), |before| before.last_transition_time.clone());
            conditions.retain(|one| one.type_ != name);
            conditions.push(Condition {
                type_: name.to_owned(),
                status: status.to_owned(),
                reason: word.reason.to_owned(),
                message: word.message.chars().take(MESSAGE_CHARS_MAX).collect(),
                last_transition_time: since,
                observed_generation: generation,
            });
        }
    }
}

/// Puts the driver's finalizer on a claim.
pub fn add_finalizer(claim: &mut ResourceClaim) {
    let finalizers = claim.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
}

/// Takes the driver's finalizer off a claim.
pub fn remove_finalizer(claim: &mut ResourceClaim) {
    if let Some(finalizers) = &mut claim.metadata.finalizers {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
}
