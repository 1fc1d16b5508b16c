//! Sharing at 10,000 GPUs, where the recorded cluster is at hand.

#![allow(missing_docs, reason = "tests")]

use sim::replay::read_classes;
use sim::sharing::{Cluster, Seated, Supply, published, simulate_day};
use std::path::PathBuf;

const GPUS: usize = 10_000;
/// Basic steps of a round, of which each takes about a nanosecond: far below 100 ms.
const STEPS_MAX: u64 = 50_000_000;

/// The recorded clusters: in $DXPU_TRACES, or beside the repository.
fn traces() -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/traces");
    let folder = std::env::var_os("DXPU_TRACES").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: there are no recorded clusters at {} (set DXPU_TRACES)", folder.display());
    None
}

#[test]
fn guests_fill_a_recorded_cluster_of_10000_gpus() {
    let Some(folder) = traces() else { return };
    let pods = read_classes(&folder, "default").unwrap();
    let count = |qos: &str| pods.iter().filter(|pod| pod.qos == qos).count();
    assert_eq!((count("LS"), count("BE")), (4_011, 2_948), "as recorded");
    let cluster = Cluster::draw(&pods, GPUS, Supply::Plenty, 42);
    let before = cluster.before();
    assert!((before.utilization - published::UTILIZATION.0).abs() < 0.01, "{before:?}");
    let day = simulate_day(&cluster, Seated::Transport, &mut |_| {});
    let after = day.after;
    assert!(after.utilization >= published::UTILIZATION.1, "{after:?}");
    assert!(after.sm_activity >= published::SM_ACTIVITY.1, "{after:?}");
    assert!(after.memory >= published::MEMORY.1 - 0.5, "{after:?}");
    assert!(day.steps_max <= STEPS_MAX, "{}", day.steps_max);
    let random = simulate_day(&cluster, Seated::Random, &mut |_| {}).after;
    assert!(after.guest_work >= random.guest_work, "{after:?} {random:?}");
}
