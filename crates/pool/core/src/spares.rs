//! How many spares a pool needs, in closed form.
//!
//! GPUs break independently and come back after repair. However long repairs take, if they take `m` on average, the
//! number in repair at a random moment is Poisson with mean (breaking GPUs) x (rate) x m. The spares needed are its
//! quantile. The simulator in crate `sim` checks this by playing it out.

use pool_api::{Invalid, SparePlan, SparePlanRequest};

/// How far from the mean, in standard deviations, terms still count.
const FAR: f64 = 40.0;

/// The chances of 0, 1, 2, … GPUs in repair, from the first count whose chance is not nothing.
///
/// A sum over all of them takes as long as the mean is large, and what a stranger asks may be large: this begins near it.
struct Terms {
    mean: f64,
    count: u64,
    log_term: f64,
}

impl Terms {
    fn of(mean: f64) -> Self {
        let count = (mean - FAR * mean.sqrt() - FAR).max(0.0) as u64;
        Self { mean, count, log_term: log_chance(mean, count) }
    }

    /// The chance of `count`; the next one is then due.
    fn next(&mut self) -> f64 {
        let term = self.log_term.exp();
        self.count += 1;
        self.log_term += (self.mean / self.count as f64).ln();
        term
    }
}

/// The logarithm of the chance that exactly `count` are in repair.
fn log_chance(mean: f64, count: u64) -> f64 {
    // In logarithms: e^-mean alone is zero beyond a mean of 745.
    if count < 64 {
        return (1..=count).fold(-mean, |sum, factor| sum + (mean / factor as f64).ln());
    }
    // Stirling's series for the factorial, arranged so that large numbers do not cancel: exact to the last digits here.
    let k = count as f64;
    let off = (mean - k) / k;
    k * (off.ln_1p() - off) - 0.5 * (2.0 * std::f64::consts::PI * k).ln() - 1.0 / (12.0 * k)
        + 1.0 / (360.0 * k.powi(3))
}

/// The chance that no more than `spares` GPUs are in repair, if `mean` are on average.
pub fn poisson_cover(mean: f64, spares: u64) -> f64 {
    if mean == 0.0 {
        return 1.0;
    }
    let beyond = (mean + FAR * mean.sqrt() + FAR) as u64;
    let mut terms = Terms::of(mean);
    let mut sum = 0.0;
    while terms.count <= spares.min(beyond) {
        sum += terms.next();
    }
    sum.min(1.0)
}

/// The fewest spares that suffice for this share of the time (such as 0.999), if `mean` GPUs are in repair on average.
///
/// # Panics
///
/// If `mean` is not a finite number of at least zero, or `cover` is not in `0.0..1.0`: no number of spares is enough.
pub fn spares_for(mean: f64, cover: f64) -> u64 {
    assert!(mean.is_finite() && mean >= 0.0, "{mean} is no mean number of GPUs in repair");
    assert!((0.0..1.0).contains(&cover), "no number of spares covers {cover} of the time");
    if mean == 0.0 || cover == 0.0 {
        return 0;
    }
    // Rounding keeps the sum from ever reaching a cover within 1e-12 of one; far beyond the mean, terms no longer count.
    let beyond = (mean + FAR * mean.sqrt() + FAR) as u64;
    let mut terms = Terms::of(mean);
    let mut sum = terms.next();
    while sum < cover && terms.count <= beyond {
        sum += terms.next();
    }
    terms.count - 1
}

/// How many spares a pool needs.
pub fn plan_spares(request: &SparePlanRequest) -> Result<SparePlan, Invalid> {
    request.check()?;
    let mean =
        request.gpus as f64 * request.failures_pct_per_year / 100.0 * request.repair_days / DAYS_PER_YEAR;
    let spares = spares_for(mean, request.cover_pct / 100.0);
    Ok(SparePlan { spares, in_repair_mean: mean, covered_pct: 100.0 * poisson_cover(mean, spares) })
}

const DAYS_PER_YEAR: f64 = 365.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_is_the_first_that_covers() {
        for mean in [0.001, 0.4, 1.0, 5.2, 83.6, 1500.0] {
            for cover in [0.9, 0.999, 0.99999] {
                let spares = spares_for(mean, cover);
                assert!(poisson_cover(mean, spares) >= cover, "{mean} {cover}: {spares}");
                assert!(spares == 0 || poisson_cover(mean, spares - 1) < cover, "{mean} {cover}: {spares}");
            }
        }
    }

    #[test]
    fn a_large_mean_takes_no_longer_and_is_as_exact() {
        // Near a large mean the distribution is normal; the 97.7 % quantile is two standard deviations above.
        for mean in [1e6, 1e8, 1e10] {
            let spares = spares_for(mean, 0.977_249_868);
            let expected = mean + 2.0 * f64::sqrt(mean);
            assert!(
                (spares as f64 - expected).abs() < 3.0 + 1e-3 * mean.sqrt(),
                "{mean}: {spares} for {expected}"
            );
            assert!((poisson_cover(mean, spares) - 0.977_249_868).abs() < 1e-4);
        }
        // Summed from zero and begun near the mean: the same.
        let mean = 2000.0f64;
        let mut log_term = -mean;
        let mut sum = log_term.exp();
        for count in 1..=2100u32 {
            log_term += mean.ln() - f64::from(count).ln();
            sum += log_term.exp();
        }
        assert!((poisson_cover(mean, 2100) - sum).abs() < 1e-9);
    }

    #[test]
    fn public_failure_rates_need_few_spares() {
        // 6.1 % of GPUs fail in a year, 11.1 % with all causes; five days' repair.
        let plan = |gpus, failures_pct_per_year| {
            let request = SparePlanRequest { gpus, failures_pct_per_year, repair_days: 5.0, cover_pct: 99.9 };
            plan_spares(&request).unwrap().spares
        };
        assert_eq!((plan(512, 6.1), plan(512, 11.1)), (3, 5));
        assert_eq!((plan(10_000, 6.1), plan(10_000, 11.1)), (19, 29));
        let all =
            SparePlanRequest { gpus: 1, failures_pct_per_year: 1.0, repair_days: 1.0, cover_pct: 100.0 };
        assert_eq!(plan_spares(&all).unwrap_err().field, "cover_pct");
        assert!(plan_spares(&SparePlanRequest { repair_days: f64::NAN, cover_pct: 99.0, ..all }).is_err());
    }

    #[test]
    fn textbook_values() {
        assert!((poisson_cover(1.0, 0) - 0.367_879_441).abs() < 1e-9);
        assert!((poisson_cover(1.0, 3) - 0.981_011_843).abs() < 1e-9);
        assert_eq!(spares_for(1.0, 0.999), 5);
        assert_eq!(spares_for(0.0, 0.999), 0);
    }
}
