//! Which clients are let in.

use crate::session::handshake::{HandshakeError, is_same_secret, refused};
use cuda_abi::CudaError;
use cuda_driver::{Class, Share};
use cuda_wire::Hello;
use lease_fence::{Denial, LeaseAdmission, PartHeld, Tenancy};
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
    /// What offline work may add to the time of its requests, in percent, if its lease says so; else the worker does.
    pub(crate) slack_percent: Option<u16>,
    /// What it has of the GPU's time beside other leases, if it takes turns with them.
    pub(crate) share: Option<Share>,
}

impl Admitted {
    /// Adds what the client wishes for itself. The class of a lease is the truth: its programs cannot raise themselves above
    /// it. A dedicated lease has its GPU for itself, so its programs may choose among themselves which of them comes first;
    /// a program of an online lease may step back behind the others. Parts of a lease may belong to tenants that do not know
    /// each other: their wishes change nothing, because a client must not make itself online before a stranger. Neither do those of
    /// programs that take turns with other leases: they could leave the turns that way.
    pub(crate) fn with_wish(self, hello: &Hello) -> Result<Self, HandshakeError> {
        if self.part.is_some() || self.share.is_some() {
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

/// The share of a lease. Leases are told apart by a hash: two of one GPU with the same would have their shares together.
fn share_of(tenancy: &Tenancy) -> Option<Share> {
    let milli = tenancy.share_milli.filter(|_| tenancy.class == Class::Dedicated)?;
    let hash = blake3::hash(tenancy.lease.as_bytes());
    let number = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Some(Share::new(milli, number))
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
                    share: share_of(&tenancy),
                    memory_limit_bytes: tenancy.memory_limit_bytes,
                    part: tenancy.part,
                    lease: Some(tenancy.lease),
                    class: tenancy.class,
                    slack_percent: tenancy.slack_percent,
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

    fn tenancy(lease: &str, share_milli: Option<u16>, class: Class) -> Tenancy {
        let (lease, tenant) = (lease.to_owned(), "vision".to_owned());
        Tenancy {
            lease,
            tenant,
            epoch: 1,
            memory_limit_bytes: None,
            class,
            slack_percent: None,
            share_milli,
            part: None,
        }
    }

    #[test]
    fn a_dedicated_lease_with_a_share_has_it_for_all_its_programs_together() {
        let share = |lease, milli| share_of(&tenancy(lease, milli, Class::Dedicated));
        let (one, two) = (share("l-1", Some(250)).unwrap(), share("l-2", Some(250)).unwrap());
        assert!(one.milli() == 250 && one.is_of_lease(one) && !one.is_of_lease(two));
        assert_eq!(share("l-1", None), None, "a whole GPU");
        for class in [Class::Online, Class::Offline] {
            assert_eq!(share_of(&tenancy("l-1", Some(250), class)), None, "{class}: it has the gate");
        }
    }

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
