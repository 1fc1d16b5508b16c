//! Slices, and what is decided for one claim.

use crate::*;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use pool_api::{BoxKind, BoxRecord, BoxState, Gpu, GpuState, Health, Lease, Taint};
use serde_json::json;
use std::collections::BTreeSet;

pub(crate) fn gpu(id: &str) -> Gpu {
    let id: pool_api::GpuId = id.parse().unwrap();
    Gpu {
        box_name: id.box_name.clone(),
        slot: id.slot,
        id,
        model: pool_api::Model::new("H200").unwrap(),
        memory_bytes: 141 << 30,
        uuid: "GPU-1".into(),
        nvlink_group: Some(2),
        only_pcie: false,
        guest: None,
        part: None,
        state: GpuState::Free,
        taint: None,
        spare: false,
        epoch: 1,
        bound_epoch: 0,
        cleaned_epoch: 1,
        holders: Vec::new(),
        kept: None,
        health: Health::OK,
        unready: None,
        endpoints: Vec::new(),
        counters: None,
    }
}

fn a_box(name: &str) -> BoxRecord {
    BoxRecord {
        name: pool_api::Name::new(name).unwrap(),
        node: 1,
        kind: BoxKind::Nvlink,
        rack: "r1".into(),
        paths: Vec::new(),
        state: BoxState::Ready,
        last_seen_ms: 0,
        gpus: Vec::new(),
        drain: None,
        revoked: None,
    }
}

const OWNER: &str = "spiffe://dxpu/tenant/kube/c";

fn lease(label: &str, gpus: &[&str], state: &str) -> Lease {
    let grants: Vec<_> = gpus
        .iter()
        .filter(|_| state == "granted")
        .map(|gpu| json!({"gpu": gpu, "epoch": 1, "endpoints": [], "model": "H200"}))
        .collect();
    serde_json::from_value(json!({
        "id": format!("l-{:016x}", label.len() as u64 * 1000 + gpus.len() as u64), "tenant": "kube", "owner": OWNER,
        "request": {"gpus": gpus.len(), "gpu_ids": gpus, "label": label, "topology": "same_box"},
        "state": state, "grants": grants, "created_ms": 1, "expires_ms": 9, "version": 1,
    }))
    .unwrap()
}

fn claim(devices: &[&str], more: serde_json::Value) -> ResourceClaim {
    let results: Vec<_> = devices
        .iter()
        .map(|device| {
            json!({"driver": DRIVER, "pool": POOL, "device": device, "request": "gpu",
                "bindingConditions": [CONDITION_GRANTED]})
        })
        .collect();
    let mut all = json!({
        "metadata": {"uid": "u1", "name": "train", "namespace": "default"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "p1"}]},
    });
    merge(&mut all, more);
    serde_json::from_value(all).unwrap()
}

fn merge(into: &mut serde_json::Value, more: serde_json::Value) {
    match (into, more) {
        (serde_json::Value::Object(into), serde_json::Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn decided(claim: &ResourceClaim, leases: &[Lease], memory: &Memory) -> Vec<Action> {
    let pool = Devices::of(&[gpu("a/0"), gpu("a/1"), gpu("b/0")]);
    decide(&ClaimView::of(claim).unwrap(), leases, &pool, memory, &Terms::default())
}

#[test]
fn an_allocation_becomes_one_lease_of_exactly_its_gpus() {
    let found = decided(&claim(&["a-1", "a-0"], json!({})), &[], &Memory::default());
    let [Action::AddFinalizer, Action::CreateLease { key, request }] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(key.starts_with("kube-u1-") && key.ends_with("-0"), "{key}");
    assert_eq!(request.gpu_ids, ["a/0".parse().unwrap(), "a/1".parse().unwrap()]);
    assert_eq!((request.gpus, request.topology), (2, pool_api::Topology::SameBox));
    assert_eq!((request.label.as_str(), request.note.as_str()), ("kube-u1", "kubernetes default/train"));
    // What another driver has allocated is none of the pool's business.
    let others = json!({"status": {"allocation": {"devices": {"results": [
        {"driver": "nic.example", "pool": "p", "device": "n0", "request": "r"}]}}}});
    assert_eq!(decided(&claim(&[], others), &[], &Memory::default()), []);
}

#[test]
fn the_key_is_another_for_another_allocation_and_another_attempt() {
    let key = |claim: &ResourceClaim, leases: &[Lease]| match decided(claim, leases, &Memory::default()).pop()
    {
        Some(Action::CreateLease { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    let first = key(&claim(&["a-0"], json!({})), &[]);
    assert_eq!(key(&claim(&["a-0"], json!({})), &[]), first);
    assert_ne!(key(&claim(&["a-1"], json!({})), &[]), first);
    assert_ne!(key(&claim(&["a-0"], json!({})), &[lease("kube-u1", &["a/0"], "ended")]), first);
    let later = json!({"status": {"allocation": {"allocationTimestamp": "2026-11-16T12:00:00Z"}}});
    assert_ne!(key(&claim(&["a-0"], later), &[]), first);
}

#[test]
fn granted_is_said_of_the_lease_with_the_allocated_gpus_alone() {
    let held = json!({"metadata": {"finalizers": [FINALIZER]}});
    let asked = claim(&["a-0"], held.clone());
    let found = decided(&asked, &[lease("kube-u1", &["a/0"], "granted")], &Memory::default());
    let [Action::Say(word)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((word.verdict, word.devices.as_slice()), (Verdict::Granted, &["a-0".to_owned()][..]));
    let mut said = asked.clone();
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    write_word(&mut said, word, &now);
    assert_eq!(ClaimView::of(&said).unwrap().said, Said::Granted);
    assert_eq!(decided(&said, &[lease("kube-u1", &["a/0"], "granted")], &Memory::default()), []);
    // A lease of an earlier allocation is returned before the next one is asked for.
    let found = decided(&asked, &[lease("kube-u1", &["a/1"], "granted")], &Memory::default());
    assert!(
        matches!(found.as_slice(), [Action::ReturnLease { .. }, Action::CreateLease { .. }]),
        "{found:?}"
    );
}

#[test]
fn a_refusal_is_said_and_a_lease_that_waits_too_long_is_returned_first() {
    let asked = claim(&["a-0"], json!({"metadata": {"finalizers": [FINALIZER]}}));
    let refused = Memory { refusal: Some("no more".into()), waited_ms: 0 };
    let found = decided(&asked, &[], &refused);
    let [Action::Say(word)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((word.verdict, word.message.as_str()), (Verdict::Refused, "no more"));
    let patient = Memory { refusal: None, waited_ms: 20_000 };
    let found = decided(&asked, &[lease("kube-u1", &["a/0"], "pending")], &patient);
    let [Action::ReturnLease { .. }, Action::Say(word)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(word.verdict, Verdict::Refused);
    // A device that the pool does not know, and parameters that it does not understand.
    let found = decided(&claim(&["z-9"], json!({})), &[], &Memory::default());
    assert!(matches!(found.as_slice(), [Action::Say(word)] if word.message.contains("z-9")), "{found:?}");
    let odd = json!({"status": {"allocation": {"devices": {"config": [{"source": "FromClaim", "opaque":
        {"driver": DRIVER, "parameters": {"apiVersion": API_VERSION, "kind": CONFIG_KIND, "colour": "red"}}}]}}}});
    let found = decided(&claim(&["a-0"], odd), &[], &Memory::default());
    assert!(matches!(found.as_slice(), [Action::Say(word)] if word.message.contains("colour")), "{found:?}");
}

#[test]
fn the_claims_parameters_count_before_those_of_the_class() {
    let config = |source: &str, survive: &str| {
        json!({"source": source, "requests": ["gpu"], "opaque": {"driver": DRIVER,
        "parameters": {"apiVersion": API_VERSION, "kind": CONFIG_KIND, "survive": survive}}})
    };
    let both = json!({"status": {"allocation": {"devices": {"config":
        [config("FromClass", "off"), config("FromClaim", "on")]}}}});
    let found = decided(&claim(&["a-0"], both), &[], &Memory::default());
    let Some(Action::CreateLease { request, .. }) = found.last() else { panic!("{found:?}") };
    assert_eq!(request.survive, pool_api::Survive::Gpu);
}

#[test]
fn a_claim_without_allocation_returns_its_lease_before_its_finalizer_goes() {
    let gone = json!({"metadata": {"finalizers": [FINALIZER]}, "status": {"allocation": null}});
    let found = decided(&claim(&[], gone), &[lease("kube-u1", &["a/0"], "granted")], &Memory::default());
    assert!(matches!(found.as_slice(), [Action::ReturnLease { .. }, Action::RemoveFinalizer]), "{found:?}");
    // Deleted, but its pod still runs.
    let deleted =
        json!({"metadata": {"finalizers": [FINALIZER], "deletionTimestamp": "2026-11-16T12:00:00Z"}});
    let found =
        decided(&claim(&["a-0"], deleted), &[lease("kube-u1", &["a/0"], "granted")], &Memory::default());
    assert!(matches!(found.as_slice(), [Action::Say(_)]), "{found:?}");
}

#[test]
fn only_leases_of_this_owner_can_be_orphans() {
    let mut foreign = lease("kube-u9", &["a/0"], "granted");
    foreign.owner = "spiffe://dxpu/tenant/kube/other-cluster".into();
    let own = lease("kube-u8", &["a/1"], "granted");
    let people = lease("", &["b/0"], "granted");
    let all = [foreign, own.clone(), people, lease("kube-u1", &["b/1"], "granted")];
    assert_eq!(orphans(&all, OWNER, |uid| uid == "u1"), [own.id]);
}

static NOBODY: BTreeSet<String> = BTreeSet::new();

fn pool<'a>(gpus: &'a [Gpu], boxes: &'a [BoxRecord], leases: &'a [Lease]) -> PoolView<'a> {
    PoolView { gpus, boxes, leases, owner: OWNER, survivors: &NOBODY, bind: Bind::WhenGranted }
}

#[test]
fn a_device_says_what_its_gpu_is_and_waits_for_its_lease() {
    let found = devices(&pool(&[gpu("a/3")], &[a_box("a")], &[]));
    let [device] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(device.name, "a-3");
    let written = serde_json::to_value(device).unwrap();
    assert_eq!(written["attributes"]["model"]["string"], "H200");
    assert_eq!(written["attributes"]["nvlinkGroup"]["string"], "2.a");
    assert_eq!(written["capacity"]["memory"]["value"], (141u64 << 30).to_string());
    assert_eq!(written["bindsToNode"], true);
    assert_eq!(written["bindingConditions"], json!([CONDITION_GRANTED]));
    assert_eq!(written["bindingFailureConditions"], json!([CONDITION_REFUSED]));
    assert!(written.get("taints").is_none());
    let at_once = devices(&PoolView { bind: Bind::AtOnce, ..pool(&[gpu("a/3")], &[a_box("a")], &[]) });
    let written = serde_json::to_value(&at_once[0]).unwrap();
    for field in ["bindsToNode", "bindingConditions", "bindingFailureConditions"] {
        assert!(written.get(field).is_none(), "{field}");
    }
}

#[test]
fn the_pod_of_a_claim_that_is_to_restart_is_evicted_even_if_its_program_could_survive() {
    let mut broken = gpu("a/0");
    broken.state = GpuState::Bad;
    let mut can_survive = lease("kube-u1", &["a/0"], "granted");
    can_survive.request.survive = pool_api::Survive::Gpu;
    let (gpus, boxes, leases) = ([broken], [a_box("a")], [can_survive]);
    let effect = |on_loss: &str| {
        let parameters =
            json!({"apiVersion": API_VERSION, "kind": CONFIG_KIND, "survive": "on", "onLoss": on_loss});
        let config = json!({"status": {"allocation": {"devices": {"config": [
            {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}]}}}});
        let view = ClaimView::of(&claim(&["a-0"], config)).unwrap();
        let survivors: BTreeSet<String> = survives(&view).then(|| view.uid.clone()).into_iter().collect();
        let found = devices(&PoolView { survivors: &survivors, ..pool(&gpus, &boxes, &leases) });
        found[0].taints.as_ref().unwrap()[0].effect.clone()
    };
    assert_eq!(effect("restart"), "NoExecute");
    assert_eq!(effect("survive"), "NoSchedule");
}

#[test]
fn what_others_have_is_left_out_and_what_is_lost_or_drained_is_tainted() {
    let of = |change: &dyn Fn(&mut Gpu), owner: &dyn Fn(&mut BoxRecord), leases: &[Lease]| {
        let (mut gpu, mut record) = (gpu("a/0"), a_box("a"));
        change(&mut gpu);
        owner(&mut record);
        let found = devices(&pool(&[gpu], &[record], leases));
        found.first().map(|device| {
            let taints = device.taints.iter().flatten();
            taints.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect::<Vec<_>>()
        })
    };
    let leased: &dyn Fn(&mut Gpu) = &|gpu| gpu.state = GpuState::Leased;
    let same: &dyn Fn(&mut BoxRecord) = &|_| {};
    assert_eq!(of(leased, same, &[]), None, "another borrower has it");
    assert_eq!(of(leased, same, &[lease("", &["a/0"], "granted")]), None, "a person has it");
    assert_eq!(of(leased, same, &[lease("kube-u1", &["a/0"], "granted")]), Some(vec![]));
    assert_eq!(of(&|gpu| gpu.spare = true, same, &[]), None);
    assert_eq!(of(&|gpu| gpu.only_pcie = true, same, &[]), None);
    let bad: &dyn Fn(&mut Gpu) = &|gpu| gpu.state = GpuState::Bad;
    assert_eq!(of(bad, same, &[]), Some(vec!["dxpu.dev/lost:NoExecute".into()]));
    let taint = |drain| Some(Taint { reason: "fans".into(), by: "ann".into(), since_ms: 1, drain });
    assert_eq!(
        of(&|gpu| gpu.taint = taint(false), same, &[]),
        Some(vec!["dxpu.dev/tainted:NoSchedule".into()])
    );
    assert_eq!(
        of(&|gpu| gpu.taint = taint(true), same, &[]),
        Some(vec!["dxpu.dev/drained:NoExecute".into()])
    );
    let dead: &dyn Fn(&mut BoxRecord) = &|owner| owner.state = BoxState::Dead;
    assert_eq!(of(&|_| {}, dead, &[]), Some(vec!["dxpu.dev/lost:NoExecute".into()]));
    let silent: &dyn Fn(&mut BoxRecord) = &|owner| owner.state = BoxState::Suspect;
    assert_eq!(of(&|_| {}, silent, &[]), Some(vec!["dxpu.dev/silent:NoSchedule".into()]));
}

fn apply(seen: &mut Vec<ResourceSlice>, changes: Vec<SliceChange>) {
    for change in changes {
        match change {
            SliceChange::Create(slice) => seen.push(*slice),
            SliceChange::Replace(slice) => {
                let at = seen.iter().position(|old| old.metadata.name == slice.metadata.name).unwrap();
                seen[at] = *slice;
            }
            SliceChange::Delete(name) => seen.retain(|old| old.metadata.name.as_deref() != Some(&name)),
        }
    }
}

#[test]
fn a_pool_is_cut_into_slices_of_one_generation_that_grows_with_every_change() {
    let gpus: Vec<Gpu> = (0..150).map(|index| gpu(&format!("box{:03}/{}", index / 8, index % 8))).collect();
    let boxes: Vec<BoxRecord> = (0..19).map(|index| a_box(&format!("box{index:03}"))).collect();
    let all = devices(&pool(&gpus, &boxes, &[]));
    let mut seen = Vec::new();
    let changes = plan(all.clone(), &Nodes::All, &seen);
    apply(&mut seen, changes);
    let sizes: Vec<usize> = seen.iter().map(|slice| slice.spec.devices.as_ref().unwrap().len()).collect();
    assert_eq!(sizes, [64, 64, 22]);
    assert!(
        seen.iter().all(|slice| slice.spec.pool.resource_slice_count == 3 && slice.spec.pool.generation == 1)
    );
    assert!(seen.iter().all(|slice| slice.spec.all_nodes == Some(true)));
    // A server that drops a field it does not serve does not make the driver write for ever.
    for slice in &mut seen {
        slice.spec.devices.iter_mut().flatten().for_each(|device| device.binding_conditions = None);
    }
    assert_eq!(plan(all.clone(), &Nodes::All, &seen), []);
    let fewer = all[..100].to_vec();
    let changes = plan(fewer, &Nodes::All, &seen);
    apply(&mut seen, changes);
    assert_eq!(seen.len(), 2);
    assert!(
        seen.iter().all(|slice| slice.spec.pool.resource_slice_count == 2 && slice.spec.pool.generation == 2)
    );
    let changes = plan(Vec::new(), &Nodes::All, &seen);
    apply(&mut seen, changes);
    assert_eq!((seen.len(), seen[0].spec.pool.generation), (1, 3), "an empty pool keeps counting");
}
