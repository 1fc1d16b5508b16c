//! Admission: the authority, the keys that sign leases, the tokens that were made, the machines that have
//! joined, and what of all that was revoked.

mod departed;
mod members;

pub(crate) use members::{Certifiable, Proof};

use departed::Departed;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pool_api::{DeniedLease, ErrorCode, GpuId, Lease, LeaseId, LinkSecret};
use pool_auth::{
    Authority, BearerToken, Denial, DenyList, FabricSecret, Identity, LINEAGE_MAX, LeaseClaims, LeaseKey,
    LeasePublicKey, Member, Secret, Subject, TokenKind, TokenRecord, TokenRefusal, lease_token,
};

use crate::claim::{Caller, Claim, ShownToken};
use crate::problem::Problem;
use crate::records::{self, StoredFabric, StoredLeaseKey};
use crate::staged::Staged;

/// Only this module and `bootstrap` write keys below it.
pub(crate) const PREFIX: &str = "auth/";
pub(crate) const AUTHORITY_KEY: &str = "auth/authority";
pub(crate) const FABRIC_KEY: &str = "auth/fabric";
const LEASE_KEY_PREFIX: &str = "auth/lease-key/";
pub(crate) const TOKEN_PREFIX: &str = "auth/token/";
/// `Waiters::wake` wakes every waiting request when a key below this changes: the revocation may concern it.
pub(crate) const DENIED_PREFIX: &str = "auth/denied/";
const MEMBER_PREFIX: &str = "auth/member/";
/// Present once `adopt` has made members of the machines that joined before members were stored.
const MEMBERS_KNOWN_KEY: &str = "auth/members-known";

/// How long a lease token opens its slot for the first time. The epoch ends it sooner; this bounds what a stolen one is
/// worth on a box that hears nothing from its manager.
pub(crate) const LEASE_TOKEN_MS: u64 = 24 * 3600 * 1000;

/// A new lease key is announced so long before anything is signed with it: every box that is not dead has reported.
const ANNOUNCE_MS: u64 = 30_000;

/// Tokens a pool may have at a time.
const TOKENS_MAX: usize = 100_000;

/// Entries of the deny list at a time. Beyond that those go that would end first: what they deny has ended long ago, and
/// its records are gone.
const DENIED_MAX: usize = 100_000;

/// Revoked leases that one box is told of. Beyond that epochs alone fence them off, as they do all of them a little later.
const DENIED_PER_BOX_MAX: usize = 256;

/// Lease keys at a time: every box is told all of them with every answer.
const LEASE_KEYS_MAX: usize = 8;

struct HeldKey {
    key: LeaseKey,
    stored: StoredLeaseKey,
}

/// The book of everything that authenticates a caller.
pub(crate) struct Access {
    authority: Arc<Authority>,
    /// By the moment they begin to sign.
    keys: Vec<HeldKey>,
    tokens: HashMap<String, TokenRecord>,
    fabric: FabricSecret,
    members: BTreeMap<Identity, Member>,
    /// Machines that joined before members were written down are among them.
    are_members_known: bool,
    denied: DenyList,
    departed: Departed,
}

impl Access {
    /// From what is stored below [`PREFIX`]. A pool from before there was a PCIe plane gets a secret for it now.
    pub(crate) fn load<'a>(
        authority: Arc<Authority>,
        records: impl Iterator<Item = (&'a str, &'a [u8])>,
        staged: &mut Staged,
    ) -> Result<Self, String> {
        let (mut keys, mut tokens, mut fabric) = (Vec::new(), HashMap::new(), None);
        let (mut members, mut are_members_known, mut denied) = (BTreeMap::new(), false, DenyList::default());
        for (key, value) in records {
            let bad = |error: &dyn std::fmt::Display| format!("{key} cannot be used: {error}");
            if key.starts_with(LEASE_KEY_PREFIX) {
                let stored = records::LEASE_KEY.read(value).map_err(|error| bad(&error))?;
                let held = LeaseKey::from_secret(&stored.secret).map_err(|error| bad(&error))?;
                keys.push(HeldKey { key: held, stored });
            } else if key.starts_with(TOKEN_PREFIX) {
                let record = records::TOKEN.read(value).map_err(|error| bad(&error))?;
                tokens.insert(record.id.clone(), record);
            } else if key.starts_with(MEMBER_PREFIX) {
                let member = records::MEMBER.read(value).map_err(|error| bad(&error))?;
                members.insert(member.identity.clone(), member);
            } else if key.starts_with(DENIED_PREFIX) {
                denied.deny(records::DENIED.read(value).map_err(|error| bad(&error))?);
            } else if key == MEMBERS_KNOWN_KEY {
                are_members_known = true;
            } else if key == FABRIC_KEY {
                let stored = records::FABRIC.read(value).map_err(|error| bad(&error))?;
                fabric = Some(FabricSecret::from_secret(stored.secret).map_err(|error| bad(&error))?);
            }
        }
        keys.sort_by_key(|held: &HeldKey| held.stored.signs_from_ms);
        if keys.is_empty() {
            return Err("the store holds no key that signs leases: restore it from a backup".to_owned());
        }
        let fabric = fabric.unwrap_or_else(|| {
            let made = FabricSecret::make();
            let stored = StoredFabric { secret: made.secret().clone() };
            staged.put(FABRIC_KEY.to_owned(), records::FABRIC.write(&stored));
            made
        });
        Ok(Self {
            authority,
            keys,
            tokens,
            fabric,
            members,
            are_members_known,
            denied,
            departed: Departed::default(),
        })
    }

    /// What the two proxies of a grant on the PCIe plane are given.
    pub(crate) fn link_secret(&self, gpu: &GpuId, epoch: u64, lease: LeaseId) -> LinkSecret {
        LinkSecret::from_bytes(&self.fabric.link(&gpu.to_string(), epoch, &lease.to_string()))
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Authenticates a claim by its token, or else by the certificate of its connection.
    pub(crate) fn authenticate(&self, claim: &Claim, now_ms: u64) -> Result<Caller, Problem> {
        let refused = |message: &str, hint: &str| Problem::new(ErrorCode::Unauthenticated, message, hint);
        let mut token_id = None;
        let identity = match (&claim.bearer, &claim.certificate) {
            // A token counts before the connection's certificate.
            (Some(ShownToken::Nonsense), _) => {
                return Err(refused(
                    "the text after `Authorization: Bearer` is not a token of dxpu",
                    "show a whole token, such as `Authorization: Bearer dxpu-user.…`",
                ));
            }
            (Some(ShownToken::Token(token)), _) => {
                if let Some(denial) = self.departed.get(token).and_then(|gone| self.denied.of_token(gone)) {
                    return Err(revoked("this token", denial, "ask an admin for a new one"));
                }
                let gone = || self.departed.refusal(token, now_ms);
                let record = self.tokens.get(token.id()).ok_or_else(gone);
                let record = record.and_then(|record| record.check_user(token, now_ms).map(|_| record));
                let record = record.map_err(|refusal| refused(&refusal.to_string(), what_to_do(refusal)))?;
                if let Some(denial) = self.denied.of_token(record) {
                    return Err(revoked("this token", denial, "ask an admin for a new one"));
                }
                token_id = Some(record.id.clone());
                record.identity.clone()
            }
            (None, Some(shown)) => self.check_certificate(shown)?.clone(),
            (None, None) => {
                return Err(refused(
                    "the request shows neither a certificate nor a token",
                    "show a certificate of the pool's authority, or a token as `Authorization: Bearer …`",
                ));
            }
        };
        Ok(Caller { identity, token: token_id, address: claim.address })
    }

    /// Makes a token. Only its hash is kept.
    pub(crate) fn make_token(
        &mut self,
        order: NewToken,
        now_ms: u64,
        staged: &mut Staged,
    ) -> Result<(BearerToken, TokenRecord), Problem> {
        if self.tokens.len() >= TOKENS_MAX {
            let hint = "revoke tokens that are not used any more: `dxpu token ls` lists them, `dxpu token revoke ID` ends one";
            return Err(Problem::new(ErrorCode::TooMany, format!("there are {TOKENS_MAX} tokens"), hint));
        }
        let lineage = match order.made_with.as_deref().and_then(|id| self.tokens.get(id)) {
            None => Vec::new(),
            Some(parent) => parent.lineage_of_children().ok_or_else(|| {
                let message = format!("tokens were made with tokens {LINEAGE_MAX} times in a row");
                Problem::new(ErrorCode::Conflict, message, "ask with a token that was made earlier")
            })?,
        };
        let token = BearerToken::make(order.kind);
        let expires_ms = now_ms.saturating_add(order.ttl_ms);
        // Dated after every revocation of this identity, also when this manager's clock is behind the one that
        // revoked.
        let created_ms = self.denied.first_ms_for(&order.identity, now_ms);
        let mut record = TokenRecord::new(&token, order.identity, &order.created_by, created_ms, expires_ms);
        (record.note, record.lineage) = (order.note, lineage);
        self.put_token(record.clone(), staged);
        Ok((token, record))
    }

    fn put_token(&mut self, record: TokenRecord, staged: &mut Staged) {
        staged.put(token_key(&record), records::TOKEN.write(&record));
        self.tokens.insert(record.id.clone(), record);
    }

    /// Forgets a token.
    pub(crate) fn forget_token(&mut self, id: &str, staged: &mut Staged) {
        if let Some(record) = self.tokens.remove(id) {
            self.departed.add(record);
            staged.delete(format!("{TOKEN_PREFIX}{id}"));
        }
    }

    /// What is known of a token.
    pub(crate) fn token(&self, id: &str) -> Option<&TokenRecord> {
        self.tokens.get(id)
    }

    /// What was revoked.
    pub(crate) fn denied(&self) -> &DenyList {
        &self.denied
    }

    /// Puts something on the deny list. Says until when it stays there.
    pub(crate) fn deny(&mut self, denial: Denial, staged: &mut Staged) -> u64 {
        while self.denied.len() >= DENIED_MAX
            && let Some(soonest) = self.denied.soonest().map(|denial| denial.subject.clone())
        {
            self.denied.remove(&soonest);
            staged.delete(denied_key(&soonest));
        }
        let entry = self.denied.deny(denial);
        staged.put(denied_key(&entry.subject), records::DENIED.write(entry));
        entry.until_ms
    }

    /// Leases whose tokens a box must refuse.
    pub(crate) fn denied_leases(&self, box_name: &str) -> Vec<DeniedLease> {
        let denied = self.denied.leases_of(box_name).filter_map(|(lease, denial)| {
            Some(DeniedLease { lease: lease.parse().ok()?, until_ms: denial.until_ms })
        });
        denied.take(DENIED_PER_BOX_MAX).collect()
    }

    /// Whether a lease is to end because of what was revoked.
    pub(crate) fn ends_lease(&self, lease: &Lease) -> bool {
        self.ended_by(lease).is_some()
    }

    /// What ends a lease: it was revoked itself, or the token, the borrower or the tenant that asked for it.
    pub(crate) fn ended_by(&self, lease: &Lease) -> Option<&Denial> {
        let token = lease.token.as_deref();
        let lineage = token.and_then(|id| self.tokens.get(id)).map_or(&[][..], |record| &record.lineage);
        let by_token = token.and_then(|id| self.denied.get(&Subject::Token(id.to_owned())));
        let by_owner = || self.denied.of_identity(&lease.owner.parse().ok()?, lease.created_ms);
        let tenant = Subject::Tenant(lease.tenant.to_string());
        let by_tenant = || self.denied.get(&tenant).filter(|denial| lease.created_ms <= denial.since_ms);
        let itself = self.denied.get(&Subject::Lease(lease.id.to_string()));
        let all = [itself, by_token, self.denied.of_ancestors(lineage), by_owner(), by_tenant()];
        all.into_iter().flatten().find(|denial| !denial.keeps_leases)
    }

    /// Every token, by identifier.
    pub(crate) fn tokens(&self) -> Vec<&TokenRecord> {
        let mut all: Vec<_> = self.tokens.values().collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
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
            let hint = "wait: the manager removes the oldest a day after it was replaced";
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
        staged.put(lease_key_key(&key), records::LEASE_KEY.write(&stored));
        self.keys.push(HeldKey { key, stored });
        Ok(public)
    }

    /// Forgets expired tokens, what need not be denied any more, and keys that were replaced long ago.
    pub(crate) fn sweep(&mut self, now_ms: u64, staged: &mut Staged) {
        let expired: Vec<String> = self
            .tokens
            .values()
            .filter(|token| token.expires_ms <= now_ms)
            .map(|token| token.id.clone())
            .collect();
        for id in expired.iter().take(SWEEP_MAX) {
            self.forget_token(id, staged);
        }
        for subject in self.denied.expire(now_ms, SWEEP_MAX) {
            staged.delete(denied_key(&subject));
        }
        while let [_, next, ..] = &self.keys[..]
            && next.stored.signs_from_ms.saturating_add(LEASE_TOKEN_MS) <= now_ms
        {
            let old = self.keys.remove(0);
            staged.delete(lease_key_key(&old.key));
        }
    }
}

/// Records that `sweep` removes at once: they share a transaction with jobs that callers wait for.
const SWEEP_MAX: usize = 32;

/// What a token is to be.
pub(crate) struct NewToken {
    pub(crate) kind: TokenKind,
    pub(crate) identity: Identity,
    pub(crate) created_by: String,
    /// The token that the caller has shown.
    pub(crate) made_with: Option<String>,
    pub(crate) ttl_ms: u64,
    pub(crate) note: String,
}

/// What the bearer of a token that is refused can do.
fn what_to_do(refusal: TokenRefusal) -> &'static str {
    match refusal {
        TokenRefusal::Unknown => {
            "check that it is of this pool and was copied whole; if it has expired or was revoked a while ago, \
             ask an admin for a new one"
        }
        TokenRefusal::WrongKind => {
            "use a token of a person: an admin makes one with `dxpu token create viewer/NAME --out FILE`"
        }
        TokenRefusal::Expired | TokenRefusal::Used => "ask an admin for a new one",
    }
}

fn denied_key(subject: &Subject) -> String {
    format!("{DENIED_PREFIX}{subject}")
}

/// The problem for a caller that was admitted before and is revoked now.
fn revoked(what: &str, denial: &Denial, hint: &str) -> Problem {
    let because = if denial.reason.is_empty() { String::new() } else { format!(": {}", denial.reason) };
    Problem::new(ErrorCode::Revoked, format!("{what} was revoked by {}{because}", denial.by), hint)
}

pub(crate) fn lease_key_key(key: &LeaseKey) -> String {
    format!("{LEASE_KEY_PREFIX}{}", key.id())
}

pub(crate) fn token_key(record: &TokenRecord) -> String {
    format!("{TOKEN_PREFIX}{}", record.id)
}
