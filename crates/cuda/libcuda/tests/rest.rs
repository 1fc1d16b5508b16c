//! Smaller parts of the driver API: a program over the real library and a real session of the software GPU.

#![allow(unsafe_code)]

mod rest_program;
mod support;

use driver_soft::SoftConfig;
use support::Setting;

/// Not a test: what the session processes run, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    support::serve_session(&SoftConfig {
        devices: 2,
        memory_bytes: 256 << 20,
        block_threads: 0,
        ..SoftConfig::default()
    });
}

/// Not a test: what the program is.
#[test]
#[ignore = "the program that the tests run"]
fn program() {
    rest_program::run(&support::plan());
}

/// Runs a program that must end well, and returns what it said.
fn run(plan: &str) -> String {
    support::run(Setting::default(), plan, &[])
}

#[test]
fn narrow_forms_are_their_later_forms() {
    run("narrow");
}

#[test]
fn an_event_takes_in_all_streams_of_a_context() {
    run("context-record");
}

#[test]
fn all_streams_of_a_context_wait_for_an_event() {
    run("context-wait");
}

#[test]
fn a_green_context_has_streams_and_shares_the_rest() {
    let said = run("green");
    assert!(said.contains("the grids of several GPUs cannot wait for each other"), "{said}");
}

#[test]
fn multiprocessors_are_split_as_the_device_says() {
    run("green-split");
}

#[test]
fn events_of_a_green_context_are_about_its_streams() {
    run("green-events");
}

#[test]
fn a_loop_runs_while_kernels_say_so() {
    run("while");
}

#[test]
fn a_value_chooses_what_runs() {
    run("choices");
}

#[test]
fn what_cannot_be_conditional_is_refused() {
    run("conditional-errors");
}

#[test]
fn notifications_are_kept_and_never_come() {
    run("notifications");
}

#[test]
fn failed_calls_are_in_the_log() {
    run("log");
}

#[test]
fn core_dumps_have_settings_and_stay_off() {
    let said = run("coredump");
    assert!(said.contains("a dump of a remote GPU is not written"), "{said}");
}
