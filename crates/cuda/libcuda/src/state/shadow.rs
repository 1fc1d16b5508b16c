//! Pinned memory that kernels are given pointers to: the shell around [`cuda_client::shadow`], which has the protocol.
//!
//! Here are the locks, the program's memory and the commands. Three locks, taken in this order and never the other way:
//! [`Side::turn`] (what is sent to a context's shadows, and what waits for it, is posted in the order in which it was
//! decided), [`Shadow::mirror`] (taken by the threads of the lanes, too), [`BOOK`].

#![allow(unsafe_code)]

use super::{
    Context, Copy, Event, Pinned, Place, Stream, StreamKind, allocate, client, free_device_memory, lock,
};
use crate::host::HostRegion;
use cuda_abi::CuResult;
use cuda_client::{
    host_memory::HostRange,
    shadow::{Book, FetchId, Mark, Mirror, Piece, SHADOWED_BYTES_MAX, ShadowKey},
};
use cuda_wire::{Bytes, Command, HostData, INLINE_BYTES_MAX, Op, Plane, Shape};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

static BOOK: Mutex<Book<Arc<Stream>, Arc<Shadow>>> = Mutex::new(Book::new());

/// What the book says of itself, for calls that have nothing to do with shadows: most programs have none.
static ANY_UNFETCHED: AtomicBool = AtomicBool::new(false);
static ANY_WATCHED: AtomicBool = AtomicBool::new(false);

/// By context.
static SIDES: Mutex<BTreeMap<u64, Arc<Side>>> = Mutex::new(BTreeMap::new());

/// Changes the book, and what it says of itself.
fn with_book<R>(change: impl FnOnce(&mut Book<Arc<Stream>, Arc<Shadow>>) -> R) -> R {
    let mut book = lock(&BOOK);
    let result = change(&mut book);
    ANY_UNFETCHED.store(book.is_any_unfetched(), Ordering::Release);
    ANY_WATCHED.store(book.is_any_watched(), Ordering::Release);
    result
}

/// The side stream of a context. It waits for no stream of the program: a kernel there may wait for what is sent here.
struct Side {
    stream: Arc<Stream>,
    written: Arc<Event>,
    turn: Mutex<()>,
}

impl Side {
    fn of(context: &Arc<Context>) -> CuResult<Arc<Self>> {
        let mut sides = lock(&SIDES);
        if let Some(side) = sides.get(&context.handle) {
            return Ok(Arc::clone(side));
        }
        let stream = Stream::create(context, StreamKind::NonBlocking, cuda_abi::CU_STREAM_NON_BLOCKING, 0)?;
        let written = Event::create(context, cuda_abi::CU_EVENT_DISABLE_TIMING)?;
        let side = Arc::new(Self { stream, written, turn: Mutex::default() });
        sides.insert(context.handle, Arc::clone(&side));
        Ok(side)
    }

    /// Not by [`Stream::enqueue`]: it orders work behind copies, and those may wait behind a kernel that waits for this
    /// work.
    fn post(&self, op: Op<'_>) -> CuResult<()> {
        self.stream.context.post(&Command::Enqueue { stream: self.stream.id, op })
    }

    /// Has a stream wait for what was sent to a shadow, if it does not already.
    fn order(&self, _turn: &Turn<'_>, stream: &Stream, key: ShadowKey) -> CuResult<()> {
        if !lock(&BOOK).is_behind(number(stream), key) {
            return Ok(());
        }
        self.written.note_record();
        self.post(Op::Record { event: self.written.id, flags: 0 })?;
        stream.enqueue(Op::Wait { event: self.written.id, flags: 0 })?;
        lock(&BOOK).note_ordered(number(stream), stream.context.handle);
        Ok(())
    }

    fn send(&self, _turn: &Turn<'_>, shadow: &Shadow, pieces: &[Piece]) -> CuResult<()> {
        if !pieces.is_empty() {
            pieces.iter().try_for_each(|piece| self.send_piece(shadow.device, piece))?;
            lock(&BOOK).note_sent(shadow.key);
        }
        Ok(())
    }

    fn send_piece(&self, device: u64, Piece { offset, bytes }: &Piece) -> CuResult<()> {
        let target = Plane::line(device + *offset as u64);
        let shape = Shape::line(bytes.len() as u64);
        if bytes.len() <= INLINE_BYTES_MAX {
            return self.post(Op::CopyIn { target, shape, data: HostData::Inline { bytes: Bytes(bytes) } });
        }
        let copy = Copy {
            // SAFETY: these bytes are ours and stay until the copy has taken them, which for pageable memory is at once.
            source: Place::Host(unsafe { HostRegion::line(bytes.as_ptr() as u64, bytes.len() as u64) }),
            target: Place::Device(target),
            shape,
        };
        // Not `run_copy`, which begins with a fetch.
        super::copy::run_checked(&self.stream, &copy, false)
    }
}

/// How the book names a stream: by its name on the worker, which is never used again. A handle may be, in the end.
fn number(stream: &Stream) -> u64 {
    stream.id.0.into()
}

/// Held while something is decided and posted.
type Turn<'a> = MutexGuard<'a, ()>;

/// Device memory that stands for pinned memory.
pub(crate) struct Shadow {
    key: ShadowKey,
    bytes: u64,
    device: u64,
    mirror: Mutex<Mirror>,
}

impl Shadow {
    fn host(&self) -> HostRegion {
        // SAFETY: the program pinned the range and keeps it until it unpins it. `forget` ends the mirror before that, under
        // the mirror's lock, and an ended mirror reads and writes nothing.
        unsafe { HostRegion::line(self.key.base, self.bytes) }
    }

    /// What the program has changed, to be sent. `None`: copies are writing the memory.
    fn take_changes(&self, pinned: &Pinned) -> Option<Vec<Piece>> {
        let mut mirror = lock(&self.mirror);
        let writes = pinned.writes_under_way(self.key.base, self.bytes);
        (!mirror.is_written_by_copies(writes)).then(|| self.take_changes_from(&mut mirror))
    }

    /// The same while copies may be writing. What they have not written yet is sent later.
    fn take_changes_now(&self) -> Vec<Piece> {
        self.take_changes_from(&mut lock(&self.mirror))
    }

    fn take_changes_from(&self, mirror: &mut Mirror) -> Vec<Piece> {
        let host = self.host();
        mirror.take_changes(|offset, out| host.read(offset as u64, out))
    }

    /// Sends what the program has changed before a launch in `stream`, and has the stream wait for it.
    fn refresh(&self, side: &Side, stream: &Stream, pinned: &Pinned) -> CuResult<()> {
        let mut turn = lock(&side.turn);
        let pieces = match self.take_changes(pinned) {
            Some(pieces) => pieces,
            None => {
                // The launch comes after copies that were made before it. Other threads may have to send meanwhile.
                drop(turn);
                // The copies may be waiting for a kernel that waits for a word the program has written.
                forward()?;
                let context = &side.stream.context;
                context.call(&Command::ContextSynchronize { context: context.id })?;
                turn = lock(&side.turn);
                // Copies that other threads began since do not come before the launch.
                self.take_changes_now()
            }
        };
        side.send(&turn, self, &pieces)?;
        lock(&self.mirror).note_lent(number(stream));
        side.order(&turn, stream, self.key)
    }

    /// Has what kernels before this point of the stream changed written into the program's memory.
    fn fetch(self: Arc<Self>, stream: &Stream) -> CuResult<()> {
        let side = Side::of(&stream.context)?;
        let turn = lock(&side.turn);
        side.order(&turn, stream, self.key)?;
        let hazard = client()?.pinned.begin_write(self.key.base, self.bytes);
        let fetch = lock(&self.mirror).begin_fetch(number(stream));
        let arrived = Arc::clone(&self);
        let landed = Box::new(move || {
            let mut mirror = lock(&arrived.mirror);
            super::copy::end_write(hazard);
            mirror.end_fetch(fetch);
        });
        let (source, shape, bytes) = (Plane::line(self.device), Shape::line(self.bytes), self.bytes);
        let transfer =
            stream.context.link.expect_by(bytes, Box::new(Changes { shadow: self, fetch }), landed);
        stream.enqueue(Op::CopyOut { source, shape, transfer })
    }
}

/// Takes a shadow's bytes and writes those that a kernel changed.
struct Changes {
    shadow: Arc<Shadow>,
    fetch: FetchId,
}

impl bulk::Sink for Changes {
    fn take(&self, offset: u64, after: &[u8]) {
        let host = self.shadow.host();
        let write = |at: usize, news: &[u8]| host.write(at as u64, news);
        lock(&self.shadow.mirror).arrive(self.fetch, offset as usize, after, write);
    }
}

/// Puts device memory in the place of pinned memory in a launch's parameters; says which.
#[inline]
pub(crate) fn lend(stream: &Arc<Stream>, parameters: &mut [u8]) -> CuResult<Vec<Arc<Shadow>>> {
    let pinned = &client()?.pinned;
    let mut lent = Vec::new();
    for word in parameters.as_chunks_mut::<8>().0 {
        let pointer = u64::from_le_bytes(*word);
        if pinned.may_hold(pointer)
            && let Some(range) = pinned.find(pointer)
            && is_small(&range)
        {
            let device = lend_one(stream, pinned, range, &mut lent)?;
            *word = (device + (pointer - range.base)).to_le_bytes();
        }
    }
    Ok(lent)
}

/// Whether pinned memory is small enough for a shadow. If not, a kernel gets the pointer as it is, and faults if it
/// follows it: many never do.
#[cold]
fn is_small(range: &HostRange) -> bool {
    let small = range.bytes <= SHADOWED_BYTES_MAX;
    if !small {
        crate::process::refused(
            "access to pinned memory by a kernel",
            "it is given a pointer into more than 64 MiB of it; copy what it needs to the device",
        );
    }
    small
}

#[cold]
fn lend_one(
    stream: &Arc<Stream>,
    pinned: &Pinned,
    range: HostRange,
    lent: &mut Vec<Arc<Shadow>>,
) -> CuResult<u64> {
    if let Some(known) = lent.iter().find(|lent| lent.key.base == range.base) {
        return Ok(known.device);
    }
    let side = Side::of(&stream.context)?;
    let shadow = shadow_of(&side, range)?;
    shadow.refresh(&side, stream, pinned)?;
    lent.push(Arc::clone(&shadow));
    Ok(shadow.device)
}

/// The shadow of pinned memory.
fn shadow_of(side: &Side, range: HostRange) -> CuResult<Arc<Shadow>> {
    let context = &side.stream.context;
    let key = ShadowKey { base: range.base, context: context.handle };
    if let Some(shadow) = lock(&BOOK).find(key) {
        return Ok(shadow);
    }
    crate::log::debug(|| format!("a kernel is given {} bytes of pinned memory", range.bytes));
    // A shadow must hear of each write, so copies of this memory go through the lanes from now on.
    if client()?.pinned.close_sharing(range.base) {
        forward()?;
        context.call(&Command::ContextSynchronize { context: context.id })?;
    }
    // Before the turn: it may have to wait for the worker, and other threads may have to send meanwhile.
    let device = allocate(context, range.bytes)?;
    let _turn = lock(&side.turn);
    if let Some(shadow) = lock(&BOOK).find(key) {
        // Another thread was faster.
        free_device_memory(device)?;
        return Ok(shadow);
    }
    let mirror = Mutex::new(Mirror::new(range.bytes as usize));
    let shadow = Arc::new(Shadow { key, bytes: range.bytes, device, mirror });
    let target = Plane::line(device);
    side.post(Op::Fill { target, shape: Shape::line(range.bytes), element_bytes: 1, value: 0 })?;
    lock(&BOOK).insert(key, range.bytes, Arc::clone(&shadow));
    Ok(shadow)
}

/// Notes that a kernel which was just launched may change what it was lent.
pub(crate) fn note_lent(stream: &Arc<Stream>, lent: &[Arc<Shadow>]) {
    with_book(|book| lent.iter().for_each(|shadow| book.note_lent(stream, number(stream), shadow.key)));
}

/// Called before the program waits, or learns that kernels are done: sends what it wrote for kernels that run, and fetches
/// what they may have changed, behind each of them.
#[inline]
pub(crate) fn fetch_all() -> CuResult<()> {
    forward()?;
    if ANY_UNFETCHED.load(Ordering::Acquire) { fetch_noted() } else { Ok(()) }
}

/// Sends what the program wrote into memory that kernels may be looking at.
#[inline]
pub(crate) fn forward() -> CuResult<()> {
    if ANY_WATCHED.load(Ordering::Acquire) { forward_noted() } else { Ok(()) }
}

#[cold]
fn forward_noted() -> CuResult<()> {
    let watched = lock(&BOOK).watched();
    for (stream, shadow) in watched {
        let side = Side::of(&stream.context)?;
        let turn = lock(&side.turn);
        // Also while copies are writing the memory: they may be waiting for the kernel that waits for this.
        side.send(&turn, &shadow, &shadow.take_changes_now())?;
    }
    Ok(())
}

#[cold]
fn fetch_noted() -> CuResult<()> {
    let noted = with_book(Book::take_unfetched);
    noted.into_iter().try_for_each(|(stream, shadow)| shadow.fetch(&stream))
}

/// Marks the work that a wait which begins now will be behind, for [`at_rest`]; `None` while no kernel looks at
/// anything.
#[inline]
pub(crate) fn before_wait() -> Option<Mark> {
    ANY_WATCHED.load(Ordering::Acquire).then(|| lock(&BOOK).mark())
}

/// All work that a stream had at `mark` is done: those kernels look at nothing any more.
#[inline]
pub(crate) fn at_rest(mark: Option<Mark>, is_at_rest: impl Fn(&Stream) -> bool) {
    if let Some(mark) = mark {
        with_book(|book| book.at_rest(mark, |stream| is_at_rest(stream)));
    }
}

/// Pinned memory goes: its shadows go too. Bytes that are still fetched are dropped.
pub(crate) fn forget(base: u64) {
    for shadow in with_book(|book| book.forget_memory(base)) {
        lock(&shadow.mirror).end();
        // Memory of a context that ended went with it.
        let _ = free_device_memory(shadow.device);
    }
}

/// A stream ended, after its last fetch was enqueued.
pub(super) fn forget_stream(stream: &Stream) {
    lock(&BOOK).forget_stream(number(stream));
}

/// A context ended, and with it the device memory that was made in it.
pub(super) fn forget_context(context: u64) {
    with_book(|book| book.forget_context(context));
    lock(&SIDES).remove(&context);
}
