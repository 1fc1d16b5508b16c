//! A pool of one real manager with boxes that do as they are told, a stand-in of the API server, and controllers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kube_claims::{Nodes, Terms};
use kube_controller::{Cluster, Election, Pace, Settings};
use pool_api::{
    AccessKind, BoxKind, BoxReport, GpuReport, Health, Lease, Model, Name, NewToken, TokenRequest, Want,
};
use pool_auth::{Credential, Identity, NewKey, Secret};
use pool_client::{Client, Patience};
use pool_manager::Manager;
use pool_store::{Sqlite, Store};

use crate::api_server::ApiServer;

/// Long enough for the slowest machine. A test that waits so long has failed: it waits for what has a cause.
const HANG: Duration = Duration::from_secs(90);

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANG, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) struct Bed {
    pub(crate) server: ApiServer,
    pub(crate) admin: Client,
    pub(crate) borrower: Arc<Client>,
    viewer: Arc<Client>,
    address: String,
    reports: Arc<Mutex<Vec<BoxReport>>>,
    stop: Arc<AtomicBool>,
    boxes: Option<JoinHandle<()>>,
    _manager: Manager,
    _runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

impl Bed {
    /// A pool with these boxes: name, model, GPUs.
    pub(crate) fn make(boxes: &[(&str, &str, u8)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(folder.path().join("pool.db")).unwrap());
        let admin_file = folder.path().join("admin.json");
        let manager = Manager::start(pool_manager::Settings {
            name: "m1".into(),
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            store,
            admin_file: admin_file.clone(),
            clock: pool_manager::Clock::start(),
            leader_ttl: Duration::from_secs(5),
            // Boxes of a test may report late on a busy machine.
            ledger: pool::Settings {
                dead_after_ms: 600_000,
                suspect_after_ms: 600_000,
                ..pool::Settings::default()
            },
            audit_keep: 10_000,
            certificate_life: pool_manager::CERTIFICATE_LIFE,
            connections_max: 1000,
        })
        .unwrap();
        wait_until("the manager leads", || manager.is_leading());
        let credential: Credential = serde_json::from_slice(&std::fs::read(&admin_file).unwrap()).unwrap();
        let admin = Client::new(credential, Patience::default()).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (server, address) = ApiServer::start(&runtime);
        let user = |identity: &str| {
            let token = token(&admin, AccessKind::User, identity);
            let base = admin.credential().clone();
            let credential = Credential { identity: identity.parse().unwrap(), token: Some(token), ..base };
            Arc::new(Client::new(credential, Patience::default()).unwrap())
        };
        let borrower = user("spiffe://dxpu/tenant/kube/controller");
        let viewer = user("spiffe://dxpu/viewer/kube");
        let (mut reports, mut clients) = (Vec::new(), Vec::new());
        for (name, model, gpus) in boxes {
            clients.push((Name::new(name).unwrap(), join(&admin, name)));
            reports.push(report(name, model, *gpus));
        }
        let reports = Arc::new(Mutex::new(reports));
        let stop = Arc::new(AtomicBool::new(false));
        let told = (reports.clone(), stop.clone());
        let boxes = std::thread::spawn(move || turn_boxes(&clients, &told.0, &told.1));
        let bed = Self {
            server,
            admin,
            borrower,
            viewer,
            address,
            reports,
            stop,
            boxes: Some(boxes),
            _manager: manager,
            _runtime: runtime,
            _folder: folder,
        };
        let wanted: usize = bed.reports.lock().unwrap().iter().map(|report| report.gpus.len()).sum();
        wait_until("all GPUs are in the pool", || bed.viewer.gpus().unwrap().len() == wanted);
        bed
    }

    /// Changes what a box says of a GPU.
    pub(crate) fn report_of(&self, box_index: usize, slot: usize, change: impl FnOnce(&mut GpuReport)) {
        change(&mut self.reports.lock().unwrap()[box_index].gpus[slot]);
    }

    pub(crate) fn controller(&self) -> Controller {
        self.controller_named(None, Terms::default())
    }

    pub(crate) fn controller_named(&self, identity: Option<&str>, terms: Terms) -> Controller {
        let election = identity.map(|identity| Election {
            namespace: "default".into(),
            name: "dxpu-controller".into(),
            identity: identity.into(),
            ttl: Duration::from_secs(3),
        });
        let settings = Settings {
            cluster: Cluster::Plain(self.address.clone()),
            borrower: self.borrower.clone(),
            viewer: self.viewer.clone(),
            bind: kube_claims::Bind::default(),
            nodes: Nodes::All,
            terms,
            election,
            pace: Pace { poll: Duration::from_millis(100), sweep: Duration::from_secs(2) },
        };
        Controller::start(settings)
    }

    /// The leases of a claim, live ones or all.
    pub(crate) fn leases(&self, uid: &str, is_live: bool) -> Vec<Lease> {
        let all = self.borrower.leases_labelled(&kube_claims::lease_key(uid)).unwrap();
        all.into_iter().filter(|lease| !is_live || lease.state.is_live()).collect()
    }

    /// The names of the devices of all slices, with their taints.
    pub(crate) fn devices(&self) -> Vec<String> {
        let slices = self.server.all("resourceslices");
        let devices = slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array().cloned()).flatten();
        devices
            .map(|device| {
                let taints = device["taints"].as_array().cloned().unwrap_or_default();
                let taints: String =
                    taints.iter().map(|taint| format!(" {}", taint["key"].as_str().unwrap())).collect();
                format!("{}{taints}", device["name"].as_str().unwrap())
            })
            .collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.boxes.take().map(JoinHandle::join);
    }
}

fn token(admin: &Client, kind: AccessKind, identity: &str) -> Secret {
    let request =
        TokenRequest { kind, identity: identity.to_owned(), ttl_ms: 3_600_000, note: String::new() };
    let made: NewToken = admin.post("/v1/tokens", &request, None, Duration::ZERO).unwrap();
    Secret::new(made.token)
}

fn join(admin: &Client, name: &str) -> Client {
    let token = token(admin, AccessKind::Join, &format!("spiffe://dxpu/box/{name}"));
    let base = admin.credential();
    let name = Name::new(name).unwrap();
    let key = NewKey::make().unwrap();
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
    Client::new(credential, Patience::default()).unwrap()
}

fn report(name: &str, model: &str, gpus: u8) -> BoxReport {
    let gpu = |slot| GpuReport {
        slot,
        model: Model::new(model).unwrap(),
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
    BoxReport {
        agent: format!("agent-of-{name}"),
        sequence: 0,
        kind: BoxKind::Pcie,
        rack: "r1".into(),
        paths: vec!["127.0.0.1".into()],
        gpus: (0..gpus).map(gpu).collect(),
        guard: None,
    }
}

/// Every box reports, and cleans what it is told to clean.
fn turn_boxes(clients: &[(Name, Client)], reports: &Mutex<Vec<BoxReport>>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for (index, (name, client)) in clients.iter().enumerate() {
            let report = {
                let mut reports = reports.lock().unwrap();
                reports[index].sequence += 1;
                reports[index].clone()
            };
            let Ok(orders) = client.report(name, &report, Duration::ZERO) else { continue };
            let mut reports = reports.lock().unwrap();
            for order in &orders.slots {
                if let Want::Clean { epoch } = order.want
                    && let Some(gpu) = reports[index].gpus.iter_mut().find(|gpu| gpu.slot == order.slot)
                {
                    gpu.cleaned_epoch = gpu.cleaned_epoch.max(epoch);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A controller in a thread.
pub(crate) struct Controller {
    stop: Arc<AtomicBool>,
    leads: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    fn start(settings: Settings) -> Self {
        let (stop, leads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let told = (stop.clone(), leads.clone());
        let thread = std::thread::spawn(move || {
            let leads = move || told.1.store(true, Ordering::Relaxed);
            kube_controller::run(settings, &leads, &mut || told.0.load(Ordering::Relaxed)).unwrap();
        });
        Self { stop, leads, thread: Some(thread) }
    }

    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }
}

impl Drop for Controller {
    /// Stops it wherever it is.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}
