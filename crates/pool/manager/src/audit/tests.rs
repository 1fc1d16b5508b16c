use super::*;
use pool::AuditCheck;
use pool_store::{Memory, Transaction};

const ADA: &str = "spiffe://dxpu/tenant/vision/ada";
const EVE: &str = "spiffe://dxpu/tenant/speech/eve";
const ANN: &str = "spiffe://dxpu/admin/ann";

fn deed(actor: &str, outcome: AuditOutcome) -> AuditDraft {
    AuditDraft {
        actor: actor.into(),
        address: "10.0.0.1:1234".into(),
        action: "lease.create".into(),
        target: "lease/l-1".into(),
        outcome,
        detail: "why".into(),
    }
}

/// A trail over a store; each deed is one transaction.
struct Trail {
    store: Memory,
    audit: Audit,
}

impl Trail {
    fn keeping(keep: u64) -> Self {
        let store = Memory::new();
        Self { audit: Audit::load(&store, keep).unwrap(), store }
    }

    fn commit(&self, staged: &Staged) {
        let mut transaction = staged.transaction(pool_store::Condition::absent("never"));
        transaction.conditions.clear();
        let _ = self.store.commit(&transaction).unwrap();
    }

    fn done(&mut self, actor: &str) {
        self.write(deed(actor, AuditOutcome::Done), 0);
    }

    fn write(&mut self, deed: AuditDraft, now_ms: u64) {
        let mut staged = Staged::default();
        self.audit.write(deed, now_ms, &mut staged);
        assert!(staged.len() <= 20, "{} writes for one deed", staged.len());
        self.commit(&staged);
    }

    fn time_passes(&mut self, now_ms: u64) {
        let mut staged = Staged::default();
        self.audit.tell_counted(now_ms, &mut staged);
        self.commit(&staged);
    }

    fn book(&self, name: &str) -> AuditBook {
        ends(&self.store).unwrap().books.into_iter().find(|book| book.name == name).unwrap()
    }

    fn entries(&self, name: &str) -> Vec<AuditEntry> {
        let book = self.book(name);
        entries(&self.store, name, book.first, book.last).unwrap()
    }

    /// How many entries each book has, if all of them are as they should be.
    fn verify(&self) -> Result<BTreeMap<String, u64>, String> {
        let all = ends(&self.store).unwrap();
        let missing = pool::missing_audit_books(&all);
        if missing > 0 {
            return Err(format!("{missing} entries of whole books are missing"));
        }
        let mut counts = BTreeMap::new();
        for book in all.books {
            let mut check = AuditCheck::of(book.clone());
            for entry in entries(&self.store, &book.name, book.first, book.last).unwrap() {
                check.next(&entry).map_err(|broken| broken.to_string())?;
            }
            counts.insert(book.name, check.finish().map_err(|broken| broken.to_string())?);
        }
        Ok(counts)
    }

    fn take_away(&self, key: String) {
        let _ = self.store.commit(&Transaction::new().delete(key)).unwrap();
    }
}

#[test]
fn who_floods_the_trail_displaces_its_own_entries_alone() {
    let mut trail = Trail::keeping(160);
    trail.done(ANN);
    trail.done(ADA);
    for _ in 0..5_000 {
        trail.done(EVE);
    }
    trail.done(ANN);
    let counts = trail.verify().unwrap();
    assert_eq!((counts["operators"], counts["tenant/vision"]), (2, 1), "{counts:?}");
    assert!((140..=160).contains(&counts["tenant/speech"]), "{counts:?}");
    assert_eq!(trail.book("tenant/speech").last, 5_000);
    let stored = trail.store.list(PREFIX, Want::Keys).unwrap().records().unwrap().len();
    assert!(stored < 200, "{stored} entries are still in the store");
}

#[test]
fn the_chains_go_on_after_a_restart() {
    let mut trail = Trail::keeping(64);
    for round in 0..300 {
        trail.done(if round % 3 == 0 { ANN } else { ADA });
        if round % 50 == 0 {
            trail.audit = Audit::load(&trail.store, 64).unwrap();
        }
    }
    let counts = trail.verify().unwrap();
    assert!(counts.values().sum::<u64>() <= 64 && counts.len() == 2, "{counts:?}");
}

#[test]
fn what_is_taken_away_at_either_end_or_as_a_whole_is_missed() {
    let make = || {
        let mut trail = Trail::keeping(64);
        (0..200).for_each(|_| trail.done(ADA));
        (0..10).for_each(|_| trail.done(ANN));
        trail.verify().unwrap();
        trail
    };
    let trail = make();
    trail.take_away(key("operators", 1));
    assert!(trail.verify().unwrap_err().contains("audit entry 2 of book operators"));
    let trail = make();
    trail.take_away(key("operators", 10));
    assert!(trail.verify().unwrap_err().contains("it is missing, and all that came after it"));
    let trail = make();
    let first = trail.book("tenant/vision").first;
    assert!(first > 1);
    trail.take_away(key("tenant/vision", first));
    assert!(trail.verify().unwrap_err().contains("one before it is missing"));
    let trail = make();
    (1..=10).for_each(|seq| trail.take_away(key("operators", seq)));
    trail.take_away(format!("{BOOK_PREFIX}operators"));
    assert_eq!(trail.verify().unwrap_err(), "10 entries of whole books are missing");
}

#[test]
fn who_is_refused_in_a_loop_is_counted_under_its_own_name() {
    let mut trail = Trail::keeping(10_000);
    for attempt in 0..1000 {
        trail.write(deed("anonymous", AuditOutcome::Denied), attempt);
        trail.write(deed(ADA, AuditOutcome::Denied), attempt);
    }
    assert_eq!((trail.entries("strangers").len(), trail.entries("tenant/vision").len()), (5, 5));
    // No refusal follows; the count is written all the same.
    trail.time_passes(1_000);
    for (book, actor) in [("strangers", "anonymous"), ("tenant/vision", ADA)] {
        let written = trail.entries(book);
        assert_eq!(written.len(), 6);
        assert_eq!((written[5].actor.as_str(), written[5].action.as_str()), (actor, "lease.create"));
        assert_eq!(written[5].detail, "995 more refusals within 1000 ms, the last: why");
    }
    // What it does besides is told in full.
    trail.write(AuditDraft { action: "gpu.break".into(), ..deed(ADA, AuditOutcome::Denied) }, 1_000);
    trail.time_passes(5_000);
    trail.write(deed(ADA, AuditOutcome::Refused), 5_000);
    assert_eq!(trail.entries("tenant/vision").len(), 8);
    trail.verify().unwrap();
}

#[test]
fn everybody_has_a_book() {
    for (actor, book) in [
        (ANN, "operators"),
        ("spiffe://dxpu/operator/x", "operators"),
        ("spiffe://dxpu/box/rack1-a", "machines"),
        ("spiffe://dxpu/host/h", "machines"),
        (ADA, "tenant/vision"),
        ("anonymous", "strangers"),
        ("tenant/vision", "strangers"),
    ] {
        assert_eq!(book_of(actor, AuditOutcome::Denied), book);
    }
    assert_eq!(book_of("anonymous", AuditOutcome::Done), "machines", "it has joined");
}
