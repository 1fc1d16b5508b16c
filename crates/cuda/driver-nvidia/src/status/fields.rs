//! Numbered properties (`NVML_FI_*`) that NVML answers for a device.

#![allow(unsafe_code)]

use super::nvml::NvmlDevice;
use cuda_wire::FieldValue;
use nvml_wrapper_sys::bindings::nvmlFieldValue_t;

/// Fields that tools ask for and that mean something on another machine, with how many scopes they have (scope 0: the
/// GPU, 1: the module, 2: the memory). Not among them: NVLink, whose links are not lent.
const FIELDS: &[(std::ops::RangeInclusive<u32>, u32)] = &[
    (1..=6, 1),     // ECC modes and sums
    (29..=31, 1),   // retired pages
    (74..=83, 1),   // time under each performance policy, memory temperature, energy
    (92..=95, 1),   // pending retirements, PCIe replays
    (142..=145, 1), // remapped rows
    (169..=169, 1), // PCIe recoveries
    (173..=184, 1), // PCIe errors
    (185..=192, 3), // power and its limits
    (193..=199, 1), // distances to temperature limits, PCIe bytes
    (228..=230, 1), // PCIe atomics, recovery action
    (269..=271, 1), // time under each slowdown
];

/// Which fields a device has: found out at the first reading.
#[derive(Default)]
pub(super) struct Fields {
    known: Option<Vec<(u32, u32)>>,
}

impl Fields {
    /// The values of all fields that the device has.
    pub(super) fn read(&mut self, device: &NvmlDevice) -> Vec<FieldValue> {
        let asked = self.known.clone().unwrap_or_else(candidates);
        let values = values(device, &asked);
        // Only after a reading that gave something: a device may be too busy to answer at first.
        if self.known.is_none() && !values.is_empty() {
            self.known = Some(values.iter().map(|value| (value.field, value.scope)).collect());
        }
        values
    }
}

fn candidates() -> Vec<(u32, u32)> {
    let each = |(fields, scopes): &(std::ops::RangeInclusive<u32>, u32)| {
        let scopes = *scopes;
        fields.clone().flat_map(move |field| (0..scopes).map(move |scope| (field, scope))).collect::<Vec<_>>()
    };
    FIELDS.iter().flat_map(each).collect()
}

fn values(device: &NvmlDevice, asked: &[(u32, u32)]) -> Vec<FieldValue> {
    let Ok(function) = device.library().nvmlDeviceGetFieldValues.as_ref() else { return Vec::new() };
    let mut values: Vec<nvmlFieldValue_t> = asked
        .iter()
        .map(|&(field, scope)| {
            // SAFETY: all zeros is a valid value of a structure of numbers.
            let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
            (value.fieldId, value.scopeId) = (field, scope);
            value
        })
        .collect();
    // SAFETY: as many structures as is said, valid for the call.
    let code = unsafe { function(device.handle, values.len() as i32, values.as_mut_ptr()) };
    if code != 0 {
        return Vec::new();
    }
    let answered = values.iter().filter(|value| value.nvmlReturn == 0);
    answered
        .map(|value| FieldValue {
            field: value.fieldId,
            scope: value.scopeId,
            value_type: value.valueType,
            // SAFETY: every member of the union is a number, and the rest of it was zeroed.
            bits: unsafe { value.value.ullVal },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_asked_for_once_and_power_by_scope() {
        let all = candidates();
        let once: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(once.len(), all.len());
        assert!(all.contains(&(185, 2)) && all.contains(&(82, 0)) && !all.contains(&(82, 1)));
    }
}
