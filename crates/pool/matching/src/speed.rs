//! How fast an offline program runs beside an online one.
//!
//! Offline work runs in the pauses of the online program, so
//!
//! ```text
//!   speed = min(1, (1 - load - kappa * busy periods per second) / busy)
//! ```
//!
//! `load`: the online program's share of time. `busy`: the offline program's share of time when it is alone; one that is not
//! busy all the time catches up. `kappa`: what each pause loses to two switches, the linger and the reopening, in
//! seconds; it is fitted from measured pairs, and so is a factor on the whole for what the waits cost.

/// What is measured of an online program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Online {
    /// Its share of time.
    pub load: f64,
    /// How often it becomes busy, per second.
    pub busy_periods: f64,
}

/// What is measured of an offline program, alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offline {
    /// Its share of time.
    pub busy: f64,
}

/// A pair that ran together, and how fast the offline program was, as a share of its rate alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The online program.
    pub online: Online,
    /// The offline program.
    pub offline: Offline,
    /// Its speed.
    pub speed: f64,
}

/// The two constants of a model of GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedModel {
    /// What is left of the pauses when the waits are paid.
    pub yield_share: f64,
    /// Seconds that each busy period costs.
    pub kappa: f64,
}

impl Default for SpeedModel {
    /// Before anything was measured: waits of 2 us for groups of 50, two switches of 130 us and a linger of 50.
    fn default() -> Self {
        Self { yield_share: 0.96, kappa: 310e-6 }
    }
}

/// Fewer pairs say nothing about two constants.
const PAIRS_MIN: usize = 4;
/// A pair that runs at full speed or stands still says only that the limit was reached.
/// A margin keeps measured values apart that are at the limit but for noise.
const INSIDE: std::ops::Range<f64> = 0.03..0.95;

impl SpeedModel {
    /// The constants that fit measured pairs best (least squares of `speed * busy`). `None` when they do not determine
    /// the constants, or determine ones that no machine has.
    pub fn fit(pairs: &[Pair]) -> Option<Self> {
        // speed * busy = yield * (1 - load)  -  (yield * kappa) * busy_periods: linear in the two products.
        let used = pairs.iter().filter(|pair| INSIDE.contains(&pair.speed));
        let (mut count, mut aa, mut ab, mut bb, mut ay, mut by) = (0, 0.0, 0.0, 0.0, 0.0, 0.0);
        for pair in used {
            let (a, b) = (1.0 - pair.online.load, -pair.online.busy_periods);
            let y = pair.speed * pair.offline.busy;
            (aa, ab, bb) = (aa + a * a, ab + a * b, bb + b * b);
            (ay, by) = (ay + a * y, by + b * y);
            count += 1;
        }
        let determinant = aa * bb - ab * ab;
        // Relative to the sizes of its terms: pairs whose loads and periods go together do not tell the two apart.
        if count < PAIRS_MIN || determinant <= 1e-9 * aa * bb {
            return None;
        }
        let yield_share = (ay * bb - by * ab) / determinant;
        let kappa = (aa * by - ab * ay) / determinant / yield_share;
        let is_possible = (0.1..=1.2).contains(&yield_share) && (0.0..0.1).contains(&kappa);
        is_possible.then_some(Self { yield_share, kappa })
    }

    /// The predicted speed.
    pub fn speed(&self, online: Online, offline: Offline) -> f64 {
        let left = self.yield_share * (1.0 - online.load - self.kappa * online.busy_periods);
        (left / offline.busy.max(0.01)).clamp(0.0, 1.0)
    }

    /// The largest error over pairs.
    pub fn worst_error(&self, pairs: &[Pair]) -> f64 {
        pairs
            .iter()
            .map(|pair| (self.speed(pair.online, pair.offline) - pair.speed).abs())
            .fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Dice;

    fn pairs(model: SpeedModel, noise: f64, seed: u64) -> Vec<Pair> {
        let mut dice = Dice::new(seed);
        let mut pair = || {
            let online = Online { load: 0.8 * dice.share(), busy_periods: 600.0 * dice.share() };
            let offline = Offline { busy: 0.5 + 0.5 * dice.share() };
            let speed = model.speed(online, offline) + noise * (dice.share() - 0.5);
            Pair { online, offline, speed }
        };
        (0..24).map(|_| pair()).collect()
    }

    #[test]
    fn constants_come_back_from_what_they_predict() {
        for (yield_share, kappa) in [(0.96, 310e-6), (1.0, 0.0), (0.8, 900e-6)] {
            let model = SpeedModel { yield_share, kappa };
            let fitted = SpeedModel::fit(&pairs(model, 0.0, 1)).unwrap();
            assert!((fitted.yield_share - yield_share).abs() < 1e-6, "{fitted:?}");
            assert!((fitted.kappa - kappa).abs() < 1e-9, "{fitted:?}");
        }
    }

    #[test]
    fn noise_of_four_points_moves_the_prediction_by_less_than_that() {
        for seed in 0..100 {
            let model = SpeedModel::default();
            let Some(fitted) = SpeedModel::fit(&pairs(model, 0.04, seed)) else { panic!("seed {seed}") };
            assert!(fitted.worst_error(&pairs(model, 0.0, seed + 1000)) < 0.04, "seed {seed}: {fitted:?}");
        }
    }

    #[test]
    fn pairs_that_do_not_tell_the_constants_apart_fit_nothing() {
        let same = Pair {
            online: Online { load: 0.5, busy_periods: 192.0 },
            offline: Offline { busy: 1.0 },
            speed: 0.45,
        };
        assert_eq!(SpeedModel::fit(&[same; 10]), None);
        assert_eq!(SpeedModel::fit(&pairs(SpeedModel::default(), 0.0, 1)[..3]), None);
        let at_its_limit: Vec<Pair> = pairs(SpeedModel::default(), 0.0, 2)
            .into_iter()
            .map(|pair| Pair { speed: 1.0, ..pair })
            .collect();
        assert_eq!(SpeedModel::fit(&at_its_limit), None);
    }

    #[test]
    fn the_measured_pair_of_an_h200_is_within_reach() {
        // ResNet-50 at load 0.5 beside ResNet-50 training: 0.42 with plain contexts and crude groups.
        let online = Online { load: 0.5, busy_periods: 192.0 };
        let speed = SpeedModel::default().speed(online, Offline { busy: 0.93 });
        assert!((0.40..0.50).contains(&speed), "{speed}");
        assert_eq!(
            SpeedModel::default().speed(Online { load: 1.0, busy_periods: 0.0 }, Offline { busy: 1.0 }),
            0.0
        );
    }
}
