//! From the first start to a lease that is over.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use pool_api::{Gpu, GpuState, Lease, LeaseRequest, LeaseState, Model, Page, TaintRequest, Want, WhoAmI};
use pool_client::{ClientError, idempotency_key};

use crate::bed::Bed;

fn no_wait() -> Duration {
    Duration::ZERO
}

/// How long a request may wait for a change: half the time to live of a lease, the most that the manager lets a borrower
/// wait. At its end the manager answers with what was so when the wait began.
const POLL: Duration = Duration::from_secs(15);

#[test]
fn the_first_admin_is_written_for_its_owner_alone_and_only_once() {
    let bed = Bed::make();
    let mode = std::fs::metadata(&bed.admin_file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let me: WhoAmI = bed.admin.get("/v1/whoami", no_wait()).unwrap();
    assert_eq!((me.identity.as_str(), me.role.as_str()), ("spiffe://dxpu/admin/first", "admin"));
    let before = std::fs::read(&bed.admin_file).unwrap();
    let second = pool_manager::Manager::start(crate::bed::settings(
        bed.store.clone(),
        bed.folder.path().join("second.json"),
        "m2",
    ));
    drop(second.unwrap());
    assert_eq!(std::fs::read(&bed.admin_file).unwrap(), before);
    assert!(!bed.folder.path().join("second.json").exists());
}

#[test]
fn a_lease_goes_from_request_to_token_to_release() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 2);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");

    let request =
        LeaseRequest { gpus: 2, model: Some(Model::new("H200").unwrap()), ..LeaseRequest::default() };
    let key = idempotency_key();
    let lease = ada.create_lease(&request, &key).unwrap();
    assert_eq!((lease.state, lease.grants.len()), (LeaseState::Granted, 2));
    assert_eq!(lease.tenant.as_str(), "vision");
    assert_eq!(ada.create_lease(&request, &key).unwrap().id, lease.id, "the same key, the same lease");

    let tokens = ada.lease_tokens(lease.id).unwrap();
    let orders = gpu_box.turn();
    let keys: Vec<pool_auth::LeasePublicKey> =
        orders.lease_keys.iter().map(|key| key.parse().unwrap()).collect();
    for grant in &tokens.grants {
        let slot = u16::from(grant.gpu.slot);
        let claims =
            pool_auth::lease_token::verify(&grant.token, &keys, "rack1-a", slot, orders.now_ms).unwrap();
        assert_eq!((claims.epoch, claims.lease.as_str()), (grant.epoch, lease.id.to_string().as_str()));
        assert!(pool_auth::lease_token::verify(&grant.token, &keys, "rack1-b", slot, orders.now_ms).is_err());
    }
    assert!(orders.slots.iter().all(|order| matches!(order.want, Want::Serve { .. })), "{orders:?}");

    // No other lease gets them: the next one waits, and says why.
    let waiting = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!(waiting.state, LeaseState::Pending);
    let why: pool_api::Explanation =
        ada.get(&format!("/v1/leases/{}/explain", waiting.id), no_wait()).unwrap();
    assert!(!why.reasons.is_empty() && !why.remedies.is_empty(), "{why:?}");

    // A long poll hears of the grant when the box has cleaned.
    let renewed = ada.renew_lease(lease.id).unwrap();
    assert!(renewed.expires_ms >= lease.expires_ms);
    assert_eq!(ada.release_lease(lease.id).unwrap().state, LeaseState::Releasing);
    let poll = std::thread::spawn(move || {
        let lease = ada.wait_for_lease(waiting.id, waiting.version, POLL).unwrap();
        (ada, lease)
    });
    bed.wait_for_waiting(1);
    gpu_box.turn();
    let (ada, granted) = poll.join().unwrap();
    assert_eq!(granted.state, LeaseState::Granted, "woken by the grant, not by the end of its time");
    let epochs: Vec<u64> = granted.grants.iter().map(|grant| grant.epoch).collect();
    assert_eq!(epochs, [2], "an epoch later");
    let over: Lease = ada.get(&format!("/v1/leases/{}", lease.id), no_wait()).unwrap();
    assert_eq!(over.state, LeaseState::Ended);

    let trail = bed.trail();
    for action in ["token.make", "access.join", "lease.create", "lease.release"] {
        assert!(trail.iter().any(|entry| entry.action == action), "{action}");
    }
}

#[test]
fn a_report_waits_for_news_and_hears_of_it_at_once() {
    let bed = Bed::with(|settings| {
        // The next report is not due before the wait is over.
        settings.ledger.report_after_ms = 2 * POLL.as_millis() as u64;
        settings.ledger.suspect_after_ms = 2 * settings.ledger.report_after_ms;
        settings.ledger.dead_after_ms = 4 * settings.ledger.report_after_ms;
    });
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    gpu_box.report.sequence += 1;
    let waiting =
        std::thread::spawn(move || gpu_box.client.report(&gpu_box.name, &gpu_box.report, POLL).unwrap());
    bed.wait_for_waiting(1);
    bed.admin.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let orders = waiting.join().unwrap();
    // At the end of its time it would have heard that its slot is idle, as it was when the wait began.
    assert!(matches!(orders.slots[0].want, Want::Serve { .. }), "{orders:?}");
}

#[test]
fn a_broken_gpu_is_replaced_and_comes_back_after_a_burn_in() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 2);
    gpu_box.turn();
    let lease = bed.admin.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let lost = lease.grants[0].gpu.clone();
    let broken: Gpu =
        bed.admin.post(&format!("/v1/gpus/{lost}/break"), &TaintRequest::default(), None, no_wait()).unwrap();
    assert_eq!(broken.state, GpuState::Bad);
    let moved = bed.admin.wait_for_lease(lease.id, lease.version, Duration::from_secs(5)).unwrap();
    assert_eq!(moved.state, LeaseState::Granted);
    assert_ne!(moved.grants[0].gpu, lost);
    assert_eq!(moved.moves.last().unwrap().from, lost);
    let repaired: Gpu = bed.admin.post_empty(&format!("/v1/gpus/{lost}/repair")).unwrap();
    assert_eq!(repaired.state, GpuState::BurnIn);
}

#[test]
fn lists_have_pages_and_wait_for_changes() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 3);
    gpu_box.turn();
    let first: Page<Gpu> = bed.admin.get("/v1/gpus?limit=2", no_wait()).unwrap();
    assert_eq!((first.items.len(), first.next.as_deref()), (2, Some("rack1-a/1")));
    let second: Page<Gpu> = bed.admin.get("/v1/gpus?limit=2&after=rack1-a%2F1", no_wait()).unwrap();
    assert_eq!((second.items.len(), second.next), (1, None));
    let (began, version) = (Instant::now(), second.version);
    let quiet: Page<Gpu> =
        bed.admin.get(&format!("/v1/gpus?wait_ms=300&version={version}"), no_wait()).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(300) && quiet.version == version);
}

#[test]
fn metrics_speak_of_gpus_as_dcgm_does() {
    let bed = Bed::make();
    bed.join("rack1-a", 1).turn();
    let text = bed.admin.get_text("/metrics").unwrap();
    let labels = r#"{gpu="0",UUID="GPU-rack1-a-0",modelName="H200",Hostname="rack1-a"}"#;
    for (metric, value) in [
        ("DCGM_FI_DEV_GPU_UTIL", "7"),
        ("DCGM_FI_DEV_FB_USED", "1024"),
        ("DCGM_FI_DEV_GPU_TEMP", "41"),
        ("DCGM_FI_DEV_POWER_USAGE", "120.5"),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0"),
        ("DCGM_FI_PROF_SM_ACTIVE", "0.37"),
        ("DCGM_FI_PROF_SM_OCCUPANCY", "0.12"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "0.05"),
    ] {
        assert!(text.contains(&format!("{metric}{labels} {value}\n")), "{metric} in {text}");
    }
    assert!(text.contains("dxpu_gpus{model=\"H200\",state=\"free\"} 1\n"), "{text}");
    // A GPU before Hopper: what it does not measure is not zero.
    let mut older = bed.join("rack1-b", 1);
    let counters = older.report.gpus[0].counters.as_mut().unwrap();
    (counters.sm_activity_pct, counters.dram_activity_pct) = (None, None);
    older.turn();
    let text = bed.admin.get_text("/metrics").unwrap();
    assert_eq!(text.matches("DCGM_FI_PROF_SM_ACTIVE{").count(), 1, "{text}");
    assert_eq!(text.matches("DCGM_FI_PROF_SM_OCCUPANCY{").count(), 2, "{text}");
    let viewer = bed.user("spiffe://dxpu/viewer/prometheus");
    assert!(viewer.get_text("/metrics").is_ok());
    let tenant = bed.user("spiffe://dxpu/tenant/vision/ada");
    assert!(matches!(tenant.get_text("/metrics"), Err(ClientError::Refused(_))));
}

/// Set to write the checked-in document anew.
const WRITE_OPENAPI: &str = "DXPU_WRITE_OPENAPI";

/// Clients are made from the checked-in document, and reviewers see in it what a change does to them.
#[test]
fn the_checked_in_document_is_the_one_that_is_served() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/generated/openapi.json");
    let bed = Bed::make();
    let served: serde_json::Value = bed.admin.get("/openapi.json", no_wait()).unwrap();
    if std::env::var_os(WRITE_OPENAPI).is_some() {
        std::fs::write(&path, format!("{served:#}\n")).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let checked_in: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    assert!(
        checked_in == served,
        "docs/generated/openapi.json is not what the manager serves. If the API was meant to change, run \
         `{WRITE_OPENAPI}=1 cargo test -p pool-manager --test it checked_in_document` and commit the file"
    );
}

#[test]
fn the_document_describes_every_route() {
    let document = pool_manager::openapi();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 30, "{}", paths.len());
    let mut names = std::collections::BTreeSet::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name), "{name} is there twice");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.keys().any(|code| code.starts_with('2')), "{method} {path}");
            for (code, response) in responses {
                let content = response["content"].as_object();
                assert!(content.is_some_and(|content| !content.is_empty()), "{method} {path} {code}");
            }
        }
    }
}

#[test]
fn a_tenant_sees_capacity_and_its_own_usage_and_an_operator_cordons_and_removes() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 2);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let lease = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!(lease.state, LeaseState::Granted);
    let seen: Vec<pool_api::Capacity> = ada.get("/v1/capacity", no_wait()).unwrap();
    assert_eq!((seen[0].working, seen[0].free, seen[0].used_milli), (2, 1, 1000), "{seen:?}");
    let other = bed.user("spiffe://dxpu/tenant/speech/bob");
    let used = |client: &pool_client::Client| {
        client.get::<pool_api::Page<pool_api::TenantUsage>>("/v1/usage", no_wait()).unwrap().items
    };
    assert_eq!(used(&ada).len(), 1);
    assert!(used(&other).is_empty(), "tenants see their own alone");
    assert_eq!(used(&bed.admin)[0].tenant.as_str(), "vision");

    let reason = pool_api::TaintRequest { reason: "fan".to_owned() };
    let cordoned: pool_api::BoxRecord =
        bed.admin.post("/v1/boxes/rack1-a/cordon", &reason, None, no_wait()).unwrap();
    assert!(cordoned.drain.is_some_and(|drain| !drain.drain));
    assert_eq!(ada.renew_lease(lease.id).unwrap().grants, lease.grants, "it kills nothing");
    let waits = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    assert_eq!(waits.state, LeaseState::Pending, "and lets nothing new in");
    let refused = bed.admin.delete::<pool_api::BoxRecord>("/v1/boxes/rack1-a").unwrap_err();
    assert_eq!(refused.code(), Some(pool_api::ErrorCode::Conflict), "{refused}");
}

/// Programs that share a lease have tokens with limits of their own, never above what the lease has.
#[test]
fn a_lease_has_parts_with_limits_of_their_own() {
    let bed = Bed::make();
    let mut gpu_box = bed.join("rack1-a", 1);
    gpu_box.turn();
    let ada = bed.user("spiffe://dxpu/tenant/vision/ada");
    let lease = ada.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
    let orders = gpu_box.turn();
    let keys: Vec<pool_auth::LeasePublicKey> =
        orders.lease_keys.iter().map(|key| key.parse().unwrap()).collect();
    // A tenant cannot list GPUs, but it knows how large its own is.
    let whole = ada.lease_tokens(lease.id).unwrap().grants[0].memory_bytes;
    assert_eq!(whole, bed.admin.gpus().unwrap()[0].memory_bytes);
    let claims = |memory_bytes: u64| {
        let tokens = ada.part_tokens(lease.id, &"ada.1".parse().unwrap(), memory_bytes).unwrap();
        assert_eq!(tokens.grants[0].memory_bytes, memory_bytes.min(whole));
        pool_auth::lease_token::verify(&tokens.grants[0].token, &keys, "rack1-a", 0, orders.now_ms).unwrap()
    };
    let part = claims(1 << 20);
    assert_eq!((part.memory_bytes, part.part.as_deref()), (1 << 20, Some("ada.1")));
    assert_eq!(claims(u64::MAX).memory_bytes, whole);
    for wrong in ["part=ada.1", "memory_bytes=7", "part=ada.1&memory_bytes=0", "part=A&memory_bytes=7"] {
        let path = format!("/v1/leases/{}/tokens?{wrong}", lease.id);
        assert!(ada.get::<pool_api::LeaseTokens>(&path, no_wait()).is_err(), "{wrong}");
    }
}
