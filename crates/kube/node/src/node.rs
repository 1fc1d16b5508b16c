//! The plugin as a whole: its threads, its sockets, and their end.

use crate::claims::Claims;
use crate::error::NodeError;
use crate::files::Files;
use crate::leases::Ways;
use crate::plugin::Plugin;
use crate::prepared::Book;
use crate::service;
use crate::socket::{self, PLUGIN_SOCKET, REGISTRATION_SOCKET, Socket};
use crate::{grpc, refresh};
use pool_client::Client;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::watch;

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kubelet's folder, `/var/lib/kubelet`.
    pub kubelet: PathBuf,
    /// Where the container runtime reads CDI files, `/var/run/cdi`.
    pub cdi: PathBuf,
    /// Files that containers see, `/run/dxpu/kube`. The container runtime must find it under the same name.
    pub run: PathBuf,
    /// The folder with libcuda.so.1 and libnvidia-ml.so.1, likewise.
    pub libraries: PathBuf,
    /// How long one prepare waits for a lease: less than the 45 s after which the kubelet gives up, and asks again.
    pub patience: Duration,
}

/// The file with all prepared claims, beside the plugin's socket.
const BOOK: &str = "plugins/dxpu.dev/prepared.json";

/// A plugin that serves until it is dropped.
pub struct Node {
    stop: watch::Sender<bool>,
    refresher: Option<(mpsc::Sender<()>, std::thread::JoinHandle<()>)>,
    runtime: Option<tokio::runtime::Runtime>,
    servers: Vec<tokio::task::JoinHandle<()>>,
    _sockets: Vec<Socket>,
    _only_one: File,
}

impl Node {
    /// Goes on where the last plugin of this node was, and listens. The kubelet registers it when it sees the socket.
    pub fn start(
        settings: &Settings,
        pool: Client,
        claims: Box<dyn Claims>,
        ways: Box<dyn Ways>,
    ) -> Result<Self, NodeError> {
        let registration = settings.kubelet.join(REGISTRATION_SOCKET);
        let endpoint = settings.kubelet.join(PLUGIN_SOCKET);
        socket::check(&registration)?;
        let book_file = settings.kubelet.join(BOOK);
        let folder = book_file.parent().unwrap_or(&settings.kubelet);
        machine::files::make_private(folder)?;
        let only_one = machine::files::only_one(folder)?;
        let book = Book::open(&book_file)?;
        let files = Files {
            run: settings.run.clone(),
            cdi: settings.cdi.clone(),
            libraries: settings.libraries.clone(),
        };
        let plugin = Arc::new(Plugin::new(pool, claims, ways, files, book, settings.patience));
        plugin.sweep();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("kube-node")
            .enable_all()
            .build()
            .map_err(NodeError::Threads)?;
        let (stop, stopped) = watch::channel(false);
        let entered = runtime.enter();
        // The plugin's socket first: the kubelet dials it as soon as it has seen the other.
        let (plugin_listener, plugin_socket) = Socket::listen(&endpoint)?;
        let (listener, socket) = Socket::listen(&registration)?;
        let served = Arc::new(service::Claims { plugin: plugin.clone(), stop: stopped.clone() });
        let servers = vec![
            runtime.spawn(grpc::serve(plugin_listener, served, stopped.clone())),
            runtime.spawn(grpc::serve(listener, Arc::new(service::Registration { endpoint }), stopped)),
        ];
        drop(entered);
        let (hold, over) = mpsc::channel();
        let refresher = std::thread::Builder::new()
            .name("kube-refresh".to_owned())
            .spawn(move || refresh::run(&plugin, &over))
            .map_err(NodeError::Threads)?;
        Ok(Self {
            stop,
            refresher: Some((hold, refresher)),
            runtime: Some(runtime),
            servers,
            _sockets: vec![socket, plugin_socket],
            _only_one: only_one,
        })
    }
}

impl Drop for Node {
    /// Prepared claims stay as they are: their pods go on, and the next plugin finds them in the book.
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        let Some(runtime) = self.runtime.take() else { return };
        for server in self.servers.drain(..) {
            let _ = runtime.block_on(server);
        }
        // A prepare that waits for a lease is not waited for; the kubelet asks again.
        runtime.shutdown_background();
        if let Some((hold, thread)) = self.refresher.take() {
            drop(hold);
            let _ = thread.join();
        }
    }
}
