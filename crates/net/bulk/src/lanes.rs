//! The lanes of one session.

use crate::{
    buffer::{Buffer, PIECE_BYTES, Pool},
    ends::Done,
    expectation::{Expectation, Expected, Piece},
    fault::Fault,
    incoming::{Claim, Incoming, Refusal},
    landed::Landed,
    outgoing::{Batch, Job, Outgoing, Queue},
    receiver,
    sender::{self, Chunk, LaneTx, Payload},
};
use cuda_wire::{ASIDE, ChunkHeader, LANES_MAX, LinkLost, Sink, Source, TransferId, WAYS};
use locks::lock;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Instant;
use transport::{Closer, Connection, Rx};

/// Sources and sinks are copies; nothing here recurses.
const THREAD_STACK_BYTES: usize = 256 << 10;
/// A transfer is cut so that each lane gets several chunks, but not into chunks smaller than this: below, headers and
/// wake-ups cost more than a second lane brings.
const CHUNK_BYTES_MIN: u64 = 128 << 10;

/// What differs between the two ends of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct LanesConfig {
    /// Bytes that the peer may send before this end expects them. 0: any such byte breaks the session.
    pub early_window_bytes: u64,
}

/// The lanes of one session. Dropping them closes them.
pub struct Lanes {
    shared: Arc<Shared>,
}

/// What became of bytes that this side has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// They are where they belong.
    Landed,
    /// The transfer has so many holes that the peer had better send these bytes.
    Crowded,
    /// The transfer is not expected any more.
    GivenUp,
}

type OnFault = Box<dyn FnOnce(&Fault) + Send>;

pub(crate) struct Shared {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) queue: Queue,
    pub(crate) incoming: Incoming,
    pub(crate) landed: Landed,
    /// Buffers between lane threads and callers that wait to receive.
    pub(crate) pool: Pool,
    /// Buffers between callers that wait to send and lane threads.
    pub(crate) send_pool: Pool,
    /// Transfers that the caller sent by itself, wrapping.
    sent_aside: AtomicU32,
    fault: OnceLock<Fault>,
    on_fault: Mutex<Option<OnFault>>,
    receivers: Once,
    /// Which lane the next small transfer tries first.
    turn: AtomicUsize,
}

pub(crate) struct Lane {
    pub(crate) tx: LaneTx,
    /// Taken by the receiving thread.
    rx: Mutex<Option<Rx>>,
    closer: Closer,
}

impl Lanes {
    /// Takes the connections of a session, lane 0 first; at most [`LANES_MAX`]. `on_fault` is called once when they
    /// break or are closed, from whatever thread notices.
    pub fn new(
        connections: Vec<Connection>,
        config: LanesConfig,
        on_fault: impl FnOnce(&Fault) + Send + 'static,
    ) -> Self {
        let lane = |connection: Connection| {
            let (tx, rx, closer) = connection.split();
            Lane { tx: LaneTx::new(tx), rx: Mutex::new(Some(rx)), closer }
        };
        let lanes: Vec<Lane> = connections.into_iter().take(LANES_MAX).map(lane).collect();
        let count = lanes.len();
        let shared = Arc::new(Shared {
            lanes,
            queue: Queue::default(),
            incoming: Incoming::new(config.early_window_bytes),
            landed: Landed::new(),
            sent_aside: AtomicU32::new(0),
            pool: Pool::new(4 * count + 4),
            send_pool: Pool::new(2 * count + 2),
            fault: OnceLock::new(),
            on_fault: Mutex::new(Some(Box::new(on_fault))),
            receivers: Once::new(),
            turn: AtomicUsize::new(0),
        });
        if config.early_window_bytes != 0 {
            shared.start_receivers();
        }
        Self { shared }
    }

    /// Sends all `bytes` of a transfer and returns when the last was handed to the kernel.
    ///
    /// The source is called on this thread alone. What fits one chunk is sent by this thread, without waking another.
    pub fn send(&self, transfer: TransferId, bytes: u64, source: &dyn Source) -> Result<(), LinkLost> {
        let shared = &self.shared;
        if shared.fault.get().is_some() || (shared.lanes.is_empty() && bytes != 0) {
            return Err(LinkLost);
        }
        shared.start_receivers();
        if shared.lanes.len() == 1 || bytes <= CHUNK_BYTES_MIN {
            return shared.send_here(transfer, bytes, source);
        }
        let batch = Arc::new(Batch::default());
        let chunk_bytes = u64::from(shared.chunk_bytes(bytes)).min(PIECE_BYTES as u64);
        let mut offset = 0;
        while offset < bytes {
            let count = chunk_bytes.min(bytes - offset) as usize;
            let mut buffer = shared.send_pool.get().ok_or(LinkLost)?;
            source.fill(offset, &mut buffer.bytes_mut()[..count]);
            batch.begin();
            shared.enqueue(Job::Filled { transfer, offset, bytes: count, buffer, batch: batch.clone() });
            batch.wait(2 * shared.lanes.len())?;
            offset += count as u64;
        }
        batch.wait(0)
    }

    /// Sends all `bytes` of a transfer on the lane threads. `done` is called when the last was handed to the kernel,
    /// or when the lanes broke.
    pub fn send_later(
        &self,
        transfer: TransferId,
        bytes: u64,
        source: Box<dyn Source + Send + Sync>,
        done: Done,
    ) {
        self.send_part_later(transfer, 0, bytes, source, done);
    }

    /// Sends `bytes` of a transfer from `start` on, as [`Self::send_later`] sends all of it. The other parts are sent
    /// by themselves.
    pub fn send_part_later(
        &self,
        transfer: TransferId,
        start: u64,
        bytes: u64,
        source: Box<dyn Source + Send + Sync>,
        done: Done,
    ) {
        let shared = &self.shared;
        if bytes == 0 || shared.lanes.is_empty() {
            return done(if bytes == 0 { Ok(()) } else { Err(LinkLost) });
        }
        shared.start_receivers();
        let outgoing = Outgoing::new(transfer, start, bytes, shared.chunk_bytes(bytes), source, done);
        shared.enqueue(Job::Transfer(Arc::new(outgoing)));
    }

    /// Begins to expect a transfer, which is then waited for.
    pub fn expect(&self, transfer: TransferId, bytes: u64) -> Result<Expectation, LinkLost> {
        let shared = &self.shared;
        shared.start_receivers();
        let (expected, early) = match shared.incoming.expect(transfer, bytes, None, None) {
            Ok(pair) => pair,
            Err((refusal, _)) => return Err(shared.refused(refusal)),
        };
        early.into_iter().for_each(|piece| expected.mail(piece));
        Ok(Expectation { shared: shared.clone(), expected })
    }

    /// Begins to expect a transfer, whose bytes the lane threads hand to `sink`. `done` is called when the last was
    /// taken, or when the lanes broke; the sink is not called any more then.
    pub fn expect_later(
        &self,
        transfer: TransferId,
        bytes: u64,
        sink: Box<dyn Sink + Send + Sync>,
        done: Done,
    ) {
        let shared = &self.shared;
        if bytes == 0 {
            return done(Ok(()));
        }
        shared.start_receivers();
        match shared.incoming.expect(transfer, bytes, Some(sink), Some(done)) {
            Ok((expected, early)) if !early.is_empty() => {
                expected.adopt();
                shared.deliver(&expected, early);
            }
            Ok(_) => {}
            Err((refusal, done)) => {
                let lost = shared.refused(refusal);
                done.into_iter().for_each(|done| done(Err(lost)));
            }
        }
    }

    /// Gives up a transfer that will not come. A wait for it fails; the lanes go on.
    pub fn cancel(&self, transfer: TransferId) {
        if let Some(expected) = self.shared.incoming.forget(transfer)
            && let Some((done, result)) = expected.fail()
        {
            done(result);
        }
    }

    /// Chunks handed to the kernel on each lane so far, wrapping.
    pub fn chunks_sent(&self) -> [u32; WAYS] {
        let mut chunks = [0; WAYS];
        for (slot, lane) in chunks.iter_mut().zip(&self.shared.lanes) {
            *slot = lane.tx.sent.load(Ordering::SeqCst);
        }
        chunks[ASIDE] = self.shared.sent_aside.load(Ordering::SeqCst);
        chunks
    }

    /// Counts a transfer that was sent as a whole beside the lanes.
    pub fn note_sent_aside(&self) {
        self.shared.sent_aside.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes a transfer that came as a whole beside the lanes, to where it is expected.
    pub fn land_aside(&self, transfer: TransferId, bytes: &[u8]) -> Result<(), LinkLost> {
        let shared = &self.shared;
        let landing = shared.landed.begin(ASIDE);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let expected = match shared.incoming.claim(transfer, 0, length) {
            Ok(Claim::Expected(expected)) if expected.sink.is_some() => expected,
            Ok(_) => {
                let text =
                    format!("{transfer} came among the replies, but this side does not expect it there");
                return Err(shared.broken(Fault::protocol(text)));
            }
            Err(fault) => return Err(shared.broken(fault)),
        };
        if let Some(sink) = &expected.sink {
            sink.take(0, bytes);
        }
        shared.landed.end(landing);
        shared.release(&expected, bytes.len() as u64);
        Ok(())
    }

    /// Whether this end waits for bytes of a transfer.
    pub fn is_expected(&self, transfer: TransferId) -> bool {
        self.shared.incoming.expected(transfer).is_some()
    }

    /// Whether [`Self::land_here`] would take these bytes at once. False: it would wait until bytes before them have landed. `None`:
    /// the transfer is not expected any more.
    pub fn has_room(&self, transfer: TransferId, offset: u64, bytes: u32) -> Option<bool> {
        let expected = self.shared.incoming.expected(transfer)?;
        Some(expected.sink.as_ref().is_none_or(|sink| sink.has_room(offset, bytes as usize)))
    }

    /// Puts bytes of an expected transfer that this side has already where they belong. `fill` writes them from `offset` on, in
    /// order, in as many pieces as their memory lies in, or is not called.
    pub fn land_here(
        &self,
        transfer: TransferId,
        offset: u64,
        bytes: u32,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Here, LinkLost> {
        let shared = &self.shared;
        let Some(expected) = shared.incoming.expected(transfer) else { return Ok(Here::GivenUp) };
        if expected.is_crowded() {
            return Ok(Here::Crowded);
        }
        expected.claim(offset, bytes).map_err(|fault| shared.broken(fault))?;
        let pieces = (0..bytes).step_by(PIECE_BYTES).map(|at| (at, (bytes - at).min(PIECE_BYTES as u32)));
        let mut landed = u64::from(bytes);
        match &expected.sink {
            Some(sink) => {
                if !sink.target(offset, bytes as usize, fill) {
                    let mut buffer = Buffer::new(PIECE_BYTES);
                    for (at, count) in pieces {
                        let piece = &mut buffer.bytes_mut()[..count as usize];
                        fill(piece);
                        sink.take(offset + u64::from(at), piece);
                    }
                }
            }
            None => {
                // The caller that waits counts what it takes out of its mailbox.
                landed = 0;
                for (at, count) in pieces {
                    let mut buffer = shared.pool.get().ok_or(LinkLost)?;
                    fill(&mut buffer.bytes_mut()[..count as usize]);
                    let (offset, bytes) = (offset + u64::from(at), count as usize);
                    expected.mail(Piece { offset, buffer, bytes, pooled: true, landing: None });
                }
            }
        }
        shared.release(&expected, landed);
        Ok(Here::Landed)
    }

    /// How many transfers came beside the lanes and have landed, wrapping.
    pub fn landed_aside(&self) -> u32 {
        self.shared.landed.count(ASIDE)
    }

    /// Blocks until each lane has handed that many chunks to their sinks: true. False when `deadline` came first.
    pub fn wait_landed(&self, chunks: &[u32; WAYS], deadline: Option<Instant>) -> Result<bool, LinkLost> {
        let shared = &self.shared;
        let landed = shared.landed.wait(chunks, deadline, || shared.fault.get().is_some());
        if !landed && shared.fault.get().is_some() { Err(LinkLost) } else { Ok(landed) }
    }

    /// How many lanes there are.
    pub fn count(&self) -> usize {
        self.shared.lanes.len()
    }

    /// Why the lanes ended, if they did.
    pub fn fault(&self) -> Option<&Fault> {
        self.shared.fault.get()
    }

    /// Ends all lanes and wakes all threads that wait for one.
    pub fn close(&self) {
        self.shared.break_with(Fault::Closed);
    }

    /// For the child of a fork: lets go of the connections without a sign to the peer.
    pub fn abandon(&self) {
        self.shared.lanes.iter().for_each(|lane| lane.closer.abandon());
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn chunk_bytes(&self, bytes: u64) -> u32 {
        let share = bytes / (2 * self.lanes.len().max(1) as u64);
        share.next_multiple_of(4096).clamp(CHUNK_BYTES_MIN, ChunkHeader::PAYLOAD_MAX.into()) as u32
    }

    /// Sends on this thread: on a lane that is free, or on the next in turn.
    fn send_here(&self, transfer: TransferId, bytes: u64, source: &dyn Source) -> Result<(), LinkLost> {
        let mut offset = 0;
        while offset < bytes {
            let count = (bytes - offset).min(ChunkHeader::PAYLOAD_MAX.into()) as u32;
            let first = self.turn.fetch_add(1, Ordering::Relaxed);
            let lanes = || (0..self.lanes.len()).map(|at| (first + at) % self.lanes.len());
            let free = lanes().find_map(|lane| Some((lane, self.lanes[lane].tx.half.try_lock().ok()?)));
            let (lane, mut half) = match (free, lanes().next()) {
                (Some(found), _) => found,
                (None, Some(lane)) => (lane, lock(&self.lanes[lane].tx.half)),
                (None, None) => return Err(LinkLost),
            };
            let chunk = Chunk { transfer, offset, bytes: count, payload: Payload::Source(source) };
            let result = self.lanes[lane].tx.send(&mut half, chunk);
            drop(half);
            if let Err(error) = result {
                self.break_with(error.into_fault(lane));
                return Err(LinkLost);
            }
            offset += u64::from(count);
        }
        Ok(())
    }

    pub(crate) fn enqueue(self: &Arc<Self>, job: Job) {
        match self.queue.push(job, self.lanes.len()) {
            Ok(None) => {}
            Ok(Some(lane)) => {
                self.start(lane, "tx", move |shared| sender::run(shared, lane).err());
            }
            Err(job) => self.fail_job(job),
        }
    }

    fn fail_job(&self, job: Job) {
        match job {
            Job::Transfer(outgoing) => outgoing.fail(),
            Job::Filled { buffer, batch, .. } => {
                self.send_pool.put(buffer);
                batch.end(false);
            }
        }
    }

    /// Starts the receiving threads with the first transfer in either direction. A sender needs them too: when the peer
    /// closes a connection whose receive buffer is full, the kernel resets nothing and the sending call sleeps on. Only
    /// the receiving thread sees the end of the stream; it breaks the lanes, which wakes the sender.
    fn start_receivers(self: &Arc<Self>) {
        self.receivers.call_once(|| {
            for (lane, parts) in self.lanes.iter().enumerate() {
                if let Some(rx) = lock(&parts.rx).take() {
                    self.start(lane, "rx", move |shared| Some(receiver::run(shared, lane, rx)));
                }
            }
        });
    }

    /// Starts a thread; whatever ends it but the end of the queue breaks the lanes.
    fn start(
        self: &Arc<Self>,
        lane: usize,
        direction: &str,
        body: impl FnOnce(&Arc<Self>) -> Option<Fault> + Send + 'static,
    ) {
        let shared = self.clone();
        let run = move || {
            let fault = catch_unwind(AssertUnwindSafe(|| body(&shared)))
                .unwrap_or_else(|_| Some(Fault::Internal { text: "a source or sink panicked".to_owned() }));
            if let Some(fault) = fault {
                shared.break_with(fault);
            }
        };
        let name = format!("dxpu-lane-{lane}{direction}");
        let thread = std::thread::Builder::new().name(name).stack_size(THREAD_STACK_BYTES).spawn(run);
        if let Err(error) = thread {
            self.break_with(Fault::Internal { text: format!("cannot start a thread: {error}") });
        }
    }

    /// Hands pieces that came early to an expectation that was [adopted](Expected::adopt) for them.
    pub(crate) fn deliver(&self, expected: &Arc<Expected>, pieces: Vec<Piece>) {
        let mut bytes = 0;
        for piece in pieces {
            match &expected.sink {
                Some(sink) => {
                    sink.take(piece.offset, &piece.buffer.bytes()[..piece.bytes]);
                    bytes += piece.bytes as u64;
                    self.incoming.spares.put(piece.buffer);
                }
                None => expected.mail(piece),
            }
        }
        self.release(expected, bytes);
    }

    /// A lane is through with a chunk of `expected`.
    pub(crate) fn release(&self, expected: &Arc<Expected>, bytes: u64) {
        if let Some((done, result)) = expected.release(bytes) {
            // Its name is free again before `done` reports that it is over.
            self.incoming.forget(expected.transfer);
            done(result);
        }
    }

    fn broken(&self, fault: Fault) -> LinkLost {
        self.break_with(fault);
        LinkLost
    }

    fn refused(&self, refusal: Refusal) -> LinkLost {
        if let Refusal::Fault(fault) = refusal {
            self.break_with(fault);
        }
        LinkLost
    }

    pub(crate) fn break_with(&self, fault: Fault) {
        if self.fault.set(fault).is_err() {
            return;
        }
        self.lanes.iter().for_each(|lane| lane.closer.close());
        self.pool.close();
        self.send_pool.close();
        self.queue.close().into_iter().for_each(|job| self.fail_job(job));
        for expected in self.incoming.close() {
            if let Some((done, result)) = expected.fail() {
                done(result);
            }
        }
        self.landed.wake();
        let on_fault = lock(&self.on_fault).take();
        if let (Some(on_fault), Some(fault)) = (on_fault, self.fault.get()) {
            on_fault(fault);
        }
    }
}
