//! Touches of closed pages: wait, fetch, open.

use super::{Area, Areas, CHANGED, access_to, lock_areas, region, side::Wait, variables::Held};
use crate::{
    paging::{Access, Pages, Resolver, Touch},
    state::{Context, Copy, Place, Stream, run_checked},
};
use cuda_abi::CuResult;
use cuda_client::managed::{BLOCK_BYTES, Block, Fault, WINDOW_BLOCKS_MAX, opened};
use cuda_wire::{Command, Plane, Shape};
use std::{
    ops::Range,
    sync::{Arc, MutexGuard},
};

/// What the serving threads call.
pub(super) static RESOLVER: Resolver = Resolver { touched, idle };

/// A touch that launches of other threads overtake this often has them wait for it.
const OVERTAKEN_MAX: u32 = 3;

/// Bytes that a prefetch to the host asked for.
pub(super) struct Wanted {
    base: u64,
    number: u64,
    range: Range<u64>,
}

/// What a fetch needs, without the lock.
struct Fetch {
    base: u64,
    number: u64,
    generation: u64,
    context: Arc<Context>,
    pages: Arc<Pages>,
    stream: Arc<Stream>,
    contexts: Vec<Arc<Context>>,
    held: Held,
    seen: Option<super::side::Seen>,
}

/// How a fetch ended.
enum Fetched {
    /// The bytes are here and open.
    Here,
    /// Work came in between, or another thread: look again.
    Overtaken,
    /// They cannot be had.
    Failed,
}

impl Areas {
    /// Prepares a fetch of an area's bytes.
    fn plan(&mut self, base: u64, is_host_function: bool) -> CuResult<Fetch> {
        let area = self.by_base.get(&base).ok_or(cuda_abi::CudaError::INVALID_VALUE)?;
        let (number, generation) = (area.number, area.generation);
        let (context, pages, held) = (Arc::clone(&area.context), Arc::clone(&area.pages), area.held.clone());
        let (wait, seen) = self.sides.wait_for(&context);
        // A stream waits for the host function that asks. CUDA counts it as idle meanwhile.
        let (wait, seen) = if is_host_function { (Wait::Nothing, None) } else { (wait, Some(seen)) };
        let (stream, contexts) = match wait {
            Wait::Nothing => (self.sides.stream(&context)?, Vec::new()),
            Wait::Legacy => (context.legacy_stream()?, Vec::new()),
            Wait::Contexts(contexts) => (self.sides.stream(&context)?, contexts),
        };
        Ok(Fetch { base, number, generation, context, pages, stream, contexts, held, seen })
    }

    /// Notes bytes as here, unless work has come in between.
    fn take(&mut self, fetch: Fetch, range: &Range<u64>, state: Block) -> Fetched {
        if let Some(seen) = fetch.seen {
            self.sides.waited(seen);
        }
        let Some(area) = self.numbered(fetch.base, fetch.number) else { return Fetched::Overtaken };
        area.moved.1 += range.end - range.start;
        let is_old = area.generation != fetch.generation || meets_target(area, range);
        if is_old || !area.table.arrived(range, state) {
            return Fetched::Overtaken;
        }
        // What was fetched ahead stays closed.
        let done = if state == Block::Ready { Ok(()) } else { area.pages.set(range, access_to(Some(state))) };
        match done {
            Ok(()) => Fetched::Here,
            Err(error) => {
                crate::log::error(&format!("the pages of managed memory cannot be opened: {error}"));
                Fetched::Failed
            }
        }
    }
}

fn meets_target(area: &Area, range: &Range<u64>) -> bool {
    area.targets.iter().any(|target| target.start < range.end && range.start < target.end)
}

impl Fetch {
    /// Waits for the work before it, and fetches. An error that was there to be reported by the program's next call stays
    /// there for it.
    fn run(&self, range: &Range<u64>) -> CuResult<()> {
        for context in &self.contexts {
            retried(context, || {
                context.call(&Command::ContextSynchronize { context: context.id }).map(drop)
            })?;
        }
        self.held.parts(range).into_iter().try_for_each(|part| {
            let copy = Copy {
                source: Place::Device(Plane::line(self.base + part.start)),
                target: Place::Host(region(&self.pages, &part)),
                shape: Shape::line(part.end - part.start),
            };
            retried(&self.context, || run_checked(&self.stream, &copy, true))
        })
    }
}

/// Calls twice if the first call was told of an error that leaves the context well, and puts the error back.
fn retried(context: &Context, call: impl Fn() -> CuResult<()>) -> CuResult<()> {
    match call() {
        Err(error) if context.check().is_ok() => {
            let again = call();
            context.remember(error);
            again
        }
        result => result,
    }
}

/// Fetches a range without the lock.
fn fetch(
    mut areas: MutexGuard<'static, Areas>,
    base: u64,
    range: &Range<u64>,
    state: Block,
    is_host_function: bool,
) -> (MutexGuard<'static, Areas>, Fetched) {
    let plan = areas.plan(base, is_host_function);
    areas.fetching += 1;
    drop(areas);
    let done = plan.and_then(|plan| plan.run(range).map(|()| plan));
    let mut areas = lock_areas();
    areas.fetching -= 1;
    CHANGED.notify_all();
    let fetched = match done {
        Ok(plan) => areas.take(plan, range, state),
        Err(error) => {
            crate::log::error(&format!(
                "managed memory at {:#x} cannot be fetched from the GPU: {error}",
                base + range.start
            ));
            if let Some(area) = areas.by_base.get_mut(&base) {
                area.has_failed = true;
            }
            Fetched::Failed
        }
    };
    (areas, fetched)
}

fn touched(touch: Touch, done: &mut dyn FnMut(bool)) {
    let mut areas = lock_areas();
    // A userfaultfd may tell of a touch twice. Without a function that a stream waits for, nothing would keep work from
    // changing what is fetched.
    if touch.is_host_function && areas.functions == 0 {
        drop(areas);
        return done(true);
    }
    if touch.is_host_function
        && let Some(base) = areas.at(touch.address).map(|area| area.base)
        && !areas.by_functions.contains(&base)
    {
        areas.by_functions.push(base);
    }
    let mut overtaken = 0;
    let mut then = None;
    let is_served = loop {
        let Some(area) = areas.at(touch.address) else { break false };
        let (base, number, offset) = (area.base, area.number, touch.address - area.base);
        match area.table.fault(offset, touch.is_write) {
            Fault::Late => break open_late(area, offset),
            Fault::MakeWritable { now, ahead } => {
                then = Some(Then::Back(Arc::clone(&area.pages), ahead));
                break area.pages.set(&now, Access::Write).is_ok();
            }
            Fault::Open { now, ahead } => {
                then = Some(Then::Fetch(base, number, ahead));
                break area.pages.set(&now, access_to(Some(opened(touch.is_write)))).is_ok();
            }
            Fault::Fetch { now, .. } if meets_target(area, &now) => {
                areas = locks::wait(&CHANGED, areas);
            }
            Fault::Fetch { now, ahead } => {
                let fetched;
                (areas, fetched) = fetch(areas, base, &now, opened(touch.is_write), touch.is_host_function);
                match fetched {
                    Fetched::Here => {
                        then = Some(Then::Fetch(base, number, ahead));
                        break true;
                    }
                    Fetched::Failed => break false,
                    Fetched::Overtaken => overtaken += 1,
                }
                areas.is_held |= overtaken >= OVERTAKEN_MAX;
            }
        }
    };
    if !is_served && let Some(area) = areas.at(touch.address) {
        area.pages.give_up();
    }
    if overtaken >= OVERTAKEN_MAX {
        areas.is_held = false;
        CHANGED.notify_all();
    }
    drop(areas);
    done(is_served);
    match then.filter(|_| is_served) {
        Some(Then::Fetch(base, number, range)) if !range.is_empty() => fetch_ahead(base, number, &range),
        Some(Then::Back(pages, range)) => pages.make_ready(&range),
        _ => {}
    }
}

/// What is done while the program goes on.
enum Then {
    /// Fetch what it will probably read next, of the area with this base and number.
    Fetch(u64, u64, Range<u64>),
    /// Make the pages that it will probably write next.
    Back(Arc<Pages>, Range<u64>),
}

/// The block is open: the thread was late, or its page was never there.
fn open_late(area: &Area, offset: u64) -> bool {
    let start = offset / BLOCK_BYTES * BLOCK_BYTES;
    let range = start..(start + BLOCK_BYTES).min(area.bytes);
    match access_to(area.table.block_at(offset)) {
        Access::Closed => false,
        access => area.pages.open_late(&range, access).is_ok(),
    }
}

/// Fetches what the program will probably want next. If that fails, a touch tries again.
fn fetch_ahead(base: u64, number: u64, range: &Range<u64>) {
    let mut areas = lock_areas();
    if areas.numbered(base, number).is_some_and(|area| !meets_target(area, range)) {
        let _ = fetch(areas, base, range, Block::Ready, false);
    }
}

impl Areas {
    /// A prefetch to the host: `dxpu-pages` fetches it when no touch is waiting.
    pub(super) fn want(&mut self, base: u64, range: &Range<u64>) {
        /// A program that prefetches faster than bytes arrive is served by its touches.
        const WANTED_MAX: usize = 64;
        let is_wanted = self.wanted.iter().any(|wanted| wanted.base == base && wanted.range == *range);
        if let Some(area) = self.by_base.get(&base).filter(|_| !is_wanted && self.wanted.len() < WANTED_MAX) {
            self.wanted.push(Wanted { base, number: area.number, range: range.clone() });
            crate::paging::ring();
        }
    }
}

/// Fetches a piece of what was prefetched.
fn idle() -> bool {
    let mut areas = lock_areas();
    let Some(Wanted { base, number, range }) = areas.wanted.pop() else { return false };
    let Some(area) = areas.numbered(base, number) else { return true };
    let Some(first) = area.table.only_on_device(&range).into_iter().next() else { return true };
    let end = first.end.min(first.start + WINDOW_BLOCKS_MAX as u64 * BLOCK_BYTES);
    let piece = first.start..end;
    if meets_target(area, &piece) {
        return true;
    }
    let (mut areas, fetched) = fetch(areas, base, &piece, Block::Same, false);
    // Work that came in between makes the prefetch void.
    if matches!(fetched, Fetched::Here) && end < range.end {
        areas.wanted.push(Wanted { base, number, range: end..range.end });
    }
    true
}
