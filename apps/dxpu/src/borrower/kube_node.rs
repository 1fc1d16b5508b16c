//! `dxpu kube node`: the kubelet's plugin. The plugin itself is in `kube-node`.

use super::borrow::attach;
use crate::support::exit::{Exit, Outcome};
use crate::support::notify::ServiceManager;
use crate::support::pool_access::PoolAccess;
use crate::support::{library, log, quantity};
use anyhow::Context;
use kube_node::{ApiServer, Node, Settings, Way, Ways};
use pool_api::SignedGrant;
use pool_client::Patience;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  dxpu kube node --credential /etc/dxpu/kube.json               in the cluster's DaemonSet
  dxpu kube node --credential kube.json --api-server https://10.0.0.1:6443 \\
      --api-authority /etc/kubernetes/pki/ca.crt --api-token-file /etc/dxpu/api-token
                                                                as a service of the machine

The container runtime must read CDI files from --cdi-dir, and must find --run-dir and --library-dir under the same names:
a DaemonSet mounts them from the node at these paths. SIGTERM ends the plugin; pods that run keep their GPUs.";

/// How often signals are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KubeNode {
    /// The kubelet's folder
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Where the container runtime reads CDI files
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
    /// Where tokens of prepared claims are; containers see theirs
    #[arg(long, value_name = "DIR", default_value = "/run/dxpu/kube")]
    run_dir: PathBuf,
    /// Where the client libraries are put for containers
    #[arg(long, value_name = "DIR", default_value = "/var/lib/dxpu/kube")]
    library_dir: PathBuf,
    /// How long one call of the kubelet waits for a lease; the kubelet then calls again
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = quantity::duration)]
    wait: Duration,
    /// The API server [default: that of the cluster whose pod this is]
    #[arg(long, value_name = "URL", requires_all = ["api_authority", "api_token_file"])]
    api_server: Option<String>,
    /// The certificate (PEM) that signs the API server's
    #[arg(long, value_name = "FILE", requires = "api_server")]
    api_authority: Option<PathBuf>,
    /// A token that may read resourceclaims; the file is read again for each question
    #[arg(long, value_name = "FILE", requires = "api_server")]
    api_token_file: Option<PathBuf>,
    #[command(flatten)]
    access: PoolAccess,
}

impl KubeNode {
    pub(crate) fn run(self) -> Outcome {
        log::start("info");
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let mut service = ServiceManager::of_environment();
        // The kubelet asks again by itself, so that no question need wait for long.
        let pool = self.access.patient(Patience::ONCE)?;
        let claims = match &self.api_server {
            None => ApiServer::of_pod()?,
            Some(url) => ApiServer::at(url, self.api_authority.clone(), self.api_token_file.clone())?,
        };
        let settings = Settings {
            libraries: library::extract_for_containers(&self.library_dir)?,
            kubelet: self.kubelet_dir,
            cdi: self.cdi_dir,
            run: self.run_dir,
            patience: self.wait,
        };
        let node = Node::start(&settings, pool, Box::new(claims), Box::new(ByNetwork))?;
        log::announce(format_args!(
            "driver dxpu.dev waits for the kubelet in {}",
            settings.kubelet.display()
        ));
        service.ready();
        let signal = loop {
            service.alive();
            if let Some(signal) = signals.pending().next() {
                break signal;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        service.stopping();
        tracing::info!(signal, "stopping: pods that run keep their GPUs");
        drop(node);
        Ok(Exit::Success)
    }
}

/// Tries the workers of a lease, as `dxpu run` does, over the network alone.
struct ByNetwork;

impl Ways for ByNetwork {
    fn way_to(&self, grant: &SignedGrant, authority: &str) -> Result<Way, String> {
        let way = attach::way_by_network(grant, authority).map_err(|failure| failure.what)?;
        Ok(Way { address: way.address.to_string(), name: way.name, is_soft: way.is_soft })
    }
}
