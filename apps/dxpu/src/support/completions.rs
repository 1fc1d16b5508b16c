//! `dxpu completions`: completions for a shell.

use crate::support::exit::{Exit, Outcome};

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    /// `dxpu` is the whole command line.
    pub(crate) fn run(self, dxpu: &mut clap::Command) -> Outcome {
        clap_complete::generate(self.shell, dxpu, "dxpu", &mut std::io::stdout());
        Ok(Exit::Success)
    }
}
