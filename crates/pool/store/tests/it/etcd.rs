//! Three members of etcd: the suite, and what happens when members go away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pool_store::{Etcd, EtcdSettings, Outcome, Revision, Store, StoreError, Transaction, Want, Watch};
use rustix::process::Signal;

use crate::cluster::{Cluster, MEMBERS};
use crate::conformance::{self, SOON, Subject, eventually};
use crate::crashes;
use crate::proxy::Proxy;

/// One cluster for all of it: starting one takes seconds, and other tests would only slow it down.
#[test]
fn etcd_conforms_and_survives() {
    let mut cluster = Cluster::start();
    {
        let client = || -> Arc<dyn Store> { Arc::new(cluster.patient_client()) };
        conformance::run(&Subject { client: &client, pass: &std::thread::sleep, is_live: true });
    }
    crashes::run(&cluster.location(), &cluster.patient_client());
    crashes::run_frozen_at_any_moment(&cluster.location(), &cluster.patient_client());
    an_answer_that_is_lost_leaves_the_commit_uncertain(&cluster);
    writes_go_on_when_members_die(&mut cluster);
    a_member_that_hangs_is_left(&cluster);
    nothing_is_lost_when_all_members_die(&mut cluster);
}

/// Writes numbers one after the other and keeps the books as a careful leader would.
struct Writer {
    store: Etcd,
    prefix: &'static str,
    next: u64,
}

impl Writer {
    /// Writes the next number, whatever it takes. Tells how long it took.
    fn write(&mut self) -> Duration {
        let began = Instant::now();
        let key = format!("{}{:08}", self.prefix, self.next);
        let transaction = Transaction::new().put(&key, "x");
        loop {
            match self.store.commit(&transaction) {
                Ok(Outcome::Committed { .. }) => break,
                Ok(conflict) => panic!("{conflict:?} without a condition"),
                Err(StoreError::Unavailable { .. }) => {}
                // Putting the same again does no harm here.
                Err(StoreError::Uncertain { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(began.elapsed() < SOON, "no write within {SOON:?}");
        }
        self.next += 1;
        began.elapsed()
    }

    fn write_many(&mut self, count: usize) -> Duration {
        (0..count).map(|_| self.write()).max().unwrap()
    }

    fn check(&self) {
        let records = self.store.list(self.prefix, Want::Keys).unwrap().records().unwrap();
        assert_eq!(records.len() as u64, self.next);
    }
}

/// Reads the watch until this key, and checks that each key came once or, after an uncertain write, again.
fn follow_to(watch: &Watch, last_key: &str) {
    let mut newest = Revision::default();
    loop {
        let changes = watch.recv_timeout(SOON).unwrap().expect("the watch goes on");
        assert!(changes.revision > newest, "in order, none twice");
        newest = changes.revision;
        if changes.changes.iter().any(|change| change.key() == last_key) {
            return;
        }
    }
}

/// A transaction that may have arrived is not sent again, though other members would take it; a read is.
fn an_answer_that_is_lost_leaves_the_commit_uncertain(cluster: &Cluster) {
    let direct = cluster.patient_client();
    let endpoints = cluster.endpoints();
    let proxy = Proxy::start(endpoints[0].replace("http://", ""));
    let through = [&format!("http://{}", proxy.address), &endpoints[1]];
    let store = Etcd::open(&EtcdSettings::new(through)).unwrap();
    let from = conformance::commit(&store, Transaction::new().put("lost/a", "0")).next();

    proxy.lose_answers();
    let result = store.commit(&Transaction::new().put("lost/a", "1"));
    assert!(matches!(result, Err(StoreError::Uncertain { .. })), "{result:?}");
    let has_arrived = || direct.read("lost/a").unwrap().is_some_and(|record| record.value == b"1");
    eventually("it had arrived", || has_arrived().then_some(()));
    let last = conformance::commit(&direct, Transaction::new().put("lost/b", ""));
    let watch = direct.watch("lost/", from).unwrap();
    let keys: Vec<String> = (0..2)
        .map(|_| watch.recv_timeout(SOON).unwrap().expect("two changes").changes[0].key().to_owned())
        .collect();
    assert_eq!(keys, ["lost/a", "lost/b"], "and once only, before {last}");

    let store = Etcd::open(&EtcdSettings::new(through)).unwrap();
    assert_eq!(store.read("lost/a").unwrap().unwrap().value, b"1");
}

fn writes_go_on_when_members_die(cluster: &mut Cluster) {
    let mut writer = Writer { store: cluster.client(), prefix: "loss/", next: 0 };
    writer.write_many(20);
    let from = writer.store.list("loss/", Want::Keys).unwrap().revision();
    let watch = writer.store.watch("loss/", from.next()).unwrap();

    // Every member in turn, so that it is the one we talk to, and the leader, and neither.
    for number in 0..MEMBERS {
        let led = cluster.leader() == number;
        cluster.kill(number);
        let longest = writer.write_many(50);
        println!("member {number} killed (leader: {led}): longest write {longest:?}");
        assert!(longest < Duration::from_secs(5), "{longest:?}");
        cluster.restart(number);
        eventually("the member is back", || {
            let alone = Etcd::open(&EtcdSettings::new([&cluster.endpoints()[number]])).unwrap();
            alone.read("hello").ok()
        });
    }
    let leader = cluster.leader();
    cluster.kill(leader);
    let longest = writer.write_many(50);
    println!("leader killed: longest write {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    cluster.restart(leader);

    writer.check();
    follow_to(&watch, &format!("loss/{:08}", writer.next - 1));
}

fn a_member_that_hangs_is_left(cluster: &Cluster) {
    for number in 0..MEMBERS {
        let mut writer =
            Writer { store: cluster.client(), prefix: ["hang0/", "hang1/", "hang2/"][number], next: 0 };
        writer.write_many(5);
        cluster.signal(number, Signal::STOP);
        let longest = writer.write_many(20);
        cluster.signal(number, Signal::CONT);
        println!("member {number} frozen: longest write {longest:?}");
        assert!(longest < Duration::from_secs(6), "{longest:?}");
        writer.check();
        cluster.leader();
    }
}

fn nothing_is_lost_when_all_members_die(cluster: &mut Cluster) {
    let mut writer = Writer { store: cluster.client(), prefix: "all/", next: 0 };
    writer.write_many(100);
    for number in 0..MEMBERS {
        cluster.kill(number);
    }
    let began = Instant::now();
    match writer.store.commit(&Transaction::new().put("all/none", "x")) {
        Err(StoreError::Unavailable { .. }) => {}
        other => panic!("{other:?} with no member alive"),
    }
    assert!(began.elapsed() < SOON, "an answer within seconds, even if it is no");
    for number in 0..MEMBERS {
        cluster.restart(number);
    }
    eventually("the cluster is back", || writer.store.read("hello").ok());
    writer.check();
}

#[test]
fn etcd_asks_for_certificates_and_gets_them() {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let issue = |names: &[&str]| {
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (certificate, key) = issue(&["127.0.0.1", "localhost"]);
    let cluster = Cluster::start_with("https", |folder| {
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let mut arguments = vec!["--client-cert-auth".to_owned()];
        arguments.extend(["--trusted-ca-file".to_owned(), file("ca.pem", &authority_certificate.pem())]);
        arguments.extend(["--cert-file".to_owned(), file("member.pem", &certificate)]);
        arguments.extend(["--key-file".to_owned(), file("member.key", &key)]);
        arguments
    });
    assert!(cluster.folder().join("ca.pem").exists());

    let mut settings = EtcdSettings::new(cluster.endpoints());
    settings.patience = Duration::from_secs(1);
    let (certificate, key) = issue(&["client"]);
    let ca: Vec<u8> = authority_certificate.pem().into();
    let tls = |ca: Vec<u8>, identity| Some(pool_store::EtcdTls { ca, identity });

    settings.tls = tls(ca.clone(), Some((certificate.into(), key.into())));
    let known = Etcd::open(&settings).unwrap();
    eventually("the cluster answers", || known.read("hello").ok());
    conformance::commit(&known, Transaction::new().put("secret", "1"));
    assert!(!format!("{settings:?}").contains("PRIVATE"));

    settings.tls = tls(ca, None);
    let unknown = Etcd::open(&settings).unwrap().read("secret");
    assert!(matches!(unknown, Err(StoreError::Unavailable { .. })), "{unknown:?}");

    let stranger = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    settings.tls = tls(stranger.cert.pem().into(), None);
    let impostor = Etcd::open(&settings).unwrap().read("secret");
    assert!(matches!(impostor, Err(StoreError::Unavailable { .. })), "{impostor:?}");
}
