//! Guests whose programs outlive losses: suspended when their seats are needed, and back in the next seat by themselves.

use super::bench::{Bench, name};
use super::guests::{GPU, SEAT, of, place, seat, seated};
use super::*;
use crate::ledger::settings::Settings;
use pool_api::{Class, GuardReport, GuardedLease, Purpose, Survive};

/// How long a guest may take.
const GRACE_MS: u64 = 8_000;

pub(super) fn surviving_guest() -> LeaseRequest {
    LeaseRequest { survive: Survive::Gpu, ..of(Class::Offline) }
}

fn park(bench: &mut Bench, id: LeaseId) -> Result<Lease, Refusal> {
    let lease = bench.show(id);
    let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
    let answer = bench.apply(&Command::Park { lease: id, gpu, epoch, image_bytes: 7 })?;
    let Answer::Lease(lease) = answer else { panic!("no lease") };
    Ok(*lease)
}

pub(super) fn why(bench: &Bench, id: LeaseId) -> String {
    bench.ledger.explain(id).unwrap().reasons.join("\n")
}

fn drain(bench: &mut Bench, gpu: &str) {
    let (reason, by) = ("fan".to_owned(), "ann".to_owned());
    bench.apply(&Command::Taint { gpu: gpu.parse().unwrap(), reason, by, drain: true }).unwrap();
}

/// Two boxes with a GPU and its seat each.
fn two_boxes() -> Bench {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1), ("b", BoxKind::Pcie, "H200", 1)]);
    for box_name in ["a", "b"] {
        bench.add_slot(box_name, seat(0, false));
        bench.report(box_name);
    }
    bench
}

#[test]
fn the_default_grace_is_a_few_seconds() {
    assert_eq!(Settings::default().seat_grace_ms, GRACE_MS);
}

#[test]
fn a_guest_is_suspended_for_a_lease_that_needs_its_gpu_and_comes_back_by_itself() {
    let mut bench = seated(1, false);
    let guest = bench.lease(surviving_guest());
    assert_eq!((guest.state, place(&bench, guest.id).as_str()), (LeaseState::Granted, "a/32"));
    bench.report_all();
    let other = bench.lease(surviving_guest());
    let whole = bench.lease(of(Class::Dedicated));
    let asked = bench.show(guest.id);
    assert_eq!(
        (asked.state, asked.suspend_wanted),
        (LeaseState::Granted, true),
        "nothing is taken from it yet"
    );
    assert!(why(&bench, guest.id).contains("needed as a whole"), "{}", why(&bench, guest.id));
    assert!(why(&bench, guest.id).contains("in 8 seconds the seat is taken"), "{}", why(&bench, guest.id));
    let waits = why(&bench, whole.id);
    assert!(waits.contains(&format!("guest {} is asked to leave a/32", guest.id)), "{waits}");
    assert!(waits.contains("evicted in 8 seconds at the latest"), "{waits}");
    bench.pass(3_000);
    assert!(why(&bench, whole.id).contains("evicted in 5 seconds"), "{}", why(&bench, whole.id));
    assert_eq!(bench.state(whole.id), LeaseState::Pending);

    let parked = park(&mut bench, guest.id).unwrap();
    assert_eq!((parked.state, parked.suspend_wanted, parked.grants.len()), (LeaseState::Pending, false, 0));
    assert!(parked.is_unseated() && parked.parking.unwrap().image_bytes == 7, "{parked:?}");
    let told = parked.moves.last().unwrap();
    assert!(told.planned && told.to.is_none() && told.reason.contains("needed as a whole"), "{told:?}");
    assert_eq!((bench.gpu("a/32").state, bench.gpu("a/0").state), (GpuState::Cleaning, GpuState::Free));
    let waits = why(&bench, guest.id);
    assert!(
        waits.contains("was suspended and left a/32") && waits.contains("goes on there from its image"),
        "{waits}"
    );
    bench.settle();
    assert_eq!((place(&bench, whole.id).as_str(), bench.gpu("a/0").holders[0].memory_bytes), ("a/0", GPU));
    assert_eq!(bench.state(guest.id), LeaseState::Pending);
    bench.reload();
    bench.settle();
    bench.release(whole.id);
    bench.settle();
    assert_eq!(
        place(&bench, guest.id),
        "a/32",
        "without a word of its user, and before the one that came later"
    );
    let back = bench.show(guest.id);
    assert_eq!((back.state, back.parking, back.suspend_wanted), (LeaseState::Granted, None, false));
    assert_eq!(back.moves[0].to.as_ref().unwrap().to_string(), "a/32");
    assert_eq!((back.moves.len(), bench.state(other.id)), (1, LeaseState::Pending));
}

#[test]
fn a_guest_that_is_not_suspended_in_time_is_evicted_and_the_gpu_is_had_when_its_seat_is_clean() {
    let mut bench = seated(1, false);
    let guest = bench.lease(surviving_guest());
    bench.report_all();
    let whole = bench.lease(of(Class::Dedicated));
    assert_eq!(bench.ledger.wake_at_ms().map(|at_ms| at_ms <= bench.now_ms + GRACE_MS), Some(true));
    bench.pass(GRACE_MS - 1);
    assert_eq!((bench.state(guest.id), bench.state(whole.id)), (LeaseState::Granted, LeaseState::Pending));
    bench.pass(1);
    let told = bench.show(guest.id);
    assert_eq!((told.state, told.parking, told.suspend_wanted), (LeaseState::Pending, None, false));
    assert!(!told.is_unseated() && !told.moves[0].planned, "{told:?}");
    assert!(why(&bench, guest.id).contains("it lost a/32: the GPU of its seat is needed as a whole"));
    // The word that it is parked comes too late, and changes nothing.
    let (lease, gpu, epoch) = (guest.id, guest.grants[0].gpu.clone(), guest.grants[0].epoch);
    assert!(bench.apply(&Command::Park { lease, gpu, epoch, image_bytes: 7 }).is_err());
    bench.settle();
    assert_eq!((place(&bench, whole.id).as_str(), bench.state(guest.id)), ("a/0", LeaseState::Pending));
    bench.release(whole.id);
    bench.settle();
    assert_eq!(place(&bench, guest.id), "a/32");
}

#[test]
fn a_guest_that_cannot_be_suspended_is_evicted_at_once_with_its_program_s_words() {
    let mut bench = seated(1, false);
    let guest = bench.lease(surviving_guest());
    bench.report_all();
    bench.lease(of(Class::Dedicated));
    bench.apply(&Command::KeepRunning { lease: guest.id, why: "it has no image".into() }).unwrap();
    let told = bench.show(guest.id);
    assert_eq!(told.state, LeaseState::Pending);
    let reason = &told.moves[0].reason;
    assert!(reason.contains("needed as a whole, and it cannot be suspended: it has no image"), "{reason}");
    // Of a suspension that a person asked for, the program may say no.
    let mut bench = seated(1, false);
    let guest = bench.lease(surviving_guest());
    bench.apply(&Command::Suspend { lease: guest.id }).unwrap();
    bench.apply(&Command::KeepRunning { lease: guest.id, why: "not now".into() }).unwrap();
    assert_eq!(bench.state(guest.id), LeaseState::Granted);
}

#[test]
fn a_program_that_wants_to_run_keeps_its_seat_no_longer() {
    let mut bench = seated(1, false);
    let guest = bench.lease(surviving_guest());
    bench.lease(of(Class::Dedicated));
    bench.apply(&Command::Resume { lease: guest.id }).unwrap();
    assert!(bench.show(guest.id).suspend_wanted, "the GPU is still needed");
    bench.pass(GRACE_MS);
    assert_eq!(bench.state(guest.id), LeaseState::Pending);
}

#[test]
fn one_that_a_person_suspends_stays_suspended() {
    for person_is_first in [true, false] {
        let mut bench = seated(1, false);
        let guest = bench.lease(surviving_guest());
        let suspend = Command::Suspend { lease: guest.id };
        if person_is_first {
            bench.apply(&suspend).unwrap();
        }
        bench.lease(of(Class::Dedicated));
        if !person_is_first {
            bench.apply(&suspend).unwrap();
        }
        assert_eq!(park(&mut bench, guest.id).unwrap().state, LeaseState::Parked, "{person_is_first}");
        assert!(bench.show(guest.id).moves.is_empty());
    }
}

#[test]
fn what_leaves_time_suspends_and_what_leaves_none_takes_the_seat() {
    let broken = |bench: &mut Bench| {
        bench.slot("a", 0).health = pool_api::Health::bad("Xid 79");
        bench.report("a");
    };
    let gone = |bench: &mut Bench| {
        bench.forget_slot("a", 1);
        bench.report("a");
    };
    let host_drained = |bench: &mut Bench| drain(bench, "a/0");
    let seat_drained = |bench: &mut Bench| drain(bench, "a/32");
    let box_drained = |bench: &mut Bench| {
        let (reason, by) = ("fan".to_owned(), "ann".to_owned());
        bench.apply(&Command::DrainBox { box_name: name("a"), reason, by }).unwrap();
    };
    let unwelcome = |bench: &mut Bench| {
        let report = bench.slot("a", 1);
        (report.must_leave, report.ready) = (true, false);
        report.unready = Some("a guest held the online programs up".to_owned());
        bench.report("a");
    };
    let ways: [(&dyn Fn(&mut Bench), &str, bool); 6] = [
        (&broken, "is bad", false),
        (&gone, "no longer there", false),
        (&host_drained, "is being drained", true),
        (&seat_drained, "is being drained", true),
        (&box_drained, "box a is being drained", true),
        (&unwelcome, "held the online programs up", true),
    ];
    for (happens, words, has_time) in ways {
        let mut bench = seated(1, false);
        let guest = bench.lease(surviving_guest());
        bench.settle();
        happens(&mut bench);
        bench.pass(1_000);
        let told = bench.show(guest.id);
        assert_eq!((told.state == LeaseState::Granted, told.suspend_wanted), (has_time, has_time), "{words}");
        if has_time {
            assert!(why(&bench, guest.id).contains(words), "{}", why(&bench, guest.id));
            // A new leader finds out by itself that the guest has to leave.
            bench.reload();
            bench.settle();
            let asked = bench.show(guest.id);
            assert!(asked.state == LeaseState::Granted && asked.suspend_wanted, "{words}: {asked:?}");
            bench.pass(GRACE_MS);
        }
        let told = bench.show(guest.id);
        assert_eq!(told.state, LeaseState::Pending, "{words}");
        assert!(told.moves[0].reason.contains(words), "{told:?}");
        bench.settle();
        assert!(bench.ledger.gpus(None).all(|gpu| gpu.holders.is_empty()), "{words}");
    }
}

#[test]
fn it_goes_on_in_another_box_in_a_seat_of_the_same_size_alone() {
    let mut bench = two_boxes();
    bench.slot("b", 1).memory_bytes = SEAT / 2;
    bench.report_all();
    let guest = bench.lease(LeaseRequest { gpu_ids: vec!["a/32".parse().unwrap()], ..surviving_guest() });
    bench.report_all();
    drain(&mut bench, "a/0");
    park(&mut bench, guest.id).unwrap();
    bench.settle();
    assert_eq!(
        bench.state(guest.id),
        LeaseState::Pending,
        "the other seat is smaller than its program has seen"
    );
    bench.slot("b", 1).memory_bytes = SEAT;
    bench.settle();
    assert_eq!(place(&bench, guest.id), "b/32", "it named a/32 for its first seat");
}

#[test]
fn it_goes_where_its_image_is_and_needs_guard_memory_elsewhere() {
    let mut bench = two_boxes();
    let guard = |bytes: u64, of: &[LeaseId]| {
        let leases = of.iter().map(|lease| GuardedLease { lease: *lease, bytes: SEAT }).collect();
        Some(GuardReport { bytes, used_bytes: 0, leases })
    };
    for box_name in ["a", "b"] {
        bench.boxes.get_mut(&name(box_name)).unwrap().guard = guard(SEAT, &[]);
    }
    bench.report_all();
    let guest = bench.lease(surviving_guest());
    assert_eq!(place(&bench, guest.id), "a/32");
    let holder = bench.gpu("a/32").holders[0].clone();
    assert_eq!(holder.memory_bytes, SEAT, "what it is charged for");
    let second = bench.lease(surviving_guest());
    assert_eq!(place(&bench, second.id), "b/32", "guard memory of the first box is taken, and its seat too");
    let third = bench.lease(LeaseRequest { survive: Survive::Gpu, ..of(Class::Dedicated) });
    assert_eq!(bench.state(third.id), LeaseState::Pending);
    assert!(
        !bench.show(guest.id).suspend_wanted && !bench.show(second.id).suspend_wanted,
        "it could not have them"
    );
    bench.release(third.id);

    // Both are suspended. The image of each takes all guard memory of its box.
    for (box_name, lease) in [("a", guest.id), ("b", second.id)] {
        bench.boxes.get_mut(&name(box_name)).unwrap().guard = guard(SEAT, &[lease]);
    }
    bench.report_all();
    let wholes: Vec<_> = (0..2).map(|_| bench.lease(of(Class::Dedicated)).id).collect();
    for id in [guest.id, second.id] {
        // The second lease asks for the second seat when the first one is had.
        bench.settle();
        park(&mut bench, id).unwrap();
    }
    bench.settle();
    assert!(wholes.iter().all(|id| bench.state(*id) == LeaseState::Granted));
    let on_b = wholes.iter().copied().find(|id| place(&bench, *id) == "b/0").unwrap();
    bench.release(on_b);
    bench.settle();
    assert_eq!((bench.state(guest.id), place(&bench, second.id).as_str()), (LeaseState::Pending, "b/32"));
}

#[test]
fn no_more_guests_are_asked_than_a_lease_needs_and_one_after_the_other() {
    let mut bench = seated(3, false);
    let guests: Vec<_> = (0..3).map(|_| bench.lease(surviving_guest()).id).collect();
    bench.report_all();
    let whole = bench.lease(of(Class::Dedicated));
    let asked = |bench: &Bench| guests.iter().filter(|id| bench.show(**id).suspend_wanted).count();
    bench.pass(4_000);
    assert_eq!(asked(&bench), 1);
    let leaves = *guests.iter().find(|id| bench.show(**id).suspend_wanted).unwrap();
    park(&mut bench, leaves).unwrap();
    bench.settle();
    assert_eq!((asked(&bench), bench.state(whole.id)), (0, LeaseState::Granted));
}

#[test]
fn a_guest_moves_to_another_seat_and_drills_in_it() {
    let mut bench = two_boxes();
    let guest = bench.lease(surviving_guest());
    bench.report_all();
    let ask = |to: Option<&str>| Command::Move {
        lease: guest.id,
        gpu: None,
        to_box: to.map(name),
        by: "ann".into(),
    };
    let refused = bench.apply(&ask(Some("a"))).unwrap_err().to_string();
    assert!(refused.contains("seat for guests of the same size in box a"), "{refused}");
    bench.apply(&Command::Drill { lease: guest.id }).unwrap();
    let drill = bench.show(guest.id).moving.unwrap();
    assert_eq!((drill.purpose, drill.to.gpu.to_string().as_str()), (Purpose::Drill, "b/32"));
    let stay =
        Command::Stay { lease: guest.id, gpu: drill.to.gpu, epoch: drill.to.epoch, why: "drilled".into() };
    bench.apply(&stay).unwrap();
    bench.settle();
    bench.apply(&ask(Some("b"))).unwrap();
    let to = bench.show(guest.id).moving.unwrap().to;
    bench.apply(&Command::Moved { lease: guest.id, gpu: to.gpu, epoch: to.epoch }).unwrap();
    bench.settle();
    assert_eq!((place(&bench, guest.id).as_str(), bench.gpu("a/32").state), ("b/32", GpuState::Free));
    // On its way, it is asked to leave: it gives the second seat back first.
    bench.apply(&ask(Some("a"))).unwrap();
    drain(&mut bench, "b/0");
    let asked = bench.show(guest.id);
    assert!(asked.suspend_wanted && asked.moving.is_none(), "{asked:?}");
    park(&mut bench, guest.id).unwrap();
    bench.settle();
    assert_eq!(place(&bench, guest.id), "a/32");
}

#[test]
fn a_word_of_its_borrower_that_the_seat_is_lost_queues_it() {
    let mut bench = seated(2, false);
    let guest = bench.lease(surviving_guest());
    bench.report_all();
    let (gpu, epoch) = (guest.grants[0].gpu.clone(), guest.grants[0].epoch);
    bench.apply(&Command::Lost { lease: guest.id, gpu, epoch, why: "the link broke".into() }).unwrap();
    bench.settle();
    let now = bench.show(guest.id);
    assert_eq!((now.state, place(&bench, guest.id).as_str()), (LeaseState::Granted, "a/33"));
    assert!(now.moves[0].said_by_borrower, "{now:?}");
}
