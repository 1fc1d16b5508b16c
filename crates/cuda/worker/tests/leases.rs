//! A worker that lets clients in by lease: real session processes, real tokens, a real fence file.

mod support;

use cuda_abi::CudaError;
use cuda_wire::*;
use cuda_worker::*;
use guardian::{Guardian, GuardianConfig, GuardianStore};
use lease_fence::{Fence, LeaseAdmission, Moment, Trust};
use pool_auth::{LeaseClaims, LeaseKey, lease_token};
use std::os::fd::AsFd;
use std::time::Duration;
use support::client::{Client, Target, Told, greet, hello, patterned, read_handshake};
use support::toy::{Toy, ToyStatus};
use transport::{ClientSecurity, ConnectionKind};

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end =
        run_session_process(control, &|_, _| Ok(Box::new(Toy::default())), &|_, _| Ok(Box::new(ToyStatus)));
    std::process::exit(end.kind.exit_code().into());
}

const LATER_MS: u64 = 1_000_000;

struct Slot {
    front: Option<FrontHandle>,
    key: LeaseKey,
    fence: Fence,
    target: Target,
    directory: tempfile::TempDir,
}

impl Slot {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = LeaseKey::make();
        let admission = LeaseAdmission {
            box_name: "box".to_owned(),
            slot: 2,
            trust_file: directory.path().join("trust"),
            fence_file: directory.path().join("fence"),
        };
        let trust = Trust {
            keys: vec![key.public().to_string()],
            manager_ms: 1000,
            at: Moment::now().unwrap(),
            denied: vec![],
        };
        trust.write(&admission.trust_file).unwrap();
        let fence = Fence::new(&admission.fence_file);
        let mut session = SessionConfig::admitting(Admission::Lease(admission));
        session.guardian = Some(directory.path().join("guardian"));
        session.content_bytes_max = 64 << 20;
        let config = FrontConfig {
            addresses: vec![format!("unix:{}/socket", directory.path().display()).parse().unwrap()],
            spawn: SessionSpawn {
                program: std::env::current_exe().unwrap(),
                arguments: ["--exact", "session_process", "--ignored", "--nocapture"]
                    .map(str::to_owned)
                    .to_vec(),
            },
            session,
            grant: std::sync::Arc::new(|| Ok(Grant::plain(serde_json::Value::Null))),
            sessions_max: 16,
            unauthenticated_max: 16,
            preamble_timeout: Duration::from_secs(2),
            hold: Duration::from_secs(2),
            spares: 1,
            executes_ptx_only: false,
        };
        let front = serve_listener(config, |_| {}).unwrap();
        let address = front.addresses()[0].clone();
        let target = Target { address, security: ClientSecurity::Plain, token: String::new() };
        Self { front: Some(front), key, fence, target, directory }
    }

    fn claims(&self, epoch: u64) -> LeaseClaims {
        LeaseClaims {
            lease: format!("l-{epoch:016x}"),
            tenant: "vision".to_owned(),
            box_name: "box".to_owned(),
            slot: 2,
            epoch,
            memory_bytes: 4 << 20,
            share_milli: 1000,
            class: cuda_driver::Class::Dedicated,
            slack_percent: None,
            issued_ms: 1000,
            expires_ms: LATER_MS,
            part: None,
        }
    }

    fn token(&self, claims: &LeaseClaims) -> String {
        lease_token::sign(claims, &self.key).unwrap().reveal().to_owned()
    }

    fn attach(&self, claims: &LeaseClaims) -> Client {
        let (address, security) = (self.target.address.clone(), self.target.security.clone());
        Client::attach(&Target { address, security, token: self.token(claims) }, 1)
    }

    fn knock(&self, token: &str, purpose: u8) -> Handshake {
        self.target.knock(Knock { protocol: PROTOCOL_VERSION, token: token.to_owned(), purpose })
    }

    fn refusal(&self, token: &str) -> CudaError {
        match self.knock(token, purpose::SESSION) {
            Handshake::Refusal(refusal) => CudaError::from_code(refusal.code).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// What a client hears that only wants to look at the devices.
    fn look(&self, token: &str) -> Handshake {
        let ticket = match self.knock(token, purpose::STATUS) {
            Handshake::Ticket(ticket) => ticket.session,
            refusal => return refusal,
        };
        let mut connection = self.target.open(ConnectionKind::Status, 0, ticket).unwrap();
        let hello = Hello { va_candidates: Vec::new(), ..hello(token, 0) };
        connection.tx.send(&[&Handshake::Hello(hello).to_frame()]).unwrap();
        read_handshake(&mut connection.rx).unwrap()
    }
}

#[test]
fn what_a_session_shares_opens_for_its_tenant_alone() {
    let slot = Slot::start();
    // Parts of a lease may belong to tenants that do not know each other.
    let part = |name: &str| LeaseClaims { part: Some(name.to_owned()), ..slot.claims(5) };
    let (mut owner, mut friend) = (slot.attach(&part("ada.1")), slot.attach(&part("ada.2")));
    let shared = owner.must(&Command::MemoryShare { address: 4096, bytes: 77 });
    let name = Shared::from_bytes(&shared).unwrap().name;
    let import = |name| Command::PhysicalImport { handle: MemoryHandleId(1), name, piece: 0 };
    let imported = Imported::from_bytes(&friend.must(&import(name))).unwrap();
    assert_eq!(imported, Imported { offset: 0, bytes: 77, device: 0 });
    let event = owner.must(&Command::EventShare { event: EventId(3) });
    let event = Shared::from_bytes(&event).unwrap().name;
    friend.must(&Command::EventImport { event: EventId(9), context: ContextId(0), name: event });

    let mut stranger = slot.attach(&part("bob.1"));
    let mut refused = |name| {
        let (header, words) = stranger.call(&import(name));
        assert_eq!(header.status, CudaError::INVALID_VALUE.code());
        String::from_utf8(words).unwrap()
    };
    assert!(refused(name).contains("belongs to another lease"));
    assert!(refused(ShareName { key: [0; 16], ..name }).contains("opens nothing"));
    assert!(refused(ShareName { session: [0; 16], ..name }).contains("opens nothing"));
    assert!(refused(ShareName { worker: 1, ..name }).contains("another worker"));
    drop(owner);
}

/// Two tenants with the same weights: the second sends them all, and cannot find out that the first has them.
#[test]
fn one_tenant_does_not_learn_what_another_has_sent() {
    const BYTES: u64 = 3 << 20;
    let slot = Slot::start();
    let attach = |part: &str| {
        let claims = LeaseClaims { part: Some(part.to_owned()), ..slot.claims(5) };
        let (address, security) = (slot.target.address.clone(), slot.target.security.clone());
        let target = Target { address, security, token: slot.token(&claims) };
        let client = Client::attach_with(&target, 2, |hello| hello.wish.content = true);
        let Told::ContentKept(key, blocks) = client.heard() else { panic!("it was not told of content") };
        (client, key, blocks)
    };
    let mut weights = patterned(7, BYTES as usize);
    // The pattern repeats; blocks must differ.
    weights.chunks_mut(1 << 20).enumerate().for_each(|(number, block)| block[0] = number as u8);
    let weights = weights;
    let names = |key: &[u8; 32]| -> Vec<[u8; 32]> {
        weights.chunks(1 << 20).map(|block| *blake3::keyed_hash(key, block).as_bytes()).collect()
    };
    let pull = |client: &mut Client, names: Vec<[u8; 32]>| {
        let (stream, context) = (StreamId(1), ContextId(0));
        client.one_way(&Command::StreamCreate { stream, context, kind: 1, priority: 0 });
        client.one_way(&Command::MemoryAllocate { context, address: client.base, bytes: BYTES });
        let (target, data) = (Plane::line(client.base), HostData::Pulled { transfer: TransferId(1) });
        let op = Op::CopyIn { target, shape: Shape::line(BYTES), data };
        client.one_way(&Command::Enqueue { stream, op });
        assert_eq!(client.heard(), Told::Pull(TransferId(1)));
        client.say(&Notice::ContentNamed { transfer: TransferId(1), first: 0, names });
        match client.heard() {
            Told::ContentLacks(TransferId(1), 0, 3, lacking) => lacking,
            other => panic!("{other:?}"),
        }
    };
    let (mut first, key_of_ada, blocks) = attach("ada.1");
    assert_eq!(blocks, 0);
    assert_eq!(pull(&mut first, names(&key_of_ada)), [0, 1, 2]);
    let source = |offset: u64, target: &mut [u8]| {
        target.copy_from_slice(&weights[offset as usize..][..target.len()]);
    };
    first.lanes.send(TransferId(1), BYTES, &source).unwrap();
    first.must(&Command::StreamSynchronize { stream: StreamId(1) });

    // The worker keeps blocks behind the program's back; it may take a moment.
    let until = std::time::Instant::now() + Duration::from_secs(10);
    let mut number = 2;
    let mut friend = loop {
        let (friend, key, blocks) = attach(&format!("ada.{number}"));
        assert_eq!(key, key_of_ada);
        if blocks == 3 {
            break friend;
        }
        assert!(std::time::Instant::now() < until, "{blocks} of 3 blocks are there");
        number += 1;
    };
    let (mut stranger, key_of_bob, blocks) = attach("bob.1");
    assert_eq!(blocks, 0, "it has nothing of this tenant's");
    assert_ne!(key_of_bob, key_of_ada);
    assert_eq!(pull(&mut stranger, names(&key_of_bob)), [0, 1, 2], "everything travels");
    let (mut spy, _, _) = attach("bob.2");
    assert_eq!(pull(&mut spy, names(&key_of_ada)), [0, 1, 2], "not even with names that leaked");
    assert_eq!(pull(&mut friend, names(&key_of_ada)), [0u32; 0], "nothing travels");
    friend.must(&Command::StreamSynchronize { stream: StreamId(1) });
    let read = Command::ReadBack {
        stream: StreamId(1),
        source: Plane::line(friend.base),
        shape: Shape::line(BYTES),
    };
    assert!(Blob::from_bytes(&friend.must(&read)).unwrap().0 == weights);
}

#[test]
fn the_image_of_a_session_belongs_to_its_lease() {
    let slot = Slot::start();
    let path = slot.directory.path().join("guardian");
    let _guardian = Guardian::start(&GuardianConfig::new(path.clone(), 16 << 20)).unwrap();
    let claims = slot.claims(7);
    let mut client = slot.attach(&claims);
    let (image, secret) = (ImageName { bytes: [1; 16] }, [2; 32]);
    client.must(&Command::Guard { image, secret, incarnation: 5 });
    let store = GuardianStore::connect(&path).unwrap();
    // As long as the image is there, a writer of an older incarnation is shut out.
    store.end_lease("l-8").unwrap();
    assert!(store.open_image(image, &secret, 1, "").is_err());
    store.end_lease(&claims.lease).unwrap();
    assert!(store.open_image(image, &secret, 1, "").is_ok());
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.front.take().unwrap().stop();
    }
}

#[test]
fn the_first_lease_binds_the_slot_before_its_client_is_welcome() {
    let slot = Slot::start();
    let (first, second) = (slot.attach(&slot.claims(5)), slot.attach(&slot.claims(5)));
    assert_eq!(slot.fence.read().unwrap().bound, 5);
    assert_eq!(first.welcome.devices[0].memory_bytes, 1 << 30, "a whole GPU has no limit");
    drop((first, second));

    assert_eq!(slot.refusal(&slot.token(&slot.claims(4))), CudaError::NOT_PERMITTED);
    assert_eq!(slot.refusal(&slot.token(&slot.claims(6))), CudaError::SYSTEM_NOT_READY, "try again");
    slot.fence.clean(5).unwrap();
    assert_eq!(slot.refusal(&slot.token(&slot.claims(5))), CudaError::NOT_PERMITTED, "its time is over");
    drop(slot.attach(&slot.claims(6)));
    assert_eq!(slot.fence.read().unwrap().bound, 6);
}

#[test]
fn wrong_tokens_open_nothing_and_bind_nothing() {
    let slot = Slot::start();
    let claims = slot.claims(5);
    let stranger = lease_token::sign(&claims, &LeaseKey::make()).unwrap();
    let wrong = [
        String::new(),
        "secret".to_owned(),
        stranger.reveal().to_owned(),
        slot.token(&LeaseClaims { slot: 3, ..claims.clone() }),
        slot.token(&LeaseClaims { box_name: "other".to_owned(), ..claims.clone() }),
        slot.token(&LeaseClaims { expires_ms: 900, ..claims.clone() }),
    ];
    for token in &wrong {
        assert_eq!(slot.refusal(token), CudaError::NOT_PERMITTED, "{token}");
        assert!(matches!(slot.look(token), Handshake::Refusal(_)), "{token}");
    }
    assert_eq!(slot.fence.read().unwrap().bound, 0);
}

#[test]
fn who_only_looks_needs_the_lease_too() {
    let slot = Slot::start();
    assert!(matches!(slot.look(&slot.token(&slot.claims(5))), Handshake::StatusWelcome(_)));
    slot.fence.clean(5).unwrap();
    assert!(matches!(slot.look(&slot.token(&slot.claims(5))), Handshake::Refusal(_)));
}

#[test]
fn a_share_has_no_more_memory_than_it_paid_for() {
    let slot = Slot::start();
    let share = LeaseClaims { share_milli: 500, ..slot.claims(5) };
    assert_eq!(slot.attach(&share).welcome.devices[0].memory_bytes, 4 << 20);
}

#[test]
fn programs_of_a_lease_choose_their_class_and_parts_of_it_do_not() {
    let slot = Slot::start();
    let wish = |claims: &LeaseClaims, class: cuda_driver::Class| {
        let (address, security) = (slot.target.address.clone(), slot.target.security.clone());
        let target = Target { address, security, token: slot.token(claims) };
        let wish = AppendedWish { class: class.code(), ..AppendedWish::default() };
        let (_connection, answer) =
            greet(&target, target.ticket(purpose::SESSION), Hello { wish, ..hello(&target.token, 1) });
        match answer.unwrap() {
            // This worker's driver has no page: a wish that counts is refused.
            Handshake::Refusal(refusal) => CudaError::from_code(refusal.code),
            _ => None,
        }
    };
    use cuda_driver::Class;
    let wish_online = |claims: &LeaseClaims| wish(claims, Class::Online);
    assert_eq!(wish(&slot.claims(5), Class::Dedicated), None);
    assert_eq!(wish_online(&slot.claims(5)), Some(CudaError::NOT_SUPPORTED));
    // The class of a token counts, whatever the program says.
    for class in [Class::Online, Class::Offline] {
        let classed = LeaseClaims { class, ..slot.claims(5) };
        assert_eq!(wish(&classed, Class::Dedicated), Some(CudaError::NOT_SUPPORTED), "{class}");
    }
    let part = LeaseClaims { part: Some("ada.1".to_owned()), ..slot.claims(5) };
    assert_eq!(wish_online(&part), None);
}

#[test]
fn parts_of_one_lease_have_the_memory_of_their_tokens_and_each_has_one_session() {
    let slot = Slot::start();
    let part = |name: &str, memory_bytes| LeaseClaims {
        part: Some(name.to_owned()),
        memory_bytes,
        ..slot.claims(5)
    };
    let small = slot.attach(&part("ada.1", 1 << 20));
    let large = slot.attach(&part("ada.2", 2 << 20));
    assert_eq!(small.welcome.devices[0].memory_bytes, 1 << 20);
    assert_eq!(large.welcome.devices[0].memory_bytes, 2 << 20);
    let (address, security) = (slot.target.address.clone(), slot.target.security.clone());
    let again = Target { address, security, token: slot.token(&part("ada.1", 1 << 20)) };
    let try_again = || {
        let (_connection, answer) = greet(&again, again.ticket(purpose::SESSION), hello(&again.token, 1));
        match answer.unwrap() {
            Handshake::Refusal(refusal) => CudaError::from_code(refusal.code),
            _ => None,
        }
    };
    assert_eq!(try_again(), Some(CudaError::SYSTEM_NOT_READY));
    drop(small);
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while try_again().is_some() {
        assert!(std::time::Instant::now() < until, "its part is free when its session has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}
