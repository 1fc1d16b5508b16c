//! A network between two threads of one process: for measurements and tests, where no system call is to be in the way.

use crate::Port;
use crate::batch::{Batch, LENGTH_BYTES};
use fabric::{NodeId, PathId};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What may wait for the other thread. More is lost, as on any network.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// What one direction holds.
#[derive(Debug, Default)]
struct Waiting {
    /// Datagrams, each with its length in front.
    batch: Batch,
    is_slept_on: bool,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// One end of the network. Whatever is sent reaches the other end, whichever proxy it is addressed to.
#[derive(Debug)]
pub struct MemoryPort {
    out: Arc<Lane>,
    into: Arc<Lane>,
    unsent: Batch,
    taken: Batch,
    spin: Duration,
}

impl MemoryPort {
    /// Both ends, which look for datagrams for `spin` before they sleep.
    pub fn pair(spin: Duration) -> (Self, Self) {
        let lanes: [Arc<Lane>; 2] = Default::default();
        let end = |out: &Arc<Lane>, into: &Arc<Lane>| Self {
            out: out.clone(),
            into: into.clone(),
            unsent: Batch::default(),
            taken: Batch::default(),
            spin,
        };
        (end(&lanes[0], &lanes[1]), end(&lanes[1], &lanes[0]))
    }

    /// Takes what waits, without waiting.
    fn grab(&mut self) -> bool {
        self.taken.clear();
        // If the other end holds the lock, the caller tries again; the other end holds it only to move bytes.
        if let Ok(mut waiting) = self.into.waiting.try_lock() {
            std::mem::swap(&mut waiting.batch, &mut self.taken);
        }
        !self.taken.is_empty()
    }

    fn wait(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        let spin_until = Instant::now() + self.spin.min(wait);
        while !self.grab() {
            let now = Instant::now();
            if now >= until {
                return;
            }
            if now < spin_until {
                std::hint::spin_loop();
                continue;
            }
            let mut waiting = self.into.lock();
            waiting.is_slept_on = true;
            let is_empty = |waiting: &mut Waiting| waiting.batch.is_empty();
            let woken = self.into.arrived.wait_timeout_while(waiting, until - now, is_empty);
            woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0.is_slept_on = false;
        }
    }
}

impl Port for MemoryPort {
    fn place(&mut self) -> &mut [u8] {
        self.unsent.place(LENGTH_BYTES)
    }

    fn send(&mut self, _: NodeId, _: PathId, bytes: usize) -> io::Result<()> {
        self.unsent.add_with_length(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let mut waiting = self.out.lock();
        if waiting.batch.is_empty() {
            std::mem::swap(&mut waiting.batch, &mut self.unsent);
        } else if waiting.batch.len() < WAITING_BYTES_MAX {
            waiting.batch.extend(self.unsent.as_slice());
        }
        let is_slept_on = waiting.is_slept_on;
        drop(waiting);
        self.unsent.clear();
        // A receiver that polls needs no notification.
        if is_slept_on {
            self.out.arrived.notify_one();
        }
        Ok(())
    }

    fn receive(&mut self, wait: Duration, take: &mut dyn FnMut(&mut [u8])) -> io::Result<usize> {
        if !self.grab() && !wait.is_zero() {
            self.wait(wait);
        }
        let (mut rest, mut count) = (self.taken.as_mut_slice(), 0);
        while let Some((length, after)) = rest.split_first_chunk_mut::<LENGTH_BYTES>() {
            let (datagram, after) = after.split_at_mut(u32::from_le_bytes(*length) as usize);
            take(datagram);
            (rest, count) = (after, count + 1);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_arrive_whole_in_order_and_at_the_other_end() {
        for spin in [Duration::ZERO, Duration::from_millis(1)] {
            let (mut a, mut b) = MemoryPort::pair(spin);
            let sender = std::thread::spawn(move || {
                for size in 0..100usize {
                    a.place()[..size].fill(size as u8);
                    a.send(NodeId(2), PathId(1), size).unwrap();
                    if size % 7 == 0 {
                        a.flush().unwrap();
                    }
                }
                a.flush().unwrap();
                let nothing = a.receive(Duration::ZERO, &mut |_| panic!("our own")).unwrap();
                assert_eq!(nothing, 0);
            });
            let mut sizes = Vec::new();
            let began = Instant::now();
            while sizes.len() < 100 && began.elapsed() < Duration::from_secs(10) {
                let mut take = |datagram: &mut [u8]| {
                    assert!(datagram.iter().all(|byte| usize::from(*byte) == datagram.len()));
                    sizes.push(datagram.len());
                };
                b.receive(Duration::from_millis(20), &mut take).unwrap();
            }
            sender.join().unwrap();
            assert_eq!(sizes, (0..100).collect::<Vec<_>>());
        }
    }
}
