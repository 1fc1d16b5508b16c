//! Ways to survive: tight, careful, required; and what a user accepts.

use crate::{
    check,
    proxy::Cut,
    stage::{Run, Stage},
};

const POOLS: (&str, &str) = ("SURVIVES_PART", "pools");
const MANAGED: (&str, &str) = ("SURVIVES_PART", "managed");
const CONDITIONAL: (&str, &str) = ("SURVIVES_PART", "conditional");
const CLOCK: (&str, &str) = ("SURVIVES_PART", "clock");
const NEVER: (&str, &str) = ("DXPU_CUT_EVERY", "600s");
/// Every so manieth frame: the places between them are those of other tests.
const STRIDE: usize = 9;

#[test]
fn a_program_with_pools_comes_back_from_images_of_live_memory_alone() {
    let stage = Stage::new();
    let (undisturbed, plain) = stage.run_with_images(&[POOLS]);
    assert!(undisturbed.succeeded, "{}", undisturbed.log);
    let (quiet, tight) = stage.run_with_images(&[POOLS, ("DXPU_SURVIVE", "tight")]);
    check(&undisturbed, &quiet, "tight and undisturbed");
    let (most, last) = (plain.into_iter().max().unwrap(), *tight.last().unwrap());
    assert!(last * 4 < most, "tight cuts have {last} bytes, plain ones {most}");
    let frames = quiet.frames[0] as usize;
    let restored = stage.restored();
    for nth in (STRIDE..frames).step_by(STRIDE) {
        for way in ["plain", "tight"] {
            let run = stage.run_by(&[Cut::After(nth as u64)], &[POOLS, ("DXPU_SURVIVE", way)]);
            check(&undisturbed, &run, &format!("{way}, cut after frame {nth}"));
        }
    }
    assert!(stage.restored() > restored, "no run came back from an image");
}

/// Its pools ask for more than there is. A client that counts on more memory than its new session has set aside would not ask.
#[test]
fn a_program_with_pools_comes_back_on_a_gpu_that_is_nearly_full() {
    let stage = Stage::with_memory(64 << 20);
    let undisturbed = stage.run_by(&[], &[POOLS]);
    assert!(undisturbed.succeeded, "{}", undisturbed.log);
    let frames = undisturbed.frames[0] as usize;
    for nth in (22..frames).step_by(3 * STRIDE) {
        for way in ["plain", "tight"] {
            let run = stage.run_by(&[Cut::After(nth as u64)], &[POOLS, ("DXPU_SURVIVE", way)]);
            check(&undisturbed, &run, &format!("{way}, cut after frame {nth}"));
        }
    }
}

#[test]
fn a_program_with_managed_memory_comes_back_at_any_place() {
    let stage = Stage::new();
    let undisturbed = stage.run_by(&[], &[MANAGED]);
    assert!(undisturbed.succeeded, "{}", undisturbed.log);
    let frames = undisturbed.frames[0] as usize;
    let restored = stage.restored();
    for nth in (1..frames).step_by(STRIDE) {
        // Both ways in which a program's touches are heard of.
        let pages = ["best", "signals"][nth % 2];
        let run = stage.run_by(&[Cut::After(nth as u64)], &[MANAGED, ("DXPU_MANAGED_PAGES", pages)]);
        check(&undisturbed, &run, &format!("{pages}, cut after frame {nth}"));
    }
    assert!(stage.restored() > restored, "no run came back from an image");
}

#[test]
fn a_program_whose_graphs_loop_and_choose_comes_back_at_any_place() {
    let stage = Stage::new();
    let undisturbed = stage.run_by(&[], &[CONDITIONAL]);
    assert!(undisturbed.succeeded, "{}", undisturbed.log);
    assert!(!undisturbed.log.contains("not protected"), "{}", undisturbed.log);
    let frames = undisturbed.frames[0] as usize;
    for nth in (1..frames).step_by(4) {
        let run = stage.run_by(&[Cut::After(nth as u64)], &[CONDITIONAL]);
        check(&undisturbed, &run, &format!("cut after frame {nth}"));
    }
}

/// A run that reads the clock and is cut at two thirds.
fn clocked(stage: &Stage, variables: &[(&str, &str)]) -> Run {
    let frames = stage.run_by(&[], &[CLOCK, NEVER]).frames[0];
    stage.run_by(&[Cut::After(frames * 2 / 3)], &[&[CLOCK, NEVER], variables].concat())
}

#[test]
fn a_result_that_comes_differently_is_refused_unless_the_user_accepts_it() {
    let stage = Stage::new();
    let strict = clocked(&stage, &[]);
    assert!(!strict.succeeded, "{}", strict.log);
    assert!(strict.log.contains("other bytes than before the loss"), "{}", strict.log);
    let accepted = clocked(&stage, &[("DXPU_SURVIVE_ACCEPT", "1")]);
    assert!(accepted.succeeded, "{}", accepted.log);
    assert_eq!(accepted.saw.trim(), "the device has another time");
    assert_eq!(accepted.log.matches("other bytes than before the loss").count(), 1, "{}", accepted.log);
    assert!(accepted.log.contains("results of the program differ"), "{}", accepted.log);
}

#[test]
fn a_careful_program_has_an_image_of_what_it_read() {
    let stage = Stage::new();
    let run = clocked(&stage, &[("DXPU_SURVIVE", "careful")]);
    assert!(run.succeeded, "{}", run.log);
    assert_eq!(run.saw.trim(), "the device has the same time");
    assert!(run.log.contains("goes on in another session"), "{}", run.log);
}

#[test]
fn a_worker_without_images_is_none_for_a_program_that_requires_them() {
    let stage = Stage::new();
    let (address, front) = stage.worker_without_images();
    let start = |way: &str| stage.run_at(&address, &[("DXPU_SURVIVE", way)]);
    assert!(start("plain").succeeded);
    let run = start("required");
    assert!(!run.succeeded);
    assert!(run.log.contains("keeps no images, and --survive=required"), "{}", run.log);
    assert!(stage.run_by(&[], &[("DXPU_SURVIVE", "required")]).succeeded);
    front.stop();
}

#[test]
fn a_session_whose_variables_lie_elsewhere_by_chance_is_left_for_another_one() {
    let stage = Stage::new();
    let (other, front) = stage.worker_that_moves_variables_at_first();
    let undisturbed = stage.run(&[]);
    let variables = [("DXPU_STANDBY", other.as_str()), ("DXPU_PATIENCE", "10s")];
    let run = stage.run_by(&[Cut::ForGood(undisturbed.frames[0] / 2)], &variables);
    assert!(run.succeeded, "{}", run.log);
    assert_eq!(undisturbed.saw, run.saw);
    assert!(run.log.contains("variables of a module have moved: "), "no session differed:\n{}", run.log);
    front.stop();
}

#[test]
fn a_worker_whose_variables_lie_elsewhere_is_refused_in_words() {
    let stage = Stage::new();
    let (other, front) = stage.worker_that_moves_variables();
    let frames = stage.run(&[]).frames[0];
    let variables = [("DXPU_STANDBY", other.as_str()), ("DXPU_PATIENCE", "3s")];
    let run = stage.run_by(&[Cut::ForGood(frames / 2)], &variables);
    assert!(!run.succeeded, "it went on with variables that are not where it was told:\n{}", run.log);
    assert!(
        run.log.contains("variables of a module have moved: ") && run.log.contains("counter"),
        "{}",
        run.log
    );
    front.stop();
}

/// A spare that would compute on something else than the program began on is worse than none: it would go on wrongly.
#[test]
fn a_spare_of_another_model_or_with_another_driver_is_refused_in_words() {
    let stage = Stage::new();
    let frames = stage.run(&[]).frames[0];
    for ((other, front), words) in [
        (stage.worker_of_another_kind(), "GPUs are of another kind"),
        (stage.worker_of_another_build(), "driver is another build"),
    ] {
        let variables = [("DXPU_STANDBY", other.as_str()), ("DXPU_PATIENCE", "3s")];
        let run = stage.run_by(&[Cut::ForGood(frames / 2)], &variables);
        assert!(!run.succeeded, "it went on at a spare that is not the same ({words}):\n{}", run.log);
        assert!(run.log.contains(words), "{}", run.log);
        front.stop();
    }
}
