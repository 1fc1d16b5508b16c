//! The command line.

use crate::exit::Outcome;
use crate::{bench, completions, demo, man, model, run, sim, worker, worker_session};

const EXAMPLES: &str = "\
Examples:
  See it work on this machine alone, no GPU needed:
      dxpu demo

  On the machine with the GPU:
      dxpu worker --listen 0.0.0.0:7400
  It prints the line to type on the other machine, such as:
      dxpu run --worker gpu-box:7400 --fingerprint 3f2a… --token-file token -- python train.py

  Two processes on one machine:
      dxpu worker --listen unix:/tmp/dxpu.sock &
      dxpu run --worker unix:/tmp/dxpu.sock -- ./program

Exit codes: 0 success, 1 failure, 2 wrong arguments, 3 not supported, 64 worker unreachable, 65 worker refused,
126 and 127 program cannot be started. `dxpu run` that starts its program ends as that program does.";

/// GPUs of other machines, for programs that know nothing of it
#[derive(clap::Parser)]
#[command(name = "dxpu", version, about, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Lend this machine's GPUs (or soft ones) to programs elsewhere
    Worker(worker::Worker),
    /// Run a program with the GPUs of a worker
    Run(run::Run),
    /// Show a program using a remote GPU, on this machine alone
    Demo(demo::Demo),
    /// Measure what the api plane costs on this machine
    Bench(bench::Bench),
    /// Predict what a program keeps when its GPU is somewhere else
    Model(model::Model),
    /// Simulate what a pool would do, before there is one
    Sim(sim::Sim),
    /// Print completions for a shell
    Completions(completions::Completions),
    /// Print manual pages
    Man(man::Man),
    /// One session of a worker
    #[command(hide = true)]
    WorkerSession(worker_session::WorkerSession),
}

impl Command {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Command::Worker(worker) => worker.run(),
            Command::Run(run) => run.run(),
            Command::Demo(demo) => demo.run(),
            Command::Bench(bench) => bench.run(),
            Command::Model(model) => model.run(),
            Command::Sim(sim) => sim.run(),
            Command::Completions(completions) => completions.run(),
            Command::Man(man) => man.run(),
            Command::WorkerSession(session) => session.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
