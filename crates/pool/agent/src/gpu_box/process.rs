//! Processes of this machine: which are alive, to which worker they belong, and how they are ended for certain.
//!
//! A number alone does not name a process: numbers are used again. A number and the moment of the start do.

use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In ticks since the machine was started.
    started: u64,
}

/// What the kernel says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    is_gone: bool,
    group: u32,
    started: u64,
}

impl Process {
    /// The process that has this number now.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        stat(pid).filter(|stat| !stat.is_gone).map(|stat| Self { pid, started: stat.started })
    }

    /// Whether it still runs. One that has ended and was not reaped does not.
    pub(crate) fn is_alive(&self) -> bool {
        Self::find(self.pid).as_ref() == Some(self)
    }

    /// Asks it to end.
    pub(crate) fn ask_to_end(&self) {
        if self.is_alive()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Asks it to end, and kills it if it has not within `patience`; whether it is gone.
    pub(crate) fn end_in_order(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        self.ask_to_end();
        while self.is_alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        while self.is_alive() && Instant::now() < deadline + Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
        !self.is_alive()
    }

    fn kill(&self) {
        // In between it may have ended and its number be another's: a moment that only a full table of processes makes
        // possible. Nothing without a descriptor of the process avoids it.
        if self.is_alive()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `1 (name) S parent group …`; a name may hold anything, brackets too.
fn parse_stat(pid: u32, text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Stat {
        pid,
        is_gone: matches!(*fields.first()?, "Z" | "X"),
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn all() -> impl Iterator<Item = Stat> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(stat)
}

fn command_line(pid: u32) -> Vec<String> {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The workers that serve slots below this directory, with the directories of their slots.
pub(crate) fn workers_below(directory: &Path) -> Vec<(PathBuf, Process)> {
    let found = all().filter(|stat| !stat.is_gone).filter_map(|stat| {
        let slot = slot_of(&command_line(stat.pid))?;
        slot.starts_with(directory).then_some((slot, Process { pid: stat.pid, started: stat.started }))
    });
    found.collect()
}

/// The guardian that listens at this socket, if one runs.
pub(crate) fn guardian_at(socket: &Path) -> Option<Process> {
    let is_it = |stat: &Stat| is_guardian_of(&command_line(stat.pid), socket);
    let found = all().filter(|stat| !stat.is_gone).find(is_it);
    found.map(|stat| Process { pid: stat.pid, started: stat.started })
}

/// The processes that keep the MPS daemons of this folder and of those below it.
pub(crate) fn mps_keepers_below(folder: &Path) -> Vec<Process> {
    let is_it = |stat: &Stat| is_mps_keeper_below(&command_line(stat.pid), folder);
    let found = all().filter(|stat| !stat.is_gone).filter(is_it);
    found.map(|stat| Process { pid: stat.pid, started: stat.started }).collect()
}

fn is_mps_keeper_below(words: &[String], folder: &Path) -> bool {
    let at = words.iter().position(|word| word == "--folder");
    let of = at.and_then(|at| words.get(at + 1)).map(Path::new);
    words.get(1).is_some_and(|word| word == "mps") && of.is_some_and(|of| of.starts_with(folder))
}

/// Whether this is the command line of a worker whose sessions have merged contexts.
pub(crate) fn is_merged(words: &[String]) -> bool {
    words.iter().any(|word| word == MERGED)
}

/// The option of such a worker.
pub(crate) const MERGED: &str = "--merged";

/// Whether this is the command line of the guardian that listens at a socket.
fn is_guardian_of(words: &[String], socket: &Path) -> bool {
    let at = words.iter().position(|word| word == "--socket");
    let listens_at = at.and_then(|at| words.get(at + 1)).map(Path::new);
    words.get(1).is_some_and(|word| word == "guardian") && listens_at == Some(socket)
}

/// The words that a process was started with.
pub(crate) fn words_of(process: &Process) -> Vec<String> {
    let mut words = command_line(process.pid);
    // The kernel ends each word with a zero byte, so behind the last one there is nothing.
    words.pop_if(|last| last.is_empty());
    words
}

/// The slot's directory, if this is the command line of a worker that has one.
fn slot_of(words: &[String]) -> Option<PathBuf> {
    if words.get(1)? != "worker" {
        return None;
    }
    let at = words.iter().position(|word| word == "--by-lease")?;
    words.get(at + 1).map(PathBuf::from)
}

/// What is left of a worker: itself, and the sessions that it started. A worker leads a group of its own.
pub(crate) fn remains(worker: &Process) -> Vec<Process> {
    let is_one_of_ours = |stat: &Stat| {
        let words = command_line(stat.pid);
        matches!(words.get(1).map(String::as_str), Some("worker" | "worker-session"))
    };
    all()
        .filter(|stat| !stat.is_gone && stat.group == worker.pid && stat.started >= worker.started)
        .filter(is_one_of_ours)
        .map(|stat| Process { pid: stat.pid, started: stat.started })
        .collect()
}

/// Ends a worker and all its sessions, and waits until they are gone. The error names those that do not go.
///
/// A worker with merged contexts is asked first: a session of it that is killed in the middle of a kernel would end those of the lease
/// beside it, too.
pub(crate) fn end(worker: &Process, patience: Duration) -> Result<(), Vec<u32>> {
    /// Its sessions drain for 5 s at most, and are made to leave after 13.
    const DRAINED_WITHIN: Duration = Duration::from_secs(15);
    if is_merged(&words_of(worker)) {
        worker.end_in_order(DRAINED_WITHIN);
    }
    let deadline = Instant::now() + patience;
    loop {
        // The worker first: only it starts sessions.
        worker.kill();
        let left = remains(worker);
        if left.is_empty() && !worker.is_alive() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(left.iter().map(|process| process.pid).collect());
        }
        if !worker.is_alive() {
            left.iter().for_each(Process::kill);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_kernel_s_line_is_read_whatever_the_name() {
        let text = "7 (a) b ( c) S 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
        assert_eq!(parse_stat(7, text), Some(Stat { pid: 7, is_gone: false, group: 42, started: 98765 }));
        assert_eq!(parse_stat(7, "7 (x) Z 1 42"), None);
        assert_eq!(parse_stat(7, ""), None);
    }

    #[test]
    fn a_process_is_itself_until_it_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::find(child.id()).unwrap();
        assert!(process.is_alive());
        assert!(!Process { started: process.started + 1, ..process }.is_alive(), "another with its number");
        process.kill();
        while process.is_alive() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert_eq!(Process::find(process.pid), None);
    }

    #[test]
    fn only_workers_of_a_slot_are_workers_of_a_slot() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let slot = slot_of(&words("/usr/bin/dxpu worker --plain --by-lease /var/lib/dxpu/slot-3 --listen a"));
        assert_eq!(slot, Some("/var/lib/dxpu/slot-3".into()));
        assert_eq!(slot_of(&words("dxpu worker --listen a")), None);
        assert_eq!(slot_of(&words("vi worker.rs --by-lease /var/lib/dxpu/slot-3")), None);
    }

    #[test]
    fn only_the_guardian_of_a_socket_is_its_guardian() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let socket = Path::new("/var/lib/dxpu/guardian");
        let is_it = |text: &str| is_guardian_of(&words(text), socket);
        assert!(is_it("dxpu guardian --socket /var/lib/dxpu/guardian --memory 1"));
        assert!(!is_it("dxpu guardian --socket /var/lib/dxpu/other --disk /var/lib/dxpu/guardian"));
        assert!(!is_it("dxpu worker --guardian /var/lib/dxpu/guardian --socket /var/lib/dxpu/guardian"));
        assert!(!is_it("dxpu guardian --socket"));
        let this = Process::find(std::process::id()).unwrap();
        assert_eq!(words_of(&this), std::env::args().collect::<Vec<_>>());
    }

    #[test]
    fn only_the_keeper_of_a_folder_is_its_keeper() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let is_it = |text: &str| is_mps_keeper_below(&words(text), Path::new("/var/lib/dxpu/mps-0"));
        assert!(is_it("dxpu mps --folder /var/lib/dxpu/mps-0"));
        let keeper = words("dxpu mps --folder /var/lib/dxpu/mps-0");
        assert!(is_mps_keeper_below(&keeper, Path::new("/var/lib/dxpu")), "of any GPU of the box");
        assert!(
            !is_it("dxpu mps --folder /var/lib/dxpu/mps-1") && !is_it("dxpu mps --becomes-control -- -f")
        );
        assert!(!is_it("dxpu worker --merged --mps-folder /var/lib/dxpu/mps-0 --folder /var/lib/dxpu/mps-0"));
        assert!(is_merged(&words("dxpu worker --merged")) && !is_merged(&words("dxpu worker --plain")));
    }

    #[test]
    fn a_merged_worker_is_asked_to_end_and_others_are_killed() {
        for (option, is_asked) in [("--merged", true), ("--plain", false)] {
            let folder = tempfile::tempdir().unwrap();
            let (ready, asked) = (folder.path().join("ready"), folder.path().join("asked"));
            let script = format!(
                "trap 'touch {}; exit' TERM; touch {}; while :; do sleep 0.01; done",
                asked.display(),
                ready.display()
            );
            let mut child = Command::new("sh").args(["-c", &script, "sh", option]).spawn().unwrap();
            while !ready.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let worker = Process::find(child.id()).unwrap();
            // The child is reaped beside it, as the agent's looks do.
            std::thread::scope(|scope| {
                scope.spawn(|| child.wait().unwrap());
                end(&worker, Duration::from_secs(5)).unwrap();
            });
            assert_eq!(asked.exists(), is_asked, "{option}");
        }
    }

    #[test]
    fn a_process_that_does_not_end_in_order_is_killed() {
        for script in ["exec sleep 60", "trap '' TERM; while :; do sleep 0.01; done"] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let process = Process::find(child.id()).unwrap();
            assert!(process.end_in_order(Duration::from_millis(300)), "{script}");
            child.wait().unwrap();
        }
    }
}
