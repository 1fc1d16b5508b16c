//! The first words on each connection, after the transport's preamble (and TLS, if any).
//!
//! ```text
//! door connection      Knock   ──▶   ◀── Ticket | Refusal, and the end
//! command connection   Hello   ──▶   ◀── Welcome | Refusal
//! events, lanes        Join    ──▶   ◀── Welcome is over: nothing, or Refusal and the end
//! status connection    Hello   ──▶   ◀── StatusWelcome | Refusal
//! ```
//! Each is a frame: u32 length, u8 kind, body.
//!
//! Command and status connections bear the name that a ticket gave. The worker takes a process for them only then, so
//! that a client without a token costs it no process.

use crate::{
    appended::AppendedWish,
    codec::{DecodeError, Reader, Wire},
};

/// The longest handshake frame: a welcome with many devices fits many times.
pub const HANDSHAKE_BYTES_MAX: u32 = 1 << 20;

wire_struct! {
    /// A range of virtual addresses.
    #[derive(Copy, Eq)]
    pub struct VaRange {
        /// First address.
        pub base: u64,
        /// Bytes.
        pub bytes: u64,
    }
}

/// What a client that knocks wants next, as [`Knock::purpose`] says it.
pub mod purpose {
    /// A session: a command connection under the ticket's name.
    pub const SESSION: u8 = 1;
    /// A status connection under the ticket's name.
    pub const STATUS: u8 = 2;
    /// Only to know whether it would be served; the ticket opens nothing.
    pub const LOOK: u8 = 3;
}

wire_struct! {
    /// What a client says at the worker's door, before any process is taken for it.
    pub struct Knock {
        /// [`crate::PROTOCOL_VERSION`] of the client.
        pub protocol: u16,
        /// Proof that the client may use this worker. Never logged.
        pub token: String,
        /// What it wants: one of [`purpose`].
        pub purpose: u8,
    }
}

wire_struct! {
    /// The worker's answer to a [`Knock`] it accepts.
    #[derive(Copy, Eq)]
    pub struct Ticket {
        /// The name under which the next connection comes, once and soon. Zeros for [`purpose::LOOK`].
        pub session: [u8; 16],
        /// The worker's GPUs execute PTX and no machine code: programs that compile must know beforehand.
        pub executes_ptx_only: bool,
    }
}

wire_struct! {
    /// What a client says first.
    pub struct Hello {
        /// [`crate::PROTOCOL_VERSION`] of the client.
        pub protocol: u16,
        /// Proof that the client may use this worker. Never logged.
        pub token: String,
        /// The client's program and process, for the log.
        pub program: String,
        /// Its process number on its host.
        pub pid: u32,
        /// Address ranges the client has kept free for device memory, best first.
        pub va_candidates: Vec<VaRange>,
        /// How many bulk lanes the client will open.
        pub lanes: u8,
        /// What the program wants to be to others on the GPU, which decides only where no lease does; and a timeline.
        pub wish: AppendedWish,
    }
}

wire_struct! {
    /// A device as the client shows it to the program.
    pub struct DeviceInfo {
        /// Name, such as `NVIDIA H200`.
        pub name: String,
        /// Its UUID.
        pub uuid: [u8; 16],
        /// Total memory in bytes.
        pub memory_bytes: u64,
        /// `(CUdevice_attribute, value)`.
        pub attributes: Vec<(u32, i32)>,
        /// Least and greatest stream priority (0 and, say, -5).
        pub stream_priorities: (i32, i32),
        /// Minimum and recommended granularity of cuMemCreate.
        pub granularity: (u64, u64),
        /// `(CUlimit, value)` of a new context.
        pub limits: Vec<(u32, u64)>,
    }
}

wire_struct! {
    /// The worker's answer to a [`Hello`] it accepts.
    pub struct Welcome {
        /// [`crate::PROTOCOL_VERSION`] of the worker.
        pub protocol: u16,
        /// What events and lane connections of this session must show.
        pub session_secret: [u8; 32],
        /// `CUDA_VERSION` that the driver serves, such as 13000.
        pub cuda_version: i32,
        /// The devices, in order.
        pub devices: Vec<DeviceInfo>,
        /// Which of the candidates holds all device memory of this session.
        pub va: VaRange,
        /// Pushed bytes that the worker keeps before they are consumed; beyond, the client waits to be asked.
        pub push_window_bytes: u64,
        /// Memory the client may allocate on each device before it must await the answer.
        pub memory_credit_bytes: u64,
    }
}

wire_struct! {
    /// The worker's answer to a [`Hello`] on a status connection: one that only asks for the state of devices. Neither
    /// address ranges nor lanes mean anything there, and no session begins.
    #[derive(Copy, Eq)]
    pub struct StatusWelcome {
        /// [`crate::PROTOCOL_VERSION`] of the worker.
        pub protocol: u16,
        /// How many devices there are to ask about; they are those of a [`Welcome`], in the same order.
        pub devices: u32,
    }
}

wire_struct! {
    /// The worker's answer when it will not serve, in words for the user.
    pub struct Refusal {
        /// The CUDA error that cuInit should return.
        pub code: u32,
        /// Why, and what to do.
        pub text: String,
    }
}

wire_struct! {
    /// The first words on an events or lane connection.
    pub struct Join {
        /// From the [`Welcome`].
        pub session_secret: [u8; 32],
    }
}

/// A handshake frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Handshake {
    /// Client, command connection.
    Hello(Hello),
    /// Worker, command connection.
    Welcome(Box<Welcome>),
    /// Worker, any connection.
    Refusal(Refusal),
    /// Client, events and lanes.
    Join(Join),
    /// Worker, status connection.
    StatusWelcome(StatusWelcome),
    /// Client, door.
    Knock(Knock),
    /// Worker, door.
    Ticket(Ticket),
}

impl Handshake {
    /// The frame, its length in front.
    pub fn to_frame(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        match self {
            Self::Hello(body) => (out.push(1), body.put(&mut out)).1,
            Self::Welcome(body) => (out.push(2), body.put(&mut out)).1,
            Self::Refusal(body) => (out.push(3), body.put(&mut out)).1,
            Self::Join(body) => (out.push(4), body.put(&mut out)).1,
            Self::StatusWelcome(body) => (out.push(5), body.put(&mut out)).1,
            Self::Knock(body) => (out.push(6), body.put(&mut out)).1,
            Self::Ticket(body) => (out.push(7), body.put(&mut out)).1,
        }
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// How many bytes follow a frame's length, if that is a length we would read.
    pub fn body_length(prefix: [u8; 4]) -> Result<usize, DecodeError> {
        let length = u32::from_le_bytes(prefix);
        if length == 0 || length > HANDSHAKE_BYTES_MAX {
            let (value, bound) = (length.into(), HANDSHAKE_BYTES_MAX.into());
            return Err(DecodeError::OverBound { what: "handshake", value, bound });
        }
        Ok(length as usize)
    }

    /// The frame whose body (after the length) is `bytes`.
    pub fn from_body(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let frame = match u8::take(&mut reader)? {
            1 => Self::Hello(Hello::take(&mut reader)?),
            2 => Self::Welcome(Box::new(Welcome::take(&mut reader)?)),
            3 => Self::Refusal(Refusal::take(&mut reader)?),
            4 => Self::Join(Join::take(&mut reader)?),
            5 => Self::StatusWelcome(StatusWelcome::take(&mut reader)?),
            6 => Self::Knock(Knock::take(&mut reader)?),
            7 => Self::Ticket(Ticket::take(&mut reader)?),
            value => return Err(DecodeError::Unknown { what: "handshake", value: value.into() }),
        };
        reader.finish("handshake")?;
        Ok(frame)
    }
}
