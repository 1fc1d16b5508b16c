//! Managed memory: programs over the real library and a real session of the software GPU, once with a userfaultfd (where the
//! system gives one) and once with page protection and SIGSEGV.

#![allow(unsafe_code)]

mod managed_program;
mod support;

use driver_soft::SoftConfig;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::{Setting, Worker};

/// Not a test: what the session processes run, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    support::serve_session(&SoftConfig {
        memory_bytes: 600 << 20,
        block_threads: 0,
        ..SoftConfig::default()
    });
}

/// Not a test: what the program is.
#[test]
#[ignore = "the program that the tests run"]
fn program() {
    managed_program::run(&support::plan());
}

fn run_with(plan: &str, pages: &str) -> Output {
    let worker = Worker::start(Setting::default());
    let started = Instant::now();
    let mut command = worker.program(plan);
    let output = command.env("DXPU_MANAGED_PAGES", pages).env("DXPU_LOG", "debug").output().unwrap();
    assert!(started.elapsed() < Duration::from_secs(120));
    output
}

/// Runs a program that must end well, and returns what it printed.
fn run(plan: &str, pages: &str) -> String {
    support::said_well(&format!("{plan} by {pages}"), &run_with(plan, pages))
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
fn mapped_pinned_memory_has_one_address_on_both_sides() {
    // Where files could not be read into it, small memory stays ordinary pinned memory: kernels are given its address at most.
    let is_served = is_for_system_calls(&run("simple", "best"));
    if is_served {
        run("mapped", "best");
    } else {
        println!("skipped: this system gives no userfaultfd that hears of system calls");
    }
}

#[test]
fn registered_memory_has_one_address_on_both_sides() {
    if is_for_system_calls(&run("simple", "best")) {
        run("registered", "best");
    } else {
        println!("skipped: this system gives no userfaultfd that hears of system calls");
    }
}

#[test]
fn managed_variables_are_the_same_for_host_and_kernels() {
    for pages in BOTH {
        let said = run("variables", pages);
        assert!(said.contains("is used in a second context"), "{said}");
    }
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
        let output = run_with("lost", pages);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("cannot be fetched from the GPU"), "{said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("went on"), "{said}");
    }
}
