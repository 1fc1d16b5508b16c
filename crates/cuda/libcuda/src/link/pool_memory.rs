//! What a link must know about the program's memory pools: where nothing lives, and how much does.

use cuda_wire::VaRange;

/// The memory pools whose memory is at one worker.
pub(crate) trait PoolMemory: Send + Sync {
    /// Bytes that live in them, and the fewest since this was last asked with `forget`.
    fn used(&self, forget: bool) -> (u64, u64);

    /// Calls `act` once with memory in which nothing lives. Nothing is placed or freed in a pool until `act` returns.
    ///
    /// A block that is freed was freed by a call that has returned, and what the program gave its streams before that call is
    /// in the queue. So if `act` divides the commands, no command behind the division needs the bytes of a freed block; and a
    /// block that a command before it has written and one behind it reads is not among them.
    fn while_still(&self, act: &mut dyn FnMut(Vec<VaRange>));
}
