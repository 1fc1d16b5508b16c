//! Memory that a hostile client passes to its session. Each is refused, and the session goes on.

mod support;

use cuda_abi::CudaError;
use cuda_driver::SharedPages;
use cuda_wire::*;
use cuda_worker::*;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};
use support::client::Client;
use support::toy::{Toy, ToyStatus};
use support::worker::Worker;

const BYTES: u64 = 1 << 20;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end =
        run_session_process(control, &|_, _| Ok(Box::new(Toy::default())), &|_, _| Ok(Box::new(ToyStatus)));
    std::process::exit(end.kind.exit_code().into());
}

/// Passes memory, if any, and says what the worker answers to a region of that size.
fn share(client: &mut Client, file: Option<&OwnedFd>, region: u32, bytes: u64) -> u32 {
    if let Some(file) = file {
        client.courier.as_ref().unwrap().pass(file.as_fd()).unwrap();
    }
    client.call(&Command::HostShare { region: RegionId(region), bytes }).0.status
}

#[test]
fn what_cannot_be_trusted_is_refused_and_the_session_goes_on() {
    let worker = Worker::start("shm", |config| config.session.shared_host_bytes_max = 2 * BYTES);
    let mut client = worker.attach();
    let (_pages, good) = SharedPages::create(BYTES as usize).unwrap();
    let (invalid, full) = (CudaError::INVALID_VALUE.code(), CudaError::OUT_OF_MEMORY.code());
    assert_eq!(share(&mut client, None, 1, BYTES), invalid, "nothing was passed");
    let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, BYTES).unwrap();
    assert_eq!(share(&mut client, Some(&unsealed), 1, BYTES), invalid, "it could be cut short");
    rustix::fs::fcntl_add_seals(&unsealed, SealFlags::GROW).unwrap();
    assert_eq!(share(&mut client, Some(&unsealed), 1, BYTES), invalid, "it still could");
    let socket: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
    assert_eq!(share(&mut client, Some(&socket), 1, BYTES), invalid, "that is no memory");
    assert_eq!(share(&mut client, Some(&good), 1, BYTES - 1), invalid, "it is longer");
    assert_eq!(share(&mut client, Some(&good), 1, BYTES + 1), invalid, "it is shorter");
    assert_eq!(share(&mut client, Some(&good), 1, u64::MAX), full);
    assert_eq!(share(&mut client, Some(&good), 1, BYTES), 0);
    assert_eq!(
        share(&mut client, Some(&good), 1, BYTES),
        CudaError::INVALID_HANDLE.code(),
        "the name is taken"
    );
    assert_eq!(share(&mut client, Some(&good), 2, BYTES), 0);
    assert_eq!(share(&mut client, Some(&good), 3, BYTES), full, "beyond the limit");
    client.must(&Command::HostUnshare { region: RegionId(2) });
    assert_ne!(client.call(&Command::HostUnshare { region: RegionId(2) }).0.status, 0);
    assert_eq!(share(&mut client, Some(&good), 3, BYTES), 0, "what was given back counts no more");
    client.must(&Command::Goodbye {});
    assert_eq!(worker.end().kind, EndKind::Finished);
}

#[test]
fn a_transport_without_a_way_for_memory_refuses_the_command() {
    let worker = Worker::start("unix", |_| {});
    let mut client = worker.attach();
    assert!(client.courier.is_none());
    assert_eq!(share(&mut client, None, 1, BYTES), CudaError::NOT_SUPPORTED.code());
    client.must(&Command::Goodbye {});
}
