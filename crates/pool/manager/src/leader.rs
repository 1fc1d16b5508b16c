//! The thread that owns the books.
//!
//! ```text
//!                 standing: leading                 commit refused, or leadership lost
//! following ---------------------------> leading -------------------------------------> following
//!  answers "not here"                    loop: take what waits, change memory,
//!                                        commit once, answer, read, answer
//! ```
//!
//! One commit serves everything that arrived while the one before was on its way to the disk. Nothing is answered
//! before its commit. When a commit fails or its end is unknown, memory is ahead of the store: it is thrown away, and
//! read again.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pool::Command;
use pool_auth::Authority;
use pool_store::{Candidacy, Elector, Leadership, Outcome, Standing, Store, StoreError};

use crate::books::Books;
use crate::clock::Clock;
use crate::desk::Job;
use crate::history::{History, Recorder};
use crate::problem::Problem;
use crate::revocation;
use crate::settings::Settings;
use crate::staged::Staged;
use crate::status::Status;
use crate::waiters::Waiters;

/// How often the ledger looks at the clock: a small part of every timer it keeps.
const TICK: Duration = Duration::from_millis(100);

/// Jobs in one commit. More would make the first ones wait without making the disk faster.
const BATCH_JOBS_MAX: usize = 512;

/// Pieces of the ledger's own work in one round.
const TICK_STEPS_MAX: usize = 1024;

/// How often expired tokens and old keys are looked for.
const SWEEP_MS: u64 = 60_000;

/// How often a store that keeps every change may forget old ones.
const COMPACT_EVERY: Duration = Duration::from_secs(300);

/// How long a store that does not answer is asked again before all waiting requests fail.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// A leader that has received no request for so long was frozen, or its disk was: boxes and borrowers spoke
/// all the while and must not be taken for silent. It begins anew, as a new leader does. Borrowers renew more
/// often than this.
const DEAF_MAX: Duration = Duration::from_secs(2);

/// Pause after a panic: its cause may still be there.
const AFTER_PANIC: Duration = Duration::from_millis(200);

/// The election that managers take part in.
pub const ELECTION: &str = "manager";

/// The thread's own things.
pub(crate) struct Leader {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) settings: Settings,
    pub(crate) authority: Arc<Authority>,
    pub(crate) address: String,
    pub(crate) jobs: Receiver<Box<dyn Job>>,
    pub(crate) status: Arc<Status>,
    pub(crate) clock: Clock,
    pub(crate) history: Arc<Mutex<History>>,
}

/// Why a tenure ended.
enum Ending {
    /// Another manager leads, or may.
    Lost,
    /// No desk hands in jobs any more.
    Stopped,
}

impl Leader {
    /// Runs until every [`Desk`](crate::desk::Desk) is gone, then resigns.
    ///
    /// A panic ends a tenure, and the requests that waited are told that there is no answer; what is in the
    /// store is whole, and is read again. A manager that went on without this thread would listen and never answer.
    pub(crate) fn run_whatever_happens(self) {
        while let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| self.run())) {
            self.status.set_following(None);
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            tracing::error!(
                what,
                "the leader's thread panicked; it reads the store again and goes on; please report this line"
            );
            std::thread::sleep(AFTER_PANIC);
        }
    }

    fn run(&self) {
        let candidacy = Candidacy {
            name: ELECTION.to_owned(),
            address: self.address.clone(),
            ttl: self.settings.leader_ttl,
        };
        let mut elector = Elector::start(self.store.clone(), candidacy.clone());
        let mut following = None;
        loop {
            while let Ok(standing) = elector.standings().try_recv() {
                match standing {
                    Standing::Leading(leadership) => {
                        let ending = self.lead(leadership, &elector);
                        self.status.set_following(None);
                        if matches!(ending, Ending::Stopped) {
                            return;
                        }
                        following = None;
                        // Dropping the elector resigns this tenure; the next one begins with a new campaign.
                        drop(elector);
                        elector = Elector::start(self.store.clone(), candidacy.clone());
                    }
                    Standing::Following(leader) => {
                        following = leader.map(|leader| leader.address);
                        self.status.set_following(following.clone());
                    }
                }
            }
            match self.jobs.recv_timeout(Duration::from_millis(20)) {
                Ok(job) => job.deliver(Err(Problem::not_leading(following.clone()))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn lead(&self, mut leadership: Leadership, elector: &Elector) -> Ending {
        let mut is_first = true;
        loop {
            let began = Instant::now();
            let opened = Books::open(
                &*self.store,
                self.authority.clone(),
                &self.settings,
                self.clock.now_ms(),
                leadership.tenure.0,
            );
            let mut books = match opened {
                Ok(books) => books,
                Err(error) => {
                    tracing::error!(
                        error = chain(&error),
                        "the leader cannot read the pool from the store; it answers no request and tries again in half a second"
                    );
                    // Meanwhile `refuse_for` answers requests with an error, and asks the elector
                    // whether we still lead.
                    if let Some(ending) = self.refuse_for(Duration::from_millis(500), elector, error.told()) {
                        return ending;
                    }
                    continue;
                }
            };
            tracing::info!(
                tenure = leadership.tenure.0,
                took_ms = began.elapsed().as_millis(),
                again = !is_first,
                "this manager leads: it has read the pool from the store"
            );
            is_first = false;
            // `Lead` is never refused. Its writes go with the first commit.
            let _ = books.apply(&Command::Lead { manager: self.settings.name.clone() });
            self.status.set_leading();
            let mut tenure = Tenure { leader: self, leadership: &mut leadership, elector };
            match tenure.work(&mut books) {
                Close::Reopen => {}
                Close::Lost => return Ending::Lost,
                Close::Stopped => return Ending::Stopped,
            }
        }
    }

    /// Answers every job with an error for `time`. Returns early when the leadership or the desks are gone.
    fn refuse_for(&self, time: Duration, elector: &Elector, why: &str) -> Option<Ending> {
        let until = Instant::now() + time;
        loop {
            if !elector.is_leading() {
                return Some(Ending::Lost);
            }
            match self.jobs.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(job) => job.deliver(Err(Problem::unavailable(why))),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => return Some(Ending::Stopped),
            }
        }
    }
}

/// Why the books are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    /// Memory may be ahead of the store; read it again.
    Reopen,
    /// Another leads.
    Lost,
    /// We shall stop.
    Stopped,
}

/// Time in office.
struct Tenure<'a> {
    leader: &'a Leader,
    leadership: &'a mut Leadership,
    elector: &'a Elector,
}

/// What goes into one commit.
#[derive(Default)]
struct Batch {
    staged: Staged,
    jobs: Vec<Box<dyn Job>>,
}

impl Tenure<'_> {
    fn work(&mut self, books: &mut Books) -> Close {
        let mut recorder =
            Recorder::begin(self.leader.history.clone(), &*self.leader.store, self.leader.clock.now_ms());
        let mut next_tick = Instant::now();
        let mut next_sweep_ms = 0;
        let mut next_compact = Instant::now() + COMPACT_EVERY;
        let mut heard_at = Instant::now();
        loop {
            let first =
                match self.leader.jobs.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
                    Ok(job) => Some(job),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return Close::Stopped,
                };
            if self.is_replaced() {
                let problem = Problem::not_leading(None);
                if let Some(job) = first {
                    job.deliver(Err(problem));
                }
                return Close::Lost;
            }
            let deaf = std::mem::replace(&mut heard_at, Instant::now()).elapsed();
            if deaf > DEAF_MAX {
                tracing::warn!(
                    stalled_ms = deaf.as_millis(),
                    "the leader was stalled and read no request; it reads the store again and expires nothing"
                );
                refuse(first);
                return Close::Reopen;
            }
            if self.elector.is_confirmed() {
                self.leader.status.is_sound_now();
            }
            books.now_ms = self.leader.clock.now_ms();
            let is_tick_due = Instant::now() >= next_tick;
            if let Err(close) = self.round(books, first, is_tick_due) {
                return close;
            }
            if is_tick_due {
                next_tick = Instant::now() + TICK;
                // Work that the next request would have to do first, while no request waits.
                books.ledger.catch_up();
                books.audit.tell_counted(books.now_ms, &mut books.staged);
                if let Some((key, value)) = recorder.tick(&books.ledger, books.now_ms) {
                    books.staged.put(key, value);
                }
            }
            if books.now_ms >= next_sweep_ms {
                next_sweep_ms = books.now_ms + SWEEP_MS;
                books.access.sweep(books.now_ms, &mut books.staged);
            }
            if Instant::now() >= next_compact {
                next_compact = Instant::now() + COMPACT_EVERY;
                self.compact();
            }
        }
    }

    /// Whether the elector has told us to stop leading.
    fn is_replaced(&self) -> bool {
        matches!(self.elector.standings().try_recv(), Ok(Standing::Following(_)))
    }

    /// Takes what waits, changes memory, commits, answers; then reads and answers.
    fn round(
        &mut self,
        books: &mut Books,
        first: Option<Box<dyn Job>>,
        is_tick_due: bool,
    ) -> Result<(), Close> {
        let mut batch = Batch::default();
        let mut reads = Vec::new();
        // Audit entries that reads and sweeps have staged.
        self.add(&mut batch, books, None)?;
        let mut is_stirred = is_tick_due;
        let mut next = first;
        for _ in 0..BATCH_JOBS_MAX {
            let Some(mut job) = next.take().or_else(|| self.leader.jobs.try_recv().ok()) else { break };
            if job.is_read() {
                reads.push(job);
                continue;
            }
            job.perform(books);
            is_stirred |= !books.staged.is_empty();
            if let Err(close) = self.add(&mut batch, books, Some(job)) {
                refuse(reads);
                return Err(close);
            }
        }
        let ticked = if is_stirred { self.tick(books, &mut batch) } else { Ok(()) };
        if let Err(close) = ticked.and_then(|()| self.commit(&mut batch, &mut books.waiters)) {
            refuse(reads);
            return Err(close);
        }
        for mut read in reads {
            read.perform(books);
            read.deliver(Ok(()));
        }
        Ok(())
    }

    /// Lets the ledger do what is due: serve waiting leases, expire, move away from what broke.
    ///
    /// A pool that has lost many boxes at once has much to do; others are heard in between.
    fn tick(&mut self, books: &mut Books, batch: &mut Batch) -> Result<(), Close> {
        for _ in 0..TICK_STEPS_MAX {
            let Some(chore) = books.chores.pop_front() else { break };
            revocation::perform(books, &chore);
            self.add(batch, books, None)?;
        }
        for _ in 0..TICK_STEPS_MAX {
            let Some(outcome) = books.ledger.tick(books.now_ms) else { break };
            for (key, value) in outcome.writes {
                books.staged.set(key, value);
            }
            self.add(batch, books, None)?;
        }
        Ok(())
    }

    /// Adds what the books have staged to a batch, committing the batch first if it would not fit.
    fn add(&mut self, batch: &mut Batch, books: &mut Books, job: Option<Box<dyn Job>>) -> Result<(), Close> {
        let staged = std::mem::take(&mut books.staged);
        let limits = self.leader.store.limits();
        let is_too_long = batch.staged.len_with(&staged) > limits.writes;
        let is_too_large = batch.staged.bytes_at_most() + staged.bytes_at_most() > limits.bytes;
        if (is_too_long || is_too_large)
            && !batch.staged.is_empty()
            && let Err(close) = self.commit(batch, &mut books.waiters)
        {
            refuse(job);
            return Err(close);
        }
        batch.staged.append(staged);
        batch.jobs.extend(job);
        Ok(())
    }

    /// Writes a batch, answers its jobs, and wakes the requests that wait for what has changed.
    fn commit(&mut self, batch: &mut Batch, waiters: &mut Waiters) -> Result<(), Close> {
        let Batch { staged, jobs } = std::mem::take(batch);
        let verdict = if staged.is_empty() { Ok(()) } else { self.write(&staged) };
        let told = match &verdict {
            Ok(()) => Ok(()),
            Err((_, problem)) => Err(problem.clone()),
        };
        jobs.into_iter().for_each(|job| job.deliver(told.clone()));
        verdict.map_err(|(close, _)| close)?;
        waiters.wake(staged.keys());
        Ok(())
    }

    fn write(&mut self, staged: &Staged) -> Result<(), (Close, Problem)> {
        let transaction = staged.transaction(self.leadership.condition());
        let began = Instant::now();
        loop {
            let outcome = self.leader.store.commit(&transaction);
            match outcome {
                Ok(Outcome::Committed { .. }) => {
                    self.leader.status.committed(staged.len(), began.elapsed());
                    return Ok(());
                }
                Ok(Outcome::Conflict { .. }) => {
                    tracing::warn!(
                        "the store refused a write because another manager leads; this manager follows it"
                    );
                    return Err((Close::Lost, Problem::not_leading(None)));
                }
                Err(error @ StoreError::Unavailable { .. }) if began.elapsed() < STORE_PATIENCE => {
                    tracing::debug!(
                        error = chain(&error),
                        "the store does not answer a write; the leader sends it again"
                    );
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => {
                    tracing::error!(
                        error = chain(&error),
                        "a write to the store failed; the leader reads the store again"
                    );
                    return Err((
                        self.after_failure(&error),
                        Problem::unavailable("the store did not answer"),
                    ));
                }
            }
        }
    }

    /// After a failed write the books in memory may differ from the store. `fence` makes sure that no earlier write
    /// of this leader can still arrive; then the books are read again.
    fn after_failure(&mut self, error: &StoreError) -> Close {
        if matches!(error, StoreError::LeadershipLost { .. }) {
            return Close::Lost;
        }
        let began = Instant::now();
        while self.elector.is_leading() || began.elapsed() < STORE_PATIENCE {
            match self.leader.store.fence(self.leadership) {
                Ok(leadership) => {
                    *self.leadership = leadership;
                    return Close::Reopen;
                }
                Err(StoreError::LeadershipLost { .. }) => return Close::Lost,
                Err(error) => {
                    tracing::debug!(
                        error = chain(&error),
                        "the leader cannot fence its earlier writes off; it asks the store again"
                    );
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        Close::Lost
    }

    fn compact(&self) {
        // Other processes read revisions that are seconds old; ten thousand revisions are minutes.
        let now = match self.leader.store.commit(&pool_store::Transaction::new()) {
            Ok(Outcome::Committed { revision }) => revision,
            _ => return,
        };
        let before = pool_store::Revision(now.0.saturating_sub(10_000));
        if let Err(error) = self.leader.store.compact(before) {
            tracing::debug!(
                error = chain(&error),
                "the store cannot forget old revisions; the leader asks again in five minutes"
            );
        }
    }
}

fn refuse(jobs: impl IntoIterator<Item = Box<dyn Job>>) {
    for job in jobs {
        job.deliver(Err(Problem::unavailable("the store did not answer")));
    }
}

/// An error with all its causes, for the log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
