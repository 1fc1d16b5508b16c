//! The published tables, where the recorded cluster is at hand.

#![allow(missing_docs, reason = "tests")]

use pool::Policy;
use sim::replay::{Extras, Trace, Workload, replay_coupled, replay_table};
use std::path::PathBuf;

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

fn reproduces(list: &str) {
    let Some(folder) = traces() else { return };
    let trace = Trace::read(&folder, list).unwrap();
    let seeds: Vec<u64> = (42..52).collect();
    for result in replay_table(&trace, &Policy::ALL, &seeds, Extras::default()) {
        let published = result.published.expect("the published tables lie beside the lists");
        let (ours, theirs) =
            (published.ours.allocation_at_full_load(), published.curve.allocation_at_full_load());
        eprintln!(
            "{list} {} {ours:.3} {theirs:.3} {}/{}",
            result.policy, published.rows_exact, published.rows_total
        );
        assert_eq!(published.rows_total, 10);
        if result.policy == Policy::Random {
            assert!((ours - theirs).abs() <= 0.3, "{list}, random: {ours:.3}, published {theirs:.3}");
        } else {
            assert_eq!(published.rows_exact, 10, "{list}, {}: rows equal in every column", result.policy);
        }
    }
}

#[test]
fn the_default_list_comes_out_as_published() {
    reproduces("default");
}

#[test]
fn the_list_with_more_shares_comes_out_as_published() {
    reproduces("gpushare40");
}

#[test]
fn the_list_with_more_multi_gpu_pods_comes_out_as_published() {
    reproduces("multigpu20");
}

#[test]
fn a_published_list_that_lost_its_last_lines_is_refused() {
    let Some(folder) = traces() else { return };
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(folder.join("openb")).unwrap() {
        let file = file.unwrap();
        std::fs::write(copy.path().join(file.file_name()), std::fs::read(file.path()).unwrap()).unwrap();
    }
    let cut = |name: &str, lines: usize| {
        let whole = std::fs::read_to_string(copy.path().join(name)).unwrap();
        let part: String = whole.lines().take(lines).flat_map(|line| [line, "\n"]).collect();
        std::fs::write(copy.path().join(name), part).unwrap();
        let complaint = Trace::read(copy.path(), "multigpu20").unwrap_err().to_string();
        assert!(complaint.contains(name) && complaint.contains("truncated"), "{complaint}");
        std::fs::write(copy.path().join(name), whole).unwrap();
        Trace::read(copy.path(), "multigpu20").expect("it is whole again");
    };
    cut("openb_pod_list_multigpu20.csv", 8_000);
    cut("openb_node_list_gpu_node.csv", 1_213);
    cut("fgd_published_allocation.csv", 180);
    cut("fgd_published_frag_ratio.csv", 1);
}

#[test]
fn a_seed_gives_the_order_and_the_ties_it_gave_there() {
    let Some(folder) = traces() else { return };
    let trace = Trace::read(&folder, "default").unwrap();
    let workload = Workload::new(&trace, 42);
    let (originals, copies) = workload.arrivals.split_at(trace.pods.len());
    assert_eq!(originals[..12], [255, 1685, 6784, 4463, 602, 1564, 3882, 7257, 6545, 1541, 1599, 3697]);
    assert_eq!(copies[..8], [3888, 5689, 2936, 788, 5416, 104, 5457, 3884]);
    assert_eq!(workload.arrivals[10_863..], [5762, 7197, 5877]);
    assert_eq!(workload.orders[..10], [601, 815, 450, 13, 731, 1143, 966, 834, 181, 1060]);
}

#[test]
fn runs_end_as_they_ended_there() {
    let Some(folder) = traces() else { return };
    let trace = Trace::read(&folder, "default").unwrap();
    let expected = [
        (Policy::DotProduct, 2_874, 5_624_470, 90.26),
        (Policy::Clustering, 2_797, 5_686_120, 91.24),
        (Policy::Packing, 2_794, 5_688_580, 91.29),
        (Policy::BestFit, 2_676, 5_785_450, 92.86),
        (Policy::Fgd, 2_532, 5_919_410, 94.89),
    ];
    for (policy, refused, used_milli, first_refusal_pct) in expected {
        let run = replay_coupled(&trace, policy, 42);
        let last = run.records.last().unwrap();
        assert_eq!((run.refused, last.used_milli), (refused, used_milli), "{policy}");
        assert_eq!(last.arrived_milli, 8_075_080);
        let first = 100.0 * run.first_refusal_milli.unwrap() as f64 / trace.gpu_milli() as f64;
        assert!((first - first_refusal_pct).abs() <= 0.005, "{policy}: {first}");
    }
}
