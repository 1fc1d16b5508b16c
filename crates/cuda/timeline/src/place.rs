//! Where kernels lie that were not measured: between two moments that were, in their order, each for as long as it usually takes.

use cuda_wire::Span;

/// A kernel that was not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guess {
    /// When it was put into its stream.
    pub(crate) put_ns: u64,
    /// How long it usually takes.
    pub(crate) typical_ns: u64,
}

/// Where kernels of a stream lie that began at `from` or later and had ended at `until`. A kernel does not begin before it is
/// there; if there is less room than they usually take, all of them are shorter by the same part.
pub(crate) fn place(from: u64, until: Option<u64>, guesses: &[Guess]) -> Vec<Span> {
    let mut end = from;
    let mut spans = Vec::with_capacity(guesses.len());
    for guess in guesses {
        let start_ns = end.max(guess.put_ns);
        end = start_ns + guess.typical_ns;
        spans.push(Span { start_ns, end_ns: end });
    }
    let room = until.map_or(u64::MAX, |until| until.saturating_sub(from));
    let taken = end - from;
    if taken > room {
        let shorter = |at: u64| from + (u128::from(at - from) * u128::from(room) / u128::from(taken)) as u64;
        for span in &mut spans {
            *span = Span { start_ns: shorter(span.start_ns), end_ns: shorter(span.end_ns) };
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start_ns: u64, end_ns: u64) -> Span {
        Span { start_ns, end_ns }
    }

    #[test]
    fn they_lie_behind_each_other_and_not_before_they_came() {
        let guesses = [(0, 10), (5, 10), (100, 10)].map(|(put_ns, typical_ns)| Guess { put_ns, typical_ns });
        assert_eq!(place(3, Some(200), &guesses), [span(3, 13), span(13, 23), span(100, 110)]);
        assert_eq!(place(0, Some(55), &guesses), [span(0, 5), span(5, 10), span(50, 55)]);
    }

    proptest! {
        #[test]
        fn none_leaves_its_room(
            from in 0u64..1000,
            room in 0u64..1000,
            guesses in prop::collection::vec((0u64..3000, 0u64..200), 0..20),
        ) {
            let guesses: Vec<Guess> =
                guesses.into_iter().map(|(put_ns, typical_ns)| Guess { put_ns, typical_ns }).collect();
            let spans = place(from, Some(from + room), &guesses);
            prop_assert_eq!(spans.len(), guesses.len());
            let mut last = from;
            for span in spans {
                prop_assert!(last <= span.start_ns && span.start_ns <= span.end_ns);
                last = span.end_ns;
            }
            prop_assert!(last <= from + room);
        }
    }
}
