//! `dxpu man`: manual pages.

use crate::cli::Cli;
use crate::exit::{Exit, Outcome};
use anyhow::Context;
use clap::CommandFactory;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Man {
    /// Write one page per subcommand into this directory, instead of the main page to standard output
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self) -> Outcome {
        let command = Cli::command();
        match self.out {
            None => clap_mangen::Man::new(command).render(&mut std::io::stdout())?,
            Some(directory) => {
                std::fs::create_dir_all(&directory)
                    .and_then(|()| clap_mangen::generate_to(command, &directory))
                    .with_context(|| format!("cannot write manual pages to {}", directory.display()))?;
            }
        }
        Ok(Exit::Success)
    }
}
