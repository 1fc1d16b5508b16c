//! The rule of epochs, without the file that keeps them.
//!
//! ```text
//!                     admit(e > cleaned)
//!   cleaned ≥ bound ────────────────────────▶ bound = e > cleaned ──┐ admit(e = bound): in
//!   (slot is empty)                           (borrower inside)  ◀──┘ admit(e < bound): stale, for ever
//!                   ◀────────────────────────                         admit(e > bound): not until it is clean
//!                     clean(e ≥ bound)
//! ```

/// What a slot remembers. The numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    /// The highest epoch that was let in; 0: none ever.
    pub bound: u64,
    /// Everything of this epoch and of older ones is ended, unmapped and scrubbed.
    pub cleaned: u64,
}

/// Why an epoch is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpochRefusal {
    /// A newer lease has been there, or this one is over. It stays so.
    #[error("the lease is over: its epoch {asked} is behind {reached} of this GPU")]
    Stale {
        /// The epoch of the token.
        asked: u64,
        /// What the slot has reached.
        reached: u64,
    },
    /// A borrower of an older lease may still be inside. It passes: the box is told to clean up.
    #[error("the GPU is still being cleaned after epoch {bound}, before {asked} may use it")]
    NotCleanYet {
        /// The epoch of the token.
        asked: u64,
        /// The epoch that may still be inside.
        bound: u64,
    },
}

impl Epochs {
    /// Whether a borrower may be inside.
    pub fn is_used(self) -> bool {
        self.bound > self.cleaned
    }

    /// What is remembered after a borrower with this epoch was admitted.
    pub fn admit(self, epoch: u64) -> Result<Self, EpochRefusal> {
        self.admit_since(epoch, epoch)
    }

    /// The same for a lease that was there before: whatever was let in with `since` or a later epoch was the same
    /// lease, and what it left is its own. The box ends the old pairing first.
    pub fn admit_since(self, epoch: u64, since: u64) -> Result<Self, EpochRefusal> {
        if epoch < self.bound || epoch <= self.cleaned {
            return Err(EpochRefusal::Stale { asked: epoch, reached: self.bound.max(self.cleaned) });
        }
        if epoch > self.bound && self.is_used() && self.bound < since {
            return Err(EpochRefusal::NotCleanYet { asked: epoch, bound: self.bound });
        }
        Ok(Self { bound: epoch, ..self })
    }

    /// What is remembered after everything up to `epoch` is ended and scrubbed.
    pub fn clean(self, epoch: u64) -> Self {
        Self { cleaned: self.cleaned.max(epoch), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRESH: Epochs = Epochs { bound: 0, cleaned: 0 };

    #[test]
    fn the_first_epoch_binds_and_the_same_one_comes_back() {
        let bound = FRESH.admit(7).unwrap();
        assert_eq!(bound, Epochs { bound: 7, cleaned: 0 });
        assert_eq!(bound.admit(7), Ok(bound));
    }

    #[test]
    fn an_older_epoch_is_stale_and_a_newer_one_waits_for_the_cleaning() {
        let bound = FRESH.admit(7).unwrap();
        assert_eq!(bound.admit(6), Err(EpochRefusal::Stale { asked: 6, reached: 7 }));
        assert_eq!(bound.admit(8), Err(EpochRefusal::NotCleanYet { asked: 8, bound: 7 }));
        let cleaned = bound.clean(7);
        assert_eq!(cleaned.admit(7), Err(EpochRefusal::Stale { asked: 7, reached: 7 }), "it was ended");
        assert_eq!(cleaned.admit(8), Ok(Epochs { bound: 8, cleaned: 7 }));
    }

    #[test]
    fn an_epoch_that_was_cleaned_before_it_came_never_comes() {
        let cleaned = FRESH.clean(9);
        assert_eq!(cleaned.admit(9), Err(EpochRefusal::Stale { asked: 9, reached: 9 }));
        assert_eq!(cleaned.admit(10), Ok(Epochs { bound: 10, cleaned: 9 }));
    }

    #[test]
    fn the_same_lease_comes_again_under_a_new_epoch_and_another_does_not() {
        let bound = FRESH.admit(7).unwrap();
        assert_eq!(bound.admit_since(9, 7), Ok(Epochs { bound: 9, cleaned: 0 }));
        assert_eq!(bound.admit_since(9, 8), Err(EpochRefusal::NotCleanYet { asked: 9, bound: 7 }));
        assert!(matches!(bound.admit_since(6, 5), Err(EpochRefusal::Stale { .. })));
        assert!(matches!(bound.clean(9).admit_since(9, 7), Err(EpochRefusal::Stale { .. })));
    }

    #[test]
    fn no_token_has_epoch_0() {
        assert!(FRESH.admit(0).is_err());
    }

    proptest! {
        /// All borrowers inside came after the last cleaning, all with one epoch, and epochs that come in only grow.
        #[test]
        fn two_epochs_are_never_inside_together(
            steps in proptest::collection::vec((any::<bool>(), 0u64..12), 1..200),
        ) {
            let mut epochs = FRESH;
            let (mut inside, mut highest): (Vec<u64>, u64) = (Vec::new(), 0);
            for (cleans, epoch) in steps {
                let before = epochs;
                if cleans {
                    // As the box does it: what it cleans after is ended first.
                    inside.retain(|other| *other > epoch);
                    epochs = epochs.clean(epoch);
                } else if let Ok(after) = epochs.admit(epoch) {
                    prop_assert!(epoch >= highest, "{} came after {}", epoch, highest);
                    highest = epoch;
                    inside.push(epoch);
                    epochs = after;
                }
                prop_assert!(epochs.bound >= before.bound && epochs.cleaned >= before.cleaned);
                prop_assert!(inside.iter().all(|other| *other == inside[0]), "{:?}", inside);
                prop_assert!(epochs.is_used() || inside.is_empty(), "{:?} are inside a clean slot", inside);
            }
        }
    }
}
