//! What a bare network moves, with as much on its way as a link would have.

use super::{BOX, HOST, TURN, send, with_peer};
use fabric_net::Port;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes that may be on their way: a trunk's, in these measurements.
pub(super) const IN_FLIGHT_BYTES: usize = 192 << 10;
/// How often the receiver says how much it has.
const TELL_BYTES: u64 = 32 << 10;
/// After this long without a word, what is missing is taken for lost.
const LOST_AFTER: Duration = Duration::from_millis(5);
/// Datagrams that share a flush.
const BURST: usize = 16;

/// Bytes a second in datagrams of `datagram_bytes` from the host to the box. The receiver says now and then how much it
/// has, the sender has no more than `IN_FLIGHT_BYTES` on their way; nothing is sent again.
pub fn raw_throughput<P: Port + Send>(ports: (P, P), datagram_bytes: usize, bytes: u64) -> io::Result<f64> {
    let (mut ours, mut theirs) = ports;
    let datagram = vec![0x5a; datagram_bytes];
    let host = move || {
        let began = Instant::now();
        let (mut sent, mut there, mut heard) = (0u64, 0u64, Instant::now());
        while there < bytes {
            let mut burst = 0;
            while sent < bytes && sent - there < IN_FLIGHT_BYTES as u64 && burst < BURST {
                send(&mut ours, BOX, &datagram)?;
                sent += datagram_bytes as u64;
                burst += 1;
            }
            ours.flush()?;
            let is_full = sent >= bytes || sent - there >= IN_FLIGHT_BYTES as u64;
            let wait = if is_full { LOST_AFTER } else { Duration::ZERO };
            let told = ours.receive(wait, &mut |word| {
                if let Some(word) = word.first_chunk::<8>() {
                    there = there.max(u64::from_le_bytes(*word));
                }
            })?;
            if told > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > LOST_AFTER && is_full {
                // Lost, or the last few that were not worth a word.
                (there, heard) = (sent, Instant::now());
            }
        }
        Ok(there as f64 / began.elapsed().as_secs_f64())
    };
    with_peer(host, move |is_over| {
        let (mut there, mut told) = (0u64, 0u64);
        while !is_over.load(Ordering::Relaxed) {
            theirs.receive(TURN, &mut |datagram| {
                // A receiver that never looks would be no receiver.
                there += datagram.len() as u64 + u64::from(datagram[datagram.len() / 2]) - 0x5a;
            })?;
            if there - told >= TELL_BYTES || there >= bytes && told < there {
                send(&mut theirs, HOST, &there.to_le_bytes())?;
                theirs.flush()?;
                told = there;
            }
        }
        Ok(())
    })
}
