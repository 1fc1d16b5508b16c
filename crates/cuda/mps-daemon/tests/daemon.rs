//! A daemon with a script in place of NVIDIA's program.

use mps_daemon::{CONTROL, Daemon, MakeControl, MpsError};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Does what the documentation of NVIDIA's program says: with `-f` it serves in the foreground, without it takes orders. `$MODE` breaks it.
const SCRIPT: &str = r#"#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 3
if [ "$1" = -f ]; then
    echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY $$" >> "$RECORD"
    [ "$MODE" = broken ] && { echo "no such device" > control.log; exit 1; }
    touch control
    while [ ! -e told-to-quit ]; do sleep 0.02; done
    echo ended >> "$RECORD"
    rm -f control
else
    read -r order
    echo "$order" >> "$RECORD"
    [ "$MODE" = deaf ] || touch told-to-quit
fi
"#;

struct Scene {
    _folder: tempfile::TempDir,
    program: PathBuf,
    record: PathBuf,
    pipes: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (program, record, pipes) = (at(CONTROL), at("record"), at("pipes"));
        std::fs::write(&program, SCRIPT).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { _folder: folder, program, record, pipes }
    }

    fn control(&self, mode: &'static str) -> MakeControl {
        let (program, record) = (self.program.clone(), self.record.clone());
        Box::new(move |arguments| {
            let mut command = Command::new(&program);
            command.args(arguments).env("RECORD", &record).env("MODE", mode);
            command
        })
    }

    fn recorded(&self) -> Vec<String> {
        std::fs::read_to_string(&self.record).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn daemon_pid(&self) -> String {
        self.recorded()[0].rsplit(' ').next().unwrap().to_owned()
    }
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_daemon_has_a_private_folder_is_told_to_quit_and_leaves_nothing() {
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene.pipes, scene.control("")).unwrap();
    let pipes = scene.pipes.display();
    assert!(scene.recorded()[0].starts_with(&format!("{pipes} {pipes} ")), "{:?}", scene.recorded());
    assert_eq!(mode(&scene.pipes), 0o700);
    assert!(daemon.ended().is_none() && mps_daemon::is_ready(&scene.pipes));
    let pid = scene.daemon_pid();
    daemon.stop();
    let recorded = scene.recorded();
    assert_eq!(recorded[1..], ["quit -t 8", "ended"], "it ended by itself, after the order");
    assert!(!is_alive(&pid) && !scene.pipes.exists());
}

#[test]
fn a_daemon_that_died_is_noticed_and_the_next_one_has_its_folder() {
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene.pipes, scene.control("")).unwrap();
    assert!(Command::new("kill").args(["-9", &scene.daemon_pid()]).status().unwrap().success());
    let until = Instant::now() + Duration::from_secs(10);
    while daemon.ended().is_none() {
        assert!(Instant::now() < until, "the end was not noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The folder of a keeper that was killed is there, with the sign of its daemon.
    std::mem::forget(daemon);
    assert!(mps_daemon::is_ready(&scene.pipes));
    std::fs::set_permissions(&scene.pipes, std::fs::Permissions::from_mode(0o755)).unwrap();
    let next = Daemon::start(&scene.pipes, scene.control("")).unwrap();
    assert_eq!((scene.recorded().len(), mode(&scene.pipes)), (2, 0o700));
    drop(next);
    assert!(!scene.pipes.exists());
}

#[test]
fn a_daemon_that_does_not_hear_is_killed() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene.pipes, scene.control("deaf")).unwrap();
    let (pid, began) = (scene.daemon_pid(), Instant::now());
    daemon.stop();
    assert!(!is_alive(&pid) && !scene.pipes.exists());
    let took = began.elapsed();
    assert!((Duration::from_secs(11)..Duration::from_secs(20)).contains(&took), "{took:?}");
}

#[test]
fn a_daemon_that_does_not_start_is_told_with_its_log() {
    let scene = Scene::new();
    let refused = Daemon::start(&scene.pipes, scene.control("broken")).map(drop).unwrap_err();
    assert!(refused.to_string().contains("its log: no such device"), "{refused}");
    assert!(matches!(refused, MpsError::Ended { .. }) && !scene.pipes.exists());
    let absent: MakeControl = Box::new(|_| Command::new("/nowhere/at-all"));
    assert!(matches!(Daemon::start(&scene.pipes, absent), Err(MpsError::Start(_))));
    std::fs::remove_dir_all(&scene.pipes).unwrap();
    std::fs::write(&scene.pipes, "a file").unwrap();
    assert!(matches!(Daemon::start(&scene.pipes, scene.control("")), Err(MpsError::Folder { .. })));
}
