//! The thread that takes cuts, folds the journal behind them, and does what the keeper wants.

use super::{
    Link,
    cuts::cut_frame,
    planned,
    queue::HeldWire,
    survival::{Phase, Shared, Truncation},
};
use cuda_wire::Command;
use journal::{CutTurn, Trough};
use keeper::{FromProgram, State};
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the thread sleeps at most: a journal may fill up meanwhile.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// How soon a fold is tried again that waits for an answer to reach the program.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How often a thread that waits for a trough looks: a step of a training program has one of some milliseconds.
const LOOK_FOR_TROUGH: Duration = Duration::from_micros(500);
/// A worker keeps small transfers until the client hears something. A program that asks for nothing for this many looks is
/// helped: the thread asks for something itself.
const LOOKS_PER_NUDGE: u32 = 10;
/// The keeper hears about the protection at most this often.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Starts the thread. A link without images has it, too: the next session may be at a worker that keeps them.
pub(super) fn start(link: &Arc<Link>, shared: &Arc<Shared>) -> io::Result<()> {
    let (link, shared) = (Arc::clone(link), Arc::clone(shared));
    crate::threads::spawn("dxpu-guard", move || run(&link, &shared))
}

fn run(link: &Arc<Link>, shared: &Arc<Shared>) {
    let mut reports = Reports::default();
    let mut not_landed = 0;
    let mut troughs = Troughs { is_tight: shared.way().is_tight, under_way: None };
    loop {
        let phase = shared.core().phase;
        reports.tell(shared);
        if phase == Phase::Lost || (phase == Phase::Unprotected && shared.keeper().is_none()) {
            return;
        }
        if let Some(wish) = shared.keeper().and_then(|line| line.wish()) {
            planned::carry_out(link, shared, wish);
            continue;
        }
        let truncation = shared.truncate(true);
        not_landed = if truncation == Truncation::NotLanded { not_landed + 1 } else { 0 };
        let time = match truncation {
            Truncation::Done => continue,
            Truncation::NotLanded if not_landed % LOOKS_PER_NUDGE == 0 => {
                // The answer does not matter: the transfers that come with it do.
                let _ = link.call(&Command::MemoryInfo { device: 0 });
                LOOK_AGAIN
            }
            Truncation::Unanswered | Truncation::NotLanded => LOOK_AGAIN,
            Truncation::Nothing => match shared.turn() {
                CutTurn::Due if !troughs.is_here(link, shared) => LOOK_FOR_TROUGH,
                CutTurn::Due | CutTurn::Now => {
                    take_cut(link, shared);
                    troughs.end(link);
                    SLEEP_MAX
                }
                CutTurn::In(time) => time.min(SLEEP_MAX),
                CutTurn::Rest => SLEEP_MAX,
            },
        };
        shared.sleep_while(time, |core| {
            let is_due = core.cuts.under_way.as_ref().is_some_and(|cut| cut.is_due(shared.now()));
            core.phase == phase && (!is_due || time == LOOK_AGAIN)
        });
    }
}

/// Sends the next cut between two commands of the program.
fn take_cut(link: &Link, shared: &Shared) -> Option<u64> {
    let mut wire = link.queue.hold();
    let number = send_cut(link, shared, &mut wire);
    // With a keeper of frames no write fails.
    let _ = wire.let_go();
    number
}

/// Sends the next cut on a wire that is held. `None`: none can be sent now.
pub(super) fn send_cut(link: &Link, shared: &Shared, wire: &mut HeldWire<'_>) -> Option<u64> {
    let (number, session) = (shared.next_cut(), wire.number());
    let mut dead = Vec::new();
    match link.pools.get().filter(|_| shared.way().is_tight) {
        Some(pools) => pools.while_still(&mut |free| {
            wire.divide();
            dead = free;
        }),
        None => wire.divide(),
    }
    wire.send_marked(cut_frame(number, dead), || shared.note_cut(number, session)).then_some(number)
}

/// Waits for places where little of the program's memory lives.
struct Troughs {
    is_tight: bool,
    under_way: Option<Trough>,
}

impl Troughs {
    /// Whether a cut that is due is taken now.
    fn is_here(&mut self, link: &Link, shared: &Shared) -> bool {
        let Some(pools) = link.pools.get().filter(|_| self.is_tight) else { return true };
        let (now, (live, lowest)) = (shared.now(), pools.used(false));
        self.under_way.get_or_insert_with(|| Trough::begin(now, lowest)).is_here(now, live)
    }

    /// A cut was taken: the next one is compared with what comes from now on.
    fn end(&mut self, link: &Link) {
        self.under_way = None;
        if let Some(pools) = link.pools.get().filter(|_| self.is_tight) {
            pools.used(true);
        }
    }
}

/// What the keeper was told last.
#[derive(Default)]
struct Reports {
    last: Option<(Instant, FromProgram)>,
}

impl Reports {
    /// Tells the keeper about the protection, if it changed.
    fn tell(&mut self, shared: &Shared) {
        if shared.keeper().is_none() {
            return;
        }
        let report = shared.report();
        let is_other = self.last.as_ref().is_some_and(|(_, last)| state(last) != state(&report));
        let is_early = self.last.as_ref().is_some_and(|(at, _)| at.elapsed() < REPORT_EVERY);
        // A loss of protection is told at once.
        if is_early && !is_other {
            return;
        }
        if self.last.as_ref().is_none_or(|(_, last)| is_news(last, &report)) {
            shared.tell_keeper(&report);
            self.last = Some((Instant::now(), report));
        }
    }
}

fn state(word: &FromProgram) -> Option<State> {
    match word {
        FromProgram::Protection { state, .. } => Some(*state),
        _ => None,
    }
}

/// Whether more has changed than the clock.
fn is_news(last: &FromProgram, report: &FromProgram) -> bool {
    let essence = |word: &FromProgram| match word {
        FromProgram::Protection { state, why, cut, level, .. } => Some((*state, why.clone(), *cut, *level)),
        _ => None,
    };
    essence(last) != essence(report)
}
