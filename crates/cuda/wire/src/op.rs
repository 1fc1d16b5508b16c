//! Work that is ordered by a stream, or by the edges of a graph: the same values in both.

use crate::{
    codec::Bytes,
    ids::{EventId, KernelRef, RegionId, TransferId},
};

wire_struct! {
    /// The extent of a copy: rows of `width` bytes, `height` rows a slice, `depth` slices. A plain copy has 1 and 1.
    #[derive(Copy, Eq)]
    pub struct Shape {
        /// Bytes in a row.
        pub width: u64,
        /// Rows in a slice, at least 1.
        pub height: u64,
        /// Slices, at least 1.
        pub depth: u64,
    }
}

impl Shape {
    /// A plain run of bytes.
    pub const fn line(width: u64) -> Self {
        Self { width, height: 1, depth: 1 }
    }

    /// All bytes of the copy; `None` when they do not fit 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.width.checked_mul(self.height)?.checked_mul(self.depth)
    }
}

wire_struct! {
    /// Where a copy starts in device memory and how far apart its rows and slices are.
    #[derive(Copy, Eq)]
    pub struct Plane {
        /// Address of the first byte.
        pub address: u64,
        /// Bytes from a row to the next.
        pub row_pitch: u64,
        /// Bytes from a slice to the next.
        pub slice_pitch: u64,
    }
}

impl Plane {
    /// A plain run of bytes at `address`.
    pub const fn line(address: u64) -> Self {
        Self { address, row_pitch: 0, slice_pitch: 0 }
    }
}

wire_struct! {
    /// Where a copy starts in memory that client and worker share, and how far apart its rows and slices are.
    #[derive(Copy, Eq)]
    pub struct SharedPlane {
        /// Which memory.
        pub region: RegionId,
        /// Place of the first byte in it.
        pub offset: u64,
        /// Bytes from a row to the next.
        pub row_pitch: u64,
        /// Bytes from a slice to the next.
        pub slice_pitch: u64,
    }
}

impl SharedPlane {
    /// One past the place of the last byte of a copy; `None` when that does not fit 64 bits or the copy is empty.
    pub fn end(&self, shape: &Shape) -> Option<u64> {
        let rows = shape.height.checked_sub(1)?.checked_mul(self.row_pitch)?;
        let slices = shape.depth.checked_sub(1)?.checked_mul(self.slice_pitch)?;
        self.offset.checked_add(rows)?.checked_add(slices)?.checked_add(shape.width)
    }
}

wire_enum! {
    /// Where the bytes of a copy from the host come from. They are packed: row after row without gaps.
    pub enum HostData<'a> {
        /// Right here.
        0 Inline { bytes: Bytes<'a>, }
        /// The client sends them in the lanes unasked.
        1 Pushed { transfer: TransferId, }
        /// The client sends them in the lanes when the worker asks, each time the work runs.
        2 Pulled { transfer: TransferId, }
    }
}

wire_struct! {
    /// One launch attribute as the caller gave it, events in it replaced by their [`EventId`].
    pub struct LaunchAttribute {
        /// `CUlaunchAttributeID`.
        pub id: u32,
        /// `CUlaunchAttributeValue`, a union of 64 bytes.
        pub value: [u8; 64],
    }
}

wire_struct! {
    /// One element of a batch memory operation.
    #[derive(Copy, Eq)]
    pub struct MemoryOp {
        /// `CUstreamBatchMemOpType`.
        pub kind: u32,
        /// `CU_STREAM_WAIT_VALUE_*` or `CU_STREAM_WRITE_VALUE_*`.
        pub flags: u32,
        /// The word in device memory.
        pub address: u64,
        /// The value to write or to compare with; the low half for 32-bit kinds.
        pub value: u64,
    }
}

wire_enum! {
    /// One piece of stream-ordered work.
    pub enum Op<'a> {
        /// Nothing; a place for edges to meet.
        0 Empty {}
        /// Run a kernel.
        1 Launch {
            /// Which.
            kernel: KernelRef,
            /// Blocks.
            grid: [u32; 3],
            /// Threads of a block.
            block: [u32; 3],
            /// Dynamic shared memory.
            shared_bytes: u32,
            /// All blocks must be resident together.
            cooperative: bool,
            /// Further attributes of cuLaunchKernelEx.
            attributes: Vec<LaunchAttribute>,
            /// The parameter block, laid out as the kernel's [`crate::ParameterInfo`] says.
            parameters: Bytes<'a>,
        }
        /// Fill device memory with an element of 1, 2 or 4 bytes.
        2 Fill {
            /// Target; `shape.width` is in bytes.
            target: Plane,
            /// Extent.
            shape: Shape,
            /// Bytes of the element.
            element_bytes: u8,
            /// Its value, low bytes.
            value: u32,
        }
        /// Copy within or between devices.
        3 CopyDevice {
            /// Target.
            target: Plane,
            /// Source.
            source: Plane,
            /// Extent.
            shape: Shape,
        }
        /// Copy from the host.
        4 CopyIn {
            /// Target.
            target: Plane,
            /// Extent.
            shape: Shape,
            /// Source.
            data: HostData<'a>,
        }
        /// Copy to the host: packed bytes in the lanes under this name.
        5 CopyOut {
            /// Source.
            source: Plane,
            /// Extent.
            shape: Shape,
            /// The name the client waits for.
            transfer: TransferId,
        }
        /// Have the client run a host function; the stream goes on when it returned.
        6 HostCall {
            /// The client's name for function and argument.
            token: u64,
        }
        /// Record an event.
        7 Record {
            /// Which.
            event: EventId,
            /// `CU_EVENT_RECORD_*`.
            flags: u32,
        }
        /// Wait for an event's latest record.
        8 Wait {
            /// Which.
            event: EventId,
            /// `CU_EVENT_WAIT_*`.
            flags: u32,
        }
        /// Stream-ordered allocation at an address of the client's choice.
        9 Allocate {
            /// Where.
            address: u64,
            /// How much.
            bytes: u64,
        }
        /// Stream-ordered free.
        10 Free {
            /// Start of the allocation.
            address: u64,
        }
        /// Write or wait for words in device memory, in this order.
        11 MemoryOps {
            /// The operations.
            ops: Vec<MemoryOp>,
        }
        /// Copy from memory of the program that the worker maps too. In streams alone.
        12 CopyInShared {
            /// Target.
            target: Plane,
            /// Source.
            source: SharedPlane,
            /// Extent.
            shape: Shape,
        }
        /// Copy to memory of the program that the worker maps too. In streams alone.
        13 CopyOutShared {
            /// Source.
            source: Plane,
            /// Target.
            target: SharedPlane,
            /// Extent.
            shape: Shape,
        }
        /// Run bodies as a value says that kernels set. In graphs alone; see [`crate::level`] for where the bodies are.
        14 Conditional {
            /// What kernels know the value by. The client has chosen it; a driver with handles of its own puts them in its place
            /// in the parameters of kernels.
            handle: u64,
            /// `CUgraphConditionalNodeType`.
            kind: u32,
            /// The value when the graph is launched; as it was if there is none.
            first: Option<u32>,
            /// How many nodes each body has.
            bodies: Vec<u32>,
        }
    }
}

/// `CUgraphConditionalNodeType`.
pub mod condition {
    #![allow(missing_docs, reason = "the names of cuda.h")]

    pub const IF: u32 = 0;
    pub const WHILE: u32 = 1;
    pub const SWITCH: u32 = 2;
}

wire_struct! {
    /// A node of a graph that is about to be made executable. Child graphs are already laid flat.
    pub struct GraphNode<'a> {
        /// What it does.
        pub op: Op<'a>,
        /// Indices of the nodes that must be done before, each lower than this node's own.
        pub after: Vec<u32>,
        /// A node that is switched off does nothing and passes its edges on.
        pub enabled: bool,
    }
}
