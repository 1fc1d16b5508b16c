//! One part of the pool: another `dxpu`, with a log of its own.

use crate::support::exit::{Exit, Failure};
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The process that a part belongs to.
const PARENT: &str = "DXPU_UP_PARENT";

/// A part that is asked to end has so long.
const END_WITHIN: Duration = Duration::from_secs(15);

pub(super) struct Child {
    name: String,
    process: std::process::Child,
    log: PathBuf,
    is_over: bool,
}

impl Child {
    pub(super) fn start(name: &str, arguments: &[String], state: &Path) -> anyhow::Result<Self> {
        let log = state.join(format!("{name}.log"));
        let file = std::fs::File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command.stdout(file.try_clone().context("cannot share a log")?).stderr(file);
        // What is meant for this process is not meant for its parts.
        for unset in ["DXPU_CREDENTIAL", "DXPU_MANAGER", "DXPU_JOIN_TOKEN", "DXPU_MANAGER_DIR"] {
            command.env_remove(unset);
        }
        command.env(PARENT, std::process::id().to_string());
        // Ctrl-C is for us; parts are told in order.
        let process = command.process_group(0).spawn().with_context(|| format!("cannot start the {name}"))?;
        Ok(Self { name: name.to_owned(), process, log, is_over: false })
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// What happened, if it ended by itself.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<Failure>> {
        let Some(status) = self.process.try_wait().context("cannot ask for a process")? else {
            return Ok(None);
        };
        self.is_over = true;
        let what = format!("the {} ended ({status}): {}", self.name, last_words(&self.log));
        Ok(Some(Failure::new(Exit::Failure, what, format!("see {}", self.log.display()))))
    }

    /// A box ends its workers too when it is interrupted.
    pub(super) fn ask_to_end(&self) {
        if let (false, Some(pid)) = (self.is_over, Pid::from_raw(self.process.id().cast_signed())) {
            // It is still our child, so its number is still its own.
            let _ = kill_process(pid, Signal::INT);
        }
    }

    /// Until it has ended, one way or the other.
    pub(super) fn wait(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        let until = Instant::now() + END_WITHIN;
        while !self.is_over {
            match self.process.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => {
                    let _ = self.process.kill();
                    let _ = self.process.wait();
                    self.is_over = true;
                }
                Ok(Some(_)) | Err(_) => self.is_over = true,
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.ask_to_end();
        self.finish();
    }
}

fn last_words(log: &Path) -> String {
    why(&std::fs::read_to_string(log).unwrap_or_default())
}

/// What a part said last about its own end: what happened, and because of what.
fn why(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(10)..];
    let Some(at) = last.iter().rposition(|line| line.starts_with("dxpu: ")) else {
        return "it did not say why".to_owned();
    };
    let because = last[at..].iter().find_map(|line| line.strip_prefix("  because: "));
    let told = last[at].trim_start_matches("dxpu: ");
    because.map_or_else(|| told.to_owned(), |cause| format!("{told}: {cause}"))
}

/// Has this process interrupted when the `dxpu up` that started it ends, however that ends.
///
/// Only a direct child is meant: a worker inherits the variable from its box, but not the parent.
pub(crate) fn end_with_parent() {
    let Some(parent) = std::env::var(PARENT).ok().and_then(|text| text.parse::<i32>().ok()) else { return };
    let is_it =
        || rustix::process::getppid().map(Pid::as_raw_nonzero).map(std::num::NonZero::get) == Some(parent);
    if is_it() {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::INT));
        if !is_it() {
            // It ended in this very moment.
            std::process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::why;

    #[test]
    fn a_part_that_ends_is_quoted_with_its_cause() {
        let log = "2026 INFO it begins\ndxpu: the manager cannot start\n  because: port 7500 is taken\n  what to do: stop it\n";
        assert_eq!(why(log), "the manager cannot start: port 7500 is taken");
        assert_eq!(why("dxpu: no\n"), "no");
        assert_eq!(why("2026 INFO it begins\n"), "it did not say why");
    }
}
