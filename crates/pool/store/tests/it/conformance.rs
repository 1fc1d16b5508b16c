//! What every engine must do, whatever it is made of.

mod elections;
mod electors;
mod records;
mod watches;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pool_store::{Changes, Outcome, Revision, Store, Transaction, Watch};

/// An engine under test. Each call of `client` is another client of the same store.
pub(crate) struct Subject<'a> {
    pub(crate) client: &'a dyn Fn() -> Arc<dyn Store>,
    /// Lets this much time pass.
    pub(crate) pass: &'a dyn Fn(Duration),
    /// Whether time passes by itself, so that threads can be part of it.
    pub(crate) is_live: bool,
}

impl Subject<'_> {
    fn client(&self) -> Arc<dyn Store> {
        (self.client)()
    }
}

/// Runs all of it, each part below a prefix of its own.
pub(crate) fn run(subject: &Subject<'_>) {
    records::run(subject);
    watches::run(subject);
    elections::run(subject);
    if subject.is_live {
        electors::run(subject);
    }
}

/// Commits what must not conflict.
pub(crate) fn commit(store: &dyn Store, transaction: Transaction) -> Revision {
    match store.commit(&transaction).expect("the store answers") {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict { condition, found } => {
            panic!("condition {condition} of {transaction:?} does not hold: {found:?}")
        }
    }
}

fn put(store: &dyn Store, key: &str, value: &str) -> Revision {
    commit(store, Transaction::new().put(key, value))
}

fn delete(store: &dyn Store, key: &str) -> Revision {
    commit(store, Transaction::new().delete(key))
}

fn value(store: &dyn Store, key: &str) -> Option<String> {
    let record = store.read(key).expect("the store answers")?;
    Some(String::from_utf8(record.value).unwrap())
}

/// The next change, which must come soon.
fn next(watch: &Watch) -> Changes {
    let changes = watch.recv_timeout(SOON).expect("the watch lives");
    changes.expect("a change within seconds")
}

/// A loaded machine takes its time, above all to start three members; what must be quick is measured where it is promised.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Asks until the answer is there.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < SOON, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
