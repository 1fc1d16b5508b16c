//! Signs of life of contexts that are merged with those of other sessions.
//!
//! The fault of another session ends them, and a session that asks nothing of the device does not hear of it. So each context has a
//! stream of its own, which writes a word now and then; a stream of a dead context says so.

#![allow(unsafe_code)]

use crate::{context::LiveContext, op::Work, pinned::Word, stream::LiveStream, sys::Api};
use cuda_abi::{CuResult, CudaError};
use locks::lock;
use std::sync::{Arc, Mutex};

pub(crate) struct Pulse {
    api: Api,
    beats: Mutex<Vec<Beat>>,
}

struct Beat {
    stream: LiveStream,
    /// The stream writes how often it was asked.
    word: Word,
    asked: u64,
}

impl Pulse {
    pub(crate) fn start<'a>(
        work: &Work,
        contexts: impl Iterator<Item = &'a Arc<LiveContext>>,
    ) -> CuResult<Self> {
        /// `kind` of a stream that waits for no other.
        const INDEPENDENT: u32 = 1;
        let beat = |context: &Arc<LiveContext>| {
            let stream = LiveStream::create(&work.api, Arc::clone(context), INDEPENDENT, 0)?;
            Ok(Beat { stream, word: work.words.take()?, asked: 0 })
        };
        Ok(Self { api: work.api, beats: Mutex::new(contexts.map(beat).collect::<CuResult<_>>()?) })
    }

    /// The error of a context that is dead. Asks those for another sign that gave the last one.
    pub(crate) fn fault(&self) -> Option<CudaError> {
        lock(&self.beats).iter_mut().find_map(|beat| beat.look(&self.api).err())
    }
}

impl Beat {
    fn look(&mut self, api: &Api) -> CuResult<()> {
        if self.word.get() < self.asked {
            return self.stream.is_idle().map(drop);
        }
        let raw = self.stream.enter()?;
        self.asked += 1;
        // SAFETY: stream and word live as long as `self`, and that as long as the process.
        unsafe { api.stream_write_value(raw, self.word.device(), self.asked, 0) }
    }
}
