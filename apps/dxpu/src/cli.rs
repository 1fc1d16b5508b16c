//! The command line.

#[cfg(feature = "kube")]
use crate::borrower::kube;
use crate::borrower::{cdi, run, slurm, smi, vm};
use crate::operate::{self, audit};
use crate::roles::{
    demo, function_runner, functions, gpu_box, guardian, host, manager, mps, time_slices, up, worker,
    worker_session,
};
use crate::study::{bench, inject, model, sim, trace};
use crate::support::exit::{Exit, Outcome};
use crate::support::{completions, config, man, quick_build};
use clap::{CommandFactory, FromArgMatches};

const EXAMPLES: &str = "\
Examples:
  See it work on this machine alone, no GPU needed:
      dxpu demo
      dxpu up

  Look at a pool, and use it:
      dxpu status
      dxpu top
      dxpu run --gpus 1 -- python train.py

  Without a pool, on the machine with the GPU:
      dxpu worker --listen 0.0.0.0:7400
  It prints the line to type on the other machine, such as:
      dxpu run --worker gpu-box:7400 --fingerprint 3f2a… --token-file token -- python train.py

  Two processes on one machine:
      dxpu worker --listen unix:/tmp/dxpu.sock &
      dxpu run --worker unix:/tmp/dxpu.sock -- ./program

Exit codes: 0 success, 1 failure, 2 wrong arguments, 3 not supported, 64 worker or manager
unreachable, 65 worker or manager refused, 126 and 127 program cannot be started. `dxpu run`, `trace` and `inject` that start their program end as it does.";

/// GPUs of other machines, for programs that know nothing of it
#[derive(clap::Parser)]
#[command(name = "dxpu", version = quick_build::VERSION, about, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Lend this machine's GPUs (or soft ones) to programs elsewhere
    Worker(worker::Worker),
    /// Lend this machine's GPUs (or soft ones) to a pool
    Box(gpu_box::GpuBox),
    /// Run a program with the GPUs of a worker
    Run(run::Run),
    /// Show the GPUs that you have, as nvidia-smi does
    Smi(smi::Smi),
    /// Show a program using a remote GPU, on this machine alone
    Demo(demo::Demo),
    /// Lease GPUs out of boxes: the manager of a pool
    Manager(Box<manager::Manager>),
    /// Run functions with GPUs of the pool: deployed and invoked as on AWS Lambda
    Functions(Box<functions::Functions>),
    /// Deploy functions, invoke them, and look at them
    Function(operate::function::Function),
    /// Start a whole pool on this machine: manager, boxes, dashboard
    Up(up::Up),
    /// Show the pool in a few lines: what there is, what is free, what you may have
    Status(operate::status::Status),
    /// Show who you are in the pool
    Whoami(operate::status::Whoami),
    /// Check this machine and its pool, and say what to do for each finding
    Doctor(operate::doctor::Doctor),
    /// Show every GPU of the pool, live
    Top(operate::top::Top),
    /// Look at GPUs, and take them out of use
    Gpu(operate::gpu::Gpu),
    /// Look at leases, make them and end them
    Lease(operate::lease::Lease),
    /// Show GPUs of the pool to this machine's guests as PCI devices; look at such hosts
    Host(Box<host::PcieHost>),
    /// Give pods of a Kubernetes cluster GPUs of the pool
    #[cfg(feature = "kube")]
    Kube(kube::Kube),
    /// Give containers the client libraries, by the Container Device Interface
    Cdi(cdi::Cdi),
    /// Give jobs of Slurm GPUs of the pool: the commands that Slurm calls
    Slurm(slurm::Slurm),
    /// Start a QEMU guest with free slots, to try the PCIe plane with
    Vm(vm::Vm),
    /// Look at those who borrow
    Borrower(operate::borrower::Borrower),
    /// Look at tenants, and set what they may have
    Tenant(operate::tenant::Tenant),
    /// Look at spares, size them and set them
    Spare(operate::spare::Spare),
    /// Look at what happened
    Event(operate::event::Event),
    /// Let machines and people into the pool
    Token(operate::token::Token),
    /// Show who did what in the pool, and check it
    Audit(audit::Audit),
    /// Measure what the api plane and the pool cost on this machine
    Bench(bench::Bench),
    /// Record what a program asks of this machine's GPU, as a profile for `dxpu model predict`
    Trace(trace::Trace),
    /// Run a program on this machine's GPU as if it were behind a network (pcie plane)
    Inject(inject::Inject),
    /// Predict what a program keeps when its GPU is somewhere else
    Model(model::Model),
    /// Simulate what a pool would do, before there is one
    Sim(sim::Sim),
    /// Print completions for a shell
    Completions(completions::Completions),
    /// Print manual pages
    Man(man::Man),
    /// One instance of a function
    #[command(hide = true)]
    FunctionRunner(function_runner::FunctionRunner),
    /// One session of a worker
    #[command(hide = true)]
    WorkerSession(worker_session::WorkerSession),
    /// Keeps images of protected sessions
    #[command(hide = true)]
    Guardian(Box<guardian::GuardianRole>),
    /// Keeps an MPS daemon
    #[command(hide = true)]
    Mps(mps::Mps),
    /// Measures whether the GPU heeds time slices
    #[command(hide = true)]
    TimeSlices(time_slices::TimeSlices),
}

/// The whole command line, with the options that name configuration files.
pub(crate) fn command() -> clap::Command {
    config::with_options(Cli::command())
}

/// Does what the command line, the environment and a configuration file say.
pub(crate) fn run() -> Outcome {
    match config::settle(&command(), std::env::args_os().collect())? {
        config::Settled::Show(text) => {
            out!("{text}");
            Ok(Exit::Success)
        }
        config::Settled::Run(matches) => {
            let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
            cli.command.run()
        }
    }
}

impl Command {
    pub(crate) fn run(self) -> Outcome {
        use Command::{Box as GpuBox, Guardian, Manager, Mps, Worker, WorkerSession};
        if matches!(self, Worker(_) | WorkerSession(_) | GpuBox(_) | Manager(_) | Guardian(_) | Mps(_)) {
            crate::support::secrets::keep_in_children();
        }
        match self {
            Command::Worker(worker) => worker.run(),
            Command::Box(gpu_box) => gpu_box.run(),
            Command::Run(run) => run.run(),
            Command::Smi(smi) => smi.run(),
            Command::Demo(demo) => demo.run(),
            Command::Manager(manager) => manager.run(),
            Command::Functions(functions) => functions.run(),
            Command::Function(function) => function.run(),
            Command::FunctionRunner(runner) => runner.run(),
            Command::Up(up) => up.run(),
            Command::Status(status) => status.run(),
            Command::Whoami(whoami) => whoami.run(),
            Command::Doctor(doctor) => doctor.run(),
            Command::Top(top) => top.run(),
            Command::Gpu(gpu) => gpu.run(),
            Command::Lease(lease) => lease.run(),
            Command::Host(host) => host.run(),
            #[cfg(feature = "kube")]
            Command::Kube(kube) => kube.run(),
            Command::Cdi(cdi) => cdi.run(),
            Command::Slurm(slurm) => slurm.run(),
            Command::Vm(vm) => vm.run(),
            Command::Borrower(borrower) => borrower.run(),
            Command::Tenant(tenant) => tenant.run(),
            Command::Spare(spare) => spare.run(),
            Command::Event(event) => event.run(),
            Command::Token(token) => token.run(),
            Command::Audit(audit) => audit.run(),
            Command::Bench(bench) => bench.run(),
            Command::Trace(trace) => trace.run(),
            Command::Inject(inject) => inject.run(),
            Command::Model(model) => model.run(),
            Command::Sim(sim) => sim.run(),
            Command::Completions(completions) => completions.run(&mut command()),
            Command::Man(man) => man.run(command()),
            Command::WorkerSession(session) => session.run(),
            Command::Guardian(guardian) => guardian.run(),
            Command::Mps(mps) => mps.run(),
            Command::TimeSlices(slices) => slices.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use pool_agent::{AgentError, Role};

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn options_before_a_program_are_ours_and_those_behind_it_are_its_own() {
        for words in [&["run", "--worker", "unix:/w"][..], &["trace"], &["inject", "--rtt", "8us"]] {
            let with = |more: &[&'static str]| Cli::try_parse_from([&["dxpu"], words, more].concat());
            assert!(with(&["python", "--version", "--rtt"]).is_ok());
            assert!(with(&["--", "python", "--version"]).is_ok());
            let error =
                with(&["--no-such-option", "--", "python"]).err().expect("no such option").to_string();
            assert!(error.contains("--no-such-option"), "{error}");
        }
    }

    /// Commands in hints are typed as they stand: their options must exist.
    #[test]
    fn commands_that_agents_advise_are_commands() {
        let mut advised = 0;
        for role in [Role::Box, Role::Host] {
            let (name, reason) = ("a".to_owned(), String::new());
            for error in [AgentError::NoMember { role, name }, AgentError::Revoked { role, reason }] {
                let hint = error.hint();
                let command = hint.split('`').nth(1).expect("a command between backticks");
                if let Err(error) = Cli::try_parse_from(command.split(' ')) {
                    panic!("`{command}` is advised and refused: {error}");
                }
                advised += 1;
            }
        }
        assert_eq!(advised, 4);
    }
}
