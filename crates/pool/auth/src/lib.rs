//! Which identity may do what in a pool, and how it proves itself.
//!
//! | proof | for | checked by |
//! |---|---|---|
//! | a certificate of the pool's [`Authority`], naming an [`Identity`] | managers; boxes and hosts that are [`Member`]s | the TLS handshake, then [`certified`] |
//! | a bearer token ([`BearerToken`], stored as a hash: [`TokenRecord`]) | people and CI; joining, once | the manager |
//! | a lease token ([`lease_token`]), signed with an Ed25519 [`LeaseKey`] | opening one slot of one box | the box alone, while the manager may be down |
//!
//! The secrets of links on the PCIe plane come from one that only managers know ([`FabricSecret`]).
//!
//! What was revoked is in a [`DenyList`]: tokens with all that was made with them, identities, certificates, leases.
//!
//! What an identity may do is one table, [`Role::may`]; what is not in it is refused.
//!
//! Times are arguments. Randomness comes from the system. Secrets have types that do not print.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod secret;

mod identity;
mod role;

mod authority;
mod certificate;
mod key;

mod bearer;
mod denial;
mod hash;
mod member;

mod credential;
mod fabric;

pub mod lease_token;

pub use authority::{Authority, AuthorityError, Issued, Lifetime};
pub use bearer::{BearerToken, LINEAGE_MAX, TokenKind, TokenRecord, TokenRefusal};
pub use certificate::{CertificateError, Certified, certified, identity_of};
pub use credential::{Credential, CredentialError};
pub use denial::{Denial, DenyList, Subject, SubjectError};
pub use fabric::{FabricSecret, FabricSecretError};
pub use hash::{Digest, digest};
pub use identity::{Identity, NameError, check_name};
pub use key::{CertificateRequest, NewKey};
pub use lease_token::{LeaseClaims, LeaseKey, LeaseKeyId, LeasePublicKey, LeaseTokenRefusal};
pub use member::{Member, MemberRefusal, RETURN_WITHIN};
pub use role::{Permission, Role};
pub use secret::Secret;
