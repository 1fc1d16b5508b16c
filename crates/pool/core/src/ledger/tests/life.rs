//! The lists of arrows: they agree with their diagrams, refuse what is not listed, and have no arrow that nothing takes.

use super::bench::{Bench, gpu_report, model, name};
use super::guarantees::promise;
use super::hosts::{self, plugged};
use super::*;
use crate::ledger::gpu_life::{self, GpuEvent};
use crate::ledger::lease_life::{self, LeaseEvent};
use crate::ledger::watch::{self, Words};
use pool_api::{BurnIn, Health};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn gpu_arrows() -> BTreeSet<Words> {
    GpuEvent::ARROWS.iter().map(|(from, event, to)| watch::words(from, event, to)).collect()
}

fn lease_arrows() -> BTreeSet<Words> {
    LeaseEvent::ARROWS.iter().map(|(from, event, to)| watch::words(from, event, to)).collect()
}

/// The arrow with which a life begins.
fn birth(word: &str, first: impl std::fmt::Debug) -> Words {
    (word.to_owned(), String::new(), watch::words((), (), first).2)
}

#[test]
fn the_diagrams_show_the_arrows_that_are_listed() {
    let mut listed = gpu_arrows();
    listed.insert(birth("found", gpu_life::FIRST));
    assert_eq!(watch::drawn(include_str!("../gpu_life.rs")), listed);
    let mut listed = lease_arrows();
    listed.insert(birth("asked", lease_life::FIRST));
    assert_eq!(watch::drawn(include_str!("../lease_life.rs")), listed);
}

#[test]
fn an_arrow_that_is_not_listed_is_refused_and_the_state_stays() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 2)]);
    bench.apply(&Command::Break { gpu: "a/1".parse().unwrap(), reason: "demo".into() }).unwrap();
    let lease = bench.lease(LeaseRequest { gpus: 2, ..LeaseRequest::default() });
    let gpu = &mut bench.ledger.entry_mut(&"a/0".parse().unwrap()).unwrap().gpu;
    for &event in GpuEvent::ALL {
        let arrow = GpuEvent::ARROWS.iter().find(|(from, of, _)| (*from, *of) == (GpuState::Free, event));
        let mut gpu = gpu.clone();
        let taken = catch_unwind(AssertUnwindSafe(|| gpu.on(event)));
        assert_eq!(taken.is_ok(), arrow.is_some(), "{event:?}");
        assert_eq!(gpu.state, arrow.map_or(GpuState::Free, |(.., to)| *to), "{event:?}");
        if let Err(told) = taken {
            let told = told.downcast_ref::<String>().unwrap();
            let expected = "cannot happen in state Free: no such arrow is listed";
            assert_eq!(told, &format!("GPU a/0: {event:?} {expected}"));
        }
    }
    let lease = &bench.ledger.leases[&lease.id].lease;
    for &event in LeaseEvent::ALL {
        let arrow =
            LeaseEvent::ARROWS.iter().find(|(from, of, _)| (*from, *of) == (LeaseState::Pending, event));
        let mut lease = lease.clone();
        let taken = catch_unwind(AssertUnwindSafe(|| lease.on(event)));
        assert_eq!(taken.is_ok(), arrow.is_some(), "{event:?}");
        assert_eq!(lease.state, arrow.map_or(LeaseState::Pending, |(.., to)| *to), "{event:?}");
    }
}

/// What a story took that had not been taken before it, in this thread.
struct Story {
    before: BTreeMap<Words, u64>,
}

impl Story {
    fn begin() -> Self {
        Self { before: watch::taken() }
    }

    /// Whether the story has taken this arrow.
    #[track_caller]
    fn took(&self, from: &str, event: &str, to: &str) {
        let arrow = (from.to_owned(), event.to_owned(), to.to_owned());
        let (now, before) = (watch::taken(), &self.before);
        let count = |taken: &BTreeMap<Words, u64>| taken.get(&arrow).copied().unwrap_or_default();
        assert!(count(&now) > count(before), "{arrow:?} was not taken: {now:#?}");
    }
}

fn one_gpu() -> (Bench, GpuId) {
    (Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]), "a/0".parse().unwrap())
}

fn break_it(bench: &mut Bench, gpu: &GpuId) {
    bench.apply(&Command::Break { gpu: gpu.clone(), reason: "demo".into() }).unwrap();
}

fn take_out(bench: &mut Bench) {
    bench.forget_slot("a", 0);
    bench.report("a");
}

fn put_in(bench: &mut Bench, uuid: &str, cleaned_epoch: u64) {
    let mut report = gpu_report("H200", 0, BoxKind::Pcie);
    (report.uuid, report.cleaned_epoch) = (uuid.to_owned(), cleaned_epoch);
    bench.add_slot("a", report);
    bench.report("a");
}

fn leased_and_cleaned() {
    let story = Story::begin();
    let (mut bench, _) = one_gpu();
    story.took("cleaning", "cleaned", "free");
    let lease = bench.lease(LeaseRequest::default());
    story.took("free", "granted", "leased");
    story.took("pending", "served", "granted");
    bench.release(lease.id);
    story.took("leased", "vacated", "cleaning");
    story.took("granted", "released", "releasing");
    bench.settle();
    story.took("releasing", "emptied", "ended");
    // The box was set up anew and knows of nothing.
    bench.slot("a", 0).cleaned_epoch = 0;
    bench.report("a");
    story.took("free", "soiled", "cleaning");
}

fn thrown_out_by_its_box() {
    let story = Story::begin();
    let (mut bench, _) = one_gpu();
    let lease = bench.lease(LeaseRequest::default());
    bench.slot("a", 0).cleaned_epoch = lease.grants[0].epoch;
    bench.report("a");
    story.took("leased", "vacatedclean", "free");
    assert_eq!(bench.show(lease.id).grants[0].epoch, lease.grants[0].epoch + 1, "it starts again");
}

fn kept_for_its_lease() {
    let story = Story::begin();
    let (mut bench, mut host) = hosts::bench(1);
    let lease = bench.lease(plugged(1));
    hosts::settle(&mut bench, &mut host);
    host.slots[0].cleared_epoch = lease.grants[0].epoch;
    host.turn(&mut bench);
    story.took("cleaning", "resumed", "leased");
}

fn out_of_its_slot_and_in_again() {
    let story = Story::begin();
    let (mut bench, _) = one_gpu();
    bench.slot("a", 0).uuid = "another".into();
    bench.report("a");
    story.took("free", "swapped", "cleaning");
    bench.settle();
    take_out(&mut bench);
    story.took("free", "missed", "absent");
    put_in(&mut bench, "another", 1);
    story.took("absent", "returned", "cleaning");
    take_out(&mut bench);
    put_in(&mut bench, "a third", 1);
    story.took("absent", "swapped", "cleaning");
    take_out(&mut bench);
    story.took("cleaning", "missed", "absent");

    let (mut bench, _) = one_gpu();
    bench.lease(LeaseRequest::default());
    take_out(&mut bench);
    story.took("leased", "missed", "absent");
    story.took("granted", "requeued", "pending");
}

fn bad_from_everywhere() {
    let story = Story::begin();
    let (mut bench, gpu) = one_gpu();
    break_it(&mut bench, &gpu);
    story.took("free", "failed", "bad");
    bench.apply(&Command::Repair { gpu: gpu.clone() }).unwrap();
    story.took("bad", "repaired", "burnin");
    break_it(&mut bench, &gpu);
    story.took("burnin", "failed", "bad");
    for passed in [false, true] {
        bench.apply(&Command::Repair { gpu: gpu.clone() }).unwrap();
        let epoch = bench.gpu("a/0").epoch;
        bench.slot("a", 0).burn_in = Some(BurnIn { epoch, passed, detail: String::new() });
        bench.report("a");
    }
    story.took("burnin", "burninfailed", "bad");
    story.took("burnin", "burninpassed", "cleaning");
    break_it(&mut bench, &gpu);
    story.took("cleaning", "failed", "bad");

    let (mut bench, gpu) = one_gpu();
    take_out(&mut bench);
    break_it(&mut bench, &gpu);
    story.took("absent", "failed", "bad");

    let (mut bench, _) = one_gpu();
    bench.lease(LeaseRequest::default());
    bench.slot("a", 0).health = Health::bad("XID 79");
    bench.report("a");
    story.took("leased", "failed", "bad");
}

fn ended_in_every_way() {
    let story = Story::begin();
    let (mut bench, _) = one_gpu();
    bench.lease(LeaseRequest::default());
    bench.lease(LeaseRequest::default());
    let given_up = bench.lease(LeaseRequest::default());
    bench.release(given_up.id);
    story.took("pending", "released", "releasing");
    bench.pass(40_000);
    story.took("granted", "expired", "releasing");
    story.took("pending", "expired", "releasing");

    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    promise(&mut bench, "promised", "H200", 1);
    let long = || LeaseRequest { ttl_ms: 600_000, model: Some(model("H200")), ..LeaseRequest::default() };
    bench.lease_for(&name("greedy"), long());
    bench.lease_for(&name("promised"), long());
    bench.pass(90_000);
    story.took("granted", "reclaimed", "releasing");
}

fn parked_in_every_way() {
    let story = Story::begin();
    let survive = || LeaseRequest { survive: pool_api::Survive::Gpu, ..LeaseRequest::default() };
    let park = |bench: &mut Bench| {
        let lease = bench.lease(survive());
        let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
        bench.apply(&Command::Park { lease: lease.id, gpu, epoch, image_bytes: 1 }).unwrap();
        lease.id
    };
    let (mut bench, _) = one_gpu();
    let lease = park(&mut bench);
    story.took("granted", "parked", "parked");
    bench.apply(&Command::Resume { lease }).unwrap();
    story.took("parked", "unparked", "pending");
    bench.release(lease);
    bench.settle();
    let lease = park(&mut bench);
    bench.release(lease);
    story.took("parked", "released", "releasing");
    bench.settle();
    park(&mut bench);
    bench.pass(40_000);
    story.took("parked", "expired", "releasing");
}

/// The stories in one thread, so that it can be seen what they took together.
#[test]
fn every_arrow_that_is_listed_can_be_taken() {
    leased_and_cleaned();
    thrown_out_by_its_box();
    kept_for_its_lease();
    out_of_its_slot_and_in_again();
    bad_from_everywhere();
    ended_in_every_way();
    parked_in_every_way();
    assert_eq!(watch::taken().into_keys().collect::<BTreeSet<Words>>(), watch::listed());
}
