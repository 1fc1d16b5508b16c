//! What comes back during a replay, compared with what the program saw.

use super::Replay;
use crate::{
    calls::OUT_OF_MEMORY,
    digest::Digest,
    host_data::{Served, Serving},
    manifest::Told,
    mutant::{Mutant, is_planted},
};
use cuda_wire::{ContextId, TransferId, VariableInfo};
use std::sync::Arc;
use thiserror::Error;

/// What a replay waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The reply to a call.
    Reply {
        /// Which. While the manifest is told these are numbers of the manifest's own, from 1 on: they may be numbers that
        /// threads of the program wait for, too, and must not reach them.
        call: u32,
    },
    /// All bytes of a transfer to the host.
    Landed {
        /// Which.
        transfer: TransferId,
    },
    /// The worker asks for a host function again that may have sent commands while it ran.
    HostCallBegan {
        /// Which.
        token: u64,
        /// Which of its runs, from 1 on.
        run: u32,
    },
    /// The worker asks for a host function again.
    HostCall {
        /// Which.
        token: u64,
        /// For the how-manieth time since the cut.
        run: u32,
    },
}

/// How something that came compares with what the program saw.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is the same, and the program has it already.
    Same,
    /// It is the same, except that variables of the module lie elsewhere.
    Moved(Vec<Moved>),
    /// It is not the same: the program acted on something that did not happen this time.
    Differs(Difference),
    /// The program has not seen it yet: it is delivered now, and observed in the journal as ever.
    New,
}

/// A variable of a module that lies at another address than the program was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its name.
    pub name: String,
    /// Where the program was told that it lies.
    pub from: u64,
    /// Where it lies now.
    pub to: u64,
}

/// What is different this time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Difference {
    /// The status of a call.
    #[error("call {call} returned {was} before the loss and returns {is} now")]
    Status {
        /// Which call.
        call: u32,
        /// `CUresult` before.
        was: u32,
        /// `CUresult` now.
        is: u32,
    },
    /// The bytes that a call returned.
    #[error("call {call} returns other bytes than before the loss")]
    Body {
        /// Which call.
        call: u32,
    },
    /// The places of a module's variables. Another session of the same worker may have them where they were.
    #[error("variables of a module lie elsewhere than before the loss (call {call})")]
    Places {
        /// Which call.
        call: u32,
    },
    /// Memory that the program was given without a wait. It may be there a moment later: the lost session may still have it.
    #[error("the worker has not enough free memory for what the program had")]
    Memory,
    /// The bytes of a transfer to the host.
    #[error("{transfer} brings other bytes than before the loss")]
    Bytes {
        /// Which transfer.
        transfer: TransferId,
    },
}

impl Difference {
    /// Whether the new session only lacks memory just now.
    pub fn lacks_memory(&self) -> bool {
        matches!(self, Self::Memory | Self::Status { was: 0, is: OUT_OF_MEMORY, .. })
    }
}

/// What an error of one-way work, which came with a reply, means for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferredVerdict {
    /// The program has it already, or the manifest made it.
    Known,
    /// The program hears of it.
    New,
    /// An allocation that the program counts on did not succeed this time: what follows would not be a run of this program.
    NoMemory,
}

/// Where the bytes of a transfer to the host go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The program has them and may have used them: they are digested and thrown away.
    Compare,
    /// Into the program's memory.
    Write,
}

/// What is done when the worker asks for a host function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostCallHeard {
    /// [`Replay::host_call_asked`] decides when the thread that runs host functions has come to it.
    Queue,
    /// It ran: the worker is told at once.
    Answer,
    /// It ran, and commands may have been sent meanwhile: the replay answers where it returned, by `Step::Returned`.
    Owed,
}

/// What is done when the worker asks for a host function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCallVerdict {
    /// It ran before the loss: the worker is told so at once.
    AlreadyRan,
    /// It was running when the replay began: the worker is told when it returns, or at once if it has returned since. A
    /// worker is never told about a function that it has not asked for.
    StillRunning,
    /// It has not run: it runs now.
    Run,
}

/// Where the bytes of a pull come from.
#[derive(Clone, Debug, PartialEq)]
pub enum PullVerdict {
    /// The worker got these before the loss.
    Kept(Arc<[u8]>),
    /// They were on their way when the worker was lost: from the program's memory, and kept under this name.
    Again(Serving),
    /// The worker was told that they are gone, and is told so again.
    Refused,
    /// This serving is new: [`crate::Journal::serving_began`], as ever.
    New,
}

/// What is done with text of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrintVerdict {
    /// The program printed so many of the first bytes before the loss: they are dropped.
    pub drop: usize,
    /// The dropped text, which is complete now, is not the text that was printed before the loss.
    pub differs: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LandedBefore {
    pub(super) digest: Digest,
    /// Something was delivered to the program afterwards.
    pub(super) is_seen: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostCallRuns {
    pub(super) begun: u32,
    pub(super) ran: u32,
    /// How often the new worker has asked.
    pub(super) asked: u32,
    /// The same as soon as it is heard.
    pub(super) heard: u32,
    /// Whether commands may have been sent because of what one of its runs did.
    pub(super) may_send: bool,
}

impl Replay {
    /// Whether what a mark stands for has happened again.
    pub(super) fn has_come(&self, awaited: &Awaited) -> bool {
        match awaited {
            Awaited::Reply { call } => self.came.contains(call),
            // Bytes that the program has not looked at order nothing.
            Awaited::Landed { transfer } => {
                self.came_down.contains(transfer)
                    || self.landed.get(transfer).is_none_or(|landed| !landed.is_seen)
            }
            Awaited::HostCall { token, run } | Awaited::HostCallBegan { token, run } => {
                self.host_calls.get(token).is_none_or(|runs| runs.asked.max(runs.heard) >= *run)
            }
        }
    }

    /// Whether all that the old worker asked for or printed since the cut has been asked for or printed again: from then on
    /// the client needs this replay no more.
    pub fn is_spent(&self) -> bool {
        let asked = |transfer| self.pulled.get(transfer).copied().unwrap_or(0);
        self.printed_again.bytes == self.printed_before.bytes
            && self.owed.is_empty()
            && self.host_calls.values().all(|runs| runs.asked >= runs.begun.max(runs.ran))
            && self.host.pulled.iter().all(|(transfer, kept)| asked(transfer) >= kept.len() as u64)
    }

    /// A reply came.
    pub fn reply_came(&mut self, call: u32, status: u32, body: &[u8]) -> Verdict {
        if self.is_in_manifest {
            self.manifest_open.remove(&call);
            let told =
                (call as usize).checked_sub(1).and_then(|index| self.manifest_told.get(index)?.as_ref());
            let nothing_told = Told { status: 0, digest: Digest::of_body(&[]), variables: Arc::from([]) };
            return match told {
                Some(told) => compare(call, told, status, body),
                None if status == 0 => Verdict::Same,
                None => compare(call, &nothing_told, status, body),
            };
        }
        self.came.insert(call);
        match self.told.get(&call) {
            Some(told) => compare(call, told, status, body),
            None => Verdict::New,
        }
    }

    /// Whether only bytes that the program's kernels made are different. Anything else means that the new session is not as
    /// the lost one was, and what follows would not be a run of this program.
    pub fn is_of_results(&self, difference: &Difference) -> bool {
        match difference {
            Difference::Bytes { .. } => true,
            Difference::Body { call } => !self.is_in_manifest && self.reads.contains(call),
            Difference::Status { .. } | Difference::Places { .. } | Difference::Memory => false,
        }
    }

    /// Where the bytes of a transfer go. Asked before the first of them.
    pub fn landing(&self, transfer: TransferId) -> Landing {
        match self.landed.get(&transfer) {
            Some(landed) if landed.is_seen => Landing::Compare,
            _ => Landing::Write,
        }
    }

    /// The last byte of a transfer came. For a transfer that the caller has written ([`Landing::Write`]) a difference means
    /// nothing: the program has not looked. The caller notes it as observed once more.
    pub fn landed_again(&mut self, transfer: TransferId, digest: Digest) -> Verdict {
        self.came_down.insert(transfer);
        match self.landed.get(&transfer) {
            Some(landed) if landed.digest == digest => Verdict::Same,
            Some(_) => Verdict::Differs(Difference::Bytes { transfer }),
            None => Verdict::New,
        }
    }

    /// The worker asks for a host function, and the thread that runs them has not come to it yet. It may be in a function that
    /// waits for this replay.
    pub fn host_call_heard(&mut self, token: u64) -> HostCallHeard {
        let runs = self.host_calls.entry(token).or_default();
        runs.heard += 1;
        if runs.heard > runs.ran || is_planted(Mutant::HostFunctionTwice) {
            return HostCallHeard::Queue;
        }
        runs.asked += 1;
        // A worker that waits for a whole context may wait for functions that were launched after that wait: in the first run
        // they came later. So only those wait for their turn that must.
        if !runs.may_send {
            return HostCallHeard::Answer;
        }
        let run = runs.heard;
        self.owed.insert((token, run));
        HostCallHeard::Owed
    }

    /// The worker asks for a host function.
    pub fn host_call_asked(&mut self, token: u64) -> HostCallVerdict {
        let runs = self.host_calls.entry(token).or_default();
        runs.asked += 1;
        if is_planted(Mutant::HostFunctionTwice) {
            HostCallVerdict::Run
        } else if runs.asked <= runs.ran {
            HostCallVerdict::AlreadyRan
        } else if runs.asked <= runs.begun {
            HostCallVerdict::StillRunning
        } else {
            HostCallVerdict::Run
        }
    }

    /// The worker asks for a transfer.
    pub fn pull_asked(&mut self, transfer: TransferId) -> PullVerdict {
        let asked = self.pulled.entry(transfer).or_default();
        let index = *asked;
        *asked += 1;
        let kept = self.host.pulled.get(&transfer).and_then(|kept| kept.get(usize::try_from(index).ok()?));
        match kept {
            None => PullVerdict::New,
            Some(_) if is_planted(Mutant::PullFromThePresent) => PullVerdict::New,
            Some(kept) => match &kept.served {
                Served::Begun => PullVerdict::Again(kept.name(transfer)),
                Served::Bytes(bytes) => PullVerdict::Kept(Arc::clone(bytes)),
                Served::Refused => PullVerdict::Refused,
            },
        }
    }

    /// Text of the device came.
    pub fn printed(&mut self, text: &[u8]) -> PrintVerdict {
        if is_planted(Mutant::TextTwice) {
            return PrintVerdict { drop: 0, differs: false };
        }
        let left = self.printed_before.bytes - self.printed_again.bytes;
        let drop = usize::try_from(left).unwrap_or(usize::MAX).min(text.len());
        self.printed_again.add(&text[..drop]);
        let is_complete = drop > 0 && self.printed_again.bytes == self.printed_before.bytes;
        let differs = is_complete && self.printed_again.digest() != self.printed_before.digest();
        PrintVerdict { drop, differs }
    }

    /// An error of one-way work came with a reply.
    ///
    /// A client allocates without a wait only what its worker has set aside for it, so the program itself never hears that this
    /// failed. The new session has set aside less, and the lost one may still have its memory.
    pub fn deferred(&mut self, context: ContextId, status: u32) -> DeferredVerdict {
        let before = self.deferred.iter().position(|known| *known == (context, status));
        match before.filter(|_| !self.is_in_manifest) {
            Some(place) => {
                self.deferred.swap_remove(place);
                DeferredVerdict::Known
            }
            None if status == OUT_OF_MEMORY => DeferredVerdict::NoMemory,
            None if self.is_in_manifest => DeferredVerdict::Known,
            None => DeferredVerdict::New,
        }
    }
}

fn compare(call: u32, told: &Told, status: u32, body: &[u8]) -> Verdict {
    if status != told.status {
        return Verdict::Differs(Difference::Status { call, was: told.status, is: status });
    }
    let (digest, variables) = match told.variables.is_empty() && Digest::of_body(body) == told.digest {
        true => return Verdict::Same,
        // Either a module, or a difference: the digest of what is no module is that of its bytes.
        false => Digest::of_module(body),
    };
    if digest != told.digest {
        return Verdict::Differs(Difference::Body { call });
    }
    let moved = moved(&told.variables, &variables);
    if moved.is_empty() { Verdict::Same } else { Verdict::Moved(moved) }
}

/// The digests are equal, so both lists have the same names in the same order.
fn moved(before: &[VariableInfo], now: &[VariableInfo]) -> Vec<Moved> {
    let pairs = before.iter().zip(now).filter(|(before, now)| before.address != now.address);
    pairs
        .map(|(before, now)| Moved { name: before.name.clone(), from: before.address, to: now.address })
        .collect()
}
