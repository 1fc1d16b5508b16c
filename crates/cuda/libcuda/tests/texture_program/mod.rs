//! The programs of the tests of arrays and textures.

// The library under test is linked in; its functions are called as any program calls them.
use cuda as _;
use cuda_abi::{
    CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_HOST, CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY2D,
    CUDA_MEMCPY3D, CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{from_mut, from_ref};

type Handle = u64;

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> u32;
    fn cuDevicePrimaryCtxReset_v2(device: i32) -> u32;
    fn cuCtxSetCurrent(context: Handle) -> u32;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32;
    fn cuArrayCreate_v2(array: *mut Handle, given: *const CUDA_ARRAY_DESCRIPTOR) -> u32;
    fn cuArray3DCreate_v2(array: *mut Handle, given: *const CUDA_ARRAY3D_DESCRIPTOR) -> u32;
    fn cuArrayDestroy(array: Handle) -> u32;
    fn cuArray3DGetDescriptor_v2(given: *mut CUDA_ARRAY3D_DESCRIPTOR, array: Handle) -> u32;
    fn cuMipmappedArrayCreate(array: *mut Handle, given: *const CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> u32;
    fn cuMipmappedArrayGetLevel(level: *mut Handle, array: Handle, number: u32) -> u32;
    fn cuMipmappedArrayDestroy(array: Handle) -> u32;
    fn cuMemcpyHtoA_v2(array: Handle, offset: usize, from: *const c_void, bytes: usize) -> u32;
    fn cuMemcpyAtoH_v2(to: *mut c_void, array: Handle, offset: usize, bytes: usize) -> u32;
    fn cuMemcpyAtoD_v2(to: u64, array: Handle, offset: usize, bytes: usize) -> u32;
    fn cuMemcpyDtoA_v2(array: Handle, offset: usize, from: u64, bytes: usize) -> u32;
    fn cuMemcpyAtoA_v2(to: Handle, to_offset: usize, from: Handle, offset: usize, bytes: usize) -> u32;
    fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) -> u32;
    fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: Handle) -> u32;
    fn cuTexObjectCreate(
        texture: *mut u64,
        resource: *const CUDA_RESOURCE_DESC,
        how: *const CUDA_TEXTURE_DESC,
        view: *const CUDA_RESOURCE_VIEW_DESC,
    ) -> u32;
    fn cuTexObjectDestroy(texture: u64) -> u32;
    fn cuTexObjectGetResourceDesc(resource: *mut CUDA_RESOURCE_DESC, texture: u64) -> u32;
    fn cuTexObjectGetTextureDesc(how: *mut CUDA_TEXTURE_DESC, texture: u64) -> u32;
    fn cuTexObjectGetResourceViewDesc(view: *mut CUDA_RESOURCE_VIEW_DESC, texture: u64) -> u32;
    fn cuSurfObjectCreate(surface: *mut u64, resource: *const CUDA_RESOURCE_DESC) -> u32;
    fn cuSurfObjectDestroy(surface: u64) -> u32;
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> u32;
    fn cuModuleUnload(module: Handle) -> u32;
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> u32;
    fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char)
    -> u32;
    fn cuModuleGetTexRef(reference: *mut Handle, module: Handle, name: *const c_char) -> u32;
    fn cuModuleGetSurfRef(reference: *mut Handle, module: Handle, name: *const c_char) -> u32;
    fn cuTexRefSetArray(reference: Handle, array: Handle, flags: u32) -> u32;
    fn cuTexRefGetArray(array: *mut Handle, reference: Handle) -> u32;
    fn cuTexRefSetAddress_v2(offset: *mut usize, reference: Handle, address: u64, bytes: usize) -> u32;
    fn cuTexRefGetAddress_v2(address: *mut u64, reference: Handle) -> u32;
    fn cuTexRefSetFilterMode(reference: Handle, mode: u32) -> u32;
    fn cuTexRefGetFilterMode(mode: *mut u32, reference: Handle) -> u32;
    fn cuTexRefSetAddressMode(reference: Handle, dimension: i32, mode: u32) -> u32;
    fn cuTexRefSetBorderColor(reference: Handle, color: *const f32) -> u32;
    fn cuTexRefGetBorderColor(color: *mut f32, reference: Handle) -> u32;
    fn cuSurfRefSetArray(reference: Handle, array: Handle, flags: u32) -> u32;
    fn cuLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: Handle,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
    fn cuStreamCreate(stream: *mut Handle, flags: u32) -> u32;
    fn cuStreamSynchronize(stream: Handle) -> u32;
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> u32;
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> u32;
    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> u32;
    fn cuGraphMemcpyNodeGetParams(node: Handle, params: *mut CUDA_MEMCPY3D) -> u32;
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> u32;
    fn cuGraphLaunch(exec: Handle, stream: Handle) -> u32;
}

const FLOAT: u32 = 0x20;
const INVALID_VALUE: u32 = 1;
const INVALID_HANDLE: u32 = 400;
const NOT_SUPPORTED: u32 = 801;
const SURFACE: u32 = 2;
const SPARSE: u32 = 0x40;

#[track_caller]
fn good(code: u32) {
    assert_eq!(code, 0);
}

/// What a call gives through its first argument.
#[track_caller]
fn made<T: Default>(make: impl FnOnce(*mut T) -> u32) -> T {
    let mut value = T::default();
    good(make(&mut value));
    value
}

fn given(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format: FLOAT, num_channels: 1, flags }
}

fn array(width: usize, height: usize, flags: u32) -> Handle {
    let given = given(width, height, 0, flags);
    // SAFETY: both pointers are good for the call.
    made(|array| unsafe { cuArray3DCreate_v2(array, &given) })
}

fn begin() {
    // SAFETY: as in every call below, pointers are null or good for the call.
    unsafe {
        good(cuInit(0));
        good(cuCtxSetCurrent(made(|context| cuDevicePrimaryCtxRetain(context, 0))));
    }
}

fn write(array: Handle, offset: usize, values: &[f32]) {
    // SAFETY: as above.
    good(unsafe { cuMemcpyHtoA_v2(array, offset, values.as_ptr().cast(), size_of_val(values)) });
}

fn read(array: Handle, offset: usize, count: usize) -> Vec<f32> {
    let mut values = vec![0f32; count];
    // SAFETY: as above.
    good(unsafe { cuMemcpyAtoH_v2(values.as_mut_ptr().cast(), array, offset, count * 4) });
    values
}

fn rows() {
    let (one, two) = (array(64, 0, 0), array(64, 0, 0));
    let values: Vec<f32> = (0..64).map(|at| at as f32 * 0.5).collect();
    write(one, 0, &values);
    // SAFETY: as above.
    unsafe {
        let memory = made(|address| cuMemAlloc_v2(address, 256));
        good(cuMemcpyAtoD_v2(memory, one, 16, 240));
        good(cuMemcpyDtoA_v2(two, 0, memory, 240));
        good(cuMemcpyAtoA_v2(two, 240, one, 0, 16));
        let mut word = 0f32;
        good(cuMemcpyDtoH_v2(from_mut(&mut word).cast(), memory + 4, 4));
        assert_eq!(word, values[5]);
    }
    let turned: Vec<f32> = values[4..].iter().chain(&values[..4]).copied().collect();
    assert_eq!(read(two, 0, 64), turned);
    assert_eq!(read(two, 8, 3), turned[2..5]);
    let mut seen = CUDA_ARRAY3D_DESCRIPTOR::default();
    // SAFETY: as above.
    unsafe {
        good(cuArray3DGetDescriptor_v2(&mut seen, one));
        assert_eq!(seen, given(64, 0, 0, 0));
        good(cuArrayDestroy(one));
        assert_eq!(cuArray3DGetDescriptor_v2(&mut seen, one), INVALID_HANDLE);
        assert_eq!(cuArrayDestroy(one), INVALID_HANDLE);
        good(cuArrayDestroy(two));
    }
}

fn levels() {
    // SAFETY: as above.
    unsafe {
        let given = given(16, 8, 0, 0);
        let mipmap: Handle = made(|array| cuMipmappedArrayCreate(array, &given, 99));
        let level = |number| made(|level: *mut Handle| cuMipmappedArrayGetLevel(level, mipmap, number));
        assert_eq!(level(2), level(2), "one handle for a level");
        let mut seen = CUDA_ARRAY3D_DESCRIPTOR::default();
        good(cuArray3DGetDescriptor_v2(&mut seen, level(2)));
        assert_eq!((seen.width, seen.height), (4, 2));
        let mut none = 0;
        assert_eq!(cuMipmappedArrayGetLevel(&mut none, mipmap, 5), INVALID_VALUE, "16 has five levels");
        for number in 0..5 {
            write(level(number), 0, &[number as f32 + 0.5]);
        }
        for number in 0..5 {
            assert_eq!(read(level(number), 0, 1), [number as f32 + 0.5]);
        }
        let of = level(1);
        assert_eq!(cuArrayDestroy(of), INVALID_VALUE, "it goes with the whole");
        good(cuMipmappedArrayDestroy(mipmap));
        assert_eq!(cuArray3DGetDescriptor_v2(&mut seen, of), INVALID_HANDLE);
        assert_eq!(cuMipmappedArrayDestroy(mipmap), INVALID_HANDLE);
    }
}

fn of_array(array: Handle) -> CUDA_RESOURCE_DESC {
    let mut resource = CUDA_RESOURCE_DESC::default();
    resource.res[0] = array;
    resource
}

fn objects() {
    let array = array(16, 8, SURFACE);
    let how = CUDA_TEXTURE_DESC { address_mode: [1; 3], filter_mode: 1, ..CUDA_TEXTURE_DESC::default() };
    let view = CUDA_RESOURCE_VIEW_DESC { format: 0x16, width: 16, height: 8, ..Default::default() };
    let resource = of_array(array);
    // SAFETY: as above.
    unsafe {
        let plain: u64 = made(|texture| cuTexObjectCreate(texture, &resource, &how, std::ptr::null()));
        let viewed: u64 = made(|texture| cuTexObjectCreate(texture, &resource, &how, &view));
        assert!(plain != 0 && plain != viewed);
        let (mut asked, mut said) = (CUDA_RESOURCE_DESC::default(), CUDA_TEXTURE_DESC::default());
        let mut seen = CUDA_RESOURCE_VIEW_DESC::default();
        good(cuTexObjectGetResourceDesc(&mut asked, plain));
        good(cuTexObjectGetTextureDesc(&mut said, plain));
        assert_eq!((asked, said), (resource, how));
        good(cuTexObjectGetResourceViewDesc(&mut seen, plain));
        assert_eq!(seen, CUDA_RESOURCE_VIEW_DESC::default(), "it has none");
        good(cuTexObjectGetResourceViewDesc(&mut seen, viewed));
        assert_eq!(seen, view);
        let surface: u64 = made(|surface| cuSurfObjectCreate(surface, &resource));
        good(cuTexObjectDestroy(plain));
        assert_eq!(cuTexObjectDestroy(plain), INVALID_VALUE);
        good(cuTexObjectDestroy(0));
        assert_eq!(cuTexObjectGetTextureDesc(&mut said, plain), INVALID_VALUE);
        good(cuTexObjectDestroy(viewed));
        good(cuSurfObjectDestroy(surface));
        good(cuArrayDestroy(array));
    }
}

/// A copy of the whole of a 16 x 8 array from or to host rows.
fn copy(array: Handle, host: u64, is_in: bool) -> CUDA_MEMCPY2D {
    let mut copy = CUDA_MEMCPY2D { width_in_bytes: 64, height: 8, ..CUDA_MEMCPY2D::default() };
    if is_in {
        (copy.src_memory_type, copy.src_host, copy.src_pitch) = (CU_MEMORYTYPE_HOST, host, 64);
        (copy.dst_memory_type, copy.dst_array) = (CU_MEMORYTYPE_ARRAY, array);
    } else {
        (copy.src_memory_type, copy.src_array) = (CU_MEMORYTYPE_ARRAY, array);
        (copy.dst_memory_type, copy.dst_host, copy.dst_pitch) = (CU_MEMORYTYPE_HOST, host, 64);
    }
    copy
}

fn graph() {
    let (one, two) = (array(16, 8, 0), array(16, 8, 0));
    let mut values: Vec<f32> = (0..128).map(|at| at as f32).collect();
    let mut back = vec![0f32; 128];
    let (source, target) = (values.as_ptr() as u64, back.as_mut_ptr() as u64);
    // SAFETY: as above; the vectors live until the stream has passed.
    unsafe {
        let stream: Handle = made(|stream| cuStreamCreate(stream, 1));
        good(cuStreamBeginCapture_v2(stream, 0));
        good(cuMemcpy2DAsync_v2(&copy(one, source, true), stream));
        let mut between = copy(one, 0, false);
        between.src_y = 2;
        between.height = 4;
        (between.dst_memory_type, between.dst_array, between.dst_y) = (CU_MEMORYTYPE_ARRAY, two, 4);
        good(cuMemcpy2DAsync_v2(&between, stream));
        good(cuMemcpy2DAsync_v2(&copy(two, target, false), stream));
        let graph = made(|graph| cuStreamEndCapture(stream, graph));
        let (mut nodes, mut count) = ([0; 3], 3);
        good(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
        let told =
            nodes.map(|node| made(|params: *mut CUDA_MEMCPY3D| cuGraphMemcpyNodeGetParams(node, params)));
        let is_between = |told: &&CUDA_MEMCPY3D| told.src_memory_type == told.dst_memory_type;
        let told = told.iter().find(is_between).expect("one copy is between arrays");
        assert_eq!((told.src_memory_type, told.src_array, told.dst_array), (CU_MEMORYTYPE_ARRAY, one, two));
        assert_eq!((told.src_y, told.dst_y, told.height), (2, 4, 4));
        let exec = made(|exec| cuGraphInstantiateWithFlags(exec, graph, 0));
        for round in 1..=3 {
            values.iter_mut().for_each(|value| *value += round as f32);
            good(cuGraphLaunch(exec, stream));
            good(cuStreamSynchronize(stream));
            assert_eq!(back[64..], values[32..96], "round {round}");
            assert_eq!(back[..64], [0f32; 64]);
        }
    }
}

fn mistakes() {
    let one = array(16, 8, 0);
    let values = [0f32; 128];
    let host = values.as_ptr() as u64;
    let create = |given: CUDA_ARRAY3D_DESCRIPTOR| {
        let mut none = 0;
        // SAFETY: as above.
        unsafe { cuArray3DCreate_v2(&mut none, &given) }
    };
    assert_eq!(create(given(0, 0, 0, 0)), INVALID_VALUE);
    assert_eq!(create(given(1 << 20, 0, 0, 0)), INVALID_VALUE);
    assert_eq!(create(given(16, 8, 6, 4)), INVALID_VALUE, "no cube");
    assert_eq!(create(given(16, 8, 0, SPARSE)), NOT_SUPPORTED);
    assert_eq!(create(given(16384, 16384, 2, 0)), 2, "more memory than there is");
    // SAFETY: as above.
    unsafe {
        let three = CUDA_ARRAY_DESCRIPTOR { width: 16, height: 8, format: FLOAT, num_channels: 3 };
        let mut none = 0;
        assert_eq!(cuArrayCreate_v2(&mut none, &three), INVALID_VALUE);
        assert_eq!(cuArrayCreate_v2(std::ptr::null_mut(), &three), INVALID_VALUE);
        let mut past = copy(one, host, true);
        past.dst_x_in_bytes = 4;
        assert_eq!(cuMemcpy2D_v2(&past), INVALID_VALUE, "past the row");
        let mut past = copy(one, host, true);
        past.dst_y = 1;
        assert_eq!(cuMemcpy2D_v2(&past), INVALID_VALUE, "past the rows");
        let mut odd = copy(one, host, true);
        (odd.width_in_bytes, odd.dst_x_in_bytes) = (8, 2);
        good(cuMemcpy2D_v2(&CUDA_MEMCPY2D { height: 1, ..odd }));
        assert_eq!(cuMemcpy2D_v2(&copy(0, host, true)), INVALID_VALUE, "null is another mistake");
        assert_eq!(cuMemcpy2D_v2(&copy(77, host, true)), INVALID_HANDLE);
        assert_eq!(cuMemcpyHtoA_v2(one, 0, values.as_ptr().cast(), 68), INVALID_VALUE, "more than a row");
        assert_eq!(cuMemcpyHtoA_v2(one, 64, values.as_ptr().cast(), 4), INVALID_VALUE, "another row");
        let object: u64 = made(|object| cuSurfObjectCreate(object, &of_array(one)));
        good(cuSurfObjectDestroy(object));
        let how = CUDA_TEXTURE_DESC::default();
        let texture = |resource: &CUDA_RESOURCE_DESC, how: &CUDA_TEXTURE_DESC| {
            let mut texture = 0;
            cuTexObjectCreate(&mut texture, from_ref(resource), from_ref(how), std::ptr::null())
        };
        assert_eq!(texture(&CUDA_RESOURCE_DESC { res_type: 4, ..of_array(one) }, &how), INVALID_VALUE);
        assert_eq!(texture(&of_array(77), &how), INVALID_HANDLE);
        assert_eq!(texture(&of_array(one), &CUDA_TEXTURE_DESC { filter_mode: 2, ..how }), INVALID_VALUE);
        let memory = made(|address| cuMemAlloc_v2(address, 4096));
        let linear = |address: u64, bytes: u64| {
            let mut resource = CUDA_RESOURCE_DESC { res_type: 2, ..CUDA_RESOURCE_DESC::default() };
            resource.res[..3].copy_from_slice(&[address, u64::from(FLOAT) | 1 << 32, bytes]);
            resource
        };
        assert_eq!(texture(&linear(memory, 4096), &how), 0);
        assert_eq!(texture(&linear(memory + 4, 64), &how), INVALID_VALUE, "not aligned");
        good(texture(&linear(memory, 8192), &how));
        assert_eq!(texture(&linear(host, 64), &how), INVALID_VALUE, "memory of the host");
        good(texture(&linear(memory, 0), &how));
    }
    write(one, 0, &[7.0]);
    assert_eq!(read(one, 0, 1), [7.0], "nothing was harmed");
}

fn contexts() {
    let free = || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: as above.
        good(unsafe { cuMemGetInfo_v2(&mut free, &mut total) });
        free
    };
    let before = free();
    let one = array(4096, 1024, 0);
    assert!(before - free() >= 16 << 20);
    // SAFETY: as above.
    unsafe {
        good(cuDevicePrimaryCtxReset_v2(0));
        good(cuCtxSetCurrent(made(|context| cuDevicePrimaryCtxRetain(context, 0))));
        let mut seen = CUDA_ARRAY3D_DESCRIPTOR::default();
        assert_eq!(cuArray3DGetDescriptor_v2(&mut seen, one), INVALID_HANDLE);
    }
    assert_eq!(free(), before);
    let two = array(64, 0, 0);
    write(two, 0, &[1.0, 2.0]);
    assert_eq!(read(two, 4, 1), [2.0], "its name was another array's");
}

fn devices() {
    let one = array(16, 8, 0);
    let values: Vec<f32> = (0..128).map(|at| at as f32).collect();
    let mut back = vec![0f32; 128];
    // SAFETY: as above.
    unsafe {
        good(cuMemcpy2D_v2(&copy(one, values.as_ptr() as u64, true)));
        let context: Handle = made(|context| cuDevicePrimaryCtxRetain(context, 1));
        good(cuCtxSetCurrent(context));
        let two = array(16, 8, 0);
        let mut between = copy(one, 0, false);
        (between.dst_memory_type, between.dst_array) = (CU_MEMORYTYPE_ARRAY, two);
        good(cuMemcpy2D_v2(&between));
        good(cuMemcpy2D_v2(&copy(two, back.as_mut_ptr() as u64, false)));
        let stream: Handle = made(|stream| cuStreamCreate(stream, 1));
        good(cuStreamBeginCapture_v2(stream, 0));
        good(cuMemcpy2DAsync_v2(&between, stream));
        let graph = made(|graph| cuStreamEndCapture(stream, graph));
        let mut exec = 0;
        assert_eq!(
            cuGraphInstantiateWithFlags(&mut exec, graph, 0),
            NOT_SUPPORTED,
            "no driver has such a node"
        );
    }
    assert_eq!(back, values);
}

/// Reads a row of `picture` at x + 0.25 and adds one to `canvas`.
const REFERENCES: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.global .texref picture;
.global .surfref canvas;
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    cvt.rn.f32.u32 %f1, %r1;
    add.f32 %f1, %f1, 0f3F400000;
    mov.f32 %f2, 0f3FC00000;
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1, %f2}];
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.f32 [%rd3], %f3;
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, 1;
    suld.b.2d.b32.trap {%r4}, [canvas, {%r2, %r3}];
    mov.b32 %f7, %r4;
    add.f32 %f7, %f7, 0f3F800000;
    mov.b32 %r5, %f7;
    sust.b.2d.b32.trap [canvas, {%r2, %r3}], {%r5};
    ret;
}
";

fn references() {
    let array = array(4, 2, SURFACE);
    let values = [1f32, 2.0, 4.0, 8.0];
    let row = CUDA_MEMCPY2D {
        width_in_bytes: 16,
        height: 1,
        dst_y: 1,
        ..copy(array, values.as_ptr() as u64, true)
    };
    // SAFETY: as above.
    good(unsafe { cuMemcpy2D_v2(&row) });
    // SAFETY: as above.
    unsafe {
        let module: Handle = made(|module| cuModuleLoadData(module, REFERENCES.as_ptr().cast()));
        let function = made(|function| cuModuleGetFunction(function, module, c"k".as_ptr()));
        let (mut none, mut address, mut bytes) = (0, 0, 0);
        let global = cuModuleGetGlobal_v2(&mut address, &mut bytes, module, c"picture".as_ptr());
        assert_eq!(global, 500, "a reference is no variable");
        assert_eq!(cuModuleGetTexRef(&mut none, module, c"no such".as_ptr()), 500);
        let picture = || made(|reference| cuModuleGetTexRef(reference, module, c"picture".as_ptr()));
        let (texture, surface) =
            (picture(), made(|reference| cuModuleGetSurfRef(reference, module, c"canvas".as_ptr())));
        assert_eq!(texture, picture(), "one handle for a reference");
        assert_eq!(cuTexRefGetArray(&mut none, texture), INVALID_VALUE, "nothing is bound yet");
        good(cuTexRefSetArray(texture, array, 1));
        good(cuSurfRefSetArray(surface, array, 0));
        assert_eq!(made(|array| cuTexRefGetArray(array, texture)), array);
        assert_eq!(cuTexRefGetAddress_v2(&mut address, texture), INVALID_VALUE, "an array is bound");
        let out: u64 = made(|address| cuMemAlloc_v2(address, 16));
        let sampled = || {
            let mut argument = out;
            let mut arguments = [from_mut(&mut argument).cast::<c_void>()];
            good(cuLaunchKernel(
                function,
                1,
                1,
                1,
                4,
                1,
                1,
                0,
                0,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            ));
            let mut values = [0f32; 4];
            good(cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), out, 16));
            values
        };
        assert_eq!(sampled(), [1.0, 2.0, 4.0, 8.0]);
        good(cuTexRefSetFilterMode(texture, 1));
        assert_eq!(made(|mode: *mut u32| cuTexRefGetFilterMode(mode, texture)), 1);
        assert_eq!(sampled(), [2.25, 3.5, 6.0, 9.0], "blended, after the surface was written");
        good(cuTexRefSetBorderColor(texture, [5.0, 6.0, 7.0, 8.0].as_ptr()));
        good(cuTexRefSetAddressMode(texture, 0, 3));
        assert_eq!(sampled()[3], 10.0 * 0.75 + 5.0 * 0.25, "the border");
        let mut color = [0f32; 4];
        good(cuTexRefGetBorderColor(color.as_mut_ptr(), texture));
        assert_eq!(color, [5.0, 6.0, 7.0, 8.0]);
        assert_eq!(cuTexRefSetAddressMode(texture, 3, 0), INVALID_VALUE);
        good(cuTexRefSetFilterMode(texture, 2));
        let memory: u64 = made(|address| cuMemAlloc_v2(address, 4096));
        let mut offset = 0;
        good(cuTexRefSetAddress_v2(&mut offset, texture, memory + 516, 64));
        assert_eq!(offset, 4, "it begins where textures are aligned");
        assert_eq!(cuTexRefSetAddress_v2(std::ptr::null_mut(), texture, memory + 4, 64), INVALID_VALUE);
        good(cuModuleUnload(module));
        assert_eq!(cuTexRefSetFilterMode(texture, 0), INVALID_HANDLE);
    }
}

pub(crate) fn run(plan: &str) {
    begin();
    match plan {
        "rows" => rows(),
        "levels" => levels(),
        "objects" => objects(),
        "graph" => graph(),
        "mistakes" => mistakes(),
        "contexts" => contexts(),
        "devices" => devices(),
        "references" => references(),
        other => panic!("no plan {other}"),
    }
}
