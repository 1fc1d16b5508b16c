//! Every command, as one table. Opcodes are the wire format: never renumbered, never reused.
//!
//! ```text
//!   client  Command ── opcode, body ──▶ worker  Received ─┬─ Driver(DriverCommand)   ─▶ Execute: a method of Commands
//!                                                         └─ Session(SessionCommand) ─▶ the session's command loop
//! ```
//!
//! The macro makes these types, the encoder, the decoder and the dispatch from the table at the end of this file.

use crate::{
    array::ArrayInfo,
    codec::{Blob, DecodeError, Reader, Wire},
    green::{SmGroups, SmInfo, SmPart, SmSplit},
    guard::{GuardInfo, ImageName, ImageRestored},
    handshake::VaRange,
    ids::{
        ArrayId, ContextId, EventId, ExecId, GreenId, KernelRef, MemoryHandleId, ModuleId, RegionId,
        SamplerId, StreamId,
    },
    module::{ImageSource, JitOption, LinkInput, LinkOutput, ModuleInfo},
    op::{GraphNode, LaunchAttribute, Op, Plane, Shape},
    share::{Imported, ShareName, Shared},
    status::DeviceStatus,
    subject::Subject,
    tensor_map::Im2colWide,
    texture::{Resource, ResourceView, Sampling},
};
use cuda_abi::CuResult;

/// A row of the table, for code that asks about commands rather than sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRow {
    /// Its number on the wire.
    pub opcode: u16,
    /// Its name.
    pub name: &'static str,
    /// Whether the answer holds more than success or failure, so that it must be awaited.
    pub has_answer: bool,
}

/// A command as a worker hears it: sorted by what carries it out.
#[derive(Clone, Debug, PartialEq)]
pub enum Received<'a> {
    /// A driver executes it, in its turn.
    Driver(DriverCommand<'a>),
    /// The session carries it out.
    Session(SessionCommand),
}

/// Executes commands. Every type that has a method for each of them ([`Commands`]) does.
pub trait Execute {
    /// Executes `command` and appends its answer to `answer`.
    fn execute(&self, command: DriverCommand<'_>, answer: &mut Vec<u8>) -> CuResult<()>;
}

macro_rules! commands {
    (
        driver {$(
            $(#[$meta:meta])*
            $opcode:literal $name:ident $method:ident @ $subject:ident($($key:ident)?) {
                $($field:ident: $ty:ty),* $(,)?
            } -> $answer:ty;
        )*}
        session {$(
            $(#[$session_meta:meta])*
            $session_opcode:literal $session_name:ident {
                $($session_field:ident: $session_ty:ty),* $(,)?
            } -> $session_answer:ty;
        )*}
    ) => {
        /// A command with its arguments, as a client says it.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Command<'a> {
            $($(#[$meta])* #[allow(missing_docs)] $name { $($field: $ty),* },)*
            $($(#[$session_meta])* #[allow(missing_docs)] $session_name { $($session_field: $session_ty),* },)*
        }

        /// A command that a driver executes, its arguments borrowed from the frame it came in.
        #[derive(Clone, Debug, PartialEq)]
        pub enum DriverCommand<'a> {
            $($(#[$meta])* #[allow(missing_docs)] $name { $($field: $ty),* },)*
        }

        /// A command that the session itself carries out: its answer may take long, and the commands behind it must not
        /// wait for it; or it ends the session.
        #[derive(Clone, Debug, PartialEq)]
        pub enum SessionCommand {
            $($(#[$session_meta])* #[allow(missing_docs)] $session_name { $($session_field: $session_ty),* },)*
        }

        /// All commands: those of drivers, then those of sessions, each ascending by opcode.
        pub const COMMANDS: &[CommandRow] = &[
            $(CommandRow {
                opcode: $opcode,
                name: stringify!($name),
                has_answer: size_of::<$answer>() != 0,
            },)*
            $(CommandRow {
                opcode: $session_opcode,
                name: stringify!($session_name),
                has_answer: size_of::<$session_answer>() != 0,
            },)*
        ];

        impl<'a> Command<'a> {
            /// The number on the wire.
            #[inline]
            pub fn opcode(&self) -> u16 {
                match self {
                    $(Self::$name { .. } => $opcode,)*
                    $(Self::$session_name { .. } => $session_opcode,)*
                }
            }

            /// Its name, for messages.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($name),)*
                    $(Self::$session_name { .. } => stringify!($session_name),)*
                }
            }

            /// Appends the body, without header.
            #[inline]
            pub fn put_body(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field),* } => {
                        $(Wire::put($field, out);)*
                    })*
                    $(Self::$session_name { $($session_field),* } => {
                        let _ = &out;
                        $(Wire::put($session_field, out);)*
                    })*
                }
            }

            /// The command with this opcode and body.
            pub fn decode(opcode: u16, body: &'a [u8]) -> Result<Self, DecodeError> {
                Received::decode(opcode, body).map(Self::from)
            }
        }

        impl<'a> Received<'a> {
            /// The command with this opcode and body.
            pub fn decode(opcode: u16, body: &'a [u8]) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(body);
                let (received, name) = match opcode {
                    $($opcode => {
                        let command = DriverCommand::$name { $($field: <$ty as Wire<'a>>::take(&mut reader)?),* };
                        (Self::Driver(command), stringify!($name))
                    })*
                    $($session_opcode => {
                        let command = SessionCommand::$session_name {
                            $($session_field: <$session_ty as Wire<'a>>::take(&mut reader)?),*
                        };
                        (Self::Session(command), stringify!($session_name))
                    })*
                    value => return Err(DecodeError::Unknown { what: "command", value: value.into() }),
                };
                reader.finish(name)?;
                Ok(received)
            }
        }

        impl<'a> From<Received<'a>> for Command<'a> {
            fn from(received: Received<'a>) -> Self {
                match received {
                    $(Received::Driver(DriverCommand::$name { $($field),* }) => Self::$name { $($field),* },)*
                    $(Received::Session(SessionCommand::$session_name { $($session_field),* }) => {
                        Self::$session_name { $($session_field),* }
                    })*
                }
            }
        }

        impl DriverCommand<'_> {
            /// What it is about.
            #[inline]
            pub fn subject(&self) -> Subject {
                match self {
                    $(Self::$name { $($key,)? .. } => Subject::$subject $(((*$key).into()))?,)*
                }
            }
        }

        /// What executes commands: one method each.
        ///
        /// Methods take `&self`: several threads of a worker wait and query while another one executes.
        // One form for all commands: those without borrowed arguments have no use for the lifetime.
        #[allow(clippy::extra_unused_lifetimes)]
        pub trait Commands {
            $($(#[$meta])* fn $method<'a>(&self, $($field: $ty),*) -> CuResult<$answer>;)*
        }

        impl<T: Commands> Execute for T {
            fn execute(&self, command: DriverCommand<'_>, answer: &mut Vec<u8>) -> CuResult<()> {
                match command {
                    $(DriverCommand::$name { $($field),* } => {
                        let value: $answer = self.$method($($field),*)?;
                        value.put(answer);
                    })*
                }
                Ok(())
            }
        }
    };
}

// A row of `driver`: opcode, name, method, `@` what the command is about (see `Subject`), arguments, answer.
// A row of `session`: opcode, name, arguments, answer.
commands! {
    driver {
        /// Make a context. Primary contexts need no making.
        0x0001 ContextCreate context_create @ Context(context) { context: ContextId, device: u32, flags: u32 } -> ();
        /// End a context with everything in it.
        0x0002 ContextDestroy context_destroy @ Context(context) { context: ContextId } -> ();
        /// Give a primary context back its first state: everything in it ends, a dead one is alive again.
        0x0003 ContextReset context_reset @ Context(context) { context: ContextId } -> ();
        /// Set a `CUlimit`.
        0x0005 ContextSetLimit context_set_limit @ Context(context) {
            context: ContextId, limit: u32, value: u64,
        } -> ();
        /// Allow kernels of a context to reach memory of the peer context's device.
        0x0006 ContextEnablePeer context_enable_peer @ Context(context) {
            context: ContextId, peer: ContextId, enable: bool,
        } -> ();

        /// Allocate device memory at an address of the client's choice.
        0x0010 MemoryAllocate memory_allocate @ Context(context) {
            context: ContextId, address: u64, bytes: u64,
        } -> ();
        /// Free it when all work that was there before is done.
        0x0011 MemoryFree memory_free @ Nothing() { address: u64 } -> ();
        /// Free and total bytes of a device.
        0x0012 MemoryInfo memory_info @ Device(device) { device: u32 } -> (u64, u64);
        /// Make physical memory (cuMemCreate).
        0x0013 PhysicalCreate physical_create @ Device(device) {
            handle: MemoryHandleId, device: u32, bytes: u64,
        } -> ();
        /// Let go of it; it ends when it is mapped nowhere.
        0x0014 PhysicalRelease physical_release @ Nothing() { handle: MemoryHandleId } -> ();
        /// Map a part of it (cuMemMap).
        0x0015 PhysicalMap physical_map @ Nothing() {
            address: u64, bytes: u64, offset: u64, handle: MemoryHandleId,
        } -> ();
        /// Unmap whatever is mapped in the range (cuMemUnmap).
        0x0016 PhysicalUnmap physical_unmap @ Nothing() { address: u64, bytes: u64 } -> ();
        /// Set whether a device may read (1), read and write (3) or not touch (0) the range.
        0x0017 PhysicalSetAccess physical_set_access @ Device(device) {
            address: u64, bytes: u64, device: u32, protection: u32,
        } -> ();
        /// What NVML says of a device. Needs no context; the only command, beside the goodbye, of a status connection.
        0x0018 DeviceStatus device_status @ Device(device) { device: u32 } -> DeviceStatus;

        /// Load an image into a context; what is in it comes back.
        0x0020 ModuleLoad module_load @ Context(context) {
            module: ModuleId, context: ContextId, hash: [u8; 32], image: ImageSource<'a>, options: Vec<JitOption>,
        } -> ModuleInfo;
        /// Unload it.
        0x0021 ModuleUnload module_unload @ Module(module) { module: ModuleId } -> ();
        /// Set an attribute of a kernel.
        0x0022 KernelSetAttribute kernel_set_attribute @ Module(kernel) {
            kernel: KernelRef, attribute: u32, value: i32,
        } -> ();
        /// Link images into one.
        0x0023 Link link @ Context(context) {
            context: ContextId, inputs: Vec<LinkInput<'a>>, options: Vec<JitOption>,
        } -> LinkOutput;

        /// How many clusters of a launch reside together (cuOccupancyMaxActiveClusters).
        0x0024 ActiveClusters active_clusters @ Module(kernel) {
            kernel: KernelRef, grid: [u32; 3], block: [u32; 3], shared_bytes: u32, attributes: Vec<LaunchAttribute>,
        } -> i32;
        /// The largest cluster of a launch (cuOccupancyMaxPotentialClusterSize).
        0x0025 LargestCluster largest_cluster @ Module(kernel) {
            kernel: KernelRef, grid: [u32; 3], block: [u32; 3], shared_bytes: u32, attributes: Vec<LaunchAttribute>,
        } -> i32;

        /// Make a stream. `kind` 0: blocking (ordered against the context's legacy stream), 1: non-blocking,
        /// 2: the context's legacy stream itself.
        0x0030 StreamCreate stream_create @ Context(context) {
            stream: StreamId, context: ContextId, kind: u32, priority: i32,
        } -> ();
        /// End it when its work is done.
        0x0031 StreamDestroy stream_destroy @ Stream(stream) { stream: StreamId } -> ();
        /// Success when it is idle, CUDA_ERROR_NOT_READY otherwise.
        0x0033 StreamQuery stream_query @ Stream(stream) { stream: StreamId } -> ();
        /// Put work at its end.
        0x0034 Enqueue enqueue @ Stream(stream) { stream: StreamId, op: Op<'a> } -> ();

        /// Make an event.
        0x0040 EventCreate event_create @ Context(context) { event: EventId, context: ContextId, flags: u32 } -> ();
        /// End it.
        0x0041 EventDestroy event_destroy @ Event(event) { event: EventId } -> ();
        /// Success when its latest record is done, CUDA_ERROR_NOT_READY otherwise.
        0x0043 EventQuery event_query @ Event(event) { event: EventId } -> ();
        /// Milliseconds between two recorded events.
        0x0044 EventElapsed event_elapsed @ Event(start) { start: EventId, end: EventId } -> f32;

        /// Make a graph executable.
        0x0050 GraphInstantiate graph_instantiate @ Context(context) {
            exec: ExecId, context: ContextId, nodes: Vec<GraphNode<'a>>,
        } -> ();
        /// Replace all nodes of an executable graph of the same shape.
        0x0051 GraphUpdate graph_update @ Exec(exec) { exec: ExecId, nodes: Vec<GraphNode<'a>> } -> ();
        /// Replace one node.
        0x0052 GraphSetNode graph_set_node @ Exec(exec) { exec: ExecId, index: u32, op: Op<'a>, enabled: bool } -> ();
        /// Run it behind a stream's work. Transfers to the host are named by [`crate::transfer_of_run`].
        0x0053 GraphLaunch graph_launch @ Stream(stream) { exec: ExecId, stream: StreamId, run: u32 } -> ();
        /// Prepare the next launch.
        0x0054 GraphUpload graph_upload @ Stream(stream) { exec: ExecId, stream: StreamId } -> ();
        /// End it when its last launch is done.
        0x0055 GraphDestroy graph_destroy @ Exec(exec) { exec: ExecId } -> ();

        /// Make an array. Copies name places in it by addresses of its window ([`ArrayId::address`]).
        0x0090 ArrayCreate array_create @ Context(context) {
            array: ArrayId, context: ContextId, info: ArrayInfo,
        } -> ();
        /// Free it when all work that was there before is done.
        0x0091 ArrayDestroy array_destroy @ Nothing() { array: ArrayId } -> ();
        /// Make a texture object; the answer is what kernels know it by.
        0x0092 TextureCreate texture_create @ Context(context) {
            sampler: SamplerId, context: ContextId, resource: Resource, sampling: Sampling, view: Option<ResourceView>,
        } -> u64;
        /// Make a surface object; the answer is what kernels know it by.
        0x0093 SurfaceCreate surface_create @ Context(context) {
            sampler: SamplerId, context: ContextId, resource: Resource,
        } -> u64;
        /// End a texture or surface object when all work that was there before is done.
        0x0094 SamplerDestroy sampler_destroy @ Nothing() { sampler: SamplerId } -> ();
        /// Success when a module has a texture or surface reference of this name.
        0x0095 ReferenceFind reference_find @ Module(module) {
            module: ModuleId, name: String, is_surface: bool,
        } -> ();
        /// Bind what kernels launched from now on read through a reference.
        0x0096 ReferenceBind reference_bind @ Module(module) {
            module: ModuleId, name: String, is_surface: bool, resource: Resource, sampling: Sampling,
        } -> ();

        /// The multiprocessors of a device, or of a green context on it.
        0x00a8 SmResource sm_resource @ Device(device) { device: u32, green: Option<GreenId> } -> SmInfo;
        /// What splitting them would give.
        0x00a9 SmSplit sm_split @ Device(device) { device: u32, green: Option<GreenId>, split: SmSplit } -> SmGroups;
        /// Make a green context of a primary context; the answer is what it runs on.
        0x00aa GreenCreate green_create @ Context(context) {
            green: GreenId, context: ContextId, parts: Vec<SmPart>, flags: u32,
        } -> SmInfo;
        /// End it when its streams have ended.
        0x00ab GreenDestroy green_destroy @ Nothing() { green: GreenId } -> ();
        /// Make a stream whose work runs in a green context. `kind` is that of `StreamCreate`; the legacy stream is the green
        /// context's own.
        0x00ac GreenStreamCreate green_stream_create @ Context(context) {
            stream: StreamId, context: ContextId, green: GreenId, kind: u32, priority: i32,
        } -> ();
        /// Have the driver make a tensor map; the answer is its bytes.
        0x00ad TensorMapWide tensor_map_wide @ Context(context) { context: ContextId, map: Im2colWide } -> [u8; 128];
        /// Keep further addresses free for this session, whole steps of 2 MiB: the program has registered host memory there.
        0x00ae AddressesReserve addresses_reserve @ Nothing() { range: VaRange } -> ();
    }
    session {
        /// Wait for all work of a context.
        0x0004 ContextSynchronize { context: ContextId } -> ();
        /// Wait for the work of a stream.
        0x0032 StreamSynchronize { stream: StreamId } -> ();
        /// Copy to the host behind a stream's work; the packed bytes are the answer.
        0x0035 ReadBack { stream: StreamId, source: Plane, shape: Shape } -> Blob;
        /// Wait for the latest record of an event.
        0x0042 EventSynchronize { event: EventId } -> ();
        /// The client ends well: nothing it left behind is a fault. Its image, if it has one, ends too.
        0x0060 Goodbye {} -> ();
        /// Protect this session: its cuts go into this image. The secret opens the image and makes the key of its digests.
        0x0070 Guard { image: ImageName, secret: [u8; 32], incarnation: u64 } -> GuardInfo;
        /// Take a cut here. Everything that is mapped is live, but for `dead`: memory that the program has freed and that no
        /// command behind the cut reads before it writes. One is under way at a time. [`crate::Notice::CutTaken`] and [`crate::Notice::CutSafe`] follow, or
        /// [`crate::Notice::CutAbandoned`]. Once the client sends a cut it needs no image older than the last safe one.
        0x0071 Cut { number: u64, dead: Vec<VaRange>, patience_us: u32 } -> ();
        /// Load the image of a cut into memory that was made again. If the worker's own guardian does not have it, it
        /// asks the guardian at `from` (empty: none).
        0x0072 ImageRestore { number: u64, from: String } -> ImageRestored;
        /// The client ends this session and its image stays: it goes on elsewhere, or later.
        0x0073 Leave {} -> ();
        /// Load the image of a cut into memory that was made again, beside the session that writes it: nothing is taken over,
        /// and this session is not protected. `from` as for `ImageRestore`.
        0x0074 ImageCopy { image: ImageName, secret: [u8; 32], number: u64, from: String } -> ImageRestored;
        /// Have this worker's guardian bring what one of the guardians `from` has of an image, whose writer goes on there:
        /// the program will come here, and the image will only lack what changed since.
        0x0075 ImageFetch { image: ImageName, secret: [u8; 32], incarnation: u64, from: String } -> ();
        /// Map memory of the program whose descriptor was passed beside the connection just before this. Only to a worker
        /// that said that it takes memory.
        0x0080 HostShare { region: RegionId, bytes: u64 } -> ();
        /// Let go of it when all work that was there before is done.
        0x0081 HostUnshare { region: RegionId } -> ();
        /// Share a range of allocated memory with the program's other processes at this worker.
        0x00a0 MemoryShare { address: u64, bytes: u64 } -> Shared;
        /// The same for physical memory.
        0x00a1 PhysicalShare { handle: MemoryHandleId } -> Shared;
        /// The same for an event that was made for it (`CU_EVENT_INTERPROCESS`).
        0x00a2 EventShare { event: EventId } -> Shared;
        /// Take a piece of memory that another session shares, as physical memory.
        0x00a3 PhysicalImport { handle: MemoryHandleId, name: ShareName, piece: u32 } -> Imported;
        /// Take an event that another session shares.
        0x00a4 EventImport { event: EventId, context: ContextId, name: ShareName } -> ();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn opcodes_are_unique_and_ascend_in_both_parts() {
        let opcodes: Vec<u16> = COMMANDS.iter().map(|row| row.opcode).collect();
        assert_eq!(opcodes.iter().collect::<BTreeSet<_>>().len(), opcodes.len());
        assert_eq!(
            opcodes.windows(2).filter(|pair| pair[0] >= pair[1]).count(),
            1,
            "one step back: to sessions"
        );
    }

    #[test]
    fn what_waits_goes_to_the_session_and_work_to_the_driver() {
        let (stream, context) = (StreamId(7), ContextId(0x101));
        let received = |command: &Command<'_>| {
            let mut body = Vec::new();
            command.put_body(&mut body);
            match Received::decode(command.opcode(), &body).unwrap() {
                Received::Driver(command) => Err(command.subject()),
                Received::Session(command) => Ok(command),
            }
        };
        let wait = Command::StreamSynchronize { stream };
        assert_eq!(received(&wait), Ok(SessionCommand::StreamSynchronize { stream }));
        assert_eq!(received(&Command::Goodbye {}), Ok(SessionCommand::Goodbye {}));
        assert_eq!(received(&Command::StreamQuery { stream }), Err(Subject::Stream(stream)));
        // What a command makes has no context yet that could answer for it.
        let make = Command::StreamCreate { stream, context, kind: 0, priority: 0 };
        assert_eq!(received(&make), Err(Subject::Context(context)));
        let kernel = KernelRef { module: ModuleId(9), index: 4 };
        let set = Command::KernelSetAttribute { kernel, attribute: 1, value: 2 };
        assert_eq!(received(&set), Err(Subject::Module(ModuleId(9))));
        assert_eq!(received(&Command::MemoryInfo { device: 3 }), Err(Subject::Device(3)));
        assert_eq!(received(&Command::MemoryFree { address: 1 }), Err(Subject::Nothing));
    }
}
