//! A client that sends what a test expects and keeps what it is sent.

use crate::fake::PATIENCE;
use cuda_driver::{Departure, HostLink, Landing, LinkLost, Over, PendingRead, Sink, Source};
use cuda_wire::TransferId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Bytes land in pieces of this size, which divides nothing.
const PIECE: usize = (1 << 20) + 13;

/// The byte at an offset of a transfer, different for all neighbours.
pub(super) fn byte(transfer: TransferId, offset: u64) -> u8 {
    ((offset * 31 + (offset >> 9) * 7 + transfer.0 * 17) % 251) as u8
}

/// The bytes of a transfer.
pub(super) fn bytes(transfer: TransferId, count: u64) -> Vec<u8> {
    (0..count).map(|offset| byte(transfer, offset)).collect()
}

/// Waits until something is so, and fails the test if it never is.
pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct TestLink {
    /// What was sent, by transfer.
    pub(super) sent: Arc<Mutex<HashMap<u64, Vec<u8>>>>,
    /// Transfers that were asked for, and whether they were pulled.
    pub(super) asked: Mutex<Vec<(u64, bool)>>,
    /// Small reads that were handed over, while `takes_reads`.
    pub(super) reads: Mutex<Vec<(TransferId, Box<dyn PendingRead>)>>,
    pub(super) takes_reads: AtomicBool,
    /// Tokens of host functions that ran.
    pub(super) host_calls: Mutex<Vec<u64>>,
    /// The connection is broken.
    pub(super) is_lost: AtomicBool,
    /// The client could not serve a pull at some time.
    pub(super) has_failed_pull: AtomicBool,
    /// Transfers wait in `waiting` until [`TestLink::deliver`].
    pub(super) is_slow: AtomicBool,
    waiting: Mutex<Vec<Job>>,
}

impl TestLink {
    /// Lets transfers that wait go on.
    pub(super) fn deliver(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().for_each(|job| drop(std::thread::spawn(job)));
    }

    /// The same in the other order: the last is first, and over before the next begins.
    pub(super) fn deliver_backwards(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().rev().for_each(|job| job());
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    pub(super) fn sent(&self, transfer: TransferId) -> Vec<u8> {
        self.sent.lock().unwrap().get(&transfer.0).cloned().unwrap_or_default()
    }

    fn start(&self, job: Job) {
        match self.is_slow.load(Ordering::SeqCst) {
            true => self.waiting.lock().unwrap().push(job),
            false => drop(std::thread::spawn(job)),
        }
    }

    fn result(&self) -> Result<(), LinkLost> {
        if self.is_lost.load(Ordering::SeqCst) { Err(LinkLost) } else { Ok(()) }
    }
}

impl HostLink for TestLink {
    fn receive(&self, transfer: TransferId, count: u64, pull: bool, sink: &dyn Sink) -> Result<(), LinkLost> {
        self.asked.lock().unwrap().push((transfer.0, pull));
        self.result()?;
        sink.take(0, &bytes(transfer, count));
        Ok(())
    }

    fn send(&self, transfer: TransferId, count: u64, source: &dyn Source) -> Result<(), LinkLost> {
        self.result()?;
        let mut out = vec![0; count as usize];
        source.fill(0, &mut out);
        self.sent.lock().unwrap().insert(transfer.0, out);
        Ok(())
    }

    fn receive_later(
        &self,
        transfer: TransferId,
        count: u64,
        pull: bool,
        landing: Box<dyn Landing>,
        over: Over,
    ) {
        self.asked.lock().unwrap().push((transfer.0, pull));
        let result = self.result();
        self.start(Box::new(move || {
            let mut at = 0;
            while result.is_ok() && at < count {
                let piece = (count - at).min(PIECE as u64) as usize;
                let mut offset = at;
                landing.land(at, piece, &mut |target| {
                    for place in target {
                        *place = byte(transfer, offset);
                        offset += 1;
                    }
                });
                at += piece as u64;
            }
            over(result);
        }));
    }

    fn send_part(
        &self,
        transfer: TransferId,
        offset: u64,
        count: u64,
        departure: Box<dyn Departure>,
        over: Over,
    ) {
        let (sent, result) = (Arc::clone(&self.sent), self.result());
        self.start(Box::new(move || {
            if result.is_ok() {
                departure.depart(offset, count as usize, &mut |bytes| {
                    let mut sent = sent.lock().unwrap();
                    let all = sent.entry(transfer.0).or_default();
                    let end = offset as usize + bytes.len();
                    all.resize(all.len().max(end), 0);
                    all[offset as usize..end].copy_from_slice(bytes);
                });
            }
            over(result);
        }));
    }

    fn send_when_read(
        &self,
        transfer: TransferId,
        read: Box<dyn PendingRead>,
    ) -> Result<(), Box<dyn PendingRead>> {
        match self.takes_reads.load(Ordering::SeqCst) {
            true => self.reads.lock().unwrap().push((transfer, read)),
            false => return Err(read),
        }
        Ok(())
    }

    fn has_failed_pull(&self) -> bool {
        self.has_failed_pull.load(Ordering::SeqCst)
    }

    fn host_call(&self, token: u64) -> Result<(), LinkLost> {
        self.host_calls.lock().unwrap().push(token);
        self.result()
    }

    fn print(&self, _text: &[u8]) {}
}
