//! A device that fails: protected programs do not see it, others do.

mod support;

use cuda_abi::CudaError;
use cuda_wire::*;
use cuda_worker::EndKind;
use support::client::{Client, Told};
use support::protected::*;
use support::toy::ERROR_LIMIT;

/// Not a test: the session processes of the tests below run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    serve();
}

const DEVICES: [u32; 4] = [46, 214, 220, 999];
const PROGRAMS: [u32; 5] = [700, 710, 716, 718, 719];

/// A kernel that fails with this code.
fn fail(client: &mut Client, code: u32) {
    let op = Op::Launch {
        kernel: KernelRef { module: ModuleId(1), index: 0 },
        grid: [code, 1, 1],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        attributes: vec![],
        parameters: Bytes(&[]),
    };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
}

fn answer(code: u32) -> Command<'static> {
    Command::ContextSetLimit { context: CONTEXT, limit: ERROR_LIMIT, value: code.into() }
}

#[test]
fn a_protected_program_hears_that_its_device_is_lost_and_no_reply_with_the_code() {
    let (worker, guardian) = protected_worker("toy");
    let lost = |client: &mut Client, code: u32| {
        assert_eq!(client.heard(), Told::DeviceLost(code));
        let mut byte = [0];
        assert!(client.rx.recv_exact(&mut byte).is_err(), "{code}: a reply came");
        assert_eq!(client.heard(), Told::End);
        assert_eq!(worker.end().kind, EndKind::DeviceLost);
    };
    let mut incarnation = 0;
    let mut attach = || {
        incarnation += 1;
        let mut client = worker.attach();
        assert_eq!(client.guard(incarnation).0.status, 0);
        client.make(1000);
        client
    };
    for code in DEVICES.into_iter().chain([100, 101]) {
        // The wait for the work, whichever thread waits.
        let mut client = attach();
        fail(&mut client, code);
        client.ask(&Command::StreamSynchronize { stream: STREAM });
        lost(&mut client, code);
        // A reply to something else, which would carry the error of one-way work.
        let mut client = attach();
        client.one_way(&Command::Enqueue { stream: STREAM, op: Op::HostCall { token: 1 } });
        fail(&mut client, code);
        assert_eq!(client.heard(), Told::HostCall(1));
        client.say(&Notice::HostCallDone { token: 1 });
        // One of these replies would carry the error. The session may end between two of them.
        while client.told.try_recv().is_err() && client.try_ask(&Command::MemoryInfo { device: 0 }) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(worker.end().kind, EndKind::DeviceLost);
    }
    for code in DEVICES {
        let mut client = attach();
        client.ask(&answer(code));
        lost(&mut client, code);
    }
    assert_eq!(guardian.books(|books| books.images.len()), 1, "the image stays");
}

#[test]
fn the_programs_own_errors_are_delivered() {
    let (worker, _guardian) = protected_worker("toy");
    for (incarnation, code) in (1..).zip(PROGRAMS) {
        let mut client = worker.attach();
        assert_eq!(client.guard(incarnation).0.status, 0);
        client.make(1000);
        fail(&mut client, code);
        let (header, _) = client.call(&Command::StreamSynchronize { stream: STREAM });
        assert_eq!((header.status, header.deferred), (code, code));
        assert_eq!(client.call(&answer(code)).0.status, code);
        // A command that names a device which there never was.
        assert_eq!(client.call(&answer(101)).0.status, 101);
        client.one_way(&answer(101));
        assert_eq!(client.call(&Command::MemoryInfo { device: 0 }).0.deferred, 101);
    }
}

#[test]
fn a_pull_that_the_client_cannot_serve_is_no_lost_device() {
    let (worker, _guardian) = protected_worker("toy");
    let mut client = worker.attach();
    assert_eq!(client.guard(1).0.status, 0);
    client.make(1000);
    let data = HostData::Pulled { transfer: TransferId(4) };
    let op = Op::CopyIn { target: Plane::line(client.base), shape: Shape::line(100), data };
    client.one_way(&Command::Enqueue { stream: STREAM, op });
    assert_eq!(client.heard(), Told::Pull(TransferId(4)));
    client.say(&Notice::PullFailed { transfer: TransferId(4) });
    let (header, _) = client.call(&Command::StreamSynchronize { stream: STREAM });
    assert_eq!(header.status, CudaError::DEVICE_UNAVAILABLE.code());
}

#[test]
fn an_unprotected_program_sees_every_error() {
    let (worker, guardian) = protected_worker("toy");
    for code in DEVICES.into_iter().chain([100, 101]).chain(PROGRAMS) {
        let mut client = worker.attach();
        client.make(1000);
        fail(&mut client, code);
        let (header, _) = client.call(&Command::StreamSynchronize { stream: STREAM });
        assert_eq!((header.status, header.deferred), (code, code));
        assert_eq!(client.call(&answer(code)).0.status, code);
    }
    assert!(guardian.books(|books| books.calls.is_empty()));
}
