//! Leases whose programs outlive losses, by HTTP.

use std::time::Duration;

use pool_api::{
    AuditOutcome, BoxRecord, DrilledRequest, ErrorCode, GpuState, Lease, LeaseRequest, LeaseState,
    LinkProtection, LostRequest, MoveRequest, MovedRequest, ParkedRequest, ProtectionReport, ProtectionState,
    Survive, TaintRequest, Verdict, Want,
};
use pool_client::{Client, ClientError, idempotency_key};

use crate::bed::Bed;

fn surviving() -> LeaseRequest {
    LeaseRequest { survive: Survive::Gpu, ttl_ms: 3_600_000, ..LeaseRequest::default() }
}

/// A pool whose boxes may be silent for as long as a slow machine takes: they report when a test says so.
pub(crate) fn calm() -> Bed {
    Bed::with(|settings| {
        settings.ledger.suspect_after_ms = 3_600_000;
        settings.ledger.dead_after_ms = 7_200_000;
    })
}

fn lost(lease: &Lease) -> LostRequest {
    LostRequest {
        gpu: lease.grants[0].gpu.clone(),
        epoch: lease.grants[0].epoch,
        why: "the link broke".into(),
    }
}

fn second(lease: &Lease, refused: Option<&str>) -> MovedRequest {
    let to = &lease.moving.as_ref().expect("it has a second place").to;
    MovedRequest { gpu: to.gpu.clone(), epoch: to.epoch, refused: refused.map(str::to_owned) }
}

fn parked(lease: &Lease) -> ParkedRequest {
    let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
    ParkedRequest { gpu, epoch, image_bytes: 1 << 30, refused: None }
}

fn link(lease: &Lease) -> LinkProtection {
    LinkProtection {
        gpu: lease.grants[0].gpu.clone(),
        pid: 7,
        state: ProtectionState::Protected,
        why: String::new(),
        cut: 3,
        level: 2,
        safe_age_ms: 400,
        image_bytes: 12 << 30,
        journal_bytes: 5,
        pause_us: 90,
        predicted_ms: 700,
    }
}

#[test]
fn a_borrower_s_word_moves_its_lease_and_is_in_the_trail() {
    let bed = calm();
    let mut gpu_box = bed.join("rack1-a", 2);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let lease = ada.create_lease(&surviving(), &idempotency_key()).unwrap();
    let old = lost(&lease);
    let loss = ada.lost(lease.id, &old).unwrap();
    assert_eq!((loss.verdict, loss.lease.state), (Verdict::Moved, LeaseState::Granted));
    assert_ne!(loss.lease.grants[0].gpu, old.gpu);
    assert_eq!(ada.lost(lease.id, &old).unwrap().verdict, Verdict::Known, "sent again");
    // The box is told to clean, and the GPU is lent again.
    let orders = gpu_box.try_report().unwrap();
    let order = orders.slots.iter().find(|order| order.slot == old.gpu.slot).unwrap();
    assert_eq!(order.want, Want::Clean { epoch: old.epoch });
    gpu_box.turn();
    let gpu: pool_api::Gpu = bed.admin.get(&format!("/v1/gpus/{}", old.gpu), Duration::ZERO).unwrap();
    assert_eq!(gpu.state, GpuState::Free);
    // The token of the new place opens it.
    let tokens = ada.lease_tokens(lease.id).unwrap();
    assert_eq!((tokens.grants[0].epoch, tokens.moving.is_none()), (loss.lease.grants[0].epoch, true));
    // After two words that no box confirms the box decides, and the answer says so.
    let loss = ada.lost(lease.id, &lost(&loss.lease)).unwrap();
    assert_eq!(loss.verdict, Verdict::Moved);
    gpu_box.turn();
    let stays = ada.lost(lease.id, &lost(&loss.lease)).unwrap();
    assert_eq!((stays.verdict, &stays.lease.grants), (Verdict::BoxDecides, &loss.lease.grants));
    assert!(stays.message.contains("box"), "{}", stays.message);
    let trail = bed.trail();
    let words = trail.iter().filter(|entry| entry.action == "lease.lost");
    assert_eq!(words.count(), 2, "one entry for each word that changed something");
}

/// Every word about a lease, said by one client.
fn all_words(client: &Client, lease: &Lease) -> Vec<(&'static str, Result<(), ClientError>)> {
    let id = lease.id;
    let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
    let moved = MovedRequest { gpu: gpu.clone(), epoch, refused: None };
    let drilled = DrilledRequest { gpu, epoch, took_ms: 1, difference: None, refused: None };
    vec![
        ("lease.lost", client.lost(id, &lost(lease)).map(drop)),
        ("lease.move", client.move_lease(id, &MoveRequest::default()).map(drop)),
        ("lease.moved", client.moved(id, &moved).map(drop)),
        ("lease.drill", client.drill_lease(id).map(drop)),
        ("lease.drilled", client.drilled(id, &drilled).map(drop)),
        ("lease.suspend", client.suspend_lease(id).map(drop)),
        ("lease.parked", client.parked(id, &parked(lease)).map(drop)),
        ("lease.resume", client.resume_lease(id).map(drop)),
        ("lease.protection", client.set_protection(id, &ProtectionReport::default()).map(drop)),
        ("lease.protection", client.protection(id).map(drop)),
    ]
}

#[test]
fn strangers_say_nothing_about_a_lease() {
    let bed = calm();
    let mut gpu_box = bed.join("rack1-a", 3);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let lease = ada.create_lease(&surviving(), &idempotency_key()).unwrap();
    for stranger in ["spiffe://dxpu/tenant/greedy/eve", "spiffe://dxpu/viewer/wall"] {
        let client = bed.user(stranger);
        for (action, said) in all_words(&client, &lease) {
            let is_look = action == "lease.protection" && said.is_ok();
            if is_look && stranger.contains("viewer") {
                continue;
            }
            let code = said.expect_err(action).code();
            assert_eq!(code, Some(ErrorCode::Forbidden), "{stranger} {action}");
            bed.audited(|entry| {
                entry.action == action && entry.actor == stranger && entry.outcome == AuditOutcome::Denied
            });
        }
    }
    // A box speaks of GPUs, not of leases.
    let code = gpu_box.client.lost(lease.id, &lost(&lease)).unwrap_err().code();
    assert_eq!(code, Some(ErrorCode::Forbidden));
    let now: Lease = ada.get(&format!("/v1/leases/{}", lease.id), Duration::ZERO).unwrap();
    assert_eq!((now.grants, now.moving, now.suspend_wanted), (lease.grants.clone(), None, false));
    // An operator may, and so may another user of the tenant.
    let operator = bed.user("spiffe://dxpu/operator/night");
    let way = operator.move_lease(lease.id, &MoveRequest::default()).unwrap();
    let bob = bed.user("spiffe://dxpu/tenant/vision/bob");
    bob.moved(lease.id, &second(&way, Some("not now"))).unwrap();
    operator.suspend_lease(lease.id).unwrap();
    assert!(!bob.resume_lease(lease.id).unwrap().suspend_wanted);
}

#[test]
fn a_drained_box_waits_for_the_program_to_go_on_elsewhere() {
    let bed = calm();
    let (mut one, mut two) = (bed.join("rack1-a", 1), bed.join("rack1-b", 1));
    one.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let lease = ada.create_lease(&surviving(), &idempotency_key()).unwrap();
    two.turn();
    let drain = TaintRequest { reason: "new fans".into() };
    bed.admin.post::<BoxRecord>("/v1/boxes/rack1-a/drain", &drain, None, Duration::ZERO).unwrap();
    // The keeper's long poll hears of the second place, and both boxes serve the lease.
    let way = ada.wait_for_lease(lease.id, lease.version, Duration::from_secs(10)).unwrap();
    let to = second(&way, None);
    assert_eq!((way.grants.clone(), to.gpu.to_string().as_str()), (lease.grants.clone(), "rack1-b/0"));
    for gpu_box in [&mut one, &mut two] {
        let want = gpu_box.try_report().unwrap().slots[0].want.clone();
        assert!(matches!(want, Want::Serve { lease: served, .. } if served == lease.id), "{want:?}");
    }
    let tokens = ada.lease_tokens(lease.id).unwrap();
    assert_eq!(tokens.moving.as_ref().map(|grant| grant.epoch), Some(to.epoch));
    let keys: Vec<pool_auth::LeasePublicKey> =
        two.try_report().unwrap().lease_keys.iter().map(|key| key.parse().unwrap()).collect();
    let token = &tokens.moving.unwrap().token;
    let now_ms = two.try_report().unwrap().now_ms;
    assert!(pool_auth::lease_token::verify(token, &keys, "rack1-b", 0, now_ms).is_ok());
    let arrived = ada.moved(lease.id, &to).unwrap();
    assert_eq!((arrived.grants[0].gpu.clone(), arrived.moving), (to.gpu.clone(), None));
    assert!(matches!(one.try_report().unwrap().slots[0].want, Want::Clean { .. }));
    assert_eq!(ada.moved(lease.id, &to).unwrap().grants, arrived.grants, "said again");
}

#[test]
fn a_parked_lease_gives_its_gpu_to_others_until_it_is_resumed() {
    let bed = calm();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let lease = ada.create_lease(&surviving(), &idempotency_key()).unwrap();
    assert!(bed.admin.suspend_lease(lease.id).unwrap().suspend_wanted);
    assert_eq!(ada.parked(lease.id, &parked(&lease)).unwrap().state, LeaseState::Parked);
    gpu_box.turn();
    let other = bed.admin.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!(other.state, LeaseState::Granted);
    assert_eq!(ada.lease_tokens(lease.id).unwrap_err().code(), Some(ErrorCode::Conflict));
    let listed: pool_api::Page<Lease> = ada.get("/v1/leases?state=parked", Duration::ZERO).unwrap();
    assert_eq!(listed.items.len(), 1);
    let waits = ada.resume_lease(lease.id).unwrap();
    assert_eq!((waits.state, waits.id), (LeaseState::Pending, lease.id));
    bed.admin.release_lease(other.id).unwrap();
    gpu_box.turn();
    let back = ada.wait_for_lease(lease.id, waits.version, Duration::from_secs(10)).unwrap();
    assert_eq!(back.state, LeaseState::Granted);
    let late = ada.parked(lease.id, &parked(&lease)).unwrap_err();
    assert_eq!(late.code(), Some(ErrorCode::Conflict), "{late}");
}

#[test]
fn protection_and_the_last_drill_are_shown() {
    let bed = calm();
    let mut gpu_box = bed.join("rack1-a", 2);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let lease = ada.create_lease(&surviving(), &idempotency_key()).unwrap();
    let unknown = ada.protection(lease.id).unwrap();
    assert_eq!((unknown.reported_ms, unknown.links.len(), unknown.last_drill), (None, 0, None));
    ada.set_protection(lease.id, &ProtectionReport { links: vec![link(&lease)] }).unwrap();
    let way = ada.drill_lease(lease.id).unwrap();
    let MovedRequest { gpu, epoch, .. } = second(&way, None);
    let drilled = DrilledRequest { gpu, epoch, took_ms: 640, difference: None, refused: None };
    let over = ada.drilled(lease.id, &drilled).unwrap();
    assert_eq!(
        (over.grants, over.moving),
        (lease.grants.clone(), None),
        "the GPU of the drill is given back"
    );
    let viewer = bed.user("spiffe://dxpu/viewer/wall");
    let known = viewer.protection(lease.id).unwrap();
    assert_eq!(known.links, [link(&lease)]);
    assert!(known.reported_ms.is_some());
    assert_eq!(known.last_drill.map(|drill| (drill.took_ms, drill.difference)), Some((640, None)));
    let wrong = LinkProtection { why: "\u{1b}[2J".into(), ..link(&lease) };
    let refused = ada.set_protection(lease.id, &ProtectionReport { links: vec![wrong] }).unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::BadRequest));
}
