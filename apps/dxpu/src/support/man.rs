//! `dxpu man`: manual pages.

use crate::support::exit::{Exit, Outcome};
use anyhow::Context;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Man {
    /// Write one page per subcommand into this directory, instead of the main page to standard output
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    /// `dxpu` is the whole command line.
    pub(crate) fn run(self, dxpu: clap::Command) -> Outcome {
        match self.out {
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(dxpu).render(&mut page)?;
                crate::support::out::write_bytes(&page);
            }
            Some(directory) => {
                std::fs::create_dir_all(&directory)
                    .and_then(|()| clap_mangen::generate_to(dxpu, &directory))
                    .with_context(|| format!("cannot write manual pages to {}", directory.display()))?;
            }
        }
        Ok(Exit::Success)
    }
}
