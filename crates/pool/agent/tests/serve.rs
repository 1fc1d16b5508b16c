//! The agents through their interface, with a real manager: they join, report, are revoked, and say why they do not start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use machine::files::{self, FileError};
use pool_agent::gpu_box::{self, BoxOptions, BoxStarted, BoxStop, Carried, Gpus};
use pool_agent::host::{self, HostOptions, HostStarted};
use pool_agent::{AgentError, Joining, Role};
use pool_api::{
    AccessKind, BoxRecord, Gpu, GpuState, HostDetail, Model, Name, NewToken, Page, RevocationDone,
    RevocationRequest, TokenRequest,
};
use pool_auth::{Credential, Secret};
use pool_client::{Client, Patience};
use pool_manager::{Manager, Settings};
use pool_store::Sqlite;

/// Far more than anything here takes; only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);

struct Pool {
    admin: Client,
    folder: tempfile::TempDir,
    _manager: Manager,
}

impl Pool {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let admin_file = folder.path().join("admin.json");
        let manager = Manager::start(Settings {
            name: "m".to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            store: Arc::new(Sqlite::open(folder.path().join("pool.db")).unwrap()),
            admin_file: admin_file.clone(),
            clock: pool_manager::Clock::start(),
            leader_ttl: Duration::from_secs(10),
            ledger: pool::Settings::default(),
            audit_keep: 1000,
            certificate_life: pool_manager::CERTIFICATE_LIFE,
            connections_max: 100,
        });
        let manager = manager.unwrap();
        let credential = serde_json::from_str(&files::read_secret(&admin_file).unwrap()).unwrap();
        let admin = Client::new(credential, Patience::default()).unwrap();
        until("a manager leads", || manager.is_leading());
        Self { admin, folder, _manager: manager }
    }

    /// What an admin hands to a machine.
    fn token(&self, identity: &str) -> Secret {
        let request = TokenRequest {
            kind: AccessKind::Join,
            identity: identity.to_owned(),
            ttl_ms: 3_600_000,
            note: String::new(),
        };
        let made: NewToken = self.admin.post("/v1/tokens", &request, None, Duration::ZERO).unwrap();
        let credential = Credential {
            identity: identity.parse().unwrap(),
            token: Some(Secret::new(made.token)),
            certificate: None,
            key: None,
            ..self.admin.credential().clone()
        };
        Secret::new(serde_json::to_string(&credential).unwrap())
    }

    fn free_gpus(&self) -> usize {
        let page: Page<Gpu> = self.admin.get("/v1/gpus", Duration::ZERO).unwrap();
        page.items.iter().filter(|gpu| gpu.state == GpuState::Free).count()
    }

    /// When the box last reported, by the manager's clock.
    fn last_seen_ms(&self) -> u64 {
        let page: Page<BoxRecord> = self.admin.get("/v1/boxes", Duration::ZERO).unwrap();
        page.items.first().map_or(0, |record| record.last_seen_ms)
    }

    fn revoke(&self, identity: &str) {
        let request = RevocationRequest {
            subject: identity.to_owned(),
            reason: "stolen".to_owned(),
            alone: false,
            keep_leases: false,
            include_own: false,
        };
        let _: RevocationDone = self.admin.post("/v1/revocations", &request, None, Duration::ZERO).unwrap();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn box_options(state: PathBuf, gpus: Gpus) -> BoxOptions {
    BoxOptions {
        joining: Joining::default(),
        kind: None,
        rack: String::new(),
        gpus,
        state,
        listen: "127.0.0.1".to_owned(),
        advertise: None,
        port: 0,
        fabric: Vec::new(),
        spin: Duration::ZERO,
        devices: Vec::new(),
        carried: Carried { program: &[], client_environment: |_| Ok(Vec::new()) },
        guard: None,
        guests: None,
        shares: None,
    }
}

fn host_options(state: PathBuf) -> HostOptions {
    HostOptions {
        joining: Joining::default(),
        slots: 2,
        fabric: vec!["127.0.0.1:0".parse().unwrap()],
        qmp: None,
        ports: "rp".to_owned(),
        sockets: None,
        guest_waits: None,
        msix: false,
        spin: Duration::ZERO,
        state,
    }
}

fn soft() -> Gpus {
    Gpus::Soft { count: 1, memory_bytes: 1 << 30, model: Model::new("soft").unwrap() }
}

/// Why a box does not even start.
fn refusal(options: &BoxOptions) -> anyhow::Error {
    gpu_box::serve(options, &mut |started| panic!("{started:?}"), &mut || Some(BoxStop::EndWorkers))
        .unwrap_err()
}

fn simulated(folder: &Path, join: Option<&Secret>) -> BoxOptions {
    let plan = folder.join("plan.json");
    let text =
        r#"{"boxes":[{"name":"a","kind":"nvlink","gpus":[{"model":"H200","memory":"99","count":2}]}]}"#;
    std::fs::write(&plan, text).unwrap();
    let gpus = Gpus::Simulated { plan, read_bytes: |text| Ok(text.parse()?) };
    let joining = Joining { token: join.cloned(), ..Joining::default() };
    BoxOptions { joining, ..box_options(folder.join("state"), gpus) }
}

#[test]
fn a_machine_that_cannot_be_a_member_is_told_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let options = BoxOptions {
        joining: Joining { name: Some(Name::new("a").unwrap()), ..Joining::default() },
        ..box_options(folder.path().join("box"), soft())
    };
    let error = refusal(&options);
    let Some(AgentError::NoMember { role: Role::Box, name }) = error.downcast_ref() else {
        panic!("{error}")
    };
    assert_eq!(name, "a");
    let token = Some(Secret::new("a token without its authority"));
    let joining = Joining { token, ..options.joining.clone() };
    let error = refusal(&BoxOptions { joining, ..box_options(folder.path().join("box"), soft()) });
    assert!(matches!(error.downcast_ref(), Some(AgentError::NoAuthority)), "{error}");
    let error = host::serve(&host_options(folder.path().join("host")), &mut |_| {}, &mut || true);
    let error = error.unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(AgentError::NoMember { role: Role::Host, .. })), "{error}");
}

#[test]
fn no_host_is_told_to_send_to_every_address() {
    let folder = tempfile::tempdir().unwrap();
    let fabric = vec!["0.0.0.0:7601".parse().unwrap()];
    let error = refusal(&BoxOptions { fabric, ..box_options(folder.path().to_owned(), soft()) });
    assert!(matches!(error.downcast_ref(), Some(AgentError::NoAddress { role: Role::Box, .. })), "{error}");
}

#[test]
fn a_directory_has_one_agent() {
    let folder = tempfile::tempdir().unwrap();
    let _other = files::only_one(folder.path()).unwrap();
    let error = refusal(&box_options(folder.path().to_owned(), soft()));
    assert!(matches!(error.downcast_ref(), Some(FileError::Kept(_))), "{error}");
}

#[test]
fn slots_are_broken_and_healed_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let error = gpu_box::break_slot(folder.path(), 3, "why").unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(AgentError::NoSlot { slot: 3, .. })), "{error}");
    let slot = folder.path().join("slot-3");
    std::fs::create_dir(&slot).unwrap();
    gpu_box::break_slot(folder.path(), 3, "why").unwrap();
    assert_eq!(std::fs::read_to_string(slot.join("broken")).unwrap(), "why");
    gpu_box::heal_slot(folder.path(), 3).unwrap();
    gpu_box::heal_slot(folder.path(), 3).unwrap();
    assert!(!slot.join("broken").exists());
}

#[test]
fn a_box_joins_once_comes_back_without_its_token_and_leaves_when_it_is_revoked() {
    let pool = Pool::new();
    let identity = "spiffe://dxpu/box/a";
    let token = pool.token(identity);
    let started = BoxStarted { name: Name::new("a").unwrap(), slots: 2 };
    for join in [Some(&token), None] {
        let (mut told, before, began) = (Vec::new(), pool.last_seen_ms(), Instant::now());
        let mut stop = || {
            assert!(began.elapsed() < PATIENCE, "{} GPUs are free", pool.free_gpus());
            (pool.last_seen_ms() > before && pool.free_gpus() == 2).then_some(BoxStop::EndWorkers)
        };
        gpu_box::serve(&simulated(pool.folder.path(), join), &mut |one| told.push(one), &mut stop).unwrap();
        assert_eq!(told, std::slice::from_ref(&started));
    }
    let membership = pool.folder.path().join("state/a/membership.json");
    assert!(membership.exists());
    let (began, is_revoked) = (Instant::now(), AtomicBool::new(false));
    let mut stop = || {
        if !is_revoked.swap(true, Ordering::Relaxed) {
            pool.revoke(identity);
        }
        // Only if the agent does not end by itself.
        (began.elapsed() > PATIENCE).then_some(BoxStop::EndWorkers)
    };
    let ended = gpu_box::serve(&simulated(pool.folder.path(), None), &mut |_| {}, &mut stop);
    let error = ended.unwrap_err();
    let Some(AgentError::Revoked { role: Role::Box, reason }) = error.downcast_ref() else {
        panic!("{error}")
    };
    assert!(reason.contains("stolen"), "{reason}");
    assert!(!membership.exists(), "the key is of no use any more, and must not be to a thief");
}

#[test]
fn a_host_joins_once_and_reports_its_empty_slots_under_the_same_name_again() {
    let pool = Pool::new();
    let token = pool.token("spiffe://dxpu/host/hv-7");
    for token in [Some(token), None] {
        let joining = Joining { token, ..Joining::default() };
        let options = HostOptions { joining, ..host_options(pool.folder.path().join("host")) };
        let (mut told, began) = (None, Instant::now());
        let mut stop = || {
            let found = pool.admin.get::<HostDetail>("/v1/hosts/hv-7", Duration::ZERO);
            assert!(began.elapsed() < PATIENCE, "{found:?}");
            let is_reached = |host: HostDetail| host.record.paths[0].starts_with("udp:127.0.0.1:");
            found.is_ok_and(|host| host.slots.len() == 2 && is_reached(host))
        };
        host::serve(&options, &mut |started| told = Some(started), &mut stop).unwrap();
        let sockets = pool.folder.path().join("host/slots");
        assert_eq!(told, Some(HostStarted { name: Name::new("hv-7").unwrap(), slots: 2, sockets }));
    }
}
