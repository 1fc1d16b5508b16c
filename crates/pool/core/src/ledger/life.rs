//! Life cycles as lists of arrows. `gpu_life.rs` and `lease_life.rs` each declare one with [`life_cycle!`].
//!
//! A list makes an enum of events, and the function `after` that says where an event leads from a state. An arrow that is
//! not listed has no way into a record: the modules of the life cycles keep the state to themselves.

/// An event came to a state that it has no arrow from: a mistake of the ledger, never of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} cannot happen in state {from:?}: no such arrow is listed")]
pub(super) struct NoArrow<State: std::fmt::Debug, Event: std::fmt::Debug> {
    pub(super) from: State,
    pub(super) event: Event,
}

/// Declares the events of a life cycle and their arrows, each as `Event: From | From => To;`.
///
/// Two arrows of one event from one state do not compile: the second could never be taken.
macro_rules! life_cycle {
    (
        $(#[$about:meta])*
        $events:ident over $states:ident {
            $($(#[$meta:meta])* $event:ident: $($from:ident)|+ => $to:ident;)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $events {
            $($(#[$meta])* $event),+
        }

        impl $events {
            /// Where this leads from a state.
            #[deny(unreachable_patterns)]
            fn after(self, from: $states) -> Result<$states, $crate::ledger::life::NoArrow<$states, Self>> {
                match (from, self) {
                    $($(($states::$from, Self::$event))|+ => Ok($states::$to),)+
                    (from, event) => Err($crate::ledger::life::NoArrow { from, event }),
                }
            }

            /// Every event.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$event),+];

            /// Every arrow, in the order of the list.
            #[cfg(test)]
            pub(super) const ARROWS: &[($states, Self, $states)] =
                &[$($(($states::$from, Self::$event, $states::$to)),+),+];
        }
    };
}
pub(super) use life_cycle;

/// For tests: which arrows this thread has taken, and what a diagram says.
#[cfg(test)]
pub(crate) mod watch {
    use crate::ledger::gpu_life::GpuEvent;
    use crate::ledger::lease_life::LeaseEvent;
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Debug;

    /// An arrow as text: from, event, to, in small letters without underscores.
    pub(crate) type Words = (String, String, String);

    thread_local! {
        /// A test runs in a thread of its own, and so do its ledgers.
        static TAKEN: RefCell<BTreeMap<Words, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    pub(crate) fn words(from: impl Debug, event: impl Debug, to: impl Debug) -> Words {
        (plain(&format!("{from:?}")), plain(&format!("{event:?}")), plain(&format!("{to:?}")))
    }

    fn plain(name: &str) -> String {
        name.chars().filter(|letter| *letter != '_').collect::<String>().to_lowercase()
    }

    /// Every arrow of every life cycle.
    pub(crate) fn listed() -> BTreeSet<Words> {
        let gpus = GpuEvent::ARROWS.iter().map(|(from, event, to)| words(from, event, to));
        let leases = LeaseEvent::ARROWS.iter().map(|(from, event, to)| words(from, event, to));
        gpus.chain(leases).collect()
    }

    /// Counts an arrow that was taken.
    pub(crate) fn count(arrow: Words) {
        TAKEN.with_borrow_mut(|taken| *taken.entry(arrow).or_default() += 1);
    }

    /// How often this thread has taken which arrow.
    pub(crate) fn taken() -> BTreeMap<Words, u64> {
        TAKEN.with_borrow(Clone::clone)
    }

    /// The arrows of the diagram at the top of a source file. Each line of it is a chain of states and of arrows between
    /// them, `──event──▶` or `◀──event──`. The arrow to the first state of all has no event.
    pub(crate) fn drawn(source: &str) -> BTreeSet<Words> {
        let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
        let lines = lines.skip_while(|line| line.trim() != "```text").skip(1);
        let mut arrows = BTreeSet::new();
        for line in lines.take_while(|line| line.trim() != "```") {
            let chain: Vec<&str> = line.split_whitespace().collect();
            for link in chain.windows(3).step_by(2) {
                let [left, arrow, right] = link else { unreachable!("windows of three") };
                let event = plain(arrow.trim_matches(['─', '▶', '◀']));
                let (from, to) = match (arrow.starts_with('◀'), arrow.ends_with('▶')) {
                    (false, true) => (left, right),
                    (true, false) => (right, left),
                    _ => panic!("{arrow} in {line:?} is no arrow"),
                };
                let is_new = arrows.insert((plain(from), event, plain(to)));
                assert!(is_new, "{arrow} in {line:?} is drawn twice");
            }
            assert!(chain.len() % 2 == 1 || chain.is_empty(), "{line:?} ends with an arrow");
        }
        arrows
    }
}
