//! The pool as ResourceSlices.

use pool_api::{Health, LeaseRequest};

use crate::bed::{Bed, wait_until};

#[test]
fn the_pool_is_published_and_follows_what_happens_to_it() {
    let bed = Bed::make(&[("a", "H200", 2), ("b", "L40S", 1)]);
    let controller = bed.controller();
    wait_until("three devices", || bed.devices() == ["a-0", "a-1", "b-0"]);
    let generation = || bed.server.all("resourceslices")[0]["spec"]["pool"]["generation"].as_i64().unwrap();
    let first = generation();
    let device = bed.server.all("resourceslices")[0]["spec"]["devices"][0].clone();
    assert_eq!(device["bindingConditions"][0], "dxpu.dev/granted");
    assert_eq!(
        (&device["bindsToNode"], &device["attributes"]["model"]["string"]),
        (&true.into(), &"H200".into())
    );

    // A GPU that a person borrows is not offered, and comes back.
    let other =
        LeaseRequest { gpu_ids: vec!["a/1".parse().unwrap()], ttl_ms: 600_000, ..LeaseRequest::default() };
    let lease = bed.admin.create_lease(&other, "other").unwrap();
    wait_until("a-1 is not offered", || bed.devices() == ["a-0", "b-0"]);
    assert!(generation() > first);
    bed.admin.release_lease(lease.id).unwrap();
    wait_until("a-1 is back", || bed.devices() == ["a-0", "a-1", "b-0"]);

    // One that a claim has stays, and one that breaks is tainted.
    bed.server.allocated_claim("train", &["a-0"]);
    wait_until("granted", || bed.server.is("train", "dxpu.dev/granted"));
    bed.report_of(1, 0, |gpu| gpu.health = Health::bad("Xid 79"));
    wait_until("b-0 is tainted", || bed.devices() == ["a-0", "a-1", "b-0 dxpu.dev/lost"]);

    // The next controller writes nothing that is there already, and mends what a person has changed.
    drop(controller);
    let before = generation();
    let _next = bed.controller();
    bed.server.change("resourceslices", "dxpu-pool-0", |slice| {
        slice["spec"]["devices"] = serde_json::json!([]);
        slice["metadata"]["annotations"] = serde_json::json!({});
    });
    wait_until("mended", || bed.devices() == ["a-0", "a-1", "b-0 dxpu.dev/lost"]);
    assert_eq!(generation(), before + 1);
}
