//! What the keeper wants of a program: that it moves, lets go of its GPU for a while, or holds a drill (`drill`).
//!
//! ```text
//!   a cut (the bulk of the bytes), brought to where the program goes (`ahead`) ▸ commands are held back
//!     ▸ a last cut, behind which there is nothing ▸ Leave ▸ another session, there; or none until the next command
//! ```
//!
//! Until `Leave` nothing is lost: what fails is refused, and the program goes on where it is. Afterwards the program goes
//! on at the target, at the source, or wherever a session can be had, as after a loss.

use super::{
    Link, NUDGE_CALL,
    ahead::Ahead,
    drill,
    guard::frame,
    guard_thread::send_cut,
    keeper_line::{Answer, Wish},
    places::{Place, Search},
    queue::HeldWire,
    resume,
    survival::{Phase, Shared, Truncation},
};
use crate::log;
use cuda_wire::Command;
use keeper::{FromProgram, What};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A command that has an answer and changes nothing.
const SOMETHING: Command<'static> = Command::MemoryInfo { device: 0 };
/// How long the first cut may take, beside which the program goes on: a large image over a slow network.
const FIRST_CUT_MAX: Duration = Duration::from_secs(600);
/// How long the last cut may take, while the program's commands wait.
const LAST_CUT_MAX: Duration = Duration::from_secs(30);
/// How often a cut is tried that the worker gives up, because the program's streams did not meet in time: the next moment may be
/// a better one. In between the program works for twice as long each time.
const CUT_TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How often the thread looks at a cut, or at a parked program.
const LOOK: Duration = Duration::from_millis(5);

/// Does what the keeper wants, and tells it what became of it.
pub(super) fn carry_out(link: &Arc<Link>, shared: &Arc<Shared>, wish: Wish) {
    let refused = |what, why| shared.tell_keeper(&FromProgram::Refused { what, why });
    match wish {
        Wish::Move(place) => {
            let config = shared.core().place.config.clone();
            let moved = Place::named(&place, &config).and_then(|target| move_to(link, shared, target));
            match moved {
                Ok(worker) => shared.tell_keeper(&FromProgram::Moved { worker }),
                Err(why) => refused(What::Move, why),
            }
        }
        Wish::Suspend => {
            if let Err(why) = suspend(link, shared) {
                refused(What::Suspend, why);
            }
        }
        Wish::Drill(place) => {
            let config = shared.core().place.config.clone();
            match Place::named(&place, &config) {
                Ok(place) => drill::start(link, shared, place),
                Err(why) => refused(What::Drill, why),
            }
        }
    }
}

/// Moves to `target`. The error says why the program is elsewhere, or where it was.
fn move_to(link: &Arc<Link>, shared: &Arc<Shared>, target: Place) -> Result<String, String> {
    let mut ahead = Ahead::new(shared, &target);
    let wire = stop(link, shared, || ahead.bring(shared))?;
    ahead.end();
    let address = target.address.clone();
    leave(link, shared, wire, |shared, wire| {
        let mut search = shared.search(Some(target));
        let went_on = resume::go_on(link, shared, wire, &mut search)?;
        match went_on == address {
            true => Ok(address.to_string()),
            false => Err(format!("{}; the program goes on at {went_on}", search.last_why())),
        }
    })
}

/// Ends the session and waits until the program wants another one.
fn suspend(link: &Arc<Link>, shared: &Arc<Shared>) -> Result<(), String> {
    if shared.core().cuts.guard.is_none() {
        return Err("the worker keeps no images, so the GPU's memory would be lost".to_owned());
    }
    let wire = stop(link, shared, || false)?;
    leave(link, shared, wire, |shared, wire| {
        let image_bytes = shared.core().cuts.image_bytes;
        log::info("the program has let go of its GPU until its next CUDA call");
        shared.tell_keeper(&FromProgram::Parked { image_bytes });
        while !is_wanted(link, shared, &wire) {
            std::thread::sleep(LOOK);
        }
        let answer = shared.keeper().and_then(|line| line.ask(&FromProgram::Unpark {}, None));
        let mut search = match answer {
            Some(Answer::Place(place)) => {
                let config = shared.core().place.config.clone();
                match Place::named(&place, &config) {
                    Ok(place) => shared.search(Some(place)),
                    Err(why) => Search::new(Vec::new(), true, why),
                }
            }
            Some(Answer::Nowhere(why)) => Search::new(Vec::new(), false, why),
            None => shared.search(None),
        };
        // Its words were told: the keeper waits for no refusal any more.
        let _ = resume::go_on(link, shared, wire, &mut search);
        Ok(())
    })
}

/// Whether a program without a session waits for something that only a session brings.
fn is_wanted(link: &Link, shared: &Shared, wire: &HeldWire<'_>) -> bool {
    wire.has_gathered()
        || link.replies.are_awaited()
        || link.host_calls_left()
        || !shared.expectations().names().is_empty()
        || !shared.core().late_pushes.is_empty()
}

/// Holds the program's commands back with nothing behind the last safe cut. `bring_ahead` has the image brought to where the
/// program goes, while it still works here; false: there is no such place, or no way.
fn stop<'a>(
    link: &'a Link,
    shared: &Shared,
    mut bring_ahead: impl FnMut() -> bool,
) -> Result<HeldWire<'a>, String> {
    let is_guarded = {
        let core = shared.core();
        if core.phase != Phase::Live {
            return Err("the program is without a session, or without protection".to_owned());
        }
        core.cuts.guard.is_some()
    };
    if !is_guarded {
        // Everything since the start is done again at the target.
        return Ok(link.queue.hold());
    }
    cut_while_it_works(link, shared)?;
    // What changed while the bulk was on its way goes ahead, too, so that little is left for the time without commands.
    if bring_ahead() {
        cut_while_it_works(link, shared)?;
        bring_ahead();
    }
    tried_again(|| last_cut(link, shared))
}

/// Why a cut is not what the journal begins with.
enum Unfinished {
    /// The worker gave it up, in words.
    GivenUp(String),
    /// Another one would not fare better.
    Failed(String),
}

/// Does something with a cut again while the worker gives the cut up.
fn tried_again<T>(mut cut: impl FnMut() -> Result<T, Unfinished>) -> Result<T, String> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..CUT_TRIES {
        match cut() {
            Ok(done) => return Ok(done),
            Err(Unfinished::Failed(why)) => return Err(why),
            Err(Unfinished::GivenUp(_)) => std::thread::sleep(pause),
        }
        pause *= 2;
    }
    cut().map_err(|(Unfinished::GivenUp(why) | Unfinished::Failed(why))| why)
}

/// Holds commands back and takes the cut behind which there is nothing.
fn last_cut<'a>(link: &'a Link, shared: &Shared) -> Result<HeldWire<'a>, Unfinished> {
    let mut wire = link.queue.hold();
    let last = send_cut(link, shared, &mut wire)
        .ok_or_else(|| Unfinished::Failed("the session was lost".to_owned()));
    let finished = last.and_then(|last| {
        // The queue is held, so the question goes past it. It changes nothing, so no other session is told it.
        let nudge = || {
            link.replies.expect(NUDGE_CALL);
            wire.send_past_the_journal(&frame(&SOMETHING, NUDGE_CALL));
            let _ = link.replies.wait(NUDGE_CALL);
            link.replies.forget(NUDGE_CALL);
        };
        finish_cut(shared, Some(last), Instant::now() + LAST_CUT_MAX, nudge)
    });
    match finished {
        Ok(()) => Ok(wire),
        Err(why) => {
            let _ = wire.let_go();
            Err(why)
        }
    }
}

/// Takes a cut beside the program and waits until it is safe.
fn cut_while_it_works(link: &Link, shared: &Shared) -> Result<(), String> {
    let deadline = Instant::now() + FIRST_CUT_MAX;
    tried_again(|| first_cut(link, shared, deadline))
}

fn first_cut(link: &Link, shared: &Shared, deadline: Instant) -> Result<(), Unfinished> {
    let number = loop {
        let mut wire = link.queue.hold();
        let number = send_cut(link, shared, &mut wire);
        let _ = wire.let_go();
        if let Some(number) = number {
            break number;
        }
        // Another one is under way.
        finish_cut(shared, None, deadline, || drop(link.call(&SOMETHING)))?;
    };
    finish_cut(shared, Some(number), deadline, || drop(link.call(&SOMETHING)))
}

/// Waits until no cut is under way, and says whether the journal begins with `number`, if that is asked. `nudge` makes the
/// worker speak, which sends the transfers that it keeps until then.
fn finish_cut(
    shared: &Shared,
    number: Option<u64>,
    deadline: Instant,
    mut nudge: impl FnMut(),
) -> Result<(), Unfinished> {
    let failed = |why: &str| Err(Unfinished::Failed(why.to_owned()));
    loop {
        // Commands wait, so the second copy is not awaited.
        let truncation = shared.truncate(false);
        let core = shared.core();
        if core.phase != Phase::Live {
            return failed("the session was lost");
        }
        if core.cuts.under_way.is_none() {
            return match number.is_none_or(|number| core.journal.base() == Some(number)) {
                true => Ok(()),
                false => Err(Unfinished::GivenUp(core.cuts.why_given_up.clone())),
            };
        }
        drop(core);
        if Instant::now() >= deadline {
            return failed("the image was not safe in time");
        }
        match truncation {
            Truncation::Done => {}
            Truncation::NotLanded => {
                nudge();
                shared.sleep(LOOK);
            }
            Truncation::Unanswered | Truncation::Nothing => shared.sleep(LOOK),
        }
    }
}

/// Ends the session with its image kept, and has `go_on` find another one.
fn leave<'a, T>(
    link: &'a Arc<Link>,
    shared: &Arc<Shared>,
    mut wire: HeldWire<'a>,
    go_on: impl FnOnce(&Arc<Shared>, HeldWire<'a>) -> Result<T, String>,
) -> Result<T, String> {
    let number = wire.number();
    {
        let mut core = shared.core();
        if core.phase != Phase::Live || core.number != number {
            drop(core);
            let _ = wire.let_go();
            return Err("the session was lost".to_owned());
        }
        core.end_session();
        core.why_lost = "the program was asked to leave its worker".to_owned();
    }
    shared.tell();
    wire.send_past_the_journal(&frame(&Command::Leave {}, 0));
    link.leave_session(number);
    go_on(shared, wire)
}

#[cfg(test)]
mod tests {
    use super::{CUT_TRIES, Unfinished, tried_again};

    #[test]
    fn a_cut_that_is_given_up_is_tried_again_and_one_that_fails_is_not() {
        let given_up = || Unfinished::GivenUp("streams did not meet in time".to_owned());
        let mut tries = 0;
        let third = tried_again(|| {
            tries += 1;
            if tries < 3 { Err(given_up()) } else { Ok(tries) }
        });
        assert_eq!(third, Ok(3));
        let mut tries = 0;
        let never = tried_again(|| -> Result<(), _> {
            tries += 1;
            Err(given_up())
        });
        assert_eq!((never, tries), (Err("streams did not meet in time".to_owned()), CUT_TRIES));
        let mut tries = 0;
        let lost = tried_again(|| -> Result<(), _> {
            tries += 1;
            Err(Unfinished::Failed("the session was lost".to_owned()))
        });
        assert_eq!((lost, tries), (Err("the session was lost".to_owned()), 1));
    }
}
