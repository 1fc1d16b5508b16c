//! The audit trail: each entry carries the hash of the one before, so that none can be changed or left out unseen.

use pool_api::{AuditBook, AuditBooks, AuditEntry, AuditOutcome};

/// The hash before the first entry.
const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One action of an actor, before it is part of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditDraft {
    /// The identity that acted, or `anonymous`.
    pub actor: String,
    /// From where.
    pub address: String,
    /// What.
    pub action: String,
    /// To what.
    pub target: String,
    /// Whether it happened.
    pub outcome: AuditOutcome,
    /// Why not, or what exactly.
    pub detail: String,
}

/// The end of a book's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditChain {
    book: String,
    next: u64,
    last_hash: String,
}

/// A book without entries.
pub fn new_audit_book(name: impl Into<String>) -> AuditBook {
    let beginning = BEGINNING.to_owned();
    AuditBook { name: name.into(), first: 1, before_first: beginning.clone(), last: 0, last_hash: beginning }
}

impl AuditChain {
    /// Goes on after the newest entry of a book.
    pub fn after(book: &AuditBook) -> Self {
        Self { book: book.name.clone(), next: book.last + 1, last_hash: book.last_hash.clone() }
    }

    /// Adds an entry.
    pub fn append(&mut self, draft: AuditDraft, at_ms: u64) -> AuditEntry {
        let AuditDraft { actor, address, action, target, outcome, detail } = draft;
        let mut entry = AuditEntry {
            seq: self.next,
            book: self.book.clone(),
            at_ms,
            actor,
            address,
            action,
            target,
            outcome,
            detail,
            previous: self.last_hash.clone(),
            hash: String::new(),
        };
        entry.hash = hash(&entry);
        self.next += 1;
        self.last_hash.clone_from(&entry.hash);
        entry
    }
}

fn hash(entry: &AuditEntry) -> String {
    let bare = AuditEntry { hash: String::new(), ..entry.clone() };
    let text = serde_json::to_vec(&bare).expect("an entry has text keys and whole numbers");
    blake3::hash(&text).to_hex().to_string()
}

/// Where a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("audit entry {seq}{} does not belong where it is: {problem}", of_book(book))]
pub struct BrokenChain {
    /// In which book; empty for a trail from before there were books.
    pub book: String,
    /// The first entry that does not fit.
    pub seq: u64,
    /// What is wrong with it.
    pub problem: &'static str,
}

fn of_book(book: &str) -> String {
    if book.is_empty() { String::new() } else { format!(" of book {book}") }
}

/// Checks the entries of a book one after the other, from its first to its last.
#[derive(Clone, Debug)]
pub struct AuditCheck {
    book: AuditBook,
    before: Option<(u64, String)>,
    count: u64,
}

impl AuditCheck {
    /// Begins. Both ends are where the book says, so entries that are missing there are missed.
    pub fn of(book: AuditBook) -> Self {
        Self { book, before: None, count: 0 }
    }

    /// The next entry. What was written after the book was looked at is left out.
    pub fn next(&mut self, entry: &AuditEntry) -> Result<(), BrokenChain> {
        if entry.seq > self.book.last {
            return Ok(());
        }
        let broken = |problem| Err(BrokenChain { book: self.book.name.clone(), seq: entry.seq, problem });
        if entry.hash != hash(entry) {
            return broken("it was changed");
        }
        if entry.book != self.book.name {
            return broken("it says that it belongs to another book");
        }
        match &self.before {
            None if entry.seq != self.book.first => return broken("one before it is missing"),
            None if !self.book.before_first.is_empty() && entry.previous != self.book.before_first => {
                return broken("its previous hash is not that of the entry that was removed before it");
            }
            Some((seq, _)) if entry.seq != seq + 1 => return broken("one before it is missing"),
            Some((_, hash)) if entry.previous != *hash => return broken("the one before it was changed"),
            _ => {}
        }
        self.before = Some((entry.seq, entry.hash.clone()));
        self.count += 1;
        Ok(())
    }

    /// After the last entry: how many there were, if they are all.
    pub fn finish(self) -> Result<u64, BrokenChain> {
        let Self { book, before, count } = self;
        let broken = |seq, problem| Err(BrokenChain { book: book.name.clone(), seq, problem });
        match before {
            None if book.last < book.first => Ok(0),
            None => broken(book.first, "it is missing, and all that came after it"),
            Some((seq, _)) if seq != book.last => {
                broken(seq + 1, "it is missing, and all that came after it")
            }
            Some((seq, hash)) if hash != book.last_hash => {
                broken(seq, "its hash is not the one that its book has noted")
            }
            Some(_) => Ok(count),
        }
    }
}

/// How many entries are missing because a whole book is; none if all books are there.
pub fn missing_audit_books(all: &AuditBooks) -> u64 {
    let found: u64 = all.books.iter().filter(|book| !book.name.is_empty()).map(|book| book.last).sum();
    all.written.saturating_sub(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(action: &str) -> AuditDraft {
        AuditDraft {
            actor: "operator/ann".into(),
            address: "192.0.2.7".into(),
            action: action.into(),
            target: "gpu/a/1".into(),
            outcome: AuditOutcome::Done,
            detail: String::new(),
        }
    }

    /// Five entries, and the book they are in.
    fn written() -> (AuditBook, Vec<AuditEntry>) {
        let mut book = new_audit_book("operators");
        let mut chain = AuditChain::after(&book);
        let actions = ["gpu.taint", "gpu.untaint", "gpu.break", "gpu.repair", "gpu.taint"];
        let entries = actions.map(|action| chain.append(draft(action), 5)).to_vec();
        (book.last, book.last_hash) = (5, entries[4].hash.clone());
        (book, entries)
    }

    fn check<'a>(
        book: &AuditBook,
        entries: impl IntoIterator<Item = &'a AuditEntry>,
    ) -> Result<u64, (u64, &'static str)> {
        let mut check = AuditCheck::of(book.clone());
        let told = |broken: BrokenChain| (broken.seq, broken.problem);
        entries.into_iter().try_for_each(|entry| check.next(entry)).map_err(told)?;
        check.finish().map_err(told)
    }

    #[test]
    fn nothing_can_be_changed_or_left_out_unseen() {
        let (book, entries) = written();
        assert_eq!(check(&book, &entries), Ok(5));
        let mut changed = entries.clone();
        changed[1].actor = "operator/bob".into();
        assert_eq!(check(&book, &changed), Err((2, "it was changed")));
        changed[1].hash = hash(&changed[1]);
        assert_eq!(check(&book, &changed), Err((3, "the one before it was changed")));
        let gap = [&entries[0], &entries[2]];
        assert_eq!(check(&book, gap), Err((3, "one before it is missing")));
    }

    #[test]
    fn entries_that_are_missing_at_either_end_are_missed() {
        let (book, entries) = written();
        assert_eq!(check(&book, &entries[1..]), Err((2, "one before it is missing")));
        assert_eq!(check(&book, &entries[..4]), Err((5, "it is missing, and all that came after it")));
        assert_eq!(check(&book, []), Err((1, "it is missing, and all that came after it")));
        // What is forgotten on purpose is noted, with the hash at which the rest begins.
        let cut = AuditBook { first: 3, before_first: entries[1].hash.clone(), ..book.clone() };
        assert_eq!(check(&cut, &entries[2..]), Ok(3));
        let forged = AuditBook { first: 3, before_first: entries[0].hash.clone(), ..book.clone() };
        assert_eq!(
            check(&forged, &entries[2..]),
            Err((3, "its previous hash is not that of the entry that was removed before it"))
        );
        let mut all = AuditBooks { books: vec![book], written: 5 };
        assert_eq!(missing_audit_books(&all), 0);
        all.books.clear();
        assert_eq!(missing_audit_books(&all), 5, "a whole book was taken away");
    }

    #[test]
    fn a_chain_goes_on_where_it_was() {
        let (book, entries) = written();
        let before = AuditBook { last: 4, last_hash: entries[3].hash.clone(), ..book };
        assert_eq!(AuditChain::after(&before).append(draft("gpu.taint"), 5), entries[4]);
    }
}
