//! `dxpu sim`: what a pool would do, before there is one.

mod fabric;
mod replay;
mod sharing;

use crate::support::exit::Outcome;

#[derive(clap::Args)]
pub(crate) struct Sim {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Follow PCIe packets through proxies and a network: bandwidth, its knee, peer to peer
    Fabric(fabric::Fabric),
    /// Replay a recorded cluster: what placement, pooling and spares would have made of it
    Replay(replay::Replay),
    /// Seat the offline programs of a recorded cluster beside its online ones: what that brings, by several policies
    Sharing(sharing::Sharing),
}

impl Sim {
    pub(crate) fn run(self) -> Outcome {
        match self.what {
            What::Fabric(fabric) => fabric.run(),
            What::Replay(replay) => replay.run(),
            What::Sharing(sharing) => sharing.run(),
        }
    }
}
