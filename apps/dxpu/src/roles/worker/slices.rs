//! Whether the GPUs of this worker heed time slices: measured once for each model and driver, and kept. One worker measures at a time,
//! because two on one GPU would measure each other. A no may come from a program that was at work; so a no counts after three trials.

use crate::roles::time_slices::Measured;
use machine::files;
use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A trial that takes longer is given up. The worker serves no session until then, and its box waits for it.
const TRIAL_MOST: Duration = Duration::from_secs(10);
/// For so long a worker waits for the trials of others, of which each takes two seconds.
const TURN_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// So often a GPU is found not to heed slices before it is not asked any more.
const TRIALS_MAX: u32 = 3;
/// Where the kernel's driver tells what it is, and which GPUs it has.
const DRIVER: &str = "/proc/driver/nvidia";

/// Whether they do. In doubt they do not. `directory`: where the result is kept.
pub(super) fn are_heeded(directory: Option<&Path>) -> bool {
    let kept = directory.and_then(|directory| Some(directory.join(record(Path::new(DRIVER))?)));
    let mut trial = machine::this_program();
    trial.arg("time-slices").env_remove("DXPU_TOKEN");
    let turn = kept.as_deref().map_or(Ok(None), |kept| wait_for_turn(kept, TURN_WITHIN));
    // The turn lasts until the verdict is there.
    let verdict = turn.and_then(|_turn| verdict(kept.as_deref(), trial));
    match verdict {
        Ok(measured) if measured.heeds => true,
        Ok(measured) => {
            tracing::warn!(?measured, "this GPU does not heed time slices: --offline-slice changes nothing");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "whether this GPU heeds time slices could not be measured: --offline-slice changes nothing");
            false
        }
    }
}

/// Waits until no other worker of this user measures; none does while the file is open. `None` where the file cannot be made: the result is
/// not kept either.
fn wait_for_turn(kept: &Path, within: Duration) -> Result<Option<File>, String> {
    let _ = kept.parent().map(std::fs::create_dir_all);
    let Ok(file) = File::create(kept.with_extension("lock")) else { return Ok(None) };
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if begun.elapsed() < within => std::thread::sleep(LOOK_EVERY),
            Err(TryLockError::WouldBlock) => return Err("other workers measure it now".to_owned()),
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
}

/// What was measured before, or is now. A measurement that failed is not kept: the next start tries again.
fn verdict(kept: Option<&Path>, trial: Command) -> Result<Measured, String> {
    let read = |path: &Path| -> Option<Measured> { serde_json::from_slice(&std::fs::read(path).ok()?).ok() };
    let before = kept.and_then(read);
    if let Some(measured) = before.filter(|before| before.heeds || before.trials >= TRIALS_MAX) {
        return Ok(measured);
    }
    tracing::info!(
        "measuring whether this GPU heeds time slices, once for this driver; this takes about two seconds"
    );
    let text = output(trial)?;
    let mut measured: Measured = serde_json::from_str(text.trim()).map_err(|error| error.to_string())?;
    measured.trials = before.map_or(0, |before| before.trials) + 1;
    tracing::info!(?measured, "measured");
    if let Some(path) = kept {
        let written = serde_json::to_vec(&measured).map(|bytes| files::replace(path, 0o600, &bytes));
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "the result is not kept");
        }
    }
    Ok(measured)
}

/// What a program prints, if it ends well and in time.
fn output(mut program: Command) -> Result<String, String> {
    let child = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < TRIAL_MOST => std::thread::sleep(LOOK_EVERY),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it took longer than {} s", TRIAL_MOST.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    // Both are short, so the pipes held them.
    let (mut said, mut complained) = (String::new(), String::new());
    let _ = child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut said));
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut complained));
    status.success().then_some(said).ok_or_else(|| format!("{status}: {}", complained.trim()))
}

/// The name under which a result is kept: of this driver, for these models. `None` where the machine does not tell them.
fn record(driver: &Path) -> Option<PathBuf> {
    let version = std::fs::read_to_string(driver.join("version")).ok()?;
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let version = version.split_whitespace().find(is_version)?;
    let mut models: Vec<String> = Vec::new();
    for gpu in std::fs::read_dir(driver.join("gpus")).ok()?.flatten() {
        let text = std::fs::read_to_string(gpu.path().join("information")).ok()?;
        models.extend(
            text.lines().find_map(|line| line.strip_prefix("Model:")).map(|model| model.trim().to_owned()),
        );
    }
    models.sort();
    models.dedup();
    let plain = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
    };
    (!models.is_empty()).then(|| format!("time-slices_{version}_{}.json", plain(&models.join("+"))).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEEDS: &str = r#"{"heeds":true,"before_us":1221.0,"after_us":210.0,"groups":9}"#;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_result_is_kept_and_a_failure_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().join("kept.json");
        let error = verdict(Some(&kept), shell("echo no GPU >&2; exit 3")).unwrap_err();
        assert!(error.contains("no GPU"), "{error}");
        assert!(!kept.exists());
        assert!(verdict(Some(&kept), shell("echo something else")).is_err());
        assert!(verdict(Some(&kept), shell(&format!("echo '{HEEDS}'"))).unwrap().heeds);
        assert!(verdict(Some(&kept), shell("exit 3")).unwrap().heeds, "it is not measured again");
        std::fs::write(&kept, "damaged").unwrap();
        assert!(verdict(Some(&kept), shell("exit 3")).is_err(), "what is damaged counts for nothing");
    }

    #[test]
    fn a_no_is_measured_again_twice() {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().join("kept.json");
        let no = format!("echo '{}'", HEEDS.replace("true", "false"));
        for trials in 1..=TRIALS_MAX {
            let measured = verdict(Some(&kept), shell(&no)).unwrap();
            assert_eq!((measured.heeds, measured.trials), (false, trials));
        }
        assert!(
            !verdict(Some(&kept), shell(&format!("echo '{HEEDS}'"))).unwrap().heeds,
            "it is not asked any more"
        );
        std::fs::remove_file(&kept).unwrap();
        verdict(Some(&kept), shell(&no)).unwrap();
        assert!(
            verdict(Some(&kept), shell(&format!("echo '{HEEDS}'"))).unwrap().heeds,
            "the first no was of a busy GPU"
        );
    }

    #[test]
    fn one_worker_measures_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().join("new").join("kept.json");
        let turn = wait_for_turn(&kept, Duration::ZERO).unwrap().unwrap();
        let (begun, within) = (Instant::now(), Duration::from_millis(50));
        assert!(wait_for_turn(&kept, within).unwrap_err().contains("other workers"));
        assert!(begun.elapsed() >= within);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait_for_turn(&kept, Duration::from_secs(60)));
            drop(turn);
            assert!(waits.join().unwrap().unwrap().is_some());
        });
        assert!(wait_for_turn(Path::new("/proc/nowhere/kept.json"), Duration::ZERO).unwrap().is_none());
    }

    #[test]
    fn a_record_belongs_to_a_driver_and_its_models() {
        let driver = tempfile::tempdir().unwrap();
        assert_eq!(record(driver.path()), None);
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n";
        std::fs::write(driver.path().join("version"), version).unwrap();
        for (gpu, model) in
            [("0000:1a:00.0", "NVIDIA H200"), ("0000:1b:00.0", "NVIDIA H200"), ("0000:1c:00.0", "NVIDIA L4")]
        {
            let folder = driver.path().join("gpus").join(gpu);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("information"), format!("Model: \t\t {model}\nIRQ: 7\n")).unwrap();
        }
        let name = "time-slices_580.159.04_NVIDIA-H200-NVIDIA-L4.json";
        assert_eq!(record(driver.path()), Some(name.into()));
    }
}
