//! Arrays, and texture and surface objects.

use super::{
    link::{bytes, until},
    session::*,
};
use crate::pinned::SLOT_BYTES;
use cuda_abi::CudaError;
use cuda_driver::Driver;
use cuda_wire::*;

const ARRAY: ArrayId = ArrayId(5);
const EXEC: ExecId = ExecId(3);

fn words(width: u64, height: u64, depth: u64, levels: u32) -> ArrayInfo {
    ArrayInfo { format: array_kind::UNSIGNED_INT32, channels: 1, width, height, depth, flags: 0, levels }
}

/// All of a level.
fn whole(info: &ArrayInfo, level: u32) -> (Plane, Shape) {
    let extent = info.extent(level).unwrap();
    let (width, height, depth) = (extent.row_bytes, extent.rows, extent.slices);
    (extent.plane(ARRAY.address() + info.level_offset(level).unwrap()), Shape { width, height, depth })
}

fn between(target: Plane, source: Plane, shape: Shape) -> Op<'static> {
    Op::CopyDevice { target, source, shape }
}

/// A place in memory as wide as `shape`.
fn beside(address: u64, shape: Shape) -> Plane {
    Plane { address, row_pitch: shape.width, slice_pitch: shape.width * shape.height }
}

#[test]
fn bytes_go_into_an_array_in_parts_and_come_out_again() {
    // Rows of 3,000 bytes: parts end in the middle of rows.
    let info = words(750, 2500, 2, 0);
    for pull in [false, true] {
        let session = Session::new();
        session.array_create(ARRAY, CONTEXT, info).unwrap();
        let (plane, shape) = whole(&info, 0);
        let count = shape.bytes().unwrap();
        assert!(count > 2 * SLOT_BYTES as u64);
        let op = if pull { pulled } else { pushed };
        session.enqueue(STREAM, op(plane, shape, 3)).unwrap();
        session.enqueue(STREAM, between(beside(DATA, shape), plane, shape)).unwrap();
        session.enqueue(STREAM, out(plane, shape, 4)).unwrap();
        session.drain();
        let expected = bytes(TransferId(3), count);
        assert!(session.fake.peek(DATA, count as usize) == expected, "by way of memory, {pull}");
        assert!(session.link.sent(TransferId(4)) == expected, "by the lanes, {pull}");
        session.array_destroy(ARRAY).unwrap();
        session.check_nothing_left();
    }
}

#[test]
fn a_part_of_a_level_is_copied_and_a_copy_past_its_edges_refused() {
    let session = Session::new();
    let info = words(8, 4, 0, 3);
    session.array_create(ARRAY, CONTEXT, info).unwrap();
    let (level, _) = whole(&info, 1);
    let part = Plane { address: level.address + 16 + 4, ..level };
    let shape = Shape { width: 8, height: 1, depth: 1 };
    let data = HostData::Inline { bytes: Bytes(b"abcdefgh") };
    session.enqueue(STREAM, Op::CopyIn { target: part, shape, data }).unwrap();
    let (plane, all) = whole(&info, 1);
    session.enqueue(STREAM, between(beside(DATA, all), plane, all)).unwrap();
    let mut read = Vec::new();
    session.read_back_begin(STREAM, plane, all).unwrap().wait(&mut read).unwrap();
    session.drain();
    let expected = [[0; 16], *b"\0\0\0\0abcdefgh\0\0\0\0"].concat();
    assert_eq!((session.fake.peek(DATA, 32), read), (expected.clone(), expected));
    let past = Op::CopyDevice { target: part, source: Plane::line(DATA), shape: Shape::line(16) };
    assert_eq!(session.enqueue(STREAM, past), Err(CudaError::INVALID_VALUE));
    let none = Plane::line(ArrayId(77).address());
    let unknown = between(none, Plane::line(DATA), Shape::line(4));
    assert_eq!(session.enqueue(STREAM, unknown), Err(CudaError::INVALID_HANDLE));
    session.array_destroy(ARRAY).unwrap();
    assert_eq!(session.array_destroy(ARRAY), Err(CudaError::INVALID_HANDLE));
    session.check_nothing_left();
}

#[test]
fn a_graph_copies_through_an_array() {
    let session = Session::new();
    let info = words(16, 4, 2, 0);
    session.array_create(ARRAY, CONTEXT, info).unwrap();
    let (plane, shape) = whole(&info, 0);
    let nodes = vec![
        node(pulled(plane, shape, 9), &[]),
        node(between(beside(DATA, shape), plane, shape), &[0]),
        node(out(plane, shape, 10), &[1]),
    ];
    session.graph_instantiate(EXEC, CONTEXT, nodes).unwrap();
    session.graph_launch(EXEC, STREAM, 0).unwrap();
    // The graph keeps its buffers.
    until("the graph has run", || session.fake.backlog() == 0);
    let expected = bytes(TransferId(9), shape.bytes().unwrap());
    assert_eq!(session.fake.peek(DATA, expected.len()), expected);
    assert_eq!(session.link.sent(TransferId(10)), expected);
    session.graph_destroy(EXEC).unwrap();
    session.array_destroy(ARRAY).unwrap();
    until("the array is gone", || session.fake.live().arrays == 0);
    session.check_rules();
}

#[test]
fn an_array_and_its_objects_stay_until_the_work_before_is_done() {
    let session = Session::new();
    let info = words(8, 4, 0, 2);
    session.array_create(ARRAY, CONTEXT, info).unwrap();
    let address = ARRAY.address();
    let resource = |kind| Resource { kind, address, format: 0, channels: 0, width: 0, height: 0, pitch: 0 };
    let sampling = Sampling {
        address_modes: [1; 3],
        filter_mode: 1,
        flags: 0,
        max_anisotropy: 0,
        mipmap_filter_mode: 0,
        mipmap_level_bias: 0.0,
        min_mipmap_level_clamp: 0.0,
        max_mipmap_level_clamp: 0.0,
        border_color: [0.0; 4],
    };
    let (texture, surface) = (SamplerId(1), SamplerId(2));
    let mipmapped = resource(resource_kind::MIPMAPPED_ARRAY);
    let first = session.texture_create(texture, CONTEXT, mipmapped, sampling, None).unwrap();
    let second = session.surface_create(surface, CONTEXT, resource(resource_kind::ARRAY)).unwrap();
    assert!(first != second && first != 0, "what the driver says");
    let linear =
        Resource { address: DATA, format: 32, channels: 1, width: 64, ..resource(resource_kind::LINEAR) };
    session.texture_create(SamplerId(3), CONTEXT, linear, sampling, None).unwrap();
    session.sampler_destroy(SamplerId(3)).unwrap();
    session.fake.hold();
    session.enqueue(STREAM, fill(DATA, 100, 1)).unwrap();
    session.sampler_destroy(texture).unwrap();
    session.sampler_destroy(surface).unwrap();
    session.array_destroy(ARRAY).unwrap();
    assert_eq!(session.sampler_destroy(surface), Err(CudaError::INVALID_HANDLE));
    assert_eq!(session.fake.live().arrays, 1, "a stream is held");
    session.drain();
    session.check_nothing_left();
}

#[test]
fn arrays_count_against_the_limit_and_go_with_their_context() {
    let mut session = Session::bare(Some(64 << 20));
    session.context_create(CREATED, 0, 0).unwrap();
    session.note_live();
    let info = words(4096, 3072, 0, 0);
    session.array_create(ARRAY, CREATED, info).unwrap();
    assert_eq!(
        session.array_create(ARRAY, CREATED, info),
        Err(CudaError::INVALID_VALUE),
        "its name is taken"
    );
    assert_eq!(session.array_create(ArrayId(6), CREATED, info), Err(CudaError::OUT_OF_MEMORY));
    let surface = Resource {
        kind: resource_kind::ARRAY,
        address: ARRAY.address(),
        format: 0,
        channels: 0,
        width: 0,
        height: 0,
        pitch: 0,
    };
    session.surface_create(SamplerId(1), CREATED, surface).unwrap();
    session.context_destroy(CREATED).unwrap();
    let live = session.fake.live();
    assert_eq!((live.arrays, live.samplers), (0, 0));
    session.array_create(ARRAY, CONTEXT, info).unwrap();
    session.check_rules();
}

#[test]
fn references_of_a_module_are_found_and_bound() {
    let session = Session::new();
    let module = ModuleId(4);
    session.load(module, CONTEXT).unwrap();
    session.array_create(ARRAY, CONTEXT, words(8, 4, 0, 0)).unwrap();
    let find = |name: &str| session.reference_find(module, name.to_owned(), false);
    assert_eq!((find("picture"), find("no such")), (Ok(()), Err(CudaError::NOT_FOUND)));
    let array = Resource {
        kind: resource_kind::ARRAY,
        address: ARRAY.address(),
        format: 0,
        channels: 0,
        width: 0,
        height: 0,
        pitch: 0,
    };
    let sampling = Sampling {
        address_modes: [1; 3],
        filter_mode: 1,
        flags: 0,
        max_anisotropy: 0,
        mipmap_filter_mode: 0,
        mipmap_level_bias: 0.0,
        min_mipmap_level_clamp: 0.0,
        max_mipmap_level_clamp: 0.0,
        border_color: [0.0; 4],
    };
    let bind = |name: &str, is_surface, resource| {
        session.reference_bind(module, name.to_owned(), is_surface, resource, sampling)
    };
    bind("picture", false, array).unwrap();
    bind("canvas", true, array).unwrap();
    let (kind, address) = (resource_kind::PITCH_2D, DATA);
    let rows = Resource { kind, address, format: 0x20, channels: 1, width: 16, height: 4, pitch: 64 };
    bind("picture", false, rows).unwrap();
    assert_eq!(bind("canvas", true, rows), Err(CudaError::INVALID_VALUE), "a surface shows arrays alone");
    let rows = format!("rows {DATA:#x} 16 4 64");
    let expected = ["filter 1", "array 1", "surface", "filter 1", "format 0x20 1", &rows];
    assert_eq!(session.fake.bound(), expected);
    session.array_destroy(ARRAY).unwrap();
    session.module_unload(module).unwrap();
    session.check_nothing_left();
}
