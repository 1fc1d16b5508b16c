//! What a fresh session is told, step by step.
//!
//! ```text
//!   manifest ▸ its answers ▸ restore ▸ frames up to the first mark ▸ the mark again ▸ frames up to the second mark ▸ …
//! ```
//!
//! The resumer takes a step with [`Replay::step`], carries it out, and tells the replay what comes back. A mark is where
//! the program observed something: the frames behind it may depend on it, so they wait until it has happened again. It
//! stands where the observation was delivered, not where it was asked for: a wait of one thread that ended only because
//! of a later command of another thread would otherwise never end.

mod again;
mod verdict;

pub use verdict::{
    Awaited, DeferredVerdict, Difference, HostCallHeard, HostCallVerdict, Landing, Moved, PrintVerdict,
    PullVerdict, Verdict,
};

use crate::{
    frames::{FrameReader, Unreadable},
    host_data::HostBytes,
    images::Images,
    manifest::{Item, Items, Load, Told},
    mutant::{Mutant, is_planted},
    observation::{Mark, Observation},
    prints::Printed,
};
use cuda_wire::{ContextId, TransferId};
use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

/// What the resumer does next. A step is over when [`Replay::step`] is called again.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// Send these frames.
    Send(&'a [u8]),
    /// Have a module loaded.
    Load(&'a Load),
    /// Send the bytes of a push, within the new session's window. `None`: the journal never had them all, so they are
    /// still in the program's memory, and the push that waits there goes on.
    Push(TransferId, Option<Arc<[u8]>>),
    /// Put the image of this cut back.
    Restore(u64),
    /// Wait for this; what comes is told to the replay. The same step comes again until it has happened.
    Await(Awaited),
    /// Tell the worker that this host function has returned: what was sent while it ran has been sent again.
    Returned(u64),
    /// Everything that the program observed has happened again. What the client has gathered meanwhile goes out now. The
    /// client goes on asking the replay about pulls, host functions, text and landings until [`Replay::is_spent`], or until
    /// the next cut is taken: the worker may have done more before the loss than the program has observed.
    Done,
}

/// A replay under way. It holds what it needs: the journal goes on beside it.
#[derive(Debug)]
pub struct Replay {
    items: VecDeque<Item>,
    /// The step that was handed out last, kept for its borrow.
    load: Option<Load>,
    scratch: Vec<u8>,
    manifest_told: Vec<Option<Told>>,
    manifest_open: BTreeSet<u32>,
    cut: Option<u64>,
    is_in_manifest: bool,

    reader: FrameReader,
    pushes: VecDeque<TransferId>,
    gates: VecDeque<(u64, Awaited)>,

    /// What the program was told, by call.
    told: HashMap<u32, Told>,
    /// Calls that brought bytes of the device to the program.
    reads: HashSet<u32>,
    came: HashSet<u32>,
    /// What landed, by transfer, and whether the program can have looked at it since.
    landed: HashMap<TransferId, verdict::LandedBefore>,
    came_down: HashSet<TransferId>,
    host_calls: HashMap<u64, verdict::HostCallRuns>,
    /// Host functions that ran, that may have sent commands, and that the worker has asked for again: token and which run.
    /// They are answered where they returned.
    owed: BTreeSet<(u64, u32)>,
    host: HostBytes,
    images: Images,
    pulled: HashMap<TransferId, u64>,
    printed_before: Printed,
    printed_again: Printed,
    deferred: Vec<(ContextId, u32)>,
}

impl Replay {
    pub(crate) fn new(
        items: Items,
        base: Option<u64>,
        reader: FrameReader,
        marks: &VecDeque<Mark>,
        host: HostBytes,
        images: Images,
        printed: Printed,
    ) -> Self {
        let manifest_open = (1..=items.told.len() as u32).collect();
        let mut replay = Self {
            items: items.items.into(),
            load: None,
            scratch: Vec::new(),
            manifest_told: items.told,
            manifest_open,
            cut: base,
            is_in_manifest: true,
            reader,
            pushes: VecDeque::new(),
            gates: VecDeque::new(),
            told: HashMap::new(),
            reads: HashSet::new(),
            came: HashSet::new(),
            landed: HashMap::new(),
            came_down: HashSet::new(),
            host_calls: HashMap::new(),
            owed: BTreeSet::new(),
            host,
            images,
            pulled: HashMap::new(),
            printed_before: printed,
            printed_again: Printed::default(),
            deferred: Vec::new(),
        };
        // The program may have looked at everything that landed before something was delivered to it.
        let looks = |mark: &Mark| !matches!(mark.what, Observation::Landed { .. });
        let last_look = marks.iter().rposition(looks).unwrap_or(0);
        for (index, mark) in marks.iter().enumerate() {
            replay.take_mark(mark, index < last_look);
        }
        replay
    }

    /// The cut that this replay starts from: the image that must be restored. `None`: the session's start, without one.
    pub fn cut(&self) -> Option<u64> {
        self.cut
    }

    fn take_mark(&mut self, mark: &Mark, is_seen: bool) {
        match &mark.what {
            Observation::Reply { call, status, digest, variables } => {
                let told = Told { status: *status, digest: *digest, variables: Arc::clone(variables) };
                self.told.insert(*call, told);
                self.gates.push_back((mark.position, Awaited::Reply { call: *call }));
            }
            Observation::Landed { transfer, digest } => {
                let before = verdict::LandedBefore { digest: *digest, is_seen };
                self.landed.insert(*transfer, before);
                self.gates.push_back((mark.position, Awaited::Landed { transfer: *transfer }));
            }
            Observation::HostCallBegan { token, may_send } => {
                let runs = self.host_calls.entry(*token).or_default();
                runs.begun += 1;
                runs.may_send |= may_send;
                if *may_send {
                    let awaited = Awaited::HostCallBegan { token: *token, run: runs.begun };
                    self.gates.push_back((mark.position, awaited));
                }
            }
            Observation::HostCallRan { token } => {
                let runs = self.host_calls.entry(*token).or_default();
                runs.ran += 1;
                let awaited = Awaited::HostCall { token: *token, run: runs.ran };
                self.gates.push_back((mark.position, awaited));
            }
            Observation::Deferred { context, status } => self.deferred.push((*context, *status)),
        }
    }

    /// What to do next.
    pub fn step(&mut self) -> Result<Step<'_>, Unreadable> {
        if self.is_in_manifest {
            match self.items.pop_front() {
                Some(Item::Frame(frame)) => {
                    self.scratch = frame;
                    return Ok(Step::Send(&self.scratch));
                }
                Some(Item::Load(load)) => return Ok(Step::Load(self.load.insert(load))),
                None => {}
            }
            if let Some(&call) = self.manifest_open.first() {
                return Ok(Step::Await(Awaited::Reply { call }));
            }
            self.is_in_manifest = false;
            if let Some(cut) = self.cut {
                return Ok(Step::Restore(cut));
            }
        }
        if let Some(transfer) = self.pushes.pop_front() {
            return Ok(Step::Push(transfer, self.host.pushed.remove(&transfer)));
        }
        self.next_of_frames()
    }

    fn next_of_frames(&mut self) -> Result<Step<'_>, Unreadable> {
        loop {
            let position = self.reader.position();
            let gate = self.gates.front().copied();
            let mut limit = gate.map_or(u64::MAX, |(at, _)| at);
            // A mark behind frames that were announced and never handed over is due at the end.
            let is_last = self.reader.is_at_end();
            if let Some((_, awaited)) = gate.filter(|(at, _)| *at <= position || is_last) {
                if self.has_come(&awaited) {
                    self.gates.pop_front();
                    if let Awaited::HostCall { token, run } = awaited
                        && self.owed.remove(&(token, run))
                    {
                        return Ok(Step::Returned(token));
                    }
                    continue;
                }
                limit = self.gates.get(1).map_or(u64::MAX, |(at, _)| *at);
                let is_late = is_planted(Mutant::GateOneMarkTooLate) && position < limit;
                if !is_late || self.reader.is_at_end() {
                    return Ok(Step::Await(awaited));
                }
            }
            let from = position;
            let Some(treatment) = self.treat_up_to(limit)? else {
                // Either the frames are at their end, or plain ones were passed.
                if self.reader.position() == from {
                    return Ok(self.last_steps());
                }
                return Ok(Step::Send(self.reader.passed_since(from)));
            };
            return Ok(match treatment {
                Treatment::Skip => continue,
                Treatment::Rewritten => Step::Send(&self.scratch),
                Treatment::Load(load) => Step::Load(self.load.insert(*load)),
            });
        }
    }

    /// Pushes whose command had not been sent when the worker was lost; it goes out when the replay is done.
    fn last_steps(&mut self) -> Step<'_> {
        let left = self.host.pushed.keys().next().copied();
        let Some(transfer) = left.filter(|_| !is_planted(Mutant::UnsentPushForgotten)) else {
            return Step::Done;
        };
        Step::Push(transfer, self.host.pushed.remove(&transfer))
    }
}

/// What is done with a frame that is not sent as it was.
enum Treatment {
    Skip,
    /// It is in the scratch buffer.
    Rewritten,
    Load(Box<Load>),
}
