//! Arrays, textures and surfaces.

mod common;

use common::*;
use cuda_abi::CudaError;
use cuda_wire::*;

const ARRAY: ArrayId = ArrayId(5);

fn floats(width: u64, height: u64, depth: u64) -> ArrayInfo {
    ArrayInfo { format: array_kind::FLOAT, channels: 1, width, height, depth, flags: 0, levels: 0 }
}

fn whole(info: &ArrayInfo, level: u32) -> (Plane, Shape) {
    let extent = info.extent(level).unwrap();
    let (width, height, depth) = (extent.row_bytes, extent.rows, extent.slices);
    (extent.plane(ARRAY.address() + info.level_offset(level).unwrap()), Shape { width, height, depth })
}

fn resource(kind: u32, address: u64) -> Resource {
    Resource { kind, address, format: 0, channels: 0, width: 0, height: 0, pitch: 0 }
}

fn sampling() -> Sampling {
    Sampling {
        address_modes: [1; 3],
        filter_mode: 0,
        flags: 0,
        max_anisotropy: 0,
        mipmap_filter_mode: 0,
        mipmap_level_bias: 0.0,
        min_mipmap_level_clamp: 0.0,
        max_mipmap_level_clamp: 100.0,
        border_color: [0.0; 4],
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn bytes_go_in_and_come_out_in_every_way() {
    let session = Session::new();
    let info = floats(300, 70, 2);
    session.driver.array_create(ARRAY, CONTEXT, info).unwrap();
    let (plane, shape) = whole(&info, 0);
    let data: Vec<u8> = (0..shape.bytes().unwrap()).map(|at| (at % 251) as u8).collect();
    session.link.push(TransferId(1), &data);
    let pushed = HostData::Pushed { transfer: TransferId(1) };
    session.driver.enqueue(LEGACY, Op::CopyIn { target: plane, shape, data: pushed }).unwrap();
    let memory = session.alloc(data.len() as u64 * 2);
    let beside = Plane { address: memory, row_pitch: 2048, slice_pitch: 2048 * 70 };
    session.driver.enqueue(LEGACY, Op::CopyDevice { target: beside, source: plane, shape }).unwrap();
    session.driver.enqueue(LEGACY, Op::CopyOut { source: plane, shape, transfer: TransferId(2) }).unwrap();
    let row = session.driver.read_back(LEGACY, Plane::line(memory + 2048 * 71), Shape::line(1200)).unwrap();
    assert_eq!(row, data[1200 * 71..1200 * 72]);
    assert_eq!(session.link.sent(TransferId(2)).unwrap(), data);
    let inside = Plane { address: plane.address + 1200 + 8, ..plane };
    let part = session.driver.read_back(LEGACY, inside, Shape { width: 4, height: 2, depth: 1 }).unwrap();
    assert_eq!(part, [&data[1208..1212], &data[2408..2412]].concat());
    let past = session.driver.read_back(LEGACY, inside, Shape::line(1200));
    assert_eq!(past, Err(CudaError::INVALID_VALUE));
    session.driver.array_destroy(ARRAY).unwrap();
    let gone = session.driver.read_back(LEGACY, plane, Shape::line(4));
    assert_eq!(gone, Err(CudaError::INVALID_HANDLE));
    assert_eq!(session.driver.array_destroy(ARRAY), Err(CudaError::INVALID_HANDLE));
}

#[test]
fn memory_of_arrays_is_counted_and_comes_back() {
    let session = Session::new();
    let free = || session.driver.memory_info(0).unwrap().0;
    let (before, info) = (free(), floats(4096, 4096, 4));
    session.driver.array_create(ARRAY, CONTEXT, info).unwrap();
    assert_eq!(before - free(), 256 << 20);
    let large = session.driver.array_create(ArrayId(6), CONTEXT, floats(4096, 4096, 16));
    assert_eq!(large, Err(CudaError::OUT_OF_MEMORY));
    session.driver.array_destroy(ARRAY).unwrap();
    assert_eq!(free(), before);
    session.driver.array_create(ARRAY, CONTEXT, info).unwrap();
    session.driver.context_reset(CONTEXT).unwrap();
    assert_eq!(free(), before);
    let none = ArrayInfo { channels: 3, ..info };
    assert_eq!(session.driver.array_create(ARRAY, CONTEXT, none), Err(CudaError::INVALID_VALUE));
}

/// Writes `tex2D(texture, x, y)` for each thread, then adds one to the surface at the same place.
const KERNEL: &[u8] = b".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 texture, .param .u64 surface) {
    .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [texture];
    ld.param.u64 %rd3, [surface];
    mov.u32 %r1, %tid.x;
    cvt.rn.f32.u32 %f1, %r1;
    mov.f32 %f2, 0f3FC00000;
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd2, {%f1, %f2}];
    mul.wide.u32 %rd4, %r1, 4;
    add.s64 %rd5, %rd1, %rd4;
    st.global.f32 [%rd5], %f3;
    setp.eq.u64 %p1, %rd3, 0;
    @%p1 ret;
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, 1;
    suld.b.2d.b32.trap {%r4}, [%rd3, {%r2, %r3}];
    mov.b32 %f7, %r4;
    add.f32 %f7, %f7, 0f3F800000;
    mov.b32 %r5, %f7;
    sust.b.2d.b32.trap [%rd3, {%r2, %r3}], {%r5};
    ret;
}
\0";

fn sampled(session: &Session, texture: u64, surface: u64) -> Vec<f32> {
    let out = session.alloc(16);
    let arguments = parameters(&[out, texture, surface]);
    session.driver.enqueue(LEGACY, launch(1, 0, 1, 4, &arguments)).unwrap();
    session.words(LEGACY, out, 4).into_iter().map(f32::from_bits).collect()
}

#[test]
fn kernels_read_textures_and_write_surfaces() {
    let session = Session::new();
    session.load(1, KERNEL).unwrap();
    let info = floats(4, 2, 0);
    session.driver.array_create(ARRAY, CONTEXT, info).unwrap();
    let (plane, shape) = whole(&info, 0);
    let values = bytes_of(&[0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0]);
    let data = HostData::Inline { bytes: Bytes(&values) };
    session.driver.enqueue(LEGACY, Op::CopyIn { target: plane, shape, data }).unwrap();
    let array = resource(resource_kind::ARRAY, ARRAY.address());
    let linear = Sampling { filter_mode: 1, ..sampling() };
    let nearest = session.driver.texture_create(SamplerId(1), CONTEXT, array, sampling(), None).unwrap();
    let blended = session.driver.texture_create(SamplerId(2), CONTEXT, array, linear, None).unwrap();
    let surface = session.driver.surface_create(SamplerId(3), CONTEXT, array).unwrap();
    assert_eq!(sampled(&session, nearest, 0), [1.0, 2.0, 4.0, 8.0]);
    assert_eq!(sampled(&session, blended, surface), [1.0, 1.5, 3.0, 6.0]);
    assert_eq!(sampled(&session, nearest, 0), [2.0, 3.0, 5.0, 9.0], "the surface was written");
    // What was launched before the end of an object may use it.
    let (memory, stream) = (session.alloc_with(&[0; 16]), session.stream(1));
    let out = session.alloc(16);
    session.wait_value(stream, memory, 1);
    let arguments = parameters(&[out, nearest, 0]);
    session.driver.enqueue(stream, launch(1, 0, 1, 4, &arguments)).unwrap();
    for sampler in 1..=3 {
        session.driver.sampler_destroy(SamplerId(sampler)).unwrap();
    }
    session.driver.array_destroy(ARRAY).unwrap();
    session.write_value(LEGACY, memory, 1);
    let words = session.words(stream, out, 4).into_iter().map(f32::from_bits).collect::<Vec<_>>();
    assert_eq!(words, [2.0, 3.0, 5.0, 9.0]);
    assert_eq!(session.driver.sampler_destroy(SamplerId(1)), Err(CudaError::INVALID_HANDLE));
    let arguments = parameters(&[out, nearest, 0]);
    session.driver.enqueue(LEGACY, launch(1, 0, 1, 4, &arguments)).unwrap();
    assert_eq!(session.driver.stream_synchronize(LEGACY), Err(CudaError::ILLEGAL_ADDRESS));
}

#[test]
fn memory_levels_and_views_are_read_too() {
    let session = Session::new();
    session.load(1, KERNEL).unwrap();
    let driver = &session.driver;
    let info = ArrayInfo { levels: 2, ..floats(8, 4, 0) };
    driver.array_create(ARRAY, CONTEXT, info).unwrap();
    let (plane, shape) = whole(&info, 1);
    let values = bytes_of(&[0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 7.0, 8.0]);
    let data = HostData::Inline { bytes: Bytes(&values) };
    driver.enqueue(LEGACY, Op::CopyIn { target: plane, shape, data }).unwrap();
    let level = resource(resource_kind::ARRAY, plane.address);
    let texture = driver.texture_create(SamplerId(1), CONTEXT, level, sampling(), None).unwrap();
    assert_eq!(sampled(&session, texture, 0), [5.0, 6.0, 7.0, 8.0], "a level by itself");
    let all = resource(resource_kind::MIPMAPPED_ARRAY, ARRAY.address());
    let second = Sampling { min_mipmap_level_clamp: 1.0, ..sampling() };
    let texture = driver.texture_create(SamplerId(2), CONTEXT, all, second, None).unwrap();
    assert_eq!(sampled(&session, texture, 0), [5.0, 6.0, 7.0, 8.0], "the level that the clamp leaves");
    let view = ResourceView {
        format: 0x0d,
        width: 4,
        height: 2,
        depth: 0,
        first_level: 1,
        last_level: 1,
        first_layer: 0,
        last_layer: 0,
    };
    let texture = driver.texture_create(SamplerId(3), CONTEXT, all, sampling(), Some(view)).unwrap();
    assert_eq!(sampled(&session, texture, 0)[3].to_bits(), 8f32.to_bits(), "floats as words");
    let wider = ResourceView { format: 0x0e, ..view };
    let refused = driver.texture_create(SamplerId(4), CONTEXT, all, sampling(), Some(wider));
    assert_eq!(refused, Err(CudaError::INVALID_VALUE), "elements of another size");
    let memory = session.alloc_with(&values);
    let rows = Resource {
        format: array_kind::FLOAT,
        channels: 1,
        width: 4,
        height: 2,
        pitch: 16,
        ..resource(resource_kind::PITCH_2D, memory)
    };
    let texture = driver.texture_create(SamplerId(5), CONTEXT, rows, sampling(), None).unwrap();
    assert_eq!(sampled(&session, texture, 0), [5.0, 6.0, 7.0, 8.0], "rows of memory");
}
