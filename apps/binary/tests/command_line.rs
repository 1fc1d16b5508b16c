//! What a person meets at the command line.

#![allow(missing_docs, reason = "tests")]

use std::process::{Command, Output};

fn dxpu(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_dxpu"))
        .args(arguments)
        .env("XDG_STATE_HOME", directory.path().join("state"))
        .env("XDG_CACHE_HOME", directory.path().join("cache"))
        .env_remove("DXPU_TOKEN")
        .env_remove("DXPU_WORKER")
        .output()
        .unwrap()
}

fn fails(arguments: &[&str], code: i32, words: &[&str]) {
    let output = dxpu(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    for word in words.iter().chain(&["what to do:"]) {
        assert!(text.contains(word), "{arguments:?} does not say {word}: {text}");
    }
}

#[test]
fn failures_say_what_to_do() {
    fails(&["worker", "--listen", "tcp:127.0.0.1:0"], 2, &["in the clear", "--plain"]);
    fails(&["worker", "--listen", "unix:/nowhere/socket"], 1, &["cannot listen"]);
    fails(&["worker", "--listen", "unix:/tmp/x", "--driver", "nvidia"], 3, &["--driver soft"]);
    fails(&["run", "--worker", "tcp:127.0.0.1:1", "--", "true"], 64, &["nobody listens", "dxpu worker"]);
    fails(&["run", "--worker", "127.0.0.1:1", "--", "true"], 2, &["--fingerprint"]);
}

#[test]
fn help_has_examples_and_pages_are_written() {
    let help = String::from_utf8(dxpu(&["--help"]).stdout).unwrap();
    assert!(help.contains("dxpu demo") && !help.contains("worker-session"), "{help}");
    assert!(String::from_utf8(dxpu(&["completions", "bash"]).stdout).unwrap().contains("_dxpu"));
    assert!(String::from_utf8(dxpu(&["man"]).stdout).unwrap().contains(".TH dxpu"));
}

#[test]
fn a_release_build_says_its_version_alone_and_any_other_that_it_is_a_quick_build() {
    let version = String::from_utf8(dxpu(&["--version"]).stdout).unwrap();
    let number = concat!("dxpu ", env!("CARGO_PKG_VERSION"));
    if env!("CARGO_BIN_EXE_dxpu").contains("/release/") {
        assert_eq!(version, format!("{number}\n"));
    } else {
        assert!(version.starts_with(&format!("{number} (quick build")), "{version}");
        fails(&["bench", "api", "--check"], 3, &["quick build", "make build"]);
    }
}

#[test]
fn the_demo_breaks_the_gpu_of_a_program_that_runs_and_the_program_goes_on_at_the_spare() {
    let output = dxpu(&["demo"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for words in ["every sum right", "every point as the CPU has it"] {
        assert_eq!(text.matches(words).count(), 1, "{words}: {text}");
    }
    // Once at the end of each of two runs, and once more of each beside the other.
    assert_eq!(text.matches("the sum that the GPU kept over all rows is 80621").count(), 4, "{text}");
    assert!(text.contains("is broken -----") && text.contains("spare, in use"), "{text}");
    assert!(text.contains("dashboard   https://127.0.0.1:"), "{text}");
}
