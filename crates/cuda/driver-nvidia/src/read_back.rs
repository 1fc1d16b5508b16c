//! Small reads of device memory, for answers.

#![allow(unsafe_code)]

use crate::{
    copy_out::to_host,
    op::Work,
    pinned::{SLOT_BYTES, Slot, Word},
    progress::{Until, Watch},
    stream::LiveStream,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::PendingRead;
use cuda_wire::{Plane, Shape};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks between two questions whether the stream is still alive.
const LOOKS_PER_HEALTH: u32 = 256;

/// A read that a stream will get to.
pub(crate) struct Read {
    work: Arc<Work>,
    stream: Arc<LiveStream>,
    /// Taken when the bytes were, or when a drop hands it on.
    slot: Option<Slot>,
    word: Arc<Word>,
    bytes: usize,
    looks: u32,
}

/// Puts a read into a stream.
pub(crate) fn begin(
    work: &Arc<Work>,
    stream: Arc<LiveStream>,
    source: Plane,
    shape: Shape,
) -> CuResult<Read> {
    let bytes = shape.bytes().filter(|&bytes| bytes <= SLOT_BYTES as u64).ok_or(CudaError::INVALID_VALUE)?;
    let (slot, word) = (work.slots.take()?, Arc::new(work.words.take()?));
    let raw = stream.enter()?;
    let issued = to_host(work, raw, slot.start() as usize, 0, source, shape, bytes)
        // SAFETY: the word lives until the stream has written it, see `drop`.
        .and_then(|()| unsafe { work.api.stream_write_value(raw, word.device(), 1, 0) });
    if let Err(error) = issued {
        // The stream may have got some of the orders, so it may still write there.
        work.progress.keep_until_idle(&stream, (slot, word));
        return Err(error);
    }
    Ok(Read { work: Arc::clone(work), stream, slot: Some(slot), word, bytes: bytes as usize, looks: 0 })
}

impl Read {
    fn take(&mut self, out: &mut Vec<u8>) -> bool {
        if self.word.get() == 0 {
            return false;
        }
        if let Some(slot) = self.slot.take() {
            // SAFETY: the stream has written the bytes and knows the slot no more.
            out.extend_from_slice(unsafe { slot.bytes(0, self.bytes) });
        }
        self.work.after_wait(&self.stream.context);
        true
    }
}

impl PendingRead for Read {
    fn poll(&mut self, out: &mut Vec<u8>) -> CuResult<bool> {
        if self.take(out) {
            return Ok(true);
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_HEALTH) {
            self.stream.is_idle()?;
        }
        Ok(false)
    }

    fn wait(mut self: Box<Self>, out: &mut Vec<u8>) -> CuResult<()> {
        const REST: Duration = Duration::from_micros(20);
        let start = Instant::now();
        loop {
            if self.poll(out)? {
                return Ok(());
            }
            if self.work.is_aborted() {
                return Err(CudaError::DEVICE_UNAVAILABLE);
            }
            if start.elapsed() > REST {
                std::thread::sleep(REST);
            }
        }
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        // The stream will still write there.
        self.work.progress.watch(Watch {
            until: Until::Written { word: Arc::clone(&self.word), value: 1 },
            stream: Arc::clone(&self.stream),
            then: Box::new(move |_| drop(slot)),
        });
    }
}
