//! The way from a driver's streams back to the client.

use crate::session::{content::Content, events::Events, outgoing::Outgoing};
use bulk::Lanes;
use cuda_driver::{Departure, HostLink, Landing, LinkLost, Over, PendingRead, Sink, Source};
use cuda_wire::{Notice, NoticeHeader, TransferId};
use locks::{lock, wait};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Text that fits one notice beside its tag and length.
const PRINT_BYTES_MAX: usize = NoticeHeader::BODY_MAX as usize - 5;

pub(crate) struct Link {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) events: Arc<Events>,
    /// Small transfers go among the replies.
    pub(crate) outgoing: Outgoing,
    pub(crate) host_calls: HostCalls,
    /// Transfers under way. A graph runs the same pull again and again, perhaps in two streams at once: the second
    /// waits for the first.
    busy: Mutex<HashSet<TransferId>>,
    freed: Condvar,
    push_window_bytes: u64,
    /// The client could not serve a pull.
    has_failed_pull: AtomicBool,
    /// In a session whose client wished for it.
    content: Option<Arc<Content>>,
}

impl Link {
    pub(crate) fn new(
        lanes: Arc<Lanes>,
        events: Arc<Events>,
        outgoing: Outgoing,
        push_window_bytes: u64,
    ) -> Self {
        Self {
            lanes,
            events,
            outgoing,
            host_calls: HostCalls::default(),
            busy: Mutex::default(),
            freed: Condvar::new(),
            push_window_bytes,
            has_failed_pull: AtomicBool::new(false),
            content: None,
        }
    }

    /// The same for a session that keeps what its client sends.
    pub(crate) fn keeping(self, content: Option<Arc<Content>>) -> Self {
        Self { content, ..self }
    }

    /// What keeps what the client sends, if the client wished for it.
    pub(crate) fn content(&self) -> Option<&Arc<Content>> {
        self.content.as_ref()
    }

    /// Receives bytes that are no copy to the device: they are not kept, and a client does not name their blocks.
    pub(crate) fn receive_plain(
        &self,
        transfer: TransferId,
        bytes: u64,
        sink: &dyn Sink,
    ) -> Result<(), LinkLost> {
        let _busy = self.occupy(transfer)?;
        self.wait_for(transfer, bytes, false, sink)
    }

    fn wait_for(
        &self,
        transfer: TransferId,
        bytes: u64,
        pull: bool,
        sink: &dyn Sink,
    ) -> Result<(), LinkLost> {
        // More than the window is never pushed unasked, whatever the command says.
        let pull = pull || bytes > self.push_window_bytes;
        let expectation = self.lanes.expect(transfer, bytes)?;
        if pull {
            // Small transfers whose streams got there must leave first: the pull travels on another connection.
            self.outgoing.send_reads()?;
            self.events.send(&Notice::Pull { transfer, chunks: self.lanes.chunks_sent() })?;
        }
        expectation.wait(sink)?;
        if pull { Ok(()) } else { self.events.send(&Notice::PushConsumed { bytes }) }
    }

    /// The client cannot serve a pull: the copy that waits for it fails.
    pub(crate) fn pull_failed(&self, transfer: TransferId) {
        self.has_failed_pull.store(true, Ordering::SeqCst);
        self.lanes.cancel(transfer);
    }

    /// Whether the client could not serve a pull at some time.
    pub(crate) fn has_failed_pull(&self) -> bool {
        self.has_failed_pull.load(Ordering::SeqCst)
    }

    /// Takes pushed bytes that no command needs any more out of the window.
    pub(crate) fn discard(self: &Arc<Self>, transfer: TransferId, bytes: u64) {
        if bytes > self.push_window_bytes {
            // The client waits to be asked for it, and is not.
            return;
        }
        let link = self.clone();
        let done = move |result: Result<(), LinkLost>| {
            if result.is_ok() {
                let _ = link.events.send(&Notice::PushConsumed { bytes });
            }
        };
        self.lanes.expect_later(transfer, bytes, Box::new(|_, _: &[u8]| {}), Box::new(done));
    }

    /// Closes all connections. Every thread that waits for the client stops waiting.
    pub(crate) fn close(&self) {
        self.outgoing.close();
        self.events.close();
        self.lanes.close();
        self.host_calls.close();
        drop(lock(&self.busy));
        self.freed.notify_all();
    }

    fn occupy(&self, transfer: TransferId) -> Result<Busy<'_>, LinkLost> {
        let mut busy = lock(&self.busy);
        while !busy.insert(transfer) {
            if self.events.is_closed() {
                return Err(LinkLost);
            }
            busy = wait(&self.freed, busy);
        }
        Ok(Busy { link: self, transfer })
    }
}

struct Busy<'a> {
    link: &'a Link,
    transfer: TransferId,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(&self.link.busy).remove(&self.transfer);
        self.link.freed.notify_all();
    }
}

impl HostLink for Link {
    fn receive(&self, transfer: TransferId, bytes: u64, pull: bool, sink: &dyn Sink) -> Result<(), LinkLost> {
        let _busy = self.occupy(transfer)?;
        match self.content.as_ref().and_then(|content| content.collect(transfer, bytes)) {
            None => self.wait_for(transfer, bytes, pull, sink),
            Some(collecting) => self.wait_for(transfer, bytes, pull, &collecting.around(Borrowed(sink))),
        }
    }

    fn send(&self, transfer: TransferId, bytes: u64, source: &dyn Source) -> Result<(), LinkLost> {
        let _busy = self.occupy(transfer)?;
        self.lanes.send(transfer, bytes, source)
    }

    fn receive_later(
        &self,
        transfer: TransferId,
        bytes: u64,
        pull: bool,
        landing: Box<dyn Landing>,
        over: Over,
    ) {
        let pull = pull || bytes > self.push_window_bytes;
        let events = self.events.clone();
        let done = move |result: Result<(), LinkLost>| {
            let told = if pull { Ok(()) } else { events.send(&Notice::PushConsumed { bytes }) };
            over(result.and(told));
        };
        let collecting = self.content.as_ref().and_then(|content| content.collect(transfer, bytes));
        let sink: Box<dyn Sink + Send + Sync> = match collecting {
            None => Box::new(Land(landing)),
            Some(collecting) => Box::new(collecting.around(Land(landing))),
        };
        self.lanes.expect_later(transfer, bytes, sink, Box::new(done));
        if pull {
            // A link that is lost ends the expectation too.
            let _ = self.outgoing.send_reads();
            let _ = self.events.send(&Notice::Pull { transfer, chunks: self.lanes.chunks_sent() });
        }
    }

    fn send_part(
        &self,
        transfer: TransferId,
        offset: u64,
        bytes: u64,
        departure: Box<dyn Departure>,
        over: Over,
    ) {
        self.lanes.send_part_later(transfer, offset, bytes, Box::new(Depart(departure)), over);
    }

    fn send_when_read(
        &self,
        transfer: TransferId,
        read: Box<dyn PendingRead>,
    ) -> Result<(), Box<dyn PendingRead>> {
        self.outgoing.take_read(transfer, read)
    }

    fn has_failed_pull(&self) -> bool {
        Self::has_failed_pull(self)
    }

    fn host_call(&self, token: u64) -> Result<(), LinkLost> {
        self.host_calls.begin(token);
        self.outgoing.send_reads()?;
        self.events.send(&Notice::HostCall { token, chunks: self.lanes.chunks_sent() })?;
        self.host_calls.wait(token)
    }

    fn print(&self, text: &[u8]) {
        for piece in text.chunks(PRINT_BYTES_MAX) {
            // Text for a client that is gone has no reader.
            let _ = self.events.send(&Notice::Print { text: cuda_wire::Bytes(piece) });
        }
    }
}

/// A driver's sink, which it lends for one transfer.
struct Borrowed<'a>(&'a dyn Sink);

impl Sink for Borrowed<'_> {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self.0.take(offset, bytes);
    }

    fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
        self.0.target(offset, bytes, read)
    }

    fn has_room(&self, offset: u64, bytes: usize) -> bool {
        self.0.has_room(offset, bytes)
    }
}

/// A driver's landing as the lanes see it.
struct Land(Box<dyn Landing>);

impl Sink for Land {
    fn take(&self, offset: u64, bytes: &[u8]) {
        let mut left = bytes;
        self.0.land(offset, bytes.len(), &mut |piece| {
            let (now, later) = left.split_at(piece.len());
            piece.copy_from_slice(now);
            left = later;
        });
    }

    fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
        self.0.land(offset, bytes, read);
        true
    }

    fn has_room(&self, offset: u64, bytes: usize) -> bool {
        self.0.has_room(offset, bytes)
    }
}

/// A driver's departure as the lanes see it.
struct Depart(Box<dyn Departure>);

impl Source for Depart {
    fn fill(&self, offset: u64, target: &mut [u8]) {
        let mut at = 0;
        self.0.depart(offset, target.len(), &mut |piece| {
            target[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        });
    }

    fn view(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8])) -> bool {
        self.0.depart(offset, bytes, send);
        true
    }
}

/// Host functions that the client is running.
#[derive(Default)]
pub(crate) struct HostCalls {
    state: Mutex<HostCallState>,
    changed: Condvar,
}

#[derive(Default)]
struct HostCallState {
    /// Calls begun and calls returned, by token: two graphs may run the same function at once.
    calls: HashMap<u64, (u32, u32)>,
    closed: bool,
}

impl HostCalls {
    fn begin(&self, token: u64) {
        lock(&self.state).calls.entry(token).or_default().0 += 1;
    }

    /// False when no call waits for it.
    pub(crate) fn done(&self, token: u64) -> bool {
        let mut state = lock(&self.state);
        let counted = match state.calls.get_mut(&token) {
            Some((begun, returned)) if *returned < *begun => {
                *returned += 1;
                true
            }
            _ => false,
        };
        self.changed.notify_all();
        counted
    }

    fn wait(&self, token: u64) -> Result<(), LinkLost> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Err(LinkLost);
            }
            match state.calls.get_mut(&token) {
                Some((begun, returned)) if *returned > 0 => {
                    *begun -= 1;
                    *returned -= 1;
                    if *begun == 0 {
                        state.calls.remove(&token);
                    }
                    return Ok(());
                }
                _ => state = wait(&self.changed, state),
            }
        }
    }

    fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }
}
