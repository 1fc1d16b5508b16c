//! Starts, resets and ends.

use super::session::*;
use crate::{
    driver::{NvidiaConfig, NvidiaDriver, StartError},
    fake::{Fake, VERSION},
    sys::Api,
};
use cuda_abi::CudaError;
use cuda_driver::{Driver, WaitTarget};
use cuda_wire::*;

/// Everything a context can have, with work that is not over.
fn fill_context(session: &Session, context: ContextId) {
    session.stream_create(StreamId(5), context, 1, 0).unwrap();
    session.stream_create(StreamId(6), context, 0, 0).unwrap();
    session.event_create(EventId(5), context, 0).unwrap();
    session.load(ModuleId(5), context).unwrap();
    session.memory_allocate(context, DATA + DATA_BYTES, 100).unwrap();
    session.graph_instantiate(ExecId(5), context, vec![node(Op::HostCall { token: 1 }, &[])]).unwrap();
    session.graph_launch(ExecId(5), StreamId(5), 0).unwrap();
    session.enqueue(StreamId(6), fill(DATA + DATA_BYTES, 100, 1)).unwrap();
    session.enqueue(StreamId(6), out(Plane::line(DATA + DATA_BYTES), Shape::line(100), 1)).unwrap();
    session.stream_destroy(StreamId(6)).unwrap();
}

#[test]
fn a_destroyed_context_takes_everything_in_it_along() {
    let session = Session::new();
    session.context_create(CREATED, 1, 0).unwrap();
    assert_eq!(session.context_create(CREATED, 1, 0), Err(CudaError::INVALID_VALUE), "the name is taken");
    fill_context(&session, CREATED);
    session.context_destroy(CREATED).unwrap();
    assert_eq!(session.enqueue(StreamId(5), fill(DATA, 1, 1)), Err(CudaError::INVALID_HANDLE));
    assert_eq!(session.wait(WaitTarget::Context(CREATED)), Err(CudaError::INVALID_CONTEXT));
    session.check_nothing_left();
}

#[test]
fn a_reset_empties_a_primary_context_and_keeps_it() {
    let session = Session::new();
    fill_context(&session, SECOND);
    session.context_reset(SECOND).unwrap();
    session.check_nothing_left();
    session.stream_create(StreamId(5), SECOND, 1, 0).unwrap();
    assert_eq!(session.context_destroy(SECOND), Err(CudaError::INVALID_CONTEXT), "it is a device's");
}

#[test]
fn a_dead_context_can_be_destroyed() {
    let session = Session::new();
    session.context_create(CREATED, 0, 0).unwrap();
    session.stream_create(StreamId(5), CREATED, 1, 0).unwrap();
    session.fake.hold();
    session.enqueue(StreamId(5), pulled(Plane::line(DATA), Shape::line(64), 1)).unwrap();
    session.fake.kill(session.raw(CREATED), CudaError::ILLEGAL_ADDRESS);
    assert_eq!(session.wait(WaitTarget::Context(CREATED)), Err(CudaError::ILLEGAL_ADDRESS));
    session.context_destroy(CREATED).unwrap();
    session.drain();
    super::link::until("the context is gone", || session.fake.live().contexts == 0);
}

#[test]
fn a_program_uses_the_context_it_named() {
    let session = Session::new();
    session.context_create(CREATED, 1, 0x7).unwrap();
    session.context_set_limit(CREATED, 1, 77).unwrap();
    assert_eq!(session.context_set_limit(CREATED, 9, 77), Err(CudaError::UNSUPPORTED_LIMIT));
    session.context_enable_peer(CREATED, CONTEXT, true).unwrap();
    let again = session.context_enable_peer(CREATED, CONTEXT, true);
    assert_eq!(again, Err(CudaError::PEER_ACCESS_ALREADY_ENABLED));
    session.context_enable_peer(CREATED, CONTEXT, false).unwrap();
    assert_eq!(session.context_create(ContextId(0x101), 2, 0), Err(CudaError::INVALID_DEVICE));
    session.context_destroy(CREATED).unwrap();
    session.check_nothing_left();
}

#[test]
fn devices_are_described() {
    let session = Session::bare(None);
    let devices = session.devices();
    assert_eq!((devices.len(), devices[1].name.as_str()), (2, "Fake GPU 1"));
    assert_eq!((devices[1].uuid, devices[1].attributes.len()), ([2; 16], 100));
    assert_eq!((devices[0].limits.len(), devices[0].stream_priorities), (3, (0, -5)));
    assert_eq!(session.cuda_version(), VERSION);
    session.limit_memory(1 << 20, cuda_driver::LimitOf::Lease);
    assert_eq!(session.devices()[0].memory_bytes, 1 << 20);
}

#[test]
fn a_machine_without_devices_is_refused() {
    let fake = Fake::start(0);
    let refused = NvidiaDriver::on(Api::Fake(fake), None, &NvidiaConfig::default()).map(drop);
    assert!(matches!(refused, Err(StartError::Driver { error: CudaError::NO_DEVICE, .. })));
    fake.close();
}

#[test]
fn a_start_that_fails_says_at_what() {
    for symbol in
        ["cuInit", "cuDevicePrimaryCtxRetain", "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2"]
    {
        let fake = Fake::start(1);
        fake.fail(symbol, 1, CudaError::SYSTEM_NOT_READY);
        let refused = NvidiaDriver::on(Api::Fake(fake), None, &NvidiaConfig::default()).map(drop);
        let is_told = matches!(refused, Err(StartError::Driver { error: CudaError::SYSTEM_NOT_READY, .. }));
        assert!(is_told, "{symbol}");
        let (made, gone) = (fake.count("cuMemHostRegister_v2"), fake.count("cuMemHostUnregister"));
        assert!(
            symbol != "cuMemHostGetDevicePointer_v2" || (made, gone) == (1, 1),
            "registered pages go back"
        );
        fake.close();
    }
}
