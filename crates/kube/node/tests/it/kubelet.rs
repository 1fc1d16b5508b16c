//! What the kubelet does: it dials sockets by their paths, registers, prepares, unprepares, and watches health.

use hyper_util::rt::TokioIo;
use kube_node::proto::{
    Claim, DeviceHealth, InfoRequest, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
    NodeWatchResourcesRequest, NodeWatchResourcesResponse, PluginInfo, RegistrationStatus,
    RegistrationStatusResponse,
};
use prost::Message;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

pub(crate) struct Kubelet {
    runtime: tokio::runtime::Runtime,
    folder: PathBuf,
}

impl Kubelet {
    pub(crate) fn new(folder: &Path) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { runtime, folder: folder.to_owned() }
    }

    /// Finds the one socket in its registry, as the kubelet's watcher does, and dials it by its path. Go's gRPC then sends the
    /// path as the authority, with an escape for each character that may not be there.
    pub(crate) fn register(&self) -> PluginInfo {
        let registry = self.folder.join("plugins_registry");
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(registry).unwrap().map(|entry| entry.unwrap().path()).collect();
        let socket = found.pop().expect("a socket");
        assert!(found.is_empty(), "{found:?}");
        let authority = socket.to_str().unwrap().replace('/', "%2F");
        let channel = self.dial(&socket, &authority);
        let path = "/pluginregistration.Registration/GetInfo";
        let info: PluginInfo = self.call(channel.clone(), path, InfoRequest {}).unwrap();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        let path = "/pluginregistration.Registration/NotifyRegistrationStatus";
        let _: RegistrationStatusResponse = self.call(channel, path, status).unwrap();
        info
    }

    pub(crate) fn prepare(&self, claim: &Claim) -> NodePrepareResourceResponse {
        self.prepare_by("v1", claim)
    }

    pub(crate) fn prepare_by(&self, version: &str, claim: &Claim) -> NodePrepareResourceResponse {
        let path = format!("/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/NodePrepareResources");
        let asked = NodePrepareResourcesRequest { claims: vec![claim.clone()] };
        let mut answer: NodePrepareResourcesResponse = self.call(self.plugin(), &path, asked).unwrap();
        assert_eq!(answer.claims.len(), 1);
        answer.claims.remove(&claim.uid).expect("the claim's own answer")
    }

    /// Why a claim is not prepared.
    pub(crate) fn refused(&self, claim: &Claim) -> String {
        let answer = self.prepare(claim);
        assert!(answer.devices.is_empty() && !answer.error.is_empty(), "{answer:?}");
        answer.error
    }

    /// An empty error means that it was done.
    pub(crate) fn unprepare(&self, claim: &Claim) -> String {
        let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
        let asked = NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let mut answer: NodeUnprepareResourcesResponse = self.call(self.plugin(), path, asked).unwrap();
        answer.claims.remove(&claim.uid).expect("the claim's own answer").error
    }

    /// A method that no plugin has.
    pub(crate) fn call_unknown(&self) -> Status {
        let path = "/k8s.io.kubelet.pkg.apis.dra.v9.DRAPlugin/NodePrepareResources";
        let answer: Result<InfoRequest, Status> = self.call(self.plugin(), path, InfoRequest {});
        answer.unwrap_err()
    }

    pub(crate) fn watch_health(&self) -> Health<'_> {
        let channel = self.plugin();
        let stream = self.runtime.block_on(async {
            let mut grpc = Grpc::new(channel);
            grpc.ready().await.unwrap();
            let path = "/v1alpha1.DRAResourceHealth/NodeWatchResources".parse().unwrap();
            let codec = ProstCodec::<NodeWatchResourcesRequest, NodeWatchResourcesResponse>::default();
            let asked = Request::new(NodeWatchResourcesRequest {});
            grpc.server_streaming(asked, path, codec).await.unwrap().into_inner()
        });
        Health { kubelet: self, stream }
    }

    fn plugin(&self) -> Channel {
        self.dial(&self.folder.join(kube_node::PLUGIN_SOCKET), "localhost")
    }

    fn dial(&self, socket: &Path, authority: &str) -> Channel {
        let socket = socket.to_owned();
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_shared(format!("http://{authority}")).unwrap();
        self.runtime.block_on(endpoint.connect_with_connector(connect)).unwrap()
    }

    fn call<Q, A>(&self, channel: Channel, path: &str, asked: Q) -> Result<A, Status>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        self.runtime.block_on(async {
            let mut grpc = Grpc::new(channel);
            grpc.ready().await.unwrap();
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(Request::new(asked), path.parse().unwrap(), codec).await?;
            Ok(answer.into_inner())
        })
    }
}

pub(crate) struct Health<'a> {
    kubelet: &'a Kubelet,
    stream: Streaming<NodeWatchResourcesResponse>,
}

impl Health<'_> {
    /// The next report; none when the plugin has ended the stream.
    pub(crate) fn next(&mut self) -> Option<Vec<DeviceHealth>> {
        let next = self.kubelet.runtime.block_on(self.stream.message());
        next.ok().flatten().map(|report| report.devices)
    }
}
