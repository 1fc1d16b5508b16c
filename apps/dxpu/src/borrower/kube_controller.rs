//! `dxpu kube controller`: the pool's side of a Kubernetes cluster. The controller itself is in `kube-controller`.

use crate::operate::lease::long_duration;
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::log;
use crate::support::notify::ServiceManager;
use crate::support::pool_access::{self, PoolAccess};
use anyhow::Context;
use kube_claims::{Bind, Nodes, Terms};
use kube_controller::{Cluster, Election, Pace, Settings};
use pool_client::{Client, Patience};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  Make the two credentials, on the machine you administer the pool from:
      dxpu token create tenant/kube/cluster-1 --out kube.json
      dxpu token create viewer/cluster-1 --out viewer.json
  In a pod, with a service account:
      dxpu kube controller --credential kube.json --viewer viewer.json
  On any other machine, to try it:
      dxpu kube controller --credential kube.json --viewer viewer.json --kubeconfig ~/.kube/config
  Only some nodes reach the pool's network:
      dxpu kube controller … --node-selector gpu-network=yes

The controller offers every GPU that no other borrower of the pool has as a device of driver dxpu.dev. When the scheduler
allocates devices to a claim, the controller leases exactly these GPUs and says so in the claim; only then the pod is bound.
When the allocation is gone, it returns the lease. A lease of this credential whose claim is not in this cluster is
returned too: give each cluster a credential of its own. Run several controllers if you like; one of them leads.";

/// How long a leader may be silent before another controller leads.
const LEADER_TTL: Duration = Duration::from_secs(15);
/// How long one question to the managers may take before the claim is looked at again later.
const PATIENCE: Patience = Patience { per_try: Duration::from_secs(5), in_all: Duration::from_secs(10) };

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KubeController {
    #[command(flatten)]
    pool: PoolAccess,
    /// A viewer's credential, to read the pool's GPUs with, which tenants may not [default: the same credential, which is
    /// then an admin's]
    #[arg(long, value_name = "FILE", env = "DXPU_KUBE_VIEWER")]
    viewer: Option<PathBuf>,
    /// How to reach the API server, as kubectl is told [default: the service account of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A label that the nodes have which reach the pool; may be given several times [default: all nodes reach it]
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    node_selector: Vec<(String, String)>,
    /// When pods are bound to their nodes: when-granted lets the scheduler choose other GPUs if a lease is refused, and
    /// Kubernetes 1.36 looks only every 5 s whether it is granted; at-once has the node plugin wait for the lease
    #[arg(long, value_name = "WHEN", default_value = "when-granted")]
    bind: BindWhen,
    /// The namespace of the Lease object by which controllers agree on the one that leads
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "dxpu")]
    namespace: String,
    /// This controller's name in that object [default: the machine's or pod's name]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,
    /// How long pods keep their GPUs while no controller runs
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = long_duration)]
    lease_ttl: Duration,
    /// The priority of its leases in the pool
    #[arg(long, value_name = "N", default_value_t = pool_api::PRIORITY_DEFAULT)]
    priority: u32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum BindWhen {
    WhenGranted,
    AtOnce,
}

fn label(text: &str) -> Result<(String, String), String> {
    let wrong = || "must be KEY=VALUE, such as gpu-network=yes".to_owned();
    let (key, value) = text.split_once('=').ok_or_else(wrong)?;
    if key.is_empty() { Err(wrong()) } else { Ok((key.to_owned(), value.to_owned())) }
}

impl KubeController {
    pub(crate) fn run(self) -> Outcome {
        log::start("info");
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
        let service = RefCell::new(ServiceManager::of_environment());
        let settings = self.settings()?;
        service.borrow_mut().ready();
        let leads = || log::announce(format_args!("this controller leads"));
        let mut stop = || {
            service.borrow_mut().alive();
            let signal = signals.pending().next();
            if let Some(signal) = signal {
                service.borrow_mut().stopping();
                tracing::info!(signal, "stopping; leases stay as they are");
            }
            signal.is_some()
        };
        kube_controller::run(settings, &leads, &mut stop)
            .map_err(|error| Failure::new(Exit::Failure, error.to_string(), error.hint()))?;
        Ok(Exit::Success)
    }

    fn settings(self) -> anyhow::Result<Settings> {
        let borrower = Arc::new(self.pool.patient(PATIENCE)?);
        let viewer = match &self.viewer {
            None => borrower.clone(),
            Some(path) => {
                let mut credential = pool_access::read(path)?;
                if !self.pool.manager.is_empty() {
                    credential.managers = self.pool.manager.clone();
                }
                Arc::new(Client::new(credential, PATIENCE).map_err(pool_access::failure)?)
            }
        };
        let ttl_ms = u64::try_from(self.lease_ttl.as_millis()).unwrap_or(u64::MAX);
        let identity =
            self.identity.unwrap_or_else(|| format!("{}-{}", machine::host_name(), std::process::id()));
        Ok(Settings {
            cluster: self.kubeconfig.map_or(Cluster::InCluster, Cluster::Kubeconfig),
            borrower,
            viewer,
            nodes: Nodes::with_labels(self.node_selector),
            bind: match self.bind {
                BindWhen::WhenGranted => Bind::WhenGranted,
                BindWhen::AtOnce => Bind::AtOnce,
            },
            terms: Terms { ttl_ms, priority: self.priority, ..Terms::default() },
            election: Some(Election {
                namespace: self.namespace,
                name: "dxpu-controller".to_owned(),
                identity,
                ttl: LEADER_TTL,
            }),
            pace: Pace::default(),
        })
    }
}
