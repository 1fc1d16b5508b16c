//! A worker with a guardian, and programs that run before a proxy.

use crate::{
    guardian::{self, Spoilt, TestGuardian},
    proxy::{Cut, Proxy},
};
use cuda_worker::{
    FrontConfig, FrontHandle, Grant, NoDevices, SessionConfig, SessionSpawn, run_session_process_with_store,
    serve_listener,
};
use driver_soft::{SoftConfig, SoftDriver};
use std::{
    fs::{self, File},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A program that takes longer hangs.
const PROGRAM_MAX: Duration = Duration::from_secs(120);
/// A program that never has an image is not protected.
const RUNS_MAX: usize = 20;
const TOKEN: &str = "secret";
/// The entry of session processes.
const SESSION: &str = "session_process";
/// Sessions that a front keeps ready.
const SPARES: usize = 2;
/// Before the folder where sessions mark that they came.
const MARKS: &str = "marks=";
/// Before the bytes of memory that a GPU has.
const MEMORY: &str = "memory=";
/// Before the build of the driver.
const BUILD: &str = "build=";

/// What a session process does.
pub(crate) fn serve_session() {
    serve(0);
}

/// The same with variables at other addresses.
pub(crate) fn serve_session_elsewhere() {
    serve(4 << 20);
}

/// The same in as many sessions as a front keeps ready; those after them have the variables where they belong.
pub(crate) fn serve_session_elsewhere_at_first() {
    let marks = std::env::args().find_map(|word| word.strip_prefix(MARKS).map(PathBuf::from)).unwrap();
    let is_first = (0..SPARES).any(|number| File::create_new(marks.join(number.to_string())).is_ok());
    serve(if is_first { 4 << 20 } else { 0 });
}

fn serve(variables_moved_by: u64) {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end = run_session_process_with_store(
        control,
        &|_, _| {
            // Without a word about it, enough that no allocation of a replay waits for a free of before.
            let said = std::env::args().find_map(|word| word.strip_prefix(MEMORY)?.parse().ok());
            let memory_bytes = said.unwrap_or(256 << 20);
            let mut config =
                SoftConfig { memory_bytes, block_threads: 0, variables_moved_by, ..SoftConfig::default() };
            if let Some(build) = std::env::args().find_map(|word| word.strip_prefix(BUILD).map(str::to_owned))
            {
                config.build = build;
            }
            Ok(Box::new(SoftDriver::new(config)))
        },
        &|_, _| Err(NoDevices::because("this worker shows nothing")),
        guardian::open_store,
    );
    std::process::exit(end.kind.exit_code().into());
}

/// What became of a program.
pub(crate) struct Run {
    pub(crate) succeeded: bool,
    /// All that the program was given, in its order.
    pub(crate) saw: String,
    /// What the library said.
    pub(crate) log: String,
    /// Frames of each of its sessions.
    pub(crate) frames: Vec<u64>,
    /// How often it asked to be let in after the first time.
    pub(crate) knocks_after: u64,
}

pub(crate) struct Stage {
    front: Option<FrontHandle>,
    guardian: TestGuardian,
    directory: tempfile::TempDir,
    runs: AtomicU64,
}

/// A program that runs.
pub(crate) struct Running {
    child: Child,
    trace: PathBuf,
    output: PathBuf,
    log: PathBuf,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with(&[SESSION])
    }

    /// One whose GPU has this much memory.
    pub(crate) fn with_memory(bytes: u64) -> Self {
        Self::with(&[SESSION, &format!("{MEMORY}{bytes}")])
    }

    fn with(session: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let guardian = TestGuardian::start(directory.path());
        let worker = directory.path().join("worker");
        let front = start_front_with(&worker, TOKEN, Some(&guardian.path()), session);
        Self { front: Some(front), guardian, directory, runs: AtomicU64::new(0) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The worker's socket.
    pub(crate) fn worker(&self) -> PathBuf {
        self.path("worker")
    }

    /// Another worker with the same guardian: its address, and what stops it.
    pub(crate) fn other_worker(&self) -> (String, FrontHandle) {
        let socket = self.path("other");
        let front = start_front(&socket, TOKEN, Some(&self.guardian.path()), SESSION);
        (format!("unix:{}", socket.display()), front)
    }

    /// Another worker with the same guardian, whose GPU has less memory.
    pub(crate) fn worker_of_another_kind(&self) -> (String, FrontHandle) {
        self.worker_told("kind", &format!("{MEMORY}{}", 128 << 20))
    }

    /// Another worker with the same guardian, whose driver is of another build.
    pub(crate) fn worker_of_another_build(&self) -> (String, FrontHandle) {
        self.worker_told("build", &format!("{BUILD}other"))
    }

    fn worker_told(&self, name: &str, word: &str) -> (String, FrontHandle) {
        let socket = self.path(name);
        let front = start_front_with(&socket, TOKEN, Some(&self.guardian.path()), &[SESSION, word]);
        (format!("unix:{}", socket.display()), front)
    }

    /// Another worker without a guardian.
    pub(crate) fn worker_without_images(&self) -> (String, FrontHandle) {
        let socket = self.path("forgetful");
        let front = start_front(&socket, TOKEN, None, SESSION);
        (format!("unix:{}", socket.display()), front)
    }

    /// Another worker with the same guardian, whose driver places variables elsewhere.
    pub(crate) fn worker_that_moves_variables(&self) -> (String, FrontHandle) {
        let socket = self.path("elsewhere");
        let session = "session_process_elsewhere";
        let front = start_front(&socket, TOKEN, Some(&self.guardian.path()), session);
        (format!("unix:{}", socket.display()), front)
    }

    /// The same for the sessions that it has ready at first.
    pub(crate) fn worker_that_moves_variables_at_first(&self) -> (String, FrontHandle) {
        let (socket, marks) = (self.path("at-first"), self.path("marks"));
        std::fs::create_dir(&marks).unwrap();
        let word = format!("{MARKS}{}", marks.display());
        let session = ["session_process_elsewhere_at_first", &word];
        let front = start_front_with(&socket, TOKEN, Some(&self.guardian.path()), &session);
        (format!("unix:{}", socket.display()), front)
    }

    /// Runs the program undisturbed until the guardian has images of a run; their sizes in bytes, in the order in which they became safe.
    /// On a busy machine a program may end before its first image is safe.
    pub(crate) fn run_with_images(&self, variables: &[(&str, &str)]) -> (Run, Vec<u64>) {
        let images = || self.guardian.books(|books| books.committed_bytes.clone());
        for _ in 0..RUNS_MAX {
            let before = images().len();
            let run = self.run_by(&[], variables);
            let made = images().split_off(before);
            if !(run.succeeded && made.is_empty()) {
                return (run, made);
            }
        }
        panic!("no image was safe before the program ended, in {RUNS_MAX} runs");
    }

    /// Runs the program at a worker, without anything in between.
    pub(crate) fn run_at(&self, address: &str, variables: &[(&str, &str)]) -> Run {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let (proxy, _) = self.proxy(number, &self.worker(), &[]);
        self.start(number, address, variables).wait(&proxy)
    }

    /// What is wrong with images that a drill reads.
    pub(crate) fn spoil_drills(&self, spoilt: Spoilt) {
        self.guardian.books(|books| books.spoils_looks = Some(spoilt));
    }

    /// The guardian dies, and the next one has no images.
    pub(crate) fn kill_guardian(&self) {
        self.guardian.die();
    }

    /// How often an image was asked for.
    pub(crate) fn restored(&self) -> usize {
        self.calls("image")
    }

    /// How often the guardian was asked for this.
    pub(crate) fn calls(&self, name: &str) -> usize {
        self.guardian.books(|books| books.calls.iter().filter(|call| *call == name).count())
    }

    /// Runs the program with its sessions cut by a plan.
    pub(crate) fn run(&self, plan: &[Cut]) -> Run {
        self.run_by(plan, &[])
    }

    /// The same with the worker itself, which is never cut, as a standby.
    pub(crate) fn run_with_standby(&self, plan: &[Cut]) -> Run {
        let standby = format!("unix:{}", self.worker().display());
        self.run_by(plan, &[("DXPU_STANDBY", &standby)])
    }

    /// Runs the program, kills its session and has the worker want another token.
    pub(crate) fn run_refused(&self) -> Run {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let socket = self.path(&format!("strict{number}"));
        let first = start_front(&socket, TOKEN, Some(&self.guardian.path()), SESSION);
        let (proxy, address) = self.proxy(number, &socket, &[Cut::After(u64::MAX)]);
        let mut running = self.start(number, &address, &[("SURVIVES_WAIT", "1")]);
        let deadline = Instant::now() + PROGRAM_MAX;
        while !self.path(&format!("trace{number}")).exists() {
            assert!(Instant::now() < deadline && running.is_running(), "the program does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        let knocks = proxy.knocks();
        // The old worker goes with its session, and another one with another token takes its place.
        first.stop();
        let _ = fs::remove_file(&socket);
        let second = start_front(&socket, "another token", Some(&self.guardian.path()), SESSION);
        let mut run = running.wait(&proxy);
        run.knocks_after = proxy.knocks() - knocks;
        second.stop();
        run
    }

    pub(crate) fn run_by(&self, plan: &[Cut], variables: &[(&str, &str)]) -> Run {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let (proxy, address) = self.proxy(number, &self.worker(), plan);
        self.start(number, &address, variables).wait(&proxy)
    }

    /// A name for a run.
    pub(crate) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn proxy(&self, number: u64, worker: &Path, plan: &[Cut]) -> (Proxy, String) {
        let path = self.path(&format!("proxy{number}"));
        (Proxy::start(&path, worker, plan), format!("unix:{}", path.display()))
    }

    pub(crate) fn start(&self, number: u64, address: &str, variables: &[(&str, &str)]) -> Running {
        let [trace, output, log] =
            ["trace", "output", "log"].map(|name| self.path(&format!("{name}{number}")));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "program", "--ignored", "--nocapture"])
            .env("DXPU_WORKER", address)
            .env("DXPU_TOKEN", TOKEN)
            .env("DXPU_SURVIVE", "1")
            .env("DXPU_CUT_EVERY", "4ms")
            .env("DXPU_STALL_TIMEOUT", "30s")
            .env("DXPU_LANES", "2")
            .env("DXPU_LOG", "info")
            .env("SURVIVES_TRACE", &trace)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(fs::File::create(&output).unwrap())
            .stderr(fs::File::create(&log).unwrap());
        Running { child: command.spawn().unwrap(), trace, output, log }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.front.take().unwrap().stop();
    }
}

impl Running {
    /// What it says of itself.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn wait(mut self, proxy: &Proxy) -> Run {
        let deadline = Instant::now() + PROGRAM_MAX;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() >= deadline {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let says: Vec<String> =
            read(&self.output).lines().filter(|line| line.contains(" says ")).map(str::to_owned).collect();
        let mut log = read(&self.log);
        if status.is_none() {
            // Until it ends, the trace is the round that it has reached.
            log.push_str(&format!("it hung and was killed: {}\n", read(&self.trace)));
        }
        Run {
            succeeded: status.is_some_and(|status| status.success()),
            saw: format!("{}{}\n", read(&self.trace), says.join("\n")),
            log,
            frames: proxy.frames(),
            knocks_after: 0,
        }
    }
}

fn start_front(socket: &Path, token: &str, guardian: Option<&Path>, entry: &str) -> FrontHandle {
    start_front_with(socket, token, guardian, &[entry])
}

/// `words`: the entry of session processes, and what is told to them. The test program takes that for the name of another test.
fn start_front_with(socket: &Path, token: &str, guardian: Option<&Path>, words: &[&str]) -> FrontHandle {
    let mut session = SessionConfig::new(token.to_owned());
    session.guardian = guardian.map(Path::to_owned);
    // Less than the program's largest copies: they are pulled.
    session.push_window_bytes = 256 << 10;
    let config = FrontConfig {
        addresses: vec![format!("unix:{}", socket.display()).parse().unwrap()],
        spawn: SessionSpawn {
            program: std::env::current_exe().unwrap(),
            arguments: [&["--exact", "--ignored", "--nocapture"], words]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect(),
        },
        session,
        grant: Arc::new(|| Ok(Grant::plain(serde_json::Value::Null))),
        sessions_max: 32,
        unauthenticated_max: 32,
        preamble_timeout: Duration::from_secs(5),
        hold: Duration::from_secs(20),
        spares: SPARES,
        executes_ptx_only: true,
    };
    serve_listener(config, |_| {}).unwrap()
}
