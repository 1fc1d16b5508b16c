//! Work for a stream as an owned value: what a capture keeps and a graph is made of.

use super::{Capturing, Context, Copy, Event, Function, Stream, capture, managed, pool_order};
use crate::border::HostFn;
use cuda_abi::CuResult;
use cuda_wire::{Bytes, LaunchAttribute, MemoryOp, Op, Plane, Shape};
use std::sync::Arc;

/// One piece of stream-ordered work.
#[derive(Clone)]
pub(crate) enum NodeOp {
    /// Nothing.
    Empty,
    /// A kernel.
    Kernel(KernelNode),
    /// A copy between any two places.
    Copy {
        /// What is copied where.
        copy: Copy,
        /// The context it happens in.
        context: Arc<Context>,
    },
    /// A memset.
    Fill {
        /// Target; the shape's width is in bytes.
        target: Plane,
        /// Extent.
        shape: Shape,
        /// Bytes of the element: 1, 2 or 4.
        element_bytes: u8,
        /// Its value.
        value: u32,
        /// The context it happens in.
        context: Arc<Context>,
    },
    /// A function of the program.
    Host {
        /// The function.
        function: HostFn,
        /// Its argument.
        user_data: u64,
    },
    /// Record an event.
    Record {
        /// Which.
        event: Arc<Event>,
        /// `CU_EVENT_RECORD_*`.
        flags: u32,
    },
    /// Wait for an event.
    Wait {
        /// Which.
        event: Arc<Event>,
        /// `CU_EVENT_WAIT_*`.
        flags: u32,
    },
    /// Allocate at an address that is placed already.
    Allocate {
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
    },
    /// Free.
    Free {
        /// Start of the allocation.
        address: u64,
    },
    /// Write and wait for words in device memory.
    MemoryOps {
        /// The operations.
        ops: Vec<MemoryOp>,
        /// The context it happens in.
        context: Arc<Context>,
    },
    /// A whole graph.
    Child(super::ChildGraph),
    /// Bodies that run as a value says.
    Conditional(super::ConditionalNode),
}

/// A kernel launch as a value.
#[derive(Clone)]
pub(crate) struct KernelNode {
    /// The handle the program launched: a `CUfunction` or `CUkernel`.
    pub(crate) handle: u64,
    /// The kernel.
    pub(crate) function: Arc<Function>,
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory.
    pub(crate) shared_bytes: u32,
    /// All blocks resident together.
    pub(crate) cooperative: bool,
    /// Further attributes.
    pub(crate) attributes: Vec<LaunchAttribute>,
    /// The parameter block.
    pub(crate) parameters: Vec<u8>,
}

impl KernelNode {
    /// The same for the wire.
    pub(crate) fn to_wire(&self) -> Op<'_> {
        Op::Launch {
            kernel: self.function.kernel,
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            cooperative: self.cooperative,
            attributes: self.attributes.clone(),
            parameters: Bytes(&self.parameters),
        }
    }
}

/// Puts work behind a stream, or into the graph it is captured to.
pub(crate) fn submit(stream: &Arc<Stream>, op: NodeOp) -> CuResult<()> {
    match capture::intercept(stream, op)? {
        None => Ok(()),
        Some(op) => run_op(stream, op),
    }
}

impl Capturing<'_> {
    /// Puts work into the graph that the stream is captured to, or refuses it if the stream is blocked. If another thread
    /// has ended the capture since [`capturing`](super::capturing), the work runs.
    #[cold]
    pub(crate) fn add(self, op: NodeOp) -> CuResult<()> {
        match capture::give_to_capture(self.0, op)? {
            None => Ok(()),
            Some(op) => run_op(self.0, op),
        }
    }
}

/// Puts work behind a stream that is not captured.
pub(crate) fn run_op(stream: &Arc<Stream>, op: NodeOp) -> CuResult<()> {
    let send = |op: Op<'_>| stream.enqueue(op);
    match op {
        NodeOp::Empty => Ok(()),
        NodeOp::Kernel(node) => managed::launching(stream, || send(node.to_wire())),
        NodeOp::Copy { copy, .. } => super::run_copy(stream, &copy, false),
        NodeOp::Fill { target, shape, element_bytes, value, .. } => {
            let fill = || send(Op::Fill { target, shape, element_bytes, value });
            managed::filling(stream, (&target, &shape), fill)
        }
        NodeOp::Host { function, user_data } => {
            super::shadow::fetch_all()?;
            let run = managed::around_host_function(move || function.call(user_data));
            let token = stream.context.link.offer_host_call(Box::new(run), true);
            send(Op::HostCall { token })
        }
        NodeOp::Record { event, flags } => {
            super::shadow::fetch_all()?;
            // Before, so that no thread believes that the event is done. After, so that an answer which another thread asked
            // for in between does not count for this record: the worker gave it for the record before.
            event.note_record();
            pool_order::before_record(&event, stream);
            let sent = send(Op::Record { event: event.id, flags });
            event.note_record();
            sent?;
            if event.is_interprocess() { event.await_others() } else { Ok(()) }
        }
        NodeOp::Wait { event, flags } if event.is_interprocess() => {
            send(Op::Wait { event: event.id, flags })?;
            event.await_others()
        }
        NodeOp::Wait { event, flags } => {
            let expected = pool_order::before_wait(&event);
            send(Op::Wait { event: event.id, flags })?;
            pool_order::stream_waited(expected, stream);
            Ok(())
        }
        NodeOp::Allocate { address, bytes, .. } => send(Op::Allocate { address, bytes }),
        NodeOp::Free { address } => send(Op::Free { address }),
        NodeOp::MemoryOps { ops, .. } => {
            let words = ops.iter().map(|op| op.address).filter(|_| managed::is_any()).collect::<Vec<_>>();
            managed::writing_words(stream, &words, || send(Op::MemoryOps { ops }))
        }
        NodeOp::Child(_) | NodeOp::Conditional(_) => Ok(()),
    }
}
