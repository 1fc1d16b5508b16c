//! What the audit trail tells, and what no caller can make it forget.

use std::time::Duration;

use pool_api::{AuditOutcome, ErrorCode, LeaseRequest};
use pool_client::idempotency_key;

use crate::bed::Bed;

const EVE: &str = "spiffe://dxpu/tenant/speech/eve";

#[test]
fn a_request_that_is_sent_again_is_no_new_entry() {
    let bed = Bed::make();
    bed.join("rack1-a", 2).turn();
    let eve = bed.user(EVE);
    let key = idempotency_key();
    let lease = eve.create_lease(&LeaseRequest::default(), &key).unwrap();
    for _ in 0..50 {
        assert_eq!(eve.create_lease(&LeaseRequest::default(), &key).unwrap().id, lease.id);
    }
    for _ in 0..50 {
        eve.release_lease(lease.id).unwrap();
    }
    let trail = bed.trail();
    let count =
        |action: &str| trail.iter().filter(|entry| entry.actor == EVE && entry.action == action).count();
    assert_eq!((count("lease.create"), count("lease.release")), (1, 1));
}

#[test]
fn who_is_refused_is_named_and_counted_under_that_name() {
    let bed = Bed::make();
    let eve = bed.user(EVE);
    for _ in 0..30 {
        let refused = eve.get::<serde_json::Value>("/v1/boxes", Duration::ZERO).unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Forbidden));
    }
    // Its role does not include it, but the trail names it.
    let entry = bed.audited(|entry| entry.action == "box.list" && entry.outcome == AuditOutcome::Denied);
    assert_eq!((entry.actor.as_str(), entry.book.as_str()), (EVE, "tenant/speech"));
    assert!(entry.detail.contains("may not do this"), "{entry:?}");
    let counted = bed.audited(|entry| entry.detail.contains("more refusals within"));
    assert_eq!((counted.actor.as_str(), counted.action.as_str()), (EVE, "box.list"));
    assert!(!bed.trail().iter().any(|entry| entry.actor == "anonymous" && entry.action == "box.list"));
}

#[test]
fn a_flood_of_one_tenant_leaves_what_others_did() {
    let bed = Bed::make();
    let eve = bed.user(EVE);
    let mut last = None;
    for _ in 0..200 {
        let lease = eve.create_lease(&LeaseRequest::default(), &idempotency_key()).unwrap();
        last = Some(eve.release_lease(lease.id).unwrap());
    }
    assert!(last.is_some());
    let trail = bed.trail();
    let of = |book: &str| trail.iter().filter(|entry| entry.book == book).count();
    assert_eq!(of("tenant/speech"), 400);
    assert!(trail.iter().any(|entry| entry.book == "operators" && entry.action == "token.make"));
}
