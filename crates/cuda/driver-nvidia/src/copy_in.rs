//! Copies from the client's memory: the network fills pinned slots, the stream copies from them.
//!
//! The stream gets all its orders at once: wait for part 0, copy it, wait for part 1, … Parts that land early are
//! copied while others are still on their way. A pushed copy has a slot for each part, because its bytes may come long
//! before the stream gets there; a pulled one is asked for when the stream is there, and uses a few slots in turn.
//!
//! The library's calls block when a stream holds about 1,000 orders, and a long copy has more. So a pulled copy is
//! watched before its orders are given: its first parts are asked for and copied while the call waits for room.

#![allow(unsafe_code)]

use crate::{
    array,
    op::{Work, names_array},
    pinned::{SLOT_BYTES, Slot, Word},
    progress::{Until, Watch},
    rows::blocks,
    shared::Way,
    stream::LiveStream,
    sys::{Copy2D, MEMORY_DEVICE, MEMORY_HOST, Stream},
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::Landing;
use cuda_wire::{Plane, Shape, TransferId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Slots that a pulled copy uses in turn.
const RING: usize = 8;
/// `CU_STREAM_WAIT_VALUE_GEQ`
pub(crate) const AT_LEAST: u32 = 0;

/// Bytes on their way to the GPU.
pub(crate) struct Arrival {
    slots: Vec<Slot>,
    bytes: u64,
    /// Bytes that have landed, by part.
    filled: Vec<AtomicU64>,
    /// Parts from the first on that have landed; the stream waits for it.
    landed: Word,
    next: Mutex<usize>,
    /// 1 when the stream is there, then 1 more for each part copied; the stream writes it.
    copied: Arc<Word>,
    /// The stream did not get all orders; what lands is of no use.
    called_off: Arc<AtomicBool>,
    work: Arc<Work>,
}

impl Arrival {
    fn new(work: &Arc<Work>, bytes: u64, pull: bool) -> CuResult<Arc<Self>> {
        let parts = bytes.div_ceil(SLOT_BYTES as u64) as usize;
        let slot_count = if pull { parts.min(RING) } else { parts };
        Ok(Arc::new(Self {
            slots: (0..slot_count).map(|_| work.slots.take()).collect::<CuResult<Vec<_>>>()?,
            bytes,
            filled: (0..parts).map(|_| AtomicU64::new(0)).collect(),
            landed: work.words.take()?,
            next: Mutex::new(0),
            copied: Arc::new(work.words.take()?),
            called_off: Arc::default(),
            work: Arc::clone(work),
        }))
    }

    fn part_bytes(&self, part: usize) -> u64 {
        (self.bytes - (part * SLOT_BYTES) as u64).min(SLOT_BYTES as u64)
    }

    /// Whether the slot of `part` has been copied from, or is of no use any more.
    fn has_slot(&self, part: usize) -> bool {
        let is_copied = |before: usize| self.copied.get() >= before as u64 + 2;
        part.checked_sub(self.slots.len()).is_none_or(is_copied)
            || self.called_off.load(Ordering::Acquire)
            || self.work.is_aborted()
    }

    /// Blocks until then.
    fn wait_for_slot(&self, part: usize) {
        let mut looks = 0u32;
        while !self.has_slot(part) {
            looks += 1;
            if looks < 2000 {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    fn note_landed(&self, part: usize, bytes: u64) {
        let total = self.filled[part].fetch_add(bytes, Ordering::AcqRel) + bytes;
        if total < self.part_bytes(part) {
            return;
        }
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        while *next < self.filled.len()
            && self.filled[*next].load(Ordering::Acquire) == self.part_bytes(*next)
        {
            *next += 1;
        }
        self.landed.set(*next as u64);
    }

    /// Lets the stream go on without the bytes: they will not come.
    fn give_up(&self) {
        self.landed.set(u64::MAX >> 1);
    }

    /// The stream got only some of the orders: no thread waits for what it would have written.
    fn call_off(&self) {
        self.called_off.store(true, Ordering::Release);
        self.give_up();
    }
}

/// An arrival as the lanes fill it.
struct Lanes(Arc<Arrival>);

impl Landing for Lanes {
    fn land(&self, offset: u64, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let arrival = &*self.0;
        let (mut at, mut left) = (offset as usize, bytes);
        while left > 0 {
            let (part, inside) = (at / SLOT_BYTES, at % SLOT_BYTES);
            let count = left.min(SLOT_BYTES - inside);
            arrival.wait_for_slot(part);
            if arrival.work.is_merged() && arrival.work.is_aborted() {
                // The session leaves in order: its streams go no further than they are.
                fill(&mut vec![0; count]);
                at += count;
                left -= count;
                continue;
            }
            let slot = &arrival.slots[part % arrival.slots.len()];
            // SAFETY: each byte of a transfer lands once, the slot's last part has been copied from, and the stream
            // reads this part only after `note_landed` for all of it.
            fill(unsafe { slot.bytes_mut(inside, count) });
            arrival.note_landed(part, count as u64);
            at += count;
            left -= count;
        }
    }

    fn has_room(&self, offset: u64, bytes: usize) -> bool {
        // The slots of earlier parts are free when that of the last is.
        self.0.has_slot((offset as usize + bytes.max(1) - 1) / SLOT_BYTES)
    }
}

/// Puts a copy into a stream.
pub(crate) fn copy_in(
    work: &Arc<Work>,
    stream: &Arc<LiveStream>,
    plane: Plane,
    shape: Shape,
    transfer: TransferId,
    pull: bool,
) -> CuResult<()> {
    let bytes = shape.bytes().ok_or(CudaError::INVALID_VALUE)?;
    if bytes == 0 {
        return Ok(());
    }
    let arrival = Arrival::new(work, bytes, pull)?;
    stream.enter()?;
    if pull {
        receive_when_reached(&arrival, stream, transfer)?;
    }
    if let Err(error) = issue(work, stream, &arrival, plane, shape) {
        // The stream may have got some of the orders, so their words and slots stay until it has passed them.
        arrival.call_off();
        work.progress.keep_until_idle(stream, arrival);
        return Err(error);
    }
    if !pull {
        // Pushed bytes are taken only when the copy is: the session throws those of a refused one away.
        receive(&arrival, stream, transfer, false)?;
    }
    // The slots and words are free again when the stream has passed the last part.
    let parts = arrival.filled.len() as u64;
    work.progress.watch(Watch {
        until: Until::Written { word: Arc::clone(&arrival.copied), value: parts + 1 },
        stream: Arc::clone(stream),
        then: Box::new(move |_| drop(arrival)),
    });
    Ok(())
}

/// Has the bytes land in the slots as they come.
fn receive(arrival: &Arc<Arrival>, stream: &LiveStream, transfer: TransferId, pull: bool) -> CuResult<()> {
    let landing = Box::new(Lanes(Arc::clone(arrival)));
    let (lost, context) = (Arc::clone(arrival), stream.context.id);
    let over = Box::new(move |result: Result<(), cuda_driver::LinkLost>| {
        if result.is_err() {
            if lost.work.goes_on_without_bytes() {
                lost.give_up();
            }
            lost.work.defer(context, CudaError::DEVICE_UNAVAILABLE);
        }
    });
    arrival.work.link()?.receive_later(transfer, arrival.bytes, pull, landing, over);
    Ok(())
}

/// Asks the client for the bytes when the stream has got to the copy.
fn receive_when_reached(
    arrival: &Arc<Arrival>,
    stream: &Arc<LiveStream>,
    transfer: TransferId,
) -> CuResult<()> {
    // Without a link no thread could ask later.
    arrival.work.link()?;
    let (waiting, at) = (Arc::clone(arrival), Arc::clone(stream));
    arrival.work.progress.watch(Watch {
        until: Until::WrittenOrCalledOff {
            word: Arc::clone(&arrival.copied),
            value: 1,
            called_off: Arc::clone(&arrival.called_off),
        },
        stream: Arc::clone(stream),
        then: Box::new(move |reached| {
            if waiting.called_off.load(Ordering::Acquire) {
                return;
            }
            let is_lost = reached.is_err() || receive(&waiting, &at, transfer, true).is_err();
            if is_lost && waiting.work.goes_on_without_bytes() {
                waiting.give_up();
            }
        }),
    });
    Ok(())
}

fn issue(work: &Work, live: &Arc<LiveStream>, arrival: &Arrival, plane: Plane, shape: Shape) -> CuResult<()> {
    let stream = live.enter()?;
    // SAFETY: words and slots live until the stream has passed the last part.
    unsafe { work.api.stream_write_value(stream, arrival.copied.device(), 1, 0)? };
    for part in 0..arrival.filled.len() {
        let slot = &arrival.slots[part % arrival.slots.len()];
        work.before_part(live, arrival.part_bytes(part))?;
        // SAFETY: as above.
        unsafe { work.api.stream_wait_value(stream, arrival.landed.device(), part as u64 + 1, AT_LEAST)? };
        let (from, bytes) = ((part * SLOT_BYTES) as u64, arrival.part_bytes(part));
        to_device(work, stream, slot.start() as usize, from, plane, shape, bytes)?;
        // SAFETY: as above.
        unsafe { work.api.stream_write_value(stream, arrival.copied.device(), part as u64 + 2, 0)? };
    }
    Ok(())
}

/// Puts copies of the packed bytes `from..from + bytes`, which lie at `host`, into a stream.
pub(crate) fn to_device(
    work: &Work,
    stream: Stream,
    host: usize,
    from: u64,
    plane: Plane,
    shape: Shape,
    bytes: u64,
) -> CuResult<()> {
    if names_array(&plane) {
        return array::packed(work, stream, (host, from, bytes), (plane, shape), Way::In);
    }
    for block in blocks(plane, shape, from, bytes) {
        let source = host + (block.packed - from) as usize;
        if block.height == 1 {
            // SAFETY: our callers keep the host bytes unchanged until the stream has copied them.
            unsafe {
                let source = std::ptr::with_exposed_provenance(source);
                work.api.copy_in(block.address, source, block.width as usize, stream)?;
            }
            continue;
        }
        let copy = Copy2D {
            source_type: MEMORY_HOST,
            source_host: source,
            source_pitch: block.width as usize,
            target_type: MEMORY_DEVICE,
            target_device: block.address,
            target_pitch: block.pitch as usize,
            width: block.width as usize,
            height: block.height as usize,
            ..Copy2D::default()
        };
        // SAFETY: as above; the description is valid for the call.
        unsafe { work.api.copy_2d(&copy, stream)? };
    }
    Ok(())
}
