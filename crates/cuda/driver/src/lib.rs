//! The trait a GPU driver implements for a worker, and the trait a worker implements for a driver.
//!
//! A driver executes commands under the names and at the addresses that the client chose: [`cuda_wire::Execute`], which
//! a driver has through a method for each command ([`cuda_wire::Commands`]). It decides nothing of the client's
//! semantics: what a call returns to the program was settled on the client, or is what the device says.
//!
//! ```text
//!   worker session ── Execute, Driver ───▶ driver (soft, nvidia)
//!   worker session ◀── HostLink ────────── driver's streams: host data in and out, host functions, printf
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod descriptions;
mod exports;
mod image_store;
mod snapshots;

use cuda_abi::{CuResult, CudaError};
use cuda_wire::{
    ContextId, DeviceInfo, DeviceStatus, EventId, Execute, Plane, RegionId, Shape, StreamId, TransferId,
    VaRange,
};
use std::sync::Arc;

pub use cuda_wire::{DRIVER_VA_BYTES, LinkLost, Sink, Source};
pub use descriptions::Descriptions;
pub use exports::{Exported, Exports, Parcel};
pub use image_store::{Committed, ImageStore, KeptImage, StoreError};
pub use shared_pages::SharedPages;
pub use sharing::{Class, PageHandle, Part, Share, Ticket};
pub use snapshots::{
    Abandon, BlockSink, Blocks, Cut, CutState, OnTaken, PendingCut, Restored, Snapshots, TakenCut,
};

/// Whose memory a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOf {
    /// This session's own: others have limits of their own beside it.
    Session,
    /// That of all sessions with the same lease together, where the driver can count it.
    Lease,
}

/// A device driver that serves one session.
pub trait Driver: Execute + Send + Sync {
    /// The devices of this session, in order.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// `CUDA_VERSION` that it serves, such as 13000.
    fn cuda_version(&self) -> i32;

    /// Its build. A program goes on after a loss only under the build that it began under: another one may place the
    /// variables of modules elsewhere, or compute other bits.
    fn build(&self) -> String {
        format!("CUDA {}", self.cuda_version())
    }

    /// Keeps one of the client's ranges free for device memory and says which. Called once, before any command.
    fn reserve_addresses(&self, candidates: &[VaRange]) -> Option<VaRange>;

    /// Hands over the way back to the client. Called once, before any command.
    fn attach(&self, link: Arc<dyn HostLink>);

    /// Hands over a keeper of what is known about modules. Called at most once, before any command.
    fn know(&self, _descriptions: Arc<dyn Descriptions>) {}

    /// Whether `target` is done: `Ok(true)`, not yet: `Ok(false)`, or an error. Never blocks.
    fn poll(&self, target: WaitTarget) -> CuResult<bool>;

    /// Blocks until `target` is done. Other threads go on executing commands meanwhile.
    fn wait(&self, target: WaitTarget) -> CuResult<()>;

    /// Puts a read of device memory into a stream and returns at once; the bytes are those of that point of the stream.
    ///
    /// It may block as long as the execution of an `Enqueue` may, no longer. Dropping the returned read only means that
    /// its bytes are not wanted any more: the work in the stream goes on.
    fn read_back_begin(
        &self,
        stream: StreamId,
        source: Plane,
        shape: Shape,
    ) -> CuResult<Box<dyn PendingRead>>;

    /// The first error of one-way work that no reply has carried yet, with its context.
    ///
    /// An error that kills its context is returned by every later command on that context by the driver itself.
    fn take_deferred(&self) -> Option<(ContextId, CudaError)>;

    /// Why the last command failed, in words for the programmer; each message is given once.
    fn take_message(&self) -> Option<String> {
        None
    }

    /// Memory that the client may allocate from now on without awaiting the answer, beyond what it was told before.
    ///
    /// The driver has set it aside: an allocation within it cannot fail for want of memory.
    fn grant_memory_credit(&self) -> u64;

    /// The most memory of each device that the session may use, if that is less than it may now. Called at most once,
    /// when the client has been let in: before [`Driver::devices`] and any command.
    fn limit_memory(&self, bytes: u64, of: LimitOf);

    /// The page that the sessions of this GPU share. `None`: this driver shares no GPU between classes.
    fn page(&self) -> Option<PageHandle> {
        None
    }

    /// The session takes part in sharing from now on: it has this slot of [`Driver::page`]. Called at most once, before
    /// any command, and never for a session that has its GPU for itself. The streams of an offline session then wait for the gate,
    /// those of one that takes turns for the gate of its own slot.
    fn share(&self, ticket: Ticket) -> CuResult<()> {
        let _ = ticket;
        Ok(())
    }

    /// How long the session may have the device at a stretch while others wait for it, in microseconds; `None`: as long as the driver
    /// gives by itself. A driver that cannot change it does nothing. Called often, mostly with what it was before.
    fn set_slice(&self, slice_us: Option<u64>) {
        let _ = slice_us;
    }

    /// A burst of commands is over. A driver that cannot tell otherwise when it is [`Driver::quiet`] marks its streams.
    fn mark(&self) {}

    /// Whether all work that the session was told to do is done. Never blocks. Asked of online sessions, and of those that take
    /// turns: of the latter, all work that waits for the gate.
    fn quiet(&self) -> CuResult<bool> {
        Ok(true)
    }

    /// Whether work of the session stands at its closed gate, as far as the driver can tell. Never blocks. Asked of sessions that take
    /// turns.
    fn waits_at_gate(&self) -> bool {
        self.quiet() == Ok(false)
    }

    /// Whether none of the work that has passed the gate is on the device, as far as the driver can tell. What is short does not
    /// count. Never blocks, not even for a command that is stuck. Asked of sessions that take turns, with the gate closed.
    fn rests(&self) -> bool {
        true
    }

    /// A number of the work of an offline session that occupies the device right now, where the driver can tell: another number
    /// for other work. Never blocks for the device.
    fn running(&self) -> Option<u64> {
        None
    }

    /// Streams may copy from and to this memory of the program's from now on, under this name. It stays mapped as long as the
    /// driver keeps the value. Called in the order of commands; the name is free.
    fn share_host(&self, region: RegionId, pages: Arc<SharedPages>) -> CuResult<()> {
        let _ = (region, pages);
        Err(CudaError::NOT_SUPPORTED)
    }

    /// No later work uses the memory. The driver lets go of it when all work before is done.
    fn unshare_host(&self, region: RegionId) {
        let _ = region;
    }

    /// Cuts of the session's memory, if the driver takes them.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// What shares memory and events with other sessions, if the driver can.
    fn exports(&self) -> Option<&dyn Exports> {
        None
    }

    /// The error that has ended the session's contexts, if one has. Never blocks for the device. Asked now and then where contexts are
    /// merged: there a fault of another session ends them, and no call of this session need be under way to tell.
    fn fault(&self) -> Option<CudaError> {
        None
    }

    /// Takes no further work, and blocks until nothing that has begun is on the device. What waits stays where it is. Called before
    /// [`Driver::abort`] where the end of a process in the middle of a kernel harms other sessions (merged contexts), on a
    /// thread that is not waited for longer than a bound: a kernel may never end.
    fn drain(&self) {}

    /// Stops all work as soon as possible: the client is gone. Waits return, streams end, memory is given back.
    fn abort(&self);
}

/// Answers clients that only look at the devices (NVML), without a session.
///
/// A client that only looks takes nothing of a device: no context, no memory, no place among the sessions.
pub trait StatusSource: Send + Sync {
    /// How many devices a session has.
    fn device_count(&self) -> u32;

    /// What a device says of itself now. Several threads ask at once; an answer may take a moment.
    fn device_status(&self, device: u32) -> CuResult<DeviceStatus>;
}

/// A read of device memory that a stream will get to.
pub trait PendingRead: Send {
    /// True when the stream has got there: the bytes, packed, were appended to `out`. False: not yet, `out` is as it
    /// was. An error is that of the read or of the work before it. Never blocks; not called again after true or an error.
    fn poll(&mut self, out: &mut Vec<u8>) -> CuResult<bool>;

    /// Blocks until the stream has got there and appends the bytes. Called on another thread than what began it; ends
    /// with an error after [`Driver::abort`].
    fn wait(self: Box<Self>, out: &mut Vec<u8>) -> CuResult<()>;
}

/// What a program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitTarget {
    /// All work of a context.
    Context(ContextId),
    /// All work of a stream so far.
    Stream(StreamId),
    /// The latest record of an event.
    Event(EventId),
}

/// Memory that the bytes of a transfer are received into. Called from several threads at once, never twice for a byte.
pub trait Landing: Send + Sync {
    /// Hands the memory of the `bytes` from `offset` on to `fill`, in order, in as many pieces as it lies in. When
    /// `fill` returns, its piece is there.
    fn land(&self, offset: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8]));

    /// Whether [`Self::land`] would hand the memory on at once. False: it waits until bytes before these have landed.
    fn has_room(&self, offset: u64, bytes: usize) -> bool {
        let _ = (offset, bytes);
        true
    }
}

/// Memory that the bytes of a transfer are sent from. Called from several threads at once.
pub trait Departure: Send + Sync {
    /// Hands the `bytes` from `offset` on to `send`, in order, in as many pieces as they lie in.
    fn depart(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8]));
}

/// Called when a transfer is over and its memory is not touched any more.
pub type Over = Box<dyn FnOnce(Result<(), LinkLost>) + Send>;

/// What a driver's streams need from the client.
///
/// Every method may block; none is called while the driver holds a lock that executing a command needs.
pub trait HostLink: Send + Sync {
    /// Hands all `bytes` of a transfer to `sink` and returns when the last was taken. With `pull` the client is
    /// asked for them first; else it sends them unasked.
    fn receive(&self, transfer: TransferId, bytes: u64, pull: bool, sink: &dyn Sink) -> Result<(), LinkLost>;

    /// Sends all `bytes` of a transfer to the client and returns when the last left, so that what completes after
    /// this is seen by the program after the data.
    fn send(&self, transfer: TransferId, bytes: u64, source: &dyn Source) -> Result<(), LinkLost>;

    /// The same as [`Self::receive`] for a thread that must not wait: the bytes go to `landing` as they come, then
    /// `over` is called, once. Never blocks for the network.
    fn receive_later(
        &self,
        transfer: TransferId,
        bytes: u64,
        pull: bool,
        landing: Box<dyn Landing>,
        over: Over,
    );

    /// Sends `bytes` of a transfer from `offset` on; the other parts are sent by themselves. `over` is called, once,
    /// when they left. Never blocks for the network.
    fn send_part(
        &self,
        transfer: TransferId,
        offset: u64,
        bytes: u64,
        departure: Box<dyn Departure>,
        over: Over,
    );

    /// Takes a small transfer that a stream will get to. Its bytes go ahead of whatever the client hears next after the
    /// stream got there, so no thread need be woken for them. Gives the read back when too many wait already; then
    /// [`Self::send_part`] will do.
    fn send_when_read(
        &self,
        transfer: TransferId,
        read: Box<dyn PendingRead>,
    ) -> Result<(), Box<dyn PendingRead>> {
        let _ = transfer;
        Err(read)
    }

    /// Whether the client could not serve a pull at some time. If it has served all, a transfer that fails means that the client is gone.
    fn has_failed_pull(&self) -> bool {
        true
    }

    /// Has the client run a host function and returns when it did.
    fn host_call(&self, token: u64) -> Result<(), LinkLost>;

    /// Text of the device's printf.
    fn print(&self, text: &[u8]);
}
