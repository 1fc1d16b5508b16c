//! Nothing is left when a session ends. One test, because it looks at the whole process.

mod common;

use common::*;
use cuda_driver::Driver;
use cuda_wire::*;
use std::time::{Duration, Instant};

const KERNELS: &[u8] = include_bytes!("samples/kernels.ptx");

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn maps() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A session in the middle of everything: a kernel that never ends, waits, a host function, a copy that waits for data.
fn busy_session() -> Session {
    let session = Session::new();
    let info = session.load(1, KERNELS).unwrap();
    let forever = info.kernels.iter().position(|kernel| kernel.name == "forever").unwrap() as u32;
    let memory = session.alloc_with(&[0; 4096]);
    session.driver.physical_create(MemoryHandleId(1), 0, 4 << 20).unwrap();
    session.driver.physical_map(session.base + (1 << 30), 4 << 20, 0, MemoryHandleId(1)).unwrap();
    session.driver.stream_synchronize(LEGACY).unwrap();
    let streams: Vec<StreamId> = (0..6).map(|_| session.stream(1)).collect();
    session.driver.enqueue(streams[0], launch(1, forever, 4, 64, &parameters(&[memory + 64]))).unwrap();
    session.wait_value(streams[1], memory, 99);
    session.link.hold(5);
    session.driver.enqueue(streams[2], Op::HostCall { token: 5 }).unwrap();
    let data = HostData::Pushed { transfer: TransferId(1) };
    let op = Op::CopyIn { target: Plane::line(memory), shape: Shape::line(64), data };
    session.driver.enqueue(streams[3], op).unwrap();
    let event = session.event();
    session.driver.enqueue(streams[1], Op::Record { event, flags: 0 }).unwrap();
    session.driver.enqueue(streams[4], Op::Wait { event, flags: 0 }).unwrap();
    session.driver.memory_free(memory).unwrap();
    session
        .driver
        .enqueue(streams[5], Op::Allocate { address: session.place(1 << 20), bytes: 1 << 20 })
        .unwrap();
    session.driver.enqueue(LEGACY, Op::Empty {}).unwrap();
    session
}

#[test]
fn threads_mappings_and_files_come_and_go() {
    idle_streams_need_no_thread();
    a_hundred_sessions_leave_no_thread_no_mapping_and_no_file();
}

fn a_hundred_sessions_leave_no_thread_no_mapping_and_no_file() {
    // Whatever the first ones allocate for good is not counted.
    for _ in 0..3 {
        let session = busy_session();
        session.link.lose();
        drop(session);
    }
    let before = (threads(), files());
    let maps_before = maps();
    let start = Instant::now();
    for round in 0..100 {
        let session = busy_session();
        if round % 2 == 0 {
            session.driver.abort();
            session.link.lose();
        } else {
            session.link.lose();
        }
    }
    assert!(start.elapsed() < Duration::from_secs(60));
    // A joined thread may show for a moment longer.
    let until = Instant::now() + Duration::from_secs(2);
    while (threads(), files()) != before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((threads(), files()), before);
    // The allocator's own arenas come and go.
    assert!(maps() <= maps_before + 20, "{} mappings before, {} after", maps_before, maps());
}

fn idle_streams_need_no_thread() {
    let session = Session::new();
    let memory = session.alloc_with(&[0; 4]);
    for _ in 0..20 {
        let stream = session.stream(1);
        session.driver.enqueue(stream, fill32(memory, 1, 1)).unwrap();
        session.driver.stream_synchronize(stream).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let names = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        if names.filter(|name| name.trim() == "dxpu-stream").count() == 0 {
            break;
        }
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
    session.driver.enqueue(LEGACY, fill32(memory, 1, 2)).unwrap();
    assert_eq!(session.read_u32(LEGACY, memory), 2);
}
