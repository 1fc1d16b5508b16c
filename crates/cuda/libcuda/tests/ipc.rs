//! Memory and events between two processes of a program: over the real library and real sessions of the software GPU.

#![allow(unsafe_code)]

mod ipc_program;
mod support;

use driver_soft::SoftConfig;
use support::Setting;

/// Not a test: what the session processes run, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    support::serve_session(&SoftConfig {
        memory_bytes: 256 << 20,
        block_threads: 0,
        ..SoftConfig::default()
    });
}

/// Not a test: what the program is.
#[test]
#[ignore = "the program that the tests run"]
fn program() {
    ipc_program::run(&support::plan());
}

/// Runs a program that must end well, and returns what it said.
fn run(plan: &str, environment: &[(&str, &str)]) -> String {
    support::run(Setting { spares: 2, ..Setting::default() }, plan, environment)
}

#[test]
fn memory_of_one_process_is_memory_of_the_other() {
    run("memory", &[]);
}

#[test]
fn streams_of_one_process_wait_for_events_of_the_other() {
    run("events", &[]);
}

#[test]
fn what_a_call_has_done_the_other_process_finds() {
    run("order", &[]);
}

#[test]
fn physical_memory_goes_by_descriptor() {
    run("physical", &[]);
}

#[test]
fn pools_go_by_descriptor_and_their_addresses_by_name() {
    run("pools", &[]);
}

#[test]
fn invented_handles_open_nothing() {
    let said = run("strangers", &[]);
    assert!(said.contains("cuIpcOpenMemHandle: the handle opens nothing"), "{said}");
    assert!(said.contains("no such handle of dxpu's"), "{said}");
}

#[test]
fn handles_of_another_worker_open_nothing() {
    let other = support::Worker::start(Setting::default());
    let said = run("strangers", &[("IPC_OTHER_WORKER", &other.address)]);
    assert!(said.contains("the handle belongs to another worker"), "{said}");
}

#[test]
fn a_protected_program_that_shares_is_told_that_it_is_no_longer_protected() {
    let said = run("order", &[("DXPU_SURVIVE", "1")]);
    let told = said.lines().filter(|line| line.contains("no longer protected")).collect::<Vec<_>>();
    assert_eq!(told.len(), 2, "both processes: {said}");
    assert!(told[0].contains("shares memory or events"), "{said}");
}
