//! One value of each kind with every field set, and every word of every enumeration.

use pool_api::{
    Attachment, BoxKind, BoxRecord, BoxState, Ended, Event, EventKind, Gpu, GpuId, GpuState, Grant, Health,
    Holder, HostDetail, HostRecord, HostSlot, HostState, Kept, Lease, LeaseId, LeaseRequest, LeaseState,
    Leaving, Model, Move, Name, Phase, Plane, Quota, Share, SpareRecord, Taint, TenantRecord, Topology,
};

/// What the golden files hold.
#[derive(Debug, PartialEq)]
pub(super) struct Samples {
    pub(super) boxes: Vec<BoxRecord>,
    pub(super) hosts: Vec<HostDetail>,
    pub(super) gpus: Vec<Gpu>,
    pub(super) leases: Vec<Lease>,
    pub(super) tenants: Vec<TenantRecord>,
    pub(super) spares: Vec<SpareRecord>,
    pub(super) events: Vec<Event>,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn model(text: &str) -> Model {
    Model::new(text).unwrap()
}

fn gpu_id(slot: u8) -> GpuId {
    GpuId { box_name: name("rack1-a"), slot }
}

fn taint(drain: bool) -> Taint {
    Taint { reason: "a fan is loud".into(), by: "spiffe://dxpu/operator/ann".into(), since_ms: 41, drain }
}

pub(super) fn samples() -> Samples {
    Samples {
        boxes: boxes(),
        hosts: hosts(),
        gpus: gpus(),
        leases: leases(),
        tenants: tenants(),
        spares: vec![SpareRecord { model: model("H200"), count: 2 }],
        events: events(),
    }
}

fn boxes() -> Vec<BoxRecord> {
    let states = [BoxState::Ready, BoxState::Suspect, BoxState::Dead, BoxState::Draining];
    let each = states.into_iter().zip(["rack1-a", "rack1-b", "rack1-c", "rack1-d"]).zip(1..);
    each.map(|((state, word), node)| BoxRecord {
        name: name(word),
        node,
        kind: if node == 1 { BoxKind::Pcie } else { BoxKind::Nvlink },
        rack: "row 4".into(),
        paths: vec![format!("udp:10.0.0.{node}:7000"), format!("udp:10.1.0.{node}:7000")],
        state,
        last_seen_ms: 1_000 + u64::from(node),
        gpus: vec![0, 1, 2, 3, 4, 5],
        drain: (state == BoxState::Draining).then(|| taint(true)),
        revoked: (state == BoxState::Dead).then(|| taint(false)),
    })
    .collect()
}

fn hosts() -> Vec<HostDetail> {
    let phases = [Phase::Binding, Phase::Plugging, Phase::Plugged, Phase::Unplugging];
    let slots = phases.into_iter().zip(0..).map(|(phase, slot)| HostSlot {
        slot,
        lease: Some(LeaseId(0xc0ff_ee00 + u64::from(slot))),
        gpu: Some(gpu_id(slot)),
        epoch: 7,
        bound_epoch: 6,
        cleared_epoch: 5,
        phase: Some(phase),
        leaving: Some(Leaving {
            lease: LeaseId(9),
            gpu: gpu_id(5),
            epoch: 4,
            since_ms: 77,
            box_waits: slot == 0,
        }),
        gone: slot == 1,
        plugged: slot == 2,
        monitor_silent: slot == 3,
        detail: "the guest has not let go".into(),
    });
    let free = HostSlot { slot: 4, ..HostSlot::default() };
    let slots: Vec<HostSlot> = slots.chain([free]).collect();
    let states = [HostState::Ready, HostState::Suspect, HostState::Dead];
    let each = states.into_iter().zip(["hv-1", "hv-2", "hv-3"]).zip(11..);
    each.map(|((state, word), node)| HostDetail {
        record: HostRecord {
            name: name(word),
            node,
            slots: 5,
            paths: vec!["udp:10.0.1.1:7000".into()],
            agent: "run-3f2a".into(),
            state,
            last_seen_ms: 1_234,
            tenants: vec![name("vision"), name("speech")],
            revoked: (state == HostState::Dead).then(|| taint(false)),
            monitors_silent: u8::from(state == HostState::Ready),
        },
        slots: if state == HostState::Ready { slots.clone() } else { Vec::new() },
    })
    .collect()
}

fn gpus() -> Vec<Gpu> {
    let states = [
        GpuState::Free,
        GpuState::Leased,
        GpuState::Cleaning,
        GpuState::Bad,
        GpuState::BurnIn,
        GpuState::Absent,
    ];
    let lease = LeaseId(0xc0ff_ee01);
    let full = |state: GpuState, slot: u8| {
        let is_leased = state == GpuState::Leased;
        Gpu {
            id: gpu_id(slot),
            box_name: name("rack1-a"),
            slot,
            model: model("H200"),
            memory_bytes: 141 << 30,
            uuid: format!("GPU-{slot}"),
            nvlink_group: is_leased.then_some(3),
            only_pcie: is_leased,
            state,
            taint: is_leased.then(|| taint(true)),
            spare: state == GpuState::Free,
            epoch: 7,
            bound_epoch: 6,
            cleaned_epoch: if is_leased { 5 } else { 7 },
            holders: if is_leased {
                vec![Holder { lease, share_milli: 1000, memory_bytes: 141 << 30 }]
            } else {
                Vec::new()
            },
            kept: is_leased.then_some(Kept { lease, since_epoch: 4 }),
            health: if state == GpuState::Bad { Health::bad("Xid 79") } else { Health::OK },
            unready: (state == GpuState::BurnIn).then(|| "its worker starts".into()),
            endpoints: if state == GpuState::Absent {
                Vec::new()
            } else {
                vec![format!("tls:10.0.0.1:700{slot}")]
            },
            counters: None,
        }
    };
    states.into_iter().zip(0..).map(|(state, slot)| full(state, slot)).collect()
}

fn leases() -> Vec<Lease> {
    let states = [LeaseState::Granted, LeaseState::Pending, LeaseState::Releasing, LeaseState::Ended];
    let topologies = [Topology::Any, Topology::SameBox, Topology::Nvlink, Topology::Any];
    let each = states.into_iter().zip(topologies).zip(1..);
    each.map(|((state, topology), number)| {
        let is_first = number == 1;
        let attachment = Attachment { host: name("hv-1"), slot: 1, phase: Phase::Plugged };
        let grant = Grant {
            gpu: gpu_id(if is_first { 1 } else { 2 }),
            epoch: 7,
            endpoints: vec!["tls:10.0.0.1:7001".into()],
            model: model("H200"),
            attachment: is_first.then_some(attachment),
        };
        let has_gpus = matches!(state, LeaseState::Granted | LeaseState::Releasing);
        Lease {
            id: LeaseId(0xc0ff_ee00 + number),
            tenant: name("vision"),
            owner: "spiffe://dxpu/tenant/vision/ada".into(),
            token: is_first.then(|| "3f2a90c1d4e5b677".into()),
            request: LeaseRequest {
                tenant: Some(name("vision")),
                gpus: 1,
                model: is_first.then(|| model("H200")),
                memory_bytes: is_first.then_some(80 << 30),
                kind: is_first.then_some(BoxKind::Pcie),
                topology,
                share: (!is_first).then_some(Share { milli: 500, memory_bytes: 1 << 30 }),
                priority: 90,
                ttl_ms: 30_000,
                plane: if is_first { Plane::Pcie } else { Plane::Api },
                host: is_first.then(|| name("hv-1")),
                note: "nightly".into(),
            },
            state,
            grants: if has_gpus { vec![grant] } else { Vec::new() },
            model: has_gpus.then(|| model("H200")),
            created_ms: 100,
            granted_ms: has_gpus.then_some(101),
            expires_ms: 30_101,
            ended: (!state.is_live()).then(|| Ended { at_ms: 300, reason: "released".into() }),
            moves: vec![
                Move { from: gpu_id(4), to: Some(gpu_id(1)), at_ms: 200, reason: "Xid 79".into() },
                Move { from: gpu_id(5), to: None, at_ms: 190, reason: "its box was silent".into() },
            ],
            version: 4,
        }
    })
    .collect()
}

fn tenants() -> Vec<TenantRecord> {
    let quotas = [
        (model("H200"), Quota { guaranteed: 4, limit: Some(8) }),
        (model("A100 80GB"), Quota { guaranteed: 0, limit: None }),
    ];
    vec![TenantRecord {
        name: name("vision"),
        weight: 150,
        quotas: quotas.into(),
        priority_max: 500,
        ttl_max_ms: 600_000,
    }]
}

/// Every kind of event, all in one record, as one outcome may write them.
fn events() -> Vec<Event> {
    let kinds = super::event::EventKind::ALL.iter().zip(1..);
    let event = |(kind, seq): (&EventKind, u64)| Event {
        seq,
        at_ms: 5_000 + seq,
        kind: *kind,
        gpu: (seq == 1).then(|| gpu_id(1)),
        box_name: (seq == 1).then(|| name("rack1-a")),
        host: (seq == 2).then(|| name("hv-1")),
        lease: (seq == 3).then_some(LeaseId(0xc0ff_ee01)),
        tenant: (seq == 3).then(|| name("vision")),
        message: format!("event {seq}"),
    };
    kinds.map(event).collect()
}
