//! `dxpu vm`: a QEMU guest with free slots, to try the PCIe plane with.

use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::quantity;
use anyhow::Context;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const EXAMPLES: &str = "\
Examples:
  dxpu host --qmp /tmp/vm.qmp --slots 2 --join-token-file hv-7.json &
  dxpu vm --qmp /tmp/vm.qmp --slots 2 --kernel vmlinuz --initrd initrd.img    its console is this terminal
  dxpu lease create --plane pcie --host hv-7                                  a device appears in the guest
  dxpu vm --qmp /tmp/vm.qmp --kernel vmlinuz --print                          only show the command

Needs QEMU 10.1 or later, the first with vfio-user-pci (Debian: qemu-system-x86 of trixie-backports). Any other way to
start the guest will do too: slots are root ports called rp1, rp2, …, and its memory must be shared (share=on).";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Vm {
    /// How many devices the guest has room for
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u8).range(1..=16))]
    slots: u8,
    /// Where the guest's monitor listens; give `dxpu host` the same
    #[arg(long, value_name = "PATH")]
    qmp: PathBuf,
    /// The guest's kernel
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The guest's initial file system
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// What the kernel is told, beside `console=ttyS0`
    #[arg(long, value_name = "TEXT", default_value = "", requires = "kernel")]
    append: String,
    /// A disk to boot from instead, or to have beside
    #[arg(long, value_name = "FILE", required_unless_present = "kernel")]
    disk: Option<PathBuf>,
    /// The guest's memory
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = quantity::bytes)]
    memory: u64,
    /// Processors of the guest
    #[arg(long, value_name = "N", default_value = "2")]
    cpus: u8,
    /// What executes the guest; the first of these that works [default: kvm, else tcg]
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["kvm", "tcg"], hide_default_value = true)]
    accel: Vec<String>,
    /// The QEMU to use
    #[arg(long, value_name = "FILE", env = "DXPU_QEMU", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
    /// Show the command instead of running it
    #[arg(long)]
    print: bool,
    /// More arguments for QEMU
    #[arg(last = true)]
    more: Vec<OsString>,
}

impl Vm {
    pub(crate) fn run(self) -> Outcome {
        let arguments = self.arguments();
        if self.print {
            let words: Vec<String> = arguments.iter().map(|word| quoted(&word.to_string_lossy())).collect();
            outln!("{} {}", quoted(&self.qemu.to_string_lossy()), words.join(" "));
            return Ok(Exit::Success);
        }
        check(&self.qemu)?;
        for file in [&self.kernel, &self.initrd, &self.disk].into_iter().flatten() {
            std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        }
        let error = Command::new(&self.qemu).args(arguments).exec();
        Err(anyhow::Error::new(error).context(format!("cannot start {}", self.qemu.display())))
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| all.extend(words.iter().map(OsString::from));
        add(&["-nodefaults", "-display", "none", "-serial", "mon:stdio"]);
        add(&["-M", "q35,memory-backend=m0", "-smp", &self.cpus.to_string()]);
        for accel in &self.accel {
            add(&["-accel", accel]);
        }
        // Devices reach the guest's memory through this file: without it they would have to ask for every byte.
        add(&["-object", &format!("memory-backend-memfd,id=m0,size={},share=on", self.memory)]);
        add(&["-m", &format!("{}B", self.memory)]);
        add(&["-qmp", &format!("unix:{},server=on,wait=off", self.qmp.display())]);
        // The guest's own hot-plug driver sees to the slots; ACPI's way hides surprise removal.
        add(&["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]);
        for slot in 1..=self.slots {
            let port = format!("pcie-root-port,id=rp{slot},slot={slot},chassis={slot},pref64-reserve=1G");
            add(&["-device", &port]);
        }
        if let Some(kernel) = &self.kernel {
            let text = format!("console=ttyS0 {}", self.append);
            add(&["-kernel", &kernel.to_string_lossy(), "-append", text.trim_end()]);
        }
        if let Some(initrd) = &self.initrd {
            add(&["-initrd", &initrd.to_string_lossy()]);
        }
        if let Some(disk) = &self.disk {
            add(&["-drive", &format!("file={},if=virtio", disk.display())]);
        }
        all.extend(self.more.iter().cloned());
        all
    }
}

/// Whether this QEMU can have devices of other processes.
fn check(qemu: &Path) -> anyhow::Result<()> {
    let listed = Command::new(qemu).args(["-device", "help"]).stdin(Stdio::null()).output();
    let listed = listed.map_err(|error| {
        let what = format!("cannot start {}", qemu.display());
        Failure::new(Exit::Unsupported, what, "install QEMU 10.1 or later, or say where it is with --qemu")
            .because(error)
    })?;
    let text = [listed.stdout, listed.stderr].concat();
    if !String::from_utf8_lossy(&text).contains("vfio-user-pci") {
        let what = format!("{} has no vfio-user-pci", qemu.display());
        return Err(Failure::new(Exit::Unsupported, what, "it is in QEMU 10.1 and later; see --qemu").into());
    }
    Ok(())
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        vm: Vm,
    }

    fn words(line: &[&str]) -> Vec<String> {
        let line = Line::try_parse_from(line).unwrap();
        line.vm.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_guest_has_shared_memory_and_a_port_for_each_slot() {
        let words = words(&["vm", "--qmp", "/run/q", "--slots", "2", "--kernel", "k", "--memory", "512MiB"]);
        assert!(words.contains(&"memory-backend-memfd,id=m0,size=536870912,share=on".to_owned()));
        let ports: Vec<&String> = words.iter().filter(|word| word.starts_with("pcie-root-port")).collect();
        assert_eq!(ports.len(), 2);
        assert!(ports[1].contains("id=rp2,slot=2"));
    }

    #[test]
    fn a_guest_needs_something_to_boot() {
        assert!(Line::try_parse_from(["vm", "--qmp", "/run/q"]).is_err());
        assert!(words(&["vm", "--qmp", "/run/q", "--disk", "d"]).contains(&"file=d,if=virtio".to_owned()));
    }

    #[test]
    fn printed_words_can_be_typed() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("file=d,if=virtio"), "file=d,if=virtio");
    }
}
