//! When orders were given, and whether they took longer than later ones.

/// The tenure of the manager that gave orders, and when by its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) tenure: u64,
    pub(crate) at_ms: u64,
}

/// Longer than any answer is on its way.
const LATE_AT_MOST_MS: u64 = 60_000;

impl Given {
    /// Whether these orders were given before the `known` ones and took longer: then they count no more.
    ///
    /// A later leader's always count, however far behind its clock is. An earlier leader's count again only when its
    /// clock says that much time has passed: then the store was put back to what it was once.
    pub(crate) fn is_late_after(self, known: Self) -> bool {
        match self.tenure.cmp(&known.tenure) {
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal => self.at_ms < known.at_ms,
            std::cmp::Ordering::Less => self.at_ms < known.at_ms.saturating_add(LATE_AT_MOST_MS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_that_took_longer_do_not_count() {
        let known = Given { tenure: 7, at_ms: 1_000_000 };
        let hours_ms = 6 * 3_600_000;
        let given = |tenure, at_ms| Given { tenure, at_ms };
        assert!(given(7, 999_999).is_late_after(known));
        assert!(!given(7, 1_000_000).is_late_after(known), "the same orders again");
        // Another leads whose clock is behind, by a little or by hours.
        assert!(!given(8, 999_000).is_late_after(known));
        assert!(!given(8, 1_000).is_late_after(given(7, hours_ms)));
        // The one before was frozen with an answer half written.
        assert!(given(6, 1_000_500).is_late_after(known));
        assert!(!given(6, 1_000_000 + hours_ms).is_late_after(known), "the store was restored");
    }
}
