//! `dxpu kube`: GPUs of the pool for pods.

use super::{kube_controller, kube_node};
use crate::support::exit::Outcome;

const EXAMPLES: &str = "\
Examples:
  Once or twice in the cluster:
      dxpu kube controller --credential kube.json --viewer viewer.json
  On every node that runs pods, as root (the chart in deploy/kube does it):
      dxpu kube node --credential /etc/dxpu/kube.json";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Kube {
    #[command(subcommand)]
    part: Part,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Publish the pool's GPUs to the cluster, and turn allocated claims into leases
    Controller(kube_controller::KubeController),
    /// Give the containers of this node the GPUs of their claims: the kubelet's plugin
    Node(kube_node::KubeNode),
}

impl Kube {
    pub(crate) fn run(self) -> Outcome {
        match self.part {
            Part::Controller(controller) => controller.run(),
            Part::Node(node) => node.run(),
        }
    }
}
