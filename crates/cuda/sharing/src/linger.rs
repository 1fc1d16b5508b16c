//! How long the gate stays closed after an online session's work is done.
//!
//! An eager program pauses for microseconds between the kernels of one request. Opening the gate there would cost the
//! next kernel a drain and two switches; keeping it closed costs the offline program the pause. So the linger L is
//! the one that would have cost least over the pauses seen lately:
//!
//! ```text
//!   cost(L) = sum of min(pause, L)  +  reopening * number of pauses longer than L          reopening: see Contexts
//! ```
//!
//! A percentile of the pauses would not do: requests that come at random have pauses of all lengths, and a percentile
//! of those is as long as it may be. Their cost is least for the shortest linger, because how long such a pause
//! has lasted says nothing about how long it will last.

/// Two switches between contexts, of 130 us each on an H200.
const SWITCHES_NS: u64 = 260_000;
/// Merged contexts need none. The device looks at the gate again after 8 to 40 us.
const LOOK_NS: u64 = 30_000;
/// A group that is not known, as on GPUs in software.
const GROUP_NS: u64 = 50_000;
/// A kernel that is longer is no reason to linger longer.
const GROUP_MAX_NS: u64 = 2_000_000;
/// Longer pauses are between requests, whatever the program.
pub(crate) const PAUSE_MAX_NS: u64 = 2_000_000;
/// The lingers to choose from, up to the price of a reopening: beyond it, lingering costs more than it can save.
const CHOICES_NS: [u64; 12] =
    [10_000, 15_000, 20_000, 30_000, 40_000, 60_000, 80_000, 120_000, 160_000, 200_000, 250_000, 300_000];

/// What lies between the sessions of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contexts {
    /// Each has a context of its own.
    Apart,
    /// All are in one server (MPS).
    Merged,
}

impl Contexts {
    /// What opening the gate too early costs: switches, and half of a group of this length, which is what is left of it on average.
    fn reopening_ns(self, group_ns: u64) -> u64 {
        let between_ns = match self {
            Self::Apart => SWITCHES_NS,
            Self::Merged => LOOK_NS,
        };
        between_ns + group_ns.min(GROUP_MAX_NS) / 2
    }
}
/// The linger of a session that has shown too few pauses.
const FIRST_NS: u64 = 50_000;
/// So many pauses are needed for a choice, and between two choices.
const PAUSES_BETWEEN_CHOICES: u32 = 32;
/// Beyond, the older half is forgotten: programs change.
const PAUSES_MAX: u32 = 1024;

/// Pauses by length, and the linger that follows from them.
#[derive(Clone, Debug)]
pub struct Linger {
    /// Pauses up to each choice, and longer ones: how many, and their sum.
    pauses: [(u32, u64); CHOICES_NS.len() + 1],
    total: u32,
    until_choice: u32,
    chosen_ns: u64,
    contexts: Contexts,
    reopening_ns: u64,
}

impl Default for Linger {
    fn default() -> Self {
        Self::new(Contexts::Apart)
    }
}

impl Linger {
    /// Of a session whose contexts are so.
    pub fn new(contexts: Contexts) -> Self {
        Self {
            pauses: [(0, 0); CHOICES_NS.len() + 1],
            total: 0,
            until_choice: PAUSES_BETWEEN_CHOICES,
            chosen_ns: FIRST_NS,
            contexts,
            reopening_ns: contexts.reopening_ns(GROUP_NS),
        }
    }

    /// How long the longest group of offline work takes; 0: that is not known.
    pub fn set_longest_group(&mut self, ns: u64) {
        self.reopening_ns = self.contexts.reopening_ns(if ns == 0 { GROUP_NS } else { ns });
    }

    /// How long the gate stays closed after the work is done.
    pub fn ns(&self) -> u64 {
        self.chosen_ns
    }

    /// A pause ended with the session's next command.
    pub fn pause(&mut self, ns: u64) {
        if ns >= PAUSE_MAX_NS {
            return;
        }
        let bin = CHOICES_NS.partition_point(|&choice| choice < ns);
        self.pauses[bin].0 += 1;
        self.pauses[bin].1 += ns;
        self.total += 1;
        if self.total > PAUSES_MAX {
            self.pauses.iter_mut().for_each(|(count, sum)| (*count, *sum) = (*count / 2, *sum / 2));
            self.total = self.pauses.iter().map(|(count, _)| count).sum();
        }
        self.until_choice -= 1;
        if self.until_choice == 0 {
            self.until_choice = PAUSES_BETWEEN_CHOICES;
            self.chosen_ns = self.cheapest();
        }
    }

    fn cheapest(&self) -> u64 {
        let (all, mut shorter, mut spent) = (u64::from(self.total), 0, 0);
        let cost = |at: usize| {
            let (count, sum) = self.pauses[at];
            shorter += u64::from(count);
            spent += sum;
            let longer = all - shorter;
            (spent + longer * (CHOICES_NS[at] + self.reopening_ns), at)
        };
        let choices = CHOICES_NS.partition_point(|&choice| choice <= self.reopening_ns);
        let (_, at) = (0..choices).map(cost).min().expect("there are choices");
        CHOICES_NS[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Dice;

    fn learned(mut pause: impl FnMut() -> u64) -> u64 {
        let mut linger = Linger::default();
        assert_eq!(linger.ns(), FIRST_NS);
        (0..4096).for_each(|_| linger.pause(pause()));
        linger.ns()
    }

    /// Pauses of requests that come at random, as long as `mean` on average.
    fn random_pause(dice: &mut Dice, mean: f64) -> u64 {
        (-mean * (1.0 - dice.share()).ln()) as u64
    }

    #[test]
    fn requests_that_come_at_random_have_the_shortest_linger() {
        let mut dice = Dice::new(1);
        assert_eq!(learned(|| random_pause(&mut dice, 1_300_000.0)), CHOICES_NS[0]);
    }

    #[test]
    fn an_eager_program_is_not_interrupted_between_its_kernels() {
        let mut dice = Dice::new(2);
        let linger = learned(|| match dice.below(100) {
            0 => random_pause(&mut dice, 1_300_000.0),
            _ => 5_000 + dice.below(25_000),
        });
        assert!((30_000..=60_000).contains(&linger), "{linger}");
        let mut dice = Dice::new(3);
        let decoding = learned(|| 60_000 + dice.below(60_000));
        assert_eq!(decoding, 120_000);
    }

    #[test]
    fn where_reopening_is_cheap_a_short_pause_is_given_away() {
        let pauses_of_90_us = |mut linger: Linger| {
            (0..4096).for_each(|_| linger.pause(90_000));
            linger.ns()
        };
        assert_eq!(pauses_of_90_us(Linger::new(Contexts::Apart)), 120_000);
        assert_eq!(pauses_of_90_us(Linger::new(Contexts::Merged)), CHOICES_NS[0]);
        let mut beside_long_kernels = Linger::new(Contexts::Merged);
        beside_long_kernels.set_longest_group(1_400_000);
        assert_eq!(pauses_of_90_us(beside_long_kernels), 120_000, "each reopening may cost the rest of one");
    }

    #[test]
    fn pauses_that_no_linger_reaches_are_not_waited_for() {
        assert_eq!(learned(|| 1_000_000), CHOICES_NS[0]);
        assert_eq!(learned(|| PAUSE_MAX_NS), FIRST_NS, "a pause between requests teaches nothing");
    }

    #[test]
    fn the_choice_is_the_cheapest_on_any_pauses() {
        let mut dice = Dice::new(4);
        for _ in 0..200 {
            let (base, spread) = (dice.below(400_000), 1 + dice.below(400_000));
            let pauses: Vec<u64> = (0..512).map(|_| base + dice.below(spread)).collect();
            let mut linger = Linger::default();
            pauses.iter().for_each(|&pause| linger.pause(pause));
            let cost = |choice: u64| -> u64 {
                let reopening_ns = Contexts::Apart.reopening_ns(GROUP_NS);
                let of = |&pause: &u64| if pause > choice { choice + reopening_ns } else { pause };
                pauses.iter().map(of).sum()
            };
            let best = CHOICES_NS[..CHOICES_NS.len() - 1].iter().map(|&choice| cost(choice)).min().unwrap();
            assert_eq!(cost(linger.ns()), best, "{base} {spread}");
        }
    }
}
