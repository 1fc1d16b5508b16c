//! Which clients are let in.

use crate::session::handshake::{HandshakeError, is_same_secret, refused};
use cuda_abi::CudaError;
use cuda_driver::Class;
use cuda_wire::Hello;
use lease_fence::{Denial, LeaseAdmission, PartHeld};
use serde::{Deserialize, Serialize};

/// What a client must show to be served.
#[derive(Clone, Serialize, Deserialize)]
pub enum Admission {
    /// The one token of this worker.
    Secret(String),
    /// A lease of the slot that this worker serves.
    Lease(LeaseAdmission),
}

/// What a client that was let in may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// The most memory of each device.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// Which part of the lease, if it is one.
    pub(crate) part: Option<String>,
    /// By which lease, for the log.
    pub(crate) lease: Option<String>,
    /// What it is to others on its GPU.
    pub(crate) class: Class,
}

impl Admitted {
    /// Adds what the client wishes for itself. The class of a lease is the truth: its programs cannot raise themselves above
    /// it. A dedicated lease has its GPU for itself, so its programs may choose among themselves which of them comes first;
    /// a program of an online lease may step back behind the others. Parts of a lease may belong to tenants that do not know
    /// each other: their wishes change nothing, because a client must not make itself online before a stranger.
    pub(crate) fn with_wish(self, hello: &Hello) -> Result<Self, HandshakeError> {
        if self.part.is_some() {
            return Ok(self);
        }
        let Some(class) = Class::from_code(hello.wish.class) else {
            let text =
                "the client asks for a class that this worker does not know; install the same dxpu on both";
            return Err(refused(CudaError::INVALID_VALUE, text));
        };
        Ok(Self { class: decide(self.class, class), ..self })
    }
}

/// What a program is that its lease, or its worker's token, lets be so much, and that wishes this for itself.
fn decide(lease: Class, wish: Class) -> Class {
    match (lease, wish) {
        (Class::Dedicated, wish) => wish,
        (Class::Online, Class::Offline) => Class::Offline,
        (Class::Online | Class::Offline, _) => lease,
    }
}

impl Admission {
    /// Looks at a client's token.
    pub(crate) fn admit(&self, token: &str) -> Result<Admitted, HandshakeError> {
        match self {
            Self::Secret(secret) if is_same_secret(token.as_bytes(), secret.as_bytes()) => {
                Ok(Admitted::default())
            }
            Self::Secret(_) => Err(refused(
                CudaError::NOT_PERMITTED,
                match token.is_empty() {
                    true => {
                        "this worker wants a token and the client has none; give `dxpu run --token-file FILE` \
                         (or DXPU_TOKEN_FILE) the file that `dxpu worker` named when it started"
                    }
                    false => {
                        "the token is not the one of this worker; copy the token file of the worker again, \
                         it may have been made anew"
                    }
                },
            )),
            Self::Lease(admission) => match admission.admit(token) {
                Ok(tenancy) => Ok(Admitted {
                    memory_limit_bytes: tenancy.memory_limit_bytes,
                    part: tenancy.part,
                    lease: Some(tenancy.lease),
                    class: tenancy.class,
                }),
                Err(denial) => Err(refused(code(&denial), &in_full(&denial))),
            },
        }
    }
}

impl Admission {
    /// Takes the part of a lease that the client was let in for: for as long as its session lasts.
    pub(crate) fn take(&self, admitted: &Admitted) -> Result<Option<PartHeld>, HandshakeError> {
        match (self, &admitted.part) {
            (Self::Lease(admission), Some(part)) => match admission.take(part) {
                Ok(held) => Ok(Some(held)),
                Err(denial) => Err(refused(code(&denial), &in_full(&denial))),
            },
            _ => Ok(None),
        }
    }

    /// The tenant that the client was let in as: text that no other tenant has. It may be the token.
    pub(crate) fn tenant(&self, admitted: &Admitted) -> String {
        match (self, &admitted.lease) {
            (_, Some(lease)) => match admitted.part.as_deref().and_then(|part| part.split('.').next()) {
                Some(group) => format!("lease {lease} of {group}"),
                None => format!("lease {lease}"),
            },
            (Self::Secret(secret), None) => format!("token {secret}"),
            (Self::Lease(_), None) => "nobody".to_owned(),
        }
    }
}

/// The error that the program sees. One of them is not an end: a client that hears [`CudaError::SYSTEM_NOT_READY`] tries
/// again for a while.
fn code(denial: &Denial) -> CudaError {
    match denial.is_retryable() {
        true => CudaError::SYSTEM_NOT_READY,
        false => CudaError::NOT_PERMITTED,
    }
}

fn in_full(denial: &Denial) -> String {
    let what = crate::session::full_text(denial);
    match denial.is_retryable() {
        true => what,
        false => format!("{what}; lease a GPU with `dxpu run --gpus N -- PROGRAM`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_is_more_than_its_lease_lets_it_be() {
        for wish in Class::ALL {
            assert_eq!(decide(Class::Dedicated, wish), wish);
            assert_eq!(decide(Class::Offline, wish), Class::Offline);
        }
        let online = Class::ALL.map(|wish| decide(Class::Online, wish));
        assert_eq!(online, [Class::Online, Class::Online, Class::Offline]);
    }
}
