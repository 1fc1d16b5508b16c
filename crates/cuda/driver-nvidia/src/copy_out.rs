//! Copies to the client's memory: the stream fills pinned slots, the network takes them from there.
//!
//! The stream gets all its orders at once: copy part 0, say so, copy part 1, … Before a part whose slot is still being
//! sent, the stream waits. At the end it waits until the last byte has left: so the bytes are ahead of the answer to
//! any wait for the stream.
//!
//! The library's calls block when a stream holds about 1,000 orders, and a long copy has more. So the parts are watched
//! before their orders are given: the first ones leave while the call waits for room.

#![allow(unsafe_code)]

use crate::{
    array,
    copy_in::AT_LEAST,
    op::{Work, names_array},
    pinned::{SLOT_BYTES, Slot, Word},
    progress::{Until, Watch},
    read_back,
    rows::blocks,
    shared::Way,
    stream::LiveStream,
    sys::{Copy2D, MEMORY_DEVICE, MEMORY_HOST, Stream},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::Departure;
use cuda_wire::{Plane, Shape, TransferId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Slots that a copy uses in turn.
const RING: usize = 8;
/// Up to this much goes with the next reply: the client's thread that reads replies is awake, a lane's may sleep.
const SMALL_BYTES: u64 = 32 << 10;

/// Bytes on their way from the GPU.
struct Leaving {
    slots: Vec<Slot>,
    bytes: u64,
    /// Parts copied from the device; the stream writes it.
    ready: Arc<Word>,
    /// Parts from the first on that have left; the stream waits for it.
    sent: Word,
    left: Mutex<Left>,
    /// The stream did not get all orders; its parts are of no use.
    called_off: Arc<AtomicBool>,
}

#[derive(Default)]
struct Left {
    /// Parts from the first on that have left.
    count: usize,
    /// Later ones that were faster.
    ahead: Vec<usize>,
}

impl Leaving {
    fn parts(&self) -> usize {
        self.bytes.div_ceil(SLOT_BYTES as u64) as usize
    }

    fn part_bytes(&self, part: usize) -> u64 {
        (self.bytes - (part * SLOT_BYTES) as u64).min(SLOT_BYTES as u64)
    }

    fn note_sent(&self, part: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.ahead.push(part);
        while let Some(place) = left.ahead.iter().position(|&part| part == left.count) {
            left.ahead.swap_remove(place);
            left.count += 1;
        }
        self.sent.set(left.count as u64);
    }

    /// Lets the stream go on although the bytes are not sent.
    fn give_up(&self) {
        self.sent.set(u64::MAX >> 1);
    }

    /// The stream got only some of the orders: no thread waits for what it would have written.
    fn call_off(&self) {
        self.called_off.store(true, Ordering::Release);
        self.give_up();
    }
}

/// A part as the lanes send it.
struct Part {
    leaving: Arc<Leaving>,
    part: usize,
}

impl Departure for Part {
    fn depart(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8])) {
        let slot = &self.leaving.slots[self.part % self.leaving.slots.len()];
        let at = offset as usize - self.part * SLOT_BYTES;
        // SAFETY: the stream has written this part and writes the slot again only when the part has left.
        send(unsafe { slot.bytes(at, bytes) });
    }
}

/// Puts a copy into a stream.
pub(crate) fn copy_out(
    work: &Arc<Work>,
    stream: &Arc<LiveStream>,
    plane: Plane,
    shape: Shape,
    transfer: TransferId,
) -> CuResult<()> {
    let bytes = shape.bytes().ok_or(CudaError::INVALID_VALUE)?;
    if bytes == 0 {
        return Ok(());
    }
    let link = work.link()?.clone();
    if bytes <= SMALL_BYTES {
        let read = read_back::begin(work, Arc::clone(stream), plane, shape)?;
        if link.send_when_read(transfer, Box::new(read)).is_ok() {
            return Ok(());
        }
    }
    let parts = bytes.div_ceil(SLOT_BYTES as u64) as usize;
    let slots = (0..parts.min(RING)).map(|_| work.slots.take()).collect::<CuResult<Vec<_>>>()?;
    let leaving = Arc::new(Leaving {
        slots,
        bytes,
        ready: Arc::new(work.words.take()?),
        sent: work.words.take()?,
        left: Mutex::default(),
        called_off: Arc::default(),
    });
    stream.enter()?;
    for part in 0..parts {
        let (leaving, link) = (Arc::clone(&leaving), link.clone());
        work.progress.watch(Watch {
            until: Until::WrittenOrCalledOff {
                word: Arc::clone(&leaving.ready),
                value: part as u64 + 1,
                called_off: Arc::clone(&leaving.called_off),
            },
            stream: Arc::clone(stream),
            then: Box::new(move |reached| {
                if leaving.called_off.load(Ordering::Acquire) {
                    return;
                }
                if reached.is_err() {
                    return leaving.give_up();
                }
                let departure = Box::new(Part { leaving: Arc::clone(&leaving), part });
                let (offset, bytes) = ((part * SLOT_BYTES) as u64, leaving.part_bytes(part));
                let over = move |sent: Result<(), cuda_driver::LinkLost>| match sent {
                    Ok(()) => leaving.note_sent(part),
                    Err(_) => leaving.give_up(),
                };
                link.send_part(transfer, offset, bytes, departure, Box::new(over));
            }),
        });
    }
    if let Err(error) = issue(work, stream, &leaving, plane, shape) {
        // The stream may have got some of the orders, so their words and slots stay until it has passed them.
        leaving.call_off();
        work.progress.keep_until_idle(stream, leaving);
        return Err(error);
    }
    // The slots and words are free again when the stream has passed its last wait.
    work.progress.watch(Watch {
        until: Until::Written { word: Arc::clone(&leaving.ready), value: parts as u64 + 1 },
        stream: Arc::clone(stream),
        then: Box::new(move |_| drop(leaving)),
    });
    Ok(())
}

fn issue(work: &Work, live: &Arc<LiveStream>, leaving: &Leaving, plane: Plane, shape: Shape) -> CuResult<()> {
    let stream = live.enter()?;
    let (parts, ring) = (leaving.parts(), leaving.slots.len());
    let wait_sent = |count: usize| {
        // SAFETY: the word lives until the stream has passed its last wait.
        unsafe { work.api.stream_wait_value(stream, leaving.sent.device(), count as u64, AT_LEAST) }
    };
    let say = |value: u64| {
        // SAFETY: as above.
        unsafe { work.api.stream_write_value(stream, leaving.ready.device(), value, 0) }
    };
    for part in 0..parts {
        if part >= ring {
            wait_sent(part - ring + 1)?;
        }
        let (from, bytes) = ((part * SLOT_BYTES) as u64, leaving.part_bytes(part));
        let slot = &leaving.slots[part % ring];
        work.before_part(live, bytes)?;
        to_host(work, stream, slot.start() as usize, from, plane, shape, bytes)?;
        say(part as u64 + 1)?;
    }
    wait_sent(parts)?;
    say(parts as u64 + 1)
}

/// Puts copies of the packed bytes `from..from + bytes` to `host` into a stream.
pub(crate) fn to_host(
    work: &Work,
    stream: Stream,
    host: usize,
    from: u64,
    plane: Plane,
    shape: Shape,
    bytes: u64,
) -> CuResult<()> {
    if names_array(&plane) {
        return array::packed(work, stream, (host, from, bytes), (plane, shape), Way::Out);
    }
    for block in blocks(plane, shape, from, bytes) {
        let target = host + (block.packed - from) as usize;
        if block.height == 1 {
            // SAFETY: our callers leave the host bytes to the stream until it has written them.
            unsafe {
                let target = std::ptr::with_exposed_provenance_mut(target);
                work.api.copy_out(target, block.address, block.width as usize, stream)?;
            }
            continue;
        }
        let copy = Copy2D {
            source_type: MEMORY_DEVICE,
            source_device: block.address,
            source_pitch: block.pitch as usize,
            target_type: MEMORY_HOST,
            target_host: target,
            target_pitch: block.width as usize,
            width: block.width as usize,
            height: block.height as usize,
            ..Copy2D::default()
        };
        // SAFETY: as above; the description is valid for the call.
        unsafe { work.api.copy_2d(&copy, stream)? };
    }
    Ok(())
}
