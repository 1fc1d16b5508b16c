//! Claims come and go; the plugin, the manager and the API server go and come back.

use crate::api_server::ApiServer;
use crate::kubelet::Kubelet;
use crate::pool::{GpuBox, Pool, until};
use kube_node::proto::{Claim, HealthStatus};
use kube_node::{Node, Settings, Way, Ways};
use pool_api::{LeaseState, SignedGrant};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// Takes the first way that the box names. What `dxpu kube node` does instead, trying it, needs a GPU behind it.
struct First;

impl Ways for First {
    fn way_to(&self, grant: &SignedGrant, authority: &str) -> Result<Way, String> {
        assert!(authority.contains("BEGIN CERTIFICATE"));
        let address = grant.endpoints.first().cloned().ok_or("the box names none")?;
        Ok(Way { address, name: format!("{}.box", grant.gpu.box_name), is_soft: true })
    }
}

struct Bed {
    api: Option<ApiServer>,
    pool: Option<Pool>,
    gpu_box: Option<GpuBox>,
    node: Option<Node>,
    kubelet: Kubelet,
    settings: Settings,
    api_url: String,
    _folder: tempfile::TempDir,
}

impl Bed {
    /// With a box of so many GPUs, and a plugin that waits so long for leases.
    fn make(gpus: u8, patience: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("libraries")).unwrap();
        let settings = Settings {
            kubelet: at("kubelet"),
            cdi: at("cdi"),
            run: at("run"),
            libraries: at("libraries"),
            patience,
        };
        let api = ApiServer::start();
        let pool = Pool::start(folder.path());
        let gpu_box = pool.join("a", gpus);
        let mut bed = Self {
            api_url: api.url.clone(),
            api: Some(api),
            pool: Some(pool),
            gpu_box: Some(gpu_box),
            node: None,
            kubelet: Kubelet::new(&settings.kubelet),
            settings,
            _folder: folder,
        };
        bed.start_node();
        bed
    }

    /// A client of the API server, with a token as a pod has it.
    fn claims(&self) -> kube_node::ApiServer {
        let token = self.settings.kubelet.with_file_name("token");
        fs::write(&token, "service-account\n").unwrap();
        kube_node::ApiServer::at(&self.api_url, None, Some(token)).unwrap()
    }

    fn start_node(&mut self) {
        let claims = self.claims();
        let client = self.pool().client();
        self.node = Some(Node::start(&self.settings, client, Box::new(claims), Box::new(First)).unwrap());
    }

    /// Stops the plugin, and starts it with clients of the manager and the API server that were there before.
    fn restart_node_alone(&mut self) {
        let client = self.pool().client();
        let claims = self.claims();
        self.node = None;
        self.api.take().unwrap().stop();
        self.gpu_box = None;
        self.pool = None;
        self.node = Some(Node::start(&self.settings, client, Box::new(claims), Box::new(First)).unwrap());
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn api(&self) -> &ApiServer {
        self.api.as_ref().unwrap()
    }

    fn cdi_file(&self, uid: &str) -> PathBuf {
        self.settings.cdi.join(format!("dxpu.dev-claim-{uid}.json"))
    }

    /// Nothing of a claim is left.
    fn is_clean(&self, uid: &str) -> bool {
        !self.cdi_file(uid).exists() && !self.settings.run.join(uid).exists()
    }
}

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(100);

fn claim(uid: &str) -> Claim {
    Claim { namespace: "ml".to_owned(), uid: uid.to_owned(), name: "train".to_owned() }
}

#[test]
fn the_kubelet_registers_the_plugin_and_calls_only_what_it_has() {
    let bed = Bed::make(1, SHORT);
    let info = bed.kubelet.register();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "dxpu.dev"));
    assert_eq!(PathBuf::from(&info.endpoint), bed.settings.kubelet.join("plugins/dxpu.dev/dra.sock"));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]);
    assert_eq!(bed.kubelet.call_unknown().code(), tonic::Code::Unimplemented);
    drop(bed.node);
    assert_eq!(fs::read_dir(bed.settings.kubelet.join("plugins_registry")).unwrap().count(), 0);
}

#[test]
fn containers_get_the_way_to_the_leases_gpus_until_the_claim_is_unprepared() {
    let bed = Bed::make(2, SHORT);
    let one = claim("u-1");
    bed.api().put("train", "u-1", &[("gpus", "a-0"), ("gpus/large", "a-1")]);
    let lease = bed.pool().lease_for("u-1", 2);
    let answer = bed.kubelet.prepare(&one);
    assert_eq!(answer.error, "");
    let devices: Vec<(&str, &str)> =
        answer.devices.iter().map(|one| (one.pool_name.as_str(), one.device_name.as_str())).collect();
    assert_eq!(devices, [("dxpu", "a-0"), ("dxpu", "a-1")], "and none of another driver");
    for device in &answer.devices {
        assert_eq!(device.request_names, ["gpus"], "also for an alternative of it");
        assert_eq!(device.cdi_device_ids, ["dxpu.dev/claim=u-1"]);
    }

    let document: Value = serde_json::from_slice(&fs::read(bed.cdi_file("u-1")).unwrap()).unwrap();
    assert_eq!(
        (&document["kind"], &document["devices"][0]["name"]),
        (&"dxpu.dev/claim".into(), &"u-1".into())
    );
    let edits = &document["devices"][0]["containerEdits"];
    let env: Vec<&str> = edits["env"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let folder = bed.settings.run.join("u-1");
    for wanted in [
        "LD_LIBRARY_PATH=/usr/lib/dxpu".to_owned(),
        "DXPU_WORKER=tls:127.0.0.1:7000,tls:127.0.0.1:7001".to_owned(),
        "DXPU_WORKER_NAMES=a.box,a.box".to_owned(),
        format!("DXPU_TOKEN_FILE={}/token", folder.display()),
        format!("DXPU_CA={}/ca.pem", folder.display()),
        "CUPY_COMPILE_WITH_PTX=1".to_owned(),
    ] {
        assert!(env.contains(&wanted.as_str()), "{wanted} is not in {env:?}");
    }
    assert!(!env.iter().any(|one| one.starts_with("DXPU_SURVIVE")), "the lease does not survive");
    assert_eq!(edits["mounts"][1]["hostPath"], folder.to_str().unwrap(), "the folder, not a file in it");
    let tokens = fs::read_to_string(folder.join("token")).unwrap();
    assert_eq!(tokens.lines().count(), 2);
    assert!(
        tokens.lines().all(|token| !document.to_string().contains(token)),
        "a specification has no secret"
    );
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&bed.settings.run), mode(&folder)), (0o700, 0o755));

    assert_eq!(bed.kubelet.prepare(&one), answer, "again");
    let older = bed.kubelet.prepare_by("v1beta1", &one);
    assert_eq!(older.devices, answer.devices);

    assert_eq!(bed.kubelet.unprepare(&one), "");
    assert!(bed.is_clean("u-1"));
    assert_eq!(
        bed.pool().lease(&lease).state,
        LeaseState::Granted,
        "the claim is there and may get another pod"
    );
    assert_eq!(bed.kubelet.unprepare(&one), "", "again");
    assert_eq!(bed.kubelet.unprepare(&claim("never-seen")), "");
    assert_eq!(bed.kubelet.prepare(&one).devices, answer.devices, "for the claim's next pod");
}

#[test]
fn a_claim_that_is_gone_gives_its_lease_back_when_it_is_unprepared() {
    let bed = Bed::make(1, SHORT);
    bed.api().put("train", "u-1", &[("gpu", "a-0")]);
    let lease = bed.pool().lease_for("u-1", 1);
    assert_eq!(bed.kubelet.prepare(&claim("u-1")).error, "");
    bed.api().put("train", "u-2", &[("gpu", "a-0")]);
    assert_eq!(bed.kubelet.unprepare(&claim("u-1")), "");
    assert!(!bed.pool().lease(&lease).state.is_live(), "another claim has its name");
    until("the GPU is cleaned", || bed.pool().lease(&lease).state == LeaseState::Ended);

    let lease = bed.pool().lease_for("u-2", 1);
    until("it has its GPU", || bed.pool().lease(&lease).state == LeaseState::Granted);
    assert_eq!(bed.kubelet.prepare(&claim("u-2")).error, "");
    bed.api().delete("train");
    assert_eq!(bed.kubelet.unprepare(&claim("u-2")), "");
    assert!(!bed.pool().lease(&lease).state.is_live(), "it is deleted");
}

#[test]
fn a_claim_that_is_not_the_pods_is_refused() {
    let bed = Bed::make(1, SHORT);
    bed.pool().lease_for("u-1", 1);
    assert!(bed.kubelet.refused(&claim("u-1")).contains("claim ml/train is deleted"));
    bed.api().put("train", "u-2", &[("gpu", "a-0")]);
    let told = bed.kubelet.refused(&claim("u-1"));
    assert!(told.contains("its UID is u-2") && told.contains("had u-1"), "{told}");
    bed.api().put("train", "u-1", &[]);
    assert!(bed.kubelet.refused(&claim("u-1")).contains("no devices of driver dxpu.dev"));
    assert!(bed.kubelet.refused(&claim("../../etc")).contains("UID"));
    assert!(bed.kubelet.unprepare(&claim("../libraries")).contains("UID"));
    assert!(bed.settings.libraries.exists());
    assert!(bed.is_clean("u-1"), "a claim that was refused leaves nothing");
}

#[test]
fn a_lease_that_is_not_there_or_not_granted_is_waited_for_and_then_named() {
    let bed = Bed::make(1, SHORT);
    bed.api().put("train", "u-1", &[("gpu", "a-0")]);
    let told = bed.kubelet.refused(&claim("u-1"));
    assert!(told.contains("label kube-u-1") && told.contains("dxpu kube controller"), "{told}");
    let other = bed.pool().lease_for("other", 1);
    let lease = bed.pool().lease_for("u-1", 1);
    assert_eq!(lease.state, LeaseState::Pending);
    let told = bed.kubelet.refused(&claim("u-1"));
    assert!(told.contains("waits for its GPU") && told.contains(&lease.id.to_string()), "{told}");
    assert!(bed.is_clean("u-1"));
    bed.pool().client().release_lease(other.id).unwrap();
    until("the lease has its GPU", || bed.pool().lease(&lease).state == LeaseState::Granted);
    assert_eq!(bed.kubelet.prepare(&claim("u-1")).error, "", "the kubelet asks again");
    bed.pool().client().release_lease(lease.id).unwrap();
    assert_eq!(bed.kubelet.unprepare(&claim("u-1")), "");
    let told = bed.kubelet.refused(&claim("u-1"));
    assert!(told.contains("is over") && told.contains("released"), "{told}");
}

#[test]
fn one_call_waits_until_the_gpu_is_granted() {
    let bed = Bed::make(1, LONG);
    bed.api().put("train", "u-1", &[("gpu", "a-0")]);
    let other = bed.pool().lease_for("other", 1);
    assert_eq!(bed.pool().lease_for("u-1", 1).state, LeaseState::Pending);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| bed.kubelet.prepare(&claim("u-1")));
        until("the plugin waits at the manager", || bed.pool().is_waited_for());
        assert!(!waiting.is_finished());
        assert!(bed.is_clean("u-1"), "nothing before the grant");
        bed.pool().client().release_lease(other.id).unwrap();
        assert_eq!(waiting.join().unwrap().error, "");
    });
    assert!(bed.cdi_file("u-1").exists());
}

#[test]
fn a_restarted_plugin_answers_for_running_pods_while_nobody_answers_it() {
    let mut bed = Bed::make(1, SHORT);
    bed.api().put("train", "u-1", &[("gpu", "a-0")]);
    bed.pool().lease_for("u-1", 1);
    let answer = bed.kubelet.prepare(&claim("u-1"));
    assert_eq!(answer.error, "");
    let stray = bed.cdi_file("of-a-killed-plugin");
    fs::write(&stray, "{}").unwrap();
    fs::create_dir(bed.settings.run.join("of-a-killed-plugin")).unwrap();
    let foreign = bed.settings.cdi.join("vendor.json");
    fs::write(&foreign, "{}").unwrap();

    bed.restart_node_alone();
    assert!(bed.is_clean("of-a-killed-plugin") && foreign.exists());
    bed.kubelet.register();
    assert_eq!(bed.kubelet.prepare(&claim("u-1")), answer, "from its book");
    let told = bed.kubelet.refused(&claim("u-9"));
    assert!(told.contains("API server"), "{told}");
    assert_eq!(bed.kubelet.unprepare(&claim("u-1")), "", "a pod can go");
    assert!(bed.is_clean("u-1"));
}

#[test]
fn a_manager_that_is_away_is_named_and_a_second_plugin_leaves_the_first_alone() {
    let mut bed = Bed::make(1, SHORT);
    bed.api().put("train", "u-1", &[("gpu", "a-0")]);
    let client = bed.pool().client();
    bed.gpu_box = None;
    bed.pool = None;
    let told = bed.kubelet.refused(&claim("u-1"));
    assert!(told.contains("manager"), "{told}");
    let claims = bed.claims();
    let second = Node::start(&bed.settings, client, Box::new(claims), Box::new(First));
    assert!(second.is_err(), "the first one serves");
    bed.kubelet.register();
}

#[test]
fn files_that_a_reboot_removed_are_made_again() {
    let mut bed = Bed::make(1, SHORT);
    bed.api().put("train", "u-1", &[("gpu", "a-0")]);
    bed.pool().lease_for("u-1", 1);
    let answer = bed.kubelet.prepare(&claim("u-1"));
    bed.node = None;
    fs::remove_dir_all(&bed.settings.run).unwrap();
    fs::remove_dir_all(&bed.settings.cdi).unwrap();
    bed.start_node();
    assert_eq!(bed.kubelet.prepare(&claim("u-1")), answer);
    assert!(bed.cdi_file("u-1").exists() && bed.settings.run.join("u-1/token").exists());
}

#[test]
fn a_broken_gpu_is_told_to_the_kubelet_and_the_next_container_gets_the_new_one() {
    let bed = Bed::make(2, SHORT);
    bed.api().put("train", "u-1", &[("gpu", "a-0")]);
    let lease = bed.pool().lease_for("u-1", 1);
    let (had, spare): (u8, u16) = match lease.grants[0].gpu.slot {
        0 => (0, 1),
        _ => (1, 0),
    };
    bed.api().put("train", "u-1", &[("gpu", &format!("a-{had}"))]);
    let mut health = bed.kubelet.watch_health();
    assert_eq!(health.next().unwrap(), [], "nothing is prepared yet");
    assert_eq!(bed.kubelet.prepare(&claim("u-1")).error, "");
    let token = fs::read_to_string(bed.settings.run.join("u-1/token")).unwrap();
    let told = health.next().unwrap().remove(0);
    assert_eq!(told.health, i32::from(HealthStatus::Healthy), "{told:?}");
    assert_eq!(told.device.unwrap().device_name, format!("a-{had}"));

    bed.gpu_box.as_ref().unwrap().break_gpu(had, "it fell off the bus");
    let told = loop {
        let told = health.next().unwrap().remove(0);
        if told.health != i32::from(HealthStatus::Healthy) {
            break told;
        }
    };
    assert_eq!(told.health, i32::from(HealthStatus::Unhealthy));
    assert!(told.message.contains("it fell off the bus"), "{}", told.message);
    until("the files name the other GPU", || {
        let document = fs::read_to_string(bed.cdi_file("u-1")).unwrap();
        document.contains(&format!("DXPU_WORKER=tls:127.0.0.1:{}\"", 7000 + spare))
    });
    assert_ne!(fs::read_to_string(bed.settings.run.join("u-1/token")).unwrap(), token);
    drop(bed.node);
    while health.next().is_some() {}
}
