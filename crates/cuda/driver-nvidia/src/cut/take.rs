//! A cut as the command thread puts it into streams, and the thread that takes it.

#![allow(unsafe_code)]

use super::{
    Cuts,
    barrier::Barrier,
    frozen::Place,
    lane::{Lane, mark},
    shadow::{Shadow, Spill},
};
use crate::{
    copy_in::AT_LEAST,
    op::Work,
    pinned::Word,
    progress::{Until, Watch},
    stream::LiveEvent,
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Abandon, Cut, TakenCut};
use snapshot::{BlockDigest, Digest, EventAge};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A context's part in one cut.
pub(super) struct LaneCut {
    pub(super) lane: Arc<Lane>,
    pub(super) layout: Arc<Vec<Place>>,
    /// Places of what changed: the first are in the shadow, in this order, the others were spilled.
    pub(super) dirty: Mutex<Vec<u32>>,
    pub(super) shadow: Option<Shadow>,
    pub(super) spill: Option<Spill>,
    /// The stream has written digests to the host.
    digested: Arc<Word>,
    /// The stream has copied what changed.
    taken: Arc<Word>,
}

impl LaneCut {
    /// Finds room for whatever may have changed. `lane` is prepared for `layout`.
    pub(super) fn new(work: &Work, lane: Arc<Lane>, layout: Arc<Vec<Place>>) -> CuResult<Self> {
        let shadow = Shadow::borrow(work, &lane, layout.len())?;
        let rest = layout.len() - shadow.as_ref().map_or(0, |shadow| shadow.slots);
        let spill = if rest > 0 { Some(Spill::new(work, rest)?) } else { None };
        let (digested, taken) = (Arc::new(work.words.take()?), Arc::new(work.words.take()?));
        Ok(Self { lane, layout, dirty: Mutex::default(), shadow, spill, digested, taken })
    }

    pub(super) fn slots(&self) -> usize {
        self.shadow.as_ref().map_or(0, |shadow| shadow.slots)
    }

    /// Puts all orders of the cut into the lane's stream.
    fn order(&self, work: &Work, barrier: &Barrier, cuts: &Cuts) -> CuResult<()> {
        let (lane, number) = (&self.lane, barrier.number());
        let raw = lane.stream.enter()?;
        // SAFETY: the session's words live as long as it; the cut's words live until its streams are idle.
        let write =
            |word: &Word, value: u64| unsafe { work.api.stream_write_value(raw, word.device(), value, 0) };
        // SAFETY: as above.
        let wait = |word: &Word, value: u64| unsafe {
            work.api.stream_wait_value(raw, word.device(), value, AT_LEAST)
        };
        wait(&cuts.words.all_arrived, number)?;
        mark(work, raw, &lane.marks[0])?;
        lane.digest(work, &cuts.words.skipped, number)?;
        write(&self.digested, 1)?;
        if let Some(shadow) = &self.shadow {
            lane.copy(work, 0, shadow.slots, shadow.slot(0))?;
        }
        if let Some(spill) = &self.spill {
            for piece in 0..spill.pieces {
                if piece >= 2 {
                    wait(&spill.emptied, piece as u64 - 1)?;
                }
                let first = self.slots() + piece * spill.piece_slots;
                lane.copy(work, first, spill.piece_slots, spill.device(piece))?;
                write(&spill.filled, piece as u64 + 1)?;
            }
        }
        mark(work, raw, &lane.marks[2])?;
        write(&self.taken, 1)
    }
}

/// One cut, shared by the command thread and the cut's thread.
pub(super) struct Taking {
    pub(super) cut: Cut,
    pub(super) barrier: Arc<Barrier>,
    pub(super) lanes: Vec<LaneCut>,
    pub(super) live_bytes: u64,
    pub(super) events: Vec<(u32, Arc<LiveEvent>)>,
    /// What changed, for the way out.
    pub(super) dirty: Mutex<Vec<BlockDigest>>,
    /// Not all orders came into the streams.
    pub(super) called_off: Arc<AtomicBool>,
    /// The command thread gives no more orders.
    pub(super) is_begun: AtomicBool,
}

/// How long the GPU took for a cut.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    pub(crate) digest: Duration,
    pub(crate) copy: Duration,
    /// All streams stood still.
    pub(crate) stood: Duration,
}

impl Taking {
    /// Puts the cut into the order of commands. Whatever fails, no stream is left waiting.
    pub(super) fn begin(&self, work: &Arc<Work>, cuts: &Cuts) -> CuResult<()> {
        let begun = self.barrier.call(work).and_then(|()| {
            self.lanes.iter().try_for_each(|lane| {
                self.watch(work, lane);
                lane.order(work, &self.barrier, cuts)
            })?;
            self.barrier.close(work)
        });
        if begun.is_err() {
            // A lane's stream that did not get all orders never writes its last word.
            self.called_off.store(true, Ordering::Release);
            self.barrier.give_up(Abandon::Ended);
        }
        self.is_begun.store(true, Ordering::Release);
        begun
    }

    /// Waits until no work of the cut is in streams, so that its memory can go. The barrier is open.
    pub(super) fn wait_out(&self) {
        const REST: Duration = Duration::from_micros(100);
        // It may be given up while the command thread still gives orders.
        while !self.is_begun.load(Ordering::Acquire) {
            std::thread::sleep(REST);
        }
        for lane in &self.lanes {
            if let Some(spill) = &lane.spill {
                spill.let_go();
            }
            lane.lane.stream.wait_out();
        }
    }

    /// A context that dies in the middle is told to the cut's thread.
    fn watch(&self, work: &Arc<Work>, lane: &LaneCut) {
        let barrier = Arc::clone(&self.barrier);
        work.progress.watch(Watch {
            until: Until::WrittenOrCalledOff {
                word: Arc::clone(&lane.taken),
                value: 1,
                called_off: Arc::clone(&self.called_off),
            },
            stream: Arc::clone(&lane.lane.stream),
            then: Box::new(move |reached| {
                if reached.is_err() {
                    barrier.give_up(Abandon::ContextLost);
                }
            }),
        });
    }

    /// Waits for a word that the GPU writes while all streams stand still.
    fn wait_for(&self, work: &Work, word: &Word, value: u64) -> Result<(), Abandon> {
        /// How long it looks without a rest: digests of some gigabytes come sooner.
        const EAGER: Duration = Duration::from_millis(2);
        const REST: Duration = Duration::from_micros(20);
        let start = Instant::now();
        while word.get() < value {
            if work.is_aborted() {
                return Err(Abandon::Ended);
            }
            if self.barrier.is_failed() {
                return Err(Abandon::ContextLost);
            }
            match start.elapsed() < EAGER {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(REST),
            }
        }
        Ok(())
    }

    /// All blocks, lane by lane, still without digests. Made while the streams gather: memory for millions of entries
    /// takes as long as their digests do.
    pub(super) fn entries(&self) -> Vec<BlockDigest> {
        let places = self.lanes.iter().flat_map(|lane| lane.layout.iter());
        places.map(|place| BlockDigest { block: place.block, digest: Digest::NEVER }).collect()
    }

    /// What changed, when the kernels have told it and put it aside. The streams stand still.
    pub(super) fn collect(
        &self,
        work: &Arc<Work>,
        cuts: &Cuts,
        mut entries: Vec<BlockDigest>,
    ) -> Result<TakenCut, Abandon> {
        let (mut dirty, mut from) = (0, 0);
        for lane in &self.lanes {
            self.wait_for(work, &lane.digested, 1)?;
            let of_lane = &mut entries[from..from + lane.layout.len()];
            from += of_lane.len();
            // SAFETY: the stream has written them, and the next cut comes only after this one.
            let places = unsafe { lane.lane.results(of_lane) }.map_err(|_| Abandon::ContextLost)?;
            dirty += places.len();
            *lane.dirty.lock().unwrap_or_else(PoisonError::into_inner) = places;
        }
        if self.lanes.iter().filter(|lane| !lane.layout.is_empty()).count() > 1 {
            entries.sort_unstable_by_key(|entry| entry.block.address);
        }
        let number = self.cut.number;
        let delta = cuts.books().digests.take(number, entries).map_err(|_| Abandon::Ended)?;
        let finished = self.lanes.iter().try_for_each(|lane| self.finish_copies(work, lane));
        // A device that calls other blocks dirty than the host does would leave some out.
        let is_whole = delta.dirty.len() == dirty;
        let finished = finished.and(if is_whole { Ok(()) } else { Err(Abandon::ContextLost) });
        if let Err(reason) =
            finished.and_then(|()| self.flush_text(work)).and_then(|()| self.barrier.closed())
        {
            let _ = cuts.books().digests.settle(number, false);
            return Err(reason);
        }
        let dirty_bytes = delta.dirty.iter().map(|entry| u64::from(entry.block.bytes)).sum();
        let pause = self.barrier.held_for();
        Ok(TakenCut { delta, live_bytes: self.live_bytes, dirty_bytes, events: Vec::new(), pause })
    }

    fn finish_copies(&self, work: &Work, lane: &LaneCut) -> Result<(), Abandon> {
        if let Some(spill) = &lane.spill {
            let dirty = lane.dirty.lock().unwrap_or_else(PoisonError::into_inner).len();
            let rest = dirty.saturating_sub(lane.slots());
            for piece in 0..rest.div_ceil(spill.piece_slots) {
                self.wait_for(work, &spill.filled, piece as u64 + 1)?;
                let slots = spill.piece_slots.min(rest - piece * spill.piece_slots);
                // SAFETY: the stream has filled it and waits for `emptied` before it fills it again.
                unsafe { spill.empty(piece, slots) };
            }
            spill.let_go();
        }
        self.wait_for(work, &lane.taken, 1)
    }

    /// Sends what kernels before the cut have printed, so that the client has it before it hears of the cut.
    ///
    /// The driver hands text over in a wait, and this thread may not call the library. So another one does; if it comes
    /// to nothing, a command waits for room in a stream, and the cut is given up.
    fn flush_text(&self, work: &Arc<Work>) -> Result<(), Abandon> {
        let printing: Vec<Arc<Lane>> = self
            .lanes
            .iter()
            .map(|lane| &lane.lane)
            .filter(|lane| lane.context.may_print())
            .cloned()
            .collect();
        if printing.is_empty() {
            return Ok(());
        }
        let (done, is_done) = mpsc::channel();
        let of_thread = Arc::clone(work);
        let flush = move || {
            for lane in printing {
                let _ = lane.stream.wait();
                of_thread.after_wait(&lane.context);
            }
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("dxpu-cut-text".to_owned());
        thread.spawn(flush).map_err(|_| Abandon::Patience)?;
        is_done.recv_timeout(self.cut.patience).map_err(|_| Abandon::Patience)
    }

    /// Ages of events with timing at the moment all streams were there. The streams go on meanwhile: an event that has
    /// been recorded again is left out, its age is of no use any more.
    pub(super) fn ages(&self, work: &Work) -> Vec<EventAge> {
        let moment = Instant::now();
        let age = |(id, event): &(u32, Arc<LiveEvent>)| {
            if let Some(age) = event.age() {
                let since = age.before + moment.saturating_duration_since(age.restored);
                return Some(EventAge {
                    event: *id,
                    age_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
                });
            }
            let is_of = |lane: &&LaneCut| Arc::ptr_eq(&lane.lane.context, &event.context);
            let lane = self.lanes.iter().find(is_of)?;
            let milliseconds = elapsed(work, event, &lane.lane.marks[0]).ok()?;
            (milliseconds >= 0.0)
                .then(|| EventAge { event: *id, age_ns: (f64::from(milliseconds) * 1e6) as u64 })
        };
        self.events.iter().filter_map(age).collect()
    }

    /// What the GPU took, for those who measure.
    pub(super) fn timing(&self, work: &Work, stood: Duration) -> Timing {
        let between = |lane: &LaneCut, from: usize, to: usize| {
            let marks = &lane.lane.marks;
            elapsed(work, &marks[from], &marks[to]).map_or(0.0, |ms| ms.max(0.0))
        };
        let longest = |from: usize, to: usize| {
            let times = self.lanes.iter().filter(|lane| !lane.layout.is_empty());
            Duration::from_secs_f32(times.map(|lane| between(lane, from, to)).fold(0.0, f32::max) / 1e3)
        };
        Timing { digest: longest(0, 1), copy: longest(1, 2), stood }
    }
}

/// Milliseconds between two events of one context.
pub(super) fn elapsed(work: &Work, start: &LiveEvent, end: &LiveEvent) -> CuResult<f32> {
    if !Arc::ptr_eq(&start.context, &end.context) {
        return Err(CudaError::INVALID_HANDLE);
    }
    start.context.enter()?;
    let mut milliseconds = 0.0;
    // SAFETY: both events live until the call returns.
    unsafe { work.api.event_elapsed(&mut milliseconds, start.raw(), end.raw())? };
    Ok(milliseconds)
}
