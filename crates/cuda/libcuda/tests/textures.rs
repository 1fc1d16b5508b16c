//! Arrays, textures and surfaces through the driver API: a program over the real library and a real session of the software GPU.

#![allow(unsafe_code)]

mod support;
mod texture_program;

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
    texture_program::run(&support::plan());
}

/// Runs a program that must end well, and returns what it said.
fn run(plan: &str, environment: &[(&str, &str)]) -> String {
    support::run(Setting::default(), plan, environment)
}

#[test]
fn bytes_go_along_the_rows_of_arrays() {
    run("rows", &[]);
}

#[test]
fn levels_are_arrays_of_their_own() {
    run("levels", &[]);
}

#[test]
fn objects_are_made_asked_about_and_end() {
    run("objects", &[]);
}

#[test]
fn a_graph_copies_an_array_and_tells_of_it() {
    run("graph", &[]);
}

#[test]
fn mistakes_get_the_codes_of_the_driver() {
    let said = run("mistakes", &[]);
    assert!(said.contains("mapped piece by piece"), "{said}");
}

#[test]
fn arrays_of_two_devices_are_copied() {
    run("devices", &[]);
}

#[test]
fn references_of_modules_are_bound() {
    run("references", &[]);
}

#[test]
fn a_context_takes_its_arrays_along() {
    run("contexts", &[]);
}

#[test]
fn a_protected_program_with_an_array_is_told_that_it_is_no_longer_protected() {
    let said = run("rows", &[("DXPU_SURVIVE", "1")]);
    let told = said.lines().filter(|line| line.contains("no longer protected")).collect::<Vec<_>>();
    assert_eq!(told.len(), 1, "{said}");
    assert!(told[0].contains("CUDA arrays"), "{said}");
}
