//! Memory errors that a device has counted.

use crate::{
    abi::{EccErrorCounts, NvmlError, NvmlResult, RowRemapperHistogram},
    border::Out,
    state::Device,
};
use cuda_wire::DeviceStatus;

/// `NVML_MEMORY_LOCATION_*`.
const L1_CACHE: u32 = 0;
const L2_CACHE: u32 = 1;
const DEVICE_MEMORY: u32 = 2;
const REGISTER_FILE: u32 = 3;

exports! {
    fn [nvmlDeviceGetTotalEccErrors](device: Device, error_type: u32, counter_type: u32, count: Out<u64>) {
        check(error_type, counter_type)?;
        count.give(counted(&device.status()?, error_type, counter_type, None))
    }

    fn [nvmlDeviceGetMemoryErrorCounter](
        device: Device,
        error_type: u32,
        counter_type: u32,
        location: u32,
        count: Out<u64>,
    ) {
        check(error_type, counter_type)?;
        count.give(counted(&device.status()?, error_type, counter_type, Some(location)))
    }

    fn [nvmlDeviceGetDetailedEccErrors](
        device: Device,
        error_type: u32,
        counter_type: u32,
        counts: Out<EccErrorCounts>,
    ) {
        check(error_type, counter_type)?;
        let it = device.status()?;
        let at = |location| counted(&it, error_type, counter_type, Some(location));
        // A device that counts none of them has no such counters; one that counts some has no errors in the others.
        if [L1_CACHE, L2_CACHE, DEVICE_MEMORY, REGISTER_FILE].into_iter().all(|place| at(place).is_none()) {
            return Err(NvmlError::NotSupported);
        }
        counts.set(EccErrorCounts {
            l1_cache: at(L1_CACHE).unwrap_or(0),
            l2_cache: at(L2_CACHE).unwrap_or(0),
            device_memory: at(DEVICE_MEMORY).unwrap_or(0),
            register_file: at(REGISTER_FILE).unwrap_or(0),
        })
    }

    fn [nvmlDeviceGetRemappedRows](
        device: Device,
        correctable: Out<u32>,
        uncorrectable: Out<u32>,
        is_pending: Out<u32>,
        has_failed: Out<u32>,
    ) {
        let rows = device.status()?.remapped_rows.ok_or(NvmlError::NotSupported)?;
        correctable.set(rows[0])?;
        uncorrectable.set(rows[1])?;
        is_pending.set(rows[2])?;
        has_failed.set(rows[3])
    }

    fn [nvmlDeviceGetRowRemapperHistogram](device: Device, histogram: Out<RowRemapperHistogram>) {
        let given = device.status()?.row_remapper_histogram;
        histogram.give(given.map(|[max, high, partial, low, none]| RowRemapperHistogram {
            max,
            high,
            partial,
            low,
            none,
        }))
    }
}

/// Two types of errors, two types of counters.
fn check(error_type: u32, counter_type: u32) -> NvmlResult<()> {
    if error_type < 2 && counter_type < 2 { Ok(()) } else { Err(NvmlError::InvalidArgument) }
}

fn counted(it: &DeviceStatus, error_type: u32, counter_type: u32, location: Option<u32>) -> Option<u64> {
    let wanted = (error_type, counter_type, location);
    let found =
        it.memory_errors.iter().find(|row| (row.error_type, row.counter_type, row.location) == wanted);
    found.map(|row| row.count)
}
