//! Hosts of the PCIe plane, over HTTP.

use crate::bed::{Bed, SimulatedBox};
use pool_api::{
    AccessKind, ErrorCode, GpuId, HostDetail, HostOrders, HostReport, HostSlotReport, HostWant, LeaseRequest,
    LeaseState, LeaseTokens, LinkSecret, Name, Phase, Plane, Want,
};
use pool_client::{Client, ClientError};
use std::time::{Duration, Instant};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A host that does at once whatever it is told.
struct SimulatedHost {
    client: Client,
    name: Name,
    report: HostReport,
}

impl SimulatedHost {
    fn join(bed: &Bed, text: &str, slots: u8) -> Self {
        let token = bed.token(AccessKind::Join, &format!("spiffe://dxpu/host/{text}"), 3_600_000);
        let slot = |slot| HostSlotReport {
            slot,
            bound_epoch: 0,
            cleared_epoch: 0,
            plugged: false,
            monitor_silent: false,
            detail: String::new(),
        };
        let report = HostReport {
            agent: format!("proxy-of-{text}"),
            sequence: 0,
            paths: vec!["udp:127.0.0.1:7700".into()],
            slots: (0..slots).map(slot).collect(),
        };
        Self { client: bed.join_with(text, &token).unwrap(), name: name(text), report }
    }

    fn tell(&mut self, wait: Duration) -> Result<HostOrders, ClientError> {
        self.report.sequence += 1;
        self.client.report_host(&self.name, &self.report, wait)
    }

    /// Reports, does what it is told, and reports that.
    fn turn(&mut self) -> HostOrders {
        let orders = self.tell(Duration::ZERO).unwrap();
        for order in &orders.slots {
            let slot = &mut self.report.slots[usize::from(order.slot)];
            match &order.want {
                HostWant::Empty => slot.plugged = false,
                HostWant::Plug { epoch, .. } => (slot.plugged, slot.bound_epoch) = (true, *epoch),
                HostWant::Unplug { epoch } => (slot.plugged, slot.cleared_epoch) = (false, *epoch),
            }
        }
        self.tell(Duration::ZERO).unwrap()
    }
}

/// What a box is to serve in its first slot: the epoch and the secret of the link.
fn serve(bench: &mut SimulatedBox) -> (u64, LinkSecret) {
    let orders = bench.try_report().unwrap();
    match &orders.slots[0].want {
        Want::Serve { epoch, pcie: Some(pairing), .. } => (*epoch, pairing.secret.clone()),
        other => panic!("{other:?}"),
    }
}

fn wish(host: &str) -> LeaseRequest {
    LeaseRequest { plane: Plane::Pcie, host: Some(name(host)), ttl_ms: 600_000, ..LeaseRequest::default() }
}

#[test]
fn a_gpu_is_plugged_into_a_host_and_unplugged_and_nobody_else_sees_the_secret() {
    let bed = Bed::make();
    let mut gpus = bed.join("rack1", 1);
    gpus.report.paths = vec!["127.0.0.1".into(), "udp:127.0.0.1:7600".into()];
    gpus.turn();
    let mut host = SimulatedHost::join(&bed, "hv-7", 2);
    host.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let waits = ada.create_lease(&wish("hv-7"), "k").unwrap();
    assert_eq!(waits.state, LeaseState::Pending, "the host serves nobody yet");
    let record = bed.admin.set_host_tenants(&name("hv-7"), &[name("vision")]).unwrap();
    assert_eq!((record.tenants.as_slice(), record.node, record.slots), (&[name("vision")][..], 2, 2));

    let lease = ada.wait_for_lease(waits.id, waits.version, Duration::from_secs(5)).unwrap();
    assert_eq!(lease.state, LeaseState::Granted);
    let (epoch, of_box) = serve(&mut gpus);
    assert!(of_box.to_bytes().is_some(), "32 bytes");
    assert!(matches!(host.turn().slots[0].want, HostWant::Empty), "the box has not bound");
    gpus.report.gpus[0].bound_epoch = epoch;
    gpus.try_report().unwrap();
    let orders = host.turn();
    let HostWant::Plug { gpu, box_paths, secret, .. } = &orders.slots[0].want else { panic!("{orders:?}") };
    assert_eq!(
        (gpu, box_paths.as_slice()),
        (&"rack1/0".parse::<GpuId>().unwrap(), &["udp:127.0.0.1:7600".to_owned()][..])
    );
    assert!(secret.reveal() == of_box.reveal(), "both ends have the same");
    let phase =
        |id| ada.wait_for_lease(id, 0, Duration::ZERO).unwrap().grants[0].attachment.clone().unwrap().phase;
    assert_eq!(phase(lease.id), Phase::Plugged);

    for path in
        ["/v1/hosts", "/v1/hosts/hv-7", "/v1/leases", "/v1/gpus", "/v1/events", "/v1/audit", "/metrics"]
    {
        let text = bed.admin.get_text(path).unwrap();
        assert!(!text.contains(of_box.reveal()), "{path} shows the secret");
        assert!(path != "/metrics" || text.contains("dxpu_hosts{state=\"ready\"} 1"), "{text}");
    }
    let refused = ada.lease_tokens(lease.id).map(|_: LeaseTokens| ()).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Conflict));

    ada.release_lease(lease.id).unwrap();
    assert_eq!(serve(&mut gpus).0, epoch, "the box waits for the host");
    // The host hears of it while it waits, and the box as soon as the host has said so.
    host.turn();
    gpus.turn();
    let over = ada.wait_for_lease(lease.id, 0, Duration::ZERO).unwrap();
    assert_eq!(over.state, LeaseState::Ended);
    let detail: HostDetail = host.client.host(&name("hv-7")).unwrap();
    assert!(detail.slots.iter().all(|slot| slot.phase.is_none() && slot.leaving.is_none()), "{detail:?}");
    let next = ada.create_lease(&wish("hv-7"), "k2").unwrap();
    let next = ada.wait_for_lease(next.id, 0, Duration::ZERO).unwrap();
    assert_eq!(next.state, LeaseState::Granted);
    assert!(serve(&mut gpus).1.reveal() != of_box.reveal(), "another grant, another secret");
}

#[test]
fn a_host_that_waits_is_told_at_once() {
    let bed = Bed::make();
    let mut gpus = bed.join("rack1", 1);
    gpus.report.paths = vec!["udp:127.0.0.1:7600".into()];
    gpus.turn();
    let mut host = SimulatedHost::join(&bed, "hv-7", 1);
    host.turn();
    bed.admin.set_host_tenants(&name("hv-7"), &[name("vision")]).unwrap();
    let lease = bed.user("spiffe://dxpu/tenant/vision/ada").create_lease(&wish("hv-7"), "k").unwrap();
    assert_eq!(lease.state, LeaseState::Granted);
    host.turn();
    let epoch = serve(&mut gpus).0;
    gpus.report.gpus[0].bound_epoch = epoch;
    let waiting = std::thread::spawn(move || {
        let began = Instant::now();
        (host.tell(Duration::from_secs(20)).unwrap(), began.elapsed())
    });
    std::thread::sleep(Duration::from_millis(100));
    gpus.try_report().unwrap();
    let (orders, took) = waiting.join().unwrap();
    assert!(matches!(orders.slots[0].want, HostWant::Plug { .. }), "{orders:?} after {took:?}");
}

#[test]
fn a_host_may_speak_for_itself_and_nothing_else() {
    let bed = Bed::make();
    let gpus = bed.join("rack1", 1);
    let mut host = SimulatedHost::join(&bed, "hv-7", 1);
    let mut other = SimulatedHost::join(&bed, "hv-8", 1);
    host.turn();
    other.turn();
    let refused = |result: Result<serde_json::Value, ClientError>| result.unwrap_err().code();
    let forbidden = Some(ErrorCode::Forbidden);
    for path in
        ["/v1/hosts", "/v1/hosts/hv-8", "/v1/gpus", "/v1/boxes", "/v1/leases", "/v1/tenants", "/v1/audit"]
    {
        assert_eq!(refused(host.client.get(path, Duration::ZERO)), forbidden, "{path}");
    }
    assert_eq!(host.client.host(&name("hv-7")).unwrap().record.name, name("hv-7"));
    let report = &host.report;
    assert_eq!(host.client.report_host(&name("hv-8"), report, Duration::ZERO).unwrap_err().code(), forbidden);
    assert_eq!(gpus.client.report_host(&name("hv-7"), report, Duration::ZERO).unwrap_err().code(), forbidden);
    assert_eq!(bed.admin.report_host(&name("hv-7"), report, Duration::ZERO).unwrap_err().code(), forbidden);
    assert_eq!(
        host.client.report(&name("rack1"), &gpus.report, Duration::ZERO).unwrap_err().code(),
        forbidden
    );
    assert_eq!(host.client.create_lease(&wish("hv-7"), "k").unwrap_err().code(), forbidden);
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    assert_eq!(ada.set_host_tenants(&name("hv-7"), &[name("vision")]).unwrap_err().code(), forbidden);
    assert_eq!(bed.admin.set_host_tenants(&name("hv-9"), &[]).unwrap_err().code(), Some(ErrorCode::NotFound));
    bed.audited(|entry| entry.action == "host.report" && entry.target == "host/hv-8");
    bed.admin.set_host_tenants(&name("hv-7"), &[name("vision")]).unwrap();
    bed.audited(|entry| entry.action == "host.set" && entry.target == "host/hv-7");
    let names: Vec<Name> = bed.admin.hosts().unwrap().into_iter().map(|record| record.name).collect();
    assert_eq!(names, [name("hv-7"), name("hv-8")]);

    host.report.slots[0].bound_epoch = 1 << 33;
    assert_eq!(host.tell(Duration::ZERO).unwrap_err().code(), Some(ErrorCode::BadRequest));
    host.report.slots[0].bound_epoch = 1 << 31;
    assert_eq!(host.tell(Duration::ZERO).unwrap_err().code(), Some(ErrorCode::Conflict));
}
