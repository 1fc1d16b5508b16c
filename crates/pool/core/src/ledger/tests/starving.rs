//! Guests that starve: which of them move, where, and when.

use super::bench::Bench;
use super::guests::{of, place, seat};
use super::leaving_guests::{surviving_guest, why};
use super::*;
use crate::simulation::Mutation;
use pool_api::{Class, GpuReport, Purpose, SeatLoad};

const MINUTE_MS: u64 = 60_000;
const STAYS_MS: u64 = 300_000;

fn busy(milli: u32) -> Option<SeatLoad> {
    Some(SeatLoad { online_busy_milli: milli, online_periods_milli: 0 })
}

/// Boxes a, b, … with a GPU, an online lease on it, and a seat that this load leaves to a guest. The guest is in the first seat.
fn beside(loads: &[u32], request: LeaseRequest, mutation: Option<Mutation>) -> (Bench, LeaseId) {
    let names = ["a", "b", "c"];
    let boxes: Vec<_> = names[..loads.len()].iter().map(|name| (*name, BoxKind::Pcie, "H200", 1)).collect();
    let mut bench = Bench::with_settings(Settings { mutation, ..Settings::default() }, &boxes);
    for name in &names[..loads.len()] {
        bench.add_slot(name, GpuReport { ready: *name == "a", ..seat(0, false) });
        bench.report(name);
        let gpu_ids = vec![format!("{name}/0").parse().unwrap()];
        assert_eq!(bench.lease(LeaseRequest { gpu_ids, ..of(Class::Online) }).state, LeaseState::Granted);
    }
    let guest = bench.lease(request).id;
    assert_eq!(place(&bench, guest), "a/32");
    for (name, load) in names.iter().zip(loads) {
        set(&mut bench, name, *load);
    }
    bench.report_all();
    (bench, guest)
}

fn set(bench: &mut Bench, name: &str, load: u32) {
    let report = bench.slot(name, 1);
    (report.sharing, report.ready) = (busy(load), true);
}

fn target(bench: &Bench, id: LeaseId) -> Option<String> {
    bench.show(id).moving.map(|moving| moving.to.gpu.to_string())
}

fn arrive(bench: &mut Bench, id: LeaseId) {
    let to = bench.show(id).moving.unwrap().to;
    bench.apply(&Command::Moved { lease: id, gpu: to.gpu, epoch: to.epoch }).unwrap();
    bench.settle();
}

#[test]
fn a_guest_that_starves_for_a_minute_moves_to_the_seat_that_leaves_most() {
    let (mut bench, guest) = beside(&[1000, 500, 200], surviving_guest(), None);
    let words = why(&bench, guest);
    assert!(
        words.contains("about 0 %") && words.contains("moves to a better seat within minutes"),
        "{words}"
    );
    bench.pass(MINUTE_MS - 2_000);
    assert_eq!(target(&bench, guest), None, "it may be over soon");
    bench.pass(2_000);
    assert_eq!(target(&bench, guest).as_deref(), Some("c/32"));
    let moving = bench.show(guest).moving.unwrap();
    assert_eq!(moving.purpose, Purpose::Asked);
    assert!(moving.reason.contains("its seat a/32 left it 0 % of the GPU"), "{moving:?}");
    arrive(&mut bench, guest);
    assert_eq!((place(&bench, guest).as_str(), bench.gpu("a/32").state), ("c/32", GpuState::Free));
    assert!(!why(&bench, guest).contains("starves"), "{}", why(&bench, guest));
}

#[test]
fn it_stays_where_nothing_would_be_gained() {
    let (mut bench, guest) = beside(&[970, 700], surviving_guest(), None);
    bench.pass(5 * MINUTE_MS);
    assert_eq!(target(&bench, guest), None, "0.29 of a GPU is left there, and 0.3 more is asked");
    assert!(why(&bench, guest).contains("leaves it 30 % of a GPU more"), "{}", why(&bench, guest));
    set(&mut bench, "b", 500);
    bench.pass(11_000);
    assert_eq!(target(&bench, guest).as_deref(), Some("b/32"), "as soon as there is something to gain");
    let (mut bench, guest) = beside(&[970, 940], surviving_guest(), Some(Mutation::MoveForNothing));
    bench.pass(2 * MINUTE_MS);
    assert!(target(&bench, guest).is_some(), "the planted mistake");
}

#[test]
fn one_whose_program_would_have_to_start_again_stays_and_is_told() {
    let (mut bench, guest) = beside(&[1000, 100], of(Class::Offline), None);
    bench.pass(3 * MINUTE_MS);
    assert_eq!((target(&bench, guest), place(&bench, guest).as_str()), (None, "a/32"));
    assert!(why(&bench, guest).contains("with `--survive` its program would move"), "{}", why(&bench, guest));
}

#[test]
fn a_busy_minute_that_ends_moves_nothing() {
    let (mut bench, guest) = beside(&[1000, 100], surviving_guest(), None);
    for _ in 0..5 {
        set(&mut bench, "a", 1000);
        bench.pass(MINUTE_MS - 2_000);
        set(&mut bench, "a", 800);
        bench.pass(2_000);
        assert_eq!(target(&bench, guest), None);
    }
    set(&mut bench, "a", 1000);
    bench.pass(1_000);
    // The online lease leaves, and the guest has the GPU.
    let online = bench.gpu("a/0").holders[0].lease;
    bench.release(online);
    bench.pass(2 * MINUTE_MS);
    assert_eq!((target(&bench, guest), place(&bench, guest).as_str()), (None, "a/32"));
}

#[test]
fn two_busy_gpus_do_not_hand_it_to_and_fro() {
    let (mut bench, guest) = beside(&[1000, 100], surviving_guest(), None);
    bench.pass(MINUTE_MS);
    arrive(&mut bench, guest);
    assert_eq!(place(&bench, guest), "b/32");
    set(&mut bench, "a", 100);
    set(&mut bench, "b", 1000);
    bench.pass(STAYS_MS - 2_000);
    assert_eq!(target(&bench, guest), None);
    bench.pass(12_000);
    assert_eq!(target(&bench, guest).as_deref(), Some("a/32"));
}

#[test]
fn a_program_that_does_not_follow_is_asked_again_later() {
    let (mut bench, guest) = beside(&[1000, 100], surviving_guest(), None);
    bench.pass(MINUTE_MS);
    let to = bench.show(guest).moving.unwrap().to;
    let why = "it has arrays".to_owned();
    bench.apply(&Command::Stay { lease: guest, gpu: to.gpu, epoch: to.epoch, why }).unwrap();
    bench.pass(STAYS_MS - 2_000);
    assert_eq!((target(&bench, guest), place(&bench, guest).as_str()), (None, "a/32"));
    assert_eq!(bench.gpu("b/32").state, GpuState::Free);
    bench.pass(3_000);
    assert_eq!(target(&bench, guest).as_deref(), Some("b/32"));
}

#[test]
fn leases_that_wait_come_before_one_that_starves() {
    let (mut bench, guest) = beside(&[1000, 100], surviving_guest(), None);
    bench.pass(MINUTE_MS - 5_000);
    let other = bench.lease(of(Class::Offline));
    assert_eq!(place(&bench, other.id), "b/32");
    bench.pass(3 * MINUTE_MS);
    assert_eq!(target(&bench, guest), None);
    bench.release(other.id);
    bench.pass(15_000);
    assert_eq!(target(&bench, guest).as_deref(), Some("b/32"));
}

#[test]
fn a_new_leader_finds_out_by_itself() {
    let (mut bench, guest) = beside(&[1000, 100], surviving_guest(), None);
    bench.pass(MINUTE_MS / 2);
    bench.reload();
    bench.pass(MINUTE_MS - 2_000);
    assert_eq!(target(&bench, guest), None);
    bench.pass(3_000);
    assert_eq!(target(&bench, guest).as_deref(), Some("b/32"));
}
