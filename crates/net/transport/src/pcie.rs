//! Connections through a PCI function: `pcie:0000:01:00.0`, from inside a virtual machine that has no network.
//!
//! The function has channels ([`gpu_registers`]); each is one connection to the worker behind it. A ring for each
//! direction lies in this machine's memory, where the function reads and writes it:
//!
//! ```text
//!   sysfs     finds the function, switches it on, maps its registers
//!   claim     a free channel: a lock, a huge page that stays where it is, a reset
//!   half      the two halves of the connection
//!   map       the only place that touches registers and rings
//! ```
//!
//! There is no kernel driver, so there are no interrupts: a waiting thread looks, briefly without a pause, then after
//! sleeps that grow with the time waited (an eighth of it, 5 ms at most). There is no TLS either: where the packets
//! leave the machine, the fabric encrypts them.
//!
//! A page that was given to the function stays in a file of hugetlbfs when the process ends: should the function still
//! write to it, it harms no other memory. The next process that needs a channel takes page and channel over, and ends
//! what a killed process has left open.

mod claim;
mod half;
mod map;
mod sysfs;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::address::PciAddress;
use crate::connection::Connection;

pub(crate) use half::{PcieRx, PcieTx};

/// The registers of a function. In a machine they are mapped; in tests, packets go to a function in the same process.
pub(crate) trait Registers: Send + Sync + std::fmt::Debug {
    fn read(&self, offset: u64) -> u32;
    fn write(&self, offset: u64, value: u32);
}

/// The pass that the function at `address` holds for this machine, to show the worker; empty if it has none.
pub(crate) fn pass(address: PciAddress) -> io::Result<String> {
    read_pass(&*sysfs::registers(address)?)
}

fn read_pass(registers: &dyn Registers) -> io::Result<String> {
    use gpu_registers::identity::{PASS, PASS_BYTES, PASS_BYTES_MAX};
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the function's pass cannot be read");
    // It may be changed while we read; one that is not longer than before reads well once it has stayed the same.
    for _ in 0..3 {
        let bytes = u64::from(registers.read(PASS_BYTES));
        if bytes > PASS_BYTES_MAX {
            return Err(invalid());
        }
        let read = || (0..bytes).step_by(4).map(|at| registers.read(PASS + at)).collect::<Vec<u32>>();
        let words = read();
        if words == read() && u64::from(registers.read(PASS_BYTES)) == bytes {
            let mut text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            text.truncate(bytes as usize);
            return String::from_utf8(text).map_err(|_| invalid());
        }
    }
    Err(invalid())
}

/// A connection over a free channel of the function at `address`.
pub(crate) fn open(address: PciAddress, deadline: Instant) -> io::Result<Connection> {
    let registers = sysfs::registers(address)?;
    let pages = claim::HugePages::of(address)?;
    half::open(claim::claim(&registers, &pages)?, Arc::clone(&registers), deadline)
}
