//! What a request claims and shows about its caller.

use std::net::SocketAddr;

use pool_auth::{BearerToken, Certified, Identity, Permission, Role};

use crate::door::Guest;
use crate::problem::Problem;

/// What came with a request, not yet believed.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// Proved by the TLS handshake.
    pub(crate) certificate: Option<Certified>,
    /// Shown, and for the manager to look up.
    pub(crate) bearer: Option<ShownToken>,
    /// From where.
    pub(crate) address: SocketAddr,
    /// Over which connection.
    pub(crate) guest: Guest,
}

/// A bearer token, if it looks like one.
#[derive(Clone, Debug)]
pub(crate) enum ShownToken {
    /// To be looked up.
    Token(BearerToken),
    /// Nothing we ever made.
    Nonsense,
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Its name and kind.
    pub(crate) identity: Identity,
    /// The token that proved it, if it was one.
    pub(crate) token: Option<String>,
    /// From where.
    pub(crate) address: SocketAddr,
}

impl Caller {
    /// What they are entitled to.
    pub(crate) fn role(&self) -> Role {
        self.identity.role()
    }

    /// Refuses unless the role includes it.
    pub(crate) fn require(&self, permission: Permission) -> Result<(), Problem> {
        if self.role().may(permission) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("a {} may not do this", self.role().as_str())))
    }

    /// Refuses unless it is this machine itself that speaks.
    pub(crate) fn require_is(&self, machine: &Identity) -> Result<(), Problem> {
        if self.identity == *machine {
            return Ok(());
        }
        let (kind, name) = (machine.role().as_str(), machine.short_name());
        Err(Problem::forbidden(format!("{} cannot speak for {kind} {name}", self.identity)))
    }
}
