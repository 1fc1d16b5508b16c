//! Drives a device that another program serves: what a virtual machine does, without the machine.
//!
//! Setting up is done by calls that wait for their reply. After that, reads are begun and their answers arrive as
//! events, among the device's own requests for guest memory: a device may ask for memory while it owes us an answer.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::message::{
    Capabilities, Command, DeviceInfo, Direction, Header, IrqInfo, RegionInfo, Reply, ReplyError, Request,
    RequestError, dma, irq,
};
use crate::server::wait;
use crate::session::DATA_BYTES_MAX;
use crate::socket::{Connection, FDS_MAX, ReceiveError};

/// How long setting up waits for one reply.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Events kept while a setup call waits for its reply: a device that talks without end is cut off.
const EVENTS_MAX: usize = 4096;

/// Names a request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u16);

/// Something the device did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// A read is answered; `None` when the device refused it.
    Read {
        /// Which read.
        request: RequestId,
        /// What it gave.
        data: Option<Vec<u8>>,
    },
    /// A write that wanted a reply was done, or refused.
    Written {
        /// Which write.
        request: RequestId,
        /// Whether the device took it.
        taken: bool,
    },
    /// The device reads guest memory; answer with [`Client::answer_dma_read`].
    DmaRead {
        /// The device's own number for it.
        id: u16,
        /// Where.
        address: u64,
        /// How much; within what we said we take.
        count: usize,
    },
    /// The device writes guest memory; answer with [`Client::answer_dma_write`].
    DmaWrite {
        /// The device's own number for it, and whether it wants to hear about it.
        id: u16,
        /// It does not want to hear about it.
        no_reply: bool,
        /// Where.
        address: u64,
        /// What.
        data: Vec<u8>,
    },
}

/// Why a device cannot be driven (any longer).
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No program serves there.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The connection broke.
    #[error("cannot send")]
    Send(#[source] io::Error),
    /// The connection broke.
    #[error("cannot receive")]
    Receive(#[source] ReceiveError),
    /// Waiting failed.
    #[error("cannot wait")]
    Wait(#[source] io::Error),
    /// The device speaks another version.
    #[error("the device speaks version {major}.{minor}")]
    Version {
        /// Its.
        major: u16,
        /// Its.
        minor: u16,
    },
    /// The device refused.
    #[error("the device refused {command:?} with error {errno}")]
    Refused {
        /// What we asked.
        command: Command,
        /// Why not.
        errno: u32,
    },
    /// The device answered nonsense.
    #[error("the device's reply cannot be read")]
    Reply(#[source] ReplyError),
    /// The device asked nonsense.
    #[error("the device's request cannot be read")]
    Request(#[source] RequestError),
    /// The device answered without a request, or asked something it may not.
    #[error("the device sent something out of place")]
    OutOfPlace,
    /// The device did not answer in time.
    #[error("the device did not answer {command:?}")]
    Timeout {
        /// What we asked.
        command: Command,
    },
}

/// One device.
pub struct Client {
    connection: Connection,
    next_id: u16,
    waiting: HashMap<u16, Waiting>,
    events: VecDeque<ClientEvent>,
    info: DeviceInfo,
    regions: Vec<RegionInfo>,
    /// The most bytes of one access that both ends take.
    data_bytes_max: usize,
    fds_max: usize,
}

#[derive(Clone, Copy)]
struct Waiting {
    command: Command,
    count: usize,
}

/// What a received message was.
enum Received {
    Event,
    Reply { id: u16, body: Vec<u8>, error: Option<u32> },
}

impl Client {
    /// Connects, agrees on a version, and looks at the device.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).map_err(ClientError::Connect)?;
        Self::new(Connection::new(stream).map_err(ClientError::Connect)?)
    }

    /// The same on a connection that exists.
    pub fn new(connection: Connection) -> Result<Self, ClientError> {
        let mut client = Self {
            connection,
            next_id: 0,
            waiting: HashMap::new(),
            events: VecDeque::new(),
            info: DeviceInfo { resettable: false, regions: 0, irqs: 0 },
            regions: Vec::new(),
            data_bytes_max: DATA_BYTES_MAX,
            fds_max: 1,
        };
        client.agree()?;
        let body = client.call(Request::DeviceInfo, &[])?;
        match decode(Command::DeviceInfo, &body)? {
            Reply::DeviceInfo(info) => client.info = info,
            _ => return Err(ClientError::OutOfPlace),
        }
        for index in 0..client.info.regions.min(crate::message::region::COUNT) {
            let body = client.call(Request::RegionInfo { index }, &[])?;
            match decode(Command::RegionInfo, &body)? {
                Reply::RegionInfo(info) => client.regions.push(RegionInfo { index, ..info }),
                _ => return Err(ClientError::OutOfPlace),
            }
        }
        Ok(client)
    }

    fn agree(&mut self) -> Result<(), ClientError> {
        let ours = Capabilities {
            max_msg_fds: FDS_MAX as u32,
            max_data_xfer_size: DATA_BYTES_MAX as u64,
            ..Capabilities::default()
        };
        let capabilities = ours.encode();
        let body = self.call(Request::Version { major: 0, minor: 0, capabilities: &capabilities }, &[])?;
        let Reply::Version { major, minor, capabilities } = decode(Command::Version, &body)? else {
            return Err(ClientError::OutOfPlace);
        };
        if major != 0 {
            return Err(ClientError::Version { major, minor });
        }
        let theirs = Capabilities::decode(capabilities).unwrap_or_default();
        self.data_bytes_max = (theirs.max_data_xfer_size.min(DATA_BYTES_MAX as u64) as usize).max(1);
        self.fds_max = (theirs.max_msg_fds as usize).clamp(1, FDS_MAX);
        Ok(())
    }

    /// What the device said of itself.
    pub fn info(&self) -> DeviceInfo {
        self.info
    }

    /// Its regions; those it does not have are of size 0.
    pub fn regions(&self) -> &[RegionInfo] {
        &self.regions
    }

    /// The most bytes one access may have.
    pub fn data_bytes_max(&self) -> usize {
        self.data_bytes_max
    }

    /// One kind of interrupt.
    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, ClientError> {
        let body = self.call(Request::IrqInfo { index }, &[])?;
        match decode(Command::IrqInfo, &body)? {
            Reply::IrqInfo(info) => Ok(info),
            _ => Err(ClientError::OutOfPlace),
        }
    }

    /// Has vectors from 0 on signalled by these events.
    pub fn set_irqs(&mut self, index: u32, events: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let flags = irq::DATA_EVENTFD | irq::ACTION_TRIGGER;
        for (chunk, fds) in events.chunks(self.fds_max).enumerate() {
            let start = (chunk * self.fds_max) as u32;
            let request = Request::SetIrqs { flags, index, start, count: fds.len() as u32, data: &[] };
            self.call(request, fds)?;
        }
        Ok(())
    }

    /// Has no vector of a kind signalled.
    pub fn clear_irqs(&mut self, index: u32) -> Result<(), ClientError> {
        let flags = irq::DATA_NONE | irq::ACTION_TRIGGER;
        self.call(Request::SetIrqs { flags, index, start: 0, count: 0, data: &[] }, &[])?;
        Ok(())
    }

    /// Lets the device reach memory: through a file when there is one, else by asking us.
    pub fn dma_map(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), ClientError> {
        let flags = dma::READ | dma::WRITE;
        self.call(Request::DmaMap { flags, offset, address, size }, file.as_slice())?;
        Ok(())
    }

    /// The device must not reach that memory any longer.
    pub fn dma_unmap(&mut self, address: u64, size: u64) -> Result<(), ClientError> {
        self.call(Request::DmaUnmap { flags: 0, address, size }, &[])?;
        Ok(())
    }

    /// Resets the device.
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.call(Request::DeviceReset, &[])?;
        Ok(())
    }

    /// Reads and waits; all ones when the device refuses.
    pub fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let request = Request::RegionRead { offset, region, count: data.len() as u32 };
        let body = match self.call(request, &[]) {
            Ok(body) => body,
            Err(ClientError::Refused { .. }) => {
                data.fill(0xff);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        match decode(Command::RegionRead, &body)? {
            Reply::RegionRead { data: read, .. } if read.len() == data.len() => data.copy_from_slice(read),
            _ => return Err(ClientError::OutOfPlace),
        }
        Ok(())
    }

    /// Writes and waits.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.call(Request::RegionWrite { offset, region, data }, &[])?;
        Ok(())
    }

    /// Begins a read; its answer is an event.
    pub fn begin_read(&mut self, region: u32, offset: u64, count: usize) -> Result<RequestId, ClientError> {
        let request = Request::RegionRead { offset, region, count: count as u32 };
        self.begin(request, count, &[], false)
    }

    /// Begins a write that wants a reply; that it is done is an event.
    pub fn begin_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<RequestId, ClientError> {
        self.begin(Request::RegionWrite { offset, region, data }, data.len(), &[], false)
    }

    /// Writes without wanting to hear about it.
    pub fn post_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.begin(Request::RegionWrite { offset, region, data }, 0, &[], true).map(|_| ())
    }

    /// Gives the device the memory it asked for; `None` when there is none.
    pub fn answer_dma_read(&mut self, id: u16, address: u64, data: Option<&[u8]>) -> Result<(), ClientError> {
        match data {
            Some(data) => {
                let body = Reply::DmaRead { address, data }.encode();
                self.send_reply(id, Command::DmaRead, None, &body)
            }
            None => self.send_reply(id, Command::DmaRead, Some(EFAULT), &[]),
        }
    }

    /// Tells the device whether its write was done.
    pub fn answer_dma_write(
        &mut self,
        id: u16,
        address: u64,
        count: usize,
        done: bool,
    ) -> Result<(), ClientError> {
        let body = Reply::DmaWrite { address, count: count as u64 }.encode();
        match done {
            true => self.send_reply(id, Command::DmaWrite, None, &body),
            false => self.send_reply(id, Command::DmaWrite, Some(EFAULT), &[]),
        }
    }

    /// The next event, if one comes in time. Zero looks without waiting.
    pub fn next_event(&mut self, timeout: Duration) -> Result<Option<ClientEvent>, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let [ready] = wait(&[self.connection.as_fd()], Some(left)).map_err(ClientError::Wait)?;
            if ready {
                match self.receive()? {
                    Received::Event => {}
                    // A late reply to a call that gave up.
                    Received::Reply { .. } => {}
                }
            } else if left.is_zero() {
                return Ok(None);
            }
        }
    }

    fn begin(
        &mut self,
        request: Request<'_>,
        count: usize,
        fds: &[BorrowedFd<'_>],
        no_reply: bool,
    ) -> Result<RequestId, ClientError> {
        let mut id = self.next_id;
        while self.waiting.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        self.next_id = id.wrapping_add(1);
        let body = request.encode();
        let command = request.command();
        let header = Header {
            id,
            command: command as u16,
            body_bytes: body.len(),
            direction: Direction::Command { no_reply },
        };
        let mut message = header.encode().to_vec();
        message.extend(body);
        self.connection.send(&message, fds).map_err(ClientError::Send)?;
        if !no_reply {
            self.waiting.insert(id, Waiting { command, count });
        }
        Ok(RequestId(id))
    }

    /// Asks and waits for the reply's body. What else comes meanwhile is kept as events.
    fn call(&mut self, request: Request<'_>, fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, ClientError> {
        let command = request.command();
        let RequestId(mine) = self.begin(request, usize::MAX, fds, false)?;
        let deadline = Instant::now() + SETUP_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.events.len() > EVENTS_MAX {
                return Err(ClientError::Timeout { command });
            }
            let [ready] = wait(&[self.connection.as_fd()], Some(left)).map_err(ClientError::Wait)?;
            if !ready {
                continue;
            }
            match self.receive()? {
                Received::Reply { id, body, error } if id == mine => {
                    return match error {
                        None => Ok(body),
                        Some(errno) => Err(ClientError::Refused { command, errno }),
                    };
                }
                _ => {}
            }
        }
    }

    fn receive(&mut self) -> Result<Received, ClientError> {
        let incoming = self.connection.receive().map_err(ClientError::Receive)?;
        let header = incoming.header;
        match header.direction {
            Direction::Reply { error } => {
                let waiting = self.waiting.remove(&header.id).ok_or(ClientError::OutOfPlace)?;
                if waiting.command as u16 != header.command {
                    return Err(ClientError::OutOfPlace);
                }
                self.on_reply(header.id, waiting, incoming.body, error)
            }
            Direction::Command { no_reply } => {
                match Request::decode(header.command, &incoming.body).map_err(ClientError::Request)? {
                    Request::DmaRead { address, count } if count <= DATA_BYTES_MAX as u64 => {
                        let count = count as usize;
                        self.events.push_back(ClientEvent::DmaRead { id: header.id, address, count });
                    }
                    Request::DmaRead { .. } => {
                        self.send_reply(header.id, Command::DmaRead, Some(EINVAL), &[])?
                    }
                    Request::DmaWrite { address, data } => {
                        let data = data.to_vec();
                        self.events.push_back(ClientEvent::DmaWrite {
                            id: header.id,
                            no_reply,
                            address,
                            data,
                        });
                    }
                    _ => return Err(ClientError::OutOfPlace),
                }
                Ok(Received::Event)
            }
        }
    }

    fn on_reply(
        &mut self,
        id: u16,
        waiting: Waiting,
        body: Vec<u8>,
        error: Option<u32>,
    ) -> Result<Received, ClientError> {
        let request = RequestId(id);
        match waiting.command {
            _ if waiting.count == usize::MAX => return Ok(Received::Reply { id, body, error }),
            Command::RegionRead => {
                let data = match (error, decode(Command::RegionRead, &body)) {
                    (None, Ok(Reply::RegionRead { data, .. })) if data.len() == waiting.count => {
                        Some(data.to_vec())
                    }
                    _ => None,
                };
                self.events.push_back(ClientEvent::Read { request, data });
            }
            _ => self.events.push_back(ClientEvent::Written { request, taken: error.is_none() }),
        }
        Ok(Received::Event)
    }

    fn send_reply(
        &mut self,
        id: u16,
        command: Command,
        error: Option<u32>,
        body: &[u8],
    ) -> Result<(), ClientError> {
        let header = Header {
            id,
            command: command as u16,
            body_bytes: body.len(),
            direction: Direction::Reply { error },
        };
        let mut message = header.encode().to_vec();
        message.extend(body);
        self.connection.send(&message, &[]).map_err(ClientError::Send)
    }
}

const EFAULT: u32 = 14;
const EINVAL: u32 = 22;

fn decode(command: Command, body: &[u8]) -> Result<Reply<'_>, ClientError> {
    Reply::decode(command as u16, body).map_err(ClientError::Reply)
}

impl AsFd for Client {
    /// Readable when [`Client::next_event`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
