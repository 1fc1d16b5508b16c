//! `dxpu sim replay` at the command line, on a small cluster made up for it.

#![allow(missing_docs, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output};

fn replay(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dxpu")).args(["sim", "replay"]).args(arguments).output().unwrap()
}

/// Two servers with two GPUs each, of which the first has no processors to speak of.
fn cluster() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\nnode-0,2000,9999,2,A\nnode-1,14000,9999,2,A\n";
    std::fs::write(folder.path().join("openb_node_list_gpu_node.csv"), nodes).unwrap();
    let mut pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n".to_owned();
    for number in 0..4 {
        pods.push_str(&format!("pod-{number},4000,1,1,1000\n"));
    }
    std::fs::write(folder.path().join("openb_pod_list_own.csv"), pods).unwrap();
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn json_has_the_figures_and_the_plot_is_drawn() {
    let folder = cluster();
    let plot = folder.path().join("replay.svg");
    let trace = text(folder.path());
    let output = replay(&[
        "--trace",
        trace,
        "--list",
        "own",
        "--policy",
        "fgd",
        "--seeds",
        "2",
        "--pooled",
        "--json",
        "--plot",
        text(&plot),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["policy"], "fgd");
    assert_eq!(json["allocation_pct"], 50.0);
    assert_eq!(json["pooled"]["allocation_pct"], 75.0);
    assert_eq!(json["pooled"]["gain_points"], 25.0);
    assert!(json["frag_ratio_pct"].is_number() && json.get("rows_total").is_none(), "{json}");
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("pooled, any box 75.00"), "{svg}");
}

#[test]
fn all_policies_make_a_table_and_spares_are_simulated() {
    let folder = cluster();
    let trace = text(folder.path());
    let output = replay(&[
        "--trace",
        trace,
        "--list",
        "own",
        "--seeds",
        "1",
        "--spares",
        "90",
        "--failure-rate",
        "50",
        "--pool-sizes",
        "20",
        "--json",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["policies"].as_array().unwrap().len(), 6);
    let pool = &json["spares"][0]["pools"][0];
    assert_eq!(
        (&pool["gpus"], &pool["spares_computed"], &pool["spares_simulated"]),
        (&20.into(), &1.into(), &1.into())
    );
    assert!(json["policies"][5]["pooled_with_spares"]["lease_time_kept_pct"].is_number(), "{json}");

    let table =
        String::from_utf8(replay(&["--trace", trace, "--list", "own", "--seeds", "1"]).stdout).unwrap();
    for name in ["random", "dotprod", "clustering", "packing", "bestfit", "fgd"] {
        assert!(table.contains(name), "{table}");
    }
}

#[test]
fn a_truncated_trace_ends_with_file_line_and_reason() {
    let folder = cluster();
    let pods = folder.path().join("openb_pod_list_own.csv");
    let whole = std::fs::read_to_string(&pods).unwrap();
    std::fs::write(&pods, &whole[..whole.len() - 3]).unwrap();
    let output = replay(&["--trace", text(folder.path()), "--list", "own", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.contains("openb_pod_list_own.csv, line 5: the file ends in the middle of a line"),
        "{errors}"
    );
    assert!(errors.contains("what to do:") && output.stdout.is_empty(), "{errors}");
}

#[test]
fn arguments_are_checked_and_help_teaches() {
    for wrong in [["--policy", "best"], ["--seeds", "0"], ["--spares", "100"], ["--failure-rate", "-1"]] {
        let output = replay(&[&["--trace", "."], &wrong[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    let help = String::from_utf8(replay(&["--help"]).stdout).unwrap();
    assert!(help.contains("dxpu sim replay --trace") && help.contains("cluster-trace-gpu-v2023"), "{help}");
}
