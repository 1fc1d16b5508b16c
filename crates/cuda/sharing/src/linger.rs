//! How long the gate stays closed after an online session's work is done.
//!
//! An eager program pauses for microseconds between the kernels of one request. Opening the gate there would cost the
//! next kernel a drain and two switches; keeping it closed costs the offline program the pause. So the linger L is
//! the one that would have cost least over the pauses seen lately:
//!
//! ```text
//!   cost(L) = sum of min(pause, L)  +  REOPENING * number of pauses longer than L
//! ```
//!
//! A percentile of the pauses would not do: requests that come at random have pauses of all lengths, and a percentile
//! of those is as long as it may be. Their cost is least for the shortest linger, because how long such a pause
//! has lasted says nothing about how long it will last.

/// What opening the gate too early costs: a switch each way (130 us on an H200) and the rest of a group.
const REOPENING_NS: u64 = 300_000;
/// Longer pauses are between requests, whatever the program.
const PAUSE_MAX_NS: u64 = 2_000_000;
/// The lingers to choose from. The longest is the price of a reopening: beyond it, lingering costs more than it can save.
const CHOICES_NS: [u64; 12] = [
    10_000,
    15_000,
    20_000,
    30_000,
    40_000,
    60_000,
    80_000,
    120_000,
    160_000,
    200_000,
    250_000,
    REOPENING_NS,
];
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
}

impl Default for Linger {
    fn default() -> Self {
        let pauses = [(0, 0); CHOICES_NS.len() + 1];
        Self { pauses, total: 0, until_choice: PAUSES_BETWEEN_CHOICES, chosen_ns: FIRST_NS }
    }
}

impl Linger {
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
            (spent + longer * (CHOICES_NS[at] + REOPENING_NS), at)
        };
        let (_, at) = (0..CHOICES_NS.len()).map(cost).min().expect("there are choices");
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
                let of = |&pause: &u64| if pause > choice { choice + REOPENING_NS } else { pause };
                pauses.iter().map(of).sum()
            };
            let best = CHOICES_NS.iter().map(|&choice| cost(choice)).min().unwrap();
            assert_eq!(cost(linger.ns()), best, "{base} {spread}");
        }
    }
}
