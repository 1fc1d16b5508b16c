//! `dxpu completions`: completions for a shell.

use crate::cli::Cli;
use crate::exit::{Exit, Outcome};
use clap::CommandFactory;

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Outcome {
        clap_complete::generate(self.shell, &mut Cli::command(), "dxpu", &mut std::io::stdout());
        Ok(Exit::Success)
    }
}
