//! Claims and their leases, while nothing fails.

use kube_claims::Terms;
use pool_api::LeaseRequest;

use crate::bed::{Bed, wait_until};

const GRANTED: &str = "dxpu.dev/granted";
const REFUSED: &str = "dxpu.dev/refused";

#[test]
fn an_allocated_claim_gets_its_lease_and_gives_it_back() {
    let bed = Bed::make(&[("a", "H200", 4)]);
    let _controller = bed.controller();
    let uid = bed.server.allocated_claim("train", &["a-1", "a-3"]);
    wait_until("granted", || bed.server.is("train", GRANTED));
    let leases = bed.leases(&uid, true);
    let mut gpus: Vec<String> = leases[0].grants.iter().map(|grant| grant.gpu.to_string()).collect();
    gpus.sort();
    assert_eq!((leases.len(), gpus), (1, vec!["a/1".to_owned(), "a/3".to_owned()]));
    assert_eq!(leases[0].request.note, "kubernetes default/train");
    let claim = bed.server.get("resourceclaims", "train").unwrap();
    assert!(claim["metadata"]["finalizers"].to_string().contains("dxpu.dev/lease"));

    // A claim that is deleted stays while its pod runs, and so does its lease.
    bed.server.delete_claim("train");
    let (_, _, lists) = bed.server.counts();
    wait_until("a sweep has looked at it", || bed.server.counts().2 > lists + 1);
    assert_eq!(bed.leases(&uid, true).len(), 1);
    bed.server.deallocate("train");
    wait_until("the claim is gone", || bed.server.get("resourceclaims", "train").is_none());
    assert_eq!(bed.leases(&uid, true), [], "the finalizer goes after the lease");
}

#[test]
fn a_claim_that_is_allocated_again_gets_another_lease() {
    let bed = Bed::make(&[("a", "H200", 2)]);
    let _controller = bed.controller();
    let uid = bed.server.allocated_claim("again", &["a-0"]);
    wait_until("granted", || bed.server.is("again", GRANTED));
    bed.server.deallocate("again");
    wait_until("returned", || bed.leases(&uid, true).is_empty());
    bed.server.allocate("again", &["a-0"]);
    wait_until("granted again", || bed.server.is("again", GRANTED));
    assert_eq!((bed.leases(&uid, true).len(), bed.leases(&uid, false).len()), (1, 2));
}

#[test]
fn what_cannot_be_granted_is_refused_in_words() {
    let bed = Bed::make(&[("a", "H200", 2), ("b", "L40S", 1)]);
    let terms = Terms { patience_ms: 500, ..Terms::default() };
    let other = LeaseRequest { gpu_ids: vec!["a/0".parse().unwrap()], ..LeaseRequest::default() };
    let other = LeaseRequest { ttl_ms: 600_000, ..other };
    bed.admin.create_lease(&other, "other").unwrap();
    let _controller = bed.controller_named(None, terms);
    bed.server.allocated_claim("mixed", &["a-1", "b-0"]);
    bed.server.allocated_claim("unknown", &["z-0"]);
    let taken = bed.server.allocated_claim("taken", &["a-0"]);
    for (claim, words) in
        [("mixed", "one model"), ("unknown", "no GPU for the device z-0"), ("taken", "another borrower")]
    {
        wait_until("refused", || bed.server.is(claim, REFUSED));
        let (_, message) = bed.server.condition(claim, REFUSED).unwrap();
        assert!(message.contains(words), "{message}");
        assert!(!bed.server.is(claim, GRANTED));
    }
    assert_eq!(bed.leases(&taken, true), [], "nothing waits for a refused claim");
}

#[test]
fn leases_without_a_claim_and_claims_without_a_lease_are_mended() {
    let bed = Bed::make(&[("a", "H200", 2)]);
    let lost = LeaseRequest { label: "kube-nobody".into(), ttl_ms: 600_000, ..LeaseRequest::default() };
    let people = LeaseRequest { label: "job-7".into(), ..lost.clone() };
    bed.borrower.create_lease(&lost, "k1").unwrap();
    let _controller = bed.controller();
    wait_until("the orphan is returned", || bed.leases("nobody", true).is_empty());
    let people = bed.borrower.create_lease(&people, "k2").unwrap();
    let free = if people.grants[0].gpu.slot == 0 { "a-1" } else { "a-0" };
    let uid = bed.server.allocated_claim("train", &[free]);
    wait_until("granted", || bed.server.is("train", GRANTED));
    let first = bed.leases(&uid, true)[0].id;
    bed.admin.release_lease(first).unwrap();
    wait_until("there is another lease", || bed.leases(&uid, true).iter().any(|lease| lease.id != first));
    wait_until("granted again", || {
        bed.server.is("train", GRANTED)
            && bed.leases(&uid, true).iter().any(|lease| lease.state == pool_api::LeaseState::Granted)
    });
    assert!(bed.borrower.renew_lease(people.id).is_ok(), "a lease of people is none of its business");
}
