//! Finds the function and switches it on, through the files that the kernel shows for every PCI device.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Registers;
use super::map::{MappedRegisters, Mapping};
use crate::address::PciAddress;

/// Registers of configuration space.
const COMMAND: u64 = 0x04;
const COMMAND_MEMORY_AND_MASTER: u16 = 0b110;
const CAPABILITIES: u64 = 0x34;
const EXPRESS: u8 = 0x10;
const EXPRESS_DEVICE_CONTROL: u64 = 8;
/// The largest read request, 4096 bytes: fewer requests for the same bytes.
const LARGEST_READ: u16 = 5 << 12;
const READ_MASK: u16 = 7 << 12;

/// The registers of the function at `address`, ready to be used.
pub(super) fn registers(address: PciAddress) -> io::Result<Arc<dyn Registers>> {
    registers_in(Path::new("/sys/bus/pci/devices"), address)
}

fn registers_in(devices: &Path, address: PciAddress) -> io::Result<Arc<dyn Registers>> {
    let place = devices.join(address.to_string());
    check(&place, address)?;
    switch_on(&place).map_err(|error| explain(error, &place))?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_SYNC)
        .open(place.join("resource0"))
        .map_err(|error| explain(error, &place))?;
    let mapping =
        Mapping::new(&file, gpu_registers::BAR_BYTES as usize).map_err(|error| explain(error, &place))?;
    let registers = MappedRegisters(mapping);
    match (registers.read(gpu_registers::identity::MAGIC), registers.read(gpu_registers::identity::VERSION)) {
        (gpu_registers::MAGIC, gpu_registers::VERSION) => Ok(Arc::new(registers)),
        (gpu_registers::MAGIC, theirs) => Err(io::Error::new(
            ErrorKind::Unsupported,
            format!(
                "the function has registers of version {theirs}, this side knows {}",
                gpu_registers::VERSION
            ),
        )),
        (u32::MAX, _) => Err(io::Error::new(
            ErrorKind::NotConnected,
            "the function does not answer; its box or the way there is gone",
        )),
        _ => Err(io::Error::new(
            ErrorKind::InvalidData,
            "the function's registers are not those of a dxpu GPU function",
        )),
    }
}

/// Whether it is there, is ours, and may reach memory where we say it is.
fn check(place: &Path, address: PciAddress) -> io::Result<()> {
    let id = |name: &str| {
        let text = fs::read_to_string(place.join(name))?;
        let digits = text.trim().trim_start_matches("0x");
        u16::from_str_radix(digits, 16).map_err(|_| io::Error::from(ErrorKind::InvalidData))
    };
    let missing = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => io::Error::new(
            ErrorKind::NotFound,
            format!("this machine has no PCI device {address}; lspci lists them"),
        ),
        _ => error,
    };
    let (vendor, device) = (id("vendor").map_err(missing)?, id("device").map_err(missing)?);
    if (vendor, device) != (gpu_registers::VENDOR, gpu_registers::DEVICE) {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            format!("PCI device {address} is {vendor:04x}:{device:04x}, not a dxpu GPU function"),
        ));
    }
    // Behind an IOMMU that translates, physical addresses mean nothing to a device without a driver.
    let domain = fs::read_to_string(place.join("iommu_group/type")).unwrap_or_default();
    if domain.trim().starts_with("DMA") {
        return Err(io::Error::new(
            ErrorKind::Unsupported,
            "this machine's IOMMU hides memory from the function; boot with iommu=pt, \
             or write `identity` to the device's iommu_group/type",
        ));
    }
    Ok(())
}

fn switch_on(place: &Path) -> io::Result<()> {
    let enable = place.join("enable");
    if fs::read_to_string(&enable)?.trim() == "0" {
        fs::write(&enable, "1")?;
    }
    let config = File::options().read(true).write(true).open(place.join("config"))?;
    set(&config, COMMAND, COMMAND_MEMORY_AND_MASTER, COMMAND_MEMORY_AND_MASTER)?;
    match express(&config)? {
        Some(at) => set(&config, at + EXPRESS_DEVICE_CONTROL, READ_MASK, LARGEST_READ),
        None => Ok(()),
    }
}

/// Changes bits of a register of 16 bits, if they are not so already.
fn set(config: &File, at: u64, mask: u16, value: u16) -> io::Result<()> {
    let mut bytes = [0; 2];
    config.read_exact_at(&mut bytes, at)?;
    let old = u16::from_le_bytes(bytes);
    if old & mask != value {
        config.write_all_at(&(old & !mask | value).to_le_bytes(), at)?;
    }
    Ok(())
}

/// Where the PCI Express capability is.
fn express(config: &File) -> io::Result<Option<u64>> {
    let byte = |at: u64| -> io::Result<u8> {
        let mut byte = [0];
        config.read_exact_at(&mut byte, at)?;
        Ok(byte[0])
    };
    let mut at = u64::from(byte(CAPABILITIES)? & !3);
    // There is room for 48 of them.
    for _ in 0..48 {
        if at < 0x40 {
            return Ok(None);
        }
        if byte(at)? == EXPRESS {
            return Ok(Some(at));
        }
        at = u64::from(byte(at + 1)? & !3);
    }
    Ok(None)
}

fn explain(error: io::Error, place: &Path) -> io::Error {
    let file = PathBuf::from(place);
    match error.kind() {
        ErrorKind::PermissionDenied => io::Error::new(
            ErrorKind::PermissionDenied,
            format!("only root may use {} (and a kernel that is not locked down)", file.display()),
        ),
        ErrorKind::ResourceBusy => {
            io::Error::new(ErrorKind::ResourceBusy, format!("{} belongs to a kernel driver", file.display()))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: PciAddress = PciAddress { domain: 0, bus: 1, device: 0, function: 0 };

    /// Files as the kernel shows them, registers included.
    fn device(folder: &Path, vendor: &str, device: &str, iommu: Option<&str>) -> PathBuf {
        let place = folder.join(AT.to_string());
        fs::create_dir_all(place.join("iommu_group")).unwrap();
        fs::write(place.join("vendor"), format!("0x{vendor}\n")).unwrap();
        fs::write(place.join("device"), format!("0x{device}\n")).unwrap();
        if let Some(iommu) = iommu {
            fs::write(place.join("iommu_group/type"), iommu).unwrap();
        }
        fs::write(place.join("enable"), "0\n").unwrap();
        let mut config = vec![0; 4096];
        (config[0x34], config[0x40], config[0x41]) = (0x40, 1, 0x80);
        (config[0x80], config[0x81], config[0x88], config[0x89]) = (0x10, 0, 0x10, 0x28);
        fs::write(place.join("config"), config).unwrap();
        let mut registers = vec![0; gpu_registers::BAR_BYTES as usize];
        registers[..4].copy_from_slice(&gpu_registers::MAGIC.to_le_bytes());
        registers[4..8].copy_from_slice(&gpu_registers::VERSION.to_le_bytes());
        fs::write(place.join("resource0"), registers).unwrap();
        place
    }

    #[test]
    fn a_function_is_switched_on() {
        let folder = tempfile::tempdir().unwrap();
        let place = device(folder.path(), "1b36", "d804", Some("identity\n"));
        let registers = registers_in(folder.path(), AT).unwrap();
        assert_eq!(registers.read(gpu_registers::identity::MAGIC), gpu_registers::MAGIC);
        assert_eq!(fs::read_to_string(place.join("enable")).unwrap().trim(), "1");
        let config = fs::read(place.join("config")).unwrap();
        assert_eq!(config[4], 6);
        assert_eq!(config[0x88..0x8a], [0x10, 0x58], "reads of 4096 bytes, everything else as it was");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let check = |vendor: &str, id: &str, iommu, change: &dyn Fn(&Path), hint: &str| {
            let folder = tempfile::tempdir().unwrap();
            change(&device(folder.path(), vendor, id, iommu));
            let error = registers_in(folder.path(), AT).unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        };
        check("8086", "d804", None, &|_| {}, "8086:d804, not a dxpu GPU function");
        check("1b36", "d804", Some("DMA-FQ\n"), &|_| {}, "iommu=pt");
        check(
            "1b36",
            "d804",
            None,
            &|place| fs::remove_dir_all(place).unwrap(),
            "no PCI device 0000:01:00.0",
        );
        let write = |place: &Path, at: u64, bytes: &[u8]| {
            let file = File::options().write(true).open(place.join("resource0")).unwrap();
            file.write_all_at(bytes, at).unwrap();
        };
        check("1b36", "d804", None, &|place| write(place, 4, &[9]), "version 9");
        check("1b36", "d804", None, &|place| write(place, 0, &[0xff; 4]), "does not answer");
        check("1b36", "d804", None, &|place| write(place, 0, &[0x12; 4]), "not those of a dxpu");
    }
}
