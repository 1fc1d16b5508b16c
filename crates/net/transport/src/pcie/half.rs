//! The two halves of a connection over a channel.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpu_registers::{channel_at, control, register, state, status};

use super::Registers;
use super::claim::{Claim, INBOUND_AT, INBOUND_BYTES, OUTBOUND_AT, OUTBOUND_BYTES, Page, STATUS_AT};
use crate::connection::{Connection, Link, RxHalf, TxHalf};
use crate::fd;
use crate::shm::Spinner;

/// Bytes after which a long send rings, so that the function reads while we write.
const RING_EVERY: usize = 64 << 10;
/// Bytes after which space is given back. A quarter, so that the function never waits for a reader that has read
/// everything.
const GIVE_BACK_EVERY: u32 = INBOUND_BYTES as u32 / 4;
/// The shortest sleep: a shorter one would not end sooner.
const SLEEP_MIN: Duration = Duration::from_micros(20);
/// The longest sleep: a long wait ends late by at most this much.
const SLEEP_MAX: Duration = Duration::from_millis(5);
/// How often a waiting thread asks whether the function is there at all: its absence says nothing.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a thread sleeps that has waited so long: an eighth of that, so that a wait ends late by an eighth at most.
fn nap_after(waited: Duration) -> Duration {
    (waited / 8).clamp(SLEEP_MIN, SLEEP_MAX)
}

/// What both halves share.
#[derive(Debug)]
pub(crate) struct PcieLink {
    registers: Arc<dyn Registers>,
    /// Where the channel's registers begin.
    at: u64,
    page: Page,
    /// This side has closed, or the function is gone. Never unset.
    ended: AtomicBool,
    abandoned: AtomicBool,
    /// A child of a fork has the same memory, but the channel is its parent's.
    process: u32,
}

#[derive(Debug)]
pub(crate) struct PcieTx {
    link: Arc<PcieLink>,
    /// Bytes ever written, and rung for.
    put: u32,
    rung: u32,
    finished: bool,
    spinner: Spinner,
}

#[derive(Debug)]
pub(crate) struct PcieRx {
    link: Arc<PcieLink>,
    /// Bytes ever read, and given back.
    taken: u32,
    given_back: u32,
    spinner: Spinner,
}

/// Opens a claimed channel. The connection is there when the worker has taken it.
pub(super) fn open(claim: Claim, registers: Arc<dyn Registers>, deadline: Instant) -> io::Result<Connection> {
    let link = Arc::new(PcieLink {
        registers,
        at: channel_at(claim.channel),
        page: claim.page,
        ended: AtomicBool::new(false),
        abandoned: AtomicBool::new(false),
        process: std::process::id(),
    });
    let base = link.page.address;
    for (register, offset) in [
        (register::STATUS_AT, STATUS_AT),
        (register::OUTBOUND_AT, OUTBOUND_AT),
        (register::INBOUND_AT, INBOUND_AT),
    ] {
        let address = base + offset as u64;
        link.write(register, address as u32);
        link.write(register + 4, (address >> 32) as u32);
    }
    link.write(register::OUTBOUND_BYTES, OUTBOUND_BYTES as u32);
    link.write(register::INBOUND_BYTES, INBOUND_BYTES as u32);
    link.write(register::CONTROL, control::OPEN);
    let mut spinner = Spinner::new();
    let answered = link.wait(&mut spinner, Some(deadline), || link.state() != 0)?;
    match (answered, link.state()) {
        (false, _) => Err(io::ErrorKind::TimedOut.into()),
        (true, state) if state & state::REFUSED != 0 => Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "the function is there, but no worker behind it takes connections",
        )),
        (true, state) if state & state::FAULT != 0 => Err(fault()),
        (true, state) if state & state::OPEN == 0 => {
            Err(io::Error::new(io::ErrorKind::NotConnected, "the function stopped answering"))
        }
        (true, _) => {
            let tx = PcieTx { link: link.clone(), put: 0, rung: 0, finished: false, spinner: Spinner::new() };
            let rx = PcieRx { link: link.clone(), taken: 0, given_back: 0, spinner };
            Ok(Connection::new(TxHalf::Pcie(tx), RxHalf::Pcie(rx), &link))
        }
    }
}

impl PcieLink {
    fn write(&self, register: u64, value: u32) {
        self.registers.write(self.at + register, value);
    }

    fn word(&self, word: u64) -> u32 {
        u32::from_le(self.page.memory.word(STATUS_AT + word as usize).load(Ordering::Acquire))
    }

    fn state(&self) -> u32 {
        self.word(status::STATE)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Asks the kernel for our process id: not for every message.
    fn is_ours(&self) -> bool {
        !self.is_abandoned() && self.process == std::process::id()
    }

    /// Waits until `ready` or the end of everything; false at the deadline. No interrupt wakes us: there are only
    /// looks.
    fn wait(
        &self,
        spinner: &mut Spinner,
        deadline: Option<Instant>,
        ready: impl Fn() -> bool,
    ) -> io::Result<bool> {
        spinner.wait(
            || ready() || self.has_ended(),
            true,
            || {
                let started = Instant::now();
                let mut look_at = started + LOOK_EVERY;
                loop {
                    if ready() || self.has_ended() {
                        return Ok(true);
                    }
                    let now = Instant::now();
                    if deadline.is_some_and(|deadline| now >= deadline) {
                        return Ok(false);
                    }
                    if now >= look_at {
                        self.look();
                        look_at = now + LOOK_EVERY;
                    }
                    let nap = nap_after(now - started);
                    let left = deadline.map_or(nap, |deadline| deadline - now);
                    std::thread::sleep(nap.min(left));
                }
            },
        )
    }

    /// Whether the function still knows the channel. It does not when it was reset, and answers nothing when it is gone.
    fn look(&self) {
        let known = state::OPEN | state::OPENING | state::REFUSED | state::FAULT;
        let state = self.registers.read(self.at + register::STATE);
        if state == u32::MAX || state & known == 0 {
            self.ended.store(true, Ordering::Release);
        }
    }
}

impl Link for PcieLink {
    fn close(&self) {
        if self.is_ours() && !self.ended.swap(true, Ordering::AcqRel) {
            self.write(register::CONTROL, control::CLOSE);
        }
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.ended.store(true, Ordering::Release);
        fd::let_go(&self.raw_fds());
    }

    fn raw_fds(&self) -> Vec<RawFd> {
        vec![self.page.file.as_raw_fd()]
    }
}

impl Drop for PcieLink {
    fn drop(&mut self) {
        // Before the lock goes with the file: the next owner finds a channel that closes.
        self.close();
    }
}

impl PcieTx {
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        for mut part in parts.iter().copied() {
            while !part.is_empty() {
                let free = self.free()?;
                if free == 0 {
                    self.ring();
                    self.wait_for_space()?;
                    continue;
                }
                let at = self.put as usize % OUTBOUND_BYTES;
                let here = part.len().min(free).min(OUTBOUND_BYTES - at).min(RING_EVERY);
                let (piece, rest) = part.split_at(here);
                self.link.page.memory.write(OUTBOUND_AT + at, piece);
                self.put = self.put.wrapping_add(here as u32);
                part = rest;
                if self.put.wrapping_sub(self.rung) as usize >= RING_EVERY {
                    self.ring();
                }
            }
        }
        self.ring();
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if !self.finished && self.link.is_ours() && !self.link.has_ended() {
            self.link.write(register::CONTROL, control::FINISH);
        }
        self.finished = true;
        Ok(())
    }

    fn ring(&mut self) {
        if self.rung != self.put {
            self.rung = self.put;
            self.link.write(register::OUTBOUND_PUT, self.put);
        }
    }

    /// How many bytes fit. What was taken is the function's word: it must be possible, else the function is broken.
    fn free(&self) -> io::Result<usize> {
        let link = &self.link;
        if self.finished || link.has_ended() || link.is_abandoned() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let state = link.state();
        if state & state::FAULT != 0 {
            return Err(fault());
        }
        if state & state::DESERTED != 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let used = self.put.wrapping_sub(link.word(status::OUTBOUND_TAKEN)) as usize;
        OUTBOUND_BYTES.checked_sub(used).ok_or_else(impossible)
    }

    fn wait_for_space(&mut self) -> io::Result<()> {
        let (link, full_at) = (&self.link, self.put.wrapping_sub(OUTBOUND_BYTES as u32));
        let changed = || link.word(status::OUTBOUND_TAKEN) != full_at || link.state() & state::DESERTED != 0;
        link.wait(&mut self.spinner, None, changed).map(|_| ())
    }
}

impl PcieRx {
    pub(crate) fn set_spin(&mut self, spin: Duration) {
        self.spinner = Spinner::constant(spin);
    }

    pub(crate) fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(count) = self.try_recv(buf)? {
                return Ok(count);
            }
            self.wait_for_data(None)?;
        }
    }

    pub(crate) fn try_recv(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        if buf.is_empty() {
            return Ok(Some(0));
        }
        let available = self.available()?;
        if available == 0 {
            return Ok(self.is_at_end()?.then_some(0));
        }
        let count = available.min(buf.len());
        let mut rest = &mut buf[..count];
        while !rest.is_empty() {
            let at = self.taken as usize % INBOUND_BYTES;
            let here = rest.len().min(INBOUND_BYTES - at).min(GIVE_BACK_EVERY as usize);
            let (piece, later) = rest.split_at_mut(here);
            self.link.page.memory.read(INBOUND_AT + at, piece);
            self.taken = self.taken.wrapping_add(here as u32);
            rest = later;
            self.give_back();
        }
        Ok(Some(count))
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if self.available()? > 0 || self.is_at_end()? {
                return Ok(true);
            }
            // A timeout of zero asks for no looking around either.
            if timeout.is_some_and(|timeout| timeout.is_zero()) || !self.wait_for_data(deadline)? {
                return Ok(false);
            }
        }
    }

    /// How many bytes are there. See [`PcieTx::free`].
    fn available(&self) -> io::Result<usize> {
        if self.link.is_abandoned() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let available = self.link.word(status::INBOUND_PUT).wrapping_sub(self.taken) as usize;
        if available > INBOUND_BYTES { Err(impossible()) } else { Ok(available) }
    }

    /// True when nothing more will come. What was sent before the end is read first.
    fn is_at_end(&self) -> io::Result<bool> {
        let state = self.link.state();
        if state & state::FAULT != 0 && !self.link.has_ended() {
            return Err(fault());
        }
        let ended = state & state::FINISHED != 0 || self.link.has_ended();
        // The end was written behind the last bytes; they may have come since we looked for them.
        Ok(ended && self.available()? == 0)
    }

    fn give_back(&mut self) {
        if self.taken.wrapping_sub(self.given_back) >= GIVE_BACK_EVERY && !self.link.has_ended() {
            self.given_back = self.taken;
            self.link.write(register::INBOUND_TAKEN, self.taken);
        }
    }

    /// False at the deadline.
    fn wait_for_data(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        let (link, taken) = (&self.link, self.taken);
        let changed = || {
            link.word(status::INBOUND_PUT) != taken || link.state() & (state::FINISHED | state::FAULT) != 0
        };
        link.wait(&mut self.spinner, deadline, changed)
    }
}

fn impossible() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the function wrote an impossible number into the status block",
    )
}

fn fault() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the function gave the channel up: it could not reach this machine's memory",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a waiting thread adds to a wait, whatever the machine adds: an eighth of it, and never more than 5 ms.
    #[test]
    fn a_short_wait_ends_after_short_sleeps_and_a_long_one_late_by_little() {
        assert_eq!(nap_after(Duration::ZERO), Duration::from_micros(20));
        assert_eq!(nap_after(Duration::from_micros(800)), Duration::from_micros(100));
        assert_eq!(nap_after(Duration::from_secs(3600)), Duration::from_millis(5));
        // Sleeps up to the end of a wait, as `wait` takes them: few, and the last one ends little after.
        let end = Duration::from_millis(10);
        let (mut waited, mut naps) = (Duration::ZERO, 0);
        while waited < end {
            waited += nap_after(waited);
            naps += 1;
        }
        assert!(waited <= end + end / 8 && naps < 60, "{waited:?} in {naps} sleeps");
    }
}
