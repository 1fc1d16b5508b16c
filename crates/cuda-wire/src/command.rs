//! Every command, as one table. Opcodes are the wire format: never renumbered, never reused.

use crate::{
    codec::{Blob, DecodeError, Reader, Wire},
    ids::{ContextId, EventId, ExecId, KernelRef, MemoryHandleId, ModuleId, StreamId},
    module::{ImageSource, JitOption, LinkInput, LinkOutput, ModuleInfo},
    op::{GraphNode, LaunchAttribute, Op, Plane, Shape},
    status::DeviceStatus,
};
use cuda_abi::CuResult;

/// A row of the table, for those who ask about commands rather than send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRow {
    /// Its number on the wire.
    pub opcode: u16,
    /// Its name.
    pub name: &'static str,
    /// Whether the answer holds more than success or failure, so that it must be awaited.
    pub has_answer: bool,
}

macro_rules! commands {
    ($($(#[$meta:meta])* $opcode:literal $name:ident $method:ident {
        $($field:ident: $ty:ty),* $(,)?
    } -> $answer:ty;)*) => {
        /// A command with its arguments, borrowed from the frame it came in.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Command<'a> {
            $($(#[$meta])* #[allow(missing_docs)] $name { $($field: $ty),* },)*
        }

        /// All commands, ascending by opcode.
        pub const COMMANDS: &[CommandRow] = &[$(CommandRow {
            opcode: $opcode,
            name: stringify!($name),
            has_answer: size_of::<$answer>() != 0,
        }),*];

        impl<'a> Command<'a> {
            /// The number on the wire.
            #[inline]
            pub fn opcode(&self) -> u16 {
                match self {
                    $(Self::$name { .. } => $opcode,)*
                }
            }

            /// Its name, for messages.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($name),)*
                }
            }

            /// Appends the body, without header.
            #[inline]
            pub fn put_body(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name { $($field),* } => {
                        let _ = &out;
                        $(Wire::put($field, out);)*
                    })*
                }
            }

            /// The command with this opcode and body.
            pub fn decode(opcode: u16, body: &'a [u8]) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(body);
                let command = match opcode {
                    $($opcode => Self::$name { $($field: <$ty as Wire<'a>>::take(&mut reader)?),* },)*
                    value => return Err(DecodeError::Unknown { what: "command", value: value.into() }),
                };
                reader.finish(command.name())?;
                Ok(command)
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

        /// Executes `command` and appends its answer to `answer`.
        pub fn dispatch(command: Command<'_>, target: &impl Commands, answer: &mut Vec<u8>) -> CuResult<()> {
            match command {
                $(Command::$name { $($field),* } => {
                    let value: $answer = target.$method($($field),*)?;
                    value.put(answer);
                })*
            }
            Ok(())
        }
    };
}

commands! {
    /// Make a context. Primary contexts need no making.
    0x0001 ContextCreate context_create { context: ContextId, device: u32, flags: u32 } -> ();
    /// End a context with everything in it.
    0x0002 ContextDestroy context_destroy { context: ContextId } -> ();
    /// Give a primary context back its first state: everything in it ends, a dead one is alive again.
    0x0003 ContextReset context_reset { context: ContextId } -> ();
    /// Wait for all work of a context.
    0x0004 ContextSynchronize context_synchronize { context: ContextId } -> ();
    /// Set a `CUlimit`.
    0x0005 ContextSetLimit context_set_limit { context: ContextId, limit: u32, value: u64 } -> ();
    /// Allow kernels of a context to reach memory of the peer context's device.
    0x0006 ContextEnablePeer context_enable_peer { context: ContextId, peer: ContextId, enable: bool } -> ();

    /// Allocate device memory at an address of the client's choice.
    0x0010 MemoryAllocate memory_allocate { context: ContextId, address: u64, bytes: u64 } -> ();
    /// Free it when all work that was there before is done.
    0x0011 MemoryFree memory_free { address: u64 } -> ();
    /// Free and total bytes of a device.
    0x0012 MemoryInfo memory_info { device: u32 } -> (u64, u64);
    /// Make physical memory (cuMemCreate).
    0x0013 PhysicalCreate physical_create { handle: MemoryHandleId, device: u32, bytes: u64 } -> ();
    /// Let go of it; it ends when it is mapped nowhere.
    0x0014 PhysicalRelease physical_release { handle: MemoryHandleId } -> ();
    /// Map a part of it (cuMemMap).
    0x0015 PhysicalMap physical_map { address: u64, bytes: u64, offset: u64, handle: MemoryHandleId } -> ();
    /// Unmap whatever is mapped in the range (cuMemUnmap).
    0x0016 PhysicalUnmap physical_unmap { address: u64, bytes: u64 } -> ();
    /// Set who may read (1) or read and write (3) the range, or nobody (0).
    0x0017 PhysicalSetAccess physical_set_access { address: u64, bytes: u64, device: u32, protection: u32 } -> ();
    /// What NVML says of a device. Needs no context; the only command, beside the goodbye, of a status connection.
    0x0018 DeviceStatus device_status { device: u32 } -> DeviceStatus;

    /// Load an image into a context; what is in it comes back.
    0x0020 ModuleLoad module_load {
        module: ModuleId, context: ContextId, hash: [u8; 32], image: ImageSource<'a>, options: Vec<JitOption>,
    } -> ModuleInfo;
    /// Unload it.
    0x0021 ModuleUnload module_unload { module: ModuleId } -> ();
    /// Set an attribute of a kernel.
    0x0022 KernelSetAttribute kernel_set_attribute { kernel: KernelRef, attribute: u32, value: i32 } -> ();
    /// Link images into one.
    0x0023 Link link { context: ContextId, inputs: Vec<LinkInput<'a>>, options: Vec<JitOption> } -> LinkOutput;

    /// How many clusters of a launch reside together (cuOccupancyMaxActiveClusters).
    0x0024 ActiveClusters active_clusters {
        kernel: KernelRef, grid: [u32; 3], block: [u32; 3], shared_bytes: u32, attributes: Vec<LaunchAttribute>,
    } -> i32;
    /// The largest cluster of a launch (cuOccupancyMaxPotentialClusterSize).
    0x0025 LargestCluster largest_cluster {
        kernel: KernelRef, grid: [u32; 3], block: [u32; 3], shared_bytes: u32, attributes: Vec<LaunchAttribute>,
    } -> i32;

    /// Make a stream. `kind` 0: blocking (ordered against the context's legacy stream), 1: non-blocking,
    /// 2: the context's legacy stream itself.
    0x0030 StreamCreate stream_create { stream: StreamId, context: ContextId, kind: u32, priority: i32 } -> ();
    /// End it when its work is done.
    0x0031 StreamDestroy stream_destroy { stream: StreamId } -> ();
    /// Wait for its work.
    0x0032 StreamSynchronize stream_synchronize { stream: StreamId } -> ();
    /// Success when it is idle, CUDA_ERROR_NOT_READY otherwise.
    0x0033 StreamQuery stream_query { stream: StreamId } -> ();
    /// Put work at its end.
    0x0034 Enqueue enqueue { stream: StreamId, op: Op<'a> } -> ();
    /// Copy to the host behind the stream's work; the packed bytes are the answer.
    0x0035 ReadBack read_back { stream: StreamId, source: Plane, shape: Shape } -> Blob;

    /// Make an event.
    0x0040 EventCreate event_create { event: EventId, context: ContextId, flags: u32 } -> ();
    /// End it.
    0x0041 EventDestroy event_destroy { event: EventId } -> ();
    /// Wait for its latest record.
    0x0042 EventSynchronize event_synchronize { event: EventId } -> ();
    /// Success when its latest record is done, CUDA_ERROR_NOT_READY otherwise.
    0x0043 EventQuery event_query { event: EventId } -> ();
    /// Milliseconds between two recorded events.
    0x0044 EventElapsed event_elapsed { start: EventId, end: EventId } -> f32;

    /// Make a graph executable.
    0x0050 GraphInstantiate graph_instantiate { exec: ExecId, context: ContextId, nodes: Vec<GraphNode<'a>> } -> ();
    /// Replace all nodes of an executable graph of the same shape.
    0x0051 GraphUpdate graph_update { exec: ExecId, nodes: Vec<GraphNode<'a>> } -> ();
    /// Replace one node.
    0x0052 GraphSetNode graph_set_node { exec: ExecId, index: u32, op: Op<'a>, enabled: bool } -> ();
    /// Run it behind a stream's work. Transfers to the host are named by [`crate::transfer_of_run`].
    0x0053 GraphLaunch graph_launch { exec: ExecId, stream: StreamId, run: u32 } -> ();
    /// Prepare the next launch.
    0x0054 GraphUpload graph_upload { exec: ExecId, stream: StreamId } -> ();
    /// End it when its last launch is done.
    0x0055 GraphDestroy graph_destroy { exec: ExecId } -> ();

    /// The client ends well: nothing it left behind is a fault.
    0x0060 Goodbye goodbye {} -> ();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_ascend_and_are_unique() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].opcode < pair[1].opcode));
    }
}
