//! The constants of models of GPU whose pairs have been measured.

use crate::speed::SpeedModel;

/// Of an H200, fitted on 2026-11-19 from `docs/benchmarks/sharing-matrix-h200-2026-11-19.json`: the 18 pairs in which ResNet-50 trains,
/// launch by launch or as a graph, beside three online programs at loads 0.2, 0.5 and 0.8 with contexts of their own. Loads and busy
/// periods are those that the page of the GPU had, as boxes report them. Each pair is predicted within 0.05. Left out are BERT, whose
/// busy share alone was not measured, and products of matrices of 1.4 ms: such a kernel goes on at a closed gate, so it makes the online
/// program's own time longer, which the page counts as load.
const H200: SpeedModel = SpeedModel { yield_share: 0.952, kappa: 94e-6 };

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

    const MEASURED: &str = include_str!("../../../../docs/benchmarks/sharing-matrix-h200-2026-11-19.json");

    /// The pairs with contexts of their own in which ResNet-50 trains, as [`H200`] says.
    fn pairs() -> Vec<Pair> {
        let all: Value = serde_json::from_str(MEASURED).unwrap();
        let rows = all["rows"].as_array().unwrap();
        let dedicated = |work: &str| {
            let is_it = |row: &&Value| {
                row["row"] == "offline alone" && row["side"] == "slices" && row["work"] == work
            };
            rows.iter().find(is_it).unwrap()["offline"]["per_second"].as_f64().unwrap()
        };
        // As a graph the same training keeps the GPU busy all the time.
        let busy = |work: &str| dedicated(work) / dedicated("graph");
        let is_training = |row: &&Value| row["work"] == "train" || row["work"] == "graph";
        let is_pair = |row: &&Value| row["row"] == "both" && row["side"] == "isolated";
        let pair = |row: &Value| {
            let page = |field: &str| row["page"][field].as_f64().unwrap();
            Pair {
                online: Online { load: page("busy"), busy_periods: page("periods") },
                offline: Offline { busy: busy(row["work"].as_str().unwrap()) },
                speed: row["offline"]["of_alone"].as_f64().unwrap(),
            }
        };
        rows.iter().filter(is_pair).filter(is_training).map(pair).collect()
    }

    #[test]
    fn the_constants_of_an_h200_are_those_that_its_measured_pairs_give() {
        let pairs = pairs();
        let fitted = SpeedModel::fit(&pairs).unwrap();
        println!("{} pairs: {fitted:?}, worst error {:.3}", pairs.len(), fitted.worst_error(&pairs));
        assert_eq!(pairs.len(), 18);
        let used = speed_model("H200");
        assert!((used.yield_share - fitted.yield_share).abs() < 0.001, "{fitted:?}");
        assert!((used.kappa - fitted.kappa).abs() < 1e-6, "{fitted:?}");
        assert!(used.worst_error(&pairs) < 0.05, "{}", used.worst_error(&pairs));
        let assumed = SpeedModel::default();
        assert!(used.worst_error(&pairs) < assumed.worst_error(&pairs), "{}", assumed.worst_error(&pairs));
        assert_eq!(speed_model("A100"), assumed);
    }
}
