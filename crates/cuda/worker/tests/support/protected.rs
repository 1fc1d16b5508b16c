//! A worker with a guardian, and a client whose session is protected.

use super::client::{Client, Told};
use super::guardian::{TestGuardian, open_store};
use super::toy::{Toy, ToyStatus};
use super::worker::Worker;
use cuda_wire::*;
use cuda_worker::{
    DriverFactory, Grant, SessionEnd, StatusFactory, run_session_process, run_session_process_with_store,
};
use driver_soft::{SoftConfig, SoftDriver};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

pub const STREAM: StreamId = StreamId(1);
pub const OTHER: StreamId = StreamId(2);
pub const CONTEXT: ContextId = ContextId(0);
pub const SECRET: [u8; 32] = [4; 32];
pub const IMAGE: ImageName = ImageName { bytes: [9; 16] };

/// Longer than any test.
pub const PATIENT: u32 = 60_000_000;

/// What session processes run, with the guardian of their test.
pub fn serve() {
    serve_with(|control, driver, status| run_session_process_with_store(control, driver, status, open_store));
}

/// The same with the guardian that workers have.
pub fn serve_guarded() {
    serve_with(run_session_process);
}

/// Runs a session process: of a toy if the grant says so, else of a soft GPU.
fn serve_with(run: impl FnOnce(OwnedFd, &DriverFactory<'_>, &StatusFactory<'_>) -> SessionEnd) {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end = run(
        control,
        &|grant, _| match grant.as_str() {
            Some("toy") => Ok(Box::new(Toy::default())),
            _ => {
                let config = SoftConfig { memory_bytes: 64 << 20, block_threads: 0, ..SoftConfig::default() };
                Ok(Box::new(SoftDriver::new(config)))
            }
        },
        &|_, _| Ok(Box::new(ToyStatus)),
    );
    std::process::exit(end.kind.exit_code().into());
}

/// A worker and its guardian.
pub fn protected_worker(driver: &'static str) -> (Worker, TestGuardian) {
    let mut guardian = None;
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::start("unix", |config| {
        let started = TestGuardian::start(directory.path());
        config.session.guardian = Some(started.path());
        config.grant = Arc::new(move || Ok(Grant::plain(driver.into())));
        guardian = Some(started);
    });
    // Sockets outlive the names of their directory only while they are open: keep it to the end of the process.
    std::mem::forget(directory);
    (worker, guardian.unwrap())
}

impl Client {
    pub fn guard(&mut self, incarnation: u64) -> (ReplyHeader, Vec<u8>) {
        self.call(&guard(incarnation))
    }

    /// Makes two streams and memory, as any session of these tests has it.
    pub fn make(&mut self, bytes: u64) {
        for stream in [STREAM, OTHER] {
            self.one_way(&Command::StreamCreate { stream, context: CONTEXT, kind: 1, priority: 0 });
        }
        self.one_way(&Command::MemoryAllocate { context: CONTEXT, address: self.base, bytes });
    }

    pub fn write(&mut self, stream: StreamId, offset: u64, data: &[u8]) {
        let target = Plane::line(self.base + offset);
        let shape = Shape::line(data.len() as u64);
        let op = Op::CopyIn { target, shape, data: HostData::Inline { bytes: Bytes(data) } };
        self.one_way(&Command::Enqueue { stream, op });
    }

    pub fn read(&mut self, stream: StreamId, bytes: u64) -> Vec<u8> {
        let source = Plane::line(self.base);
        let body = self.must(&Command::ReadBack { stream, source, shape: Shape::line(bytes) });
        Blob::from_bytes(&body).unwrap().0
    }

    pub fn cut(&mut self, number: u64, patience_us: u32) {
        self.one_way(&Command::Cut { number, dead: vec![], patience_us });
    }

    /// A cut that must be safe.
    pub fn safe_cut(&mut self, number: u64) {
        self.cut(number, PATIENT);
        assert_eq!(self.heard(), Told::CutTaken(number));
        assert_eq!(self.heard(), Told::CutSafe(number));
    }

    /// A cut that the guardian fails after it was taken, and why.
    pub fn unsafe_cut(&mut self, number: u64) -> String {
        self.cut(number, PATIENT);
        assert_eq!(self.heard(), Told::CutTaken(number));
        match self.heard() {
            Told::CutAbandoned(abandoned, words) if abandoned == number => words,
            other => panic!("{other:?}"),
        }
    }

    pub fn restore(&mut self, number: u64) -> (ReplyHeader, Vec<u8>) {
        self.call(&Command::ImageRestore { number, from: String::new() })
    }
}

pub fn guard(incarnation: u64) -> Command<'static> {
    Command::Guard { image: IMAGE, secret: SECRET, incarnation }
}

/// Kills the only session of a worker as nothing but the kernel can, and waits until it is gone.
pub fn kill_session(worker: &Worker) {
    let pids = worker.front.as_ref().unwrap().session_pids();
    assert_eq!(pids.len(), 1);
    let killed = std::process::Command::new("kill").args(["-9", &pids[0].to_string()]).status();
    assert!(killed.unwrap().success());
    worker.end();
}
