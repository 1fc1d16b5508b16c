//! The next action of one slot: a function of its state and its orders.
//!
//! ```text
//!                     want: idle, serve            want: clean, burn-in, off
//!   no worker ──(scrub if dirty)──▶ start      worker ──▶ kill ──▶ scrub ──▶ mark clean ──▶ start (or test, or nothing)
//! ```
//!
//! One action at a time, and each may be interrupted by the end of this process: the next process looks at what is and
//! gets there by the same function. Orders may be old, come twice or be lost. An old one does no harm, because the
//! only orders that end a borrower's session name the epoch that is over.

use lease_fence::Epochs;
use pool_api::Want;

/// What a slot is like now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) worker: WorkerSeen,
    pub(crate) epochs: Epochs,
    /// A borrower has used the GPU since its memory was last scrubbed. Not known after a crash: then it has.
    pub(crate) is_dirty: bool,
    /// The GPU is not to be used, whatever is ordered.
    pub(crate) is_bad: bool,
    /// An operator pulled the plug (`dxpu box break`): the borrower inside must notice.
    pub(crate) is_unplugged: bool,
    /// How the last burn-in went, and of which order.
    pub(crate) burn_in: Option<(u64, bool)>,
    /// A worker died just now; the next one is not started before this is over.
    pub(crate) is_resting: bool,
    /// The worker runs, could say where it is, and does not: no borrower finds it.
    pub(crate) is_mute: bool,
}

/// What is known of a slot's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerSeen {
    /// There is none, and no process of one.
    None,
    /// It runs, or parts of it do.
    Running,
    /// Its main process is gone, others may be left.
    Remains,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The slot is as ordered.
    Nothing,
    /// Start a worker.
    Start,
    /// End every process of the worker.
    Kill,
    /// Make the GPU's memory unreadable for the next borrower.
    Scrub,
    /// Remember that everything up to this epoch is gone.
    MarkClean(u64),
    /// Remember it if no borrower has been inside since the last time.
    MarkCleanIfUnused(u64),
    /// Test the GPU for the order with this epoch.
    BurnIn(u64),
}

/// Decides.
pub(crate) fn decide(seen: &Seen, want: &Want) -> Action {
    if seen.worker == WorkerSeen::Remains {
        return Action::Kill;
    }
    let is_running = seen.worker == WorkerSeen::Running;
    if (seen.is_unplugged || seen.is_mute) && is_running {
        return Action::Kill;
    }
    match *want {
        Want::Off => match seen.epochs {
            _ if is_running => Action::Kill,
            epochs if epochs.is_used() && !seen.is_unplugged => emptied(seen, epochs.bound),
            _ => Action::Nothing,
        },
        Want::Clean { epoch } if seen.epochs.cleaned < epoch => {
            if !seen.epochs.is_used() {
                Action::MarkCleanIfUnused(epoch)
            } else if seen.epochs.bound > epoch {
                // A newer epoch was admitted, which needed a clean slot: nothing of this epoch can be there.
                Action::MarkClean(epoch)
            } else if is_running {
                Action::Kill
            } else {
                emptied(seen, epoch)
            }
        }
        Want::BurnIn { epoch } if seen.burn_in.is_none_or(|(tested, _)| tested != epoch) => {
            if is_running {
                Action::Kill
            } else if seen.is_dirty && !seen.is_unplugged {
                Action::Scrub
            } else if seen.epochs.cleaned < epoch && !seen.is_unplugged {
                Action::MarkClean(epoch)
            } else {
                Action::BurnIn(epoch)
            }
        }
        // The test is over: the manager hears of it and says what comes next.
        Want::BurnIn { .. } => Action::Nothing,
        // The same lease comes again under a new epoch. The sessions of the old epoch are ended, with all they had in
        // the GPU's memory, and the worker starts anew: as it would be for another lease.
        Want::Serve { epoch, .. } if seen.epochs.is_used() && seen.epochs.bound < epoch => {
            if is_running {
                Action::Kill
            } else {
                emptied(seen, epoch - 1)
            }
        }
        Want::Serve { epoch, .. } if !seen.epochs.is_used() && seen.epochs.cleaned + 1 < epoch => {
            // The fence may have lost its records. All leases before this one are over, so their epochs count as
            // cleaned.
            Action::MarkCleanIfUnused(epoch - 1)
        }
        Want::Idle | Want::Clean { .. } | Want::Serve { .. } => match is_running {
            true => Action::Nothing,
            false if seen.is_bad || seen.is_resting => Action::Nothing,
            false if seen.is_dirty => Action::Scrub,
            false => Action::Start,
        },
    }
}

/// The last steps of a cleaning, when no process is left.
fn emptied(seen: &Seen, epoch: u64) -> Action {
    if seen.is_dirty { Action::Scrub } else { Action::MarkClean(epoch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::{LeaseId, Name};
    use proptest::prelude::*;

    const FRESH: Seen = Seen {
        worker: WorkerSeen::None,
        epochs: Epochs { bound: 0, cleaned: 0 },
        is_dirty: false,
        is_bad: false,
        is_unplugged: false,
        burn_in: None,
        is_resting: false,
        is_mute: false,
    };

    fn serve(epoch: u64) -> Want {
        let tenant = Name::new("vision").unwrap();
        Want::Serve {
            lease: LeaseId(1),
            epoch,
            since_epoch: 0,
            expires_ms: 0,
            memory_bytes: 0,
            share_milli: 1000,
            tenant,
            pcie: None,
        }
    }

    /// A slot that obeys, with a borrower that comes whenever the door is open.
    struct Slot {
        seen: Seen,
        /// The epochs of the borrowers inside.
        inside: Vec<u64>,
        /// Epochs whose data may be in the GPU's memory.
        traces: Vec<u64>,
        scrub_fails: bool,
    }

    impl Slot {
        fn new() -> Self {
            Self { seen: FRESH, inside: Vec::new(), traces: Vec::new(), scrub_fails: false }
        }

        /// A borrower shows a token of this epoch.
        fn come(&mut self, epoch: u64) {
            if self.seen.worker == WorkerSeen::Running
                && let Ok(epochs) = self.seen.epochs.admit(epoch)
            {
                self.seen.epochs = epochs;
                self.inside.push(epoch);
                self.traces.push(epoch);
                self.seen.is_dirty = true;
                assert!(self.inside.iter().all(|other| *other == epoch), "{:?} are together", self.inside);
                assert!(self.traces.iter().all(|other| *other == epoch), "{epoch} reads {:?}", self.traces);
            }
        }

        fn die(&mut self) {
            if self.seen.worker == WorkerSeen::Running {
                self.seen.worker = WorkerSeen::Remains;
            }
        }

        fn step(&mut self, want: &Want) -> Action {
            let action = decide(&self.seen, want);
            match action {
                Action::Nothing => {}
                Action::Start => {
                    assert_eq!(self.seen.worker, WorkerSeen::None, "two workers");
                    self.seen.worker = WorkerSeen::Running;
                }
                Action::Kill => {
                    self.inside.clear();
                    self.seen.worker = WorkerSeen::None;
                    self.seen.is_mute = false;
                }
                Action::Scrub if self.scrub_fails => {}
                Action::Scrub => {
                    assert_eq!(self.seen.worker, WorkerSeen::None, "scrubbed under a worker");
                    self.traces.clear();
                    self.seen.is_dirty = false;
                }
                Action::MarkClean(epoch) => {
                    let gone = |epochs: &[u64]| epochs.iter().all(|other| *other > epoch);
                    assert!(gone(&self.inside) && gone(&self.traces), "{epoch} is not clean");
                    self.seen.epochs = self.seen.epochs.clean(epoch);
                }
                Action::MarkCleanIfUnused(epoch) => {
                    if !self.seen.epochs.is_used() {
                        assert!(self.inside.is_empty());
                        self.seen.epochs = self.seen.epochs.clean(epoch);
                    }
                }
                Action::BurnIn(epoch) => {
                    assert_eq!(self.seen.worker, WorkerSeen::None, "tested under a worker");
                    assert!(self.inside.is_empty());
                    self.seen.burn_in = Some((epoch, !self.seen.is_unplugged));
                }
            }
            action
        }

        /// Obeys until there is nothing to do.
        fn settle(&mut self, want: &Want) -> Vec<Action> {
            let mut done = Vec::new();
            for _ in 0..10 {
                match self.step(want) {
                    Action::Nothing => return done,
                    action => done.push(action),
                }
            }
            panic!("never at rest: {done:?}");
        }
    }

    #[test]
    fn a_lease_comes_and_goes() {
        let mut slot = Slot::new();
        assert_eq!(slot.settle(&Want::Idle), [Action::Start]);
        slot.come(1);
        assert_eq!(slot.settle(&serve(1)), []);
        let cleaning = slot.settle(&Want::Clean { epoch: 1 });
        assert_eq!(cleaning, [Action::Kill, Action::Scrub, Action::MarkClean(1), Action::Start]);
        slot.come(1);
        assert!(slot.inside.is_empty(), "its time is over");
    }

    #[test]
    fn a_lease_that_was_never_used_costs_no_worker() {
        let mut slot = Slot::new();
        slot.settle(&Want::Idle);
        assert_eq!(slot.settle(&Want::Clean { epoch: 4 }), [Action::MarkCleanIfUnused(4)]);
        assert_eq!(slot.seen.worker, WorkerSeen::Running);
    }

    #[test]
    fn an_old_order_to_be_idle_ends_nobody() {
        let mut slot = Slot::new();
        slot.settle(&Want::Idle);
        slot.come(3);
        assert_eq!(slot.settle(&Want::Idle), []);
        assert_eq!(slot.settle(&Want::Clean { epoch: 2 }), [Action::MarkClean(2)]);
        assert_eq!(slot.inside, [3]);
    }

    #[test]
    fn a_worker_that_died_is_replaced_and_its_lease_comes_back() {
        let mut slot = Slot::new();
        slot.settle(&Want::Idle);
        slot.come(3);
        slot.die();
        assert_eq!(slot.settle(&serve(3)), [Action::Kill, Action::Scrub, Action::Start]);
        slot.come(3);
        assert_eq!(slot.inside, [3]);
    }

    #[test]
    fn a_mute_worker_is_replaced_by_one_that_speaks() {
        let mut slot = Slot::new();
        slot.settle(&Want::Idle);
        slot.seen.is_mute = true;
        assert_eq!(slot.settle(&Want::Idle), [Action::Kill, Action::Start]);
        slot.come(3);
        slot.seen.is_mute = true;
        assert_eq!(slot.settle(&serve(3)), [Action::Kill, Action::Scrub, Action::Start]);
        slot.come(3);
        assert_eq!(slot.inside, [3]);
    }

    #[test]
    fn a_lease_that_comes_again_under_a_new_epoch_finds_nobody_inside() {
        let mut slot = Slot::new();
        slot.settle(&Want::Idle);
        slot.come(3);
        let again = slot.settle(&serve(5));
        assert_eq!(again, [Action::Kill, Action::Scrub, Action::MarkClean(4), Action::Start]);
        slot.come(3);
        assert!(slot.inside.is_empty(), "its old epoch is over");
        slot.come(5);
        assert_eq!(slot.inside, [5]);
    }

    #[test]
    fn a_slot_that_forgot_everything_does_not_let_old_leases_in() {
        let mut slot = Slot::new();
        slot.settle(&serve(9));
        slot.come(8);
        assert!(slot.inside.is_empty());
        slot.come(9);
        assert_eq!(slot.inside, [9]);
    }

    #[test]
    fn a_bad_gpu_is_emptied_tested_and_used_again() {
        let mut slot = Slot::new();
        slot.settle(&Want::Idle);
        slot.come(3);
        assert_eq!(slot.settle(&Want::Off), [Action::Kill, Action::Scrub, Action::MarkClean(3)]);
        assert_eq!(slot.settle(&Want::BurnIn { epoch: 4 }), [Action::MarkClean(4), Action::BurnIn(4)]);
        assert_eq!(slot.settle(&Want::Idle), [Action::Start]);
    }

    #[test]
    fn an_unplugged_gpu_throws_everybody_out_and_cannot_be_cleaned_until_it_is_back() {
        let mut slot = Slot::new();
        slot.settle(&Want::Idle);
        slot.come(3);
        slot.seen.is_unplugged = true;
        slot.seen.is_bad = true;
        assert_eq!(slot.settle(&serve(3)), [Action::Kill]);
        assert_eq!(slot.settle(&Want::Off), []);
        assert_eq!(slot.settle(&Want::BurnIn { epoch: 3 }), [Action::BurnIn(3)]);
        assert_eq!(slot.seen.burn_in, Some((3, false)));
        slot.seen.is_unplugged = false;
        slot.seen.is_bad = false;
        assert_eq!(
            slot.settle(&Want::BurnIn { epoch: 4 }),
            [Action::Scrub, Action::MarkClean(4), Action::BurnIn(4)]
        );
    }

    fn wants() -> impl Strategy<Value = Want> {
        prop_oneof![
            Just(Want::Idle),
            (1..12u64).prop_map(serve),
            (1..12u64).prop_map(|epoch| Want::Clean { epoch }),
            (1..12u64).prop_map(|epoch| Want::BurnIn { epoch }),
            Just(Want::Off),
        ]
    }

    #[derive(Clone, Debug)]
    enum Happening {
        Order(Want),
        Comes(u64),
        Dies,
        GoesMute,
        /// The agent is killed and started again: it does not know any more whether the GPU is dirty.
        Forgets,
        Unplug(bool),
        ScrubFails(bool),
        Step,
    }

    fn happenings() -> impl Strategy<Value = Vec<Happening>> {
        let one = prop_oneof![
            3 => wants().prop_map(Happening::Order),
            4 => (1..12u64).prop_map(Happening::Comes),
            1 => Just(Happening::Dies),
            1 => Just(Happening::GoesMute),
            1 => Just(Happening::Forgets),
            1 => any::<bool>().prop_map(Happening::Unplug),
            1 => any::<bool>().prop_map(Happening::ScrubFails),
            8 => Just(Happening::Step),
        ];
        proptest::collection::vec(one, 1..300)
    }

    proptest! {
        /// Whatever is ordered, in whatever order, however often it is interrupted: one lease at a time, no lease reads
        /// what another left, nothing counts as clean that is not (the slot above checks each), and it comes to rest.
        #[test]
        fn nobody_ever_meets_another_or_what_he_left(happenings in happenings()) {
            let mut slot = Slot::new();
            let mut want = Want::Idle;
            for happening in happenings {
                match happening {
                    Happening::Order(order) => want = order,
                    Happening::Comes(epoch) => slot.come(epoch),
                    Happening::Dies => slot.die(),
                    Happening::GoesMute => slot.seen.is_mute = slot.seen.worker == WorkerSeen::Running,
                    Happening::Forgets => {
                        slot.seen.is_dirty |= slot.seen.epochs.is_used();
                        slot.seen.burn_in = None;
                    }
                    Happening::Unplug(is_unplugged) => {
                        slot.seen.is_unplugged = is_unplugged;
                        slot.seen.is_bad = is_unplugged;
                    }
                    Happening::ScrubFails(fails) => slot.scrub_fails = fails,
                    Happening::Step => drop(slot.step(&want)),
                }
            }
            slot.scrub_fails = false;
            slot.seen.is_unplugged = false;
            slot.seen.is_bad = false;
            slot.settle(&want);
            match want {
                Want::Clean { epoch } => prop_assert!(slot.seen.epochs.cleaned >= epoch),
                Want::BurnIn { epoch } => prop_assert_eq!(slot.seen.burn_in.map(|(tested, _)| tested), Some(epoch)),
                Want::Off => prop_assert!(slot.seen.worker == WorkerSeen::None && !slot.seen.epochs.is_used()),
                Want::Idle | Want::Serve { .. } => prop_assert_eq!(slot.seen.worker, WorkerSeen::Running),
            }
        }
    }
}
