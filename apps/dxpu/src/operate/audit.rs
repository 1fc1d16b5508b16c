//! `dxpu audit`: the audit trail of the pool.

use super::list::{Format, print};
use super::words::{time, who};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::pool_access::{self, PoolAccess};
use pool::{AuditCheck, BrokenChain};
use pool_api::{AuditBook, AuditBooks, AuditEntry, AuditOutcome, Page};
use pool_client::Client;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// List the audit trail
    Ls(Ls),
    /// Check that no entry of the audit trail was changed or taken out
    Verify(Verify),
}

#[derive(clap::Args)]
struct Ls {
    #[command(flatten)]
    access: PoolAccess,
    /// Only this book: operators, machines, strangers, or tenant/NAME; all of them, by time, if left out
    #[arg(long)]
    book: Option<String>,
    /// Begin after the entry with this number, of one book
    #[arg(long, default_value_t = 0, requires = "book")]
    after: u64,
    /// Print one JSON object a line (the same as -o json)
    #[arg(long)]
    json: bool,
    /// How to show it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::Args)]
struct Verify {
    #[command(flatten)]
    access: PoolAccess,
    /// The hash that was the newest at some time before: it must still be part of the trail
    #[arg(long)]
    contains: Option<String>,
}

impl Audit {
    pub(crate) fn run(self) -> Outcome {
        match self.what {
            What::Ls(ls) => ls.run(),
            What::Verify(verify) => verify.run(),
        }
    }
}

fn books(client: &Client) -> anyhow::Result<AuditBooks> {
    Ok(client.get("/v1/audit/books", Duration::ZERO).map_err(pool_access::failure)?)
}

/// The entries of one book, a page at a time.
struct Pages<'a> {
    client: &'a Client,
    book: String,
    after: u64,
    /// What came with the last page, the next one at the end.
    page: Vec<AuditEntry>,
    is_last: bool,
}

impl<'a> Pages<'a> {
    fn new(client: &'a Client, book: &str, after: u64) -> Self {
        Self { client, book: book.to_owned(), after, page: Vec::new(), is_last: false }
    }

    /// The next entry, without taking it.
    fn peek(&mut self) -> anyhow::Result<Option<&AuditEntry>> {
        if self.page.is_empty() && !self.is_last {
            // A name has no characters that mean something in an address.
            let path = format!("/v1/audit?limit=1000&after={}&book={}", self.after, self.book);
            let page: Page<AuditEntry> =
                self.client.get(&path, Duration::ZERO).map_err(pool_access::failure)?;
            self.is_last = page.next.is_none();
            self.after = page.items.last().map_or(self.after, |last| last.seq);
            self.page = page.items;
            self.page.reverse();
        }
        Ok(self.page.last())
    }

    fn next(&mut self) -> anyhow::Result<Option<AuditEntry>> {
        self.peek()?;
        Ok(self.page.pop())
    }
}

impl Ls {
    fn run(self) -> Outcome {
        let client = self.access.client()?;
        let names = match &self.book {
            Some(book) => vec![book.clone()],
            None => books(&client)?.books.into_iter().map(|book| book.name).collect(),
        };
        let mut all: Vec<Pages<'_>> =
            names.iter().map(|name| Pages::new(&client, name, self.after)).collect();
        let mut is_first = true;
        // Books are in the order of time, each by itself: the oldest of their next entries is next.
        loop {
            let mut oldest: Option<(u64, usize)> = None;
            for (at, pages) in all.iter_mut().enumerate() {
                if let Some(entry) = pages.peek()?
                    && oldest.is_none_or(|(at_ms, _)| entry.at_ms < at_ms)
                {
                    oldest = Some((entry.at_ms, at));
                }
            }
            let Some((_, at)) = oldest else { return Ok(Exit::Success) };
            if let Some(entry) = all[at].next()? {
                if !print(&self.shown(&entry, is_first)?)? {
                    return Ok(Exit::Success);
                }
                is_first = false;
            }
        }
    }

    /// One entry; the first one of a table has the heads above it. An entry is shown as soon as it is read, so columns are
    /// as wide as what is usual in them.
    fn shown(&self, entry: &AuditEntry, is_first: bool) -> anyhow::Result<String> {
        let format = if self.json { Format::Json } else { self.output };
        if let Some(text) = format.of(entry, true)? {
            return Ok(text);
        }
        let outcome = match entry.outcome {
            AuditOutcome::Done => "done",
            AuditOutcome::Denied => "denied",
            AuditOutcome::Refused => "refused",
        };
        let line = |seq: &str, at: &str, outcome: &str, action: &str, rest: [&str; 3]| {
            let text = format!(
                "{seq:>8}  {at:20}  {outcome:7}  {action:16}  {:24}  {:24}  {}",
                rest[0], rest[1], rest[2]
            );
            format!("{}\n", text.trim_end())
        };
        let head = match is_first {
            true => line("NUMBER", "TIME", "OUTCOME", "ACTION", ["WHO", "WHAT", "DETAIL"]),
            false => String::new(),
        };
        let rest = [who(&entry.actor), entry.target.as_str(), entry.detail.as_str()];
        Ok(head + &line(&entry.seq.to_string(), &time(entry.at_ms), outcome, &entry.action, rest))
    }
}

/// How often a book is looked at again that was cut while it was read.
const LOOKS_MAX: u32 = 5;

/// What was found in one book.
struct Found {
    count: u64,
    newest: Option<AuditEntry>,
    contains: bool,
}

impl Verify {
    fn run(self) -> Outcome {
        let client = self.access.client()?;
        let all = books(&client)?;
        let missing = pool::missing_audit_books(&all);
        if missing > 0 {
            let what =
                format!("{missing} entries of the audit trail are missing: a whole book was taken away");
            return Err(Failure::new(Exit::Failure, what, CHANGED_BY_HAND).into());
        }
        let (mut count, mut is_found) = (0, self.contains.is_none());
        let mut newest: Option<AuditEntry> = None;
        for book in &all.books {
            let found = self.verify(&client, book.clone())?;
            count += found.count;
            is_found |= found.contains;
            newest = newest.into_iter().chain(found.newest).max_by_key(|entry| entry.at_ms);
            if book.before_first.is_empty() {
                outln!(
                    "the {} entries from before there were books are not changed; whether there were older ones \
                     than {} was not noted then",
                    found.count,
                    book.first
                );
            }
        }
        if !is_found {
            let hint = "the trail was replaced by another, or is older than what is kept";
            return Err(Failure::new(Exit::Failure, "the trail does not contain that hash", hint).into());
        }
        match newest {
            Some(newest) => {
                let (kept, forgotten) = (all.books.len(), all.written.saturating_sub(count));
                outln!("{count} entries in {kept} books: none changed, none missing");
                if forgotten > 0 {
                    outln!("{forgotten} older ones were forgotten, because more are not kept");
                }
                outln!("newest hash: {}", newest.hash);
            }
            None => outln!("the audit trail is empty"),
        }
        Ok(Exit::Success)
    }

    fn verify(&self, client: &Client, mut book: AuditBook) -> anyhow::Result<Found> {
        for _ in 0..LOOKS_MAX {
            match self.look(client, &book)? {
                Ok(found) => return Ok(found),
                Err(broken) => {
                    // It may have been cut while it was read, which moves its first entry.
                    let again = books(client)?.books.into_iter().find(|other| other.name == book.name);
                    match again.filter(|again| again.first != book.first) {
                        Some(again) => book = again,
                        None => {
                            return Err(
                                Failure::new(Exit::Failure, broken.to_string(), CHANGED_BY_HAND).into()
                            );
                        }
                    }
                }
            }
        }
        let hint = "try again when there is less to do";
        Err(Failure::new(
            Exit::Failure,
            format!("book {} changes faster than it can be read", book.name),
            hint,
        )
        .into())
    }

    fn look(&self, client: &Client, book: &AuditBook) -> anyhow::Result<Result<Found, BrokenChain>> {
        let mut check = AuditCheck::of(book.clone());
        let mut pages = Pages::new(client, &book.name, book.first.saturating_sub(1));
        let (mut newest, mut contains) = (None, false);
        while let Some(entry) = pages.next()? {
            if let Err(broken) = check.next(&entry) {
                return Ok(Err(broken));
            }
            contains |= Some(&entry.hash) == self.contains.as_ref();
            newest = Some(entry);
        }
        Ok(check.finish().map(|count| Found { count, newest, contains }))
    }
}

const CHANGED_BY_HAND: &str = "somebody has changed the store by hand; compare it with a backup";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        ls: Ls,
    }

    #[test]
    fn entries_have_heads_and_times_that_people_read() {
        let entry: AuditEntry = serde_json::from_value(serde_json::json!({
            "seq": 7, "address": "", "at_ms": 1_794_735_191_000_u64, "actor": "spiffe://dxpu/admin/first", "action": "box.drain",
            "target": "box/rack1-a", "outcome": "done", "detail": "", "previous": "", "hash": ""
        }))
        .unwrap();
        let shown = |words: &[&str], is_first| Line::parse_from(words).ls.shown(&entry, is_first).unwrap();
        let first = shown(&["ls"], true);
        assert!(first.starts_with("  NUMBER  TIME"), "{first}");
        assert!(first.contains("2026-11-15 09:33:11Z") && first.contains("admin/first"), "{first}");
        assert_eq!(shown(&["ls"], false).lines().count(), 1);
        assert!(shown(&["ls", "--json"], true).starts_with('{'));
    }
}
