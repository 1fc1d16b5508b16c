//! What any thread may know of this manager at any moment, without asking the thread that owns the books.

use locks::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How this manager stands, and what it has counted.
#[derive(Debug, Default)]
pub(crate) struct Status {
    is_leading: AtomicBool,
    leader: Mutex<Option<String>>,
    commits: AtomicU64,
    writes: AtomicU64,
    commit_times: Histogram,
    requests: Mutex<BTreeMap<(String, &'static str, u16), u64>>,
    handshakes_refused: AtomicU64,
    /// When the thread that owns the books was last seen to work, the store having confirmed just before that it leads.
    sound_at: Mutex<Option<Instant>>,
}

/// Upper bounds in seconds: a commit on a good disk takes a tenth of a millisecond, on a bad day a second.
pub(crate) const BOUNDS_S: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];

/// How long things took.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One for each bound, and one for what is above all of them.
    counts: [AtomicU64; BOUNDS_S.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let place = BOUNDS_S.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BOUNDS_S.len());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts up to each bound and in all, and the sum in seconds.
    pub(crate) fn read(&self) -> (Vec<u64>, f64) {
        let mut total = 0;
        let counts = self.counts.iter().map(|count| {
            total += count.load(Ordering::Relaxed);
            total
        });
        (counts.collect(), self.sum_us.load(Ordering::Relaxed) as f64 / 1e6)
    }
}

impl Status {
    pub(crate) fn set_leading(&self) {
        self.is_leading.store(true, Ordering::Release);
    }

    pub(crate) fn set_following(&self, leader: Option<String>) {
        self.is_leading.store(false, Ordering::Release);
        *lock(&self.leader) = leader;
    }

    /// The thread that owns the books works, and the store confirms that it leads.
    pub(crate) fn is_sound_now(&self) {
        *lock(&self.sound_at) = Some(Instant::now());
    }

    /// Whether that was so just now.
    pub(crate) fn was_sound_within(&self, span: Duration) -> bool {
        self.is_leading() && lock(&self.sound_at).is_some_and(|at| at.elapsed() < span)
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.is_leading.load(Ordering::Acquire)
    }

    /// The address of the leader, if it is another manager.
    pub(crate) fn leader(&self) -> Option<String> {
        lock(&self.leader).clone()
    }

    pub(crate) fn committed(&self, writes: usize, took: Duration) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.writes.fetch_add(writes as u64, Ordering::Relaxed);
        self.commit_times.observe(took);
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    pub(crate) fn commit_times(&self) -> &Histogram {
        &self.commit_times
    }

    /// Counts a request by its route (never by its path, which a client chooses).
    pub(crate) fn requested(&self, route: &str, method: &'static str, status: u16) {
        *lock(&self.requests).entry((route.to_owned(), method, status)).or_default() += 1;
    }

    pub(crate) fn requests(&self) -> BTreeMap<(String, &'static str, u16), u64> {
        lock(&self.requests).clone()
    }

    pub(crate) fn refused_handshake(&self) {
        self.handshakes_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn handshakes_refused(&self) -> u64 {
        self.handshakes_refused.load(Ordering::Relaxed)
    }
}
