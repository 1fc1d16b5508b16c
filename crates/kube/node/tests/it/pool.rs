//! A pool: one manager, and boxes that do what they are told.

use pool_api::{
    AccessKind, BoxKind, BoxReport, GpuReport, Health, Lease, LeaseRequest, Model, Name, NewToken,
    TokenRequest, Want,
};
use pool_auth::{Credential, Identity, NewKey, Secret};
use pool_client::{Client, Patience};
use pool_manager::{Manager, Settings};
use pool_store::Sqlite;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Only a test that fails waits for so long.
pub(crate) const HANG: Duration = Duration::from_secs(120);
/// The tenant of controller and node.
const USER: &str = "spiffe://dxpu/tenant/vision/kube";

pub(crate) struct Pool {
    _manager: Manager,
    admin: Client,
    user: Credential,
}

impl Pool {
    pub(crate) fn start(folder: &Path) -> Self {
        let admin_file = folder.join("admin.json");
        let manager = Manager::start(Settings {
            name: "m".to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            store: Arc::new(Sqlite::open(folder.join("pool.db")).unwrap()),
            admin_file: admin_file.clone(),
            clock: pool_manager::Clock::start(),
            leader_ttl: Duration::from_secs(10),
            ledger: pool::Settings::default(),
            audit_keep: 1000,
            certificate_life: pool_manager::CERTIFICATE_LIFE,
            connections_max: 100,
        })
        .unwrap();
        until("a manager leads", || manager.is_leading());
        let credential: Credential = serde_json::from_slice(&std::fs::read(&admin_file).unwrap()).unwrap();
        let admin = Client::new(credential, Patience::default()).unwrap();
        let token = token(&admin, AccessKind::User, USER);
        let user =
            Credential { identity: USER.parse().unwrap(), token: Some(token), ..admin.credential().clone() };
        Self { _manager: manager, admin, user }
    }

    /// As the controller and the node are known to the pool.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.user.clone(), Patience::ONCE).unwrap()
    }

    /// What the controller does when it sees that a claim is allocated.
    pub(crate) fn lease_for(&self, uid: &str, gpus: u32) -> Lease {
        let key = kube_claims::lease_key(uid);
        // As long-lived as a test: who renews it is not what most tests are about.
        let request = LeaseRequest { gpus, label: key.clone(), ttl_ms: 600_000, ..LeaseRequest::default() };
        self.client().create_lease(&request, &key).unwrap()
    }

    pub(crate) fn lease(&self, lease: &Lease) -> Lease {
        self.client().get(&format!("/v1/leases/{}", lease.id), Duration::ZERO).unwrap()
    }

    /// Whether a request waits in the manager for a change.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.admin.get_text("/metrics").unwrap().contains("dxpu_requests_waiting 1\n")
    }

    /// A box that reports until it is dropped.
    pub(crate) fn join(&self, name: &str, slots: u8) -> GpuBox {
        let token = token(&self.admin, AccessKind::Join, &format!("spiffe://dxpu/box/{name}"));
        let base = self.admin.credential();
        let key = NewKey::make().unwrap();
        let name = Name::new(name).unwrap();
        let joining = Client::to_join(base.managers.clone(), base.authority.clone()).unwrap();
        let answer = joining.join(&name, &token, &key.request_pem).unwrap();
        let credential = Credential {
            managers: base.managers.clone(),
            authority: answer.ca_certificate,
            identity: Identity::Box(name.to_string()),
            token: None,
            certificate: Some(answer.certificate),
            key: Some(key.key_pem),
        };
        let client = Client::new(credential, Patience::ONCE).unwrap();
        let gpu = |slot| GpuReport {
            slot,
            model: Model::new("H200").unwrap(),
            memory_bytes: 141 << 30,
            uuid: format!("GPU-{name}-{slot}"),
            nvlink_group: None,
            only_pcie: false,
            guest: None,
            part: None,
            health: Health::OK,
            bound_epoch: 0,
            cleaned_epoch: 0,
            ready: true,
            unready: None,
            endpoints: vec![format!("tls:127.0.0.1:{}", 7000 + u16::from(slot))],
            counters: None,
            burn_in: None,
            must_leave: false,
            sharing: None,
        };
        let report = BoxReport {
            agent: format!("agent-of-{name}"),
            sequence: 0,
            kind: BoxKind::Pcie,
            rack: String::new(),
            paths: vec!["127.0.0.1".into()],
            gpus: (0..slots).map(gpu).collect(),
            guard: None,
        };
        let shared = Arc::new(Mutex::new(report));
        let is_over = Arc::new(AtomicBool::new(false));
        let (report, over) = (shared.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                let said = {
                    let mut report = report.lock().unwrap();
                    report.sequence += 1;
                    report.clone()
                };
                // A manager that is being stopped answers nothing.
                if let Ok(orders) = client.report(&name, &said, Duration::ZERO) {
                    for order in &orders.slots {
                        let mut report = report.lock().unwrap();
                        let gpu = report.gpus.iter_mut().find(|gpu| gpu.slot == order.slot).unwrap();
                        if let Want::Clean { epoch } = order.want {
                            gpu.cleaned_epoch = epoch;
                        }
                    }
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let joined = GpuBox { report: shared, is_over, thread: Some(thread) };
        let free = || -> usize {
            let page: pool_api::Page<pool_api::Gpu> = self.admin.get("/v1/gpus", Duration::ZERO).unwrap();
            page.items.iter().filter(|gpu| gpu.state == pool_api::GpuState::Free).count()
        };
        until("its GPUs are free", || free() >= usize::from(slots));
        joined
    }
}

fn token(admin: &Client, kind: AccessKind, identity: &str) -> Secret {
    let request =
        TokenRequest { kind, identity: identity.to_owned(), ttl_ms: 3_600_000, note: String::new() };
    let made: NewToken = admin.post("/v1/tokens", &request, None, Duration::ZERO).unwrap();
    Secret::new(made.token)
}

/// A box that does at once whatever it is told.
pub(crate) struct GpuBox {
    report: Arc<Mutex<BoxReport>>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl GpuBox {
    /// From now on the GPU of a slot is broken.
    pub(crate) fn break_gpu(&self, slot: u8, reason: &str) {
        let mut report = self.report.lock().unwrap();
        let gpu = report.gpus.iter_mut().find(|gpu| gpu.slot == slot).unwrap();
        gpu.health = Health { ok: false, reason: Some(reason.to_owned()) };
    }
}

impl Drop for GpuBox {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANG, "not so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
