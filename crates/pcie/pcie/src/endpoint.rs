//! Devices: state machines that take packets and give packets.

mod function;
mod interrupts;

pub mod dma;
pub mod gpu;
pub mod nvme;

pub use function::{Event, Function, FunctionOptions, RegisterRead};

use crate::tlp_buf::TlpBuf;
use units::Time;

/// A device in a slot, without I/O of its own: its driver brings packets and the time, and takes packets away.
pub trait Endpoint: Send {
    /// A packet from the host has come.
    fn receive(&mut self, packet: TlpBuf, now: Time);

    /// The next packet for the host. Call it until there is none, after everything else.
    fn transmit(&mut self, now: Time) -> Option<TlpBuf>;

    /// Time has passed.
    fn on_tick(&mut self, now: Time);

    /// When [`Endpoint::on_tick`] must be called at the latest.
    fn wake_at(&self) -> Option<Time>;

    /// The link went down or the slot was reset: as after power-on, and nothing that was asked is waited for.
    fn reset(&mut self);
}
