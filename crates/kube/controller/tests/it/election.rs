//! Several controllers.

use kube_claims::Terms;

use crate::bed::{Bed, wait_until};

#[test]
fn one_controller_leads_and_another_takes_over() {
    let bed = Bed::make(&[("a", "H200", 2)]);
    let first = bed.controller_named(Some("c1"), Terms::default());
    wait_until("the first leads", || first.leads());
    let second = bed.controller_named(Some("c2"), Terms::default());
    bed.server.allocated_claim("one", &["a-0"]);
    wait_until("granted", || bed.server.is("one", "dxpu.dev/granted"));
    let holder = || bed.server.get("leases", "dxpu-controller").unwrap()["spec"]["holderIdentity"].clone();
    assert_eq!((holder(), second.leads()), ("c1".into(), false));
    drop(first);
    wait_until("the second leads", || second.leads());
    assert_eq!(holder(), "c2");
    bed.server.allocated_claim("two", &["a-1"]);
    wait_until("granted by the second", || bed.server.is("two", "dxpu.dev/granted"));
    drop(second);

    // A leader that was killed has not resigned: its time has to pass.
    bed.server.change("leases", "dxpu-controller", |lease| lease["spec"]["holderIdentity"] = "dead".into());
    let third = bed.controller_named(Some("c3"), Terms::default());
    wait_until("the third leads", || third.leads());
    assert_eq!(holder(), "c3");
}
