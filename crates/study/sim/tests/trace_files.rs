//! Traces as files: a small one that is whole, and many that are not.

#![allow(missing_docs, reason = "tests")]

use pool::Policy;
use sim::replay::{Extras, Trace, replay_table};
use std::fmt::Write;
use std::path::Path;

const NODES: &str = "openb_node_list_gpu_node.csv";
const PODS: &str = "openb_pod_list_own.csv";
const ALLOCATION: &str = "fgd_published_allocation.csv";
const FRAGMENT: &str = "fgd_published_frag_ratio.csv";

/// Two servers with two GPUs each; the first has processors for none of them, the second more than its GPUs can use.
const TWO_NODES: &str = "\
sn,cpu_milli,memory_mib,gpu,model
node-0,2000,65536,2,A
node-1,14000,65536,2,A
";
const FOUR_PODS: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos
pod-0,4000,1024,1,1000,,LS
pod-1,4000,1024,1,1000,,LS
pod-2,4000,1024,1,1000,A|B,LS
pod-3,4000,1024,1,1000,,BE
";

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn complaint(folder: &Path, list: &str) -> String {
    let error = Trace::read(folder, list).expect_err("this must be refused");
    // Paths differ from run to run; what matters is the file's name and everything after it.
    error.to_string().replace(&format!("{}/", folder.display()), "")
}

fn refuses(nodes: &str, pods: &str, expected: &str) {
    let folder = folder(&[(NODES, nodes), (PODS, pods)]);
    assert_eq!(complaint(folder.path(), "own"), expected);
}

/// The published tables, made up: the same number in every column.
fn table(list: &str, first_columns: &str, first_values: &str, rows: usize) -> String {
    let mut text = format!("workload,sc_policy,tune,seed{first_columns}");
    (0..=130).for_each(|load| write!(text, ",{load}").unwrap());
    text.push('\n');
    let policies = ["01-Random", "02-DotProd", "03-GpuClustering", "04-GpuPacking", "05-BestFit", "06-FGD"];
    let seeds = (42..=51).flat_map(|seed| policies.map(|policy| (seed, policy)));
    for (seed, policy) in seeds.take(rows) {
        write!(text, "openb_pod_list_{list},{policy},1.3,{seed}{first_values}").unwrap();
        (0..=130).for_each(|_| text.push_str(",50.0"));
        text.push('\n');
    }
    text
}

#[test]
fn processors_strand_gpus_in_servers_and_not_in_a_pool() {
    let folder = folder(&[(NODES, TWO_NODES), (PODS, FOUR_PODS)]);
    let trace = Trace::read(folder.path(), "own").unwrap();
    assert_eq!((trace.gpus(), trace.pods.len()), (4, 4));
    let results = replay_table(&trace, &Policy::ALL, &[42, 43], Extras { pooled: true, failing: None });
    for result in results {
        // One copy more makes 125 % load; the next one would be beyond 130 %.
        assert_eq!(result.coupled.curve.allocation_at_full_load(), 50.0, "{}", result.policy);
        assert_eq!((result.coupled.refused, result.coupled.refused_for_cpu_or_memory), (3.0, 3.0));
        // The second host has processors for three pods, whichever box their GPUs are in.
        let pooled = result.pooled.unwrap();
        assert_eq!(pooled.curve.allocation_at_full_load(), 75.0, "{}", result.policy);
        assert_eq!((pooled.refused, pooled.first_refusal_pct), (2.0, 100.0));
        assert!(result.published.is_none());
    }
}

#[test]
fn gpus_of_one_request_may_come_from_several_boxes() {
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\npod-0,0,0,4,1000\n";
    let folder = folder(&[(NODES, TWO_NODES), (PODS, pods)]);
    let trace = Trace::read(folder.path(), "own").unwrap();
    let result = &replay_table(&trace, &[Policy::Fgd], &[1], Extras { pooled: true, failing: None })[0];
    assert_eq!(result.pooled.as_ref().unwrap().curve.allocation_at_full_load(), 0.0);
    assert_eq!(result.pooled_any_box.as_ref().unwrap().curve.allocation_at_full_load(), 100.0);
}

#[test]
fn wrong_lines_are_named() {
    let pods = |line: &str| format!("name,cpu_milli,memory_mib,num_gpu,gpu_milli\npod-0,1,1,0,0\n{line}\n");
    let cases = [
        ("pod-1,1,1,1", "line 3: 4 fields, where the heading has 5"),
        ("pod-1,1,1,one,1000", "line 3: \"one\" in column \"num_gpu\" is not a number that can stand there"),
        ("pod-1,-1,1,1,1000", "line 3: \"-1\" in column \"cpu_milli\" is not a number that can stand there"),
        ("pod-1,1,1,1,0", "line 3: a pod with GPUs must need something of them, and gpu_milli is 0"),
        ("pod-1,1,1,2,500", "line 3: 2 shares of 500 thousandths: a share is of one GPU only"),
        ("pod-1,1,1,300,1000", "line 3: more GPUs than a server can have"),
        ("pod-0,1,1,1,1000", "line 3: \"pod-0\" follows \"pod-0\": names must be in rising order"),
        (",1,1,1,1000", "line 3: there is no name"),
        ("", "line 3: 1 fields, where the heading has 5"),
    ];
    for (line, reason) in cases {
        refuses(TWO_NODES, &pods(line), &format!("{PODS}, {reason}"));
    }
    let columns = "name,cpu_milli,memory_mib,num_gpu\n";
    refuses(TWO_NODES, columns, &format!("{PODS}, line 1: there is no column \"gpu_milli\" in the heading"));
    let nodes = TWO_NODES.replace("14000,65536,2", "14000,65536,65");
    refuses(&nodes, FOUR_PODS, &format!("{NODES}, line 3: 65 GPUs in one server; 64 is the most"));
    refuses(
        &TWO_NODES.replace(",2,A", ",0,"),
        FOUR_PODS,
        &format!("{NODES}: there is no GPU in this cluster"),
    );
}

#[test]
fn truncated_files_are_refused() {
    let cut = &FOUR_PODS[..FOUR_PODS.len() - 9];
    refuses(
        TWO_NODES,
        cut,
        &format!("{PODS}, line 5: the file ends in the middle of a line: it is truncated"),
    );
    let heading = FOUR_PODS.lines().next().unwrap();
    refuses(TWO_NODES, &format!("{heading}\n"), &format!("{PODS}: there is no pod in it"));
    refuses("", FOUR_PODS, &format!("{NODES}, line 1: there is no heading"));
    refuses(&TWO_NODES[..34], FOUR_PODS, &format!("{NODES}: there is no server in it"));
}

#[test]
fn a_published_list_must_be_whole() {
    let folder = folder(&[(NODES, TWO_NODES), ("openb_pod_list_default.csv", FOUR_PODS)]);
    let text = complaint(folder.path(), "default");
    assert!(
        text.starts_with(&format!("{NODES}: 2 servers with 4 GPUs, where the published cluster has 1213")),
        "{text}"
    );
    assert!(text.contains("truncated or altered"));
}

#[test]
fn lists_that_are_there_are_named() {
    let folder = folder(&[(NODES, TWO_NODES), (PODS, FOUR_PODS), ("openb_pod_list_b.csv", FOUR_PODS)]);
    assert_eq!(
        complaint(folder.path(), "c"),
        "openb_pod_list_c.csv: there is no such list; this folder has b, own"
    );
    assert!(complaint(&folder.path().join("nowhere"), "own").starts_with("cannot read "));
}

#[test]
fn published_tables_are_two_and_whole() {
    let good = (table("own", ",total_gpus", ",4", 60), table("own", "", "", 60));
    let files = |allocation: &str, fragment: &str| {
        folder(&[(NODES, TWO_NODES), (PODS, FOUR_PODS), (ALLOCATION, allocation), (FRAGMENT, fragment)])
    };
    let whole = files(&good.0, &good.1);
    let trace = Trace::read(whole.path(), "own").unwrap();
    let result = &replay_table(&trace, &[Policy::Packing], &[42, 43, 60], Extras::default())[0];
    let published = result.published.as_ref().unwrap();
    assert_eq!((published.rows_exact, published.rows_total), (0, 2), "seed 60 was never published");
    assert_eq!(published.curve.allocation_at_full_load(), 50.0);

    let short = files(&good.0, &table("own", "", "", 59));
    assert_eq!(
        complaint(short.path(), "own"),
        format!("{FRAGMENT}: no row for list own, 06-FGD, seed 51: truncated or altered")
    );
    let broken = files(&good.0.replacen(",50.0", ",fifty", 1), &good.1);
    assert!(
        complaint(broken.path(), "own")
            .starts_with(&format!("{ALLOCATION}, line 2: \"fifty\" in column \"0\""))
    );
    let twice = files(&good.0.replace(",1.3,43,", ",1.3,42,"), &good.1);
    assert!(complaint(twice.path(), "own").contains("there was a row for 01-Random, seed 42 before"));
    let one = folder(&[(NODES, TWO_NODES), (PODS, FOUR_PODS), (ALLOCATION, &good.0)]);
    assert!(complaint(one.path(), "own").starts_with(&format!("{FRAGMENT}: there is no such file, though")));
    let other = files(&table("other", ",total_gpus", ",4", 60), &table("other", "", "", 60));
    assert!(
        Trace::read(other.path(), "own").unwrap().published.is_none(),
        "these tables are of another list"
    );
}
