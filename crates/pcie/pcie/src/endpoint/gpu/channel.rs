//! One channel: two rings in the guest's memory and how far each end is in them.
//!
//! ```text
//!            OPEN            opened               CLOSE                 all delivered
//!   Idle ──────────▶ Opening ──────▶ Open ────────────────▶ Closing ──────────────────▶ Idle
//!                       └─ refused, FAULT ─▶ Broken ─ RESET ─▶ Idle     (RESET: from anywhere)
//! ```

use std::collections::VecDeque;

use gpu_registers::{RING_BYTES_MAX, RING_BYTES_MIN, register, state, status};

use crate::flow::JobId;

/// Bytes that were asked for but that the worker has not taken yet. More is not read from the guest.
pub(super) const WINDOW: u32 = 1 << 20;
/// One job's bytes: large enough to be few, small enough that channels take turns.
const CHUNK: u32 = 64 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    Opening,
    Open,
    Closing,
    Broken,
}

/// A ring as the guest named it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ring {
    pub(super) address: u64,
    pub(super) bytes: u32,
}

impl Ring {
    fn is_possible(self) -> bool {
        self.bytes.is_power_of_two()
            && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&self.bytes)
            && self.address.is_multiple_of(4096)
            && self.address.checked_add(self.bytes.into()).is_some()
    }

    /// The place of byte number `count`, and how many bytes from there on lie in a row, at most `wanted`.
    fn run(self, count: u32, wanted: u32) -> (u64, u32) {
        let at = count & (self.bytes - 1);
        (self.address + u64::from(at), wanted.min(self.bytes - at))
    }
}

/// A read of the guest's memory that is under way, or whose turn has not come.
struct Job {
    id: JobId,
    data: Option<Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Channel {
    pub(super) phase: Phase,
    pub(super) state: u32,
    pub(super) status_at: u64,
    pub(super) outbound: Ring,
    pub(super) inbound: Ring,
    /// One less than the vector, so that zero is none.
    vector_or_none: u32,
    /// What the guest has rung for, what was asked for, what has come, what the worker has taken, and what the guest
    /// knows to have come. Each is at most as far as the one before it.
    rung: u32,
    asked: u32,
    come: u32,
    taken: u32,
    told: u32,
    jobs: VecDeque<Job>,
    pub(super) finish: Finish,
    /// What was written to the guest, and what it has read of that.
    put: u32,
    read: u32,
}

/// Whether the guest has sent its last byte, and whether that was handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Finish {
    #[default]
    Not,
    Wanted,
    Done,
}

/// A number of the guest that cannot be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Impossible;

impl Channel {
    pub(super) fn vector(&self) -> u32 {
        self.vector_or_none.wrapping_sub(1)
    }

    /// The guest writes an address, a size or the vector. What is in use does not change.
    pub(super) fn set(&mut self, at: u64, value: u32) {
        if self.phase != Phase::Idle {
            return;
        }
        let low = |old: u64| old & !0xffff_ffff | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        const HIGH: u64 = 4;
        match at {
            register::STATUS_AT => self.status_at = low(self.status_at),
            at if at == register::STATUS_AT + HIGH => self.status_at = high(self.status_at),
            register::OUTBOUND_AT => self.outbound.address = low(self.outbound.address),
            at if at == register::OUTBOUND_AT + HIGH => self.outbound.address = high(self.outbound.address),
            register::INBOUND_AT => self.inbound.address = low(self.inbound.address),
            at if at == register::INBOUND_AT + HIGH => self.inbound.address = high(self.inbound.address),
            register::OUTBOUND_BYTES => self.outbound.bytes = value,
            register::INBOUND_BYTES => self.inbound.bytes = value,
            register::VECTOR => self.vector_or_none = value.wrapping_add(1),
            _ => {}
        }
    }

    pub(super) fn get(&self, at: u64) -> u32 {
        let phase = match self.phase {
            Phase::Closing => state::CLOSING,
            Phase::Opening => state::OPENING,
            Phase::Idle | Phase::Open | Phase::Broken => 0,
        };
        const HIGH: u64 = 4;
        match at {
            register::STATE => self.state | phase,
            register::STATUS_AT => self.status_at as u32,
            at if at == register::STATUS_AT + HIGH => (self.status_at >> 32) as u32,
            register::OUTBOUND_AT => self.outbound.address as u32,
            at if at == register::OUTBOUND_AT + HIGH => (self.outbound.address >> 32) as u32,
            register::INBOUND_AT => self.inbound.address as u32,
            at if at == register::INBOUND_AT + HIGH => (self.inbound.address >> 32) as u32,
            register::OUTBOUND_BYTES => self.outbound.bytes,
            register::INBOUND_BYTES => self.inbound.bytes,
            register::VECTOR => self.vector(),
            _ => 0,
        }
    }

    /// Whether the status block is where one can be: only then may anything be written to it.
    pub(super) fn has_status(&self) -> bool {
        self.status_at.is_multiple_of(status::BYTES) && self.status_at.checked_add(status::BYTES).is_some()
    }

    /// Whether what the guest named can be used.
    pub(super) fn is_possible(&self) -> bool {
        self.has_status() && self.outbound.is_possible() && self.inbound.is_possible()
    }

    /// The guest has put bytes into the outbound ring.
    pub(super) fn ring(&mut self, put: u32) -> Result<(), Impossible> {
        let in_ring = put.wrapping_sub(self.come);
        if in_ring > self.outbound.bytes || in_ring < self.rung.wrapping_sub(self.come) {
            return Err(Impossible);
        }
        // Behind the end there is nothing.
        if self.finish == Finish::Not {
            self.rung = put;
        }
        Ok(())
    }

    /// The guest has taken bytes from the inbound ring.
    pub(super) fn give_back(&mut self, read: u32) -> Result<(), Impossible> {
        if read.wrapping_sub(self.read) > self.put.wrapping_sub(self.read) {
            return Err(Impossible);
        }
        self.read = read;
        Ok(())
    }

    /// The next piece of the guest's memory to ask for: address and length.
    pub(super) fn ask(&mut self, id: JobId) -> Option<(u64, usize)> {
        let may = matches!(self.phase, Phase::Open | Phase::Closing) && self.state & state::DESERTED == 0;
        let ahead = self.asked.wrapping_sub(self.taken);
        let wanted = self.rung.wrapping_sub(self.asked).min(WINDOW.saturating_sub(ahead)).min(CHUNK);
        if !may || wanted == 0 {
            return None;
        }
        let (address, bytes) = self.outbound.run(self.asked, wanted);
        self.asked = self.asked.wrapping_add(bytes);
        self.jobs.push_back(Job { id, data: None });
        Some((address, bytes as usize))
    }

    /// A job has brought its bytes. They may have to wait for earlier ones: see [`Channel::next_bytes`].
    pub(super) fn arrived(&mut self, id: JobId, data: Vec<u8>) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
            job.data = Some(data);
        }
    }

    /// The next bytes of the guest, in order.
    pub(super) fn next_bytes(&mut self) -> Option<Vec<u8>> {
        let data = self.jobs.front_mut()?.data.take()?;
        self.jobs.pop_front();
        self.come = self.come.wrapping_add(data.len() as u32);
        Some(data)
    }

    /// The jobs that the channel does not wait for any longer.
    pub(super) fn drop_jobs(&mut self) -> impl Iterator<Item = JobId> {
        std::mem::take(&mut self.jobs).into_iter().map(|job| job.id)
    }

    /// How much has come, when it is time to tell the guest: it may wait for space in a full ring.
    pub(super) fn news_of_space(&mut self) -> Option<u32> {
        let is_time = self.come.wrapping_sub(self.told) >= self.outbound.bytes / 4;
        if is_time {
            self.told = self.come;
        }
        is_time.then_some(self.come)
    }

    /// The worker has taken bytes.
    pub(super) fn take(&mut self, bytes: usize) {
        let left = self.come.wrapping_sub(self.taken);
        self.taken = self.taken.wrapping_add(left.min(u32::try_from(bytes).unwrap_or(u32::MAX)));
    }

    /// Everything the guest rang for has come.
    pub(super) fn has_all_come(&self) -> bool {
        self.come == self.rung
    }

    /// Everything the guest rang for was taken.
    pub(super) fn is_delivered(&self) -> bool {
        self.taken == self.rung || self.state & state::DESERTED != 0
    }

    /// Bytes that fit into the inbound ring.
    pub(super) fn room(&self) -> usize {
        if self.phase != Phase::Open || self.state & state::FINISHED != 0 {
            return 0;
        }
        (self.inbound.bytes - self.put.wrapping_sub(self.read)) as usize
    }

    /// A place for the next inbound bytes, at most `wanted` of them and at most as many as there is room for.
    pub(super) fn place(&mut self, wanted: usize) -> (u64, usize) {
        let wanted = wanted.min(self.room()) as u32;
        let (address, bytes) = self.inbound.run(self.put, wanted);
        self.put = self.put.wrapping_add(bytes);
        (address, bytes as usize)
    }

    /// How much was ever put inbound.
    pub(super) fn inbound_put(&self) -> u32 {
        self.put
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(outbound: u32, inbound: u32) -> Channel {
        let ring = |bytes| Ring { address: 0x10_0000, bytes };
        Channel { phase: Phase::Open, outbound: ring(outbound), inbound: ring(inbound), ..Channel::default() }
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let mut channel = open(4096, 4096);
        assert_eq!(channel.ring(4097), Err(Impossible));
        assert_eq!(channel.ring(100), Ok(()));
        assert_eq!(channel.ring(99), Err(Impossible), "nothing is taken back");
        assert_eq!(channel.ring(u32::MAX), Err(Impossible));
        assert_eq!(channel.give_back(1), Err(Impossible), "nothing was put");
        channel.place(10);
        assert_eq!((channel.give_back(10), channel.give_back(11)), (Ok(()), Err(Impossible)));
        assert_eq!(channel.give_back(9), Err(Impossible));
    }

    #[test]
    fn counts_run_over() {
        let mut channel = open(4096, 4096);
        for count in [&mut channel.rung, &mut channel.asked, &mut channel.come, &mut channel.taken] {
            *count = u32::MAX - 99;
        }
        (channel.told, channel.put, channel.read) = (u32::MAX - 99, u32::MAX - 99, u32::MAX - 99);
        assert_eq!(channel.ring(100), Ok(()));
        assert_eq!(channel.ask(JobId(1)), Some((0x10_0000 + 3996, 100)), "up to the ring's end");
        assert_eq!(channel.ask(JobId(2)), Some((0x10_0000, 100)));
        channel.arrived(JobId(2), vec![2; 100]);
        assert_eq!(channel.next_bytes(), None, "the earlier ones come first");
        channel.arrived(JobId(1), vec![1; 100]);
        assert_eq!((channel.next_bytes(), channel.next_bytes()), (Some(vec![1; 100]), Some(vec![2; 100])));
        assert!(channel.has_all_come() && !channel.is_delivered());
        channel.take(1000);
        assert!(channel.is_delivered());
        assert_eq!(channel.place(4096), (0x10_0000 + 3996, 100));
        assert_eq!((channel.place(4096), channel.room()), ((0x10_0000, 3996), 0));
        assert_eq!((channel.give_back(50), channel.room()), (Ok(()), 150));
    }

    #[test]
    fn no_more_is_read_than_somebody_takes() {
        let mut channel = open(4 << 20, 4096);
        channel.ring(4 << 20).unwrap();
        let ask_all = |channel: &mut Channel| {
            let mut asked = 0;
            while let Some((_, bytes)) = channel.ask(JobId(0)) {
                asked += bytes;
            }
            asked as u32
        };
        assert_eq!(ask_all(&mut channel), WINDOW);
        channel.come = WINDOW;
        channel.take(1000);
        assert_eq!(ask_all(&mut channel), 1000);
    }

    #[test]
    fn registers_that_are_in_use_do_not_change() {
        let mut channel = Channel::default();
        assert_eq!(channel.get(register::VECTOR), u32::MAX, "no vector at first");
        channel.set(register::STATUS_AT + 4, 7);
        channel.set(register::VECTOR, 0);
        assert_eq!((channel.status_at, channel.vector()), (7 << 32, 0));
        channel.phase = Phase::Closing;
        channel.set(register::STATUS_AT, 64);
        assert_eq!(channel.status_at, 7 << 32);
        assert_eq!(channel.get(register::STATE), state::CLOSING);
    }
}
