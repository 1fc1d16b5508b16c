//! Ends what was revoked: leases first, then machines, then tokens.
//!
//! The deny list alone decides what is refused, from the commit of its entry on. What is ended follows from it, one
//! piece at a time, because a store takes only so many writes at once. A leader that begins finds what is left to end by
//! looking at the deny list again. Leases go first: which token they descend from is known by that token.

use std::collections::{BTreeSet, VecDeque};

use pool::{About, Answer, Command};
use pool_api::{ErrorCode, EventKind, Lease, LeaseId, LeaseState, Name, RevocationDone, RevocationRequest};
use pool_auth::{Denial, Identity, Permission, Subject};

use crate::access::LEASE_TOKEN_MS;
use crate::books::Books;
use crate::claim::Caller;
use crate::problem::Problem;

/// One piece of what is left to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Chore {
    /// End a lease.
    Lease(LeaseId),
    /// A box or host is no member any more.
    Machine(Identity),
    /// Forget a token.
    Token(String),
    /// Write down that a machine, which joined before members were written down, is one.
    Adopt(Identity),
    /// Write down that all of those were.
    AllAdopted,
}

/// Longer than any certificate of any version: what is known by its serial number alone ends within that.
const CERTIFICATE_MS_MAX: u64 = 366 * 24 * 3600 * 1000;

/// Revokes, and says what it ends.
pub(crate) fn revoke(
    books: &mut Books,
    caller: &Caller,
    subject: Subject,
    request: &RevocationRequest,
) -> Result<RevocationDone, Problem> {
    caller.require(match &subject {
        Subject::Identity(Identity::Box(_) | Identity::Host(_)) => Permission::OperateGpus,
        _ => Permission::ManageAccess,
    })?;
    let is_known = books.access.denied().get(&subject).is_some();
    if !is_known && !is_there(books, &subject) {
        return Err(Problem::not_found(&subject));
    }
    let denial = Denial {
        since_ms: books.now_ms,
        until_ms: until_ms(books, &subject),
        by: caller.identity.to_string(),
        reason: request.reason.clone(),
        alone: request.alone,
        keeps_leases: request.keep_leases,
        boxes: Vec::new(),
        subject: subject.clone(),
    };
    if !request.include_own && would_end_caller(books, caller, &denial) {
        return Err(Problem::new(
            ErrorCode::Conflict,
            "this would revoke the token that you ask with",
            "ask with a token that does not descend from it; or add --alone to spare what was made with it, or --include-own",
        ));
    }
    let before: BTreeSet<Chore> = books.chores.iter().cloned().collect();
    let until_ms = books.access.deny(denial, &mut books.staged);
    let chores = plan(books);
    let new: Vec<&Chore> = chores.iter().filter(|chore| !before.contains(chore)).collect();
    let mut done = RevocationDone { subject: subject.to_string(), until_ms, ..RevocationDone::default() };
    for chore in new {
        match chore {
            Chore::Lease(id) => {
                done.leases += 1;
                done.gpus += books.ledger.lease(*id).map_or(0, |lease| lease.grants.len() as u64);
            }
            Chore::Machine(_) => done.machines += 1,
            Chore::Token(_) => done.tokens += 1,
            Chore::Adopt(_) | Chore::AllAdopted => {}
        }
    }
    books.chores = chores;
    let message = format!(
        "{subject} was revoked by {}: {} tokens, {} machines and {} leases with {} GPUs end",
        caller.identity, done.tokens, done.machines, done.leases, done.gpus
    );
    books.apply(&Command::Tell { kind: EventKind::AccessRevoked, about: About::Pool, message })?;
    Ok(done)
}

/// Whether the books have anything of that name. The caller refuses a misspelt name instead of denying it for
/// nothing.
fn is_there(books: &Books, subject: &Subject) -> bool {
    let access = &books.access;
    let has_token =
        |is_it: &dyn Fn(&Identity) -> bool| access.tokens().iter().any(|token| is_it(&token.identity));
    let has_lease = |is_it: &dyn Fn(&Lease) -> bool| books.ledger.leases(None).any(is_it);
    match subject {
        Subject::Token(id) => {
            access.tokens().iter().any(|token| token.descends_from(id))
                || access.members().any(|member| member.token == *id || member.lineage.contains(id))
        }
        Subject::Tenant(name) => {
            has_token(&|identity| identity.tenant() == Some(name))
                || has_lease(&|lease| lease.tenant.as_str() == name)
        }
        Subject::Lease(id) => has_lease(&|lease| lease.id.to_string() == *id),
        // The books list no serial numbers and no managers.
        Subject::Serial(_) | Subject::Identity(Identity::Manager(_)) => true,
        Subject::Identity(identity) => {
            let in_ledger = || {
                let name = Name::new(identity.short_name()).ok()?;
                match identity {
                    Identity::Box(_) => books.ledger.gpu_box(&name).map(drop),
                    Identity::Host(_) => books.ledger.host(&name).map(drop),
                    _ => None,
                }
            };
            access.member(identity).is_some()
                || in_ledger().is_some()
                || has_token(&|other| other == identity)
                || has_lease(&|lease| lease.owner == identity.to_string())
        }
    }
}

/// When all of it would have ended by itself.
fn until_ms(books: &Books, subject: &Subject) -> u64 {
    let now_ms = books.now_ms;
    let tokens = books.access.tokens();
    let last_of = |is_it: &dyn Fn(&pool_auth::TokenRecord) -> bool| {
        tokens.iter().filter(|token| is_it(token)).map(|token| token.expires_ms).max().unwrap_or(now_ms)
    };
    let by_itself_ms = match subject {
        Subject::Token(id) => last_of(&|token| token.descends_from(id)),
        Subject::Tenant(name) => last_of(&|token| token.identity.tenant() == Some(name)),
        Subject::Lease(_) => now_ms,
        Subject::Serial(_) | Subject::Identity(Identity::Manager(_)) => now_ms + CERTIFICATE_MS_MAX,
        Subject::Identity(identity) => {
            let member_ms = books.access.member(identity).map_or(now_ms, |member| {
                let return_ms = u64::try_from(pool_auth::RETURN_WITHIN.as_millis()).unwrap_or(u64::MAX);
                member.certified_until_ms.saturating_add(return_ms)
            });
            member_ms.max(last_of(&|token| token.identity == *identity))
        }
    };
    // Lease tokens that were signed just now.
    by_itself_ms.max(now_ms + LEASE_TOKEN_MS)
}

fn would_end_caller(books: &Books, caller: &Caller, denial: &Denial) -> bool {
    let Some(own) = caller.token.as_deref().and_then(|id| books.access.token(id)) else { return false };
    match &denial.subject {
        Subject::Token(id) if denial.alone => own.id == *id,
        Subject::Token(id) => own.descends_from(id),
        Subject::Identity(identity) => own.identity == *identity,
        Subject::Tenant(name) => own.identity.tenant() == Some(name),
        Subject::Serial(_) | Subject::Lease(_) => false,
    }
}

/// Everything that the deny list ends and that has not ended, in the order in which it is to end.
pub(crate) fn plan(books: &Books) -> VecDeque<Chore> {
    let access = &books.access;
    let mut chores: VecDeque<Chore> = books
        .chores
        .iter()
        .filter(|chore| matches!(chore, Chore::Adopt(_) | Chore::AllAdopted))
        .cloned()
        .collect();
    if access.denied().is_empty() {
        return chores;
    }
    let machines: BTreeSet<&Identity> = access
        .members()
        .filter(|member| access.denied_member(member).is_some())
        .map(|member| &member.identity)
        .collect();
    let hosts: BTreeSet<&str> = machines
        .iter()
        .filter(|machine| matches!(machine, Identity::Host(_)))
        .map(|machine| machine.short_name())
        .collect();
    let is_over = |lease: &&Lease| {
        let is_plugged_there = lease.state == LeaseState::Granted
            && lease.request.host.as_ref().is_some_and(|host| hosts.contains(host.as_str()));
        lease.state.is_live() && (is_plugged_there || access.ends_lease(lease))
    };
    chores.extend(books.ledger.leases(None).filter(is_over).map(|lease| Chore::Lease(lease.id)));
    chores.extend(machines.into_iter().cloned().map(Chore::Machine));
    let tokens = access.tokens();
    let denied = tokens.iter().filter(|token| access.denied().of_token(token).is_some());
    chores.extend(denied.map(|token| Chore::Token(token.id.clone())));
    chores
}

/// Does one piece. What it writes fits into one transaction.
pub(crate) fn perform(books: &mut Books, chore: &Chore) {
    match chore {
        Chore::Lease(id) => end_lease(books, *id),
        Chore::Machine(identity) => expel(books, identity),
        Chore::Token(id) => books.access.forget_token(id, &mut books.staged),
        Chore::Adopt(identity) => books.access.write_member(identity, &mut books.staged),
        Chore::AllAdopted => books.access.write_members_known(books.now_ms, &mut books.staged),
    }
}

fn end_lease(books: &mut Books, id: LeaseId) {
    let Some(lease) = books.ledger.lease(id).filter(|lease| lease.state.is_live()) else { return };
    let mut boxes: Vec<String> = lease.grants.iter().map(|grant| grant.gpu.box_name.to_string()).collect();
    boxes.dedup();
    let by = books.access.ended_by(lease).map_or_else(|| "revoked".to_owned(), |denial| denial.by.clone());
    let reason = "the token, the borrower or the tenant that asked for it was revoked".to_owned();
    if let Ok(Answer::Lease(_)) = books.apply(&Command::Release { lease: id, reason: reason.clone() }) {
        // Its boxes refuse its tokens from the next report on, before they have killed and scrubbed.
        let now_ms = books.now_ms;
        let denial = Denial {
            subject: Subject::Lease(id.to_string()),
            since_ms: now_ms,
            until_ms: now_ms + LEASE_TOKEN_MS,
            by,
            reason,
            alone: false,
            keeps_leases: false,
            boxes,
        };
        let _ = books.access.deny(denial, &mut books.staged);
    }
}

fn expel(books: &mut Books, identity: &Identity) {
    let Some(member) = books.access.member(identity) else { return };
    // None if the machine has joined anew meanwhile.
    let Some(denial) = books.access.denied_member(member) else { return };
    let (by, reason) = (denial.by.clone(), denial.reason.clone());
    if let Ok(name) = Name::new(identity.short_name()) {
        let (reason, by) = (reason.clone(), by.clone());
        // The ledger refuses neither command.
        let _ = match identity {
            Identity::Host(_) => books.apply(&Command::RevokeHost { host: name, reason, by }),
            _ => books.apply(&Command::RevokeBox { box_name: name, reason, by }),
        };
    }
    // Denied by its own name as well, so that its next request is answered with the reason, whichever token it joined
    // by.
    let subject = Subject::Identity(identity.clone());
    let until_ms = until_ms(books, &subject);
    let denial = Denial {
        subject,
        since_ms: books.now_ms,
        until_ms,
        by,
        reason,
        alone: false,
        keeps_leases: true,
        boxes: Vec::new(),
    };
    let _ = books.access.deny(denial, &mut books.staged);
    books.access.forget_member(identity, &mut books.staged);
}
