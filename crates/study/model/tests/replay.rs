//! The replay against cases that can be worked out by hand, and against laws that every program must obey.

use model::closed_form::Parameters;
use model::equation::V100;
use model::profile::{Action, Awaited, Direction, Profile, Record};
use model::replay::{
    ALL_TERMS, Api, Charged, Habits, Machine, Pcie, Plane, calibrate, habits, replay, replay_without,
};
use proptest::prelude::*;

/// A program written down call by call. Native calls take 2 us.
#[derive(Default)]
struct Program {
    profile: Profile,
    now_us: f64,
}

const CALL_US: f64 = 2.0;

impl Program {
    fn call(mut self, thinking_us: f64, call_us: f64, action: Action) -> Self {
        self.now_us += thinking_us;
        self.profile.records.push(Record { at_us: self.now_us, call_us, action });
        self.now_us += call_us;
        self
    }

    fn launch(self, gpu_us: f64) -> Self {
        self.call(0.0, CALL_US, Action::Launch { stream: 0, kernel: 0, kernels: 1, gpu_us })
    }

    fn wait(self) -> Self {
        self.call(0.0, CALL_US, Action::Wait { target: Awaited::Stream(0) })
    }

    fn copy(self, direction: Direction, bytes: u64, pinned: bool, waits: bool, gpu_us: f64) -> Self {
        self.call(0.0, CALL_US, Action::Copy { stream: 0, direction, bytes, pinned, waits, gpu_us })
    }

    fn end(mut self) -> Profile {
        self.profile.kernels = vec!["k".to_owned()];
        self.profile.wall_us = self.now_us;
        self.profile
    }
}

const MACHINE: Machine = Machine { start_us: 3.0, gap_us: 0.0, wait_return_us: 4.0, queue_depth: 1024 };

fn api(rtt_us: f64) -> Api {
    Api { rtt_us, bandwidth_gbps: 1.0, call_us: 0.5, command_bytes: 0.0, ..Api::as_measured(rtt_us, 1.0) }
}

fn wall(profile: &Profile, plane: &Plane) -> f64 {
    replay(profile, &habits(profile), &MACHINE, plane).wall_us
}

#[track_caller]
fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
}

#[test]
fn a_native_launch_and_wait_take_what_they_take() {
    // call 2, start 3, kernel 100, return 4.
    near(wall(&Program::default().launch(100.0).wait().end(), &Plane::Native), 109.0);
}

#[test]
fn one_way_calls_cost_nothing_on_the_wire() {
    // Twenty kernels of 100 us, no wait: the worker issues the first half a round trip late, and never falls behind again.
    let program = (0..20).fold(Program::default(), |program, _| program.launch(100.0)).end();
    let native = wall(&program, &Plane::Native);
    near(native, 2.0 + 3.0 + 2000.0);
    // own call 0.5, way there 25, dispatch 2 (as native), start 3.
    near(wall(&program, &Plane::Api(api(50.0))), 0.5 + 25.0 + 2.0 + 3.0 + 2000.0);
}

#[test]
fn a_wait_costs_a_round_trip_only_where_nothing_else_is_queued() {
    let alone = (0..10).fold(Program::default(), |program, _| program.launch(100.0).wait()).end();
    let lost = wall(&alone, &Plane::Api(api(50.0))) - wall(&alone, &Plane::Api(api(0.0)));
    near(lost, 10.0 * 50.0);

    // The same waits, but for an event with a long kernel queued behind it: the GPU never runs dry.
    let busy = (0..10).fold(Program::default(), |program, index| {
        program
            .launch(1.0)
            .call(0.0, CALL_US, Action::RecordEvent { stream: 0, event: index })
            .launch(1000.0)
            .call(0.0, CALL_US, Action::Wait { target: Awaited::Event(index) })
    });
    let busy = busy.end();
    let lost = wall(&busy, &Plane::Api(api(50.0))) - wall(&busy, &Plane::Api(api(0.0)));
    near(lost, 25.0);
}

#[test]
fn a_read_back_waits_for_the_way_there_and_back_and_for_its_bytes() {
    let program = Program::default().copy(Direction::DeviceToHost, 1_000_000, false, true, 90.0).end();
    // own call 0.5, way there 25, dispatch 0 (nothing to learn it from), start 3, engine 90 (one piece), 1000 us at 1 GB/s, way back
    // 25, return 4.
    near(wall(&program, &Plane::Api(api(50.0))), 0.5 + 25.0 + 3.0 + 90.0 + 1000.0 + 25.0 + 4.0);
}

#[test]
fn a_pinned_upload_lets_the_program_go_on_and_a_pageable_one_does_not() {
    let upload = |pinned| {
        let program = Program::default().copy(Direction::HostToDevice, 1_000_000, pinned, false, 90.0);
        let program = program.call(2000.0, 0.0, Action::Step).end();
        wall(&program, &Plane::Api(api(50.0)))
    };
    // Pinned: the bytes travel while the program thinks. Pageable: they are out after 1000 us, then it thinks.
    near(upload(true), 0.5 + 2000.0);
    near(upload(false), 1000.0 + 2000.0);
}

#[test]
fn small_uploads_travel_inside_their_command() {
    let program =
        Program::default().copy(Direction::HostToDevice, 1000, false, false, 1.0).launch(10.0).end();
    // call, 1 us for the bytes, way there; then the second call's dispatch (2 us each), start, kernel.
    let expected = 0.5 + 1.0 + 25.0 + 2.0 + 2.0 + 3.0 + 10.0;
    near(wall(&program, &Plane::Api(api(50.0))), expected);
}

#[test]
fn the_pcie_replay_of_a_busy_gpu_is_the_closed_form() {
    let program = (0..1000).fold(Program::default(), |program, _| program.launch(102.3)).end();
    let parameters = Parameters { exposed_round_trips: 1.2, fixed_us: 2.5, ..Parameters::GUESS };
    let pcie = Pcie::as_measured(&parameters, V100, 6.8, 25.0);
    let kept = wall(&program, &Plane::Native) / wall(&program, &Plane::Pcie(pcie));
    let expected = 102.3 / (102.3 + parameters.loss_per_operation_us(5.6));
    assert!((kept - expected).abs() < 1e-3, "{kept} is not {expected}");
}

#[test]
fn an_idle_gpu_hides_injected_fillers_but_not_the_measured_loss() {
    // SSD320: kernels of 8 us, launches 50 us apart.
    let launch = Action::Launch { stream: 0, kernel: 0, kernels: 1, gpu_us: 8.0 };
    let program = (0..1000).fold(Program::default(), |program, _| program.call(48.0, CALL_US, launch)).end();
    let parameters = Parameters { exposed_round_trips: 1.2, fixed_us: 2.56, ..Parameters::GUESS };
    let kept = |pcie| 100.0 * wall(&program, &Plane::Native) / wall(&program, &Plane::Pcie(pcie));
    let measured = kept(Pcie::as_measured(&parameters, V100, 6.8, 25.0));
    assert!((83.0..84.5).contains(&measured), "{measured}");
    let injected = kept(Pcie::as_injected(V100, 6.8, 25.0, 2.0, 0.0));
    assert!(injected > 99.9, "{injected}");
}

#[test]
fn a_program_that_waits_for_each_kernel_loses_once_per_kernel() {
    let program = (0..100).fold(Program::default(), |program, _| program.launch(50.0).wait()).end();
    let parameters = Parameters::GUESS;
    let pcie = Pcie { wait_round_trips: 0.0, ..Pcie::as_measured(&parameters, V100, 6.8, 25.0) };
    let lost = wall(&program, &Plane::Pcie(pcie)) - wall(&program, &Plane::Native);
    near(lost, 100.0 * parameters.loss_per_operation_us(5.6));
}

#[test]
fn large_reads_run_at_equation_1_and_writes_do_not() {
    let bytes = 100_000_000;
    let copy = |direction, gpu_us| Program::default().copy(direction, bytes, true, true, gpu_us).end();
    let pcie = Plane::Pcie(Pcie::as_measured(&Parameters::GUESS, V100, 6.8, 25.0));
    let rate = |program: &Profile| bytes as f64 / wall(program, &pcie) / 1e3;
    let down = rate(&copy(Direction::HostToDevice, bytes as f64 / 11.2e3));
    assert!((down - 2.635).abs() < 0.01, "{down}");
    let up = rate(&copy(Direction::DeviceToHost, bytes as f64 / 12.5e3));
    assert!((up - 11.6).abs() < 0.1, "{up}");
}

#[test]
fn calibration_finds_the_pause_between_kernels() {
    let mut program = (0..500).fold(Program::default(), |program, _| program.launch(50.0)).wait().end();
    let truth = Machine { gap_us: 1.5, ..MACHINE };
    program.wall_us = replay(&program, &habits(&program), &truth, &Plane::Native).wall_us;
    // The recording's last wait took the rest of the time.
    let last = program.records.last_mut().unwrap();
    last.call_us = program.wall_us - last.at_us;
    let found = calibrate(&program, MACHINE);
    assert!((found.gap_us - 1.5).abs() < 0.01, "{}", found.gap_us);
}

#[test]
fn a_poll_loop_ends_when_the_gpu_is_done() {
    // Natively a hundred polls of 1 us; remotely a round trip each, and only until the answer is yes.
    let query = |done| Action::Query { target: Awaited::Stream(0), done };
    let program =
        (0..100).fold(Program::default().launch(100.0), |program, _| program.call(0.0, 1.0, query(false)));
    let program = program.call(0.0, 1.0, query(true)).end();
    let remote = wall(&program, &Plane::Api(api(50.0)));
    assert!((150.0..260.0).contains(&remote), "{remote}");
}

#[test]
fn a_full_queue_holds_the_program_up() {
    let program = (0..3000).fold(Program::default(), |program, _| program.launch(10.0));
    let program = program.call(0.0, 0.0, Action::Step).end();
    let machine = Machine { queue_depth: 16, ..MACHINE };
    let outcome = replay(&program, &habits(&program), &machine, &Plane::Native);
    near(outcome.wall_us, 2.0 + 3.0 + 30_000.0);
}

/// Any program without polls, which are the one thing that is not made of sums and maxima.
fn program() -> impl Strategy<Value = Profile> {
    let us = |max: u32| (0..max).prop_map(f64::from);
    let action = prop_oneof![
        4 => (0u32..3, us(300)).prop_map(|(stream, gpu_us)| Action::Launch { stream, kernel: 0, kernels: 1, gpu_us }),
        1 => (0u32..3, 0..3u8, 0u64..4_000_000, any::<bool>(), any::<bool>(), us(400)).prop_map(
            |(stream, direction, bytes, pinned, waits, gpu_us)| Action::Copy {
                stream,
                direction: [Direction::HostToDevice, Direction::DeviceToHost, Direction::DeviceToDevice]
                    [usize::from(direction)],
                bytes,
                pinned,
                waits,
                gpu_us,
            }
        ),
        1 => (0u32..3, us(20)).prop_map(|(stream, gpu_us)| Action::Memset { stream, bytes: 64, gpu_us }),
        1 => (0u32..3, 0u32..3).prop_map(|(stream, event)| Action::RecordEvent { stream, event }),
        1 => (0u32..3, 0u32..3).prop_map(|(stream, event)| Action::StreamWait { stream, event }),
        1 => (0u32..3).prop_map(|stream| Action::Wait { target: Awaited::Stream(stream) }),
        1 => (0u32..3).prop_map(|event| Action::Wait { target: Awaited::Event(event) }),
        1 => Just(Action::Wait { target: Awaited::Everything }),
        1 => (0u32..50).prop_map(|calls| Action::Local { calls }),
        1 => any::<bool>().prop_map(|awaited| Action::Other { awaited }),
    ];
    prop::collection::vec((0u32..40, 1u32..9, action), 1..80).prop_map(|calls| {
        calls
            .into_iter()
            .fold(Program::default(), |program, (thinking, call, action)| {
                program.call(f64::from(thinking), f64::from(call), action)
            })
            .end()
    })
}

proptest! {
    #[test]
    fn performance_kept_never_rises_with_the_distance(profile in program(), near_us in 0u32..100, more_us in 1u32..100) {
        let (near_us, far_us) = (f64::from(near_us), f64::from(near_us + more_us));
        for plane in [
            (|rtt_us| Plane::Api(api(rtt_us))) as fn(f64) -> Plane,
            |rtt_us| Plane::Pcie(Pcie::as_measured(&Parameters::GUESS, V100, rtt_us, 25.0)),
            |rtt_us| Plane::Pcie(Pcie::as_injected(V100, rtt_us, 25.0, 1.0, 0.0)),
        ] {
            prop_assert!(wall(&profile, &plane(far_us)) >= wall(&profile, &plane(near_us)) - 1e-6);
        }
    }

    #[test]
    fn more_bandwidth_never_hurts(profile in program(), slow in 1u32..50, more in 1u32..50) {
        let with = |gbps: u32| Plane::Api(Api { bandwidth_gbps: f64::from(gbps), ..api(20.0) });
        prop_assert!(wall(&profile, &with(slow + more)) <= wall(&profile, &with(slow)) + 1e-6);
    }

    #[test]
    fn the_pcie_plane_at_the_native_round_trip_is_native(profile in program()) {
        let pcie = Plane::Pcie(Pcie::as_measured(&Parameters::GUESS, V100, 1.2, 25.0));
        prop_assert!((wall(&profile, &pcie) - wall(&profile, &Plane::Native)).abs() < 1e-6);
    }

    #[test]
    fn waiving_a_term_never_costs_time(profile in program(), rtt_us in 2u32..100) {
        let habits: Habits = habits(&profile);
        let rtt_us = f64::from(rtt_us);
        let planes = [
            Plane::Api(api(rtt_us)),
            Plane::Pcie(Pcie { charged: Charged::GpuAndHost, ..Pcie::as_measured(&Parameters::GUESS, V100, rtt_us, 25.0) }),
        ];
        for plane in planes {
            let all = replay(&profile, &habits, &MACHINE, &plane).wall_us;
            for term in ALL_TERMS {
                let without = replay_without(&profile, &habits, &MACHINE, &plane, term).wall_us;
                prop_assert!(without <= all + 1e-6, "{term:?} on {plane:?}");
            }
        }
    }

    #[test]
    fn no_program_is_faster_than_its_gpu(profile in program(), rtt_us in 0u32..100) {
        let one_stream: f64 = profile.records.iter().map(|record| match record.action {
            Action::Launch { stream: 0, gpu_us, .. } => gpu_us,
            _ => 0.0,
        }).sum();
        prop_assert!(wall(&profile, &Plane::Api(api(f64::from(rtt_us)))) >= one_stream);
    }
}
