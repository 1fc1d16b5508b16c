//! Machines: how they join, renew, come back, and whether their certificates count.

use pool_api::ErrorCode;
use pool_auth::{
    BearerToken, CertificateRequest, Certified, Denial, Digest, Identity, Member, MemberRefusal, Subject,
    TokenRecord, TokenRefusal,
};

use super::{Access, MEMBER_PREFIX, MEMBERS_KNOWN_KEY, revoked};
use crate::problem::Problem;
use crate::records;
use crate::staged::Staged;

/// What a machine does that is not let in any more.
const JOIN_AGAIN: &str =
    "have an admin make a new join token (`dxpu token create`) and start with --join-token-file";

/// The identity that a key is to be certified for, and until when at the latest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certifiable {
    pub(crate) identity: Identity,
    pub(crate) until_ms: u64,
}

/// What shows that a request for a new certificate is a member's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The connection has shown a certificate of the member that counts.
    Certificate,
    /// The member's certificate ended while it was off. The request is signed with its key, and that alone proves its
    /// identity.
    KeyAlone,
}

impl Access {
    /// The identity that a certificate proves, if it still counts.
    pub(super) fn check_certificate<'a>(&self, shown: &'a Certified) -> Result<&'a Identity, Problem> {
        let identity = &shown.identity;
        if let Some(denial) = self.denied.get(&Subject::Serial(shown.serial.clone())) {
            return Err(revoked("this certificate", denial, JOIN_AGAIN));
        }
        match identity {
            Identity::Box(_) | Identity::Host(_) => {
                let member = self.member_or_refusal(identity)?;
                member.check(shown).map_err(|refusal| out(identity, refusal))?;
            }
            Identity::Manager(_) => {
                if let Some(denial) = self.denied.get(&Subject::Identity(identity.clone())) {
                    return Err(revoked(&identity.to_string(), denial, "give it another name"));
                }
            }
            // Earlier versions gave certificates to people, for a year.
            Identity::User { .. } | Identity::Operator(_) | Identity::Admin(_) | Identity::Viewer(_) => {
                return Err(Problem::new(
                    ErrorCode::Unauthenticated,
                    format!("certificates are for machines, and {identity} is none"),
                    "show a token as `Authorization: Bearer …`; `dxpu token create` makes them",
                ));
            }
        }
        Ok(identity)
    }

    fn member_or_refusal(&self, identity: &Identity) -> Result<&Member, Problem> {
        match self.members.get(identity) {
            Some(member) => match self.denied_member(member) {
                Some(denial) => Err(revoked(&identity.to_string(), denial, JOIN_AGAIN)),
                None => Ok(member),
            },
            None => match self.denied.get(&Subject::Identity(identity.clone())) {
                Some(denial) => Err(revoked(&identity.to_string(), denial, JOIN_AGAIN)),
                None => Err(Problem::new(
                    ErrorCode::Unauthenticated,
                    format!("{identity} is not a member of this pool"),
                    JOIN_AGAIN,
                )),
            },
        }
    }

    /// Why a machine is no member any more though it is written down as one, if so.
    pub(crate) fn denied_member(&self, member: &Member) -> Option<&Denial> {
        let by_name = self.denied.of_identity(&member.identity, member.joined_ms);
        by_name.or_else(|| self.denied.of_ancestors(member.lineage.iter().chain([&member.token])))
    }

    pub(crate) fn member(&self, identity: &Identity) -> Option<&Member> {
        self.members.get(identity)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Uses a join token up for one key. Its certificate ends when the token would have; by then it has renewed.
    pub(crate) fn join(
        &mut self,
        shown: &str,
        name: &str,
        request: &CertificateRequest,
        (now_ms, life_ms): (u64, u64),
        staged: &mut Staged,
    ) -> Result<Certifiable, Problem> {
        let refused = |refusal: TokenRefusal| {
            let hint = "have an admin make a new one: dxpu token create";
            Problem::new(ErrorCode::Unauthenticated, refusal.to_string(), hint)
        };
        let token = BearerToken::parse(shown).ok_or_else(|| refused(TokenRefusal::Unknown))?;
        let record = self.tokens.get(token.id()).ok_or_else(|| refused(TokenRefusal::Unknown))?;
        let key: Digest = request.key_digest();
        let identity = record.check_join(&token, &key, now_ms).map_err(refused)?.clone();
        if let Some(denial) = self.denied.of_token(record) {
            return Err(revoked("this token", denial, "have an admin make a new one: dxpu token create"));
        }
        if identity.short_name() != name {
            return Err(Problem::forbidden(format!("this token is not for the name {name}")));
        }
        let until_ms = record.expires_ms.min(now_ms.saturating_add(life_ms));
        let member = Member {
            identity: identity.clone(),
            key: Some(key.clone()),
            joined_ms: self.denied.first_ms_for(&identity, now_ms),
            token: record.id.clone(),
            lineage: record.lineage.clone(),
            certified_until_ms: until_ms,
        };
        if record.used_for.is_none() {
            let used = TokenRecord { used_for: Some(key), ..record.clone() };
            self.put_token(used, staged);
        }
        self.put_member(member, staged);
        Ok(Certifiable { identity, until_ms })
    }

    /// Lets a member have a new certificate, for the key that it joined with.
    pub(crate) fn renew(
        &mut self,
        identity: &Identity,
        request: &CertificateRequest,
        proof: Proof,
        (now_ms, life_ms): (u64, u64),
        staged: &mut Staged,
    ) -> Result<Certifiable, Problem> {
        let key = request.key_digest();
        let member = self.member_or_refusal(identity)?;
        let checked = match proof {
            Proof::Certificate => member.check_key(&key),
            Proof::KeyAlone => member.check_return(&key, now_ms),
        };
        checked.map_err(|refusal| out(identity, refusal))?;
        let until_ms = now_ms.saturating_add(life_ms);
        let member = Member { key: Some(key), certified_until_ms: until_ms, ..member.clone() };
        self.put_member(member, staged);
        Ok(Certifiable { identity: identity.clone(), until_ms })
    }

    fn put_member(&mut self, member: Member, staged: &mut Staged) {
        staged.put(member_key(&member.identity), records::MEMBER.write(&member));
        self.members.insert(member.identity.clone(), member);
    }

    pub(crate) fn forget_member(&mut self, identity: &Identity, staged: &mut Staged) {
        if self.members.remove(identity).is_some() {
            staged.delete(member_key(identity));
        }
    }

    /// Machines that joined before members were written down become members, once. Their keys are learned when they
    /// renew. Returns the members that are to be written.
    pub(crate) fn adopt(&mut self, machines: Vec<Identity>, now_ms: u64, life_ms: u64) -> Vec<Identity> {
        if self.are_members_known {
            return Vec::new();
        }
        let is_new = |identity: &Identity| !self.members.contains_key(identity);
        let new: Vec<Identity> = machines.into_iter().filter(is_new).collect();
        for identity in &new {
            let member = Member {
                identity: identity.clone(),
                key: None,
                joined_ms: now_ms,
                token: String::new(),
                lineage: Vec::new(),
                certified_until_ms: now_ms.saturating_add(life_ms),
            };
            self.members.insert(identity.clone(), member);
        }
        new
    }

    pub(crate) fn are_members_known(&self) -> bool {
        self.are_members_known
    }

    pub(crate) fn write_member(&self, identity: &Identity, staged: &mut Staged) {
        if let Some(member) = self.members.get(identity) {
            staged.put(member_key(identity), records::MEMBER.write(member));
        }
    }

    pub(crate) fn write_members_known(&mut self, now_ms: u64, staged: &mut Staged) {
        self.are_members_known = true;
        // That it is there counts; when it was written is for people.
        staged.put(MEMBERS_KNOWN_KEY.to_owned(), now_ms.to_string().into_bytes());
    }
}

fn member_key(identity: &Identity) -> String {
    format!("{MEMBER_PREFIX}{}/{}", identity.role().as_str(), identity.short_name())
}

fn out(identity: &Identity, refusal: MemberRefusal) -> Problem {
    let code = match refusal {
        MemberRefusal::OtherKey => ErrorCode::Revoked,
        MemberRefusal::AwayTooLong => ErrorCode::Unauthenticated,
    };
    Problem::new(code, format!("{identity} is not let in: {refusal}"), JOIN_AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{LEASE_KEY, StoredLeaseKey};
    use pool_auth::{Authority, LeaseKey, NewKey, RETURN_WITHIN};
    use std::sync::Arc;

    const NOW_MS: u64 = 1_700_000_000_000;
    const TIMES: (u64, u64) = (NOW_MS, 1000);

    fn access(member: Member) -> Access {
        let key = LeaseKey::make();
        let stored = StoredLeaseKey { secret: key.secret().clone(), created_ms: 0, signs_from_ms: 0 };
        let records = [
            ("auth/lease-key/a".to_owned(), LEASE_KEY.write(&stored)),
            (member_key(&member.identity), records::MEMBER.write(&member)),
        ];
        let records = records.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        let authority = Arc::new(Authority::make(NOW_MS).unwrap());
        Access::load(authority, records, &mut Staged::default()).unwrap()
    }

    fn member(key: Option<Digest>, certified_until_ms: u64) -> Member {
        Member {
            identity: Identity::Box("rack1-a".into()),
            key,
            joined_ms: 0,
            token: String::new(),
            lineage: Vec::new(),
            certified_until_ms,
        }
    }

    /// A certificate that counts lets a member learn its key and be late. The key alone does neither.
    #[test]
    fn a_key_alone_proves_less_than_a_certificate() {
        let request = CertificateRequest::from_pem(&NewKey::make().unwrap().request_pem).unwrap();
        let own = request.key_digest();
        let renew = |member: Member, proof| {
            let identity = member.identity.clone();
            let renewed = access(member).renew(&identity, &request, proof, TIMES, &mut Staged::default());
            renewed.map(|certifiable| certifiable.until_ms).map_err(|problem| problem.code)
        };
        let long_ago_ms = NOW_MS - u64::try_from(RETURN_WITHIN.as_millis()).unwrap();
        for (member, by_certificate, by_key) in [
            (member(Some(own.clone()), NOW_MS - 1), Ok(NOW_MS + 1000), Ok(NOW_MS + 1000)),
            (member(None, NOW_MS - 1), Ok(NOW_MS + 1000), Err(ErrorCode::Revoked)),
            (member(Some(own), long_ago_ms), Ok(NOW_MS + 1000), Err(ErrorCode::Unauthenticated)),
            (member(Some("other".into()), NOW_MS), Err(ErrorCode::Revoked), Err(ErrorCode::Revoked)),
        ] {
            assert_eq!(renew(member.clone(), Proof::Certificate), by_certificate, "{member:?}");
            assert_eq!(renew(member.clone(), Proof::KeyAlone), by_key, "{member:?}");
        }
    }
}
