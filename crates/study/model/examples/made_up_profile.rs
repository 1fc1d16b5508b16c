//! Writes profiles of programs that never ran, to try `dxpu model predict` without a GPU.
//!
//! ```text
//! cargo run -p model --example made_up_profile -- training train.profile
//! cargo run -p model --example made_up_profile -- decoding decode.profile
//! ```
//!
//! The number of calls is that of a PyTorch program (a training step of ResNet-50 makes about 740 launches and reads its loss
//! back; a token of a small language model about 280 launches and two waits); the durations are invented, drawn from a fixed
//! sequence. A recorded profile replaces these in every result that matters.

use model::profile::{Action, Awaited, Direction, Profile, Record, encode};
use model::replay::{Machine, Plane, habits, replay};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, path] = arguments.as_slice() else { usage() };
    let profile = match kind.as_str() {
        "training" => made("made up: ResNet-50 training, batch 64", 20, 740, 44.0, 1),
        "decoding" => made("made up: decoding of a small language model", 64, 284, 4.0, 2),
        _ => usage(),
    };
    if let Err(error) = std::fs::write(path, encode(&profile)) {
        eprintln!("cannot write {path}: {error}");
        std::process::exit(1);
    }
}

fn usage() -> ! {
    eprintln!("made_up_profile training|decoding FILE");
    std::process::exit(2);
}

/// `steps` steps of `launches` kernels with a mean of `mean_us` (six in ten of them short) and `read_backs` small read-backs.
fn made(program: &str, steps: u32, launches: u32, mean_us: f64, read_backs: u32) -> Profile {
    let mut profile = Profile {
        device: "no GPU".to_owned(),
        program: program.to_owned(),
        kernels: ["convolution", "batch_norm", "elementwise", "reduce", "update"].map(String::from).to_vec(),
        ..Profile::default()
    };
    let mut now_us = 0.0;
    let mut call = |thinking_us: f64, call_us: f64, action| {
        now_us += thinking_us;
        profile.records.push(Record { at_us: now_us, call_us, action });
        now_us += call_us;
    };
    let mut dice: u32 = 1;
    for _ in 0..steps {
        call(200.0, 0.0, Action::Step);
        for launch in 0..launches {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let spread = 0.5 + f64::from(dice >> 16) / f64::from(u16::MAX);
            let is_short = launch % 5 < 3;
            let gpu_us = spread * if is_short { mean_us * 0.1 } else { mean_us * 2.35 };
            call(2.0, 2.2, Action::Local { calls: 18 });
            call(4.0, 3.2, Action::Launch { stream: 0, kernel: launch % 5, kernels: 1, gpu_us });
        }
        for _ in 0..read_backs {
            let action = Action::Copy {
                stream: 0,
                direction: Direction::DeviceToHost,
                bytes: 4,
                pinned: false,
                waits: true,
                gpu_us: 1.5,
            };
            call(20.0, 10.0, action);
        }
    }
    call(0.0, 5.0, Action::Wait { target: Awaited::Everything });
    profile.wall_us = now_us;
    // The program takes as long as its replay says, so that the two agree.
    let wall_us = replay(&profile, &habits(&profile), &Machine::default(), &Plane::Native).wall_us;
    profile.wall_us = wall_us.max(now_us);
    if let Some(last) = profile.records.last_mut() {
        last.call_us = profile.wall_us - last.at_us;
    }
    profile
}
