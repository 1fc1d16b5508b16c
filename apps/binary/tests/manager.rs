//! The real `dxpu manager`, killed with -9 again and again while boxes report and borrowers come and go.
//!
//! The boxes are threads here that keep to the rules of a box: a slot admits a borrower that shows a token for it
//! with a newer epoch than it has seen, once it has cleaned up after the one before. The checker is the slot itself:
//! it fails the test when a borrower is admitted while another is still there.

#![allow(missing_docs, reason = "tests")]

use pool_api::{
    AccessKind, AuditBooks, AuditEntry, BoxKind, BoxReport, GpuId, GpuReport, GpuState, Health, LeaseRequest,
    LeaseState, Model, Name, NewToken, Page, TokenRequest, Want,
};
use pool_auth::{Credential, Identity, LeasePublicKey, NewKey, Secret, lease_token};
use pool_client::{Client, ClientError, Patience, idempotency_key};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BOXES: usize = 3;
const SLOTS: u8 = 4;
const BORROWERS: usize = 8;
const KILLS: u32 = 6;

struct Manager {
    process: Child,
    address: String,
    folder: PathBuf,
    _said: BufReader<ChildStdout>,
}

impl Manager {
    fn start(folder: &Path, port: u16) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_dxpu"))
            .args(["manager", "--name", "m1", "--leader-ttl", "1s", "--listen", &format!("127.0.0.1:{port}")])
            .arg("--state-dir")
            .arg(folder)
            .env("DXPU_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line
            .trim_end()
            .strip_prefix("manager listening at ")
            .expect("it says where it listens")
            .to_owned();
        Self { process, address, folder: folder.to_owned(), _said: said }
    }

    fn credential(&self) -> Credential {
        serde_json::from_slice(&std::fs::read(self.folder.join("admin.json")).unwrap()).unwrap()
    }

    /// Not a request to stop: the end.
    fn kill(self) {
        drop(self);
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A free port, below those that the system gives to connecting sockets: clients that try to reach a killed manager
/// must not be given its port.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (std::process::id().wrapping_mul(37).wrapping_add(next)) % 12_000;
        let port = u16::try_from(port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn patient() -> Patience {
    Patience { per_try: Duration::from_secs(2), in_all: Duration::from_secs(30) }
}

/// A slot, as its box keeps it.
#[derive(Default)]
struct Slot {
    bound_epoch: u64,
    cleaned_epoch: u64,
    /// The lease inside, with its epoch.
    inside: Option<(String, u64)>,
}

struct SimulatedBox {
    name: Name,
    client: Client,
    slots: Mutex<BTreeMap<u8, Slot>>,
    /// What it last heard: keys, and the manager's time.
    heard: Mutex<(Vec<LeasePublicKey>, u64)>,
    sequence: AtomicU64,
}

impl SimulatedBox {
    fn join(admin: &Client, name: &str) -> Arc<Self> {
        let token = make_token(admin, AccessKind::Join, &format!("spiffe://dxpu/box/{name}"));
        let (name, key) = (Name::new(name).unwrap(), NewKey::make().unwrap());
        let base = admin.credential();
        let joining = Client::to_join(base.managers.clone(), base.authority.clone()).unwrap();
        let answer = joining.join(&name, &token, &key.request_pem).unwrap();
        let credential = Credential {
            identity: Identity::Box(name.to_string()),
            token: None,
            certificate: Some(answer.certificate),
            key: Some(key.key_pem),
            ..base.clone()
        };
        let slots = (0..SLOTS).map(|slot| (slot, Slot::default())).collect();
        Arc::new(Self {
            name,
            client: Client::new(credential, Patience::ONCE).unwrap(),
            slots: Mutex::new(slots),
            heard: Mutex::default(),
            sequence: AtomicU64::new(0),
        })
    }

    fn turn(&self) -> Result<(), ClientError> {
        let report = BoxReport {
            agent: "test".into(),
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            kind: BoxKind::Pcie,
            rack: String::new(),
            paths: Vec::new(),
            gpus: self.slots.lock().unwrap().iter().map(|(slot, state)| self.gpu(*slot, state)).collect(),
            guard: None,
        };
        let orders = self.client.report(&self.name, &report, Duration::ZERO)?;
        *self.heard.lock().unwrap() =
            (orders.lease_keys.iter().map(|key| key.parse().unwrap()).collect(), orders.now_ms);
        let mut slots = self.slots.lock().unwrap();
        for order in orders.slots {
            let slot = slots.get_mut(&order.slot).unwrap();
            if let Want::Clean { epoch } = order.want {
                // Kill the session inside, scrub, and never let anything so old in again.
                if slot.inside.as_ref().is_some_and(|(_, inside)| *inside <= epoch) {
                    slot.inside = None;
                }
                slot.cleaned_epoch = slot.cleaned_epoch.max(epoch);
                slot.bound_epoch = slot.bound_epoch.max(epoch);
            }
        }
        Ok(())
    }

    fn gpu(&self, slot: u8, state: &Slot) -> GpuReport {
        GpuReport {
            slot,
            model: Model::new("H200").unwrap(),
            memory_bytes: 1 << 30,
            uuid: format!("GPU-{}-{slot}", self.name),
            nvlink_group: None,
            only_pcie: false,
            guest: None,
            part: None,
            health: Health::OK,
            bound_epoch: state.bound_epoch,
            cleaned_epoch: state.cleaned_epoch,
            ready: true,
            unready: None,
            endpoints: Vec::new(),
            counters: None,
            burn_in: None,
            must_leave: false,
            sharing: None,
        }
    }

    /// A borrower shows its token. Panics when two would be in at once.
    fn admit(&self, slot: u8, token: &str) -> Result<u64, String> {
        let (keys, now_ms) = self.heard.lock().unwrap().clone();
        let claims = lease_token::verify(token, &keys, self.name.as_str(), u16::from(slot), now_ms)
            .map_err(|refusal| refusal.to_string())?;
        let mut slots = self.slots.lock().unwrap();
        let state = slots.get_mut(&slot).unwrap();
        if claims.epoch < state.bound_epoch || claims.epoch <= state.cleaned_epoch {
            return Err("stale".into());
        }
        if claims.epoch > state.bound_epoch && state.cleaned_epoch < state.bound_epoch {
            return Err("not clean yet".into());
        }
        if let Some((lease, epoch)) = &state.inside {
            assert_eq!((lease, *epoch), (&claims.lease, claims.epoch), "two holders of {}/{slot}", self.name);
        }
        state.bound_epoch = claims.epoch;
        state.inside = Some((claims.lease.clone(), claims.epoch));
        Ok(claims.epoch)
    }

    fn leave(&self, slot: u8, epoch: u64) {
        let mut slots = self.slots.lock().unwrap();
        let state = slots.get_mut(&slot).unwrap();
        if state.inside.as_ref().is_some_and(|(_, inside)| *inside == epoch) {
            state.inside = None;
        }
    }
}

fn make_token(admin: &Client, kind: AccessKind, identity: &str) -> Secret {
    let request =
        TokenRequest { kind, identity: identity.to_owned(), ttl_ms: 3_600_000, note: String::new() };
    let made: NewToken = admin.post("/v1/tokens", &request, None, Duration::ZERO).unwrap();
    Secret::new(made.token)
}

/// Borrows, uses and gives back until told to stop. Every answer that said "granted" must stay true.
fn borrow(client: &Client, boxes: &BTreeMap<Name, Arc<SimulatedBox>>, stop: &AtomicBool, gpus: u32) -> u64 {
    let mut granted = 0;
    while !stop.load(Ordering::Relaxed) {
        let request = LeaseRequest { gpus, ttl_ms: 30_000, ..LeaseRequest::default() };
        let mut lease = client.create_lease(&request, &idempotency_key()).unwrap();
        while lease.state == LeaseState::Pending {
            lease = client.wait_for_lease(lease.id, lease.version, Duration::from_secs(2)).unwrap();
        }
        assert_eq!((lease.state, lease.grants.len()), (LeaseState::Granted, gpus as usize));
        granted += 1;
        let tokens = client.lease_tokens(lease.id).unwrap();
        let mut inside: Vec<(GpuId, u64)> = Vec::new();
        for grant in &tokens.grants {
            let gpu_box = &boxes[&grant.gpu.box_name];
            let began = Instant::now();
            let epoch = loop {
                match gpu_box.admit(grant.gpu.slot, &grant.token) {
                    Ok(epoch) => break epoch,
                    // A box that has not heard the keys yet, or has not cleaned yet, lets in soon.
                    Err(why) => assert!(began.elapsed() < Duration::from_secs(10), "{}: {why}", grant.gpu),
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            inside.push((grant.gpu.clone(), epoch));
        }
        std::thread::sleep(Duration::from_millis(20));
        // Whatever happened to the manager meanwhile: what it granted is granted.
        let now = client.renew_lease(lease.id).unwrap();
        assert_eq!(
            (now.state, &now.grants),
            (LeaseState::Granted, &lease.grants),
            "a granted lease was lost"
        );
        inside.into_iter().for_each(|(gpu, epoch)| boxes[&gpu.box_name].leave(gpu.slot, epoch));
        client.release_lease(lease.id).unwrap();
    }
    granted
}

/// Ends the threads of a test that fails, which would otherwise wait for each other for ever.
struct StopAll<'a>([&'a AtomicBool; 2]);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
    }
}

#[test]
fn a_manager_killed_under_load_loses_nothing_and_lends_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let manager = Manager::start(folder.path(), port);
    let admin = Client::new(manager.credential(), patient()).unwrap();
    assert_eq!(manager.address, admin.credential().managers[0]);
    let boxes: BTreeMap<Name, Arc<SimulatedBox>> = (0..BOXES)
        .map(|index| SimulatedBox::join(&admin, &format!("box{index}")))
        .map(|gpu_box| (gpu_box.name.clone(), gpu_box))
        .collect();
    let (stop, stop_boxes) = (AtomicBool::new(false), AtomicBool::new(false));
    let clients: Vec<Client> = (0..BORROWERS)
        .map(|index| {
            let identity = format!("spiffe://dxpu/tenant/t{}/user{index}", index % 3);
            let token = make_token(&admin, AccessKind::User, &identity);
            let credential = Credential {
                identity: identity.parse().unwrap(),
                token: Some(token),
                ..admin.credential().clone()
            };
            Client::new(credential, patient()).unwrap()
        })
        .collect();

    let (granted, outages, manager) = std::thread::scope(|scope| {
        let mut manager = manager;
        let _stop_all = StopAll([&stop, &stop_boxes]);
        for gpu_box in boxes.values() {
            scope.spawn(|| {
                while !stop_boxes.load(Ordering::Relaxed) {
                    let _ = gpu_box.turn();
                    std::thread::sleep(Duration::from_millis(30));
                }
            });
        }
        let borrowers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(index, client)| {
                let (boxes, stop) = (&boxes, &stop);
                scope.spawn(move || borrow(client, boxes, stop, 1 + index as u32 % 2))
            })
            .collect();
        let mut outages = Vec::new();
        for round in 0..KILLS {
            std::thread::sleep(Duration::from_millis(400 + 137 * u64::from(round % 4)));
            manager.kill();
            let killed = Instant::now();
            manager = Manager::start(folder.path(), port);
            // The next grant for a new request.
            let lease = admin.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
            outages.push(killed.elapsed());
            admin.release_lease(lease.id).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        let granted: u64 = borrowers.into_iter().map(|borrower| borrower.join().unwrap()).sum();

        // Nothing leaks: soon every GPU is free again.
        let began = Instant::now();
        loop {
            let page: Page<pool_api::Gpu> = admin.get("/v1/gpus", Duration::ZERO).unwrap();
            assert_eq!(page.items.len(), BOXES * usize::from(SLOTS));
            if page.items.iter().all(|gpu| gpu.state == GpuState::Free && gpu.holders.is_empty()) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "GPUs leak: {:#?}", page.items);
            std::thread::sleep(Duration::from_millis(100));
        }
        stop_boxes.store(true, Ordering::Relaxed);
        (granted, outages, manager)
    });
    assert!(granted > u64::from(KILLS), "{granted} grants");
    let leases: Page<pool_api::Lease> = admin.get("/v1/leases?limit=1000", Duration::ZERO).unwrap();
    assert!(leases.items.iter().all(|lease| lease.state == LeaseState::Ended), "every lease ends");
    println!("{granted} grants, outages {outages:?}");

    // The trail is whole, across all those ends.
    let verified = Command::new(env!("CARGO_BIN_EXE_dxpu"))
        .args(["audit", "verify", "--credential"])
        .arg(folder.path().join("admin.json"))
        .output()
        .unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let trail: AuditBooks = admin.get("/v1/audit/books", Duration::ZERO).unwrap();
    let has_leases = trail.books.iter().any(|book| {
        let path = format!("/v1/audit?limit=1000&book={}", book.name);
        let page: Page<AuditEntry> = admin.get(&path, Duration::ZERO).unwrap();
        page.items.iter().any(|entry| entry.action == "lease.create")
    });
    assert!(has_leases, "{trail:?}");
    manager.kill();
}

#[test]
fn a_manager_asked_to_stop_resigns_and_secrets_stay_out_of_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut process = Command::new(env!("CARGO_BIN_EXE_dxpu"))
        .args(["manager", "--name", "m1", "--listen", "127.0.0.1:0", "--state-dir"])
        .arg(folder.path().join("state"))
        .env("DXPU_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.starts_with("manager listening at ")).expect("it listens");
    let text = std::fs::read(folder.path().join("state/admin.json")).unwrap();
    let credential: Credential = serde_json::from_slice(&text).unwrap();
    let admin = Client::new(credential.clone(), patient()).unwrap();
    let token = make_token(&admin, AccessKind::User, "spiffe://dxpu/viewer/wall");
    let pid = rustix::process::Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let began = Instant::now();
    assert!(process.wait().unwrap().success());
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let log = std::fs::read_to_string(log).unwrap();
    let admins = credential.token.unwrap();
    for secret in [admins.reveal(), token.reveal()] {
        let secret = secret.rsplit('.').next().unwrap();
        assert!(!log.contains(secret), "a token is in the log");
    }
    assert!(!log.contains("PRIVATE KEY"));
    // The next manager leads at once, because the last one has resigned.
    let again = Manager::start(&folder.path().join("state"), free_port());
    let mut credential = again.credential();
    credential.managers = vec![again.address.clone()];
    let client = Client::new(credential, patient()).unwrap();
    client.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    again.kill();
}

fn dxpu(arguments: &[&str], folder: &Path) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_dxpu"))
        .arg("manager")
        .args(arguments)
        .arg("--state-dir")
        .arg(folder)
        .env("DXPU_LOG", "warn")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// A running manager is backed up; another one goes on from the file, and the admin's credential is good there.
#[test]
fn a_backup_of_a_running_manager_is_restored_elsewhere() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (first, second, empty) =
        (folder.path().join("first"), folder.path().join("second"), folder.path().join("empty"));
    let file = folder.path().join("pool.backup");
    let path = file.to_str().unwrap();
    let (code, said) = dxpu(&["backup", "--out", path], &empty);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("there is no store at") && !empty.join("pool.db").exists(), "{said}");

    let port = free_port();
    let manager = Manager::start(&first, port);
    let admin = Client::new(manager.credential(), Patience::default()).unwrap();
    let before: Page<pool_api::TokenInfo> = admin.get("/v1/tokens", Duration::ZERO).unwrap();
    let (code, said) = dxpu(&["backup", "--out", path], &first);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, said) = dxpu(&["restore", "--from", path, "--replace"], &first);
    assert_eq!(code, Some(65), "{said}");
    assert!(said.contains("a manager leads on this store") && said.contains("stop all managers"), "{said}");
    manager.kill();

    let (code, said) = dxpu(&["restore", "--from", path], &second);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("restored the pool as it was at") && said.contains("what to do next:"), "{said}");
    let (code, said) = dxpu(&["restore", "--from", path], &second);
    assert_eq!(code, Some(65), "{said}");
    assert!(said.contains("the store is not empty") && said.contains("--replace"), "{said}");
    let running = Manager::start(&second, port);
    let after: Page<pool_api::TokenInfo> = admin.get("/v1/tokens", Duration::ZERO).unwrap();
    assert_eq!(before.items, after.items);
    running.kill();

    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 9]).unwrap();
    let (code, said) = dxpu(&["restore", "--from", path, "--replace"], &second);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("this is no whole backup of dxpu"), "{said}");
}
