//! `dxpu tenant usage`: GPU time of tenants.

use super::ask;
use super::list::Look;
use super::words::time;
use crate::support::exit::Outcome;
use crate::support::table::Column;
use pool_api::{Model, TenantUsage};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn list(look: &Look) -> Outcome {
    look.table(
        &[
            Column::Whole("TENANT"),
            Column::Number("GPU HOURS"),
            Column::Number("RUNNING"),
            Column::Number("LEASES"),
            Column::Cut("BY MODEL"),
            Column::Whole("SINCE"),
        ],
        |client| ask::all::<TenantUsage>(client, "/v1/usage").map(|(usage, _)| usage),
        |usage| {
            let running: u64 = usage.running_gpu_ms.values().sum();
            vec![
                usage.tenant.to_string().into(),
                hours(usage.ended_gpu_ms.values().sum::<u64>() + running).into(),
                hours(running).into(),
                usage.leases_ended.to_string().into(),
                by_model(usage).into(),
                time(usage.since_ms).into(),
            ]
        },
        "no tenant has used a GPU yet",
    )
}

/// `12.50`: hours of one GPU.
fn hours(gpu_ms: u64) -> String {
    format!("{:.2}", gpu_ms as f64 / 3_600_000.0)
}

fn by_model(usage: &TenantUsage) -> String {
    let models: BTreeSet<&Model> = usage.ended_gpu_ms.keys().chain(usage.running_gpu_ms.keys()).collect();
    let of = |times: &BTreeMap<Model, u64>, model: &Model| times.get(model).copied().unwrap_or(0);
    let sum = |model: &Model| of(&usage.ended_gpu_ms, model) + of(&usage.running_gpu_ms, model);
    models.into_iter().map(|model| format!("{model} {}", hours(sum(model)))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::Name;

    #[test]
    fn time_of_leases_that_run_is_added_to_that_of_leases_that_are_over() {
        let model = |text: &str| Model::new(text).unwrap();
        let usage = TenantUsage {
            tenant: Name::new("vision").unwrap(),
            since_ms: 0,
            leases_ended: 2,
            ended_gpu_ms: [(model("H200"), 5_400_000), (model("L40S"), 3_600_000)].into(),
            running_gpu_ms: [(model("H200"), 1_800_000)].into(),
        };
        assert_eq!(by_model(&usage), "H200 2.00, L40S 1.00");
    }
}
