//! Everything a leader knows: the ledger, the access book, the audit trail, and the requests that wait for a change.

use std::collections::VecDeque;
use std::sync::Arc;

use pool::{Answer, Command, Ledger, SplitMix};
use pool_auth::{Authority, Identity};
use pool_store::{Store, StoreError, Want};

use crate::access::{self, Access};
use crate::audit::{Audit, OpenAuditError};
use crate::backup;
use crate::copies::Copies;
use crate::problem::Problem;
use crate::protection::Protections;
use crate::revocation::{self, Chore};
use crate::settings::Settings;
use crate::staged::Staged;
use crate::told::Told;
use crate::waiters::Waiters;

/// What a job works on. Changes go to memory at once, and to `staged` for the next commit.
pub(crate) struct Books {
    pub(crate) ledger: Ledger,
    pub(crate) access: Access,
    pub(crate) audit: Audit,
    pub(crate) waiters: Waiters,
    pub(crate) told: Told,
    pub(crate) copies: Copies,
    /// What keepers say of the programs of leases. In memory alone: they say it again.
    pub(crate) protections: Protections,
    /// What follows from revocations and is not done yet.
    pub(crate) chores: VecDeque<Chore>,
    pub(crate) staged: Staged,
    pub(crate) now_ms: u64,
    /// Grows from one leader to the next.
    pub(crate) tenure: u64,
    dice: SplitMix,
}

/// Why the books cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenBooksError {
    #[error("the store does not answer")]
    Store(#[from] StoreError),
    #[error("the audit trail cannot be read")]
    Audit(#[from] OpenAuditError),
    #[error("{0}")]
    Damaged(String),
}

impl OpenBooksError {
    /// What callers are told meanwhile. Names of records are for operators, in the log.
    pub(crate) fn told(&self) -> &'static str {
        match self {
            Self::Store(_) | Self::Audit(OpenAuditError::Store(_)) => "the store does not answer",
            Self::Audit(OpenAuditError::Damaged { .. }) | Self::Damaged(_) => {
                "the manager cannot read its store; its log says which record and what to do"
            }
        }
    }
}

/// What the ledger is made of.
const LEDGER_PREFIXES: [&str; 11] = [
    "box/",
    "host/",
    "gpu/",
    "lease/",
    "tenant/",
    "usage/",
    "spare/",
    "idem/",
    "event/",
    "epochs/",
    "restored/",
];

impl Books {
    /// Reads the store. Only the leader writes, so what is read prefix by prefix belongs together.
    pub(crate) fn open(
        store: &dyn Store,
        authority: Arc<Authority>,
        settings: &Settings,
        now_ms: u64,
        tenure: u64,
    ) -> Result<Self, OpenBooksError> {
        let damaged = |error: &dyn std::fmt::Display| OpenBooksError::Damaged(error.to_string());
        let mut records = Vec::new();
        for prefix in LEDGER_PREFIXES {
            for page in store.list(prefix, Want::Records)? {
                records.extend(page?.into_iter().map(|record| (record.key, record.value)));
            }
        }
        if records.iter().any(|(key, _)| key == backup::UNFINISHED_KEY) {
            return Err(damaged(&backup::UNFINISHED));
        }
        let ledger =
            Ledger::load(records, settings.ledger.clone(), now_ms).map_err(|error| damaged(&error))?;
        let auth = store.list(access::PREFIX, Want::Records)?.records()?;
        let auth = auth.iter().map(|record| (record.key.as_str(), record.value.as_slice()));
        let mut staged = Staged::default();
        let access = Access::load(authority, auth, &mut staged).map_err(|error| damaged(&error))?;
        let audit = Audit::load(store, settings.audit_keep)?;
        // An agent takes orders of a smaller tenure for late ones; a restored store may count from 1 again.
        let tenure = tenure.saturating_add(ledger.tenure_base());
        let mut books = Self {
            ledger,
            access,
            audit,
            waiters: Waiters::default(),
            told: Told::default(),
            copies: Copies::default(),
            protections: Protections::default(),
            chores: VecDeque::new(),
            staged,
            now_ms,
            tenure,
            dice: SplitMix::new(random_seed()),
        };
        books.adopt_machines(settings);
        books.chores = revocation::plan(&books);
        Ok(books)
    }

    /// A pool from before members were written down takes those for members that have reported.
    fn adopt_machines(&mut self, settings: &Settings) {
        if self.access.are_members_known() {
            return;
        }
        let boxes = self.ledger.boxes(None).map(|record| Identity::Box(record.name.to_string()));
        let hosts = self.ledger.hosts(None).map(|record| Identity::Host(record.name.to_string()));
        let machines = boxes.chain(hosts).collect();
        let adopted = self.access.adopt(machines, self.now_ms, settings.certificate_life_ms());
        self.chores.extend(adopted.into_iter().map(Chore::Adopt));
        self.chores.push_back(Chore::AllAdopted);
    }

    /// Does something to the ledger; its writes go with the next commit.
    pub(crate) fn apply(&mut self, command: &Command) -> Result<Answer, Problem> {
        let outcome = self.ledger.apply(command, self.now_ms, &mut self.dice).map_err(|refusal| {
            let detail = refusal.to_answer().error;
            Problem::new(detail.code, detail.message, detail.hint)
        })?;
        for (key, value) in outcome.writes {
            self.staged.set(key, value);
        }
        Ok(outcome.answer)
    }
}

/// Lease identifiers must not repeat from one leader to the next.
fn random_seed() -> u64 {
    let secret = pool_auth::Secret::random(16);
    let hash = blake3::hash(secret.reveal().as_bytes());
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}
