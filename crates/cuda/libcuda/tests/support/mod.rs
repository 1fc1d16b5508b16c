//! A worker of software GPUs with sessions in processes of their own, and a program over the real library. Both the sessions and the
//! program are this test's own executable, started again.
//!
//! A test that uses this has two entries: `session_process`, which calls [`serve_session`], and `program`, which reads [`plan`].

// No test uses all of it.
#![allow(dead_code)]

use cuda_worker::{
    FrontConfig, FrontHandle, Grant, NoDevices, SessionConfig, SessionSpawn, run_session_process,
    serve_listener,
};
use driver_soft::{SoftConfig, SoftDriver};
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::time::Duration;

const TOKEN: &str = "secret";
/// Has what the program is asked to do.
pub(crate) const PLAN: &str = "DXPU_TEST_PLAN";

/// What session processes run, with their control socket as standard input.
pub(crate) fn serve_session(config: &SoftConfig) -> ! {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end = run_session_process(control, &|_, _| Ok(Box::new(SoftDriver::new(config.clone()))), &|_, _| {
        Err(NoDevices::because("this worker shows nothing"))
    });
    std::process::exit(end.kind.exit_code().into())
}

/// What the program is asked to do.
pub(crate) fn plan() -> String {
    std::env::var(PLAN).unwrap()
}

/// How a worker is started.
pub(crate) struct Setting {
    pub(crate) scheme: &'static str,
    pub(crate) spares: usize,
    pub(crate) session: SessionConfig,
}

impl Default for Setting {
    fn default() -> Self {
        Self { scheme: "unix", spares: 1, session: SessionConfig::new(TOKEN.to_owned()) }
    }
}

/// A worker, until it is dropped.
pub(crate) struct Worker {
    front: Option<FrontHandle>,
    pub(crate) address: String,
    _directory: tempfile::TempDir,
}

impl Worker {
    pub(crate) fn start(Setting { scheme, spares, session }: Setting) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = match scheme {
            "tcp" => "tcp:127.0.0.1:0".to_owned(),
            _ => format!("{scheme}:{}/socket", directory.path().display()),
        };
        let arguments = ["--exact", "session_process", "--ignored", "--nocapture"];
        let config = FrontConfig {
            addresses: vec![address.parse().unwrap()],
            spawn: SessionSpawn {
                program: std::env::current_exe().unwrap(),
                arguments: arguments.map(str::to_owned).to_vec(),
            },
            session,
            grant: std::sync::Arc::new(|| Ok(Grant::plain(serde_json::Value::Null))),
            sessions_max: 4,
            unauthenticated_max: 16,
            preamble_timeout: Duration::from_secs(5),
            hold: Duration::from_secs(5),
            spares,
            executes_ptx_only: true,
        };
        let front = serve_listener(config, |_| {}).unwrap();
        // Of a port that the system chose, the front knows the number.
        let address = front.addresses()[0].to_string();
        Self { front: Some(front), address, _directory: directory }
    }

    /// A program that uses it.
    pub(crate) fn program(&self, plan: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "program", "--ignored", "--nocapture"]);
        command.env("DXPU_WORKER", &self.address).env("DXPU_TOKEN", TOKEN).env(PLAN, plan);
        command.env("DXPU_LOG", "info");
        command
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(front) = self.front.take() {
            front.stop();
        }
    }
}

/// What a program that must end well said, on both of its outputs.
pub(crate) fn said_well(plan: &str, output: &Output) -> String {
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{plan}: {}\n{text}", output.status);
    text
}

/// Runs a program against a worker of its own.
pub(crate) fn run(setting: Setting, plan: &str, environment: &[(&str, &str)]) -> String {
    let worker = Worker::start(setting);
    let output = worker.program(plan).envs(environment.iter().copied()).output().unwrap();
    drop(worker);
    said_well(plan, &output)
}
