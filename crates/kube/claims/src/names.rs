//! Names that controller, node plugin, chart and cluster share.

use pool_api::{GpuId, NOTE_CHARS_MAX};

/// The driver's name: in ResourceSlices, allocations, opaque parameters and the kubelet's registration.
pub const DRIVER: &str = "dxpu.dev";
/// The Kubernetes resource pool that all slices belong to.
pub const POOL: &str = "dxpu";
/// The DeviceClass that the chart makes.
pub const DEVICE_CLASS: &str = "gpu.dxpu.dev";
/// The extended resource that the chart's DeviceClass maps, unless a value of the chart says otherwise.
pub const EXTENDED_RESOURCE_DEFAULT: &str = "dxpu.dev/gpu";
/// The binding condition: the claim's lease is granted, with exactly the allocated GPUs.
pub const CONDITION_GRANTED: &str = "dxpu.dev/granted";
/// The binding failure condition: the claim's lease cannot be granted.
pub const CONDITION_REFUSED: &str = "dxpu.dev/refused";
/// Keeps a claim until its lease is returned.
pub const FINALIZER: &str = "dxpu.dev/lease";
/// `apiVersion` of the driver's opaque parameters.
pub const API_VERSION: &str = "dxpu.dev/v1";
/// `kind` of the driver's opaque parameters.
pub const CONFIG_KIND: &str = "GpuConfig";

/// What a lease key begins with.
const KEY_PREFIX: &str = "kube-";
/// A device's name is a DNS label.
const DEVICE_NAME_MAX: usize = 63;
/// Hexadecimal digits of a box's hash in a device's name: with a few hundred boxes a collision is out of the question, and
/// the slices drop a device whose name is taken.
const HASH_DIGITS: usize = 8;

/// The idempotency key and the label of a claim's lease.
pub fn lease_key(claim_uid: &str) -> String {
    format!("{KEY_PREFIX}{claim_uid}")
}

/// The UID of the claim that a lease with this key or label belongs to.
pub fn uid_of_key(key: &str) -> Option<&str> {
    key.strip_prefix(KEY_PREFIX).filter(|uid| !uid.is_empty())
}

/// The note of a claim's lease, for people. It is cut to what a note may have; programs use [`lease_key`].
pub fn lease_note(namespace: &str, claim: &str) -> String {
    format!("kubernetes {namespace}/{claim}").chars().take(NOTE_CHARS_MAX).collect()
}

/// A GPU's name as a device: `BOX-SLOT`. The name of a box may have dots and as many letters as a whole DNS label;
/// then a part of the box's name and its hash stand for it.
pub fn device_name(gpu: &GpuId) -> String {
    let name = gpu.box_name.as_str();
    let slot = gpu.slot.to_string();
    if !name.contains('.') && name.len() + 1 + slot.len() <= DEVICE_NAME_MAX {
        return format!("{name}-{slot}");
    }
    let hash = &blake3::hash(name.as_bytes()).to_hex()[..HASH_DIGITS];
    let room = DEVICE_NAME_MAX - HASH_DIGITS - slot.len() - 2;
    let part: String = name.chars().take(room).map(|c| if c == '.' { '-' } else { c }).collect();
    format!("{part}-{hash}-{slot}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_dns_labels_and_tell_boxes_apart() {
        let of = |text: &str| device_name(&text.parse().unwrap());
        assert_eq!(of("rack1-a/3"), "rack1-a-3");
        let long = "x".repeat(63);
        let names =
            [of("a.b/1"), of("a-b/1"), of("a--b/1"), of(&format!("{long}/63")), of(&format!("{long}/6"))];
        for (index, name) in names.iter().enumerate() {
            assert!(name.len() <= 63 && !name.contains('.') && !name.contains('/'), "{name}");
            assert!(!name.starts_with('-') && !name.ends_with('-'), "{name}");
            assert!(!names[..index].contains(name), "{name} twice");
        }
    }

    #[test]
    fn the_key_names_the_claim_and_the_note_fits() {
        assert_eq!(uid_of_key(&lease_key("3f2a-1")), Some("3f2a-1"));
        assert_eq!(uid_of_key("kube-"), None);
        assert_eq!(uid_of_key("3f2a-1"), None);
        assert_eq!(lease_note("default", "train"), "kubernetes default/train");
        assert_eq!(lease_note(&"n".repeat(63), &"c".repeat(253)).chars().count(), NOTE_CHARS_MAX);
    }
}
