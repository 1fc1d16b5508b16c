use super::*;
use crate::places::Fit;
use proptest::prelude::*;
use std::collections::BTreeSet;

const AFTER_MS: u64 = 2_000;
const REST_MS: u64 = 30_000;

fn policy() -> Policy {
    let rules = Rules { sharing: 3, tenants_share: false, fit: Fit::Best };
    Policy { after_ms: AFTER_MS, rest_ms: REST_MS, rules }
}

fn slot(used: u32, used_mb: u64) -> Slot {
    let had = BTreeSet::new();
    Slot { tenant: "a".to_owned(), total_mb: 1000, used_mb, used, empty_since_ms: 0, had, is_down: false }
}

fn gpu(id: u64, slot: &Slot, running: u32) -> Gpu<'_> {
    Gpu { id: SlotId(id), slot, running, since_ms: 0, is_open: true }
}

fn runner(id: u64, at: u64, gpu_mb: u32) -> Runner<'static> {
    Runner { id: InstanceId(id), at: SlotId(at), tenant: "a", gpu_mb, moved_ms: None }
}

fn move_of(instance: u64, to: u64) -> Decision {
    Decision::Move { instance: InstanceId(instance), to: SlotId(to) }
}

#[test]
fn the_smallest_of_a_crowd_goes_to_the_gpu_on_which_none_runs() {
    let (crowded, idle) = (slot(2, 700), slot(0, 0));
    let gpus = [gpu(1, &crowded, 2), gpu(2, &idle, 0)];
    let runners = [runner(1, 1, 400), runner(2, 1, 300)];
    assert_eq!(decide(&gpus, &runners, policy(), AFTER_MS), move_of(2, 2));
    assert_eq!(decide(&gpus, &runners, policy(), AFTER_MS - 1), Decision::Nothing, "it is too early");
    let balanced = [gpu(1, &crowded, 1), gpu(2, &idle, 0)];
    assert_eq!(decide(&balanced, &runners, policy(), AFTER_MS), Decision::Nothing);
}

#[test]
fn an_instance_that_has_just_moved_stays_and_another_goes() {
    let (crowded, idle) = (slot(2, 700), slot(0, 0));
    let gpus = [gpu(1, &crowded, 2), gpu(2, &idle, 0)];
    let rests = || Runner { moved_ms: Some(5_000), ..runner(1, 1, 300) };
    assert_eq!(decide(&gpus, &[rests()], policy(), 5_000 + REST_MS - 1), Decision::Nothing);
    assert_eq!(decide(&gpus, &[rests()], policy(), 5_000 + REST_MS), move_of(1, 2));
    assert_eq!(decide(&gpus, &[rests(), runner(2, 1, 400)], policy(), 6_000), move_of(2, 2));
}

#[test]
fn a_gpu_without_room_is_none_and_another_is_asked_for() {
    let (crowded, full) = (slot(2, 700), slot(1, 800));
    let gpus = [gpu(1, &crowded, 2), gpu(2, &full, 0)];
    let ask = Decision::Ask { tenant: "a".to_owned(), declared_mb: 300 };
    assert_eq!(decide(&gpus, &[runner(1, 1, 300)], policy(), AFTER_MS), ask);
    let closed = [gpu(1, &crowded, 2), Gpu { is_open: false, ..gpu(2, &crowded, 0) }];
    assert_eq!(decide(&closed, &[runner(1, 1, 300)], policy(), AFTER_MS), ask);
    let foreign = Slot { tenant: "b".to_owned(), ..slot(0, 0) };
    assert_eq!(
        decide(&[gpu(1, &crowded, 2), gpu(2, &foreign, 0)], &[runner(1, 1, 300)], policy(), AFTER_MS),
        ask
    );
}

#[test]
fn one_that_has_only_just_become_idle_is_waited_for() {
    let (crowded, idle) = (slot(2, 700), slot(1, 100));
    let gpus = [gpu(1, &crowded, 2), Gpu { since_ms: 4_000, ..gpu(2, &idle, 0) }];
    assert_eq!(decide(&gpus, &[runner(1, 1, 300)], policy(), 5_000), Decision::Nothing);
    assert_eq!(decide(&gpus, &[runner(1, 1, 300)], policy(), 6_000), move_of(1, 2));
}

/// Instances with their memory, each on one of the GPUs, of which some run.
#[derive(Clone, Debug)]
struct Load {
    at: Vec<(usize, u32, bool)>,
    gpus: usize,
}

impl Load {
    fn slots(&self) -> Vec<Slot> {
        let of = |gpu| self.at.iter().filter(move |(at, _, _)| *at == gpu);
        let slot_of = |gpu| slot(of(gpu).count() as u32, of(gpu).map(|(_, mb, _)| u64::from(*mb)).sum());
        (0..self.gpus).map(slot_of).collect()
    }

    fn running(&self, gpu: usize) -> u32 {
        self.at.iter().filter(|(at, _, is_running)| *at == gpu && *is_running).count() as u32
    }

    fn decide(&self) -> Decision {
        let slots = self.slots();
        let gpus: Vec<Gpu<'_>> =
            (0..self.gpus).map(|id| gpu(id as u64, &slots[id], self.running(id))).collect();
        let runs = |(id, (at, mb, is_running)): (usize, &(usize, u32, bool))| {
            is_running.then(|| runner(id as u64, *at as u64, *mb))
        };
        let runners: Vec<Runner<'_>> = self.at.iter().enumerate().filter_map(runs).collect();
        decide(&gpus, &runners, policy(), u64::MAX)
    }
}

fn loads() -> impl Strategy<Value = Load> {
    (1..6_usize).prop_flat_map(|gpus| {
        let one = (0..gpus, 1..400_u32, any::<bool>());
        proptest::collection::vec(one, 0..12).prop_map(move |at| Load { at, gpus })
    })
}

proptest! {
    /// With loads that stay as they are, moves come to an end soon, each is to a GPU with room, and none takes the last one away.
    #[test]
    fn moves_end_and_never_pass_a_limit(mut load in loads()) {
        for _ in 0..load.gpus {
            let Decision::Move { instance, to } = load.decide() else { return Ok(()) };
            let (from, mb, is_running) = load.at[instance.0 as usize];
            let to = to.0 as usize;
            prop_assert!(is_running && load.running(from) >= 2 && load.running(to) == 0);
            let target = &load.slots()[to];
            prop_assert!(target.used < 3 && target.used_mb + u64::from(mb) <= target.total_mb);
            load.at[instance.0 as usize].0 = to;
        }
        // Each move makes one GPU less idle, so there are fewer moves than GPUs.
        let is_still_moving = matches!(load.decide(), Decision::Move { .. });
        prop_assert!(!is_still_moving);
    }
}
