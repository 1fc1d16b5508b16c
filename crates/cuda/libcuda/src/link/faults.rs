//! Whose fault it was that ended a session with merged contexts: this program's, or that of another one beside it.
//!
//! The worker does not know. So a protected program goes on in another session, where its last commands are executed again. Its own fault
//! comes again, at the same place, as often as it is tried; that of another program does not, because an online session keeps the gate
//! closed during a replay.
//!
//! ```text
//!   fault ──▶ resume ──▶ all work has ended well: the worker says so, or a cut is taken ─▶ it was another program's
//!                   └──▶ the same error in the replay or soon after, and the program was given nothing since ─▶ once more
//!                                                                                         └── the second time ─▶ it is the program's own
//! ```
//!
//! Once is not enough: a neighbour that is started again and again may fail a second time before all work has ended.
//! A program that polls is given something before each fault, so its fault has two more tries. What comes late and again and again,
//! without an end of all work in between, has a bound, too: no program is resumed for ever.

use std::time::Duration;

/// A fault that comes so soon after a resume is suspected to be the one before it.
const SOON: Duration = Duration::from_secs(5);
/// Faults in a row, each soon after a resume and at the same place, that are a program's own.
const AGAIN_MAX: u32 = 2;
/// Faults in a row, each soon after a resume, that are a program's own although it was given something in between.
const SOON_MAX: u32 = 4;
/// Faults in a row that are a program's own in any case.
const IN_A_ROW_MAX: u32 = 10;

/// What is known of the faults since all work ended well.
#[derive(Debug, Default)]
pub(super) struct Faults {
    last: Option<Fault>,
    again: u32,
    soon: u32,
    in_a_row: u32,
}

/// A fault as the program met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The error.
    pub(super) code: u32,
    /// How much the program had been given.
    pub(super) given: u64,
    /// How long after the session took over; `None`: in the replay.
    pub(super) after: Option<Duration>,
}

impl Faults {
    /// A fault has ended a session. Whether it is the program's own.
    pub(super) fn is_own(&mut self, fault: Fault) -> bool {
        let before = self.last.replace(fault).filter(|before| before.code == fault.code);
        self.in_a_row += 1;
        let is_soon = before.is_some() && fault.after.is_none_or(|after| after < SOON);
        self.soon = if is_soon { self.soon + 1 } else { 0 };
        let is_same_place = before.is_some_and(|before| before.given == fault.given);
        self.again = if is_soon && is_same_place { self.again + 1 } else { 0 };
        self.again >= AGAIN_MAX || self.soon >= SOON_MAX || self.in_a_row >= IN_A_ROW_MAX
    }

    /// All work that the program had given has ended well.
    pub(super) fn all_is_well(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(code: u32, given: u64, after_s: Option<u64>) -> Fault {
        Fault { code, given, after: after_s.map(Duration::from_secs) }
    }

    #[test]
    fn the_same_error_at_the_same_place_is_the_programs_own() {
        for after in [None, Some(0), Some(4)] {
            let mut faults = Faults::default();
            assert!(!faults.is_own(fault(700, 7, Some(100))), "the first is resumed from, whatever it is");
            assert!(!faults.is_own(fault(700, 7, after)), "a neighbour may have failed again: {after:?}");
            assert!(faults.is_own(fault(700, 7, after)), "{after:?}");
        }
    }

    #[test]
    fn one_at_another_place_begins_to_count_anew() {
        let mut faults = Faults::default();
        for given in [7, 7, 8, 8] {
            assert!(!faults.is_own(fault(700, given, Some(0))), "{given}");
        }
        assert!(faults.is_own(fault(700, 8, Some(0))));
    }

    #[test]
    fn another_error_another_place_or_a_late_one_is_not() {
        let mut faults = Faults::default();
        assert!(!faults.is_own(fault(700, 7, Some(100))));
        assert!(!faults.is_own(fault(719, 7, None)), "another error");
        assert!(!faults.is_own(fault(719, 9, Some(1))), "another place");
        assert!(!faults.is_own(fault(719, 9, Some(5))), "an idle program, whose neighbour failed again");
        faults.all_is_well();
        assert!(!faults.is_own(fault(719, 9, None)), "work has ended well in between");
    }

    #[test]
    fn twenty_faults_of_a_neighbour_are_survived_if_cuts_come_in_between() {
        let mut faults = Faults::default();
        for given in 0..20 {
            assert!(!faults.is_own(fault(700, given, Some(1))));
            faults.all_is_well();
        }
    }

    #[test]
    fn no_program_is_resumed_for_ever() {
        let in_a_row = |after_s, step: u64| {
            let mut faults = Faults::default();
            (0..100u64).position(|at| faults.is_own(fault(700, at * step, after_s))).unwrap()
        };
        assert_eq!(in_a_row(Some(0), 1), 4, "a program that polls");
        assert_eq!(in_a_row(None, 0), 2);
        assert_eq!(in_a_row(Some(60), 0), 9, "a kernel that fails after a minute");
        let mut faults = Faults::default();
        let mixed = (0..100).position(|at| faults.is_own(fault(700 + at % 2, 0, None)));
        assert_eq!(mixed, Some(9), "errors that alternate");
    }
}
