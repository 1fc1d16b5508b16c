//! Claims and their leases, while watches, events, writes and controllers fail.

use kube_claims::Terms;

use crate::bed::{Bed, wait_until};

const GRANTED: &str = "dxpu.dev/granted";

#[test]
fn a_controller_that_is_killed_between_lease_and_condition_is_followed_by_one_that_goes_on() {
    let bed = Bed::make(&[("a", "H200", 2)]);
    bed.server.stall_status(true);
    let first = bed.controller();
    let uid = bed.server.allocated_claim("train", &["a-0"]);
    wait_until("there is a lease", || !bed.leases(&uid, true).is_empty());
    assert_eq!(bed.server.condition("train", GRANTED), None);
    drop(first);
    bed.server.stall_status(false);
    let _second = bed.controller();
    wait_until("granted", || bed.server.is("train", GRANTED));
    assert_eq!(bed.leases(&uid, false).len(), 1, "the same lease");

    // And one that is killed before the lease is returned.
    drop(_second);
    bed.server.delete_claim("train");
    bed.server.deallocate("train");
    assert_eq!(bed.leases(&uid, true).len(), 1);
    assert!(bed.server.get("resourceclaims", "train").is_some(), "the finalizer keeps it");
    let _third = bed.controller();
    wait_until("gone", || bed.server.get("resourceclaims", "train").is_none());
    assert_eq!(bed.leases(&uid, true), []);
}

#[test]
fn lost_watches_forgotten_revisions_and_doubled_events_lose_no_claim() {
    let bed = Bed::make(&[("a", "H200", 6)]);
    let _controller = bed.controller();
    bed.server.allocated_claim("first", &["a-0"]);
    wait_until("granted", || bed.server.is("first", GRANTED));

    let (_, watches, _) = bed.server.counts();
    bed.server.drop_watches(false);
    bed.server.allocated_claim("dropped", &["a-1"]);
    wait_until("granted after a dropped watch", || bed.server.is("dropped", GRANTED));
    wait_until("the watch is taken up again", || bed.server.counts().1 > watches);

    bed.server.mute(true);
    let (_, watches, lists) = bed.server.counts();
    bed.server.allocated_claim("forgotten", &["a-2"]);
    bed.server.drop_watches(true);
    bed.server.mute(false);
    wait_until("granted after 410", || bed.server.is("forgotten", GRANTED));
    wait_until("the claims were listed again", || {
        bed.server.counts().1 > watches && bed.server.counts().2 > lists
    });

    bed.server.double();
    let uid = bed.server.allocated_claim("doubled", &["a-3"]);
    wait_until("granted with doubled events", || bed.server.is("doubled", GRANTED));
    assert_eq!(bed.leases(&uid, false).len(), 1);
}

#[test]
fn an_event_that_never_comes_is_found_by_the_sweep() {
    let bed = Bed::make(&[("a", "H200", 2)]);
    let _controller = bed.controller();
    wait_until("the watch runs", || bed.server.counts().1 > 0);
    bed.server.mute(true);
    let uid = bed.server.allocated_claim("silent", &["a-0"]);
    wait_until("granted", || bed.server.is("silent", GRANTED));
    bed.server.delete_claim("silent");
    bed.server.deallocate("silent");
    wait_until("gone", || bed.server.get("resourceclaims", "silent").is_none());
    assert_eq!(bed.leases(&uid, true), []);
}

#[test]
fn writes_that_others_were_quicker_with_are_made_again() {
    let bed = Bed::make(&[("a", "H200", 2)]);
    let _controller = bed.controller();
    bed.server.interfere(4);
    let uid = bed.server.allocated_claim("busy", &["a-0"]);
    wait_until("granted", || bed.server.is("busy", GRANTED));
    assert!(bed.server.counts().0 >= 1, "there was a conflict");
    assert_eq!(bed.leases(&uid, false).len(), 1);
    assert_eq!(bed.server.get("resourceclaims", "busy").unwrap()["status"]["reservedFor"][0]["name"], "p");
}

#[test]
fn a_lease_is_renewed_as_long_as_its_claim_is_allocated() {
    let bed = Bed::make(&[("a", "H200", 1)]);
    let terms = Terms { ttl_ms: 8_000, ..Terms::default() };
    let _controller = bed.controller_named(None, terms);
    let uid = bed.server.allocated_claim("long", &["a-0"]);
    wait_until("granted", || bed.server.is("long", GRANTED));
    let first = bed.leases(&uid, true).pop().unwrap();
    wait_until("renewed beyond its first time", || {
        bed.leases(&uid, false)
            .iter()
            .any(|lease| lease.id == first.id && lease.expires_ms > first.created_ms + 16_000)
            || bed.leases(&uid, false).len() > 1
    });
    assert_eq!(bed.leases(&uid, false).len(), 1, "it never ended");
}
