//! One value of each kind with every field set, and every word of every enumeration.

use pool_api::{
    Attachment, BoxKind, BoxRecord, BoxState, Class, Ended, Event, EventKind, Gpu, GpuId, GpuState, Grant,
    Guest, Health, Holder, HostDetail, HostRecord, HostSlot, HostState, Kept, Lease, LeaseId, LeaseRequest,
    LeaseState, Leaving, Model, Move, Moving, Name, Parking, Part, Phase, Plane, Purpose, Quota, Share,
    SpareRecord, Survive, Taint, TenantRecord, TenantTimes, Topology,
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

/// What records of this version can say of the samples: later versions have more leases and kinds of events.
pub(super) fn samples_of(version: u64) -> Samples {
    let mut all = samples();
    if version < 5 {
        all.leases.truncate(LEASES_OF_VERSION_4);
    }
    if version < 4 {
        all.leases.truncate(LEASES_OF_VERSION_3);
        all.gpus.truncate(GPUS_OF_VERSION_3);
    }
    if version < 3 {
        all.leases.truncate(LEASES_OF_VERSION_2);
        all.gpus.truncate(GPUS_OF_VERSION_2);
    }
    if version < 2 {
        all.leases.truncate(LEASES_OF_BEFORE);
        all.events.truncate(EVENTS_OF_BEFORE);
        all.gpus.truncate(GPUS_OF_BEFORE);
        all.tenants.truncate(TENANTS_OF_BEFORE);
    }
    all
}

/// How many of the sampled leases version 1 can say.
const LEASES_OF_BEFORE: usize = 4;
/// How many of them version 2 can say.
const LEASES_OF_VERSION_2: usize = 9;
/// How many of them version 3 can say.
const LEASES_OF_VERSION_3: usize = 11;
/// How many of them version 4 can say.
const LEASES_OF_VERSION_4: usize = 13;
/// How many of the sampled GPUs version 1 can say.
const GPUS_OF_BEFORE: usize = 6;
/// How many of them version 2 can say.
const GPUS_OF_VERSION_2: usize = 7;
/// How many of them version 3 can say.
const GPUS_OF_VERSION_3: usize = 8;
/// How many of the sampled tenants version 1 can say.
const TENANTS_OF_BEFORE: usize = 1;
/// How many kinds of events version 1 knows.
const EVENTS_OF_BEFORE: usize = 35;

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
    let seat = Gpu {
        slot: 32,
        id: gpu_id(32),
        memory_bytes: 48 << 30,
        guest: Some(Guest { of: 0, any_tenant: true, overcommit: false }),
        spare: false,
        ..full(GpuState::Free, 0)
    };
    let part = Gpu {
        slot: 33,
        id: gpu_id(33),
        memory_bytes: 35 << 30,
        part: Some(Part { of: 8, milli: 250 }),
        spare: false,
        ..full(GpuState::Free, 0)
    };
    let promised_twice = Gpu {
        slot: 34,
        id: gpu_id(34),
        guest: Some(Guest { of: 2, any_tenant: false, overcommit: true }),
        ..seat.clone()
    };
    states
        .into_iter()
        .zip(0..)
        .map(|(state, slot)| full(state, slot))
        .chain([seat, part, promised_twice])
        .collect()
}

/// A GPU in a state, with all that goes with it.
fn full(state: GpuState, slot: u8) -> Gpu {
    let lease = LeaseId(0xc0ff_ee01);
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
        guest: None,
        part: None,
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
}

fn leases() -> Vec<Lease> {
    let states = [LeaseState::Granted, LeaseState::Pending, LeaseState::Releasing, LeaseState::Ended];
    let topologies = [Topology::Any, Topology::SameBox, Topology::Nvlink, Topology::Any];
    let each = states.into_iter().zip(topologies).zip(1..);
    let before = each.map(|((state, topology), number)| {
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
                survive: Survive::None,
                time_limit_ms: None,
                note: "nightly".into(),
                ..LeaseRequest::default()
            },
            state,
            grants: if has_gpus { vec![grant] } else { Vec::new() },
            model: has_gpus.then(|| model("H200")),
            created_ms: 100,
            granted_ms: has_gpus.then_some(101),
            expires_ms: 30_101,
            ended: (!state.is_live()).then(|| Ended { at_ms: 300, reason: "released".into() }),
            moves: vec![moved(4, Some(1), 200, "Xid 79"), moved(5, None, 190, "its box was silent")],
            moving: None,
            suspend_wanted: false,
            parking: None,
            version: 4,
        }
    });
    let before: Vec<Lease> = before.collect();
    let surviving = surviving(&before[2]);
    let mut limited = before[2].clone();
    limited.id = LeaseId(0xc0ff_ee40);
    limited.request.time_limit_ms = Some(7_200_000);
    let given = given(&before[2]);
    let classed = [(Class::Online, 0xc0ff_ee50), (Class::Offline, 0xc0ff_ee51)].map(|(class, id)| {
        let mut lease = Lease { id: LeaseId(id), ..before[2].clone() };
        lease.request.class = class;
        lease
    });
    let mut slack = Lease { id: LeaseId(0xc0ff_ee60), ..before[2].clone() };
    slack.request.class = Class::Online;
    slack.request.slack_percent = Some(10);
    before.into_iter().chain(surviving).chain([limited, given]).chain(classed).chain([slack]).collect()
}

/// A lease that names its GPUs, and has a label.
fn given(like: &Lease) -> Lease {
    let mut lease = Lease { id: LeaseId(0xc0ff_ee20), ..like.clone() };
    lease.request.gpu_ids = vec![gpu_id(2)];
    lease.request.label = "kube-3f2a".into();
    lease
}

fn moved(from: u8, to: Option<u8>, at_ms: u64, reason: &str) -> Move {
    let (from, to, reason) = (gpu_id(from), to.map(gpu_id), reason.to_owned());
    Move { from, to, at_ms, reason, said_by_borrower: false, planned: false }
}

/// Leases that outlive losses, on their way for every purpose, and parked.
fn surviving(like: &Lease) -> Vec<Lease> {
    let survivor = |number: u64| {
        let mut lease = like.clone();
        lease.id = LeaseId(0xc0ff_ee10 + number);
        lease.request.survive = Survive::Gpu;
        lease.ended = None;
        lease.moves[0].said_by_borrower = true;
        lease
    };
    let mut leases = Vec::new();
    for (purpose, number) in [Purpose::Asked, Purpose::Drain, Purpose::Drill].into_iter().zip(0..) {
        let mut lease = survivor(number);
        lease.state = LeaseState::Granted;
        let to = Grant { gpu: gpu_id(3), epoch: 8, ..lease.grants[0].clone() };
        let reason = "new fans".to_owned();
        let (from, from_epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
        lease.moving = Some(Moving { from, from_epoch, to, purpose, since_ms: 400, reason });
        lease.suspend_wanted = purpose == Purpose::Drill;
        leases.push(lease);
    }
    for queued_ms in [None, Some(600)] {
        let mut lease = survivor(3 + u64::from(queued_ms.is_some()));
        lease.state = if queued_ms.is_some() { LeaseState::Pending } else { LeaseState::Parked };
        lease.grants.clear();
        lease.parking = Some(Parking { since_ms: 500, image_bytes: 12 << 30, queued_ms });
        leases.push(lease);
    }
    leases
}

fn tenants() -> Vec<TenantRecord> {
    let quotas = [
        (model("H200"), Quota { guaranteed: 4, limit: Some(8) }),
        (model("A100 80GB"), Quota { guaranteed: 0, limit: None }),
    ];
    let vision = TenantRecord {
        name: name("vision"),
        weight: 150,
        quotas: quotas.into(),
        priority_max: 500,
        ttl_max_ms: 600_000,
        times: TenantTimes::default(),
    };
    let times = TenantTimes {
        limit_default_ms: Some(3_600_000),
        limit_max_ms: Some(7_200_000),
        idle_limit_ms: Some(600_000),
    };
    vec![vision.clone(), TenantRecord { name: name("limited"), times, ..vision }]
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
