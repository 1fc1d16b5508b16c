//! The token that opens one slot of one box for one lease, checked by the box alone.
//!
//! ```text
//! dxl1.BASE64URL
//!
//! byte   0          8            16           24            32             40        42      44
//!      | key id   | issued ms  | expires ms | epoch       | memory bytes | share   | slot  |
//!      | class (1), in dxl2 and dxl3 alone | slack in percent (2), in dxl3 alone |
//!      | length, lease text | length, tenant text | length, box text | Ed25519 signature (64) |
//! ```
//!
//! Numbers are big-endian; lengths are one byte. The signature covers everything before it, behind a label of its own,
//! so that nothing else signed with the key can pass for a token. One lease has one encoding: what decodes encodes to
//! the same text.
//!
//! A token of an online or offline lease begins with `dxl2.` and has one byte more, the class. Tokens of dedicated leases are
//! `dxl1` as they always were, so that boxes of before know them; those boxes refuse the others. A token of an online lease that
//! has a slack of its own begins with `dxl3.`.
//!
//! Expiry is judged by the manager's clock as the box last heard it. It only bounds how long a token may first be used:
//! what fences off an old holder is the epoch.

mod codec;
mod keys;

pub use codec::{CodecError, decode, encode};
pub use keys::{LeaseKey, LeaseKeyError, LeaseKeyId, LeasePublicKey};

use work_class::Class;

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseClaims {
    /// The lease.
    pub lease: String,
    /// The tenant that pays.
    pub tenant: String,
    /// The box that holds the GPU.
    pub box_name: String,
    /// The GPU's slot there.
    pub slot: u16,
    /// Fences off everything older.
    pub epoch: u64,
    /// How much GPU memory the holder may use.
    pub memory_bytes: u64,
    /// Thousandths of the GPU; 1000 is all of it.
    pub share_milli: u16,
    /// What its programs are to others on the GPU.
    pub class: Class,
    /// What offline work may add to the time of its requests, in percent, if an online lease says so itself.
    pub slack_percent: Option<u16>,
    /// When it was signed, by the manager's clock.
    pub issued_ms: u64,
    /// The first moment at which it no longer opens anything.
    pub expires_ms: u64,
    /// For one of several programs that share the lease: it may use `memory_bytes`, in one session at a time. Programs whose
    /// parts are the same up to the first dot trust each other. A worker that does not know of parts refuses the token.
    pub part: Option<String>,
}

/// A token as it travels: claims, and what proves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedClaims {
    /// Which key has signed.
    pub key: LeaseKeyId,
    /// What is claimed. Nothing of it counts before the signature is verified.
    pub claims: LeaseClaims,
    /// Ed25519.
    pub signature: [u8; 64],
}

/// Why a box does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseTokenRefusal {
    /// Not a token.
    #[error("not a lease token")]
    Damaged(#[from] CodecError),
    /// Signed by a key the box has not been told of, or no longer.
    #[error("the lease token is signed by a key that is not known here")]
    UnknownKey,
    /// Not signed by that key.
    #[error("the signature of the lease token does not hold")]
    Forged,
    /// For another slot or box.
    #[error("the lease token is for slot {slot} of {box_name}")]
    Elsewhere {
        /// The box it is for.
        box_name: String,
        /// The slot it is for.
        slot: u16,
    },
    /// Too late.
    #[error("the lease token expired {late_ms} ms ago")]
    Expired {
        /// How late it came.
        late_ms: u64,
    },
}

/// Checks a token for one slot. Needs no manager, no clock and no state: the caller compares the epoch.
///
/// `now_ms` is the manager's time as the box knows it.
pub fn verify(
    token: &str,
    keys: &[LeasePublicKey],
    box_name: &str,
    slot: u16,
    now_ms: u64,
) -> Result<LeaseClaims, LeaseTokenRefusal> {
    let signed = decode(token)?;
    let key = keys.iter().find(|key| key.id() == signed.key).ok_or(LeaseTokenRefusal::UnknownKey)?;
    if !key.has_signed(&codec::signed_bytes(&signed.key, &signed.claims), &signed.signature) {
        return Err(LeaseTokenRefusal::Forged);
    }
    let claims = signed.claims;
    if claims.box_name != box_name || claims.slot != slot {
        return Err(LeaseTokenRefusal::Elsewhere { box_name: claims.box_name, slot: claims.slot });
    }
    if now_ms >= claims.expires_ms {
        return Err(LeaseTokenRefusal::Expired { late_ms: now_ms - claims.expires_ms });
    }
    Ok(claims)
}

/// Signs claims.
pub fn sign(claims: &LeaseClaims, key: &LeaseKey) -> Result<crate::Secret, CodecError> {
    codec::check(claims)?;
    let id = key.id();
    let signature = key.sign(&codec::signed_bytes(&id, claims));
    encode(&SignedClaims { key: id, claims: claims.clone(), signature }).map(crate::Secret::new)
}

#[cfg(test)]
mod tests;
