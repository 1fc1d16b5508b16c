//! Models of everything around the crate, driven by seeds: a seed that fails fails again.

mod gate_model;
mod graph_model;
mod memory_model;
mod page_model;
mod presence_model;
mod queue_model;
mod turns_doubt;
mod turns_faults;
mod turns_shares;
mod turns_world;

/// Chance from a seed (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// At least 0, less than 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The first of `seeds` whose run breaks a rule, with the rule.
fn first_failure(seeds: std::ops::Range<u64>, run: impl Fn(u64) -> Result<(), String>) -> Option<String> {
    seeds.into_iter().find_map(|seed| run(seed).err().map(|rule| format!("seed {seed}: {rule}")))
}

/// Runs with a mistake planted and says whether a rule was broken.
fn is_found(
    mutant: crate::mutant::Mutant,
    seeds: std::ops::Range<u64>,
    run: impl Fn(u64) -> Result<(), String>,
) -> bool {
    crate::mutant::plant(Some(mutant));
    let failure = first_failure(seeds, run);
    crate::mutant::plant(None);
    failure.is_some()
}
