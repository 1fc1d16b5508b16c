//! How handlers reach the thread that owns the books: jobs go in, answers come out after their commit.

use std::sync::mpsc::{SyncSender, TrySendError};

use pool::AuditDraft;
use pool_api::{AuditOutcome, ErrorCode};
use pool_auth::Permission;
use tokio::sync::oneshot;

use crate::books::Books;
use crate::claim::{Caller, Claim};
use crate::problem::Problem;

/// What a caller wants, apart from how it is done.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The caller, not yet authenticated.
    pub(crate) claim: Claim,
    /// What, such as `lease.create`.
    pub(crate) action: &'static str,
    /// To what, such as `lease/l-00c0ffee00c0ffee`.
    pub(crate) target: String,
    /// What their role must include. There is no job without one, except to join.
    pub(crate) needs: Needs,
    /// Which outcomes go into the audit trail.
    pub(crate) audited: Audited,
}

/// What a caller's role must include.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// This.
    Permission(Permission),
    /// One of these two; the job decides what each of them is shown.
    Either(Permission, Permission),
    /// Nothing, but the caller must be authenticated.
    Anybody,
    /// The caller has no identity yet: the job itself checks a join token, or the key of a member.
    JoinToken,
}

/// What is written into the audit trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audited {
    /// Success and refusal.
    Always,
    /// Refusals, and what was done if it changed anything: a request that is sent again tells nothing new,
    /// and a caller that sends it thousands of times a second would fill the trail.
    Changes,
    /// Only that it was refused: it happens all the time, or changes nothing.
    Refusals,
    /// Only that it was not allowed.
    Denials,
}

/// Something for the thread that owns the books to do.
pub(crate) trait Job: Send {
    /// Whether it only reads. Reads are done after the commit of what came before, so they see nothing that may not last.
    fn is_read(&self) -> bool;
    /// Changes the books in memory, or reads them.
    fn perform(&mut self, books: &mut Books);
    /// Sends the result to the caller, or the problem if its commit failed.
    fn deliver(self: Box<Self>, verdict: Result<(), Problem>);
}

/// Where handlers hand in their jobs.
#[derive(Clone)]
pub(crate) struct Desk {
    jobs: SyncSender<Box<dyn Job>>,
}

/// Jobs that may wait. At a thousand commits a second this is a few seconds of work.
pub(crate) const JOBS_MAX: usize = 8192;

impl Desk {
    pub(crate) fn new(jobs: SyncSender<Box<dyn Job>>) -> Self {
        Self { jobs }
    }

    /// Changes something. The answer comes when it is on disk.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        asked: Asked,
        act: impl FnOnce(&mut Books, &Caller) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.hand_in(asked, false, act).await
    }

    /// Reads something.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        asked: Asked,
        act: impl FnOnce(&mut Books, &Caller) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.hand_in(asked, true, act).await
    }

    /// Writes something down that happened outside of any request. Lost when there is too much to do.
    pub(crate) fn note(&self, deed: AuditDraft) {
        let _ = self.jobs.try_send(Box::new(Noted(Some(deed))));
    }

    async fn hand_in<T: Send + 'static>(
        &self,
        asked: Asked,
        is_read: bool,
        act: impl FnOnce(&mut Books, &Caller) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let task = Task { asked, is_read, act: Some(act), result: None, reply };
        self.jobs.try_send(Box::new(task)).map_err(|error| match error {
            TrySendError::Full(_) => Problem::new(
                ErrorCode::Unavailable,
                "the manager has too much to do",
                "try again in a second",
            ),
            TrySendError::Disconnected(_) => Problem::unavailable("the manager is stopping"),
        })?;
        answer.await.unwrap_or_else(|_| Err(Problem::unavailable("the manager is stopping")))
    }
}

struct Noted(Option<AuditDraft>);

impl Job for Noted {
    fn is_read(&self) -> bool {
        false
    }

    fn perform(&mut self, books: &mut Books) {
        if let Some(deed) = self.0.take() {
            books.audit.write(deed, books.now_ms, &mut books.staged);
        }
    }

    fn deliver(self: Box<Self>, _: Result<(), Problem>) {}
}

struct Task<T, F> {
    asked: Asked,
    is_read: bool,
    act: Option<F>,
    result: Option<Result<T, Problem>>,
    reply: oneshot::Sender<Result<T, Problem>>,
}

impl<T, F> Job for Task<T, F>
where
    T: Send + 'static,
    F: FnOnce(&mut Books, &Caller) -> Result<T, Problem> + Send + 'static,
{
    fn is_read(&self) -> bool {
        self.is_read
    }

    fn perform(&mut self, books: &mut Books) {
        let act = self.act.take().expect("a job is performed once");
        let believed = believe(&self.asked, books);
        // An authenticated caller is named, also when it may not do what it asks.
        let actor = match &believed {
            Ok(caller) if self.asked.needs != Needs::JoinToken => caller.identity.to_string(),
            _ => "anonymous".to_owned(),
        };
        let staged_before = books.staged.bytes_at_most();
        let result =
            believed.and_then(|caller| allow(&self.asked, &caller).and_then(|()| act(books, &caller)));
        let is_changed = books.staged.bytes_at_most() != staged_before;
        write_down(&self.asked, actor, result.as_ref().err(), is_changed, books);
        self.result = Some(result);
    }

    fn deliver(self: Box<Self>, verdict: Result<(), Problem>) {
        reply(self.reply, self.result, verdict);
    }
}

/// Answers the caller of a job: with its result once that is on disk, or with why it is not.
pub(crate) fn reply<T>(
    caller: oneshot::Sender<Result<T, Problem>>,
    result: Option<Result<T, Problem>>,
    verdict: Result<(), Problem>,
) {
    let performed = || result.unwrap_or_else(|| Err(Problem::internal("a job was not performed")));
    // The caller may have hung up.
    let _ = caller.send(verdict.and_then(|()| performed()));
}

/// The caller, if its claim is true.
fn believe(asked: &Asked, books: &Books) -> Result<Caller, Problem> {
    if asked.needs == Needs::JoinToken {
        let nobody = pool_auth::Identity::Viewer("joining".to_owned());
        return Ok(Caller { identity: nobody, token: None, address: asked.claim.address });
    }
    let caller = books.access.authenticate(&asked.claim, books.now_ms)?;
    asked.claim.guest.believed();
    Ok(caller)
}

/// Whether they may ask this.
fn allow(asked: &Asked, caller: &Caller) -> Result<(), Problem> {
    match asked.needs {
        Needs::Permission(permission) => caller.require(permission),
        Needs::Either(one, other) if caller.role().may(one) || caller.role().may(other) => Ok(()),
        Needs::Either(one, _) => caller.require(one),
        Needs::Anybody | Needs::JoinToken => Ok(()),
    }
}

fn write_down(asked: &Asked, actor: String, problem: Option<&Problem>, is_changed: bool, books: &mut Books) {
    let outcome = match problem.map(|problem| problem.code) {
        None => AuditOutcome::Done,
        Some(ErrorCode::Unauthenticated | ErrorCode::Forbidden | ErrorCode::Revoked) => AuditOutcome::Denied,
        Some(_) => AuditOutcome::Refused,
    };
    let is_written = match asked.audited {
        Audited::Always => true,
        Audited::Changes => is_changed || outcome != AuditOutcome::Done,
        Audited::Refusals => outcome != AuditOutcome::Done,
        Audited::Denials => outcome == AuditOutcome::Denied,
    };
    if !is_written {
        return;
    }
    let deed = AuditDraft {
        actor,
        address: asked.claim.address.to_string(),
        action: asked.action.to_owned(),
        target: asked.target.chars().take(TARGET_CHARS_MAX).collect(),
        outcome,
        detail: problem.map(|problem| problem.message.clone()).unwrap_or_default(),
    };
    books.audit.write(deed, books.now_ms, &mut books.staged);
}

/// A target that a caller names may be long; what is written down is not.
const TARGET_CHARS_MAX: usize = 200;
