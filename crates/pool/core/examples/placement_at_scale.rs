//! What a placement costs as the pool grows: grants and releases on pools that are nearly full.
//!
//! ```text
//! cargo run --release --package pool --example placement_at_scale
//! ```

use pool::{
    BoxSpec, Choice, Dice, GpuNeed, Inventory, Mix, ModelFilter, Models, Placer, Policy, Request, Scale,
    SplitMix,
};
use std::time::Instant;

const REQUESTS: usize = 20_000;
const GPUS_PER_BOX: usize = 8;

fn main() {
    println!(
        "    GPUs   policy    median us   p99 us   largest us   (single GPUs: p99 us)   catch-up p99 us"
    );
    for gpus in [512, 10_000, 100_000] {
        for policy in [Policy::BestFit, Policy::Fgd] {
            measure(gpus, policy);
        }
    }
}

fn measure(gpus: usize, policy: Policy) {
    let mut models = Models::default();
    let (mut inventory, mut dice) = (Inventory::default(), SplitMix::new(1));
    for number in 0..gpus / GPUS_PER_BOX {
        let model = models.id(["A", "B", "C", "D"][number % 4]).expect("four models fit");
        let order = number as u32;
        let spec = BoxSpec { model, gpus: GPUS_PER_BOX, cpu_milli: 0, memory_mib: 0, order };
        inventory.add(&spec).expect("eight slots fit");
    }
    let requests = requests(&mut models);
    let mix = Mix::observe(requests.iter().map(|request| &request.shape), 95);
    let scale = Scale::of(&inventory);
    let mut placer = Placer::new(inventory, policy, scale, mix);
    let mut granted: Vec<(Choice, Request)> = Vec::new();
    // Fill to the brim, then for every request one random lease ends, so that there is always a little room.
    let mut refused = 0;
    while refused < 100 {
        let request = &requests[dice.below(requests.len() as u32) as usize];
        match placer.choose(request, &mut dice) {
            Some(choice) => {
                placer.grant(&choice, request);
                granted.push((choice, request.clone()));
            }
            None => refused += 1,
        }
    }
    let (mut all, mut single, mut catch_up) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REQUESTS {
        let (choice, request) = granted.swap_remove(dice.below(granted.len() as u32) as usize);
        placer.release(choice.id, choice.slots, &request);
        let began = Instant::now();
        placer.catch_up();
        catch_up.push(began.elapsed().as_secs_f64() * 1e6);

        let request = &requests[dice.below(requests.len() as u32) as usize];
        let began = Instant::now();
        let choice = placer.choose(request, &mut dice);
        if let Some(choice) = &choice {
            placer.grant(choice, request);
        }
        let took = began.elapsed().as_secs_f64() * 1e6;
        all.push(took);
        if request.shape.gpus == GpuNeed::Whole(1) {
            single.push(took);
        }
        granted.extend(choice.map(|choice| (choice, request.clone())));
        placer.catch_up();
    }
    let quantile = |times: &mut Vec<f64>, share: f64| {
        times.sort_by(f64::total_cmp);
        times[((times.len() - 1) as f64 * share) as usize]
    };
    println!(
        "  {gpus:>6}   {:<8}  {:>9.1}   {:>6.1}   {:>10.1}   {:>23.1}   {:>15.1}",
        policy,
        quantile(&mut all, 0.5),
        quantile(&mut all, 0.99),
        quantile(&mut all, 1.0),
        quantile(&mut single, 0.99),
        quantile(&mut catch_up, 0.99),
    );
}

/// Shares and whole GPUs of any model or one of four, the small ones more often.
fn requests(models: &mut Models) -> Vec<Request> {
    let kinds = [
        (GpuNeed::Share(250), 4),
        (GpuNeed::Share(500), 4),
        (GpuNeed::Whole(1), 8),
        (GpuNeed::Whole(2), 3),
        (GpuNeed::Whole(4), 2),
        (GpuNeed::Whole(8), 1),
    ];
    let mut requests = Vec::new();
    for (gpus, times) in kinds {
        for model in ["A", "B", "C", "D"] {
            let one = models.filter(model).expect("four models fit");
            requests.extend(vec![Request::gpus(gpus, one); times]);
            requests.extend(vec![Request::gpus(gpus, ModelFilter::any()); times / 2]);
        }
    }
    requests
}
