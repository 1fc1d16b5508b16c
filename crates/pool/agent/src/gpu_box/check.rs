//! Has a GPU forget, and has it show that it works: a program of its own does both, by ordinary CUDA calls.
//!
//! For a real GPU the program loads the machine's own libcuda. A GPU in software has no memory but that of its worker's
//! processes, which the kernel takes back, emptied, when they end: to end them is to scrub it. Its burn-in goes the whole
//! way, through a worker of its own on a private socket.

use super::gpu::{Gpu, What};
use anyhow::{Context, bail};
use machine::files;
use shared_words::process;
use sharing::{PageHandle, WantWatch};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use transport::Address;

/// What an executable with an agent in it carries to test GPUs with.
#[derive(Clone, Copy)]
pub struct Carried {
    /// An executable file that scrubs or tests the GPU of its environment: `scrub`, or `burn-in MIB`.
    pub program: &'static [u8],
    /// The environment variables that make a program use the GPUs of these workers.
    pub client_environment: fn(&[Address]) -> anyhow::Result<Vec<(&'static str, OsString)>>,
}

/// Overwriting all memory of the largest GPU takes a second; a GPU that takes minutes is broken.
const SCRUB_WITHIN: Duration = Duration::from_secs(120);
const BURN_IN_WITHIN: Duration = Duration::from_secs(300);
/// Enough to meet every bank of a real GPU's memory, and what a GPU in software does within seconds.
const BURN_IN_MIB: u64 = 1 << 20;
const BURN_IN_SOFT_MIB: u64 = 16;
const WORKER_WITHIN: Duration = Duration::from_secs(20);

/// Free memory that a look into memory which is promised twice leaves to the online program, in MiB.
const LEFT_BY_LOOK_MIB: u64 = 2 << 10;

/// Makes the memory of a GPU unreadable for the next borrower. No process may use it meanwhile. Says what was done.
pub(crate) fn scrub(
    gpu: &Gpu,
    directory: &Path,
    carried: &Carried,
    page: Option<&Path>,
) -> anyhow::Result<String> {
    match &gpu.what {
        What::Soft { .. } => Ok("its memory went with its processes".to_owned()),
        What::Nvidia(_) if gpu.guest.is_some_and(|guest| guest.overcommit) => {
            let mut command = program(directory, carried)?;
            let (most, left) = ((gpu.memory_bytes >> 20).to_string(), LEFT_BY_LOOK_MIB.to_string());
            command.args(["look", &most, &left]).env("CUDA_VISIBLE_DEVICES", &gpu.uuid);
            let page = page.and_then(|path| shared_words::page::open_at(path).ok()).map(|(_, page)| page);
            look_at_free_memory(command, page.as_ref())
        }
        // Others use the GPU meanwhile. The driver empties what a process leaves; that is looked at, within the memory of the seat or part.
        What::Nvidia(_) if gpu.is_beside_others() => {
            let most = (gpu.memory_bytes >> 20).to_string();
            run_on_driver(gpu, program(directory, carried)?, &["verify", &most], SCRUB_WITHIN)
        }
        // A guest may be there, and must find its memory.
        What::Nvidia(_) if gpu.seat_bytes > 0 => {
            let left = gpu.seat_bytes.div_ceil(1 << 20).to_string();
            run_on_driver(gpu, program(directory, carried)?, &["scrub", &left], SCRUB_WITHIN)
        }
        What::Nvidia(_) => run_on_driver(gpu, program(directory, carried)?, &["scrub"], SCRUB_WITHIN),
    }
}

/// Tests a GPU that is not in use. Says what was seen.
pub(crate) fn burn_in(gpu: &Gpu, directory: &Path, carried: &Carried) -> anyhow::Result<String> {
    match &gpu.what {
        _ if gpu.is_beside_others() => {
            through_worker(gpu, directory, carried, &["burn-in", &BURN_IN_SOFT_MIB.to_string()])
        }
        What::Soft { .. } => {
            let arguments = ["burn-in".to_owned(), BURN_IN_SOFT_MIB.to_string()];
            through_worker(gpu, directory, carried, &[&arguments[0], &arguments[1]])
        }
        What::Nvidia(_) => {
            let program = program(directory, carried)?;
            run_on_driver(gpu, program, &["burn-in", &BURN_IN_MIB.to_string()], BURN_IN_WITHIN)?;
            // The same once more through a worker, as a borrower would.
            through_worker(gpu, directory, carried, &["burn-in", &BURN_IN_SOFT_MIB.to_string()])
        }
    }
}

/// Has a program look whether free memory of the GPU is empty. It gives way at once when an online session wants memory: what it has not
/// seen by then is as the driver has left it.
fn look_at_free_memory(command: Command, page: Option<&PageHandle>) -> anyhow::Result<String> {
    let mut wants = WantWatch::default();
    let gives_way = || {
        page.is_some_and(|page| {
            let now_ns = process::now_ns();
            // A session that finds no memory meanwhile waits for what the program has.
            page.page().memory_returns(now_ns);
            wants.look(page.page(), now_ns, process::life) != 0
        })
    };
    finish_or_give_way(command, SCRUB_WITHIN, gives_way)
}

fn run_on_driver(
    gpu: &Gpu,
    mut command: Command,
    arguments: &[&str],
    patience: Duration,
) -> anyhow::Result<String> {
    command.args(arguments).env("CUDA_VISIBLE_DEVICES", &gpu.uuid);
    finish(command, patience)
}

fn through_worker(
    gpu: &Gpu,
    directory: &Path,
    carried: &Carried,
    arguments: &[&str],
) -> anyhow::Result<String> {
    let place = tempfile::Builder::new().prefix("check-").tempdir_in(directory)?;
    let address: Address = format!("unix:{}/socket", place.path().display()).parse()?;
    let token = place.path().join("token");
    files::write_new(&token, 0o600, machine::random_hex(32)?.as_bytes())?;
    let mut worker = machine::this_program();
    worker.args(["worker", "--devices", "1", "--listen", &address.to_string(), "--token-file"]).arg(&token);
    worker
        .args(driver_arguments(gpu))
        .envs(driver_environment(gpu))
        .env_remove("DXPU_TOKEN")
        .env_remove("DXPU_LOG");
    let worker =
        worker.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn();
    let _worker = Ended(worker.context("cannot start a worker")?);
    let deadline = Instant::now() + WORKER_WITHIN;
    while std::os::unix::net::UnixStream::connect(place.path().join("socket")).is_err() {
        if Instant::now() >= deadline {
            bail!("a worker for the test does not start");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut command = program(directory, carried)?;
    command.args(arguments).envs((carried.client_environment)(&[address])?);
    for unset in ["DXPU_FINGERPRINT", "DXPU_CA", "DXPU_DELAY", "DXPU_TOKEN", "DXPU_WORKER_NAMES"] {
        command.env_remove(unset);
    }
    command.env("DXPU_TOKEN_FILE", &token);
    finish(command, BURN_IN_WITHIN)
}

/// The arguments that tell a worker which GPU it has.
pub(crate) fn driver_arguments(gpu: &Gpu) -> Vec<String> {
    let words: Vec<String> = match &gpu.what {
        What::Soft { identity } => {
            let memory = gpu.memory_bytes.to_string();
            vec![
                "--driver".into(),
                "soft".into(),
                "--memory".into(),
                memory,
                "--soft-identity".into(),
                identity.clone(),
            ]
        }
        What::Nvidia(_) if gpu.is_beside_others() => {
            ["--driver", "nvidia", "--memory", &gpu.memory_bytes.to_string()].map(String::from).into()
        }
        What::Nvidia(_) => vec!["--driver".into(), "nvidia".into()],
    };
    words
}

/// The environment variables that tell a worker which GPU it has.
pub(crate) fn driver_environment(gpu: &Gpu) -> Vec<(&'static str, String)> {
    match &gpu.what {
        What::Soft { .. } => Vec::new(),
        What::Nvidia(_) => vec![("CUDA_VISIBLE_DEVICES", gpu.uuid.clone())],
    }
}

/// A process that does not outlive this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program, as a file that can be started.
fn program(directory: &Path, carried: &Carried) -> anyhow::Result<Command> {
    let path = directory.join("gpucheck");
    if std::fs::read(&path).ok().as_deref() != Some(carried.program) {
        let mut file = tempfile::Builder::new().prefix(".gpucheck-").tempfile_in(directory)?;
        file.write_all(carried.program)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o700))?;
        // Closed before it is started: a program that is open for writing cannot be.
        file.into_temp_path().persist(&path).context("cannot write the test program")?;
    }
    Ok(Command::new(path))
}

/// Runs a command to its end; its last line, or why there is none.
fn finish(command: Command, patience: Duration) -> anyhow::Result<String> {
    finish_or_give_way(command, patience, || false)
}

/// The same for a command that is ended early, and has done well then, when it must give way.
fn finish_or_give_way(
    mut command: Command,
    patience: Duration,
    mut gives_way: impl FnMut() -> bool,
) -> anyhow::Result<String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = Ended(child.context("cannot start the test program")?);
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break Some(status);
        }
        if gives_way() {
            child.0.kill()?;
            child.0.wait()?;
            break None;
        }
        if Instant::now() >= deadline {
            bail!("the GPU does not finish its test within {patience:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    if let Some(out) = child.0.stdout.take() {
        out.take(64 << 10).read_to_string(&mut said)?;
    }
    let last = said.lines().last().unwrap_or_default().to_owned();
    match status {
        Some(status) if status.success() => Ok(last),
        Some(status) => bail!("{last} ({status})"),
        None if last.is_empty() => {
            Ok("it gave way to an online program before it had seen any memory".to_owned())
        }
        None => Ok(format!("{last}; then it gave way to an online program")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sharing::{Class, MemoryWait};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_look_at_free_memory_gives_way_to_an_online_program_that_wants_it() {
        let (_words, page) = shared_words::page::create().unwrap();
        page.page().set_capacity(Some(1000));
        let online = page.page().claim(process::this_process().unwrap(), Class::Online, 1).unwrap();
        assert!(MemoryWait::begin(page.page(), online, 300, process::now_ns()).is_none(), "no guest has any");
        let done = look_at_free_memory(shell("echo 256 MiB are handed out empty"), Some(&page)).unwrap();
        assert_eq!(done, "256 MiB are handed out empty");
        let began = Instant::now();
        let looks = std::thread::scope(|scope| {
            let looks =
                scope.spawn(|| look_at_free_memory(shell("echo 512 MiB; exec sleep 60"), Some(&page)));
            std::thread::sleep(Duration::from_millis(300));
            let wait = MemoryWait::begin(page.page(), online, 300, process::now_ns());
            assert!(wait.is_some(), "the program has some");
            looks.join().unwrap()
        });
        assert_eq!(looks.unwrap(), "512 MiB; then it gave way to an online program");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let found = look_at_free_memory(shell("echo 3 words are not zero; exit 1"), None).unwrap_err();
        assert!(found.to_string().contains("3 words"), "{found}");
    }
}
