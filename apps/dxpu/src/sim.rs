//! `dxpu sim`: what a pool would do, before there is one.

mod replay;

use crate::exit::Outcome;

#[derive(clap::Args)]
pub(crate) struct Sim {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Replay a recorded cluster: what placement, pooling and spares would have made of it
    Replay(replay::Replay),
}

impl Sim {
    pub(crate) fn run(self) -> Outcome {
        match self.what {
            What::Replay(replay) => replay.run(),
        }
    }
}
