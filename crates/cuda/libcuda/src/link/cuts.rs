//! The cut that is under way, and how well the program is protected.
//!
//! ```text
//!   nothing ──sent──▶ sent ──CutTaken──▶ taken ──CutSafe──▶ safe ──journal folded──▶ nothing
//!                       └──CutAbandoned, or the session is lost─────────────────────▶ nothing
//! ```

use super::{drill::Copied, wires::SessionNumber};
use cuda_wire::{Command, GuardInfo, TransferId, VaRange, begin_command, finish_command};
use journal::{CutPolicy, Filled};
use std::{collections::HashSet, time::Duration};

/// How long the driver may hold work back while earlier work does not end.
const PATIENCE_US: u32 = 100_000;
/// Cuts in a row that are given up before the user is told.
const GIVEN_UP_MAX: u32 = 3;
/// The level of a cut that another box has, too.
const COPIED: u8 = 2;
/// How long the journal is kept for a second copy. A box that is slower, or away, costs the second level and not the first.
const COPY_WAIT: Duration = Duration::from_secs(10);
/// More room than the command of a cut needs. A buffer that is mostly empty is copied into the journal's last segment.
const FRAME_BYTES: usize = 4 << 10;

/// What a link knows about its cuts.
#[derive(Default)]
pub(super) struct Cuts {
    /// The protection of the present session. `None`: its worker keeps no images.
    pub(super) guard: Option<GuardInfo>,
    pub(super) policy: CutPolicy,
    /// The last number that was given to a cut.
    last_number: u64,
    pub(super) under_way: Option<UnderWay>,
    /// When the cut that the journal begins with was sent.
    pub(super) safe_since: Option<Duration>,
    pub(super) image_bytes: u64,
    pub(super) live_bytes: u64,
    /// Why the last cut was given up.
    pub(super) why_given_up: String,
    was_told: bool,
    /// The last cut that another box has, too.
    copied: u64,
    /// The guardian is lost, and the image with it, in words: until the next cut is safe a loss is the end.
    pub(super) lost_guardian: Option<String>,
    /// A drill is under way; until its copy has the image, cuts wait.
    pub(super) drill: Option<Copied>,
}

/// A cut that is neither over nor given up.
pub(super) struct UnderWay {
    pub(super) number: u64,
    session: SessionNumber,
    sent_at: Duration,
    /// A transfer that was asked for before it and has not landed: only the older image brings it back.
    pub(super) waits_for: Option<TransferId>,
    /// Transfers that the program had let go of when it was sent. Behind it no session sends them.
    void: HashSet<TransferId>,
    is_taken: bool,
    pub(super) is_safe: bool,
    /// Until then the journal is kept for the second copy; `None`: there is one, or there will be none.
    awaits_copy_until: Option<Duration>,
}

/// Who keeps the image of a cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptBy {
    /// 1: the worker's box, 2: another one, too.
    pub(super) level: u8,
    pub(super) image_bytes: u64,
}

impl UnderWay {
    /// Whether the journal may begin with it.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.is_safe && self.awaits_copy_until.is_none_or(|until| now >= until)
    }
}

impl Cuts {
    /// Of a link whose first session has this protection.
    pub(super) fn new(guard: Option<GuardInfo>, every: Option<Duration>) -> Self {
        let policy = every.map_or_else(CutPolicy::default, CutPolicy::with_interval);
        Self { guard, policy, ..Self::default() }
    }

    /// The number of the next cut.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// A cut is being sent; behind it the stream of commands goes on as `filled` says.
    pub(super) fn sent(
        &mut self,
        number: u64,
        session: SessionNumber,
        void: HashSet<TransferId>,
        (now, filled): (Duration, Filled),
    ) {
        self.policy.sent(now, filled);
        let (waits_for, is_taken, is_safe, awaits_copy_until) = Default::default();
        let sent_at = now;
        let cut =
            UnderWay { number, session, sent_at, waits_for, void, is_taken, is_safe, awaits_copy_until };
        self.under_way = Some(cut);
    }

    fn of(&mut self, session: SessionNumber, number: u64) -> Option<&mut UnderWay> {
        self.under_way.as_mut().filter(|cut| cut.session == session && cut.number == number)
    }

    /// The worker has taken a cut. False: not one that is under way.
    pub(super) fn taken(&mut self, session: SessionNumber, number: u64, live: u64, pause: Duration) -> bool {
        let Some(cut) = self.of(session, number).filter(|cut| !cut.is_taken) else { return false };
        cut.is_taken = true;
        self.live_bytes = live;
        self.policy.taken(pause);
        true
    }

    /// The image of a cut is kept outside of the worker: at level 1, and later perhaps at level 2.
    pub(super) fn safe(&mut self, session: SessionNumber, number: u64, kept: KeptBy, now: Duration) {
        if kept.level >= COPIED {
            self.copied = self.copied.max(number);
        }
        let has_copies = self.guard.as_ref().is_some_and(|guard| !guard.copy_at.is_empty());
        let Some(cut) = self.of(session, number).filter(|cut| cut.is_taken) else { return };
        let was_safe = std::mem::replace(&mut cut.is_safe, true);
        let is_awaited = has_copies && kept.level < COPIED;
        cut.awaits_copy_until = is_awaited.then(|| cut.awaits_copy_until.unwrap_or(now + COPY_WAIT));
        if !was_safe {
            self.image_bytes = kept.image_bytes;
            self.policy.safe(now);
        }
    }

    /// How many boxes have the image of cut `base`.
    pub(super) fn level(&self, base: u64) -> u8 {
        match (base, self.lost_guardian.is_some()) {
            (0, _) | (_, true) => 0,
            _ if self.copied == base => COPIED,
            _ => 1,
        }
    }

    /// The guardian of the present session is lost: the image is gone, and a new one is wanted at once. Gives back a sentence
    /// for the user.
    pub(super) fn guardian_lost(&mut self, why: &str, base: u64) -> Option<String> {
        self.policy.want();
        // A cut that is already under way may get through to the guardian that comes next, or is given up with words.
        if base == 0 || self.lost_guardian.is_some() {
            return None;
        }
        self.lost_guardian = Some(why.to_owned());
        Some(format!(
            "the image of this program's GPU memory is lost ({why}); a new one is made as soon as a guardian is there, and \
             until then the loss of the GPU is the end of the program"
        ))
    }

    /// The journal begins at the cut now. Gives back the transfers that no session sends any more.
    pub(super) fn truncated(&mut self) -> HashSet<TransferId> {
        let cut = self.under_way.take();
        self.safe_since = cut.as_ref().map(|cut| cut.sent_at);
        self.policy.truncated();
        self.was_told = false;
        self.lost_guardian = None;
        self.why_given_up.clear();
        cut.map(|cut| cut.void).unwrap_or_default()
    }

    /// The worker has given a cut up. Gives back whether it was under way, and a sentence if the user must know.
    pub(super) fn abandoned(
        &mut self,
        session: SessionNumber,
        number: u64,
        why: &str,
    ) -> (bool, Option<String>) {
        if self.of(session, number).is_none() {
            return (false, None);
        }
        self.under_way = None;
        self.policy.abandoned();
        self.why_given_up = why.to_owned();
        let is_told = self.policy.given_up() < GIVEN_UP_MAX || std::mem::replace(&mut self.was_told, true);
        let words = (!is_told).then(|| {
            format!(
                "the image of this program's GPU memory is not renewed, because {why}; a resume would take longer, and \
                 the protection ends when the commands since the last image fill their budget"
            )
        });
        (true, words)
    }

    /// The session is lost. Gives back the cut that is given up with it.
    pub(super) fn session_lost(&mut self) -> Option<u64> {
        self.under_way.take().map(|cut| cut.number)
    }
}

/// The command that asks for a cut of everything that is mapped, but for `dead`.
pub(super) fn cut_frame(number: u64, dead: Vec<VaRange>) -> Vec<u8> {
    let bytes = FRAME_BYTES.max(2 * size_of_val(dead.as_slice()));
    let command = Command::Cut { number, dead, patience_us: PATIENCE_US };
    let mut out = Vec::with_capacity(bytes);
    let start = begin_command(&mut out, command.opcode(), 0);
    command.put_body(&mut out);
    finish_command(&mut out, start);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn filled() -> Filled {
        Filled { position: 10, held_bytes: 0, budget_bytes: 1 << 30, observations: 0 }
    }

    fn sent() -> (Cuts, u64) {
        let mut cuts = Cuts::default();
        let number = cuts.next_number();
        cuts.sent(number, 1, HashSet::new(), (SECOND, filled()));
        (cuts, number)
    }

    #[test]
    fn a_cut_goes_through_its_states_in_order_and_once() {
        let (mut cuts, number) = sent();
        cuts.safe(1, number, kept(1, 5), SECOND);
        assert!(cuts.under_way.as_ref().is_some_and(|cut| !cut.is_safe), "it was not taken");
        assert!(!cuts.taken(2, number, 7, SECOND), "of another session");
        assert!(!cuts.taken(1, number + 1, 7, SECOND), "another one");
        assert!(cuts.taken(1, number, 7, SECOND));
        assert!(!cuts.taken(1, number, 7, SECOND), "twice");
        cuts.safe(1, number, kept(1, 5), 2 * SECOND);
        cuts.safe(1, number, kept(1, 6), 9 * SECOND);
        assert_eq!((cuts.image_bytes, cuts.policy.time_to_safe()), (5, SECOND), "what is safe is safe");
        cuts.truncated();
        assert_eq!((cuts.safe_since, cuts.under_way.is_none()), (Some(SECOND), true));
        assert!(cuts.next_number() > number);
    }

    fn kept(level: u8, image_bytes: u64) -> KeptBy {
        KeptBy { level, image_bytes }
    }

    /// Cuts of a session whose guardian sends second copies to another box.
    fn copied() -> (Cuts, u64) {
        let (mut cuts, number) = sent();
        cuts.guard = Some(GuardInfo {
            bytes_max: 1 << 30,
            driver_build: String::new(),
            guardian: "tls:a:1".to_owned(),
            copy_at: "tls:b:1".to_owned(),
        });
        assert!(cuts.taken(1, number, 7, SECOND));
        cuts.safe(1, number, kept(1, 5), 2 * SECOND);
        (cuts, number)
    }

    #[test]
    fn the_journal_is_kept_until_another_box_has_the_cut() {
        let is_due = |cuts: &Cuts, now| cuts.under_way.as_ref().is_some_and(|cut| cut.is_due(now));
        let (mut cuts, number) = copied();
        assert!(!is_due(&cuts, 3 * SECOND), "the other box does not have it yet");
        cuts.safe(1, number, kept(2, 5), 3 * SECOND);
        assert!(is_due(&cuts, 3 * SECOND));
        cuts.truncated();
        assert_eq!((cuts.level(number), cuts.level(number + 1), cuts.level(0)), (2, 1, 0));
    }

    #[test]
    fn another_box_that_takes_too_long_costs_the_second_level_only() {
        let (mut cuts, number) = copied();
        let cut = cuts.under_way.as_ref().unwrap();
        assert!(!cut.is_due(2 * SECOND + COPY_WAIT - SECOND) && cut.is_due(2 * SECOND + COPY_WAIT));
        cuts.truncated();
        assert_eq!(cuts.level(number), 1);
        cuts.safe(1, number, kept(2, 5), 30 * SECOND);
        assert_eq!(cuts.level(number), 2, "it came late");
    }

    #[test]
    fn a_lost_guardian_is_told_once_and_forgiven_by_the_next_safe_cut() {
        let (mut cuts, number) = sent();
        assert_eq!(cuts.guardian_lost("gone", 0), None, "there was no image to lose");
        assert!(cuts.taken(1, number, 7, SECOND));
        cuts.safe(1, number, kept(1, 5), SECOND);
        cuts.truncated();
        assert!(cuts.guardian_lost("gone", number).is_some_and(|words| words.contains("gone")));
        assert_eq!(cuts.guardian_lost("still gone", number), None);
        assert_eq!(cuts.level(number), 0);
        let next = cuts.next_number();
        cuts.sent(next, 1, HashSet::new(), (3 * SECOND, filled()));
        assert!(cuts.taken(1, next, 7, SECOND));
        cuts.safe(1, next, kept(1, 5), 4 * SECOND);
        cuts.truncated();
        assert_eq!((cuts.level(next), cuts.lost_guardian), (1, None));
    }

    #[test]
    fn the_user_hears_once_that_images_are_not_renewed() {
        let mut cuts = Cuts::default();
        let words: Vec<bool> = (0..6)
            .map(|_| {
                let number = cuts.next_number();
                cuts.sent(number, 1, HashSet::new(), (SECOND, filled()));
                assert_eq!(cuts.abandoned(2, number, "why"), (false, None), "of a lost session");
                let (was_under_way, words) = cuts.abandoned(1, number, "why");
                assert!(was_under_way);
                words.is_some()
            })
            .collect();
        assert_eq!(words, [false, false, true, false, false, false]);
    }

    #[test]
    fn the_command_is_copied_into_the_last_segment_of_the_journal() {
        let frame = cut_frame(7, Vec::new());
        assert!(frame.len() * 2 < frame.capacity());
    }
}
