//! A pool is copied while it works, and goes on from the copy.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pool_api::{AccessKind, ErrorCode, Gpu, Lease, LeaseRequest, LeaseState, Page, TenantUsage, Want};
use pool_auth::Credential;
use pool_client::{Client, idempotency_key};
use pool_manager::{Backup, Manager, RestoreError, restore, take};
use pool_store::{Sqlite, Store, Transaction};

use crate::bed::{Bed, HANG, settings};

fn backup(store: &dyn Store) -> Backup {
    let (taken, bytes) = take(store, 1_000, || Ok(Vec::new())).unwrap();
    let backup = Backup::read(&bytes).unwrap();
    assert_eq!(taken.records as usize, backup.records.len());
    backup
}

fn empty(folder: &Path, name: &str) -> Arc<dyn Store> {
    Arc::new(Sqlite::open(folder.join(name)).unwrap())
}

/// A manager on another store that answers where the first one did.
fn start(store: Arc<dyn Store>, folder: &Path, listen: std::net::SocketAddr) -> Manager {
    let mut settings = settings(store, folder.join("unused.json"), "m2");
    settings.listen = listen;
    let manager = Manager::start(settings).unwrap();
    let began = Instant::now();
    while !manager.is_leading() {
        assert!(began.elapsed() < HANG, "nobody leads");
        std::thread::sleep(Duration::from_millis(10));
    }
    manager
}

#[test]
fn a_pool_goes_on_from_a_backup_that_was_taken_while_it_worked() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 2);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let hour = LeaseRequest { ttl_ms: 3_600_000, ..LeaseRequest::default() };
    let kept = ada.create_lease(&hour, &idempotency_key()).unwrap();
    let unused = bed.token(AccessKind::Join, "spiffe://dxpu/box/rack1-z", 3_600_000);
    gpu_box.turn();
    let copy = backup(&*bed.store);

    // After the backup: another lease is granted, and its borrower has not come to the box yet.
    let forgotten = ada.create_lease(&hour, &idempotency_key()).unwrap();
    assert_eq!(forgotten.state, LeaseState::Granted);

    let Bed { manager, store, folder, admin, .. } = bed;
    let listen = manager.address();
    let other = empty(folder.path(), "restored.db");
    manager.stop();
    drop(store);
    let done = restore(&*other, &copy, false, 2_000_000).unwrap();
    assert_eq!((done.pool.boxes, done.pool.gpus, done.pool.leases), (1, 2, 1));
    assert_eq!((done.join_tokens_dropped, done.tokens), (1, 2));
    assert!(done.audit_entries > 0);

    // The same addresses, tokens and certificates are good; the box serves on, and no epoch comes a second time.
    let second = start(other, folder.path(), listen);
    let orders = gpu_box.turn();
    let serves = |lease: &Lease| {
        let is_it = |want: &Want| matches!(want, Want::Serve { lease: id, epoch, .. } if *id == lease.id && *epoch == lease.grants[0].epoch);
        orders.slots.iter().any(|order| is_it(&order.want))
    };
    assert!(serves(&kept), "{orders:?}");
    assert_eq!(ada.renew_lease(kept.id).unwrap().grants, kept.grants);
    assert_eq!(ada.renew_lease(forgotten.id).unwrap_err().code(), Some(ErrorCode::NotFound));
    let new = ada.create_lease(&hour, &idempotency_key()).unwrap();
    assert_eq!(new.state, LeaseState::Granted);
    assert_eq!(new.grants[0].gpu, forgotten.grants[0].gpu);
    assert!(new.grants[0].epoch > forgotten.grants[0].epoch + (1 << 20));
    assert!(orders.tenure > 1 << 42, "agents take these orders for later ones: {}", orders.tenure);
    // A join token may have been used since: it is good no more.
    let base = admin.credential();
    let joining = Client::to_join(base.managers.clone(), base.authority.clone()).unwrap();
    let key = pool_auth::NewKey::make().unwrap();
    let name = pool_api::Name::new("rack1-z").unwrap();
    let refused = joining.join(&name, &unused, &key.request_pem).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Unauthenticated), "{refused}");
    second.stop();
}

#[test]
fn a_restore_leaves_alone_what_it_must_not_touch() {
    let bed = Bed::make();
    let copy = backup(&*bed.store);
    // A manager leads.
    let led = restore(&*bed.store, &copy, true, 1).unwrap_err();
    assert!(matches!(&led, RestoreError::Led { address } if address.starts_with("https://")), "{led}");
    let Bed { manager, store, folder, .. } = bed;
    let listen = manager.address();
    manager.stop();
    let before = store.list("", pool_store::Want::Records).unwrap().records().unwrap();
    let refused = restore(&*store, &copy, false, 1).unwrap_err();
    assert!(matches!(refused, RestoreError::NotEmpty { .. }), "{refused}");
    let after = store.list("", pool_store::Want::Records).unwrap().records().unwrap();
    assert_eq!(before, after, "a refusal changes nothing");
    // With --replace what was there is gone.
    let _ = store.commit(&Transaction::new().put("lease/l-00000000000000aa", "no record")).unwrap();
    restore(&*store, &copy, true, 1).unwrap();
    assert_eq!(store.read("lease/l-00000000000000aa").unwrap(), None);
    start(store.clone(), folder.path(), listen).stop();
    // One that was interrupted is not taken for a pool, and another try finishes it.
    let _ = store.commit(&Transaction::new().put("restored/unfinished", "restoring")).unwrap();
    let settings = settings(store.clone(), folder.path().join("unused.json"), "m3");
    let Err(error) = Manager::start(settings) else { panic!("it starts on half a pool") };
    let said = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(format!("{error} {said}").contains("was interrupted"), "{error}: {said}");
    restore(&*store, &copy, true, 2).unwrap();
    start(store, folder.path(), listen).stop();
}

/// The golden records of each version, as the releases of dxpu have written them.
fn golden(version: u64) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../core/records");
    let mut records = Vec::new();
    for kind in ["box", "host", "gpu", "lease", "tenant", "spare", "event", "idem"] {
        let newest = (0..=version).rev().map(|version| folder.join(format!("{kind}-{version}.txt")));
        let path = newest.into_iter().find(|path| path.exists()).unwrap();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let (key, value) = line.split_once('\t').unwrap();
            records.push((key.to_owned(), value.as_bytes().to_vec()));
        }
    }
    records
}

#[test]
fn a_backup_of_an_older_release_is_restored_and_one_of_a_newer_is_refused_in_words() {
    let bed = Bed::make();
    let own = backup(&*bed.store);
    let Bed { manager, folder, admin, .. } = bed;
    let listen = manager.address();
    manager.stop();
    for version in 0..=2 {
        let mut copy = own.clone();
        copy.records.retain(|(key, _)| !key.starts_with("event/"));
        copy.records.extend(golden(version));
        let store = empty(folder.path(), &format!("of-{version}.db"));
        let done = restore(&*store, &copy, false, 5_000).unwrap();
        // Records of GPUs have seats for guests since version 2, and the golden ones have one.
        let count = if version < 2 { 6 } else { 7 };
        assert_eq!((done.pool.boxes, done.pool.hosts, done.pool.gpus), (4, 3, count), "version {version}");
        let running = start(store, folder.path(), listen);
        let gpus: Page<Gpu> = admin.get("/v1/gpus", Duration::ZERO).unwrap();
        assert_eq!(gpus.items.len(), count, "version {version}");
        running.stop();

        let store = empty(folder.path(), &format!("newer-than-{version}.db"));
        let (key, value) = copy.records.iter_mut().find(|(key, _)| key.starts_with("tenant/")).unwrap();
        let text = String::from_utf8(value.clone()).unwrap();
        // Records from before there were versions have none.
        let fields = text.strip_prefix('{').unwrap();
        let fields = fields.strip_prefix("\"v\":").map_or(fields, |rest| rest.split_once(',').unwrap().1);
        *value = format!("{{\"v\":1000,{fields}").into_bytes();
        let (key, refused) = (key.clone(), restore(&*store, &copy, false, 5_000).unwrap_err().to_string());
        assert!(
            refused.contains(&key) && refused.contains("a newer dxpu has written it, use that one"),
            "{refused}"
        );
        assert!(store.list("", pool_store::Want::Keys).unwrap().records().unwrap().is_empty());
    }
}

/// The time that tenants have used was forgotten by every new leader.
#[test]
fn the_gpu_time_of_tenants_outlives_a_manager() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let lease = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    ada.release_lease(lease.id).unwrap();
    gpu_box.turn();
    let used = |client: &Client| -> u64 {
        let page: Page<TenantUsage> = client.get("/v1/usage", Duration::ZERO).unwrap();
        page.items.iter().map(|usage| usage.leases_ended).sum()
    };
    assert_eq!(used(&bed.admin), 1);
    let Bed { manager, store, folder, admin, .. } = bed;
    let listen = manager.address();
    manager.stop();
    let second = start(store, folder.path(), listen);
    assert_eq!(used(&admin), 1);
    second.stop();
}

#[test]
fn versions_of_clients_are_taken_or_told_what_to_do() {
    use std::io::{Read, Write};
    let bed = Bed::make();
    // Curl and browsers say nothing of versions, and neither does the dxpu of before.
    let say = |header: &str| -> String {
        let base: &Credential = bed.admin.credential();
        let authority = rustls_roots(&base.authority);
        let host = base.managers[0].trim_start_matches("https://").to_owned();
        let mut socket = std::net::TcpStream::connect(&host).unwrap();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let mut tls = rustls::ClientConnection::new(authority, name).unwrap();
        let mut stream = rustls::Stream::new(&mut tls, &mut socket);
        let token = base.token.as_ref().unwrap().reveal();
        write!(
            stream,
            "GET /v1/whoami HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n{header}connection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let ours = pool_api::PROTOCOL;
    for fine in
        ["".to_owned(), format!("dxpu-protocol: {ours}\r\n"), format!("dxpu-protocol: {}\r\n", ours - 1)]
    {
        let answer = say(&fine);
        assert!(answer.starts_with("HTTP/1.1 200"), "{fine:?}: {answer}");
        assert!(answer.contains(&format!("dxpu-protocol: {ours}")), "{answer}");
    }
    let newer = say(&format!("dxpu-protocol: {}\r\n", ours + 1));
    assert!(newer.starts_with("HTTP/1.1 400") && newer.contains("upgrade the managers first"), "{newer}");
    let older = say("dxpu-protocol: 0\r\n");
    assert!(older.contains("upgrade dxpu on this machine"), "{older}");
}

fn rustls_roots(pem: &str) -> Arc<rustls::ClientConfig> {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}
