//! One peer of a server: messages in, replies out. No socket and no clock of its own.
//!
//! ```text
//!            on_message                 Answer::Now ──▶ reply
//!   peer ──────────────▶ Session ──▶ Device
//!                           │         Answer::Later ──▶ pending ──┬─ on_completion ──▶ reply
//!                           │                                     └─ on_tick ──▶ as if no device were there
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::access::{AccessId, Answer, Completion, Completions};
use crate::device::{Bus, Device, Shape};
use crate::interrupts::Interrupts;
use crate::memory::{GuestMemory, MapError, Rights};
use crate::message::{
    Capabilities, Command, DeviceInfo, Direction, Header, IrqInfo, RegionInfo, Reply, Request, RequestError,
    dma, irq, region,
};
use crate::socket::FDS_MAX;

/// Bytes of one region access, and with its few fields the longest message we take. Virtual machines access registers
/// in pieces of up to 8 bytes and configuration space at once; nothing real is larger.
pub const DATA_BYTES_MAX: usize = 64 * 1024;
/// The longest body: the data of one access and the fields in front of it.
pub(crate) const BODY_BYTES_MAX: usize = DATA_BYTES_MAX + 64;
/// Accesses that may wait for an answer. A guest has at most one for each of its processors.
pub const PENDING_MAX: usize = 1024;

const EPERM: u32 = 1;
const ENOENT: u32 = 2;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;

/// Why a peer is cut off. Anything less is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It must agree on a version before anything else, and only once.
    #[error("{command:?} before or instead of a version")]
    OutOfOrder {
        /// What it sent.
        command: Command,
    },
    /// It speaks another protocol.
    #[error("version {major} is not one we speak")]
    Version {
        /// As sent.
        major: u16,
    },
    /// It sent a reply without a request.
    #[error("a reply that nobody waits for")]
    Reply,
}

struct Pending {
    header: Header,
    what: PendingWhat,
    deadline: Instant,
}

enum PendingWhat {
    Read { region: u32, offset: u64, count: usize },
    Write { region: u32, offset: u64, count: u32 },
    Reset,
}

/// The state kept for one peer.
pub struct Session {
    shape: Shape,
    bus: Bus,
    agreed: bool,
    next_access: u64,
    completion_timeout: Duration,
    pending: BTreeMap<AccessId, Pending>,
    replies: Vec<Vec<u8>>,
}

impl Session {
    /// A peer has connected. `first_access` is above every access of earlier peers.
    pub fn new(
        device: &mut dyn Device,
        completions: Completions,
        completion_timeout: Duration,
        first_access: AccessId,
    ) -> Self {
        let shape = device.shape();
        let bus = Bus { memory: GuestMemory::new(), interrupts: Interrupts::new(shape.irqs), completions };
        device.attach(bus.clone());
        let (pending, replies) = (BTreeMap::new(), Vec::new());
        Self { shape, bus, agreed: false, next_access: first_access.0, completion_timeout, pending, replies }
    }

    /// The peer is gone. Gives the first access its successor may use.
    pub fn close(self, device: &mut dyn Device) -> AccessId {
        self.pending.keys().for_each(|access| device.abandoned(*access));
        self.bus.memory.unmap_all();
        self.bus.interrupts.disarm_all();
        device.detach();
        AccessId(self.next_access)
    }

    /// Takes the replies that are due.
    pub fn take_replies(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.replies)
    }

    /// When [`Session::on_tick`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Instant> {
        // Deadlines ascend with accesses, since every access waits equally long.
        self.pending.first_key_value().map(|(_, pending)| pending.deadline)
    }

    /// A message has come.
    pub fn on_message(
        &mut self,
        header: Header,
        body: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut dyn Device,
        now: Instant,
    ) -> Result<(), Violation> {
        let Direction::Command { .. } = header.direction else { return Err(Violation::Reply) };
        let request = match Request::decode(header.command, body) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%error, "a request that cannot be read");
                let errno = match error {
                    RequestError::Unsupported { .. } => ENOTSUP,
                    _ => EINVAL,
                };
                self.fail(header, errno);
                return Ok(());
            }
        };
        match request {
            Request::Version { major, .. } if self.agreed || major != 0 => {
                return Err(match self.agreed {
                    true => Violation::OutOfOrder { command: Command::Version },
                    false => Violation::Version { major },
                });
            }
            Request::Version { .. } => {}
            _ if !self.agreed => return Err(Violation::OutOfOrder { command: request.command() }),
            _ => {}
        }
        self.on_request(header, request, fds, device, now);
        Ok(())
    }

    fn on_request(
        &mut self,
        header: Header,
        request: Request<'_>,
        fds: Vec<OwnedFd>,
        device: &mut dyn Device,
        now: Instant,
    ) {
        match request {
            Request::Version { capabilities, .. } => self.on_version(header, capabilities),
            Request::DmaMap { flags, offset, address, size } => {
                self.on_dma_map(header, flags, offset, address, size, fds);
            }
            Request::DmaUnmap { flags, address, size } => self.on_dma_unmap(header, flags, address, size),
            Request::DeviceInfo => self.reply(
                header,
                Reply::DeviceInfo(DeviceInfo { resettable: true, regions: region::COUNT, irqs: irq::COUNT }),
            ),
            Request::RegionInfo { index } => match self.shape.regions.get(index as usize) {
                Some(&shape) => {
                    let flags = match (shape.size, shape.writable) {
                        (0, _) => 0,
                        (_, true) => region::FLAG_READ | region::FLAG_WRITE,
                        (_, false) => region::FLAG_READ,
                    };
                    self.reply(header, Reply::RegionInfo(RegionInfo { flags, index, size: shape.size }));
                }
                None => self.fail(header, EINVAL),
            },
            Request::IrqInfo { index } => match self.shape.irqs.get(index as usize) {
                Some(&count) => {
                    let flags = irq::FLAG_EVENTFD | irq::FLAG_NORESIZE;
                    self.reply(header, Reply::IrqInfo(IrqInfo { flags, index, count }));
                }
                None => self.fail(header, EINVAL),
            },
            Request::SetIrqs { flags, index, start, count, data } => {
                match self.bus.interrupts.set(flags, index, start, count, data, fds) {
                    Ok(()) => {
                        device.interrupts_changed(index);
                        self.reply(header, Reply::Done(Command::SetIrqs));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "interrupts that cannot be set");
                        self.fail(header, EINVAL);
                    }
                }
            }
            Request::RegionRead { offset, region, count } => {
                self.on_read(header, region, offset, count, device, now);
            }
            Request::RegionWrite { offset, region, data } => {
                self.on_write(header, region, offset, data, device, now);
            }
            Request::RegionWriteMulti { writes } => {
                // Each is a posted write of its own: one that is out of bounds does not undo the others.
                for write in writes.iter() {
                    if self.in_bounds(write.region, write.offset, write.bytes, true) {
                        let access = self.new_access();
                        let _ = device.write(access, write.region, write.offset, write.data());
                    }
                }
                self.reply(header, Reply::Done(Command::RegionWriteMulti));
            }
            Request::DeviceReset => {
                let access = self.new_access();
                match device.reset(access) {
                    Answer::Now(()) => self.reply(header, Reply::Done(Command::DeviceReset)),
                    Answer::Later => self.wait(access, header, PendingWhat::Reset, device, now),
                }
            }
            // These go from a device to its guest; a guest that sends them is confused.
            Request::DmaRead { .. } | Request::DmaWrite { .. } => self.fail(header, ENOTSUP),
        }
    }

    fn on_version(&mut self, header: Header, capabilities: &[u8]) {
        if let Err(error) = Capabilities::decode(capabilities) {
            tracing::debug!(%error, "capabilities that cannot be read");
            return self.fail(header, EINVAL);
        }
        self.agreed = true;
        let ours = Capabilities {
            max_msg_fds: FDS_MAX as u32,
            max_data_xfer_size: DATA_BYTES_MAX as u64,
            pgsizes: 4096,
            max_dma_maps: crate::memory::DMA_MAPS_MAX as u32,
            write_multiple: true,
        };
        // Minor version 0, whatever the peer has: QEMU refuses anything above its own, which is 0.
        self.reply(header, Reply::Version { major: 0, minor: 0, capabilities: &ours.encode() });
    }

    fn on_dma_map(
        &mut self,
        header: Header,
        flags: u32,
        offset: u64,
        address: u64,
        size: u64,
        mut fds: Vec<OwnedFd>,
    ) {
        if fds.len() > 1 {
            return self.fail(header, EINVAL);
        }
        let rights = Rights { read: flags & dma::READ != 0, write: flags & dma::WRITE != 0 };
        match self.bus.memory.map(address, size, rights, offset, fds.pop()) {
            Ok(()) => self.reply(header, Reply::Done(Command::DmaMap)),
            Err(error) => {
                tracing::warn!(%error, address, size, "the guest's memory cannot be mapped");
                let errno = match error {
                    MapError::TooMany => ENOSPC,
                    MapError::NotMemory | MapError::Inspect(_) => EPERM,
                    _ => EINVAL,
                };
                self.fail(header, errno);
            }
        }
    }

    fn on_dma_unmap(&mut self, header: Header, flags: u32, address: u64, size: u64) {
        if flags & dma::UNMAP_DIRTY != 0 {
            return self.fail(header, ENOTSUP);
        }
        if flags & dma::UNMAP_ALL != 0 {
            self.bus.memory.unmap_all();
        } else if self.bus.memory.unmap(address, size).is_err() {
            return self.fail(header, ENOENT);
        }
        self.reply(header, Reply::DmaUnmap { flags, address, size });
    }

    fn on_read(
        &mut self,
        header: Header,
        region: u32,
        offset: u64,
        count: u32,
        device: &mut dyn Device,
        now: Instant,
    ) {
        let count = count as usize;
        if !self.in_bounds(region, offset, count, false) {
            return self.fail(header, EINVAL);
        }
        let access = self.new_access();
        let what = PendingWhat::Read { region, offset, count };
        match device.read(access, region, offset, count) {
            Answer::Now(data) => self.answer(header, what, data, device),
            Answer::Later => self.wait(access, header, what, device, now),
        }
    }

    fn on_write(
        &mut self,
        header: Header,
        region: u32,
        offset: u64,
        data: &[u8],
        device: &mut dyn Device,
        now: Instant,
    ) {
        if !self.in_bounds(region, offset, data.len(), true) {
            return self.fail(header, EINVAL);
        }
        let access = self.new_access();
        let what = PendingWhat::Write { region, offset, count: data.len() as u32 };
        match device.write(access, region, offset, data) {
            Answer::Now(()) => self.answer(header, what, Vec::new(), device),
            // The peer does not wait for a write that wants no reply.
            Answer::Later if header.direction == (Direction::Command { no_reply: true }) => {}
            Answer::Later => self.wait(access, header, what, device, now),
        }
    }

    fn in_bounds(&self, region: u32, offset: u64, count: usize, write: bool) -> bool {
        let Some(shape) = self.shape.regions.get(region as usize) else { return false };
        let fits = offset.checked_add(count as u64).is_some_and(|end| end <= shape.size);
        fits && (1..=DATA_BYTES_MAX).contains(&count) && (shape.writable || !write)
    }

    fn new_access(&mut self) -> AccessId {
        let access = AccessId(self.next_access);
        self.next_access += 1;
        access
    }

    fn wait(
        &mut self,
        access: AccessId,
        header: Header,
        what: PendingWhat,
        device: &mut dyn Device,
        now: Instant,
    ) {
        if self.pending.len() >= PENDING_MAX {
            device.abandoned(access);
            return self.answer(header, what, Vec::new(), device);
        }
        self.pending.insert(access, Pending { header, what, deadline: now + self.completion_timeout });
    }

    /// A late answer has come. One without a pending access is dropped.
    pub fn on_completion(&mut self, completion: Completion, device: &dyn Device) {
        if let Some(pending) = self.pending.remove(&completion.access) {
            self.answer(pending.header, pending.what, completion.data, device);
        }
    }

    /// Answers what has waited too long, as if no device were there.
    pub fn on_tick(&mut self, device: &mut dyn Device, now: Instant) {
        while let Some(entry) = self.pending.first_entry()
            && entry.get().deadline <= now
        {
            let (access, pending) = entry.remove_entry();
            device.abandoned(access);
            self.answer(pending.header, pending.what, Vec::new(), device);
        }
    }

    fn answer(&mut self, header: Header, what: PendingWhat, mut data: Vec<u8>, device: &dyn Device) {
        match what {
            // A virtual machine copies configuration space when it takes a device, and follows the lists of capabilities in
            // its copy until they end. Full of ones they never do, and QEMU holds its main loop meanwhile. If it is told that
            // the read failed, it crashes on its way out. So the device looks as it did when it was attached.
            PendingWhat::Read { region: region::CONFIG, offset, count } if data.len() != count => {
                match device.remembered(offset, count).filter(|data| data.len() == count) {
                    Some(data) => {
                        self.reply(header, Reply::RegionRead { offset, region: region::CONFIG, data: &data });
                    }
                    None => self.fail(header, EIO),
                }
            }
            PendingWhat::Read { region, offset, count } => {
                // As a root complex does.
                if data.len() != count {
                    data = vec![0xff; count];
                }
                self.reply(header, Reply::RegionRead { offset, region, data: &data });
            }
            PendingWhat::Write { region, offset, count } => {
                self.reply(header, Reply::RegionWrite { offset, region, count });
            }
            PendingWhat::Reset => self.reply(header, Reply::Done(Command::DeviceReset)),
        }
    }

    fn reply(&mut self, header: Header, reply: Reply<'_>) {
        debug_assert_eq!(reply.command() as u16, header.command);
        self.send(header, None, &reply.encode());
    }

    fn fail(&mut self, header: Header, errno: u32) {
        self.send(header, Some(errno), &[]);
    }

    fn send(&mut self, header: Header, error: Option<u32>, body: &[u8]) {
        if header.direction == (Direction::Command { no_reply: true }) {
            return;
        }
        let head =
            Header { body_bytes: body.len(), direction: Direction::Reply { error }, ..header }.encode();
        let mut message = Vec::with_capacity(head.len() + body.len());
        message.extend(head);
        message.extend(body);
        self.replies.push(message);
    }
}
