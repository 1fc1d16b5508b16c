//! The journal: what has been sent and seen since the last safe cut.

use crate::{
    fold_aside::{Fold, Folded},
    frames::{Frames, Unreadable},
    host_data::{HostBytes, Served, Serving},
    images::{ImageHash, Images},
    manifest::{Manifest, Told},
    mutant::{Mutant, is_planted},
    observation::{Mark, Observation},
    prints::Printed,
    replay::Replay,
};
use cuda_wire::TransferId;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};
use thiserror::Error;

/// The commands sent to one worker since the last safe cut, the host's bytes they used, and what the program observed.
///
/// Who calls what, and when:
///
/// | the client | calls |
/// |---|---|
/// | is about to write a buffer of frames | [`Journal::sent`]; or [`Journal::announce`], and `sent` afterwards |
/// | returns a reply, has landed a transfer, ran a host function | [`Journal::observed`], before the program can act on it |
/// | reads a notice `Print` | [`Journal::printed`] |
/// | reads a notice `Pull` | [`Journal::serving_began`], then [`Journal::host_data`] before the last byte goes out |
/// | pushes a transfer | [`Journal::pushed`], before the last byte goes out |
/// | has sent the frame of a cut | [`Journal::cut_sent`] |
/// | reads the notice that a cut was taken | [`Journal::cut_taken`], on the thread that reads notices |
/// | knows that the image of a cut is safe | [`Journal::cut_safe`], when the chunks counted in the notice have landed |
/// | has lost the worker | [`Journal::cut_abandoned`] for a cut in flight, then [`Journal::replay`] |
///
/// The worker must say that a cut was taken before it lets its streams go on: prints, pulls and host functions are divided
/// into before and after the cut by their order among the notices.
#[derive(Debug)]
pub struct Journal {
    budget_bytes: u64,
    frames: Frames,
    /// Bytes of frames that are being written and are not in `frames` yet.
    announced_bytes: u64,
    marks: VecDeque<Mark>,
    host: HostBytes,
    images: Images,
    manifest: Manifest,
    /// The cut that the manifest and the first frame belong to.
    base: Option<u64>,
    /// Cuts that are neither safe nor abandoned, by position.
    cuts: VecDeque<Cut>,
    /// How many cuts have been taken.
    epoch: u64,
    /// How often something was observed, since the start.
    observations: u64,
    /// Text since the base.
    printed: Printed,
}

#[derive(Debug)]
struct Cut {
    number: u64,
    /// Behind its frame.
    position: u64,
    taken: Option<Taken>,
    /// The call before it that had no answer when it was looked at last: looking at all of them again takes long.
    unanswered: Option<u32>,
}

#[derive(Debug)]
struct Taken {
    /// What was observed on the notices' connection since then has this epoch or a later one.
    epoch: u64,
    /// Text since then.
    printed: Printed,
}

/// What a truncation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// Bytes of frames that were folded.
    pub frame_bytes: u64,
}

/// Why a safe cut cannot be used yet, or at all. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CutRefused {
    /// No such cut is under way: it is over, was abandoned, or never sent.
    #[error("cut {0} is not under way")]
    Unknown(u64),
    /// [`Journal::cut_taken`] has not been called.
    #[error("the worker has not said that cut {0} was taken")]
    NotTaken(u64),
    /// A call that was sent before the cut has no answer yet. The caller tries again after the next reply. Until then only
    /// the older image together with this journal brings the answer back.
    #[error("call {call}, which was sent before cut {number}, has no answer yet")]
    Unanswered {
        /// The cut.
        number: u64,
        /// The first call without an answer.
        call: u32,
    },
    /// A transfer that was asked for before the cut has not landed yet. The caller tries again when it has.
    #[error("{transfer}, which was asked for before cut {number}, has not landed yet")]
    NotLanded {
        /// The cut.
        number: u64,
        /// The transfer.
        transfer: TransferId,
    },
    /// The frames make no sense: no replay is possible any more.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl Journal {
    /// An empty journal of a new session.
    pub fn new(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            frames: Frames::default(),
            announced_bytes: 0,
            marks: VecDeque::new(),
            host: HostBytes::default(),
            images: Images::default(),
            manifest: Manifest::default(),
            base: None,
            cuts: VecDeque::new(),
            epoch: 0,
            observations: 0,
            printed: Printed::default(),
        }
    }

    /// This many bytes of frames are about to be written; [`Journal::sent`] follows when they are. What the program
    /// observes in between may come of them, so its mark stands behind them. A client that calls [`Journal::sent`] before
    /// it writes needs no announcement.
    pub fn announce(&mut self, bytes: usize) {
        self.announced_bytes = bytes as u64;
    }

    /// Takes over a buffer of whole command frames that was announced and written to the worker, or is about to be written,
    /// and gives back an empty buffer to use next. Frames of a write that failed are handed over, too: the next session gets
    /// them.
    pub fn sent(&mut self, frames: Vec<u8>) -> Vec<u8> {
        self.announced_bytes = 0;
        self.frames.sent(frames)
    }

    /// Bytes of frames since the session's start, announced ones included.
    pub fn position(&self) -> u64 {
        self.frames.end() + self.announced_bytes
    }

    /// The program is given something at the present position.
    pub fn observed(&mut self, what: Observation) {
        let is_early = is_planted(Mutant::AnnouncementIgnored);
        let mut position = if is_early { self.frames.end() } else { self.position() };
        if let Observation::Reply { call, .. } = what
            && is_planted(Mutant::MarkAtTheAskingPosition)
        {
            position = self.asking_position(call);
        }
        self.marks.push_back(Mark { position, epoch: self.epoch, what });
        self.observations += 1;
    }

    /// How often something was observed, since the start.
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// The program's standard output is given text of the device.
    pub fn printed(&mut self, text: &[u8]) {
        self.printed.add(text);
        for cut in &mut self.cuts {
            if let Some(taken) = &mut cut.taken {
                taken.printed.add(text);
            }
        }
    }

    /// Keeps the bytes of a push.
    pub fn pushed(&mut self, transfer: TransferId, bytes: Arc<[u8]>) {
        self.host.push(transfer, bytes);
    }

    /// The worker asks for a transfer. Called in the order of the notices.
    pub fn serving_began(&mut self, transfer: TransferId) -> Serving {
        self.host.begin(transfer, self.epoch)
    }

    /// Keeps the bytes of a serving.
    pub fn host_data(&mut self, serving: Serving, bytes: Arc<[u8]>) {
        self.host.end(serving, Served::Bytes(bytes));
    }

    /// The worker is told that the memory of a serving is gone.
    pub fn serving_refused(&mut self, serving: Serving) {
        self.host.end(serving, Served::Refused);
    }

    /// Keeps an image that the client holds anyway, so that a load by its hash can be repeated at a worker that does not
    /// know it. Without it the journal copies the image out of the frame that sent it.
    pub fn image(&mut self, hash: ImageHash, bytes: Arc<[u8]>) {
        self.images.share(hash, bytes);
    }

    /// Whether there is an image of this hash.
    pub fn has_image(&self, hash: &ImageHash) -> bool {
        self.images.get(hash).is_some()
    }

    /// Memory of frames, marks and host data.
    pub fn bytes_held(&self) -> u64 {
        let marks = (self.marks.capacity() * size_of::<Mark>()) as u64;
        self.frames.held_bytes() + marks + self.host.bytes() + self.images.copied_bytes()
    }

    /// Whether the journal is over its budget. The caller then drops the protection and says so, or waits for a cut.
    pub fn is_full(&self) -> bool {
        self.bytes_held() > self.budget_bytes
    }

    /// The budget.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// The command of this cut is the last frame that was sent.
    pub fn cut_sent(&mut self, number: u64) {
        self.cuts.push_back(Cut { number, position: self.position(), taken: None, unanswered: None });
    }

    /// The worker has taken the cut: what its notices say from here on happened behind it.
    pub fn cut_taken(&mut self, number: u64) {
        let Some(cut) = self.cuts.iter_mut().find(|cut| cut.number == number) else { return };
        if cut.taken.is_none() {
            self.epoch += 1;
            cut.taken = Some(Taken { epoch: self.epoch, printed: Printed::default() });
        }
    }

    /// The image of the cut is safe: what lies before it is folded into the manifest.
    pub fn cut_safe(&mut self, number: u64) -> Result<Truncated, CutRefused> {
        let folded = self.begin_fold(number, HashSet::new())?.run();
        self.end_fold(folded)
    }

    /// The first third of [`Journal::cut_safe`], for a client that folds beside its other threads: what is to be folded.
    /// The second is [`Fold::run`], without this journal, and the last one [`Journal::end_fold`]. `expected` has all
    /// transfers that have not landed: if one of them was asked for before the cut, the fold refuses.
    pub fn begin_fold(&self, number: u64, expected: HashSet<TransferId>) -> Result<Fold, CutRefused> {
        let cut = self.cuts.iter().find(|cut| cut.number == number).ok_or(CutRefused::Unknown(number))?;
        let taken = cut.taken.as_ref().ok_or(CutRefused::NotTaken(number))?;
        let is_reply =
            |mark: &Mark, to: u32| matches!(mark.what, Observation::Reply { call, .. } if call == to);
        if let Some(call) = cut.unanswered
            && !self.marks.iter().rev().any(|mark| is_reply(mark, call))
        {
            return Err(CutRefused::Unanswered { number, call });
        }
        let late = self.marks.iter().filter(|mark| mark.position >= cut.position);
        let late = late.filter_map(|mark| match mark.what {
            Observation::Landed { transfer, .. } => Some((transfer, false)),
            _ => None,
        });
        Ok(Fold {
            number,
            position: cut.position,
            epoch: taken.epoch,
            reader: self.frames.reader(),
            manifest: self.manifest.clone(),
            images: self.images.clone(),
            host: self.host.clone(),
            answers: answers(&self.marks),
            late: late.chain(expected.iter().map(|transfer| (*transfer, false))).collect(),
            expected,
        })
    }

    /// Takes over what was folded, and drops what it stands for. A refusal of the fold is noted and given back.
    pub fn end_fold(&mut self, folded: Result<Folded, CutRefused>) -> Result<Truncated, CutRefused> {
        let folded = match folded {
            Ok(folded) => folded,
            Err(refused) => {
                if let CutRefused::Unanswered { number, call } = refused
                    && let Some(cut) = self.cuts.iter_mut().find(|cut| cut.number == number)
                {
                    cut.unanswered = Some(call);
                }
                return Err(refused);
            }
        };
        let Folded { number, position, epoch, asked, late, manifest, images, dropped } = folded;
        let place = self.cuts.iter().position(|cut| cut.number == number);
        let place = place.ok_or(CutRefused::Unknown(number))?;
        let taken = self.cuts[place].taken.as_ref().ok_or(CutRefused::NotTaken(number))?;
        let printed = taken.printed.clone();
        self.manifest = manifest;
        self.images.take_over(images);
        dropped.into_iter().for_each(|transfer| self.host.drop_pushed(transfer));
        let is_over = |mark: &Mark| match &mark.what {
            Observation::Reply { call, .. } => asked.contains(call),
            Observation::Landed { transfer, .. } => {
                mark.position < position || late.get(transfer).is_some_and(|is_asked| *is_asked)
            }
            Observation::HostCallBegan { .. }
            | Observation::HostCallRan { .. }
            | Observation::Deferred { .. } => mark.epoch < epoch,
        };
        if !is_planted(Mutant::MarksKeptAtTruncation) {
            self.marks.retain(|mark| !is_over(mark));
        }
        if !is_planted(Mutant::ServingsKeptAtTruncation) {
            self.host.drop_served_before(epoch);
        }
        let frame_bytes = position - self.frames.start();
        self.frames.truncate(position);
        self.cuts.drain(..=place);
        self.base = Some(number);
        self.printed = printed;
        Ok(Truncated { frame_bytes })
    }

    /// Transfers whose landing the program has seen since the base: another session sends them again.
    pub fn landed(&self) -> impl Iterator<Item = TransferId> + '_ {
        self.marks.iter().filter_map(|mark| match mark.what {
            Observation::Landed { transfer, .. } => Some(transfer),
            _ => None,
        })
    }

    /// The cut did not happen, or its worker was lost before it was safe.
    pub fn cut_abandoned(&mut self, number: u64) {
        self.cuts.retain(|cut| cut.number != number);
    }

    /// The latest safe cut.
    pub fn base(&self) -> Option<u64> {
        self.base
    }

    /// The objects that exist at the latest safe cut.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What a fresh session is told. It shares the frames with the journal, which goes on: what the program observes while
    /// the replay runs is noted here as ever, at the present position, which is the end.
    pub fn replay(&self) -> Replay {
        Replay::new(
            self.manifest.items(&self.images),
            self.base,
            self.frames.reader(),
            &self.marks,
            self.host.clone(),
            self.images.clone(),
            self.printed.clone(),
        )
    }

    /// For [`Mutant::MarkAtTheAskingPosition`].
    #[cold]
    fn asking_position(&self, call: u32) -> u64 {
        let mut reader = self.frames.reader();
        while let Ok(Some(frame)) = reader.peek() {
            let end = frame.end();
            if frame.call == call {
                return end;
            }
            reader.pass(end);
        }
        self.frames.end()
    }
}

/// What calls were answered.
fn answers(marks: &VecDeque<Mark>) -> HashMap<u32, Told> {
    let replies = marks.iter().filter_map(|mark| match &mark.what {
        Observation::Reply { call, status, digest, variables } => {
            let told = Told { status: *status, digest: *digest, variables: Arc::clone(variables) };
            Some((*call, told))
        }
        _ => None,
    });
    replies.collect()
}
