//! What the kubelet may call: who we are at one socket, claims and health at the other.

use crate::error::PrepareError;
use crate::grpc::{self, Answer, Service};
use crate::plugin::Plugin;
use crate::proto::{
    Claim, DeviceHealth, InfoRequest, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse, NodeWatchResourcesRequest, NodeWatchResourcesResponse, PluginInfo,
    RegistrationStatus, RegistrationStatusResponse,
};
use http::Request;
use hyper::body::Incoming;
use kube_claims::DRIVER;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tonic::Status;

/// What the kubelet calls plugins of our kind.
const PLUGIN_TYPE: &str = "DRAPlugin";
/// Newest first. Kubelets from 1.34 on speak v1.
const VERSIONS: [&str; 3] = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
/// Health is told again after this, changed or not: the kubelet takes a silent device for unknown.
const HEALTH_EVERY: Duration = Duration::from_secs(15);

/// Says who we are.
pub(crate) struct Registration {
    /// The plugin's socket, as the kubelet sees it.
    pub(crate) endpoint: PathBuf,
}

impl Service for Registration {
    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        match request.uri().path() {
            "/pluginregistration.Registration/GetInfo" => {
                let endpoint = self.endpoint.to_string_lossy().into_owned();
                let info = PluginInfo {
                    r#type: PLUGIN_TYPE.to_owned(),
                    name: DRIVER.to_owned(),
                    endpoint,
                    supported_versions: VERSIONS.map(str::to_owned).to_vec(),
                };
                grpc::unary(request, move |_: InfoRequest| async move { Ok(info) }).await
            }
            "/pluginregistration.Registration/NotifyRegistrationStatus" => {
                grpc::unary(request, |status: RegistrationStatus| async move {
                    if status.plugin_registered {
                        tracing::info!("the kubelet has registered the plugin");
                    } else {
                        tracing::error!(error = status.error, "the kubelet refuses the plugin");
                    }
                    Ok(RegistrationStatusResponse {})
                })
                .await
            }
            other => grpc::unknown(other),
        }
    }
}

/// Prepares and unprepares claims, and tells the health of their devices.
pub(crate) struct Claims {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl Service for Claims {
    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let versions =
            ["/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/", "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/"];
        let method = versions.iter().find_map(|prefix| path.strip_prefix(prefix)).unwrap_or(&path);
        match method {
            "NodePrepareResources" => {
                grpc::unary(request, move |asked: NodePrepareResourcesRequest| async move {
                    let one = |plugin: &Plugin, claim: &Claim| {
                        let (devices, error) = match plugin.prepare(claim) {
                            Ok(devices) => (devices, String::new()),
                            Err(error) => (Vec::new(), told("prepared", claim, &error)),
                        };
                        NodePrepareResourceResponse { devices, error }
                    };
                    Ok(NodePrepareResourcesResponse { claims: each(&self.plugin, asked.claims, one).await? })
                })
                .await
            }
            "NodeUnprepareResources" => {
                grpc::unary(request, move |asked: NodeUnprepareResourcesRequest| async move {
                    let one = |plugin: &Plugin, claim: &Claim| {
                        let error = plugin.unprepare(claim).err();
                        let error = error.map(|error| told("unprepared", claim, &error)).unwrap_or_default();
                        NodeUnprepareResourceResponse { error }
                    };
                    Ok(NodeUnprepareResourcesResponse {
                        claims: each(&self.plugin, asked.claims, one).await?,
                    })
                })
                .await
            }
            "/v1alpha1.DRAResourceHealth/NodeWatchResources" => {
                let stream = health(self.plugin.watch_health(), self.stop.clone());
                grpc::streaming::<NodeWatchResourcesRequest, _, _>(request, stream).await
            }
            other => grpc::unknown(other),
        }
    }
}

/// What the kubelet shows in the pod's events: the error with its causes.
fn told(what: &str, claim: &Claim, error: &PrepareError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        cause = error.source();
    }
    tracing::warn!(claim = %claim.name, namespace = %claim.namespace, uid = %claim.uid, error = text, "the claim is not {what}");
    text
}

/// Does one thing for each claim, all at once.
async fn each<A: Send + 'static>(
    plugin: &Arc<Plugin>,
    claims: Vec<Claim>,
    one: impl Fn(&Plugin, &Claim) -> A + Copy + Send + 'static,
) -> Result<HashMap<String, A>, Status> {
    let started: Vec<_> = claims
        .into_iter()
        .map(|claim| {
            let plugin = plugin.clone();
            let uid = claim.uid.clone();
            (uid, tokio::task::spawn_blocking(move || one(&plugin, &claim)))
        })
        .collect();
    let mut answers = HashMap::new();
    for (uid, task) in started {
        let answer = task.await.map_err(|_| Status::internal(PrepareError::Inside.to_string()))?;
        answers.insert(uid, answer);
    }
    Ok(answers)
}

/// All devices, at first, when one of them changed, and every while.
fn health(
    mut seen: watch::Receiver<BTreeMap<String, Vec<DeviceHealth>>>,
    mut stop: watch::Receiver<bool>,
) -> impl Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send + 'static {
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let devices = seen.borrow_and_update().values().flatten().cloned().collect();
            if send.send(Ok(NodeWatchResourcesResponse { devices })).await.is_err() {
                return;
            }
            tokio::select! {
                changed = tokio::time::timeout(HEALTH_EVERY, seen.changed()) => {
                    if matches!(changed, Ok(Err(_))) { return; }
                }
                () = send.closed() => return,
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    });
    tokio_stream::wrappers::ReceiverStream::new(receive)
}
