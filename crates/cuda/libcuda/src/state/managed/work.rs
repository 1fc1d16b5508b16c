//! Before work that may use managed memory.

use super::{Area, Areas, Attached, CHANGED, is_any, lock_areas};
use crate::{
    paging::Access,
    state::{Copy, Place, Stream, plane_span, run_checked},
};
use cuda_abi::{CuResult, CudaError};
use cuda_client::managed::Lent;
use cuda_wire::{Command, Plane, Shape};
use std::{
    io,
    ops::Range,
    sync::{Arc, MutexGuard},
};

/// Enqueues a kernel. It may use all managed memory that its stream may use.
#[inline]
pub(crate) fn launching(stream: &Arc<Stream>, enqueue: impl FnOnce() -> CuResult<()>) -> CuResult<()> {
    if is_any() { lend_visible(stream, false).and_then(|_areas| enqueue()) } else { enqueue() }
}

/// A host function, and what has to follow it: work that was enqueued behind it, before it ran, may use what it has touched. So
/// that goes to the device before the stream goes on.
pub(crate) fn around_host_function(mut function: impl FnMut() + Send) -> impl FnMut() + Send {
    move || {
        lock_areas().functions += 1;
        function();
        if let Err(error) = give_back_touched() {
            crate::log::error(&format!("what a host function wrote into managed memory is lost: {error}"));
        }
    }
}

/// Not by [`lock_for_work`]: a fetch may be waiting for the stream that waits for this.
fn give_back_touched() -> CuResult<()> {
    let mut areas = lock_areas();
    areas.functions -= 1;
    let mut sides: Vec<Arc<Stream>> = Vec::new();
    for base in std::mem::take(&mut areas.by_functions) {
        let Some(area) = areas.by_base.get(&base) else { continue };
        let (context, sent) = (Arc::clone(&area.context), area.moved.0);
        areas.lend(base, None)?;
        let has_sent = areas.by_base.get(&base).is_some_and(|area| area.moved.0 != sent);
        if has_sent {
            sides.push(areas.sides.stream(&context)?);
        }
    }
    drop(areas);
    sides.dedup_by_key(|side| side.id.0);
    for side in sides {
        // Not by the context, which would take an error that the program has not been told of yet.
        side.context.link.call(&Command::StreamSynchronize { stream: side.id })?;
    }
    Ok(())
}

/// Enqueues a graph. Its nodes may belong to any stream.
pub(crate) fn launching_graph(stream: &Arc<Stream>, enqueue: impl FnOnce() -> CuResult<()>) -> CuResult<()> {
    if is_any() { lend_visible(stream, true).and_then(|_areas| enqueue()) } else { enqueue() }
}

/// Gives the device all that work of a stream may use. The work is enqueued while the lock is held: a touch in between would
/// take old bytes for new ones.
#[cold]
fn lend_visible(stream: &Arc<Stream>, is_graph: bool) -> CuResult<MutexGuard<'static, Areas>> {
    let mut areas = lock_for_work(stream);
    let link = &stream.context.link;
    let is_visible = |area: &Area| {
        let is_attached = match area.attached {
            Attached::Global => true,
            Attached::Host => false,
            Attached::Stream(id) => is_graph || id == stream.id.0,
        };
        is_attached && Arc::ptr_eq(&area.context.link, link)
    };
    let visible = areas.by_base.values().filter(|area| is_visible(area)).map(|area| area.base);
    let visible: Vec<u64> = visible.collect();
    for base in &visible {
        areas.lend(*base, None)?;
    }
    // One wait for all of them.
    for base in visible {
        areas.order(stream, base)?;
    }
    areas.sides.note_busy(stream);
    Ok(areas)
}

/// Waits while a touch holds work back.
///
/// A fetch that work overtakes has bytes of before or after it, and is dropped. A program that may be told again to another
/// session must get the same bytes there, so its work does not overtake fetches.
fn lock_for_work(stream: &Stream) -> MutexGuard<'static, Areas> {
    let mut areas = lock_areas();
    while areas.is_held || (areas.fetching > 0 && stream.context.link.survives()) {
        areas = locks::wait(&CHANGED, areas);
    }
    areas
}

fn kernel_refused(error: io::Error) -> CudaError {
    crate::log::error(&format!("the pages of managed memory cannot be changed: {error}"));
    CudaError::OUT_OF_MEMORY
}

impl Areas {
    /// Work may change a range (or all) of an area: closes it to the program and sends what the device does not have.
    pub(super) fn lend(&mut self, base: u64, range: Option<&Range<u64>>) -> CuResult<()> {
        let Some(area) = self.by_base.get_mut(&base) else { return Ok(()) };
        area.generation += 1;
        let Lent { close, send } = area.table.lend(range.unwrap_or(&(0..area.bytes)));
        if close.is_empty() {
            return Ok(());
        }
        crate::paging::keep_ready();
        if let Err(error) = area.pages.set(&close, Access::Closed) {
            return if area.pages.is_left() { self.leave(base) } else { Err(kernel_refused(error)) };
        }
        self.send(base, &send)
    }

    /// Work only reads a range: sends what the device does not have.
    pub(super) fn share(&mut self, base: u64, range: &Range<u64>) -> CuResult<()> {
        let Some(area) = self.by_base.get_mut(&base) else { return Ok(()) };
        let Lent { send, .. } = area.table.share(range);
        if let Err(error) = send.iter().try_for_each(|run| area.pages.make_read_only(run)) {
            return if area.pages.is_left() { self.leave(base) } else { Err(kernel_refused(error)) };
        }
        self.send(base, &send)
    }

    /// Our stream brings these bytes. They are taken when this returns.
    fn send(&mut self, base: u64, ranges: &[Range<u64>]) -> CuResult<()> {
        let Some(area) = self.by_base.get_mut(&base).filter(|_| !ranges.is_empty()) else { return Ok(()) };
        area.moved.0 += ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        let stream = self.sides.stream_to_send(&area.context)?;
        let mut parts = ranges.iter().flat_map(|range| area.held.parts(range));
        parts.try_for_each(|part| run_checked(&stream, &area.copy_to_device(&part), false))
    }

    /// Has a stream wait for what was sent to an area.
    pub(super) fn order(&mut self, stream: &Stream, base: u64) -> CuResult<()> {
        let Some(area) = self.by_base.get(&base) else { return Ok(()) };
        let context = Arc::clone(&area.context);
        self.sides.order(stream, &context)
    }

    /// Work of a stream uses some addresses by name.
    fn use_range(&mut self, stream: &Stream, address: u64, bytes: u64, is_shared: bool) -> CuResult<bool> {
        let met = self.met_by(address, bytes);
        for base in &met {
            let Some(area) = self.by_base.get(base) else { continue };
            let part = area.part(address, bytes);
            if is_shared {
                self.share(*base, &part)?;
            } else {
                self.lend(*base, Some(&part))?;
            }
            self.order(stream, *base)?;
        }
        Ok(!met.is_empty())
    }

    /// Touches of these bytes wait until [`Areas::enqueued`].
    fn begin_target(&mut self, address: u64, bytes: u64) {
        for base in self.met_by(address, bytes) {
            if let Some(area) = self.by_base.get_mut(&base) {
                let part = area.part(address, bytes);
                area.targets.push(part);
            }
        }
    }

    fn enqueued(&mut self, address: u64, bytes: u64) {
        for base in self.met_by(address, bytes) {
            if let Some(area) = self.by_base.get_mut(&base) {
                let part = area.part(address, bytes);
                if let Some(at) = area.targets.iter().position(|target| *target == part) {
                    area.targets.swap_remove(at);
                }
            }
        }
    }
}

/// The addresses of a copy's end on the device.
fn span_of(place: &Place, shape: &Shape) -> CuResult<Option<(u64, u64)>> {
    match place {
        Place::Device(plane) => Ok(Some((plane.address, plane_span(plane, shape)?))),
        Place::Host(_) => Ok(None),
    }
}

/// Runs a copy that may have ends in managed memory; these are copied on the device.
///
/// The copy may have to wait for its stream, so the lock is not held while it is enqueued. Touches of its target wait for
/// that instead.
#[cold]
pub(crate) fn copy_managed(stream: &Arc<Stream>, copy: &Copy, is_synchronous: bool) -> CuResult<()> {
    let source = span_of(&copy.source, &copy.shape)?;
    let target = span_of(&copy.target, &copy.shape)?;
    let mut areas = lock_for_work(stream);
    let mut is_managed = [false; 2];
    if let Some((address, bytes)) = source {
        // The program may write the source again when a synchronous copy has returned, but not yet when another has.
        is_managed[0] = areas.use_range(stream, address, bytes, is_synchronous)?;
    }
    if let Some((address, bytes)) = target {
        is_managed[1] = areas.use_range(stream, address, bytes, false)?;
        areas.begin_target(address, bytes);
    }
    if is_managed != [false; 2] {
        areas.sides.note_busy(stream);
    }
    drop(areas);
    let mut done = run_checked(stream, copy, is_synchronous);
    if let Some((address, bytes)) = target {
        lock_areas().enqueued(address, bytes);
        CHANGED.notify_all();
    }
    let is_between_devices = source.is_some() && target.is_some();
    if is_synchronous && is_managed[0] && is_between_devices && done.is_ok() {
        done = stream.context.call(&Command::StreamSynchronize { stream: stream.id }).map(drop);
    }
    done
}

/// Enqueues a fill of device memory.
pub(crate) fn filling(
    stream: &Arc<Stream>,
    (target, shape): (&Plane, &Shape),
    enqueue: impl FnOnce() -> CuResult<()>,
) -> CuResult<()> {
    if !is_any() {
        return enqueue();
    }
    let bytes = plane_span(target, shape)?;
    using(stream, &[(target.address, bytes)], enqueue)
}

/// Enqueues words that a stream writes and waits for.
pub(crate) fn writing_words(
    stream: &Arc<Stream>,
    addresses: &[u64],
    enqueue: impl FnOnce() -> CuResult<()>,
) -> CuResult<()> {
    if !is_any() {
        return enqueue();
    }
    let words: Vec<(u64, u64)> = addresses.iter().map(|address| (*address, 8)).collect();
    using(stream, &words, enqueue)
}

#[cold]
fn using(
    stream: &Arc<Stream>,
    ranges: &[(u64, u64)],
    enqueue: impl FnOnce() -> CuResult<()>,
) -> CuResult<()> {
    let mut areas = lock_for_work(stream);
    let mut is_managed = false;
    for (address, bytes) in ranges {
        is_managed |= areas.use_range(stream, *address, *bytes, false)?;
    }
    if is_managed {
        areas.sides.note_busy(stream);
    }
    enqueue()
}
