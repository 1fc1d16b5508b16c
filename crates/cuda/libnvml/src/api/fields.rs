//! Numbered properties, many at a time.

use crate::{
    abi::{FieldValue, NvmlError},
    border::Many,
    state::Device,
};
use std::time::SystemTime;

/// No program asks for more at a time: there are not as many fields.
const FIELDS_MAX: i32 = 4096;

exports! {
    fn [nvmlDeviceGetFieldValues](device: Device, count: i32, values: Many<FieldValue>) {
        if !(1..=FIELDS_MAX).contains(&count) {
            return Err(NvmlError::InvalidArgument);
        }
        let it = device.status()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let timestamp = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        for index in 0..count as usize {
            let place = values.at(index)?;
            let asked = place.get();
            let found = it.fields.iter().find(|row| (row.field, row.scope) == (asked.field_id, asked.scope_id));
            place.set(match found {
                Some(row) => FieldValue {
                    timestamp,
                    latency_usec: 0,
                    value_type: row.value_type,
                    nvml_return: 0,
                    value: row.bits,
                    ..asked
                },
                // Each field has a code of its own; the call as a whole succeeds.
                None => FieldValue { timestamp, nvml_return: NvmlError::NotSupported as u32, ..asked },
            })?;
        }
        Ok(())
    }
}
