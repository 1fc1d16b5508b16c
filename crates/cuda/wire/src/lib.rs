//! The command stream: commands, replies, handshake and bulk chunks as bytes.
//!
//! Everything here is a value or a pure function from bytes to values. Commands name things by identifiers that the
//! client minted and by device addresses that the client chose, so the same command means the same on any worker.
//!
//! ```text
//! command connection   client ── command*  ──▶ worker        one ordered stream per process
//!                      client ◀── reply*   ── worker        only for commands that asked for one
//! events connection    client ◀── notice*  ── worker        host functions to run, data to send, printf text
//!                      client ── answer*   ──▶ worker
//! lanes (0..7)         client ◀── chunk*   ──▶ worker        bulk bytes, named by transfer and offset
//! status connection    client ── DeviceStatus* ──▶ worker    no session: what NVML says of the devices
//!                      client ◀── reply*   ── worker
//! ```
//!
//! Integers are little-endian. A variable part carries its length in front, and every length is checked against a
//! named bound before anything is allocated.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

#[macro_use]
mod codec;

mod appended;
mod array;
mod bodies;
mod command;
pub mod content;
mod green;
mod guard;
mod handshake;
mod ids;
mod module;
mod op;
mod share;
mod status;
mod stream;
mod subject;
mod tensor_map;
mod texture;
mod timeline;
mod transfer;

pub use appended::{AppendedPlaces, AppendedWish};
pub use array::{
    ARRAY_BYTES_MAX, ARRAYS_MAX, ArrayInfo, ArrayPlace, LEVELS_MAX, LevelExtent, array_kind, channel_bytes,
};
pub use bodies::{BODIES_DEEP_MAX, LevelNode, level};
pub use codec::{Blob, Bytes, DecodeError, Reader, Wire};
pub use command::{
    COMMANDS, Command, CommandRow, Commands, DriverCommand, Execute, Received, SessionCommand,
};
pub use green::{SM_GROUPS_MAX, SM_PARTS_MAX, SmGroups, SmInfo, SmPart, SmSplit};
pub use guard::{FENCE_CALL, FIRST_INCARNATION, GuardInfo, ImageName, ImageRestored};
pub use handshake::{
    DeviceInfo, HANDSHAKE_BYTES_MAX, Handshake, Hello, Join, Knock, Refusal, StatusWelcome, Ticket, VaRange,
    Welcome, purpose,
};
pub use ids::{
    ArrayId, ContextId, EventId, ExecId, GreenId, KernelRef, MemoryHandleId, ModuleId, RegionId, SamplerId,
    StreamId, TransferId, transfer_of_run,
};
pub use module::{
    ImageSource, JitOption, KernelInfo, LinkInput, LinkOutput, ModuleInfo, ParameterInfo, VariableInfo,
};
pub use op::{GraphNode, HostData, LaunchAttribute, MemoryOp, Op, Plane, Shape, SharedPlane, condition};
pub use share::{Imported, ShareName, Shared};
pub use status::{DeviceStatus, FieldValue, MemoryErrors};
pub use stream::{
    ASIDE, ChunkHeader, CommandHeader, LANES_MAX, Notice, NoticeHeader, ReplyHeader, WAYS, begin_command,
    finish_command, header,
};
pub use subject::Subject;
pub use tensor_map::Im2colWide;
pub use texture::{Resource, ResourceView, Sampling, resource_kind};
pub use timeline::{Span, TimedAnswer, TimedKernel, TimedStream, TimedWork, timed};
pub use transfer::{LinkLost, Sink, Source};

/// The version of everything in this crate. A peer that speaks another one is told so and refused.
///
/// 1: the first. 2: clients knock, and show their token, before a process is taken for them.
pub const PROTOCOL_VERSION: u16 = 2;

/// The longest command body. Larger data travels in lanes; a longer length is a broken or hostile peer.
pub const COMMAND_BYTES_MAX: u32 = 16 << 20;

/// The end of a session's address range belongs to the driver (module variables, device heap): no client places
/// anything there.
pub const DRIVER_VA_BYTES: u64 = 64 << 30;

/// Host data up to this size travels inside its command or reply; larger data takes a lane.
///
/// A lane saves the copy through the command buffer but costs a second wake-up; they are even near here.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
