//! Runs a program on this machine's own GPU with the pass-through library in front of the driver.
//!
//! The program finds the library where it looks for libcuda.so.1; the library finds the machine's own by the path that it is told.
//! Unlike `dxpu run`, this process stays: it reads what the library wrote when the program has ended.

use crate::support::exit::{self, Exit, Failure};
use crate::support::library;
use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use trace_log::log::{Log, LogError};

const DRIVER: &str = "libcuda.so.1";

/// Where drivers are installed, if neither LD_LIBRARY_PATH nor the loader's cache names one.
const PLACES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/run/opengl-driver/lib",
];

/// A program that has ended, and what the library wrote in each of its processes.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) logs: Vec<Log>,
    /// Processes whose logs have no end.
    pub(crate) unfinished: Vec<String>,
}

impl Ended {
    /// The exit code that a shell would show.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// Runs `program` to its end with `variables` for the library.
pub(crate) fn run(
    program: &[OsString],
    driver: Option<&Path>,
    variables: &[(&str, String)],
) -> anyhow::Result<Ended> {
    let library = library::extract_trace()?;
    let driver = match driver {
        Some(path) => std::path::absolute(path).context("cannot find the current directory")?,
        None => find_driver(&library.directory)?,
    };
    let folder =
        tempfile::Builder::new().prefix("dxpu-trace-").tempdir().context("cannot make a folder for logs")?;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    command.env("LD_LIBRARY_PATH", library.before(std::env::var_os("LD_LIBRARY_PATH").as_deref()));
    // Programs that do not ask the loader: Numba wants the file, Triton the directory.
    command.env("NUMBA_CUDA_DRIVER", &library.file).env("TRITON_LIBCUDA_PATH", &library.directory);
    command.env("DXPU_TRACE_DRIVER", &driver).env("DXPU_TRACE_FOLDER", folder.path());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    // Registered before the program starts, so that every later signal is passed on to it.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot watch for signals")?;
    let mut child = command.spawn().map_err(|error| exit::not_started(&program[0], error))?;
    let pid = rustix::process::Pid::from_child(&child);
    std::thread::spawn(move || {
        for signal in &mut signals {
            // A terminal sends its interrupt to the program too; the others come to us alone.
            let passed = match signal {
                SIGTERM => rustix::process::Signal::TERM,
                SIGHUP => rustix::process::Signal::HUP,
                _ => continue,
            };
            let _ = rustix::process::kill_process(pid, passed);
        }
    });
    let status = child.wait().context("cannot wait for the program")?;
    let (logs, unfinished) = read_logs(folder.path())?;
    Ok(Ended { status, logs, unfinished })
}

fn read_logs(folder: &Path) -> anyhow::Result<(Vec<Log>, Vec<String>)> {
    let (mut logs, mut unfinished) = (Vec::new(), Vec::new());
    let listing = std::fs::read_dir(folder).context("the folder for logs is gone")?;
    let mut paths: Vec<PathBuf> = listing.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let process = path.file_stem().map(OsStr::to_string_lossy).unwrap_or_default().into_owned();
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        match trace_log::log::read(&bytes) {
            Ok(log) => logs.push(log),
            Err(error @ LogError::Unfinished { .. }) => {
                unfinished.push(format!("process {process}: {error}"))
            }
            Err(error) => {
                let what = format!("the log of process {process} cannot be used");
                return Err(Failure::new(Exit::Failure, what, "please report this").because(error).into());
            }
        }
    }
    Ok((logs, unfinished))
}

/// The machine's own driver, never ourselves.
fn find_driver(ours: &Path) -> Result<PathBuf, Failure> {
    let search = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named = std::env::split_paths(&search).filter(|folder| folder.is_absolute() && folder != ours);
    let cached = loader_cache();
    let places = PLACES.iter().map(PathBuf::from);
    let candidates =
        named.map(|folder| folder.join(DRIVER)).chain(cached).chain(places.map(|folder| folder.join(DRIVER)));
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        Failure::new(
            Exit::Unsupported,
            format!("there is no {DRIVER} on this machine"),
            "run this on a machine with an NVIDIA driver, or name the library with --driver FILE",
        )
    })
}

/// What the loader's cache says, on the systems that have one.
fn loader_cache() -> Vec<PathBuf> {
    let output = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .into_iter()
        .find_map(|name| Command::new(name).arg("-p").output().ok().filter(|output| output.status.success()));
    let Some(output) = output else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    let is_driver = |line: &&str| line.trim_start().starts_with("libcuda.so.1 ") && !line.contains("i386");
    text.lines()
        .filter(is_driver)
        .filter_map(|line| Some(PathBuf::from(line.rsplit_once("=> ")?.1.trim())))
        .collect()
}
