//! The audit trail: every change and every refusal with its actor, chained by hash.
//!
//! The trail is kept in books, each with a chain of its own ([`AuditChain`]): one for operators and admins, one for
//! boxes and hosts, one for each tenant, one for strangers. When there are more entries than are kept, the longest
//! book loses its oldest ones. So an actor that floods the trail displaces entries of its own book, and cannot
//! displace what an admin did.
//!
//! ```text
//! audit/BOOK/NUMBER         an entry
//! audit-book/BOOK           both ends of a book: first kept, hash before it, last, its hash
//! audit-anchor/BOOK/NUMBER  the hash of every so many-th entry: where a book may be cut
//! audit-books               how many entries there ever were
//! ```
//!
//! All of it is written in the transaction of the deed. A report that changes nothing, a renewal, a read and a request
//! that is sent again are no entries.

mod refusals;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pool::records::ReadError;
use pool::{AuditChain, AuditDraft, new_audit_book};
use pool_api::{AuditBook, AuditBooks, AuditEntry, AuditOutcome};
use pool_store::{Store, StoreError, Want};

use crate::records::{self, Earlier, StoredBook, Sum};
use crate::staged::Staged;
use refusals::Refusals;

const PREFIX: &str = "audit/";
const BOOK_PREFIX: &str = "audit-book/";
const ANCHOR_PREFIX: &str = "audit-anchor/";
const SUM_KEY: &str = "audit-books";
/// The ends of a trail from before there were books.
const EARLIER_KEY: &str = "audit-head";

/// Entries removed with one new entry, until those are gone that are no longer kept.
const TRIM_STEP: u64 = 8;

/// Entries between two places where a book may be cut. Fewer would be more anchors to read at the start of a leader,
/// more would forget more at once.
const SEGMENT: u64 = 1024;

/// Digits of a number in a key: they sort as they count.
const DIGITS: usize = 20;

#[derive(Debug)]
struct Book {
    stored: StoredBook,
    chain: AuditChain,
    /// Where it may be cut, oldest first.
    anchors: VecDeque<(u64, String)>,
}

impl Book {
    fn new(stored: StoredBook) -> Self {
        Self { chain: AuditChain::after(&stored.clone().ends()), stored, anchors: VecDeque::new() }
    }

    fn kept(&self) -> u64 {
        (self.stored.last + 1).saturating_sub(self.stored.first)
    }
}

/// The books of deeds.
#[derive(Debug)]
pub(crate) struct Audit {
    books: BTreeMap<String, Book>,
    /// By how many entries of them are kept.
    by_length: BTreeSet<(u64, String)>,
    /// Books with entries in the store that are no longer kept.
    unswept: BTreeSet<String>,
    kept: u64,
    sum: Sum,
    keep: u64,
    segment: u64,
    refusals: Refusals,
}

/// Why the trail cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenAuditError {
    #[error("the store does not answer")]
    Store(#[from] StoreError),
    #[error("{key} cannot be used")]
    Damaged {
        key: String,
        #[source]
        source: ReadError,
    },
}

/// Adds the key to what is wrong with a record.
fn at<T>(key: &str, read: Result<T, ReadError>) -> Result<T, OpenAuditError> {
    read.map_err(|source| OpenAuditError::Damaged { key: key.to_owned(), source })
}

impl Audit {
    /// Goes on after the newest entry of each book, and keeps so many.
    pub(crate) fn load(store: &dyn Store, keep: u64) -> Result<Self, OpenAuditError> {
        let mut audit = Self::empty(keep);
        if let Some(record) = store.read(SUM_KEY)? {
            audit.sum = at(&record.key, records::AUDIT_SUM.read(&record.value))?;
        }
        for record in store.list(BOOK_PREFIX, Want::Records)?.records()? {
            let stored = at(&record.key, records::AUDIT_BOOK.read(&record.value))?;
            audit.books.insert(stored.name.clone(), Book::new(stored));
        }
        for record in store.list(ANCHOR_PREFIX, Want::Records)?.records()? {
            let place = record.key[ANCHOR_PREFIX.len()..].rsplit_once('/');
            let place = place.and_then(|(book, seq)| Some((audit.books.get_mut(book)?, seq.parse().ok()?)));
            if let Some((book, seq)) = place {
                book.anchors.push_back((seq, String::from_utf8_lossy(&record.value).into_owned()));
            }
        }
        for (name, book) in &audit.books {
            audit.kept += book.kept();
            audit.by_length.insert((book.kept(), name.clone()));
            if book.stored.swept < book.stored.first {
                audit.unswept.insert(name.clone());
            }
        }
        Ok(audit)
    }

    fn empty(keep: u64) -> Self {
        Self {
            books: BTreeMap::new(),
            by_length: BTreeSet::new(),
            unswept: BTreeSet::new(),
            kept: 0,
            sum: Sum::default(),
            keep,
            segment: SEGMENT.min(keep / 16).max(1),
            refusals: Refusals::default(),
        }
    }

    /// Writes it down, unless its actor has been refused too often just now: then it is counted.
    pub(crate) fn write(&mut self, deed: AuditDraft, now_ms: u64, staged: &mut Staged) {
        if deed.outcome == AuditOutcome::Done {
            self.append(deed, now_ms, staged);
            return;
        }
        for deed in self.refusals.take(deed, now_ms) {
            self.append(deed, now_ms, staged);
        }
    }

    /// Writes down how many refusals were counted and not written, each under the name of the actor that caused them.
    pub(crate) fn tell_counted(&mut self, now_ms: u64, staged: &mut Staged) {
        for deed in self.refusals.over(now_ms) {
            self.append(deed, now_ms, staged);
        }
    }

    fn append(&mut self, deed: AuditDraft, now_ms: u64, staged: &mut Staged) {
        let name = book_of(&deed.actor, deed.outcome);
        let book = self
            .books
            .entry(name.clone())
            .or_insert_with(|| Book::new(StoredBook::of(new_audit_book(name.clone()), 1)));
        self.by_length.remove(&(book.kept(), name.clone()));
        let entry = book.chain.append(deed, now_ms);
        staged.put(key(&name, entry.seq), records::write_entry(&entry));
        book.stored.last = entry.seq;
        book.stored.last_hash.clone_from(&entry.hash);
        if entry.seq.is_multiple_of(self.segment) {
            staged.put(anchor_key(&name, entry.seq), entry.hash.clone().into_bytes());
            book.anchors.push_back((entry.seq, entry.hash));
        }
        staged.put(format!("{BOOK_PREFIX}{name}"), records::AUDIT_BOOK.write(&book.stored));
        self.by_length.insert((book.kept(), name));
        self.kept += 1;
        self.sum.written += 1;
        staged.put(SUM_KEY.to_owned(), records::AUDIT_SUM.write(&self.sum));
        self.cut(staged);
        self.sweep(staged);
    }

    /// Forgets the oldest entries of the longest book that can be cut, if there are too many in all.
    fn cut(&mut self, staged: &mut Staged) {
        if self.kept <= self.keep {
            return;
        }
        // The newest entry always stays: it is where the chain goes on.
        let can_be_cut = |(_, name): &&(u64, String)| {
            let book = &self.books[name];
            book.anchors.front().is_some_and(|(seq, _)| *seq < book.stored.last)
        };
        let Some((length, name)) = self.by_length.iter().rev().find(can_be_cut).cloned() else { return };
        let book = self.books.get_mut(&name).expect("it was there just now");
        let (seq, hash) = book.anchors.pop_front().expect("it was there just now");
        self.by_length.remove(&(length, name.clone()));
        book.stored.first = seq + 1;
        book.stored.before_first = hash;
        self.kept -= length - book.kept();
        self.by_length.insert((book.kept(), name.clone()));
        staged.delete(anchor_key(&name, seq));
        staged.put(format!("{BOOK_PREFIX}{name}"), records::AUDIT_BOOK.write(&book.stored));
        self.unswept.insert(name);
    }

    /// Removes a few entries that are no longer kept.
    fn sweep(&mut self, staged: &mut Staged) {
        let Some(name) = self.unswept.first().cloned() else { return };
        let book = self.books.get_mut(&name).expect("books are never forgotten");
        let to = book.stored.first.min(book.stored.swept + TRIM_STEP);
        (book.stored.swept..to).for_each(|seq| staged.delete(key(&name, seq)));
        book.stored.swept = to;
        staged.put(format!("{BOOK_PREFIX}{name}"), records::AUDIT_BOOK.write(&book.stored));
        if to == book.stored.first {
            self.unswept.remove(&name);
        }
    }
}

/// In which book an actor's entries are.
fn book_of(actor: &str, outcome: AuditOutcome) -> String {
    let mut parts = actor.strip_prefix("spiffe://dxpu/").unwrap_or_default().split('/');
    match (parts.next(), parts.next()) {
        (Some("admin" | "operator" | "viewer" | "manager"), _) => "operators".to_owned(),
        (Some("box" | "host"), _) => "machines".to_owned(),
        (Some("tenant"), Some(tenant)) => format!("tenant/{tenant}"),
        // A stranger succeeds only in joining or returning, and then it is a machine. Its entry is not in the
        // strangers' book, where refusals of other strangers would displace it.
        _ if outcome == AuditOutcome::Done => "machines".to_owned(),
        _ => "strangers".to_owned(),
    }
}

/// The key of an entry. Those from before there were books have no book in it.
fn key(book: &str, seq: u64) -> String {
    format!("{}{seq:0DIGITS$}", folder(book))
}

fn folder(book: &str) -> String {
    if book.is_empty() { PREFIX.to_owned() } else { format!("{PREFIX}{book}/") }
}

fn anchor_key(book: &str, seq: u64) -> String {
    format!("{ANCHOR_PREFIX}{book}/{seq:0DIGITS$}")
}

/// Both ends of every book, as the store has them.
pub(crate) fn ends(store: &dyn Store) -> Result<AuditBooks, OpenAuditError> {
    let sum: Sum = match store.read(SUM_KEY)? {
        Some(record) => at(&record.key, records::AUDIT_SUM.read(&record.value))?,
        None => Sum::default(),
    };
    let mut books = Vec::new();
    if let Some(record) = store.read(EARLIER_KEY)? {
        let Earlier { seq, oldest } = at(&record.key, records::AUDIT_EARLIER.read(&record.value))?;
        let newest = store.read(&key("", seq))?;
        let newest = newest.map(|entry| at(&entry.key, records::read_entry(&entry.value))).transpose()?;
        let last_hash = newest.map(|entry| entry.hash).unwrap_or_default();
        // What was before the oldest was not noted then.
        books.push(AuditBook {
            first: oldest,
            last: seq,
            last_hash,
            before_first: String::new(),
            name: String::new(),
        });
    }
    for record in store.list(BOOK_PREFIX, Want::Records)?.records()? {
        books.push(at(&record.key, records::AUDIT_BOOK.read(&record.value))?.ends());
    }
    Ok(AuditBooks { books, written: sum.written })
}

/// The entries of a book from one to another, as far as they are there.
pub(crate) fn entries(
    store: &dyn Store,
    book: &str,
    from: u64,
    to: u64,
) -> Result<Vec<AuditEntry>, OpenAuditError> {
    let mut found = Vec::new();
    // Keys are listed by the hundred.
    for hundred in from / 100..=to / 100 {
        let prefix = format!("{}{hundred:0width$}", folder(book), width = DIGITS - 2);
        for record in store.list(&prefix, Want::Records)?.records()? {
            let entry = at(&record.key, records::read_entry(&record.value))?;
            if (from..=to).contains(&entry.seq) {
                found.push(entry);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
