//! Arrays, textures and surfaces through the driver API: a program over the real library and a real session of the software GPU.

#![allow(unsafe_code)]

mod texture_program;

use cuda_worker::{
    FrontConfig, Grant, NoDevices, SessionConfig, SessionSpawn, run_session_process, serve_listener,
};
use driver_soft::{SoftConfig, SoftDriver};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

const TOKEN: &str = "secret";

/// Not a test: what the session processes run, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end = run_session_process(
        control,
        &|_, _| {
            let config =
                SoftConfig { devices: 2, memory_bytes: 256 << 20, block_threads: 0, ..SoftConfig::default() };
            Ok(Box::new(SoftDriver::new(config)))
        },
        &|_, _| Err(NoDevices::because("this worker shows nothing")),
    );
    std::process::exit(end.kind.exit_code().into());
}

/// Not a test: what the program is.
#[test]
#[ignore = "the program that the tests run"]
fn program() {
    texture_program::run(&std::env::var("TEXTURE_PLAN").unwrap());
}

/// Runs a program that must end well, and returns what it said.
fn run(plan: &str, environment: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}/socket", directory.path().display());
    let config = FrontConfig {
        addresses: vec![address.parse().unwrap()],
        spawn: SessionSpawn {
            program: std::env::current_exe().unwrap(),
            arguments: ["--exact", "session_process", "--ignored", "--nocapture"].map(str::to_owned).to_vec(),
        },
        session: SessionConfig::new(TOKEN.to_owned()),
        grant: std::sync::Arc::new(|| Ok(Grant::plain(serde_json::Value::Null))),
        sessions_max: 4,
        unauthenticated_max: 16,
        preamble_timeout: Duration::from_secs(5),
        hold: Duration::from_secs(5),
        spares: 1,
        executes_ptx_only: true,
    };
    let front = serve_listener(config, |_| {}).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program", "--ignored", "--nocapture"]);
    command.env("DXPU_WORKER", &address).env("DXPU_TOKEN", TOKEN).env("TEXTURE_PLAN", plan);
    command.env("DXPU_LOG", "info").envs(environment.iter().copied());
    let output = command.output().unwrap();
    front.stop();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{plan}: {}\n{text}", output.status);
    text
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
