//! The pool as ResourceSlices.
//!
//! A GPU is a device. What Kubernetes must not allocate is treated in one of two ways:
//!
//! - A GPU that another borrower of the pool has, or that the pool holds back as a spare, is left out. A taint would not
//!   do: a claim may tolerate every taint, and a server without the feature drops taints.
//! - A GPU that is lost, drained or tainted stays and has a device taint, so that people see why, and so that Kubernetes
//!   evicts the pods that use it.
//!
//! A GPU that one of the driver's own leases names is never left out: Kubernetes has allocated it.

use crate::{CONDITION_GRANTED, CONDITION_REFUSED, DRIVER, POOL, device_name, uid_of_key};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    Device, DeviceAttribute, DeviceCapacity, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pool_api::{BoxRecord, BoxState, Gpu, GpuState, Lease, Name};
use std::collections::{BTreeMap, BTreeSet};

/// Devices of one slice. A server takes 128, but only 64 if one of them has a taint; a slice whose GPU breaks must not
/// have to be cut in two.
pub const DEVICES_PER_SLICE_MAX: usize = 64;
/// The annotation with the hash of what the driver wanted to write: a server may drop fields that it does not serve, so
/// what it returns cannot be compared with what was sent.
pub const CONTENT_ANNOTATION: &str = "dxpu.dev/content";
/// A string attribute has at most so many characters.
const ATTRIBUTE_CHARS_MAX: usize = 64;

/// The GPU or its box is lost.
pub const TAINT_LOST: &str = "dxpu.dev/lost";
/// The GPU or its box is being emptied by an operator.
pub const TAINT_DRAINED: &str = "dxpu.dev/drained";
/// An operator keeps new leases from the GPU.
pub const TAINT_TAINTED: &str = "dxpu.dev/tainted";
/// The box is silent for a moment.
pub const TAINT_SILENT: &str = "dxpu.dev/silent";

/// The nodes that can reach the pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Nodes {
    /// All.
    #[default]
    All,
    /// Those that match.
    Matching(Box<NodeSelector>),
}

impl Nodes {
    /// Those that have all of these labels; all nodes, if there are none.
    pub fn with_labels(labels: impl IntoIterator<Item = (String, String)>) -> Self {
        let one = |(key, value): (String, String)| NodeSelectorRequirement {
            key,
            operator: "In".to_owned(),
            values: Some(vec![value]),
        };
        let expressions: Vec<NodeSelectorRequirement> = labels.into_iter().map(one).collect();
        if expressions.is_empty() {
            return Self::All;
        }
        let term = NodeSelectorTerm { match_expressions: Some(expressions), match_fields: None };
        Self::Matching(Box::new(NodeSelector { node_selector_terms: vec![term] }))
    }
}

/// The pool at one moment.
#[derive(Clone, Copy, Debug)]
pub struct PoolView<'a> {
    /// Its GPUs.
    pub gpus: &'a [Gpu],
    /// Its boxes.
    pub boxes: &'a [BoxRecord],
    /// The leases of the driver's tenant.
    pub leases: &'a [Lease],
    /// The driver's identity in the pool: leases of others under the same tenant are not its own.
    pub owner: &'a str,
    /// The UIDs of the claims whose pods go on after a loss. Their leases do not say it: a program may be able to survive,
    /// and its owner want a new pod nevertheless.
    pub survivors: &'a BTreeSet<String>,
    /// When pods are bound.
    pub bind: Bind,
}

/// When the scheduler binds a pod whose claim it has allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// When the lease is granted: a claim that is refused gets other GPUs. The scheduler looks every few seconds.
    #[default]
    WhenGranted,
    /// At once. The plugin waits for the lease before the container starts, and the pod stays on its node meanwhile.
    AtOnce,
}

/// A change of the slices that the server has.
#[derive(Clone, Debug, PartialEq)]
pub enum SliceChange {
    /// Create it.
    Create(Box<ResourceSlice>),
    /// Replace the one with the same name and resource version.
    Replace(Box<ResourceSlice>),
    /// Delete the one with this name.
    Delete(String),
}

/// The pool's devices, in order.
pub fn devices(pool: &PoolView) -> Vec<Device> {
    let boxes: BTreeMap<&Name, &BoxRecord> = pool.boxes.iter().map(|record| (&record.name, record)).collect();
    let is_own = |lease: &&Lease| {
        lease.state.is_live() && lease.owner == pool.owner && uid_of_key(&lease.request.label).is_some()
    };
    // The GPUs that Kubernetes has allocated, and whether the pods that use them go on after a loss.
    let mut allocated = BTreeMap::new();
    for lease in pool.leases.iter().filter(is_own) {
        let survives = uid_of_key(&lease.request.label).is_some_and(|uid| pool.survivors.contains(uid));
        for gpu in &lease.request.gpu_ids {
            allocated.insert(gpu, survives);
        }
    }
    // Claims are for whole GPUs.
    let is_whole = |gpu: &&Gpu| !gpu.only_pcie && gpu.guest.is_none() && gpu.part.is_none();
    let mut gpus: Vec<&Gpu> = pool.gpus.iter().filter(is_whole).collect();
    gpus.sort_by(|one, other| one.id.cmp(&other.id));
    let mut names = BTreeSet::new();
    let mut found = Vec::new();
    for gpu in gpus {
        let survives = allocated.get(&gpu.id).copied();
        let is_borrowed = matches!(gpu.state, GpuState::Leased) || gpu.spare;
        if survives.is_none() && is_borrowed {
            continue;
        }
        let name = device_name(&gpu.id);
        if names.insert(name.clone()) {
            let owner = boxes.get(&gpu.box_name).copied();
            let device = device(name, gpu, owner, survives.unwrap_or(false));
            found.push(if pool.bind == Bind::WhenGranted { bound_when_granted(device) } else { device });
        }
    }
    found
}

fn device(name: String, gpu: &Gpu, owner: Option<&BoxRecord>, survives: bool) -> Device {
    let text = |value: &str| DeviceAttribute {
        string: Some(value.chars().take(ATTRIBUTE_CHARS_MAX).collect()),
        ..DeviceAttribute::default()
    };
    let mut attributes = BTreeMap::from([
        ("model".to_owned(), text(gpu.model.as_str())),
        ("box".to_owned(), text(gpu.box_name.as_str())),
        ("slot".to_owned(), DeviceAttribute { int: Some(i64::from(gpu.slot)), ..DeviceAttribute::default() }),
        ("uuid".to_owned(), text(&gpu.uuid)),
        ("plane".to_owned(), text("api")),
    ]);
    if let Some(group) = gpu.nvlink_group {
        // Groups are numbered in each box, and `matchAttribute` compares over all boxes.
        attributes.insert("nvlinkGroup".to_owned(), text(&format!("{group}.{}", gpu.box_name)));
    }
    if let Some(owner) = owner {
        let kind = match owner.kind {
            pool_api::BoxKind::Nvlink => "nvlink",
            pool_api::BoxKind::Pcie => "pcie",
        };
        attributes.insert("kind".to_owned(), text(kind));
        if !owner.rack.is_empty() {
            attributes.insert("rack".to_owned(), text(&owner.rack));
        }
    }
    let memory = DeviceCapacity { value: Quantity(gpu.memory_bytes.to_string()), request_policy: None };
    let taints = taints(gpu, owner, survives);
    Device {
        name,
        attributes: Some(attributes),
        capacity: Some(BTreeMap::from([("memory".to_owned(), memory)])),
        taints: (!taints.is_empty()).then_some(taints),
        ..Device::default()
    }
}

fn bound_when_granted(device: Device) -> Device {
    Device {
        binds_to_node: Some(true),
        binding_conditions: Some(vec![CONDITION_GRANTED.to_owned()]),
        binding_failure_conditions: Some(vec![CONDITION_REFUSED.to_owned()]),
        ..device
    }
}

fn taints(gpu: &Gpu, owner: Option<&BoxRecord>, survives: bool) -> Vec<DeviceTaint> {
    let state = owner.map(|owner| owner.state);
    let is_revoked = owner.is_none_or(|owner| owner.revoked.is_some());
    let is_bad = matches!(gpu.state, GpuState::Bad | GpuState::BurnIn | GpuState::Absent) || !gpu.health.ok;
    let mut found = Vec::new();
    let mut add = |key: &str, value: &str, evicts: bool| {
        found.push(DeviceTaint {
            key: key.to_owned(),
            value: Some(value.to_owned()),
            // A pod that is to survive the loss must not be evicted.
            effect: if evicts && !survives { "NoExecute" } else { "NoSchedule" }.to_owned(),
            time_added: None,
        });
    };
    if is_bad {
        let value = match gpu.state {
            GpuState::BurnIn => "burn-in",
            GpuState::Absent => "absent",
            _ => "bad",
        };
        add(TAINT_LOST, value, true);
    } else if is_revoked || state == Some(BoxState::Dead) {
        add(TAINT_LOST, "box", true);
    }
    let is_drained = gpu.taint.as_ref().is_some_and(|taint| taint.drain)
        || owner.is_some_and(|owner| owner.drain.is_some() || owner.state == BoxState::Draining);
    if is_drained {
        add(TAINT_DRAINED, "operator", true);
    } else if gpu.taint.is_some() {
        add(TAINT_TAINTED, "operator", false);
    }
    if state == Some(BoxState::Suspect) {
        add(TAINT_SILENT, "box", false);
    }
    found
}

/// What to change so that the server has these devices. `seen` are all slices of the driver.
///
/// All slices of a pool have one generation; a consumer uses the highest one, when all of its slices are there. So a change
/// of one device writes all slices with the next generation.
pub fn plan(devices: Vec<Device>, nodes: &Nodes, seen: &[ResourceSlice]) -> Vec<SliceChange> {
    let mut parts: Vec<Vec<Device>> = Vec::new();
    for device in devices {
        match parts.last_mut().filter(|part| part.len() < DEVICES_PER_SLICE_MAX) {
            Some(part) => part.push(device),
            None => parts.push(vec![device]),
        }
    }
    // An empty pool is one empty slice: its generation must not begin anew when a GPU comes.
    if parts.is_empty() {
        parts.push(Vec::new());
    }
    let count = parts.len() as i64;
    let by_name: BTreeMap<&str, &ResourceSlice> =
        seen.iter().filter_map(|slice| Some((slice.metadata.name.as_deref()?, slice))).collect();
    let wanted: Vec<(String, String, Vec<Device>)> = parts
        .into_iter()
        .enumerate()
        .map(|(index, part)| (slice_name(index), content(&part, nodes, count), part))
        .collect();
    let newest = seen.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
    let is_written = |(name, content, _): &(String, String, Vec<Device>)| {
        by_name.get(name.as_str()).is_some_and(|slice| {
            let annotations = slice.metadata.annotations.as_ref();
            annotations.and_then(|all| all.get(CONTENT_ANNOTATION)) == Some(content)
                && slice.spec.pool.generation == newest
        })
    };
    if wanted.iter().all(is_written) && seen.len() == wanted.len() {
        return Vec::new();
    }
    let generation = newest + 1;
    let mut changes = Vec::new();
    for (name, content, part) in &wanted {
        let before = by_name.get(name.as_str());
        let slice = Box::new(ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                resource_version: before.and_then(|slice| slice.metadata.resource_version.clone()),
                annotations: Some(BTreeMap::from([(CONTENT_ANNOTATION.to_owned(), content.clone())])),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: DRIVER.to_owned(),
                pool: ResourcePool { name: POOL.to_owned(), generation, resource_slice_count: count },
                all_nodes: (*nodes == Nodes::All).then_some(true),
                node_selector: match nodes {
                    Nodes::All => None,
                    Nodes::Matching(selector) => Some(selector.as_ref().clone()),
                },
                devices: Some(part.clone()),
                ..ResourceSliceSpec::default()
            },
        });
        changes.push(if before.is_some() { SliceChange::Replace(slice) } else { SliceChange::Create(slice) });
    }
    // After the others: until then the pool's newest generation is not whole, and nothing is allocated from an older one.
    for name in by_name.keys().filter(|name| !wanted.iter().any(|(wanted, ..)| wanted == *name)) {
        changes.push(SliceChange::Delete((*name).to_owned()));
    }
    changes
}

/// The name of a slice.
fn slice_name(index: usize) -> String {
    format!("dxpu-pool-{index}")
}

fn content(devices: &[Device], nodes: &Nodes, count: i64) -> String {
    let selector = match nodes {
        Nodes::All => None,
        Nodes::Matching(selector) => Some(selector),
    };
    let all = (devices, selector, count);
    let bytes = serde_json::to_vec(&all).expect("devices have text keys and whole numbers");
    blake3::hash(&bytes).to_hex()[..32].to_owned()
}
