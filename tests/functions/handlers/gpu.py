"""A handler that uses the CUDA driver through ctypes: it adds two vectors on the GPU, once or for a while, and takes as much
memory as it is told."""

import ctypes
import hashlib
import time

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c)
{
    .reg .b64 %rd<10>;
    .reg .b32 %r<4>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd4, %r1, 4;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
    ret;
}
\0"""

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
function = ctypes.c_void_p()


def check(code):
    if code:
        raise RuntimeError(f"CUDA error {code}")


def prepare():
    """Once for an instance."""
    check(cuda.cuInit(0))
    device, module = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"add"))


prepare()


def allocate(size):
    pointer = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
    return code, pointer


def keep_adding(rounds):
    """Adds a vector to a sum that stays on the GPU: the digest of it, and how long the longest round took."""
    count, size = 1024, ctypes.c_size_t(4096)
    Vector = ctypes.c_float * count
    places = []
    for numbers in (Vector(*[1 / (n + 3) for n in range(count)]), Vector(*[1 / (n + 7) for n in range(count)])):
        code, pointer = allocate(4 * count)
        check(code)
        check(cuda.cuMemcpyHtoD_v2(pointer, numbers, size))
        places.append(pointer)
    each, total = places
    arguments = (ctypes.c_void_p * 3)(*[ctypes.addressof(place) for place in (each, total, total)])
    longest = 0.0
    for _ in range(rounds):
        began = time.monotonic()
        check(cuda.cuLaunchKernel(function, 1, 1, 1, count, 1, 1, 0, None, arguments, None))
        check(cuda.cuCtxSynchronize())
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.01)
    result = Vector()
    check(cuda.cuMemcpyDtoH_v2(result, total, size))
    for place in places:
        check(cuda.cuMemFree_v2(place))
    return {"digest": hashlib.sha256(bytes(result)).hexdigest(), "longest": longest}


def handler(event, _context):
    check(cuda.cuCtxSetCurrent(context))
    if "rounds" in event:
        return keep_adding(event["rounds"])
    if "hold_mb" in event:
        code, pointer = allocate(event["hold_mb"] << 20)
        time.sleep(event["seconds"])
        if code == 0:
            check(cuda.cuMemFree_v2(pointer))
        return {"code": code, "ended": time.time()}
    if "take_mb" in event:
        code, pointer = allocate(event["take_mb"] << 20)
        if code == 0:
            check(cuda.cuMemFree_v2(pointer))
        return {"code": code}
    count = 32
    Vector = ctypes.c_float * count
    a, b, c = Vector(*event["a"]), Vector(*event["b"]), Vector()
    places = []
    for _ in range(3):
        code, pointer = allocate(4 * count)
        check(code)
        places.append(pointer)
    check(cuda.cuMemcpyHtoD_v2(places[0], a, ctypes.c_size_t(4 * count)))
    check(cuda.cuMemcpyHtoD_v2(places[1], b, ctypes.c_size_t(4 * count)))
    arguments = (ctypes.c_void_p * 3)(*[ctypes.addressof(place) for place in places])
    check(cuda.cuLaunchKernel(function, 1, 1, 1, count, 1, 1, 0, None, arguments, None))
    check(cuda.cuMemcpyDtoH_v2(c, places[2], ctypes.c_size_t(4 * count)))
    for place in places:
        check(cuda.cuMemFree_v2(place))
    return {"sum": list(c)}
