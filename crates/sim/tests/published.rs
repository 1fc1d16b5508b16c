//! The published tables, where the recorded cluster is at hand.

#![allow(missing_docs, reason = "tests")]

use pool::Policy;
use sim::replay::{Extras, Trace, replay_table};
use std::path::PathBuf;

/// The recorded clusters: in $DXPU_TRACES, or beside the repository.
fn traces() -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
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
