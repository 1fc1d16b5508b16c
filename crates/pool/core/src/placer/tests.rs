//! The lazy rankings against a plain look at every box, over random histories.

use super::*;
use crate::{BoxSpec, GpuBox, ModelFilter, Models, SplitMix};
use proptest::prelude::*;
use std::cmp::Reverse;

#[derive(Clone, Debug)]
enum Step {
    Ask(usize),
    Release(usize),
    Hold(usize),
    Unhold(usize),
    CatchUp,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..64usize).prop_map(Step::Ask),
        2 => (0..64usize).prop_map(Step::Release),
        1 => (0..64usize).prop_map(Step::Hold),
        1 => (0..64usize).prop_map(Step::Unhold),
        1 => Just(Step::CatchUp),
    ]
}

fn requests(models: &mut Models) -> Vec<Request> {
    let mut requests = Vec::new();
    for (cpu_milli, memory_mib) in [(0, 0), (3000, 10), (9000, 50)] {
        for gpus in
            [GpuNeed::None, GpuNeed::Share(300), GpuNeed::Share(700), GpuNeed::Whole(1), GpuNeed::Whole(3)]
        {
            for text in ["", "B"] {
                let models = models.filter(text).unwrap();
                requests.push(Request { shape: Shape { cpu_milli, gpus, models }, memory_mib });
            }
        }
    }
    requests
}

fn inventory(models: &mut Models) -> Inventory {
    let mut inventory = Inventory::default();
    for number in 0..12u32 {
        let model = models.id(if number % 3 == 0 { "A" } else { "B" }).unwrap();
        // Orders are unlike numbers, so that a tie decided by the wrong one shows.
        let order = (number * 7 + 3) % 12;
        let gpus = [1, 2, 4, 8][number as usize % 4];
        inventory.add(&BoxSpec { model, gpus, cpu_milli: 32_000, memory_mib: 100, order }).unwrap();
    }
    inventory
}

/// The box that a look at every box finds.
fn by_looking_at_all(placer: &Placer, request: &Request) -> Option<(BoxId, u8)> {
    let fits = |state: &GpuBox| state.fits(&request.shape) && state.memory_mib_free >= request.memory_mib;
    let scored = placer.inventory.iter().filter(|(_, state)| fits(state)).map(|(id, state)| {
        let wasted = crate::fragment_of(state, placer.mix()).wasted();
        (Reverse(placer.judge.score(state, &request.shape, wasted)), state.order, id)
    });
    scored.min().map(|(score, _, id)| (id, score.0))
}

fn run(policy: Policy, steps: &[Step]) {
    let mut models = Models::default();
    let requests = requests(&mut models);
    let inventory = inventory(&mut models);
    let mix = Mix::observe(requests.iter().map(|request| &request.shape), 95);
    let scale = Scale::of(&inventory);
    let (mut placer, mut dice) = (Placer::new(inventory, policy, scale, mix), SplitMix::new(1));
    let (mut granted, mut held): (Vec<(Choice, Request)>, Vec<(BoxId, usize)>) = (Vec::new(), Vec::new());
    let free_before = placer.inventory.gpu_milli_free();
    for step in steps {
        match step {
            Step::Ask(number) => {
                let request = &requests[number % requests.len()];
                let choice = placer.choose(request, &mut dice);
                if policy == Policy::Random {
                    assert_eq!(choice.is_none(), by_looking_at_all(&placer, request).is_none());
                } else {
                    assert_eq!(
                        choice.map(|choice| (choice.id, choice.score)),
                        by_looking_at_all(&placer, request)
                    );
                }
                assert_eq!(choice.is_some(), placer.walls(request).none > 0);
                if let Some(choice) = choice {
                    placer.grant(&choice, request);
                    granted.push((choice, request.clone()));
                }
            }
            Step::Release(number) if !granted.is_empty() => {
                let (choice, request) = granted.swap_remove(number % granted.len());
                placer.release(choice.id, choice.slots, &request);
            }
            Step::Hold(number) => {
                let id = BoxId((number % placer.inventory.len()) as u32);
                if let Some(slot) = placer.inventory.get(id).idle_slots().iter().next() {
                    placer.hold(id, slot);
                    held.push((id, slot));
                }
            }
            Step::Unhold(number) if !held.is_empty() => {
                let (id, slot) = held.swap_remove(number % held.len());
                placer.unhold(id, slot);
            }
            Step::CatchUp => placer.catch_up(),
            Step::Release(_) | Step::Unhold(_) => {}
        }
        let whole = placer.fragment();
        assert!((placer.wasted() - whole.wasted()).abs() < 1e-6);
        let idle = placer.inventory.gpu_milli_free();
        assert!(
            (whole.wasted() + whole.satisfied - idle as f64).abs() < 1e-6,
            "the classes add up to what is idle"
        );
    }
    for (choice, request) in granted {
        placer.release(choice.id, choice.slots, &request);
    }
    for (id, slot) in held {
        placer.unhold(id, slot);
    }
    assert_eq!(placer.inventory.gpu_milli_free(), free_before, "nothing is lost on the way");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_ranking_finds_what_a_look_at_every_box_finds(
        policy in 0..Policy::ALL.len(),
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        run(Policy::ALL[policy], &steps);
    }
}

#[test]
fn walls_say_what_is_lacking() {
    let mut models = Models::default();
    let inventory = inventory(&mut models);
    let placer = Placer::new(inventory, Policy::Fgd, Scale { cpu_milli: 1, gpu_milli: 1 }, Mix::default());
    let ask = |cpu_milli, memory_mib, gpus, models: ModelFilter| {
        placer.walls(&Request { shape: Shape { cpu_milli, gpus, models }, memory_mib })
    };
    let only_b = models.filter("B").unwrap();
    assert_eq!(
        ask(0, 0, GpuNeed::Whole(8), only_b),
        Walls { model: 4, gpus: 6, none: 2, ..Walls::default() }
    );
    let any = ModelFilter::any();
    assert_eq!(ask(33_000, 0, GpuNeed::Whole(4), any.clone()), Walls { gpus: 6, cpu: 6, ..Walls::default() });
    assert_eq!(ask(0, 101, GpuNeed::None, any), Walls { memory: 12, ..Walls::default() });
}
