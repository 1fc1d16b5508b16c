//! Sessions of soft GPUs whose images a real guardian keeps.

mod support;

use cuda_abi::CudaError;
use cuda_wire::*;
use cuda_worker::{EndKind, Grant};
use guardian::{Guardian, GuardianConfig, PeerListen, PeerSecurity};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::client::patterned;
use support::protected::*;
use support::worker::Worker;
use transport::HostPort;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    serve_guarded();
}

const BYTES: usize = 391 * 512;

fn socket(directory: &Path) -> PathBuf {
    directory.join("guardian")
}

fn start(directory: &Path, bytes_max: u64) -> Guardian {
    let mut config = GuardianConfig::new(socket(directory), bytes_max);
    config.listen = Some(PeerListen {
        at: HostPort { host: "127.0.0.1".to_owned(), port: 0 },
        host: "127.0.0.1".to_owned(),
        name: None,
    });
    config.security = PeerSecurity::Plain;
    Guardian::start(&config).unwrap()
}

fn worker_with(directory: &Path) -> Worker {
    let path = socket(directory);
    Worker::start("unix", |config| {
        config.session.guardian = Some(path);
        config.grant = Arc::new(|| Ok(Grant::plain("soft".into())));
    })
}

#[test]
fn a_killed_session_comes_back_from_its_guardian() {
    let directory = tempfile::tempdir().unwrap();
    let guardian = start(directory.path(), 64 << 20);
    let worker = worker_with(directory.path());
    let mut client = worker.attach();
    let (header, body) = client.guard(1);
    assert_eq!(header.status, 0);
    let info = GuardInfo::from_bytes(&body).unwrap();
    assert_eq!(info.guardian, guardian.address());
    client.make(BYTES as u64);
    for number in 1..=5 {
        client.write(STREAM, 0, &patterned(number, BYTES));
        client.safe_cut(number);
    }
    kill_session(&worker);
    // The client may not have heard that the last one is safe: both are there.
    for (incarnation, number) in [(2, 4), (3, 5)] {
        let mut client = worker.attach();
        assert_eq!(client.guard(incarnation).0.status, 0);
        client.make(BYTES as u64);
        let (header, words) = client.restore(number);
        assert_eq!(header.status, 0, "{number}: {}", String::from_utf8_lossy(&words));
        assert!(client.read(STREAM, BYTES as u64) == patterned(number, BYTES));
        drop(client);
        assert_eq!(worker.end().kind, EndKind::PeerLost);
    }
    let mut client = worker.attach();
    client.guard(4);
    client.make(BYTES as u64);
    assert_eq!(client.restore(3).0.status, CudaError::NOT_FOUND.code(), "the client had let go of it");
    assert_eq!(client.restore(5).0.status, 0);
    client.write(STREAM, 0, &patterned(6, BYTES));
    client.safe_cut(6);
    client.must(&Command::Goodbye {});
    assert_eq!(worker.end().kind, EndKind::Finished);
    let mut client = worker.attach();
    client.guard(1);
    assert_eq!(client.restore(6).0.status, CudaError::NOT_FOUND.code(), "the image ended with the goodbye");
}

#[test]
fn a_guardian_that_starts_again_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let guardian = start(directory.path(), 64 << 20);
    let worker = worker_with(directory.path());
    let mut client = worker.attach();
    client.guard(1);
    client.make(BYTES as u64);
    client.write(STREAM, 0, &patterned(1, BYTES));
    client.safe_cut(1);
    guardian.stop();
    client.write(STREAM, 0, &patterned(2, 1000));
    for number in 2..4 {
        let words = client.unsafe_cut(number);
        assert!(words.contains("the guardian is lost"), "{words}");
    }
    let _guardian = start(directory.path(), 64 << 20);
    client.safe_cut(4);
    let expected = client.read(STREAM, BYTES as u64);
    kill_session(&worker);
    let mut client = worker.attach();
    client.guard(2);
    client.make(BYTES as u64);
    assert_eq!(client.restore(4).0.status, 0);
    assert!(client.read(STREAM, BYTES as u64) == expected);
}

#[test]
fn a_guardian_without_room_says_how_to_give_it_some() {
    let directory = tempfile::tempdir().unwrap();
    let _guardian = start(directory.path(), 1 << 20);
    let worker = worker_with(directory.path());
    let mut client = worker.attach();
    assert_eq!(client.guard(1).0.status, 0);
    client.make(4 << 20);
    let words = client.unsafe_cut(1);
    assert!(words.contains("--guard-memory"), "{words}");
    client.must(&Command::MemoryFree { address: client.base });
    client.must(&Command::MemoryAllocate { context: CONTEXT, address: client.base, bytes: BYTES as u64 });
    client.safe_cut(2);
}

#[test]
fn a_session_of_another_box_fetches_the_image() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, _to) = (start(here.path(), 64 << 20), start(there.path(), 64 << 20));
    let (old, new) = (worker_with(here.path()), worker_with(there.path()));
    let mut client = old.attach();
    client.guard(1);
    client.make(BYTES as u64);
    client.write(STREAM, 0, &patterned(1, BYTES));
    client.safe_cut(1);
    kill_session(&old);
    let mut client = new.attach();
    assert_eq!(client.guard(2).0.status, 0);
    client.make(BYTES as u64);
    assert_eq!(client.restore(1).0.status, CudaError::NOT_FOUND.code());
    let restore = Command::ImageRestore { number: 1, from: from.address().to_owned() };
    assert_eq!(client.call(&restore).0.status, 0);
    assert!(client.read(STREAM, BYTES as u64) == patterned(1, BYTES));
    client.write(STREAM, 0, &[3; 100]);
    client.safe_cut(2);
    // A box that cannot be reached.
    let mut other = new.attach();
    other.call(&Command::Guard { image: ImageName { bytes: [1; 16] }, secret: SECRET, incarnation: 1 });
    let (header, words) =
        other.call(&Command::ImageRestore { number: 1, from: "tcp:127.0.0.1:1".to_owned() });
    assert!(header.status != 0 && !words.is_empty());
}
