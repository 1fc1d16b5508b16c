//! Marks around long work of a session that takes turns: the stream writes when it begins and when it has ended, so that the
//! session's keeper knows without a question to the driver.

#![allow(unsafe_code)]

use crate::{op::Work, pinned::Word, stream::LiveStream, sys::Api};
use cuda_abi::CuResult;

/// The marks of one stream.
pub(super) struct Marks {
    given: u64,
    /// How many have begun, and ended; the stream writes both.
    begun: Word,
    ended: Word,
}

impl Marks {
    pub(super) fn new(work: &Work) -> CuResult<Self> {
        Ok(Self { given: 0, begun: work.words.take()?, ended: work.words.take()? })
    }

    /// Work is about to be put into the stream. False when it cannot be marked.
    pub(super) fn begin(&mut self, api: &Api, stream: &LiveStream) -> bool {
        let given = self.given + 1;
        let is_put = put(api, stream, &self.begun, given);
        self.given += u64::from(is_put);
        is_put
    }

    /// The work is in the stream.
    pub(super) fn end(&mut self, api: &Api, stream: &LiveStream) {
        put(api, stream, &self.ended, self.given);
    }

    /// Whether all that has begun has ended.
    pub(super) fn rest(&self) -> bool {
        self.begun.get() == self.ended.get()
    }
}

fn put(api: &Api, stream: &LiveStream, word: &Word, value: u64) -> bool {
    let Ok(raw) = stream.enter() else { return false };
    // SAFETY: the stream lives until the call returns, and the word until the stream is idle, see `SharingGate::forget`.
    unsafe { api.stream_write_value(raw, word.device(), value, 0) }.is_ok()
}
