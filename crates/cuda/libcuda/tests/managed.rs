//! Managed memory: programs over the real library and a real session of the software GPU, once with a userfaultfd (where the
//! system gives one) and once with page protection and SIGSEGV.

#![allow(unsafe_code)]

mod managed_program;

use cuda_worker::{
    FrontConfig, Grant, NoDevices, SessionConfig, SessionSpawn, run_session_process, serve_listener,
};
use driver_soft::{SoftConfig, SoftDriver};
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const TOKEN: &str = "secret";

/// Not a test: what the session processes run, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end = run_session_process(
        control,
        &|_, _| {
            let config = SoftConfig { memory_bytes: 600 << 20, block_threads: 0, ..SoftConfig::default() };
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
    managed_program::run(&std::env::var("MANAGED_PLAN").unwrap());
}

fn run_with(plan: &str, pages: &str, environment: &[(&str, &str)]) -> Output {
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
    command.env("DXPU_WORKER", &address).env("DXPU_TOKEN", TOKEN).env("MANAGED_PLAN", plan);
    command.env("DXPU_MANAGED_PAGES", pages).env("DXPU_LOG", "debug").envs(environment.iter().copied());
    let started = Instant::now();
    let output = command.output().unwrap();
    front.stop();
    assert!(started.elapsed() < Duration::from_secs(120));
    output
}

/// Runs a program that must end well, and returns what it printed.
fn run(plan: &str, pages: &str) -> String {
    let output = run_with(plan, pages, &[]);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{plan} by {pages}: {}\n{text}", output.status);
    text
}

const BOTH: [&str; 2] = ["best", "signals"];

/// Whether this system gives a userfaultfd that hears of system calls.
fn is_for_system_calls(said: &str) -> bool {
    said.contains("also for system calls")
}

#[test]
fn what_the_host_fills_a_kernel_uses_and_the_host_reads() {
    BOTH.iter().for_each(|pages| drop(run("simple", pages)));
}

#[test]
fn random_programs_are_those_of_a_model() {
    for pages in BOTH {
        (1..=6).for_each(|seed| drop(run(&format!("random {seed}"), pages)));
    }
}

#[test]
fn threads_touch_at_once() {
    BOTH.iter().for_each(|pages| drop(run("threads", pages)));
}

#[test]
fn bytes_that_move_are_bounded() {
    for pages in BOTH {
        let said = run("budget", pages);
        let ends = said.lines().filter(|line| line.contains("managed memory") && line.contains("ends"));
        let moved: Vec<(u64, u64)> = ends
            .map(|line| {
                let numbers: Vec<u64> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
                (numbers[numbers.len() - 2], numbers[numbers.len() - 1])
            })
            .collect();
        let [walk, random] = moved[..] else { panic!("{said}") };
        let touched = managed_program::BUDGET_WALKED;
        assert!(walk.0 <= 2 * touched && walk.1 <= 2 * touched, "{walk:?} for {touched}");
        assert!(random.1 <= managed_program::BUDGET_TOUCHES << 16, "{random:?}");
        assert_eq!(random.0, 0, "nothing was written");
    }
}

#[test]
fn system_calls_use_managed_memory_where_there_is_a_userfaultfd() {
    let said = run("calls", "best");
    assert!(said.contains("calls true") == is_for_system_calls(&said), "{said}");
    let said = run("calls", "signals");
    assert!(said.contains("calls false"), "the documented limit: {said}");
}

#[test]
fn host_functions_and_running_kernels_are_waited_for() {
    BOTH.iter().for_each(|pages| drop(run("order", pages)));
}

#[test]
fn hints_are_kept_and_mistakes_are_refused() {
    BOTH.iter().for_each(|pages| drop(run("hints", pages)));
}

#[test]
fn memory_is_freed_and_forked_while_it_is_used() {
    BOTH.iter().for_each(|pages| drop(run("ends", pages)));
}

#[test]
fn the_programs_own_handler_has_its_own_faults() {
    assert!(run("handler", "signals").contains("the program's handler ran"));
}

/// The program kills the sessions of its parent, so it gets a parent of its own.
#[test]
fn a_touch_behind_a_lost_worker_ends_the_program_and_says_why() {
    let mut stage = Command::new(std::env::current_exe().unwrap());
    let output = stage.args(["--exact", "lost_stage", "--ignored", "--nocapture"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Not a test: the parent of a program that kills its sessions.
#[test]
#[ignore = "run by the test above"]
fn lost_stage() {
    for pages in BOTH {
        let output = run_with("lost", pages, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("cannot be fetched from the GPU"), "{said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("went on"), "{said}");
    }
}
