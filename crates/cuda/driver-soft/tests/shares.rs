//! Sessions of leases with a share of a soft GPU take turns: their kernels run in proportion to their shares, and what they compute
//! is the same.

mod common;

use common::*;
use cuda_driver::{Driver, PageHandle, Share};
use cuda_wire::Commands;
use driver_soft::SoftConfig;
use shared_words::{page, process};
use sharing::{Field, Life, Standing, Turns};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Each thread advances its word: the result tells how many kernels have run, and that they ran one after another.
const KERNEL: &[u8] = b".version 8.0
.target sm_80
.address_size 64
.visible .entry advance(.param .u64 words, .param .u32 rounds)
{
    .reg .u64 %d<4>;
    .reg .u32 %r<6>;
    .reg .pred %p<2>;
    ld.param.u64 %d1, [words];
    ld.param.u32 %r4, [rounds];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d3, %d1, %d2;
    ld.global.u32 %r2, [%d3];
again:
    mul.lo.u32 %r3, %r2, 1664525;
    add.u32 %r2, %r3, 1013904223;
    sub.u32 %r4, %r4, 1;
    setp.ne.u32 %p1, %r4, 0;
    @%p1 bra again;
    st.global.u32 [%d3], %r2;
    ret;
}
\0";
const THREADS: u32 = 32;
const ROUNDS: u32 = 40;
/// Kernels that are queued ahead of those that run.
const AHEAD: u64 = 64;

/// What a word is after so many kernels.
fn advanced(word: u32, kernels: u64) -> u32 {
    let rounds = kernels * u64::from(ROUNDS);
    (0..rounds).fold(word, |word, _| word.wrapping_mul(1664525).wrapping_add(1013904223))
}

struct Sharer {
    session: Session,
    page: PageHandle,
    slot: usize,
    turns: Arc<Mutex<Turns>>,
    memory: u64,
    launched: AtomicU64,
}

impl Sharer {
    fn new(page: &PageHandle, milli: u16, lease: u64) -> Self {
        let config = SoftConfig { memory_bytes: 1 << 30, page: Some(page.clone()), ..SoftConfig::default() };
        let session = Session::with(config);
        let owner = process::this_process().unwrap();
        let share = Share::new(milli, lease);
        let ticket = page.page().claim_share(owner, share, process::now_ns()).unwrap();
        session.driver.share(ticket).unwrap();
        session.load(1, KERNEL).unwrap();
        let memory = session.alloc_with(&[0; 4 * THREADS as usize]);
        session.driver.stream_synchronize(LEGACY).unwrap();
        let turns = Turns::new(page.page(), ticket).unwrap();
        let (turns, slot) = (Arc::new(Mutex::new(turns)), ticket.slot());
        Self { session, page: page.clone(), slot, turns, memory, launched: AtomicU64::new(0) }
    }

    fn started(&self) -> u64 {
        self.page.page().get(self.slot, Field::Groups)
    }

    fn held_ns(&self) -> u64 {
        self.page.page().get(self.slot, Field::BusyTotalNs)
    }

    fn launch(&self) {
        let values: Vec<u8> = [self.memory.to_le_bytes(), u64::from(ROUNDS).to_le_bytes()].concat();
        self.session.driver.enqueue(LEGACY, launch(1, 0, 1, THREADS, &values[..12])).unwrap();
        self.launched.fetch_add(1, SeqCst);
    }

    /// Has always work until `over`.
    fn work(&self, over: &AtomicBool) {
        while !over.load(SeqCst) {
            if self.launched.load(SeqCst) >= self.started() + AHEAD {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            self.launch();
        }
    }

    /// What a session process does beside its commands.
    fn keep(&self, over: &AtomicBool) {
        process::sleep_on_time();
        while !over.load(SeqCst) {
            let (page, now_ns) = (self.page.page(), process::now_ns());
            let mut turns = self.turns.lock().unwrap();
            page.beat_and_hold(turns.ticket(), false);
            let standing = turns.look(page, now_ns, |_| Life::Alive, || self.session.driver.rests());
            assert_ne!(standing, Standing::Lost);
            drop(turns);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Runs sessions with these shares beside each other for a while; returns the parts of kernels and of time that each had.
fn run_beside(millis: &[u16]) -> (Vec<f64>, Vec<f64>) {
    let (_words, page) = page::create().unwrap();
    let join = |(at, milli): (usize, &u16)| Sharer::new(&page, *milli, at as u64);
    let sharers: Vec<Sharer> = millis.iter().enumerate().map(join).collect();
    let (no_more_work, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let counts = std::thread::scope(|scope| {
        for sharer in &sharers {
            sharer.turns.lock().unwrap().begin(page.page(), process::now_ns());
            scope.spawn(|| sharer.work(&no_more_work));
            scope.spawn(|| sharer.keep(&over));
        }
        std::thread::sleep(Duration::from_millis(300));
        let now = || sharers.iter().map(|sharer| (sharer.started(), sharer.held_ns())).collect::<Vec<_>>();
        let before = now();
        std::thread::sleep(Duration::from_secs(3));
        let after = now();
        no_more_work.store(true, SeqCst);
        for sharer in &sharers {
            sharer.session.driver.stream_synchronize(LEGACY).unwrap();
            sharer.turns.lock().unwrap().end(page.page(), process::now_ns());
        }
        over.store(true, SeqCst);
        before.into_iter().zip(after).map(|(then, now)| (now.0 - then.0, now.1 - then.1)).collect::<Vec<_>>()
    });
    for sharer in &sharers {
        let kernels = sharer.launched.load(SeqCst);
        let words = sharer.session.words(LEGACY, sharer.memory, THREADS.into());
        assert!(words.iter().all(|word| *word == advanced(0, kernels)), "{kernels} kernels: {words:?}");
    }
    let parts = |of: fn(&(u64, u64)) -> u64| -> Vec<f64> {
        let sum = counts.iter().map(of).sum::<u64>() as f64;
        counts.iter().map(|it| of(it) as f64 / sum).collect()
    };
    (parts(|it| it.0), parts(|it| it.1))
}

#[test]
fn kernels_run_in_proportion_to_shares_and_compute_the_same() {
    for millis in [&[500, 500][..], &[250, 750], &[100, 300, 600]] {
        let is_near = |part: f64, milli: u16, by: f64| (part - f64::from(milli) / 1000.0).abs() < by;
        let mut seen = Vec::new();
        // The time that the page accounts for is exact. How many kernels a machine runs in it depends on what else it does: then it is
        // measured again.
        let is_steady = (0..4).any(|_| {
            let (kernels, held) = run_beside(millis);
            for (part, milli) in held.iter().zip(millis) {
                assert!(is_near(*part, *milli, 0.05), "{millis:?}: time {held:.3?}");
            }
            let is_steady = kernels.iter().zip(millis).all(|(part, milli)| is_near(*part, *milli, 0.12));
            seen.push(kernels);
            is_steady
        });
        assert!(is_steady, "{millis:?}: kernels {seen:.3?}");
    }
}

#[test]
fn a_lone_session_has_the_whole_gpu_and_one_without_the_turn_starts_nothing() {
    let (_words, page) = page::create().unwrap();
    let (one, two) = (Sharer::new(&page, 100, 1), Sharer::new(&page, 900, 2));
    one.turns.lock().unwrap().begin(page.page(), process::now_ns());
    let began = Instant::now();
    (0..200).for_each(|_| one.launch());
    one.session.driver.stream_synchronize(LEGACY).unwrap();
    assert_eq!(one.started(), 200, "in {:?}", began.elapsed());
    two.turns.lock().unwrap().begin(page.page(), process::now_ns());
    two.launch();
    std::thread::sleep(Duration::from_millis(20));
    assert!(two.started() == 0 && !two.session.driver.quiet().unwrap() && two.session.driver.rests());
    one.turns.lock().unwrap().end(page.page(), process::now_ns());
    two.session.driver.stream_synchronize(LEGACY).unwrap();
    assert_eq!((two.started(), one.session.words(LEGACY, one.memory, 1)), (1, vec![advanced(0, 200)]));
}

#[test]
fn a_session_that_waits_for_its_turn_can_be_aborted() {
    let (_words, page) = page::create().unwrap();
    let sharer = Sharer::new(&page, 500, 1);
    sharer.session.driver.enqueue(LEGACY, fill32(sharer.memory, 1, 5)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(sharer.started(), 0);
    sharer.session.driver.abort();
    assert!(sharer.session.driver.quiet().is_ok());
}
