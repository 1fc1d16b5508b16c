//! Finding devices: by number, name on the bus, UUID, serial number.

use crate::{
    abi::{DeviceHandle, NvmlError, NvmlResult, Uuid},
    border::{InOut, Out, TextIn},
    state::{Device, current},
};

/// `NVML_UUID_TYPE_*`.
const UUID_ASCII: u32 = 1;
const UUID_BINARY: u32 = 2;

exports! {
    fn [nvmlDeviceGetCount nvmlDeviceGetCount_v2](count: Out<u32>) {
        count.set(current()?.device_count() as u32)
    }

    fn [nvmlDeviceGetHandleByIndex nvmlDeviceGetHandleByIndex_v2](index: u32, handle: Out<DeviceHandle>) {
        give(handle, &current()?.device(index as usize)?)
    }

    fn [nvmlDeviceGetHandleByUUID](uuid: TextIn, handle: Out<DeviceHandle>) {
        give(handle, &current()?.find(|device| device.uuid.eq_ignore_ascii_case(uuid.as_str()))?)
    }

    fn [nvmlDeviceGetHandleByUUIDV](uuid: InOut<Uuid>, handle: Out<DeviceHandle>) {
        uuid.check_version(1)?;
        let uuid = uuid.get();
        let device = match uuid.kind {
            UUID_ASCII => {
                let end = uuid.value.iter().position(|byte| *byte == 0).unwrap_or(uuid.value.len());
                let text = String::from_utf8_lossy(&uuid.value[..end]).into_owned();
                current()?.find(|device| device.uuid.eq_ignore_ascii_case(&text))?
            }
            UUID_BINARY => {
                let wanted: String = uuid.value[..16].iter().map(|byte| format!("{byte:02x}")).collect();
                current()?.find(|device| hexadecimal(&device.uuid) == wanted)?
            }
            _ => return Err(NvmlError::InvalidArgument),
        };
        give(handle, &device)
    }

    fn [nvmlDeviceGetHandleBySerial](serial: TextIn, handle: Out<DeviceHandle>) {
        give(handle, &current()?.find(|device| device.serial.as_deref() == Some(serial.as_str()))?)
    }

    fn [nvmlDeviceGetHandleByPciBusId nvmlDeviceGetHandleByPciBusId_v2](id: TextIn, handle: Out<DeviceHandle>) {
        let (domain, bus, slot) = bus_id(id.as_str()).ok_or(NvmlError::InvalidArgument)?;
        let found = current()?.find(|device| {
            device.pci_bus == bus
                && device.pci_device == slot
                && domain.is_none_or(|domain| domain == device.pci_domain)
        });
        give(handle, &found?)
    }

    fn [nvmlDeviceGetIndex](device: Device, index: Out<u32>) {
        index.set(device.index() as u32)
    }
}

fn give(handle: Out<DeviceHandle>, device: &Device) -> NvmlResult<()> {
    handle.set(device.handle() as DeviceHandle)
}

/// The digits of a UUID that NVML writes as text.
fn hexadecimal(uuid: &str) -> String {
    uuid.trim_start_matches("GPU-").replace('-', "").to_ascii_lowercase()
}

/// Reads `domain:bus:device.function`, `domain:bus:device` or `bus:device.function`, in hexadecimal.
fn bus_id(text: &str) -> Option<(Option<u32>, u32, u32)> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let place = text.trim().split('.').next()?;
    match place.split(':').collect::<Vec<_>>()[..] {
        [domain, bus, device] => Some((Some(number(domain)?), number(bus)?, number(device)?)),
        [bus, device] => Some((None, number(bus)?, number(device)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_come_long_and_short() {
        assert_eq!(bus_id("00000000:1B:06.0"), Some((Some(0), 0x1b, 6)));
        assert_eq!(bus_id("0010:1b:06"), Some((Some(16), 0x1b, 6)));
        assert_eq!(bus_id("1b:06.0"), Some((None, 0x1b, 6)));
        assert_eq!(bus_id("1b"), None);
        assert_eq!(bus_id("0000:xx:00.0"), None);
    }

    #[test]
    fn a_uuid_is_its_digits() {
        assert_eq!(
            hexadecimal("GPU-0001ABCD-0405-0607-0809-0a0b0c0d0e0f"),
            "0001abcd0405060708090a0b0c0d0e0f"
        );
    }
}
