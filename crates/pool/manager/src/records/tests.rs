//! The golden files: records as each version of dxpu has written them, one `KEY<tab>RECORD` a line.

use super::*;
use crate::access::Access;
use crate::audit::{self, Audit};
use crate::staged::Staged;
use pool::{AuditChain, AuditCheck, AuditDraft, new_audit_book};
use pool_auth::{Authority, Identity, Subject};
use pool_store::{Memory, Store, Transaction};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Set to write the files of a new version.
const WRITE: &str = "DXPU_WRITE_RECORDS";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("records")
}

type Line = (String, Vec<u8>);

/// The lines of a golden file. Those of version 0 are from the stores of two pools that a manager from before there were
/// versions has made for this. The secrets in them open nothing: the pools are gone.
fn lines(kind: &str, version: u64) -> Vec<Line> {
    let path = folder().join(format!("{kind}-{version}.txt"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; {WRITE}=1 writes it", path.display()));
    let line = |line: &str| {
        let (key, value) = line.split_once('\t').expect("a key, a tab, a record");
        (key.to_owned(), value.as_bytes().to_vec())
    };
    text.lines().map(line).collect()
}

/// Reads a record and writes it again.
type Again = fn(&[u8]) -> Vec<u8>;

/// Every kind with its version.
fn kinds() -> Vec<(&'static str, u64, Again)> {
    macro_rules! kind {
        ($kind:expr) => {
            ($kind.name(), $kind.version(), (|bytes| $kind.write(&$kind.read(bytes).unwrap())) as Again)
        };
    }
    vec![
        kind!(AUTHORITY),
        kind!(LEASE_KEY),
        kind!(FABRIC),
        kind!(TOKEN),
        kind!(MEMBER),
        kind!(DENIED),
        (AUDIT.name(), AUDIT.version(), (|bytes| write_entry(&read_entry(bytes).unwrap())) as Again),
        kind!(AUDIT_BOOK),
        kind!(AUDIT_SUM),
    ]
}

#[test]
fn records_are_written_as_the_golden_files_of_their_version() {
    for (kind, version, again) in kinds() {
        let mut text = String::new();
        for (key, value) in lines(kind, 0) {
            writeln!(text, "{key}\t{}", String::from_utf8(again(&value)).unwrap()).unwrap();
        }
        let path = folder().join(format!("{kind}-{version}.txt"));
        if std::env::var_os(WRITE).is_some() && !path.exists() {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            golden == text,
            "{kind} records of version {version} are not written as before, so stores would hold two shapes under one \
             number. If that is meant, add a function to the upgrades of this kind in \
             crates/pool/manager/src/records.rs, then run `{WRITE}=1 cargo test -p pool-manager records`, which writes \
             the file of the new version.\n--- {kind}-{version}.txt\n{golden}\n--- written now\n{text}"
        );
    }
}

#[test]
fn records_of_every_version_mean_the_same() {
    for (kind, version, again) in kinds() {
        let newest: Vec<Vec<u8>> = lines(kind, version).into_iter().map(|(_, value)| value).collect();
        for older in 0..version {
            let upgraded: Vec<Vec<u8>> = lines(kind, older).iter().map(|(_, value)| again(value)).collect();
            assert!(upgraded == newest, "{kind} records of version {older}");
        }
    }
}

/// Each pattern names every field: a field that is added does not compile before it is here, and then a new version of
/// the golden file has to show it.
#[test]
fn the_golden_files_show_every_field() {
    let newest = |kind: &str, version| lines(kind, version).into_iter().map(|(_, value)| value);
    let tokens = newest("token", TOKEN.version()).map(|value| TOKEN.read(&value).unwrap());
    let (mut has_lineage, mut is_used, mut kinds) = (false, false, BTreeSet::new());
    for token in tokens {
        let TokenRecord {
            id,
            kind,
            identity,
            digest,
            created_by,
            lineage,
            created_ms,
            expires_ms,
            used_for,
            note,
        } = &token;
        assert!(id.len() == 16 && digest.len() == 64 && !created_by.is_empty() && created_ms < expires_ms);
        assert!(note == "for the night" || *identity == Identity::Admin("first".into()), "{token:?}");
        (has_lineage, is_used) = (has_lineage || !lineage.is_empty(), is_used || used_for.is_some());
        kinds.insert((format!("{kind:?}"), identity.role().as_str()));
    }
    assert!(has_lineage && is_used);
    assert_eq!(kinds.len(), 6, "join tokens of boxes and hosts, user tokens of four roles: {kinds:?}");

    let members = newest("member", MEMBER.version()).map(|value| MEMBER.read(&value).unwrap());
    for Member { identity: _, key, joined_ms, token, lineage, certified_until_ms } in members {
        assert!(key.is_some() && !token.is_empty() && !lineage.is_empty() && joined_ms < certified_until_ms);
    }

    let denied = newest("denied", DENIED.version()).map(|value| DENIED.read(&value).unwrap());
    let (mut is_alone, mut are_kept, mut has_boxes, mut subjects) = (false, false, false, BTreeSet::new());
    for Denial { subject, since_ms, until_ms, by, reason, alone, keeps_leases, boxes } in denied {
        assert!(since_ms < until_ms && !by.is_empty() && !reason.is_empty());
        (is_alone, are_kept) = (is_alone || alone, are_kept || keeps_leases);
        has_boxes |= !boxes.is_empty();
        subjects.insert(match subject {
            Subject::Token(_) => "token",
            Subject::Identity(_) => "identity",
            Subject::Tenant(_) => "tenant",
            Subject::Serial(_) => "serial",
            Subject::Lease(_) => "lease",
        });
    }
    assert!(is_alone && are_kept && has_boxes);
    assert_eq!(subjects.len(), 5, "every kind of subject");

    let outcomes: BTreeSet<String> = newest("audit", AUDIT.version())
        .map(|value| read_entry(&value).unwrap())
        .inspect(|entry| assert!(!entry.book.is_empty() && !entry.previous.is_empty(), "{entry:?}"))
        .map(|entry| format!("{:?}", entry.outcome))
        .collect();
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), ["Denied", "Done", "Refused"]);
}

/// A store with the golden records of one version, or of the newest one before it.
fn store(version: u64) -> (Memory, Vec<Line>) {
    let mut all: Vec<Line> =
        kinds().into_iter().flat_map(|(kind, newest, _)| lines(kind, version.min(newest))).collect();
    all.extend(lines("members-known", 0));
    // A trail from before there were books, which no release of today writes any more.
    let entry = AuditChain::after(&new_audit_book("")).append(early_deed(), 900);
    all.push(("audit/00000000000000000001".into(), serde_json::to_vec(&entry).unwrap()));
    all.push(("audit-head".into(), br#"{"seq":1,"oldest":1}"#.to_vec()));
    let memory = Memory::new();
    let transaction =
        all.iter().fold(Transaction::new(), |all, (key, value)| all.put(key.clone(), value.clone()));
    let _ = memory.commit(&transaction).unwrap();
    (memory, all)
}

fn early_deed() -> AuditDraft {
    AuditDraft {
        actor: "spiffe://dxpu/operator/ann".into(),
        address: "192.0.2.7:4711".into(),
        action: "gpu.taint".into(),
        target: "gpu/rack1-a/0".into(),
        outcome: AuditOutcome::Done,
        detail: String::new(),
    }
}

fn newest() -> u64 {
    kinds().iter().map(|(_, version, _)| *version).max().unwrap()
}

fn load(all: &[Line]) -> Result<Access, String> {
    let stored = AUTHORITY.read(&lines("authority", 0)[0].1).unwrap();
    let authority = Arc::new(Authority::from_pem(stored.certificate, stored.key).unwrap());
    let records = all.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
    Access::load(authority, records.filter(|(key, _)| key.starts_with("auth/")), &mut Staged::default())
}

#[test]
fn a_manager_begins_with_records_of_every_version() {
    for version in 0..=newest() {
        let (store, all) = store(version);
        let access = load(&all).unwrap();
        assert_eq!((access.tokens().len(), access.members().count(), access.denied().len()), (11, 2, 7));
        assert!(access.are_members_known() && access.public_keys().count() == 1);
        // The hashes of the trail are over what the API shows: a change of its spelling would break every chain.
        Audit::load(&store, 64).unwrap();
        let books = audit::ends(&store).unwrap();
        assert_eq!(pool::missing_audit_books(&books), 0);
        assert_eq!(books.books.len(), 5, "version {version}: {books:?}");
        for book in books.books {
            let entries = audit::entries(&store, &book.name, book.first, book.last).unwrap();
            let mut check = AuditCheck::of(book);
            entries.iter().for_each(|entry| check.next(entry).unwrap());
            check.finish().unwrap();
        }
    }
}

#[test]
fn a_manager_refuses_records_of_a_newer_version_and_says_what_to_do() {
    for (kind, version, _) in kinds().into_iter().filter(|(kind, ..)| !kind.starts_with("audit")) {
        let newer: Vec<Line> = lines(kind, version)
            .into_iter()
            .map(|(key, value)| {
                let text = String::from_utf8(value).unwrap();
                (key, text.replacen(&format!("\"v\":{version}"), "\"v\":1000", 1).into_bytes())
            })
            .collect();
        let expected = format!(
            "this {kind} record has version 1000, and this dxpu reads versions up to {version}: \
             a newer dxpu has written it, use that one"
        );
        let refused = if kind == "authority" {
            AUTHORITY.read(&newer[0].1).map(drop).unwrap_err().to_string()
        } else {
            load(&newer).map(drop).unwrap_err()
        };
        assert!(refused.contains(&expected), "{refused}");
    }
}
