//! A whole session in which every call of the driver fails once.
//!
//! The GPU is held while the session puts its work into streams, so that nothing is over when a call fails. Whatever
//! fails: the caller hears it, no slot or word is free that a stream will still touch, and at the end the driver has
//! everything back.

use super::{link::bytes, session::*};
use crate::{memory::GRANULE, pinned::SLOT_BYTES};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::Driver;
use cuda_wire::*;

const STREAMS: [StreamId; 2] = [StreamId(10), StreamId(11)];
const EVENT: EventId = EventId(10);
const MODULE: ModuleId = ModuleId(10);
const EXEC: ExecId = ExecId(10);
const HANDLE: MemoryHandleId = MemoryHandleId(10);
const MEMORY: u64 = DATA + DATA_BYTES;
const MAPPED: u64 = MEMORY + 16 * GRANULE;
const ERROR: CudaError = CudaError::LAUNCH_FAILED;

/// Calls whose failure is no failure of the command: what they ask may be unknown, or what they end is gone anyway.
const TOLERATED: [&str; 7] = [
    "cuFuncGetParamInfo",
    "cuModuleGetGlobal_v2",
    "cuGraphDestroy",
    "cuLinkDestroy",
    "cuLinkCreate_v2",
    "cuLinkAddData_v2",
    "cuLinkComplete",
];
/// Calls that one command can do without and another cannot: the load of a module, and the launch of a kernel.
const DEPENDS: [&str; 1] = ["cuFuncGetAttribute"];
/// Calls that give something back: when they fail, the driver keeps it.
const RETURNS: [&str; 2] = ["cuGraphDestroy", "cuLinkDestroy"];

fn work(session: &Session) -> CuResult<()> {
    session.context_create(CREATED, 0, 0)?;
    session.stream_create(STREAMS[0], CREATED, 1, 0)?;
    session.stream_create(STREAMS[1], CREATED, 0, 0)?;
    session.event_create(EVENT, CREATED, 0)?;
    session.load(MODULE, CREATED)?;
    let input = LinkInput { kind: 1, name: String::new(), bytes: Bytes(b"text") };
    session.link(CREATED, vec![input], Vec::new())?;
    session.memory_allocate(CREATED, MEMORY, 5 * SLOT_BYTES as u64)?;
    session.physical_create(HANDLE, 0, GRANULE)?;
    session.physical_map(MAPPED, GRANULE, 0, HANDLE)?;
    session.physical_set_access(MAPPED, GRANULE, 0, 3)?;
    let (line, count) = (Plane::line(MEMORY), SLOT_BYTES as u64 + 1);
    session.enqueue(STREAMS[0], pushed(line, Shape::line(count), 1))?;
    session.enqueue(STREAMS[0], pulled(line, Shape::line(count), 2))?;
    session.enqueue(STREAMS[0], Op::Record { event: EVENT, flags: 0 })?;
    session.enqueue(STREAMS[1], Op::Wait { event: EVENT, flags: 0 })?;
    session.enqueue(STREAMS[1], out(line, Shape::line(count), 3))?;
    session.enqueue(STREAMS[1], out(line, Shape::line(64), 4))?;
    session.enqueue(STREAMS[1], launch(MODULE, STORE, &store(MAPPED, 7)))?;
    session.enqueue(STREAMS[1], Op::HostCall { token: 1 })?;
    let nodes = vec![
        node(pulled(line, Shape::line(64), 5), &[]),
        node(launch(MODULE, NOTHING, &[]), &[0]),
        node(out(line, Shape::line(64), 6), &[1]),
    ];
    session.graph_instantiate(EXEC, CREATED, nodes)?;
    session.graph_launch(EXEC, STREAMS[1], 1)?;
    session.graph_launch(EXEC, STREAMS[0], 2)?;
    drop(session.read_back_begin(STREAMS[0], line, Shape::line(64))?);
    Ok(())
}

/// Ends whatever came to be; the rest is refused.
fn clean_up(session: &Session) {
    let _ = session.graph_destroy(EXEC);
    let _ = session.stream_destroy(STREAMS[1]);
    let _ = session.event_destroy(EVENT);
    session.drain();
    let _ = session.physical_unmap(MAPPED, GRANULE);
    let _ = session.physical_release(HANDLE);
    let _ = session.module_unload(MODULE);
    let _ = session.context_destroy(CREATED);
}

#[test]
fn whatever_call_fails_is_heard_and_leaves_nothing_behind() {
    let mut nth = 1;
    loop {
        let session = Session::new();
        session.fake.hold();
        session.fake.fail_nth(nth, ERROR);
        let result = work(&session);
        let failed = session.fake.take_failed();
        session.check_pinned();
        clean_up(&session);
        match failed {
            Some(call) if DEPENDS.contains(&call) => {
                assert!(result.is_ok() || result == Err(ERROR), "{result:?}: {call}, the {nth}th call");
            }
            Some(call) if TOLERATED.contains(&call) => assert_eq!(result, Ok(()), "{call}, the {nth}th call"),
            Some(call) => assert_eq!(result, Err(ERROR), "{call}, the {nth}th call"),
            None => assert_eq!(result, Ok(())),
        }
        if failed.is_none_or(|call| !RETURNS.contains(&call)) {
            session.check_nothing_left();
        }
        if failed.is_none() {
            assert!(session.link.sent(TransferId(3)) == bytes(TransferId(2), SLOT_BYTES as u64 + 1));
            assert!(nth > 80, "only {nth} calls");
            return;
        }
        nth += 1;
    }
}
