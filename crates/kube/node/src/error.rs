//! Why a claim is not prepared, and why there is no plugin.

use crate::claims::ClaimsError;
use machine::files::FileError;
use pool_api::LeaseId;
use pool_client::ClientError;
use std::io;
use std::path::PathBuf;

/// Why a claim is not prepared. The kubelet shows it in the pod's events and tries again.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Nothing that can be a file's name.
    #[error("the claim's UID {0:?} is none")]
    BadUid(String),
    /// It is not in the API server.
    #[error("claim {namespace}/{name} is deleted")]
    NoClaim {
        /// Where it was.
        namespace: String,
        /// What it was called.
        name: String,
    },
    /// Another claim has its name now.
    #[error(
        "claim {namespace}/{name} is another one now: its UID is {found}, and the pod's claim had {wanted}"
    )]
    OtherClaim {
        /// Where it is.
        namespace: String,
        /// What it is called.
        name: String,
        /// The UID in the API server.
        found: String,
        /// The UID that the kubelet named.
        wanted: String,
    },
    /// The scheduler has not given it devices, or has taken them back.
    #[error("claim {namespace}/{name} has no devices of driver dxpu.dev allocated")]
    NotAllocated {
        /// Where it is.
        namespace: String,
        /// What it is called.
        name: String,
    },
    /// The API server was no help.
    #[error(transparent)]
    Claims(#[from] ClaimsError),
    /// The controller has not asked for one yet.
    #[error(
        "no lease of the pool has the label {0}: the controller makes it; look at the log of `dxpu kube controller`"
    )]
    NoLease(String),
    /// It waits in the pool's queue.
    #[error("lease {lease} waits for its GPU; `dxpu lease explain {lease}` says why")]
    Waits {
        /// The lease.
        lease: LeaseId,
    },
    /// It ended, and no other is there.
    #[error("lease {lease} is over: {reason}")]
    Over {
        /// The lease.
        lease: LeaseId,
        /// Why.
        reason: String,
    },
    /// The manager was no help.
    #[error("the pool's manager: {0}")]
    Manager(#[from] ClientError),
    /// The worker of a GPU does not let this machine in.
    #[error("lease {lease} has its GPU, and this node cannot reach its worker: {why}")]
    NoWay {
        /// The lease.
        lease: LeaseId,
        /// What was tried.
        why: String,
    },
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// What the container needs is not there.
    #[error("no container could be started with the claim: {0}")]
    Cdi(#[from] cdi::CdiError),
    /// The task that prepared it ended by a panic.
    #[error("the plugin failed inside; its log says where")]
    Inside,
}

/// Why there is no plugin.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A socket cannot be made.
    #[error("cannot listen at {}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The path of the registration socket cannot be sent as an HTTP authority.
    #[error("the kubelet cannot name the socket {} in a request", .0.display())]
    Unnameable(PathBuf),
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file with the prepared claims was written by another version.
    #[error("{} is not a state file of this version of dxpu: {why}", path.display())]
    State {
        /// Which file.
        path: PathBuf,
        /// What is odd about it.
        why: String,
    },
    /// No threads.
    #[error("cannot start the plugin's threads")]
    Threads(#[source] io::Error),
}
