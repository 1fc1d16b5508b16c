//! Who is let in: the authority, the keys that sign leases, and the tokens that were made.

use std::collections::HashMap;
use std::sync::Arc;

use pool_api::{ErrorCode, GpuId, LeaseId, LinkSecret};
use pool_auth::{
    Authority, BearerToken, CertificateRequest, Digest, FabricSecret, Identity, LeaseClaims, LeaseKey,
    LeasePublicKey, Secret, TokenKind, TokenRecord, TokenRefusal, lease_token,
};
use serde::{Deserialize, Serialize};

use crate::claim::{Caller, Claim, ShownToken};
use crate::problem::Problem;
use crate::staged::Staged;

/// Everything below is written by this file alone.
pub(crate) const PREFIX: &str = "auth/";
pub(crate) const AUTHORITY_KEY: &str = "auth/authority";
pub(crate) const FABRIC_KEY: &str = "auth/fabric";
const LEASE_KEY_PREFIX: &str = "auth/lease-key/";
const TOKEN_PREFIX: &str = "auth/token/";

/// How long a lease token opens its slot for the first time. The epoch ends it sooner; this bounds what a stolen one is
/// worth on a box that hears nothing from its manager.
pub(crate) const LEASE_TOKEN_MS: u64 = 24 * 3600 * 1000;

/// A new lease key is announced so long before anything is signed with it: every box that is not dead has reported.
const ANNOUNCE_MS: u64 = 30_000;

/// Tokens a pool may have at a time.
const TOKENS_MAX: usize = 100_000;

/// Lease keys at a time: every box is told all of them with every answer.
const LEASE_KEYS_MAX: usize = 8;

/// How the authority is stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredAuthority {
    pub(crate) certificate: String,
    pub(crate) key: Secret,
}

/// How a lease key is stored.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredLeaseKey {
    pub(crate) secret: Secret,
    pub(crate) created_ms: u64,
    /// Not before, so that every box knows it.
    pub(crate) signs_from_ms: u64,
}

/// How the secret of the PCIe plane is stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredFabric {
    pub(crate) secret: Secret,
}

struct HeldKey {
    key: LeaseKey,
    stored: StoredLeaseKey,
}

/// The book of who is let in.
pub(crate) struct Access {
    authority: Arc<Authority>,
    /// By the moment they begin to sign.
    keys: Vec<HeldKey>,
    tokens: HashMap<String, TokenRecord>,
    fabric: FabricSecret,
}

impl Access {
    /// From what is stored below [`PREFIX`]. A pool from before there was a PCIe plane gets a secret for it now.
    pub(crate) fn load<'a>(
        authority: Arc<Authority>,
        records: impl Iterator<Item = (&'a str, &'a [u8])>,
        staged: &mut Staged,
    ) -> Result<Self, String> {
        let (mut keys, mut tokens, mut fabric) = (Vec::new(), HashMap::new(), None);
        for (key, value) in records {
            let damaged = |error: &dyn std::fmt::Display| format!("{key} is damaged: {error}");
            if key.starts_with(LEASE_KEY_PREFIX) {
                let stored: StoredLeaseKey = serde_json::from_slice(value).map_err(|e| damaged(&e))?;
                let held = LeaseKey::from_secret(&stored.secret).map_err(|e| damaged(&e))?;
                keys.push(HeldKey { key: held, stored });
            } else if key.starts_with(TOKEN_PREFIX) {
                let record: TokenRecord = serde_json::from_slice(value).map_err(|e| damaged(&e))?;
                tokens.insert(record.id.clone(), record);
            } else if key == FABRIC_KEY {
                let stored: StoredFabric = serde_json::from_slice(value).map_err(|e| damaged(&e))?;
                fabric = Some(FabricSecret::from_secret(stored.secret).map_err(|e| damaged(&e))?);
            }
        }
        keys.sort_by_key(|held: &HeldKey| held.stored.signs_from_ms);
        if keys.is_empty() {
            return Err("there is no key to sign leases with".to_owned());
        }
        let fabric = fabric.unwrap_or_else(|| {
            let made = FabricSecret::make();
            staged.put_json(FABRIC_KEY.to_owned(), &StoredFabric { secret: made.secret().clone() });
            made
        });
        Ok(Self { authority, keys, tokens, fabric })
    }

    /// What the two proxies of a grant on the PCIe plane are given.
    pub(crate) fn link_secret(&self, gpu: &GpuId, epoch: u64, lease: LeaseId) -> LinkSecret {
        LinkSecret::from_bytes(&self.fabric.link(&gpu.to_string(), epoch, &lease.to_string()))
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Believes a claim, or not.
    pub(crate) fn authenticate(&self, claim: &Claim, now_ms: u64) -> Result<Caller, Problem> {
        let refused = |message: &str, hint: &str| Problem::new(ErrorCode::Unauthenticated, message, hint);
        let identity = match (&claim.bearer, &claim.certificate) {
            // A token that is shown is meant, whatever the connection has proved.
            (Some(ShownToken::Nonsense), _) => {
                return Err(refused(
                    "this is not a token",
                    "show one as `Authorization: Bearer dxpu-user.…`",
                ));
            }
            (Some(ShownToken::Token(token)), _) => {
                let record = self.tokens.get(token.id()).ok_or(TokenRefusal::Unknown);
                let identity = record.and_then(|record| record.check_user(token, now_ms));
                identity
                    .map_err(|refusal| refused(&refusal.to_string(), "ask an admin for a new one"))?
                    .clone()
            }
            (None, Some(identity)) => identity.clone(),
            (None, None) => {
                return Err(refused(
                    "nobody knows who asks",
                    "show a certificate of the pool's authority, or a token as `Authorization: Bearer …`",
                ));
            }
        };
        Ok(Caller { identity, address: claim.address })
    }

    /// Makes a token. Only its hash is kept.
    pub(crate) fn make_token(
        &mut self,
        order: NewToken,
        now_ms: u64,
        staged: &mut Staged,
    ) -> Result<(BearerToken, TokenRecord), Problem> {
        if self.tokens.len() >= TOKENS_MAX {
            let hint = "revoke tokens that nobody needs";
            return Err(Problem::new(ErrorCode::TooMany, format!("there are {TOKENS_MAX} tokens"), hint));
        }
        let token = BearerToken::make(order.kind);
        let expires_ms = now_ms.saturating_add(order.ttl_ms);
        let mut record = TokenRecord::new(&token, order.identity, &order.created_by, now_ms, expires_ms);
        record.note = order.note;
        self.put_token(record.clone(), staged);
        Ok((token, record))
    }

    fn put_token(&mut self, record: TokenRecord, staged: &mut Staged) {
        staged.put_json(format!("{TOKEN_PREFIX}{}", record.id), &record);
        self.tokens.insert(record.id.clone(), record);
    }

    /// Forgets a token.
    pub(crate) fn revoke(&mut self, id: &str, staged: &mut Staged) -> Option<TokenRecord> {
        let record = self.tokens.remove(id)?;
        staged.delete(format!("{TOKEN_PREFIX}{id}"));
        Some(record)
    }

    /// Every token, by identifier.
    pub(crate) fn tokens(&self) -> Vec<&TokenRecord> {
        let mut all: Vec<_> = self.tokens.values().collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Uses a join token up for one key; tells whom the key is to be certified as.
    pub(crate) fn join(
        &mut self,
        shown: &str,
        name: &str,
        request: &CertificateRequest,
        now_ms: u64,
        staged: &mut Staged,
    ) -> Result<Identity, Problem> {
        let refused = |refusal: TokenRefusal| {
            let hint = "have an operator make a new one: dxpu token create";
            Problem::new(ErrorCode::Unauthenticated, refusal.to_string(), hint)
        };
        let token = BearerToken::parse(shown).ok_or_else(|| refused(TokenRefusal::Unknown))?;
        let record = self.tokens.get(token.id()).ok_or_else(|| refused(TokenRefusal::Unknown))?;
        let key: Digest = request.key_digest();
        let identity = record.check_join(&token, &key, now_ms).map_err(refused)?.clone();
        if identity.short_name() != name {
            return Err(Problem::forbidden(format!("this token is not for the name {name}")));
        }
        if record.used_for.is_none() {
            let used = TokenRecord { used_for: Some(key), ..record.clone() };
            self.put_token(used, staged);
        }
        Ok(identity)
    }

    /// What boxes accept signatures of, all at once.
    pub(crate) fn public_keys(&self) -> impl Iterator<Item = LeasePublicKey> {
        self.keys.iter().map(|held| held.key.public())
    }

    /// Signs with the newest key that every box has heard of.
    pub(crate) fn sign(&self, claims: &LeaseClaims, now_ms: u64) -> Result<Secret, Problem> {
        let announced = self.keys.iter().rev().find(|held| held.stored.signs_from_ms <= now_ms);
        let held = announced.or(self.keys.first()).expect("there is always a key");
        lease_token::sign(claims, &held.key).map_err(|error| Problem::internal(error.to_string()))
    }

    /// Makes a new lease key. Old ones go when nothing signed with them can be valid any more.
    pub(crate) fn rotate(&mut self, now_ms: u64, staged: &mut Staged) -> Result<LeasePublicKey, Problem> {
        if self.keys.len() >= LEASE_KEYS_MAX {
            let hint = "the oldest goes a day after it was replaced";
            return Err(Problem::new(
                ErrorCode::TooMany,
                format!("there are {LEASE_KEYS_MAX} lease keys"),
                hint,
            ));
        }
        let key = LeaseKey::make();
        let stored = StoredLeaseKey {
            secret: key.secret().clone(),
            created_ms: now_ms,
            signs_from_ms: now_ms + ANNOUNCE_MS,
        };
        let public = key.public();
        staged.put_json(lease_key_key(&key), &stored);
        self.keys.push(HeldKey { key, stored });
        Ok(public)
    }

    /// Forgets expired tokens and keys that were replaced long ago.
    pub(crate) fn sweep(&mut self, now_ms: u64, staged: &mut Staged) {
        let expired: Vec<String> = self
            .tokens
            .values()
            .filter(|token| token.expires_ms <= now_ms)
            .map(|token| token.id.clone())
            .collect();
        for id in expired.iter().take(SWEEP_MAX) {
            self.revoke(id, staged);
        }
        while let [_, next, ..] = &self.keys[..]
            && next.stored.signs_from_ms.saturating_add(LEASE_TOKEN_MS) <= now_ms
        {
            let old = self.keys.remove(0);
            staged.delete(lease_key_key(&old.key));
        }
    }
}

/// Records removed at once: they share a transaction with what people wait for.
const SWEEP_MAX: usize = 32;

/// What a token is to be.
pub(crate) struct NewToken {
    pub(crate) kind: TokenKind,
    pub(crate) identity: Identity,
    pub(crate) created_by: String,
    pub(crate) ttl_ms: u64,
    pub(crate) note: String,
}

pub(crate) fn lease_key_key(key: &LeaseKey) -> String {
    format!("{LEASE_KEY_PREFIX}{}", key.id())
}

pub(crate) fn token_key(record: &TokenRecord) -> String {
    format!("{TOKEN_PREFIX}{}", record.id)
}
