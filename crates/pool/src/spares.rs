//! How many spares a pool needs, in closed form.
//!
//! GPUs break independently and come back after repair. However long repairs take, if they take `m` on average, the
//! number in repair at a random moment is Poisson with mean (breaking GPUs) x (rate) x m. The spares needed are its
//! quantile. The simulator in crate `sim` checks this by playing it out.

use pool_api::{Invalid, SparePlan, SparePlanRequest};

/// The chance that no more than `spares` GPUs are in repair, if `mean` are on average.
pub fn poisson_cover(mean: f64, spares: u64) -> f64 {
    // In logarithms: e^-mean alone is zero beyond a mean of 745.
    let mut log_term = -mean;
    let mut sum = log_term.exp();
    for count in 1..=spares {
        log_term += mean.ln() - (count as f64).ln();
        sum += log_term.exp();
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
    if mean == 0.0 {
        return 0;
    }
    let (mut log_term, mut sum, mut spares) = (-mean, (-mean).exp(), 0u64);
    // Rounding keeps the sum from ever reaching a cover within 1e-12 of one; far beyond the mean, terms no longer count.
    let beyond = (mean + 40.0 * mean.sqrt() + 40.0) as u64;
    while sum < cover && spares < beyond {
        spares += 1;
        log_term += mean.ln() - (spares as f64).ln();
        sum += log_term.exp();
    }
    spares
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
