//! The table that people read.

use super::cluster::Cluster;
use super::day::{Day, simulate_day};
use super::policy::Seated;
use super::published;
use std::fmt::Write as _;

/// Plays a day by every policy and writes the table. `processor_ms` tells the processor time that this thread has taken; without
/// it the table says nothing about time.
pub fn table(cluster: &Cluster, mut processor_ms: impl FnMut() -> Option<f64>) -> String {
    let before = cluster.before();
    let mut text = format!(
        "{} GPUs, an online program on each; {} offline programs; means of a day\n\n",
        cluster.online.len(),
        cluster.offline.len()
    );
    text += "                          util %   SM %  memory %  guests %  speed   work   p99 max / mean %      steps  round ms\n";
    let mut known = |name: &str, [utilization, activity, memory]: [f64; 3]| {
        let _ = writeln!(text, "{name:<24} {utilization:>7.1} {activity:>6.1} {memory:>9.1}");
    };
    let (of_use, of_sms, of_memory) = (published::UTILIZATION, published::SM_ACTIVITY, published::MEMORY);
    known("published, before", [of_use.0, of_sms.0, of_memory.0]);
    known("published, after", [of_use.1, of_sms.1, of_memory.1]);
    known("here, before", [before.utilization, before.sm_activity, before.memory]);
    for policy in Seated::ALL {
        let (mut longest_ms, mut began_ms) = (None::<f64>, None);
        let day = simulate_day(cluster, policy, &mut |begins| {
            let now_ms = processor_ms();
            if begins {
                began_ms = now_ms;
            } else if let (Some(began_ms), Some(now_ms)) = (began_ms, now_ms) {
                longest_ms = Some(longest_ms.unwrap_or(0.0).max(now_ms - began_ms));
            }
        });
        text += &row(&day, longest_ms);
    }
    text
}

fn row(day: &Day, longest_ms: Option<f64>) -> String {
    let after = &day.after;
    let time = longest_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    format!(
        "{:<24} {:>7.1} {:>6.1} {:>9.1} {:>9.1} {:>6.2} {:>6.0} {:>9.1} / {:>4.1} {:>10} {:>9}\n",
        day.policy.name(),
        after.utilization,
        after.sm_activity,
        after.memory,
        after.seated,
        after.guest_speed,
        after.guest_work,
        after.p99_growth_max,
        after.p99_growth_mean,
        day.steps_max,
        time
    )
}
