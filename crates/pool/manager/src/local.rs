//! The thread that owns the books without the network in front of it: for measurements and for tests of the core.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use pool::{Answer, AuditDraft, Command};
use pool_api::{AuditOutcome, ErrorCode, ErrorDetail};
use tokio::sync::oneshot;

use crate::books::Books;
use crate::bootstrap;
use crate::clock::Clock;
use crate::desk::{self, JOBS_MAX, Job};
use crate::leader::Leader;
use crate::manager::StartError;
use crate::problem::Problem;
use crate::settings::Settings;
use crate::status::Status;

/// A leader in this process. Everything a command does over the network is done here too: memory, audit trail, one
/// commit for many, answers after it.
pub struct Local {
    jobs: Option<SyncSender<Box<dyn Job>>>,
    status: Arc<Status>,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl Local {
    /// Starts it; it leads soon.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let clock = settings.clock;
        let authority = bootstrap::begin(&*settings.store, &[], &settings.admin_file, clock.now_ms())?;
        let status = Arc::new(Status::default());
        let (jobs_in, jobs) = sync_channel(JOBS_MAX);
        let leader = Leader {
            store: settings.store.clone(),
            authority,
            address: format!("local:{}", settings.name),
            settings,
            jobs,
            status: status.clone(),
            clock,
            history: Arc::default(),
        };
        let thread = std::thread::Builder::new()
            .name("leader".to_owned())
            .spawn(move || leader.run_whatever_happens())
            .map_err(StartError::Threads)?;
        Ok(Self { jobs: Some(jobs_in), status, clock, thread: Some(thread) })
    }

    /// Whether it leads.
    pub fn is_leading(&self) -> bool {
        self.status.is_leading()
    }

    /// Transactions so far.
    pub fn commits(&self) -> u64 {
        self.status.commits()
    }

    /// The manager's clock.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Does something, and waits until it is on disk.
    pub fn apply(&self, command: Command) -> Result<Answer, ErrorDetail> {
        let (reply, answer) = oneshot::channel();
        let job = Direct { command, result: None, reply };
        let stopped = || ErrorDetail {
            code: ErrorCode::Unavailable,
            message: "the leader has stopped".to_owned(),
            hint: String::new(),
        };
        let jobs = self.jobs.as_ref().ok_or_else(stopped)?;
        jobs.send(Box::new(job)).map_err(|_| stopped())?;
        answer.blocking_recv().map_err(|_| stopped())?.map_err(|problem| ErrorDetail {
            code: problem.code,
            message: problem.message,
            hint: problem.hint,
        })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Direct {
    command: Command,
    result: Option<Result<Answer, Problem>>,
    reply: oneshot::Sender<Result<Answer, Problem>>,
}

impl Job for Direct {
    fn is_read(&self) -> bool {
        false
    }

    fn perform(&mut self, books: &mut Books) {
        let result = books.apply(&self.command);
        let action = match &self.command {
            Command::CreateLease { .. } => Some("lease.create"),
            Command::Release { .. } => Some("lease.release"),
            // Reports and renewals are no entries of the trail, whichever actor makes them.
            _ => None,
        };
        if let Some(action) = action {
            let deed = AuditDraft {
                actor: "spiffe://dxpu/tenant/local/local".to_owned(),
                address: "127.0.0.1:0".to_owned(),
                action: action.to_owned(),
                target: "lease".to_owned(),
                outcome: if result.is_ok() { AuditOutcome::Done } else { AuditOutcome::Refused },
                detail: String::new(),
            };
            books.audit.write(deed, books.now_ms, &mut books.staged);
        }
        self.result = Some(result);
    }

    fn deliver(self: Box<Self>, verdict: Result<(), Problem>) {
        desk::reply(self.reply, self.result, verdict);
    }
}
