//! Records and transactions.

use std::collections::VecDeque;
use std::sync::Arc;

use tonic::Code;

use super::members::{Failure, Members, Repeat};
use super::proto::{
    CompactionRequest, CompactionResponse, Compare, CompareResult, CompareTarget, CompareWith,
    DeleteRangeRequest, Header, KeyValue, Op, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use super::runtime::Runtime;
use crate::error::StoreError;
use crate::listing::{Listing, Want};
use crate::record::{Record, Revision, end_of_prefix};
use crate::transaction::{Condition, Expect, Outcome, Transaction, Write};

/// Records in one page. Members walk their whole index for each page, so pages are large.
const PAGE: i64 = 8192;

/// Keys under their namespace.
#[derive(Clone)]
pub(super) struct Kv {
    pub(super) members: Arc<Members>,
    pub(super) namespace: String,
}

impl Kv {
    pub(super) fn full_key(&self, key: &str) -> Vec<u8> {
        [self.namespace.as_bytes(), key.as_bytes()].concat()
    }

    /// The keys that begin with `prefix`, as etcd's half-open range.
    pub(super) fn range_of(&self, prefix: &str) -> (Vec<u8>, Vec<u8>) {
        let full = format!("{}{prefix}", self.namespace);
        let end = end_of_prefix(&full).expect("a namespace is not empty");
        (full.into_bytes(), end)
    }

    /// Takes the namespace off again.
    pub(super) fn record(&self, kv: KeyValue) -> Result<Record, StoreError> {
        Ok(Record {
            key: self.key(&kv.key)?,
            value: kv.value,
            created: to_revision(kv.create_revision),
            modified: to_revision(kv.mod_revision),
        })
    }

    pub(super) fn key(&self, full: &[u8]) -> Result<String, StoreError> {
        let key = full.strip_prefix(self.namespace.as_bytes()).unwrap_or(full);
        String::from_utf8(key.to_vec())
            .map_err(|error| StoreError::Damaged { doing: "read a key", source: error.into() })
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.members.unary("/etcdserverpb.KV/Range", request, Repeat::Allowed).await
    }

    pub(super) async fn txn(&self, request: TxnRequest, repeat: Repeat) -> Result<TxnResponse, Failure> {
        self.members.unary("/etcdserverpb.KV/Txn", request, repeat).await
    }

    pub(super) async fn read(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let request = RangeRequest { key: self.full_key(key), ..RangeRequest::default() };
        let answer = self.range(request).await.map_err(|failure| failure.into_error("read a record"))?;
        answer.kvs.into_iter().next().map(|kv| self.record(kv)).transpose()
    }

    pub(super) async fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let request = TxnRequest {
            compare: transaction.conditions.iter().map(|condition| self.compare(condition)).collect(),
            success: transaction.writes.iter().map(|write| self.op(write)).collect(),
            // If a condition fails, the same transaction looks which one.
            failure: transaction.conditions.iter().map(|condition| self.look(&condition.key)).collect(),
        };
        let repeat = if transaction.writes.is_empty() { Repeat::Allowed } else { Repeat::Never };
        let answer = self.txn(request, repeat).await.map_err(|failure| failure.into_error("commit"))?;
        if answer.succeeded {
            return Ok(Outcome::Committed { revision: revision_of(answer.header.as_ref()) });
        }
        let found = answer.responses.iter().map(|response| {
            let kv = response.range.as_ref().and_then(|range| range.kvs.first());
            kv.map(|kv| to_revision(kv.mod_revision))
        });
        let mut conditions = transaction.conditions.iter().zip(found).enumerate();
        match conditions.find(|(_, (condition, found))| !condition.holds(*found)) {
            Some((condition, (_, found))) => Ok(Outcome::Conflict { condition, found }),
            None => Err(StoreError::Damaged {
                doing: "commit",
                source: "refused for a condition that holds".into(),
            }),
        }
    }

    fn compare(&self, condition: &Condition) -> Compare {
        let created = CompareWith::CreateRevision(0);
        let (result, target, with) = match condition.expect {
            Expect::Absent => (CompareResult::Equal, CompareTarget::Create, created),
            Expect::Present => (CompareResult::Greater, CompareTarget::Create, created),
            // To etcd an absent key was modified at zero. Nothing was, and nothing is below it.
            Expect::ModifiedAt(Revision(0)) => {
                (CompareResult::Less, CompareTarget::Mod, CompareWith::ModRevision(0))
            }
            Expect::ModifiedAt(revision) => {
                (CompareResult::Equal, CompareTarget::Mod, CompareWith::ModRevision(from_revision(revision)))
            }
        };
        Compare {
            result: result.into(),
            target: target.into(),
            key: self.full_key(&condition.key),
            with: Some(with),
        }
    }

    fn op(&self, write: &Write) -> RequestOp {
        let op = match write {
            Write::Put { key, value } => {
                Op::Put(PutRequest { key: self.full_key(key), value: value.clone(), lease: 0 })
            }
            Write::Delete { key } => Op::Delete(DeleteRangeRequest { key: self.full_key(key) }),
        };
        RequestOp { op: Some(op) }
    }

    fn look(&self, key: &str) -> RequestOp {
        let request = RangeRequest { key: self.full_key(key), keys_only: true, ..RangeRequest::default() };
        RequestOp { op: Some(Op::Range(request)) }
    }

    pub(super) async fn compact(&self, before: Revision) -> Result<(), StoreError> {
        let failed = |failure: Failure| failure.into_error("compact");
        let last = from_revision(before) - 1;
        if last < 1 {
            return Ok(());
        }
        match self.compact_to(last).await {
            // Compacted already, or not reached yet.
            Err(failure) if failure.code() == Some(Code::OutOfRange) => {
                let request = RangeRequest { key: self.full_key("-"), ..RangeRequest::default() };
                let now =
                    self.range(request).await.map_err(failed)?.header.map_or(0, |header| header.revision);
                if now >= last {
                    return Ok(());
                }
                match self.compact_to(now).await {
                    Err(failure) if failure.code() == Some(Code::OutOfRange) => Ok(()),
                    result => result.map_err(failed),
                }
            }
            result => result.map_err(failed),
        }
    }

    async fn compact_to(&self, revision: i64) -> Result<(), Failure> {
        let request = CompactionRequest { revision };
        let answer: Result<CompactionResponse, Failure> =
            self.members.unary("/etcdserverpb.KV/Compact", request, Repeat::Allowed).await;
        answer.map(|_| ())
    }

    /// One page of a listing. `at` is zero for the first, which decides on the revision.
    async fn page(
        &self,
        start: Vec<u8>,
        end: Vec<u8>,
        want: Want,
        at: i64,
    ) -> Result<RangeResponse, StoreError> {
        let request = RangeRequest {
            key: start,
            range_end: end,
            limit: PAGE,
            revision: at,
            keys_only: want == Want::Keys,
        };
        self.range(request).await.map_err(|failure| match failure.code() {
            // Compacted in the middle of the listing.
            Some(Code::OutOfRange) => StoreError::TooOld { oldest: to_revision(at + 1) },
            _ => failure.into_error("list records"),
        })
    }
}

pub(super) fn to_revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

pub(super) fn from_revision(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(super) fn revision_of(header: Option<&Header>) -> Revision {
    to_revision(header.map_or(0, |header| header.revision))
}

/// All pages are read as of the first one's revision, whichever member answers.
pub(super) fn list(kv: &Kv, runtime: &Arc<Runtime>, prefix: &str, want: Want) -> Result<Listing, StoreError> {
    let (start, end) = kv.range_of(prefix);
    let mut pages = Pages {
        kv: kv.clone(),
        runtime: runtime.clone(),
        want,
        at: 0,
        end,
        next: Some(start),
        ready: VecDeque::new(),
    };
    pages.fetch()?;
    Ok(Listing::new(to_revision(pages.at), pages))
}

struct Pages {
    kv: Kv,
    runtime: Arc<Runtime>,
    want: Want,
    at: i64,
    end: Vec<u8>,
    /// Where the next page begins; none after the last.
    next: Option<Vec<u8>>,
    ready: VecDeque<Vec<Record>>,
}

impl Pages {
    fn fetch(&mut self) -> Result<(), StoreError> {
        let Some(start) = self.next.take() else { return Ok(()) };
        let (kv, end, want, at) = (self.kv.clone(), self.end.clone(), self.want, self.at);
        let page = self.runtime.wait_for(async move { kv.page(start, end, want, at).await })?;
        if self.at == 0 {
            self.at = page.header.as_ref().map_or(0, |header| header.revision);
        }
        if page.more {
            // The least key after the last one.
            self.next = page.kvs.last().map(|kv| [kv.key.as_slice(), b"\0"].concat());
        }
        let records: Vec<Record> =
            page.kvs.into_iter().map(|kv| self.kv.record(kv)).collect::<Result<_, _>>()?;
        if !records.is_empty() {
            self.ready.push_back(records);
        }
        Ok(())
    }
}

impl Iterator for Pages {
    type Item = Result<Vec<Record>, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty()
            && let Err(error) = self.fetch()
        {
            return Some(Err(error));
        }
        self.ready.pop_front().map(Ok)
    }
}
