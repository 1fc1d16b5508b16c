//! Connections at a door that have not shown a token yet, and which of them has to go when the door is full.
//!
//! The oldest goes, of the place that has sent the most. So a newcomer always has a moment to show its token, however
//! many strangers there are, and a place with few connections is never pushed out by one with many. Knows no socket and
//! no clock.

use std::collections::{BTreeMap, HashMap};
use transport::Origin;

/// The strangers at one door, by the order of their arrival.
pub(crate) struct Strangers {
    most: usize,
    present: BTreeMap<u64, Origin>,
    by_origin: HashMap<Origin, usize>,
}

impl Strangers {
    /// At most so many.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), present: BTreeMap::new(), by_origin: HashMap::new() }
    }

    /// One more stands at the door. Numbers grow with each arrival. Returns the one that has to go.
    pub(crate) fn arrive(&mut self, number: u64, origin: Origin) -> Option<u64> {
        let leaves = if self.present.len() < self.most { None } else { self.oldest_of_the_many() };
        if let Some(leaves) = leaves {
            self.leave(leaves);
        }
        self.present.insert(number, origin);
        *self.by_origin.entry(origin).or_default() += 1;
        leaves
    }

    /// One has gone, or is a stranger no more.
    pub(crate) fn leave(&mut self, number: u64) {
        let Some(origin) = self.present.remove(&number) else { return };
        if let Some(count) = self.by_origin.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.by_origin.remove(&origin);
            }
        }
    }

    fn oldest_of_the_many(&self) -> Option<u64> {
        let most = self.by_origin.values().max()?;
        let is_crowded = |origin: &Origin| self.by_origin.get(origin) == Some(most);
        self.present.iter().find(|(_, origin)| is_crowded(origin)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWD: Origin = Origin::Network(1);
    const FEW: Origin = Origin::Network(2);

    #[test]
    fn the_oldest_of_the_crowd_goes_and_a_place_with_few_stays() {
        let mut strangers = Strangers::new(4);
        assert_eq!(strangers.arrive(1, FEW), None);
        for number in 2..=4 {
            assert_eq!(strangers.arrive(number, CROWD), None);
        }
        for number in 5..100 {
            assert_eq!(strangers.arrive(number, CROWD), Some(number - 3), "the oldest of the crowd");
        }
        assert_eq!(strangers.arrive(100, FEW), Some(97));
        assert!(strangers.present.contains_key(&1));
    }

    #[test]
    fn every_newcomer_outlives_as_many_arrivals_as_the_door_holds() {
        let mut strangers = Strangers::new(16);
        for number in 0..1000 {
            let leaves = strangers.arrive(number, CROWD);
            assert_eq!(leaves, number.checked_sub(16));
        }
    }

    #[test]
    fn among_places_with_one_each_the_oldest_goes_and_who_left_counts_no_more() {
        let mut strangers = Strangers::new(3);
        for number in 0..3 {
            assert_eq!(strangers.arrive(number, Origin::User(number as u32)), None);
        }
        strangers.leave(0);
        strangers.leave(0);
        assert_eq!(strangers.arrive(3, Origin::User(9)), None);
        assert_eq!(strangers.arrive(4, Origin::User(10)), Some(1));
        assert_eq!(strangers.by_origin.len(), strangers.present.len());
    }
}
