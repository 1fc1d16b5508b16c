//! The digest by which the CUDA runtime recognises a driver.
//!
//! At start, libcudart asks the driver for a digest over versions, process, addresses and devices, computes the same
//! itself, and refuses the driver (error 103) if they differ. Both run in one process; the digest holds nothing secret.
//! It is an HMAC over MD2, which protects nothing today.

use hmac::{Hmac, Mac};
use md2::Md2;

/// An answer.
pub type Digest = [u8; 16];

/// Where things are in this process and what it sees; both sides must put in the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness<'a> {
    /// What cuDriverGetVersion returns.
    pub driver_version: u32,
    /// This process.
    pub pid: u32,
    /// The low half of `pthread_self()`.
    pub thread: u32,
    /// The address of the runtime's own export table.
    pub runtime_table: u64,
    /// The address of the export table that holds the check.
    pub integrity_table: u64,
    /// The address of the check itself, as it stands in that table.
    pub check_function: u64,
    /// The time that the runtime passed.
    pub unix_seconds: u64,
    /// Every device, by ordinal.
    pub devices: &'a [DeviceIdentity],
}

/// A device as the process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// What cuDeviceGetUuid returns.
    pub uuid: [u8; 16],
    /// PCI domain, bus and device: attributes 50, 33 and 34.
    pub pci: [i32; 3],
}

const KEY: [u8; 16] =
    [0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f];

/// The answer to a check of this version: `1000 * major + 10 * minor + revision` of the check.
pub fn answer(version: u32, witness: &Witness<'_>) -> Digest {
    match version % 10 {
        0 => fixed(0x3341_181c_03cb_675c),
        1 => fixed(0x1841_181c_03cb_675c),
        _ => {
            let code = Hmac::<Md2>::new(&KEY.into()).chain_update(message(version, witness));
            code.finalize().into_bytes().into()
        }
    }
}

/// The first two revisions have fixed answers, which differ in one byte.
fn fixed(first: u64) -> Digest {
    let mut digest = [0; 16];
    digest[..8].copy_from_slice(&first.to_le_bytes());
    digest[8..].copy_from_slice(&0x8ed3_83aa_1f4c_d1e8_u64.to_le_bytes());
    digest
}

fn message(version: u32, witness: &Witness<'_>) -> Vec<u8> {
    let mut message = Vec::with_capacity(48 + 28 * witness.devices.len());
    for word in [witness.driver_version, version, witness.pid, witness.thread] {
        message.extend_from_slice(&word.to_le_bytes());
    }
    let addresses = [witness.runtime_table, witness.integrity_table, witness.check_function];
    for word in addresses.into_iter().chain([witness.unix_seconds]) {
        message.extend_from_slice(&word.to_le_bytes());
    }
    for device in witness.devices {
        message.extend_from_slice(&device.uuid);
        device.pci.iter().for_each(|number| message.extend_from_slice(&number.to_le_bytes()));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use md2::Digest as _;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What driver 580.159 answered in one process on an H200, with what it saw there.
    #[test]
    fn the_answer_is_that_of_the_real_driver() {
        let devices = [DeviceIdentity {
            uuid: 0x4478_011f_9372_28f3_98e4_8bb6_c8ae_dec5_u128.to_be_bytes(),
            pci: [0, 0, 6],
        }];
        let witness = Witness {
            driver_version: 13000,
            pid: 535,
            thread: 0xf0b3_3140,
            runtime_table: 0x7f96_efe1_d680,
            integrity_table: 0x7f96_efe1_d660,
            check_function: 0x7f96_ea77_c350,
            unix_seconds: 1_700_000_000,
            devices: &devices,
        };
        assert_eq!(hex(&answer(13002, &witness)), "6d75af4a92051b7c9fc3a5cd663e1735");
        let later = Witness { unix_seconds: 1_700_000_001, ..witness.clone() };
        assert_eq!(hex(&answer(12092, &later)), "93edfd432a4369d8d2fc32917695034e");
        assert_eq!(hex(&answer(13000, &witness)), "5c67cb031c184133e8d14c1faa83d38e");
        assert_eq!(hex(&answer(13001, &witness)), "5c67cb031c184118e8d14c1faa83d38e");
    }

    #[test]
    fn any_difference_changes_the_answer() {
        let devices = [DeviceIdentity { uuid: [7; 16], pci: [0, 1, 0] }];
        let witness = Witness {
            driver_version: 13000,
            pid: 1,
            thread: 2,
            runtime_table: 3,
            integrity_table: 4,
            check_function: 5,
            unix_seconds: 6,
            devices: &devices,
        };
        let moved = [DeviceIdentity { pci: [0, 2, 0], ..devices[0] }];
        let same = answer(13002, &witness);
        assert_ne!(answer(13002, &Witness { devices: &moved, ..witness.clone() }), same);
        assert_ne!(answer(13002, &Witness { devices: &[], ..witness.clone() }), same);
        assert_ne!(answer(13002, &Witness { pid: 9, ..witness.clone() }), same);
        assert_ne!(answer(12092, &witness), same);
    }

    #[test]
    fn a_message_is_a_header_and_a_record_for_each_device() {
        let devices = [DeviceIdentity { uuid: [7; 16], pci: [0, 1, 0] }; 3];
        let witness = Witness {
            driver_version: 13000,
            pid: 1,
            thread: 2,
            runtime_table: 3,
            integrity_table: 4,
            check_function: 5,
            unix_seconds: 6,
            devices: &devices,
        };
        assert_eq!(message(13002, &witness).len(), 48 + 3 * 28);
        assert_eq!(answer(13002, &witness), {
            let inner =
                Md2::new().chain_update(KEY.map(|byte| byte ^ 0x36)).chain_update(message(13002, &witness));
            let outer = Md2::new().chain_update(KEY.map(|byte| byte ^ 0x5c)).chain_update(inner.finalize());
            <[u8; 16]>::from(outer.finalize())
        });
    }
}
