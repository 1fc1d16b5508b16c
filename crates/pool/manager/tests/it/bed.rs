//! A pool of one manager in a temporary folder, and the clients that speak to it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pool_api::{
    AccessKind, AuditBook, AuditBooks, AuditEntry, BoxKind, BoxOrders, BoxReport, Counters, GpuReport,
    Health, Model, Name, NewToken, Page, TokenRequest, Want,
};
use pool_auth::{Credential, Identity, NewKey, Secret};
use pool_client::{Client, ClientError, Patience};
use pool_manager::{Manager, Settings};
use pool_store::{Sqlite, Store};

pub(crate) struct Bed {
    pub(crate) manager: Manager,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) admin: Client,
    pub(crate) admin_file: PathBuf,
    pub(crate) folder: tempfile::TempDir,
}

/// Long enough for the slowest machine. A test that waits so long has failed: it waits for what has a cause.
pub(crate) const HANG: Duration = Duration::from_secs(60);

pub(crate) fn settings(store: Arc<dyn Store>, admin_file: PathBuf, name: &str) -> Settings {
    Settings {
        name: name.to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        store,
        admin_file,
        clock: pool_manager::Clock::start(),
        leader_ttl: Duration::from_secs(2),
        ledger: pool::Settings::default(),
        audit_keep: 10_000,
        certificate_life: pool_manager::CERTIFICATE_LIFE,
        connections_max: 1000,
    }
}

impl Bed {
    pub(crate) fn make() -> Self {
        Self::with(|_| {})
    }

    /// A pool whose manager has settings of its own.
    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(folder.path().join("pool.db")).unwrap());
        let admin_file = folder.path().join("admin.json");
        let mut settings = settings(store.clone(), admin_file.clone(), "m1");
        change(&mut settings);
        let manager = Manager::start(settings).unwrap();
        let credential: Credential = serde_json::from_slice(&std::fs::read(&admin_file).unwrap()).unwrap();
        let admin = Client::new(credential, Patience::default()).unwrap();
        let began = Instant::now();
        while !manager.is_leading() {
            assert!(began.elapsed() < HANG, "nobody leads");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { manager, store, admin, admin_file, folder }
    }

    /// Returns when so many requests wait in the manager for a change.
    pub(crate) fn wait_for_waiting(&self, count: usize) {
        let line = format!("dxpu_requests_waiting {count}\n");
        let began = Instant::now();
        while !self.admin.get_text("/metrics").unwrap().contains(&line) {
            assert!(began.elapsed() < HANG, "there are never {count} requests that wait");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn token(&self, kind: AccessKind, identity: &str, ttl_ms: u64) -> Secret {
        let request = TokenRequest { kind, identity: identity.to_owned(), ttl_ms, note: String::new() };
        let made: NewToken = self.admin.post("/v1/tokens", &request, None, Duration::ZERO).unwrap();
        Secret::new(made.token)
    }

    /// A client that shows a token.
    pub(crate) fn user(&self, identity: &str) -> Client {
        let token = self.token(AccessKind::User, identity, 3_600_000);
        self.with_token(identity, token)
    }

    pub(crate) fn with_token(&self, identity: &str, token: Secret) -> Client {
        let base = self.admin.credential();
        let credential =
            Credential { identity: identity.parse().unwrap(), token: Some(token), ..base.clone() };
        Client::new(credential, Patience::ONCE).unwrap()
    }

    /// Joins as a box.
    pub(crate) fn join(&self, name: &str, slots: u8) -> SimulatedBox {
        // Its certificate ends with the token.
        let token = self.token(AccessKind::Join, &format!("spiffe://dxpu/box/{name}"), 24 * 3_600_000);
        let client = self.join_with(name, &token).unwrap();
        SimulatedBox::new(name, client, slots)
    }

    pub(crate) fn join_with(&self, name: &str, token: &Secret) -> Result<Client, ClientError> {
        self.join_key(name, token, NewKey::make().unwrap())
    }

    pub(crate) fn join_key(&self, name: &str, token: &Secret, key: NewKey) -> Result<Client, ClientError> {
        let base = self.admin.credential();
        let name = Name::new(name).unwrap();
        let joining = Client::to_join(base.managers.clone(), base.authority.clone())?;
        let answer = joining.join(&name, token, &key.request_pem)?;
        let credential = Credential {
            managers: base.managers.clone(),
            authority: answer.ca_certificate,
            // Its identity is the one in its certificate.
            identity: Identity::Box(name.to_string()),
            token: None,
            certificate: Some(answer.certificate),
            key: Some(key.key_pem),
        };
        Client::new(credential, Patience::ONCE)
    }

    /// Every entry of every book, each book checked from end to end.
    pub(crate) fn trail(&self) -> Vec<AuditEntry> {
        let all: AuditBooks = self.admin.get("/v1/audit/books", Duration::ZERO).unwrap();
        assert_eq!(pool::missing_audit_books(&all), 0);
        all.books.into_iter().flat_map(|book| self.book(book)).collect()
    }

    fn book(&self, book: AuditBook) -> Vec<AuditEntry> {
        let mut all: Vec<AuditEntry> = Vec::new();
        loop {
            let after = all.last().map_or(0, |entry| entry.seq);
            let path = format!("/v1/audit?limit=1000&after={after}&book={}", book.name);
            let page: Page<AuditEntry> = self.admin.get(&path, Duration::ZERO).unwrap();
            all.extend(page.items);
            if page.next.is_none() {
                break;
            }
        }
        let mut check = pool::AuditCheck::of(book);
        all.iter().try_for_each(|entry| check.next(entry)).unwrap();
        check.finish().unwrap();
        all
    }

    /// Waits until the trail has an entry like this. Denied reads are written with the next commit.
    pub(crate) fn audited(&self, is_it: impl Fn(&AuditEntry) -> bool) -> AuditEntry {
        let began = Instant::now();
        loop {
            if let Some(entry) = self.trail().into_iter().find(|entry| is_it(entry)) {
                return entry;
            }
            assert!(began.elapsed() < HANG, "not in the trail: {:#?}", self.trail());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A box that does at once whatever it is told.
pub(crate) struct SimulatedBox {
    pub(crate) client: Client,
    pub(crate) report: BoxReport,
    pub(crate) name: Name,
}

impl SimulatedBox {
    pub(crate) fn new(name: &str, client: Client, slots: u8) -> Self {
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
            counters: Some(Counters {
                utilization_pct: Some(7),
                memory_used_bytes: Some(1 << 30),
                temperature_c: Some(41),
                power_mw: Some(120_500),
                ecc_uncorrected: Some(0),
                sm_activity_pct: Some(37),
                sm_occupancy_pct: Some(12),
                dram_activity_pct: Some(5),
            }),
            burn_in: None,
            must_leave: false,
            sharing: None,
        };
        let report = BoxReport {
            agent: format!("agent-of-{name}"),
            sequence: 0,
            kind: BoxKind::Pcie,
            rack: "r1".into(),
            paths: vec!["127.0.0.1".into()],
            gpus: (0..slots).map(gpu).collect(),
            guard: None,
        };
        Self { client, report, name: Name::new(name).unwrap() }
    }

    pub(crate) fn try_report(&mut self) -> Result<BoxOrders, ClientError> {
        self.report.sequence += 1;
        self.client.report(&self.name, &self.report, Duration::ZERO)
    }

    /// Reports, does what it is told, and reports that.
    pub(crate) fn turn(&mut self) -> BoxOrders {
        let orders = self.try_report().unwrap();
        for order in &orders.slots {
            let gpu = self.report.gpus.iter_mut().find(|gpu| gpu.slot == order.slot).unwrap();
            if let Want::Clean { epoch } = order.want {
                gpu.cleaned_epoch = epoch;
            }
        }
        self.try_report().unwrap()
    }
}
