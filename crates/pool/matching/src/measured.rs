//! The constants of models of GPU whose pairs have been measured.

use crate::speed::SpeedModel;

/// Of an H200, fitted on 2026-11-17 from the six rows of `docs/benchmarks/sharing-h200-2026-11-17.json` in which ResNet-50 trains
/// behind the gate, at loads 0.2, 0.5 and 0.8: each is predicted within 0.03. Products of matrices of 1.4 ms are left out. Such a
/// kernel goes on at a closed gate: it gets more than the pauses (0.49 at load 0.5), and the online program pays.
const H200: SpeedModel = SpeedModel { yield_share: 0.814, kappa: 250e-6 };

/// The constants of a model, by its name in the pool; the assumed ones where none were measured.
pub fn speed_model(model: &str) -> SpeedModel {
    match model {
        "H200" => H200,
        _ => SpeedModel::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speed::{Offline, Online, Pair};
    use serde_json::Value;

    const MEASURED: &str = include_str!("../../../../docs/benchmarks/sharing-h200-2026-11-17.json");

    /// The pairs of the run with several loads. Requests come at random and take equally long, so of `load / service` requests a
    /// second a share of `1 - load` finds the program idle: as many busy periods there are.
    fn pairs() -> Vec<Pair> {
        let all: Value = serde_json::from_str(MEASURED).unwrap();
        let run = &all["runs"][1];
        let service_s = run["service_us"].as_f64().unwrap() / 1e6;
        let rows = run["rows"].as_array().unwrap();
        let alone = |work: &str| {
            let is_it = |row: &&Value| row["row"] == "offline alone, dedicated" && row["work"] == work;
            rows.iter().find(is_it).unwrap()["offline"]["per_second"].as_f64().unwrap()
        };
        // As a graph the same training keeps the GPU busy all the time.
        let busy = |work: &str| alone(work) / alone("graph");
        let is_pair = |row: &&Value| row["row"] == "both, gate" && row["work"] != "product";
        let pair = |row: &Value| {
            let load = row["load"].as_f64().unwrap();
            Pair {
                online: Online { load, busy_periods: load * (1.0 - load) / service_s },
                offline: Offline { busy: busy(row["work"].as_str().unwrap()) },
                speed: row["offline"]["of_alone"].as_f64().unwrap(),
            }
        };
        rows.iter().filter(is_pair).map(pair).collect()
    }

    #[test]
    fn the_constants_of_an_h200_are_those_that_its_measured_pairs_give() {
        let pairs = pairs();
        let fitted = SpeedModel::fit(&pairs).unwrap();
        println!("{} pairs: {fitted:?}, worst error {:.3}", pairs.len(), fitted.worst_error(&pairs));
        assert_eq!(pairs.len(), 6);
        let used = speed_model("H200");
        assert!((used.yield_share - fitted.yield_share).abs() < 0.001, "{fitted:?}");
        assert!((used.kappa - fitted.kappa).abs() < 1e-6, "{fitted:?}");
        assert!(used.worst_error(&pairs) < 0.03, "{}", used.worst_error(&pairs));
        let assumed = SpeedModel::default();
        assert!(used.worst_error(&pairs) < assumed.worst_error(&pairs), "{}", assumed.worst_error(&pairs));
        assert_eq!(speed_model("A100"), assumed);
    }
}
