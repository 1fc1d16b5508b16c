//! What the lanes cost beside bare connections: `cargo run --release -p bulk --example throughput`

#[path = "../tests/pair/mod.rs"]
mod pair;

use bulk::{LanesConfig, Sink, Source};
use cuda_wire::TransferId;
use pair::{connections, lanes_pair};
use std::sync::mpsc::channel;
use std::time::Instant;

const BYTES: u64 = 1 << 30;

fn gigabytes_per_second(start: Instant) -> f64 {
    BYTES as f64 / 1e9 / start.elapsed().as_secs_f64()
}

/// The same bytes over the same connections with nothing around them.
fn bare(scheme: &str, lanes: u16) -> f64 {
    let (ours, theirs) = connections(scheme, lanes);
    let share = BYTES as usize / usize::from(lanes);
    // As much memory as the lanes send from, so that both read it from beyond the caches.
    let memory = &vec![1; 66 << 20];
    let start = Instant::now();
    std::thread::scope(|scope| {
        for mut connection in ours {
            scope.spawn(move || {
                for at in 0..share >> 20 {
                    connection.tx.send(&[&memory[(at % 64) << 20..][..1 << 20]]).unwrap();
                }
                connection
            });
        }
        for mut connection in theirs {
            scope.spawn(move || {
                let mut piece = vec![0; 1 << 20];
                (0..share / piece.len()).for_each(|_| connection.rx.recv_exact(&mut piece).unwrap());
                connection
            });
        }
    });
    gigabytes_per_second(start)
}

/// Memory in place, as a client has it.
struct Shown(Vec<u8>);

impl Source for Shown {
    fn fill(&self, _: u64, _: &mut [u8]) {}

    fn view(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8])) -> bool {
        send(&self.0[offset as usize % (64 << 20)..][..bytes]);
        true
    }
}

/// A copy into memory that is larger than any cache.
fn copied(scheme: &str, lanes: u16, in_place: bool) -> f64 {
    let (left, right) = lanes_pair(scheme, lanes, LanesConfig::default(), LanesConfig::default());
    let (sender, receiver) = channel();
    struct Discard;
    impl Sink for Discard {
        fn take(&self, _: u64, bytes: &[u8]) {
            std::hint::black_box(bytes);
        }
    }
    let done = move |result| sender.send(result).unwrap();
    let source = Shown(vec![1; 66 << 20]);
    let start = Instant::now();
    right.expect_later(TransferId(1), BYTES, Box::new(Discard), Box::new(done));
    match in_place {
        true => left.send_later(TransferId(1), BYTES, Box::new(source), Box::new(|_| {})),
        false => {
            let memory = source.0;
            left.send(TransferId(1), BYTES, &move |offset: u64, target: &mut [u8]| {
                target.copy_from_slice(&memory[offset as usize % (64 << 20)..][..target.len()]);
            })
            .unwrap();
        }
    }
    receiver.recv().unwrap().unwrap();
    gigabytes_per_second(start)
}

fn main() {
    for scheme in ["tcp", "unix", "shm"] {
        for lanes in [1, 4] {
            // The best of three: other work on the machine only ever takes away.
            let best = |run: &dyn Fn() -> f64| (0..3).map(|_| run()).fold(0.0, f64::max);
            let bare = best(&|| bare(scheme, lanes));
            let (in_place, copied) =
                (best(&|| copied(scheme, lanes, true)), best(&|| copied(scheme, lanes, false)));
            println!(
                "{scheme} x{lanes}: bare {bare:.2} GB/s, in place {in_place:.2} ({:.2}), copied {copied:.2} ({:.2})",
                in_place / bare,
                copied / bare
            );
        }
    }
}
