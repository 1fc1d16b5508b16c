//! Predictions on programs whose answer is known, and advice that keeps what it promises.

use model::check::check;
use model::closed_form::Parameters;
use model::equation::V100;
use model::paper::paper_rows;
use model::predict::{Change, PcieCosts, PlaneKind, Question, changed, curve_csv, predict};
use model::profile::{Action, Direction, Profile, Record, encode, read, summarise};
use model::replay::{Api, Machine, Plane, Term, habits, replay};

/// Steps of a training loop: `launches` kernels in a row, then the loss is read back.
fn training(steps: u32, launches: u32, gpu_us: f64, reads_loss: bool) -> Profile {
    let mut profile = Profile { kernels: vec!["gemm".to_owned(), "relu".to_owned()], ..Profile::default() };
    let mut now_us = 0.0;
    let mut call = |thinking_us: f64, call_us: f64, action| {
        now_us += thinking_us;
        profile.records.push(Record { at_us: now_us, call_us, action });
        now_us += call_us;
    };
    for _ in 0..steps {
        call(20.0, 0.0, Action::Step);
        for launch in 0..launches {
            call(1.0, 2.0, Action::Local { calls: 18 });
            call(1.0, 3.0, Action::Launch { stream: 0, kernel: launch % 2, kernels: 1, gpu_us });
        }
        if reads_loss {
            let loss = Action::Copy {
                stream: 0,
                direction: Direction::DeviceToHost,
                bytes: 4,
                pinned: false,
                waits: true,
                gpu_us: 1.5,
            };
            call(5.0, 10.0, loss);
        }
    }
    profile.wall_us = now_us;
    let lasts = replay(&profile, &habits(&profile), &Machine::default(), &Plane::Native).wall_us;
    // The recording lasted as long as the GPU needed: the last call waited for it.
    if let Some(last) = profile.records.last_mut() {
        last.call_us = (lasts - last.at_us).max(last.call_us);
        profile.wall_us = last.returned_us();
    }
    profile
}

fn question(plane: PlaneKind, rtt_us: f64) -> Question {
    Question {
        plane,
        rtt_us,
        bandwidth_gbps: 12.0,
        curve_rtts_us: (1..=25).map(|point| f64::from(point) * 2.0).collect(),
        path: V100,
        parameters: Parameters { exposed_round_trips: 1.2, fixed_us: 2.56, ..Parameters::GUESS },
        pcie_costs: PcieCosts::Measured,
        long_kernels_only: false,
        api: Api::as_measured(0.0, 0.0),
        machine: Machine::default(),
    }
}

#[test]
fn the_papers_resnet_comes_out_as_the_paper_measured_it() {
    // From the mean kernel durations and the fitted constants alone: Table 9, batch 32, 64 and 128.
    let report = check(&V100, &paper_rows());
    let mut values = [0.0; 9];
    for (value, parameter) in values.iter_mut().zip(&report.parameters) {
        *value = parameter.value;
    }
    for (kernel_us, measured_pct) in [(56.0, 85.2), (102.3, 92.7), (193.0, 95.5)] {
        let asked = Question { parameters: Parameters::from_array(values), ..question(PlaneKind::Pcie, 6.8) };
        let found = predict(&training(3, 700, kernel_us, false), &asked).kept_pct;
        assert!((found - measured_pct).abs() < 1.6, "{found} is not {measured_pct}");
    }
}

#[test]
fn a_busy_training_step_keeps_everything_on_the_api_plane_and_not_on_the_pcie_plane() {
    let profile = training(5, 700, 30.0, true);
    let api = predict(&profile, &question(PlaneKind::Api, 50.0));
    assert!(api.kept_pct > 98.5, "{}", api.kept_pct);
    let pcie = predict(&profile, &question(PlaneKind::Pcie, 50.0));
    assert!(pcie.kept_pct < 40.0, "{}", pcie.kept_pct);
    assert_eq!(pcie.terms[0].term, Term::Launches);
    assert!(pcie.advice[0].text.starts_with("lease the api plane"), "{}", pcie.advice[0].text);
    assert!(api.advice[0].text.starts_with("the api plane is the right one"), "{}", api.advice[0].text);
}

#[test]
fn a_decoding_loop_pays_its_waits_and_is_told_so() {
    let profile = training(64, 10, 8.0, true);
    let found = predict(&profile, &question(PlaneKind::Api, 50.0));
    assert_eq!(found.terms[0].term, Term::DownloadLatency);
    let advice = found.advice.iter().find(|advice| advice.text.contains("64 copies of up to 4096 bytes"));
    assert!(advice.is_some_and(|advice| advice.gained_points > 5.0), "{:?}", found.advice);
}

#[test]
fn the_curve_falls_and_passes_through_the_answer() {
    let asked = question(PlaneKind::Api, 20.0);
    let found = predict(&training(20, 20, 10.0, true), &asked);
    assert_eq!(found.curve.len(), 25);
    assert!(found.curve.windows(2).all(|pair| pair[0].api_pct >= pair[1].api_pct));
    assert!(found.curve.windows(2).all(|pair| pair[0].pcie_pct >= pair[1].pcie_pct));
    let at_answer = found.curve.iter().find(|point| point.rtt_us == 20.0).unwrap();
    assert_eq!(at_answer.api_pct, found.kept_pct);
    let csv = curve_csv(&found.curve);
    assert_eq!(csv.lines().count(), 26);
    assert!(csv.lines().all(|line| line.split(',').count() == 3));
}

#[test]
fn the_native_replay_is_the_recording_it_came_from() {
    let found = predict(&training(10, 100, 30.0, true), &question(PlaneKind::Api, 10.0));
    assert!(found.replay_error_pct().abs() < 0.5, "{}", found.replay_error_pct());
}

#[test]
fn changes_keep_the_gpus_work_and_the_files_rules() {
    let profile = training(20, 50, 5.0, true);
    for change in Change::ALL {
        let Some(after) = changed(&profile, change) else {
            assert!(matches!(change, Change::FewerWaits | Change::PinnedUploads), "{change:?} found nothing");
            continue;
        };
        let (before, summary) = (summarise(&profile), summarise(&after));
        assert!((before.kernel_us - summary.kernel_us).abs() < 1e-6, "{change:?} changed the work");
        assert!(after.wall_us <= profile.wall_us, "{change:?} made it longer");
        // The clock never goes back, so that a changed profile can be written and read like any other.
        assert!(read(encode(&after).as_bytes()).is_ok(), "{change:?}");
    }
    let graphs = changed(&profile, Change::Graphs).unwrap();
    assert_eq!(summarise(&graphs).launches, 20);
    let reads = |profile: &Profile| summarise(profile).copies.iter().map(|class| class.count).sum::<u64>();
    assert_eq!(reads(&changed(&profile, Change::FewerReadBacks).unwrap()), 2);
}

#[test]
fn nothing_is_changed_where_there_is_nothing_to_change() {
    let profile = training(5, 50, 5.0, false);
    assert!(changed(&profile, Change::FewerReadBacks).is_none());
    assert!(changed(&profile, Change::FewerWaits).is_none());
    assert!(changed(&profile, Change::PinnedUploads).is_none());
}
