//! What the program observed, and where in the command stream.

use crate::{calls::MODULE_LOAD, digest::Digest};
use cuda_wire::{ContextId, TransferId, VariableInfo};
use std::sync::Arc;

/// Something that reached the program. The client says it *before* the program can act on it.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A call returned. Made by [`Observation::reply`].
    Reply {
        /// Which call.
        call: u32,
        /// `CUresult`.
        status: u32,
        /// Of the body; of a module load, without addresses and log.
        digest: Digest,
        /// Where a loaded module's variables lie; empty for every other call.
        variables: Arc<[VariableInfo]>,
    },
    /// The last byte of a transfer to the host is in the program's memory.
    Landed {
        /// Which transfer.
        transfer: TransferId,
        /// Of its bytes, packed, in order.
        digest: Digest,
    },
    /// A host function is about to run. It is no mark: it only sees to it that the function does not run twice.
    HostCallBegan {
        /// Which function.
        token: u64,
        /// Whether commands may be sent because of what it does: the program has managed memory that it may touch.
        may_send: bool,
    },
    /// A host function returned, and the worker has not been told yet.
    HostCallRan {
        /// Which function.
        token: u64,
    },
    /// An error of earlier one-way work was given to a context. It is no mark: errors come with a reply, which is one.
    Deferred {
        /// Which context.
        context: ContextId,
        /// `CUresult`.
        status: u32,
    },
}

impl Observation {
    /// The observation of a reply to a command with this opcode.
    pub fn reply(call: u32, opcode: u16, status: u32, body: &[u8]) -> Self {
        if opcode == MODULE_LOAD && status == 0 {
            let (digest, variables) = Digest::of_module(body);
            return Self::Reply { call, status, digest, variables: variables.into() };
        }
        Self::Reply { call, status, digest: Digest::of_body(body), variables: no_variables() }
    }
}

/// An empty list that costs no allocation per reply.
fn no_variables() -> Arc<[VariableInfo]> {
    static NONE: std::sync::LazyLock<Arc<[VariableInfo]>> = std::sync::LazyLock::new(|| Arc::from([]));
    Arc::clone(&NONE)
}

/// An observation and where it was delivered.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    /// Bytes of frames that were sent before it.
    pub(crate) position: u64,
    /// How many cuts had been taken before it.
    pub(crate) epoch: u64,
    pub(crate) what: Observation,
}
