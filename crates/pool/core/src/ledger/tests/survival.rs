//! Leases whose programs outlive losses: words of borrowers, moves in two phases, parking.

use super::bench::{Bench, model, name};
use super::*;
use crate::ledger::lost::WORD_COUNTS_MS;
use pool_api::{LossAnswer, Purpose, SpareRequest, Survive, Topology, Verdict, Want};

fn surviving() -> LeaseRequest {
    LeaseRequest { survive: Survive::Gpu, ttl_ms: 86_400_000, ..LeaseRequest::default() }
}

/// Says that the first GPU of a lease is lost.
fn lost(bench: &mut Bench, lease: &Lease) -> LossAnswer {
    let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
    let command = Command::Lost { lease: lease.id, gpu, epoch, why: "the link broke".into() };
    let Answer::Loss(loss) = bench.apply(&command).unwrap() else { panic!("no answer to a loss") };
    *loss
}

fn shown(answer: Answer) -> Lease {
    let Answer::Lease(lease) = answer else { panic!("no lease") };
    *lease
}

fn ask_move(bench: &mut Bench, lease: LeaseId, to: Option<&str>) -> Result<Lease, Refusal> {
    let to_box = to.map(name);
    bench.apply(&Command::Move { lease, gpu: None, to_box, by: "ann".into() }).map(shown)
}

fn second(lease: &Lease) -> (GpuId, u64) {
    let to = &lease.moving.as_ref().expect("it has a second place").to;
    (to.gpu.clone(), to.epoch)
}

fn moved(bench: &mut Bench, lease: LeaseId, (gpu, epoch): (GpuId, u64)) -> Result<Lease, Refusal> {
    bench.apply(&Command::Moved { lease, gpu, epoch }).map(shown)
}

fn stay(bench: &mut Bench, lease: LeaseId, (gpu, epoch): (GpuId, u64)) -> Lease {
    shown(bench.apply(&Command::Stay { lease, gpu, epoch, why: "not now".into() }).unwrap())
}

fn park(bench: &mut Bench, lease: &Lease) -> Result<Lease, Refusal> {
    let (gpu, epoch) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch);
    bench.apply(&Command::Park { lease: lease.id, gpu, epoch, image_bytes: 7 }).map(shown)
}

fn resume(bench: &mut Bench, lease: LeaseId) -> Lease {
    shown(bench.apply(&Command::Resume { lease }).unwrap())
}

fn two_boxes(gpus: u8) -> Bench {
    Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", gpus), ("b", BoxKind::Pcie, "H200", gpus)])
}

#[test]
fn a_borrower_s_word_moves_its_lease_at_once_and_only_cleans_the_old_gpu() {
    let mut bench = two_boxes(2);
    let lease = bench.lease(surviving());
    bench.report_all();
    let old = lease.grants[0].clone();
    let loss = lost(&mut bench, &lease);
    assert_eq!(loss.verdict, Verdict::Moved);
    let new = &loss.lease.grants[0];
    assert_eq!(new.gpu.box_name, old.gpu.box_name, "its image is in its box");
    assert_ne!(new.gpu, old.gpu);
    let said = loss.lease.moves.last().unwrap();
    assert!(said.said_by_borrower && said.reason.contains("the link broke"), "{said:?}");
    let cleaned = bench.gpu(&old.gpu.to_string());
    assert_eq!((cleaned.state, cleaned.health.ok, cleaned.holders.len()), (GpuState::Cleaning, true, 0));
    // The word is sent again: it is about a grant that is over.
    let again = lost(&mut bench, &lease);
    assert_eq!((again.verdict, again.lease.grants), (Verdict::Known, loss.lease.grants));
    bench.settle();
    assert_eq!(bench.gpu(&old.gpu.to_string()).state, GpuState::Free, "it is lent again");
}

#[test]
fn its_own_box_comes_first_then_spares_then_any() {
    let mut bench = Bench::with_boxes(&[
        ("a", BoxKind::Pcie, "H200", 1),
        ("b", BoxKind::Pcie, "H200", 1),
        ("c", BoxKind::Pcie, "H200", 1),
        ("d", BoxKind::Pcie, "A100", 2),
    ]);
    let spares = Command::SetSpares { model: model("H200"), request: SpareRequest { count: 1 } };
    bench.apply(&spares).unwrap();
    let spare = bench.ledger.gpus(None).find(|gpu| gpu.spare).unwrap().id;
    let lease = bench.lease(LeaseRequest { model: Some(model("H200")), ..surviving() });
    assert_ne!(lease.grants[0].gpu, spare);
    let moved = lost(&mut bench, &lease).lease;
    assert_eq!(moved.grants[0].gpu, spare, "no other GPU is in its box, so a spare");
    let moved = lost(&mut bench, &moved).lease;
    let third = moved.grants[0].gpu.clone();
    assert!(third != spare && third != lease.grants[0].gpu && third.box_name != name("d"), "{third}");
}

#[test]
fn two_words_an_hour_are_followed_before_a_box_has_confirmed_one() {
    let mut bench = two_boxes(2);
    let mut lease = bench.lease(surviving());
    for _ in 0..2 {
        let loss = lost(&mut bench, &lease);
        assert_eq!(loss.verdict, Verdict::Moved);
        lease = loss.lease;
        bench.settle();
    }
    let refused = lost(&mut bench, &lease);
    assert_eq!((refused.verdict, &refused.lease.grants), (Verdict::BoxDecides, &lease.grants));
    assert!(refused.message.contains("until its box says"), "{}", refused.message);
    // A new leader counts the same words.
    bench.reload();
    bench.report_all();
    assert_eq!(lost(&mut bench, &lease).verdict, Verdict::BoxDecides);
    // A box confirms one of them: the GPU that was left last is bad.
    let left = lease.moves[1].from.clone();
    assert_ne!(left, lease.grants[0].gpu);
    bench.apply(&Command::Break { gpu: left, reason: "XID 79".into() }).unwrap();
    let loss = lost(&mut bench, &lease);
    assert_eq!(loss.verdict, Verdict::Moved);
    bench.settle();
    assert_eq!(lost(&mut bench, &loss.lease).verdict, Verdict::BoxDecides);
    bench.pass_with_reports(WORD_COUNTS_MS, 60_000, |bench| drop(bench.renew(lease.id)));
    let lease = bench.show(lease.id);
    assert_eq!(lost(&mut bench, &lease).verdict, Verdict::Moved, "an hour later");
}

#[test]
fn without_another_gpu_a_lost_lease_waits_and_says_so() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let lease = bench.lease(surviving());
    let loss = lost(&mut bench, &lease);
    assert_eq!((loss.verdict, loss.lease.state), (Verdict::Moved, LeaseState::Pending));
    assert!(loss.message.contains("waits"), "{}", loss.message);
    bench.settle();
    let back = bench.show(lease.id);
    assert_eq!((back.state, back.grants[0].epoch), (LeaseState::Granted, lease.grants[0].epoch + 1));
}

#[test]
fn what_stands_together_stays_together_when_a_borrower_loses_one() {
    let boxes = [("a", BoxKind::Nvlink, "H200", 4), ("b", BoxKind::Nvlink, "H200", 4)];
    let mut bench = Bench::with_boxes(&boxes);
    let lease = bench.lease(LeaseRequest { gpus: 2, topology: Topology::Nvlink, ..surviving() });
    let loss = lost(&mut bench, &lease);
    let boxes: BTreeSet<_> = loss.lease.grants.iter().map(|grant| grant.gpu.box_name.clone()).collect();
    assert_eq!((loss.lease.grants.len(), boxes.len()), (2, 1));
    assert_eq!(loss.lease.grants[1], lease.grants[1]);
}

#[test]
fn only_leases_that_asked_for_it_have_a_word() {
    let mut bench = two_boxes(1);
    let lease = bench.lease(LeaseRequest::default());
    let (gpu, epoch, id) = (lease.grants[0].gpu.clone(), lease.grants[0].epoch, lease.id);
    let refused = Refusal::NotSurviving { lease: id };
    for command in [
        Command::Lost { lease: id, gpu: gpu.clone(), epoch, why: String::new() },
        Command::Move { lease: id, gpu: None, to_box: None, by: "ann".into() },
        Command::Drill { lease: id },
        Command::Suspend { lease: id },
        Command::Park { lease: id, gpu, epoch, image_bytes: 0 },
        Command::Resume { lease: id },
    ] {
        assert_eq!(bench.apply(&command), Err(refused.clone()), "{command:?}");
    }
    assert_eq!(bench.show(id).grants, lease.grants);
}

#[test]
fn a_move_grants_the_second_place_before_it_takes_the_first() {
    let mut bench = two_boxes(1);
    let lease = bench.lease(surviving());
    let old = lease.grants[0].clone();
    let way = ask_move(&mut bench, lease.id, None).unwrap();
    let new = second(&way);
    assert_eq!(
        (way.grants.as_slice(), way.moving.as_ref().unwrap().purpose),
        (&lease.grants[..], Purpose::Asked)
    );
    assert_ne!(new.0, old.gpu);
    // Both boxes let this lease in, and no other.
    for box_name in ["a", "b"] {
        let want = bench.report(box_name).slots[0].want.clone();
        assert!(matches!(want, Want::Serve { lease: served, .. } if served == lease.id), "{want:?}");
    }
    assert_eq!(ask_move(&mut bench, lease.id, None).unwrap().moving, way.moving, "asked again");
    // A new leader knows of both places.
    bench.reload();
    bench.report_all();
    let arrived = moved(&mut bench, lease.id, new.clone()).unwrap();
    assert_eq!((arrived.grants[0].gpu.clone(), arrived.grants[0].epoch), new);
    assert_eq!((arrived.moving.is_none(), arrived.moves.len()), (true, 1));
    assert_eq!(bench.gpu(&old.gpu.to_string()).state, GpuState::Cleaning);
    assert_eq!(moved(&mut bench, lease.id, new).unwrap().grants, arrived.grants, "said again");
    let stranger = (old.gpu.clone(), old.epoch);
    assert!(matches!(moved(&mut bench, lease.id, stranger), Err(Refusal::NotItsGpu { .. })));
    let used = bench.ledger.tenant_status(&super::bench::tenant()).unwrap().used;
    assert_eq!(used[&model("H200")].milli, 1000, "one GPU is charged again");
}

#[test]
fn a_move_ends_where_it_began_when_the_program_stays_or_says_nothing() {
    let mut bench = two_boxes(1);
    let lease = bench.lease(surviving());
    let way = ask_move(&mut bench, lease.id, None).unwrap();
    let stays = stay(&mut bench, lease.id, second(&way));
    assert_eq!((stays.grants, stays.moving), (lease.grants.clone(), None));
    assert!(matches!(moved(&mut bench, lease.id, second(&way)), Err(Refusal::NotItsGpu { .. })), "too late");
    bench.settle();
    let way = ask_move(&mut bench, lease.id, None).unwrap();
    let grace_ms = Settings::default().move_grace_ms;
    bench.pass(grace_ms - 1_000);
    assert!(bench.show(lease.id).moving.is_some());
    bench.pass(1_000);
    let stays = bench.show(lease.id);
    assert_eq!((stays.grants, stays.moving), (lease.grants, None));
    bench.settle();
    assert_eq!(bench.gpu(&second(&way).0.to_string()).state, GpuState::Free);
}

#[test]
fn whichever_place_is_lost_the_other_is_the_lease_s() {
    for lost_box in ["a", "b"] {
        let mut bench = two_boxes(1);
        let lease = bench.lease(surviving());
        let way = ask_move(&mut bench, lease.id, None).unwrap();
        let left = if lost_box == "a" { "b" } else { "a" };
        let gpu: GpuId = format!("{lost_box}/0").parse().unwrap();
        bench.apply(&Command::Break { gpu, reason: "XID 79".into() }).unwrap();
        let now = bench.show(lease.id);
        let place = (now.grants[0].gpu.clone(), now.grants[0].epoch);
        let expected = if second(&way).0.box_name == name(left) {
            second(&way)
        } else {
            (lease.grants[0].gpu.clone(), lease.grants[0].epoch)
        };
        assert_eq!((now.state, now.moving, place), (LeaseState::Granted, None, expected));
    }
    // The borrower's word counts for either place, and about the second one it is no unconfirmed word.
    let mut bench = two_boxes(1);
    let lease = bench.lease(surviving());
    let way = ask_move(&mut bench, lease.id, None).unwrap();
    let (gpu, epoch) = second(&way);
    bench.apply(&Command::Lost { lease: lease.id, gpu, epoch, why: String::new() }).unwrap();
    assert_eq!((bench.show(lease.id).grants, bench.show(lease.id).moving), (lease.grants.clone(), None));
    bench.settle();
    let way = ask_move(&mut bench, lease.id, None).unwrap();
    let loss = lost(&mut bench, &lease);
    assert_eq!((loss.verdict, loss.lease.grants[0].gpu.clone()), (Verdict::Moved, second(&way).0));
}

#[test]
fn a_move_goes_to_the_box_that_is_named_or_is_refused() {
    let mut bench = two_boxes(2);
    let lease = bench.lease(surviving());
    let own = lease.grants[0].gpu.box_name.to_string();
    let way = ask_move(&mut bench, lease.id, Some(&own)).unwrap();
    assert_eq!(second(&way).0.box_name.as_str(), own);
    let other = if own == "a" { "b" } else { "a" };
    let refused = ask_move(&mut bench, lease.id, Some(other)).unwrap_err();
    assert!(matches!(refused, Refusal::AlreadyMoving { .. }), "{refused:?}");
    stay(&mut bench, lease.id, second(&way));
    assert!(matches!(ask_move(&mut bench, lease.id, Some("z")), Err(Refusal::NoBox { .. })));
    for _ in 0..2 {
        bench.lease(LeaseRequest::default());
    }
    bench
        .apply(&Command::DrainBox { box_name: name(other), reason: String::new(), by: "ann".into() })
        .unwrap();
    let refused = ask_move(&mut bench, lease.id, Some(other)).unwrap_err();
    assert!(matches!(refused, Refusal::NoTarget { .. }), "{refused:?}");
}

#[test]
fn a_lease_that_ends_on_its_way_gives_both_places_back() {
    let mut bench = two_boxes(1);
    let lease = bench.lease(surviving());
    ask_move(&mut bench, lease.id, None).unwrap();
    assert_eq!(bench.release(lease.id).state, LeaseState::Releasing);
    bench.settle();
    assert_eq!(bench.state(lease.id), LeaseState::Ended);
    for gpu in ["a/0", "b/0"] {
        assert_eq!((bench.gpu(gpu).state, bench.gpu(gpu).holders.len()), (GpuState::Free, 0));
    }
}

#[test]
fn draining_asks_programs_that_can_go_on_elsewhere_and_moves_the_others() {
    let mut bench = two_boxes(2);
    let drain =
        |name_: &str| Command::DrainBox { box_name: name(name_), reason: "fans".into(), by: "ann".into() };
    bench.apply(&drain("b")).unwrap();
    let (one, two) = (bench.lease(surviving()), bench.lease(LeaseRequest::default()));
    bench.apply(&Command::UndrainBox { box_name: name("b") }).unwrap();
    bench.apply(&drain("a")).unwrap();
    assert_eq!(bench.show(two.id).grants[0].gpu.box_name, name("b"), "moved without asking, as ever");
    let way = bench.show(one.id);
    assert_eq!((&way.grants, way.moving.as_ref().unwrap().purpose), (&one.grants, Purpose::Drain));
    moved(&mut bench, one.id, second(&way)).unwrap();
    assert_eq!(bench.show(one.id).grants[0].gpu.box_name, name("b"));
}

#[test]
fn a_drained_program_that_stays_is_moved_without_asking() {
    for says_so in [true, false] {
        let mut bench = two_boxes(1);
        let lease = bench.lease(surviving());
        let from = lease.grants[0].gpu.box_name.clone();
        let drain = Command::DrainBox { box_name: from.clone(), reason: "fans".into(), by: "ann".into() };
        bench.apply(&drain).unwrap();
        let way = bench.show(lease.id);
        if says_so {
            stay(&mut bench, lease.id, second(&way));
        } else {
            bench.pass(Settings::default().move_grace_ms);
        }
        bench.settle();
        let now = bench.show(lease.id);
        assert_eq!((now.state, now.moving), (LeaseState::Granted, None), "says_so {says_so}");
        assert_ne!(now.grants[0].gpu.box_name, from, "says_so {says_so}");
        assert_eq!(now.moves.last().unwrap().reason, "it is being drained");
    }
}

#[test]
fn a_drained_lease_of_several_gpus_moves_one_after_the_other() {
    let mut bench = two_boxes(2);
    let lease = bench.lease(LeaseRequest { gpus: 2, ..surviving() });
    let from = lease.grants[0].gpu.box_name.clone();
    bench
        .apply(&Command::DrainBox { box_name: from.clone(), reason: "fans".into(), by: "ann".into() })
        .unwrap();
    for _ in 0..2 {
        let way = bench.show(lease.id);
        moved(&mut bench, lease.id, second(&way)).unwrap();
    }
    let now = bench.show(lease.id);
    assert!(now.moving.is_none() && now.grants.iter().all(|grant| grant.gpu.box_name != from), "{now:?}");
}

#[test]
fn a_drill_has_a_spare_for_a_moment() {
    let mut bench = two_boxes(1);
    let spares = Command::SetSpares { model: model("H200"), request: SpareRequest { count: 1 } };
    bench.apply(&spares).unwrap();
    let lease = bench.lease(surviving());
    let drill = |bench: &mut Bench| shown(bench.apply(&Command::Drill { lease: lease.id }).unwrap());
    let way = drill(&mut bench);
    assert_eq!((&way.grants, way.moving.as_ref().unwrap().purpose), (&lease.grants, Purpose::Drill));
    assert_eq!(drill(&mut bench).moving, way.moving, "asked again");
    assert!(moved(&mut bench, lease.id, second(&way)).is_err(), "a copy was there, not the program");
    let refused = ask_move(&mut bench, lease.id, None).unwrap_err();
    assert!(matches!(refused, Refusal::AlreadyMoving { .. }), "{refused:?}");
    let over = stay(&mut bench, lease.id, second(&way));
    assert_eq!((over.grants, over.moving), (lease.grants.clone(), None));
    bench.settle();
    assert!(bench.gpu(&second(&way).0.to_string()).spare, "it is a spare again");
    // The keeper that was to drill is gone.
    drill(&mut bench);
    bench.pass(Settings::default().move_grace_ms);
    bench.settle();
    assert_eq!((bench.show(lease.id).moving, bench.gpu(&second(&way).0.to_string()).spare), (None, true));
}

#[test]
fn a_parked_lease_has_no_gpu_and_comes_back_under_its_name() {
    let mut bench = Bench::with_boxes(&[("a", BoxKind::Pcie, "H200", 1)]);
    let lease = bench.lease(surviving());
    let asked = shown(bench.apply(&Command::Suspend { lease: lease.id }).unwrap());
    assert!(asked.suspend_wanted && asked.version > lease.version && asked.grants == lease.grants);
    let parked = park(&mut bench, &lease).unwrap();
    assert_eq!((parked.state, parked.grants.len(), parked.suspend_wanted), (LeaseState::Parked, 0, false));
    assert_eq!(parked.parking.unwrap().image_bytes, 7);
    assert_eq!(park(&mut bench, &lease).unwrap().state, LeaseState::Parked, "said again");
    bench.settle();
    let other = bench.lease(LeaseRequest::default());
    assert_eq!(other.state, LeaseState::Granted, "another lease has the GPU");
    bench.reload();
    bench.report_all();
    assert_eq!(resume(&mut bench, lease.id).state, LeaseState::Pending);
    assert_eq!(bench.state(lease.id), LeaseState::Pending, "like a new lease it waits");
    bench.release(other.id);
    bench.settle();
    let back = bench.show(lease.id);
    assert_eq!((back.state, back.parking, back.id), (LeaseState::Granted, None, lease.id));
    let late = park(&mut bench, &lease).unwrap_err();
    assert!(matches!(late, Refusal::NotItsGpu { .. }), "a late word parks nothing that runs again: {late:?}");
    let used = bench.ledger.tenant_status(&super::bench::tenant()).unwrap();
    assert_eq!((used.leases_granted, used.leases_pending), (1, 0));
}

#[test]
fn a_resumed_lease_waits_behind_those_that_waited_and_takes_no_spare() {
    let mut bench = two_boxes(1);
    let spares = Command::SetSpares { model: model("H200"), request: SpareRequest { count: 1 } };
    bench.apply(&spares).unwrap();
    let lease = bench.lease(surviving());
    park(&mut bench, &lease).unwrap();
    bench.settle();
    let (has, waits) = (bench.lease(LeaseRequest::default()), bench.lease(LeaseRequest::default()));
    assert_eq!((has.state, waits.state), (LeaseState::Granted, LeaseState::Pending));
    bench.pass(1_000);
    resume(&mut bench, lease.id);
    assert_eq!(bench.state(lease.id), LeaseState::Pending, "spares are for those that lost a GPU");
    assert_eq!(bench.ledger.explain(lease.id).unwrap().ahead, 1);
    bench.release(has.id);
    bench.settle();
    assert_eq!((bench.state(waits.id), bench.state(lease.id)), (LeaseState::Granted, LeaseState::Pending));
}

#[test]
fn a_parked_lease_ends_when_it_is_not_renewed_or_given_back() {
    let mut bench = two_boxes(1);
    let lease = bench.lease(LeaseRequest { ttl_ms: 10_000, ..surviving() });
    park(&mut bench, &lease).unwrap();
    bench.pass(8_000);
    bench.renew(lease.id).unwrap();
    bench.pass(8_000);
    assert_eq!(bench.state(lease.id), LeaseState::Parked);
    bench.pass(8_000);
    assert_eq!(bench.state(lease.id), LeaseState::Ended);
    let lease = bench.lease(surviving());
    park(&mut bench, &lease).unwrap();
    assert_eq!(bench.release(lease.id).state, LeaseState::Ended);
}

#[test]
fn a_program_that_cannot_be_parked_goes_on() {
    let mut bench = two_boxes(1);
    let lease = bench.lease(surviving());
    bench.apply(&Command::Suspend { lease: lease.id }).unwrap();
    let goes_on = Command::KeepRunning { lease: lease.id, why: "no image is safe".into() };
    let goes_on = shown(bench.apply(&goes_on).unwrap());
    assert_eq!(
        (goes_on.state, goes_on.suspend_wanted, goes_on.grants),
        (LeaseState::Granted, false, lease.grants)
    );
    // The person that asked for it thinks better of it.
    bench.apply(&Command::Suspend { lease: lease.id }).unwrap();
    assert!(!resume(&mut bench, lease.id).suspend_wanted);
    let waiting = {
        bench.lease(surviving());
        bench.lease(surviving())
    };
    let refused = bench.apply(&Command::Suspend { lease: waiting.id }).unwrap_err();
    assert!(matches!(refused, Refusal::NotGranted { .. }), "{refused:?}");
}

#[test]
fn a_guardian_is_told_which_of_its_leases_have_ended() {
    let mut bench = two_boxes(1);
    let (live, parked, ended) = (bench.lease(surviving()), LeaseId(0x7777), LeaseId(0x8888));
    let guarding = |bench: &mut Bench, leases: &[LeaseId]| {
        let mut report = bench.next_report("a");
        let leases = leases.iter().map(|id| pool_api::GuardedLease { lease: *id, bytes: 5 }).collect();
        report.guard = Some(pool_api::GuardReport { bytes: 100, used_bytes: 15, leases });
        bench.send("a", report).unwrap().ended_leases
    };
    assert_eq!(
        guarding(&mut bench, &[live.id, parked, ended]),
        [parked, ended],
        "this pool never lent these"
    );
    assert_eq!(bench.ledger.box_detail(&name("a")).unwrap().guard.unwrap().used_bytes, 15);
    bench.report_all();
    park(&mut bench, &live).unwrap();
    assert_eq!(guarding(&mut bench, &[live.id]), [], "a suspended program comes back to its image");
    bench.apply(&Command::Release { lease: live.id, reason: "released".into() }).unwrap();
    assert_eq!(guarding(&mut bench, &[live.id]), [live.id]);
    // A box without a guardian says nothing, and hears nothing.
    let report = bench.next_report("a");
    assert!(bench.send("a", report).unwrap().ended_leases.is_empty());
    assert!(bench.ledger.box_detail(&name("a")).unwrap().guard.is_none());
}
