//! Reading device memory behind a stream's work without blocking the command loop.
//!
//! The answer must be what the stream holds at that point. So the copy is put into the stream as a copy to the host
//! under a name of our own, and when the stream reaches it, its bytes go into the reply instead of a lane.

use crate::sync::lock;
use cuda_driver::Source;
use cuda_wire::TransferId;
use std::collections::HashMap;
use std::sync::Mutex;

/// Called once with the bytes.
pub(crate) type Answer = Box<dyn FnOnce(Vec<u8>) + Send>;

#[derive(Default)]
pub(crate) struct ReadBacks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: HashMap<TransferId, Answer>,
}

/// A transfer's name has 40 bits that count and 24 that tell the launches of a graph apart. Ours have the last count
/// there is, which no client reaches (the gate sees to that), and count in the other bits.
const OWN: u64 = (1 << OWN_SHIFT) - 1;
const OWN_SHIFT: u32 = 40;

impl ReadBacks {
    pub(crate) fn is_own(transfer: TransferId) -> bool {
        transfer.0 & OWN == OWN
    }

    pub(crate) fn begin(&self, answer: Answer) -> TransferId {
        let mut state = lock(&self.state);
        let transfer = TransferId(OWN | state.next << OWN_SHIFT);
        state.next += 1;
        state.waiting.insert(transfer, answer);
        transfer
    }

    /// The stream has reached the copy.
    pub(crate) fn fill(&self, transfer: TransferId, bytes: u64, source: &Source<'_>) {
        let Some(answer) = self.take(transfer) else { return };
        let mut data = vec![0; bytes as usize];
        source(0, &mut data);
        answer(data);
    }

    /// Whether nobody has answered it yet; then nobody else will.
    pub(crate) fn take(&self, transfer: TransferId) -> Option<Answer> {
        lock(&self.state).waiting.remove(&transfer)
    }
}
