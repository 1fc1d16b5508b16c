//! The golden files: records as each version of dxpu has written them, one `KEY<tab>RECORD` a line.

use super::samples::{Samples, samples, samples_of};
use super::*;
use crate::{Ledger, Settings};
use pool_api::{LeaseId, Name};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Set to write the files of a new version.
const WRITE: &str = "DXPU_WRITE_RECORDS";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("records")
}

type Line = (String, Vec<u8>);

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

/// What today's code makes of the samples, and the version in which it writes them.
fn written() -> Vec<(&'static str, u64, Vec<Line>)> {
    let Samples { boxes, hosts, gpus, leases, tenants, spares, events } = samples();
    macro_rules! kind {
        ($kind:expr, $items:expr, $key:expr) => {{
            let line = |item| (format!("{}/{}", $kind.name(), $key(item)), $kind.encode(item));
            ($kind.name(), $kind.version(), $items.iter().map(line).collect())
        }};
    }
    vec![
        kind!(BOX, boxes, |item: &pool_api::BoxRecord| item.name.clone()),
        kind!(HOST, hosts, |item: &pool_api::HostDetail| item.record.name.clone()),
        kind!(GPU, gpus, |item: &pool_api::Gpu| item.id.clone()),
        kind!(LEASE, leases, |item: &pool_api::Lease| item.id),
        kind!(TENANT, tenants, |item: &pool_api::TenantRecord| item.name.clone()),
        kind!(SPARE, spares, |item: &pool_api::SpareRecord| item.model.clone()),
        (
            EVENT.name(),
            EVENT.version(),
            vec![(format!("event/{:020}", events[0].seq), EVENT.encode_all(&events))],
        ),
        (KEY.name(), KEY.version(), vec![(KEY_NAME.to_owned(), KEY.write(&key()))]),
    ]
}

/// Where the key `key-1` of [`OWNER`] is stored.
const KEY_NAME: &str = "idem/caf2554a72b15faac91004ece903786d";
const OWNER: &str = "spiffe://dxpu/tenant/vision/ada";

/// The key's record after [`OWNER`] has asked for the third sample with it.
fn key() -> KeyRecord {
    KeyRecord {
        lease: LeaseId(0x63cb_e1e4_e698_4081),
        request: "e7d1839f33010b25cfd223b1ca80b5c9".into(),
        at_ms: 4242,
    }
}

/// Reads the golden files of one version, or of the newest one before it.
fn read(version: u64) -> (Samples, Vec<KeyRecord>) {
    macro_rules! kind {
        ($kind:expr) => {
            lines($kind.name(), version.min($kind.version()))
                .iter()
                .map(|(key, value)| $kind.decode(value).unwrap_or_else(|error| panic!("{key}: {error}")))
                .collect()
        };
    }
    let events = lines(EVENT.name(), version.min(EVENT.version()));
    let keys = lines(KEY.name(), version.min(KEY.version()));
    let all = Samples {
        boxes: kind!(BOX),
        hosts: kind!(HOST),
        gpus: kind!(GPU),
        leases: kind!(LEASE),
        tenants: kind!(TENANT),
        spares: kind!(SPARE),
        events: events.iter().flat_map(|(_, value)| EVENT.decode_all(value).unwrap()).collect(),
    };
    (all, keys.iter().map(|(_, value)| KEY.read(value).unwrap()).collect())
}

fn newest() -> u64 {
    written().iter().map(|(_, version, _)| *version).max().unwrap()
}

#[test]
fn records_of_every_version_are_read_as_what_they_were() {
    for version in 0..=newest() {
        let (all, keys) = read(version);
        assert_eq!(all, samples_of(version), "version {version}");
        assert_eq!(keys, [key()], "version {version}");
    }
}

#[test]
fn a_ledger_begins_with_records_of_every_version() {
    for version in 0..=newest() {
        let all: Vec<Line> =
            written().iter().flat_map(|(kind, newest, _)| lines(kind, version.min(*newest))).collect();
        let mut ledger = Ledger::load(all, Settings::default(), 10_000).unwrap();
        let expected = samples_of(version);
        let gpus: Vec<_> = ledger.gpus(None).collect();
        assert_eq!(gpus, expected.gpus, "version {version}");
        assert_eq!(ledger.events(0).count(), expected.events.len());
        // The key is known: the request that was made with it before gets the lease of then, which is over since.
        let again = crate::Command::CreateLease {
            owner: OWNER.into(),
            token: None,
            tenant: Name::new("vision").unwrap(),
            request: expected.leases[2].request.clone(),
            idempotency_key: Some("key-1".into()),
        };
        let refusal = ledger.apply(&again, 10_001, &mut crate::SplitMix::new(7)).unwrap_err();
        assert_eq!(refusal, crate::Refusal::KeyOver { lease: key().lease }, "version {version}");
    }
}

#[test]
fn a_ledger_refuses_records_of_a_newer_version_and_says_what_to_do() {
    for (kind, version, lines) in written() {
        let newer = |(key, value): &Line| {
            let text = String::from_utf8(value.clone()).unwrap();
            (key.clone(), text.replacen(&format!("\"v\":{version}"), "\"v\":1000", 1))
        };
        let all: Vec<_> = lines.iter().map(newer).collect();
        let error = Ledger::load(all, Settings::default(), 10_000).unwrap_err().to_string();
        let expected = format!(
            "this {kind} record has version 1000, and this dxpu reads versions up to {version}: \
             a newer dxpu has written it, use that one"
        );
        assert!(error.contains(&expected), "{error}");
    }
}

/// What to do when what is written differs from a golden file.
fn advice(kind: &str, version: u64) -> String {
    format!(
        "{kind} records of version {version} are not written as before, so stores would hold two shapes under one number. \
         If that is meant, add a function to the upgrades of this kind in crates/pool/core/src/records, then run \
         `{WRITE}=1 cargo test -p pool records`, which writes the files of the new version"
    )
}

/// Compares with a golden file. Writes one that is not there if [`WRITE`] is set; never writes over one that is.
fn check(name: &str, text: &str, advice: &str) {
    let path = folder().join(name);
    if std::env::var_os(WRITE).is_some() && !path.exists() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{name}: {advice}\n--- {name}\n{golden}\n--- written now\n{text}");
}

#[test]
fn records_are_written_as_the_golden_files_of_their_version() {
    for (kind, version, lines) in written() {
        let mut text = String::new();
        for (key, value) in &lines {
            writeln!(text, "{key}\t{}", std::str::from_utf8(value).unwrap()).unwrap();
        }
        check(&format!("{kind}-{version}.txt"), &text, &advice(kind, version));
    }
}

/// A field that a sample leaves empty would not be seen in the records themselves.
#[test]
fn the_shapes_of_stored_types_change_with_their_version_alone() {
    let machine =
        [machine::BoxRecord::SHAPE, machine::Taint::SHAPE, machine::BoxKind::SHAPE, machine::BoxState::SHAPE];
    let gpu = [
        gpu::Gpu::SHAPE,
        machine::Taint::SHAPE,
        gpu::GpuState::SHAPE,
        gpu::Guest::SHAPE,
        gpu::Part::SHAPE,
        gpu::Kept::SHAPE,
        gpu::Holder::SHAPE,
        gpu::Health::SHAPE,
    ];
    let host = [
        host::HostDetail::SHAPE,
        machine::Taint::SHAPE,
        host::HostRecord::SHAPE,
        host::HostState::SHAPE,
        host::HostSlot::SHAPE,
        host::Leaving::SHAPE,
        host::Phase::SHAPE,
    ];
    let lease = [
        lease::Lease::SHAPE,
        lease::LeaseState::SHAPE,
        lease::LeaseRequest::SHAPE,
        lease::Topology::SHAPE,
        lease::Plane::SHAPE,
        lease::Share::SHAPE,
        lease::Survive::SHAPE,
        lease::Class::SHAPE,
        lease::Moving::SHAPE,
        lease::Purpose::SHAPE,
        lease::Parking::SHAPE,
        lease::Grant::SHAPE,
        lease::Ended::SHAPE,
        lease::Move::SHAPE,
        host::Attachment::SHAPE,
    ];
    let tenant = [tenant::TenantRecord::SHAPE, tenant::TenantTimes::SHAPE, tenant::Quota::SHAPE];
    let event = [event::Event::SHAPE, event::EventKind::SHAPE];
    for (kind, version, shapes) in [
        (BOX.name(), BOX.version(), &machine[..]),
        (GPU.name(), GPU.version(), &gpu),
        (HOST.name(), HOST.version(), &host),
        (LEASE.name(), LEASE.version(), &lease),
        (TENANT.name(), TENANT.version(), &tenant),
        (SPARE.name(), SPARE.version(), &[tenant::SpareRecord::SHAPE]),
        (EVENT.name(), EVENT.version(), &event),
        (usage::USAGE.name(), usage::USAGE.version(), &[usage::UsageRecord::SHAPE]),
    ] {
        check(&format!("{kind}-{version}.shape.txt"), &shapes.concat(), &advice(kind, version));
    }
}
