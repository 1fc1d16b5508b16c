"""What a CUDA driver answers, as text: one line per call, the same on every correct driver.

Run it on NVIDIA's driver and through dxpu, and compare. It uses nothing but ctypes and libcuda.so.1. Values that differ
between machines (addresses, names, sizes) are shown as properties, never as themselves.
"""
import ctypes as c
import sys

cuda = c.CDLL("libcuda.so.1")
P, U64, SZ, U32, I32, F32 = c.c_void_p, c.c_uint64, c.c_size_t, c.c_uint, c.c_int, c.c_float
ref = c.byref


def show(label, code, *values):
    print(label, "->", code, *values)
    sys.stdout.flush()
    return code


def section(name):
    print(f"\n[{name}]")


def ok(code):
    if code != 0:
        show("a call that must succeed", code)


def u64(x):
    return U64(x)


def dptr():
    return U64(0)


def cstr(code, what):
    text = c.c_char_p()
    r = what(code, ref(text))
    return r, text.value


PTX = rb"""
.version 7.0
.target sm_70
.address_size 64
.visible .const .align 4 .b8 table[16];
.visible .global .align 4 .u32 counter = 7;
.visible .entry store(.param .u64 target, .param .u32 value, .param .u32 count)
{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [target];
    ld.param.u32 %r1, [value];
    ld.param.u32 %r2, [count];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra DONE;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd3, %rd1, %rd2;
    add.u32 %r7, %r1, %r6;
    st.global.u32 [%rd3], %r7;
DONE:
    ret;
}
.visible .entry bounded(.param .u64 a, .param .u8 b, .param .align 8 .b8 s[24]) .maxntid 64, 1, 1
{
    ret;
}
.visible .entry shared_user()
{
    .shared .align 4 .b8 buffer[4096];
    .reg .b32 %r<2>;
    mov.u32 %r1, 1;
    st.shared.u32 [buffer], %r1;
    ret;
}
.visible .entry wild()
{
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    mov.u64 %rd1, 4096;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""

section("before cuInit")
n, v = I32(-7), I32(-7)
show("cuDeviceGetCount", cuda.cuDeviceGetCount(ref(n)), n.value)
ctx = P()
show("cuCtxGetCurrent", cuda.cuCtxGetCurrent(ref(ctx)))
show("cuCtxSynchronize", cuda.cuCtxSynchronize())
d = dptr()
show("cuMemAlloc", cuda.cuMemAlloc_v2(ref(d), SZ(16)))
show("cuDriverGetVersion", cuda.cuDriverGetVersion(ref(v)), v.value >= 12000)
show("cuDriverGetVersion null", cuda.cuDriverGetVersion(None))
for code in (0, 1, 2, 100, 700, 719, 999, 12345):
    show(f"cuGetErrorName {code}", *cstr(code, cuda.cuGetErrorName))
    show(f"cuGetErrorString {code}", *cstr(code, cuda.cuGetErrorString))
show("cuInit 1", cuda.cuInit(1))
show("cuInit 0", cuda.cuInit(0))
show("cuInit again", cuda.cuInit(0))

section("devices")
show("cuDeviceGetCount", cuda.cuDeviceGetCount(ref(n)), n.value >= 1)
count = n.value
show("cuDeviceGetCount null", cuda.cuDeviceGetCount(None))
dev = I32(-1)
show("cuDeviceGet 0", cuda.cuDeviceGet(ref(dev), 0), dev.value)
show("cuDeviceGet -1", cuda.cuDeviceGet(ref(dev), -1))
show("cuDeviceGet past", cuda.cuDeviceGet(ref(dev), count))
name = c.create_string_buffer(64)
show("cuDeviceGetName", cuda.cuDeviceGetName(name, 64, 0), len(name.value) > 0)
show("cuDeviceGetName short", cuda.cuDeviceGetName(name, 4, 0), len(name.value))
show("cuDeviceGetName device", cuda.cuDeviceGetName(name, 64, 99))
show("cuDeviceGetAttribute warp", cuda.cuDeviceGetAttribute(ref(v), 10, 0), v.value)
show("cuDeviceGetAttribute 0", cuda.cuDeviceGetAttribute(ref(v), 0, 0))
show("cuDeviceGetAttribute 9999", cuda.cuDeviceGetAttribute(ref(v), 9999, 0))
show("cuDeviceGetAttribute null", cuda.cuDeviceGetAttribute(None, 10, 0))
show("cuDeviceGetAttribute device", cuda.cuDeviceGetAttribute(ref(v), 10, 99))
size = SZ()
show("cuDeviceTotalMem", cuda.cuDeviceTotalMem_v2(ref(size), 0), size.value > 1 << 20)
pci = c.create_string_buffer(32)
show("cuDeviceGetPCIBusId", cuda.cuDeviceGetPCIBusId(pci, 32, 0), len(pci.value))
show("cuDeviceGetByPCIBusId", cuda.cuDeviceGetByPCIBusId(ref(dev), pci), dev.value)
show("cuDeviceGetByPCIBusId bad", cuda.cuDeviceGetByPCIBusId(ref(dev), b"nonsense"))
show("cuDeviceCanAccessPeer self", cuda.cuDeviceCanAccessPeer(ref(v), 0, 0), v.value)
show("cuDeviceGetP2PAttribute self", cuda.cuDeviceGetP2PAttribute(ref(v), 2, 0, 0))

section("contexts")
show("cuCtxGetCurrent none", cuda.cuCtxGetCurrent(ref(ctx)), ctx.value)
show("cuCtxGetDevice none", cuda.cuCtxGetDevice(ref(dev)))
show("cuCtxPopCurrent empty", cuda.cuCtxPopCurrent_v2(ref(ctx)))
show("cuCtxSetCurrent null", cuda.cuCtxSetCurrent(None))
show("cuCtxPushCurrent null", cuda.cuCtxPushCurrent_v2(None))
show("cuMemAlloc no context", cuda.cuMemAlloc_v2(ref(d), SZ(16)))
show("cuStreamCreate no context", cuda.cuStreamCreate(ref(P()), 0))
flags, active = U32(9), I32(9)
show("primary state", cuda.cuDevicePrimaryCtxGetState(0, ref(flags), ref(active)), flags.value, active.value)
show("primary release unretained", cuda.cuDevicePrimaryCtxRelease_v2(0))
show("primary flags 3", cuda.cuDevicePrimaryCtxSetFlags_v2(0, 3))
show("primary flags 4", cuda.cuDevicePrimaryCtxSetFlags_v2(0, 4))
primary, again = P(), P()
show("primary retain", cuda.cuDevicePrimaryCtxRetain(ref(primary), 0))
show("primary retain again", cuda.cuDevicePrimaryCtxRetain(ref(again), 0), primary.value == again.value)
show("primary retain null", cuda.cuDevicePrimaryCtxRetain(None, 0))
show("primary retain device", cuda.cuDevicePrimaryCtxRetain(ref(again), 99))
show("primary release", cuda.cuDevicePrimaryCtxRelease_v2(0))
show("primary state", cuda.cuDevicePrimaryCtxGetState(0, ref(flags), ref(active)), flags.value, active.value)
show("cuCtxDestroy primary", cuda.cuCtxDestroy_v2(primary))
show("cuCtxSetCurrent", cuda.cuCtxSetCurrent(primary))
show("cuCtxGetDevice", cuda.cuCtxGetDevice(ref(dev)), dev.value)
show("cuCtxGetFlags", cuda.cuCtxGetFlags(ref(flags)), flags.value & 7)
made, top = P(), P()
show("cuCtxCreate flags", cuda.cuCtxCreate_v2(ref(made), 0x1000, 0))
show("cuCtxCreate", cuda.cuCtxCreate_v2(ref(made), 0, 0))
show("created is current", cuda.cuCtxGetCurrent(ref(top)), top.value == made.value)
show("cuCtxPopCurrent", cuda.cuCtxPopCurrent_v2(ref(top)), top.value == made.value)
show("below is primary", cuda.cuCtxGetCurrent(ref(top)), top.value == primary.value)
show("cuCtxPushCurrent", cuda.cuCtxPushCurrent_v2(made))
show("cuCtxGetApiVersion", cuda.cuCtxGetApiVersion(made, ref(flags)), flags.value)
limit = SZ()
show("cuCtxGetLimit stack", cuda.cuCtxGetLimit(ref(limit), 0), limit.value > 0)
show("cuCtxGetLimit bad", cuda.cuCtxGetLimit(ref(limit), 77))
show("cuCtxSetLimit stack", cuda.cuCtxSetLimit(0, SZ(2048)))
show("cuCtxGetLimit stack", cuda.cuCtxGetLimit(ref(limit), 0), limit.value >= 2048)
show("cuCtxSetLimit bad", cuda.cuCtxSetLimit(77, SZ(1)))
show("cuCtxSetCacheConfig bad", cuda.cuCtxSetCacheConfig(9))
show("cuCtxDestroy", cuda.cuCtxDestroy_v2(made))
show("after destroy", cuda.cuCtxGetCurrent(ref(top)), top.value == primary.value)
show("cuCtxDestroy null", cuda.cuCtxDestroy_v2(None))
show("cuCtxSynchronize", cuda.cuCtxSynchronize())
lo, hi = I32(), I32()
show("priority range", cuda.cuCtxGetStreamPriorityRange(ref(lo), ref(hi)), lo.value, hi.value < 0)
show("priority range nulls", cuda.cuCtxGetStreamPriorityRange(None, None))

section("device memory")
show("cuMemAlloc 0", cuda.cuMemAlloc_v2(ref(d), SZ(0)))
show("cuMemAlloc null", cuda.cuMemAlloc_v2(None, SZ(16)))
show("cuMemAlloc too much", cuda.cuMemAlloc_v2(ref(d), SZ(1 << 46)))
show("cuMemAlloc", cuda.cuMemAlloc_v2(ref(d), SZ(1000)), d.value % 256)
base, size = dptr(), SZ()
show("cuMemGetAddressRange", cuda.cuMemGetAddressRange_v2(ref(base), ref(size), u64(d.value + 10)), base.value == d.value, size.value)
show("cuMemGetAddressRange nothing", cuda.cuMemGetAddressRange_v2(ref(base), ref(size), u64(64)))
show("cuMemGetInfo nulls", cuda.cuMemGetInfo_v2(None, None))
show("cuMemFree inside", cuda.cuMemFree_v2(u64(d.value + 8)))
show("cuMemFree null", cuda.cuMemFree_v2(u64(0)))
show("cuMemFree wild", cuda.cuMemFree_v2(u64(0xdead00)))
host = (c.c_uint32 * 256)(*range(256))
back = (c.c_uint32 * 256)()
show("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(d, host, SZ(1000)))
show("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(back, d, SZ(1000)), list(back[:3]), back[249], back[250])
show("cuMemcpyHtoD 0 bytes", cuda.cuMemcpyHtoD_v2(d, host, SZ(0)))
show("cuMemcpyHtoD null host", cuda.cuMemcpyHtoD_v2(d, None, SZ(16)))
show("cuMemcpyHtoD null device", cuda.cuMemcpyHtoD_v2(u64(0), host, SZ(16)))
show("cuMemcpyDtoH wild", cuda.cuMemcpyDtoH_v2(back, u64(0xdead00), SZ(16)))
show("cuMemcpy unified", cuda.cuMemcpy(u64(c.addressof(back)), d, SZ(12)), list(back[:3]))
d2 = dptr()
ok(cuda.cuMemAlloc_v2(ref(d2), SZ(1000)))
show("cuMemcpyDtoD", cuda.cuMemcpyDtoD_v2(d2, d, SZ(1000)))
ok(cuda.cuMemcpyDtoH_v2(back, d2, SZ(1000)))
show("copied", 0, list(back[5:8]))
show("cuMemsetD8", cuda.cuMemsetD8_v2(d, c.c_ubyte(0xab), SZ(100)))
show("cuMemsetD16 unaligned", cuda.cuMemsetD16_v2(u64(d.value + 1), c.c_ushort(1), SZ(4)))
show("cuMemsetD32 unaligned", cuda.cuMemsetD32_v2(u64(d.value + 2), U32(1), SZ(4)))
show("cuMemsetD32 count 0", cuda.cuMemsetD32_v2(d, U32(1), SZ(0)))
show("cuMemsetD32 wild", cuda.cuMemsetD32_v2(u64(0xdead00), U32(1), SZ(4)))
show("cuMemsetD32", cuda.cuMemsetD32_v2(u64(d.value + 100), U32(5), SZ(10)))
ok(cuda.cuMemcpyDtoH_v2(back, d, SZ(160)))
show("filled", 0, hex(back[0]), back[25], back[34], back[35])
show("cuMemsetD2D8", cuda.cuMemsetD2D8_v2(d, SZ(32), c.c_ubyte(1), SZ(3), SZ(4)))
ok(cuda.cuMemcpyDtoH_v2(back, d, SZ(160)))
show("filled", 0, hex(back[0]), hex(back[1]), hex(back[8]), hex(back[24]))
pitch = SZ()
show("cuMemAllocPitch", cuda.cuMemAllocPitch_v2(ref(base), ref(pitch), SZ(100), SZ(10), 4), pitch.value)
show("cuMemAllocPitch element", cuda.cuMemAllocPitch_v2(ref(dptr()), ref(pitch), SZ(100), SZ(10), 3))
show("cuMemFree pitched", cuda.cuMemFree_v2(base))
show("cuMemFree", cuda.cuMemFree_v2(d2))
show("cuMemFree twice", cuda.cuMemFree_v2(d2))

section("host memory")
h = P()
show("cuMemHostAlloc 0", cuda.cuMemHostAlloc(ref(h), SZ(0), 0))
show("cuMemHostAlloc flags", cuda.cuMemHostAlloc(ref(h), SZ(64), 0x100))
show("cuMemHostAlloc", cuda.cuMemHostAlloc(ref(h), SZ(4096), 1))
show("cuMemHostGetFlags", cuda.cuMemHostGetFlags(ref(flags), h), flags.value & 1)
show("cuMemHostGetFlags pageable", cuda.cuMemHostGetFlags(ref(flags), host))
page = (c.c_char * 16384)()
aligned = (c.addressof(page) + 4095) // 4096 * 4096
show("cuMemHostRegister", cuda.cuMemHostRegister_v2(P(aligned), SZ(4096), 0))
show("cuMemHostRegister twice", cuda.cuMemHostRegister_v2(P(aligned), SZ(4096), 0))
show("cuMemHostRegister 0", cuda.cuMemHostRegister_v2(P(aligned), SZ(0), 0))
show("cuMemHostRegister null", cuda.cuMemHostRegister_v2(None, SZ(4096), 0))
show("cuMemHostUnregister", cuda.cuMemHostUnregister(P(aligned)))
show("cuMemHostUnregister twice", cuda.cuMemHostUnregister(P(aligned)))
show("cuMemFreeHost wild", cuda.cuMemFreeHost(P(aligned)))
kind = U32()
show("type of device memory", cuda.cuPointerGetAttribute(ref(kind), 2, d), kind.value)
show("type of pinned memory", cuda.cuPointerGetAttribute(ref(kind), 2, u64(h.value)), kind.value)
show("type of pageable memory", cuda.cuPointerGetAttribute(ref(kind), 2, u64(c.addressof(host))))
show("unknown attribute", cuda.cuPointerGetAttribute(ref(kind), 99, d))
attrs = (U32 * 3)(2, 9, 11)
start, ordinal = U64(), I32()
places = (P * 3)(c.addressof(kind), c.addressof(ordinal), c.addressof(start))
show("attributes of device memory", cuda.cuPointerGetAttributes(3, attrs, places, u64(d.value + 4)), kind.value, ordinal.value, start.value == d.value)
show("attributes of pageable memory", cuda.cuPointerGetAttributes(3, attrs, places, u64(c.addressof(host))), kind.value, ordinal.value)
show("attributes none", cuda.cuPointerGetAttributes(0, None, None, d))
show("cuMemFreeHost", cuda.cuMemFreeHost(h))

section("streams and events")
s = P()
show("cuStreamCreate flags", cuda.cuStreamCreate(ref(s), 8))
show("cuStreamCreate", cuda.cuStreamCreate(ref(s), 1))
show("cuStreamGetFlags", cuda.cuStreamGetFlags(s, ref(flags)), flags.value)
s2, prio = P(), I32()
show("cuStreamCreateWithPriority", cuda.cuStreamCreateWithPriority(ref(s2), 0, -1000))
show("priority is clamped", cuda.cuStreamGetPriority(s2, ref(prio)), prio.value == hi.value)
show("cuStreamQuery idle", cuda.cuStreamQuery(s))
show("cuStreamQuery default", cuda.cuStreamQuery(None))
show("cuStreamSynchronize", cuda.cuStreamSynchronize(s))
show("cuStreamSynchronize legacy", cuda.cuStreamSynchronize(P(1)))
show("cuStreamSynchronize per thread", cuda.cuStreamSynchronize(P(2)))
show("cuStreamDestroy null", cuda.cuStreamDestroy_v2(None))
e, e2, notime = P(), P(), P()
show("cuEventCreate flags", cuda.cuEventCreate(ref(e), 0x80))
show("cuEventCreate", cuda.cuEventCreate(ref(e), 0))
ok(cuda.cuEventCreate(ref(e2), 0))
ok(cuda.cuEventCreate(ref(notime), 2))
ms = F32(-1)
show("cuEventQuery unrecorded", cuda.cuEventQuery(e))
show("cuEventSynchronize unrecorded", cuda.cuEventSynchronize(e))
show("elapsed unrecorded", cuda.cuEventElapsedTime_v2(ref(ms), e, e2))
show("cuStreamWaitEvent unrecorded", cuda.cuStreamWaitEvent(s, e, 0))
show("cuEventRecord", cuda.cuEventRecord(e, s))
show("cuEventRecord no timing", cuda.cuEventRecord(notime, s))
show("cuEventRecord second", cuda.cuEventRecord(e2, s))
show("cuEventSynchronize", cuda.cuEventSynchronize(e2))
show("cuEventQuery done", cuda.cuEventQuery(e2))
show("elapsed", cuda.cuEventElapsedTime_v2(ref(ms), e, e2), 0 <= ms.value < 10000)
show("elapsed no timing", cuda.cuEventElapsedTime_v2(ref(ms), e, notime))
show("cuEventRecord null", cuda.cuEventRecord(None, s))
show("cuStreamWaitEvent flags", cuda.cuStreamWaitEvent(s, e, 9))
show("cuEventDestroy null", cuda.cuEventDestroy_v2(None))
show("cuEventDestroy", cuda.cuEventDestroy_v2(e2))
calls = []
HostFn = c.CFUNCTYPE(None, P)
fn = HostFn(lambda data: calls.append(data))
show("cuLaunchHostFunc", cuda.cuLaunchHostFunc(s, fn, P(5)))
show("cuLaunchHostFunc null", cuda.cuLaunchHostFunc(s, None, None))
ok(cuda.cuStreamSynchronize(s))
show("called", 0, calls)

section("modules")
m = P()
show("not an image", cuda.cuModuleLoadData(ref(m), b"this is no image"))
show("null image", cuda.cuModuleLoadData(ref(m), None))
show("no such file", cuda.cuModuleLoad(ref(m), b"/nonexistent/file.ptx"))
log = c.create_string_buffer(4096)
opts = (U32 * 2)(5, 6)
vals = (P * 2)(c.addressof(log), 4096)
broken = PTX.replace(b"st.global.u32 [%rd3]", b"st.globular.u32 [%rd3]")
show("broken PTX", cuda.cuModuleLoadDataEx(ref(m), broken, 2, opts, vals), len(log.value) > 0)
show("cuModuleLoadData", cuda.cuModuleLoadData(ref(m), PTX))
f, bounded, shared_user, wild = P(), P(), P(), P()
show("cuModuleGetFunction", cuda.cuModuleGetFunction(ref(f), m, b"store"))
ok(cuda.cuModuleGetFunction(ref(bounded), m, b"bounded"))
ok(cuda.cuModuleGetFunction(ref(shared_user), m, b"shared_user"))
ok(cuda.cuModuleGetFunction(ref(wild), m, b"wild"))
show("cuModuleGetFunction missing", cuda.cuModuleGetFunction(ref(P()), m, b"nothing"))
show("cuModuleGetFunction null", cuda.cuModuleGetFunction(None, m, b"store"))
show("cuModuleGetFunctionCount", cuda.cuModuleGetFunctionCount(ref(flags), m), flags.value)
g, gs = dptr(), SZ()
show("cuModuleGetGlobal", cuda.cuModuleGetGlobal_v2(ref(g), ref(gs), m, b"counter"), gs.value)
one = U32()
ok(cuda.cuMemcpyDtoH_v2(ref(one), g, SZ(4)))
show("initial value", 0, one.value)
show("cuModuleGetGlobal const", cuda.cuModuleGetGlobal_v2(None, ref(gs), m, b"table"), gs.value)
show("cuModuleGetGlobal missing", cuda.cuModuleGetGlobal_v2(ref(g), ref(gs), m, b"nothing"))
show("cuModuleGetGlobal nulls", cuda.cuModuleGetGlobal_v2(None, None, m, b"counter"))
show("max threads", cuda.cuFuncGetAttribute(ref(v), 0, bounded), v.value)
show("static shared", cuda.cuFuncGetAttribute(ref(v), 1, shared_user), v.value)
show("no such attribute", cuda.cuFuncGetAttribute(ref(v), 77, f))
show("set read-only attribute", cuda.cuFuncSetAttribute(f, 1, 5))
show("set dynamic shared", cuda.cuFuncSetAttribute(f, 8, 60000))
show("get dynamic shared", cuda.cuFuncGetAttribute(ref(v), 8, f), v.value)
show("set dynamic shared too much", cuda.cuFuncSetAttribute(f, 8, 1 << 24))
show("set carveout bad", cuda.cuFuncSetAttribute(f, 9, 101))
off, psize = SZ(), SZ()
for i in range(4):
    code = cuda.cuFuncGetParamInfo(bounded, SZ(i), ref(off), ref(psize))
    show(f"parameter {i}", code, *((off.value, psize.value) if code == 0 else ()))
fname = c.c_char_p()
show("cuFuncGetName", cuda.cuFuncGetName(ref(fname), f), fname.value)
mod = P()
show("cuFuncGetModule", cuda.cuFuncGetModule(ref(mod), f), mod.value == m.value)

section("launches")


def launch(fun, grid, block, shared=0, stream=None, params=None, extra=None):
    return cuda.cuLaunchKernel(fun, *grid, *block, shared, stream, params, extra)


target, value, many = U64(d.value), U32(100), U32(64)
params = (P * 3)(c.addressof(target), c.addressof(value), c.addressof(many))
show("launch", launch(f, (2, 1, 1), (32, 1, 1), 0, s, params))
ok(cuda.cuStreamSynchronize(s))
ok(cuda.cuMemcpyDtoH_v2(back, d, SZ(256)))
show("result", 0, back[0], back[63])
show("grid 0", launch(f, (0, 1, 1), (32, 1, 1), 0, s, params))
show("block 0", launch(f, (1, 1, 1), (32, 0, 1), 0, s, params))
show("block too large", launch(f, (1, 1, 1), (2048, 1, 1), 0, s, params))
show("block volume too large", launch(f, (1, 1, 1), (1024, 2, 1), 0, s, params))
show("block z too large", launch(f, (1, 1, 1), (1, 1, 128), 0, s, params))
show("grid y too large", launch(f, (1, 1 << 17, 1), (1, 1, 1), 0, s, params))
show("over launch bounds", launch(bounded, (1, 1, 1), (65, 1, 1), 0, s, (P * 3)(*[c.addressof(back)] * 3)))
show("too much dynamic shared", launch(shared_user, (1, 1, 1), (32, 1, 1), 100000, s))
show("no parameters given", launch(f, (1, 1, 1), (32, 1, 1), 0, s, None))
block = c.create_string_buffer(c.string_at(c.addressof(target), 8) + b"\x07\0\0\0" + b"\x04\0\0\0", 16)
bytes_ = SZ(16)
extra = (P * 5)(1, c.addressof(block), 2, c.addressof(bytes_), 0)
show("extra", launch(f, (1, 1, 1), (32, 1, 1), 0, s, None, extra))
ok(cuda.cuStreamSynchronize(s))
ok(cuda.cuMemcpyDtoH_v2(back, d, SZ(32)))
show("result", 0, list(back[:5]))
show("extra and parameters", launch(f, (1, 1, 1), (32, 1, 1), 0, s, params, extra))
blocks = I32()
show("occupancy", cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(ref(blocks), f, 1024, SZ(0)), blocks.value)
show("occupancy block 0", cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(ref(blocks), f, 0, SZ(0)))

section("capture and graphs")
g, ge = P(), P()
status, sid = U32(), U64()
show("is capturing", cuda.cuStreamIsCapturing(s, ref(status)), status.value)
show("end without begin", cuda.cuStreamEndCapture(s, ref(g)))
show("begin on the legacy stream", cuda.cuStreamBeginCapture_v2(None, 0))
show("begin with a bad mode", cuda.cuStreamBeginCapture_v2(s, 7))
show("begin", cuda.cuStreamBeginCapture_v2(s, 0))
show("begin again", cuda.cuStreamBeginCapture_v2(s, 0))
show("is capturing", cuda.cuStreamIsCapturing(s, ref(status)), status.value)
show("launch", launch(f, (2, 1, 1), (32, 1, 1), 0, s, params))
show("memset", cuda.cuMemsetD32Async(u64(d.value + 400), U32(9), SZ(4), s))
show("end", cuda.cuStreamEndCapture(s, ref(g)))
nodes = SZ()
show("nodes", cuda.cuGraphGetNodes(g, None, ref(nodes)), nodes.value)
roots = SZ()
show("roots", cuda.cuGraphGetRootNodes(g, None, ref(roots)), roots.value)
handles = (P * 2)()
ok(cuda.cuGraphGetNodes(g, handles, ref(nodes)))
show("type of the first", cuda.cuGraphNodeGetType(P(handles[0]), ref(kind)), kind.value)
show("type of the second", cuda.cuGraphNodeGetType(P(handles[1]), ref(kind)), kind.value)
show("instantiate", cuda.cuGraphInstantiateWithFlags(ref(ge), g, u64(0)))
ok(cuda.cuMemsetD8_v2(d, c.c_ubyte(0), SZ(1000)))
ok(cuda.cuCtxSynchronize())  # the graph runs in a stream that does not wait for the legacy one
show("launch graph", cuda.cuGraphLaunch(ge, s))
ok(cuda.cuStreamSynchronize(s))
ok(cuda.cuMemcpyDtoH_v2(back, d, SZ(1000)))
show("result", 0, back[0], back[63], back[100], back[104])
show("begin", cuda.cuStreamBeginCapture_v2(s, 0))
show("synchronize while capturing", cuda.cuStreamSynchronize(s))
show("is capturing", cuda.cuStreamIsCapturing(s, ref(status)), status.value)
bad = P()
show("end of an invalidated capture", cuda.cuStreamEndCapture(s, ref(bad)), bad.value)
show("begin", cuda.cuStreamBeginCapture_v2(s, 0))
show("cuMemAlloc while capturing", cuda.cuMemAlloc_v2(ref(dptr()), SZ(16)))
show("end", cuda.cuStreamEndCapture(s, ref(bad)))
show("begin relaxed", cuda.cuStreamBeginCapture_v2(s, 2))
tmp = dptr()
show("cuMemAlloc while relaxed", cuda.cuMemAlloc_v2(ref(tmp), SZ(16)))
show("cuMemFree while relaxed", cuda.cuMemFree_v2(tmp))
show("fork", cuda.cuEventRecord(e, s))
show("join", cuda.cuStreamWaitEvent(s2, e, 0))
show("s2 is capturing", cuda.cuStreamIsCapturing(s2, ref(status)), status.value)
show("query a captured event", cuda.cuEventQuery(e))
show("end unjoined", cuda.cuStreamEndCapture(s, ref(bad)))
show("empty graph", cuda.cuGraphCreate(ref(bad), 0))
node = P()
show("empty node", cuda.cuGraphAddEmptyNode(ref(node), bad, None, SZ(0)))
node2 = P()
deps = (P * 1)(node.value)
show("second node", cuda.cuGraphAddEmptyNode(ref(node2), bad, deps, SZ(1)))
frm, to = (P * 1)(node2.value), (P * 1)(node.value)
show("self edge", cuda.cuGraphAddDependencies(bad, (P * 1)(node.value), (P * 1)(node.value), SZ(1)))
same = (P * 1)(node.value)
show("edge again", cuda.cuGraphAddDependencies(bad, same, (P * 1)(node2.value), SZ(1)))
show("destroy node", cuda.cuGraphDestroyNode(node2))
show("destroy graph", cuda.cuGraphDestroy(bad))
show("destroy null graph", cuda.cuGraphDestroy(None))
show("destroy exec", cuda.cuGraphExecDestroy(ge))
show("instantiate null", cuda.cuGraphInstantiateWithFlags(ref(ge), None, u64(0)))

section("pools")
pool = P()
show("default pool", cuda.cuDeviceGetDefaultMemPool(ref(pool), 0))
cur = P()
show("current pool", cuda.cuDeviceGetMemPool(ref(cur), 0), cur.value == pool.value)
thr = U64(77)
show("threshold", cuda.cuMemPoolGetAttribute(pool, 4, ref(thr)), thr.value)
thr = U64(1 << 20)
show("set threshold", cuda.cuMemPoolSetAttribute(pool, 4, ref(thr)))
show("unknown attribute", cuda.cuMemPoolGetAttribute(pool, 99, ref(thr)))
show("destroy default", cuda.cuMemPoolDestroy(pool))
a = dptr()
show("cuMemAllocAsync 0", cuda.cuMemAllocAsync(ref(a), SZ(0), s))
show("cuMemAllocAsync", cuda.cuMemAllocAsync(ref(a), SZ(4096), s))
show("cuMemsetD8Async", cuda.cuMemsetD8Async(a, c.c_ubyte(3), SZ(4096), s))
show("cuMemcpyDtoHAsync", cuda.cuMemcpyDtoHAsync_v2(back, a, SZ(16), s), hex(back[0]))
used = U64()
show("used", cuda.cuMemPoolGetAttribute(pool, 7, ref(used)), used.value >= 4096)
show("cuMemFreeAsync", cuda.cuMemFreeAsync(a, s))
show("cuMemFreeAsync null", cuda.cuMemFreeAsync(u64(0), s))
show("cuMemFreeAsync wild", cuda.cuMemFreeAsync(u64(0xdead00), s))
ok(cuda.cuStreamSynchronize(s))

section("virtual memory")


class Location(c.Structure):
    _fields_ = [("type", U32), ("id", I32)]


class Prop(c.Structure):
    _fields_ = [("type", U32), ("handles", U32), ("location", Location), ("meta", P), ("flags", c.c_ubyte * 8)]


class Access(c.Structure):
    _fields_ = [("location", Location), ("flags", U32)]


prop = Prop(1, 0, Location(1, 0), None)
gran = SZ()
show("granularity", cuda.cuMemGetAllocationGranularity(ref(gran), ref(prop), 0), gran.value)
va = dptr()
show("reserve 0", cuda.cuMemAddressReserve(ref(va), SZ(0), SZ(0), u64(0), u64(0)))
show("reserve odd", cuda.cuMemAddressReserve(ref(va), SZ(1000), SZ(0), u64(0), u64(0)))
show("reserve", cuda.cuMemAddressReserve(ref(va), SZ(2 * gran.value), SZ(0), u64(0), u64(0)), va.value % gran.value)
mh = U64()
show("create odd", cuda.cuMemCreate(ref(mh), SZ(1000), ref(prop), u64(0)))
show("create", cuda.cuMemCreate(ref(mh), SZ(gran.value), ref(prop), u64(0)))
show("map too much", cuda.cuMemMap(va, SZ(2 * gran.value), SZ(0), mh, u64(0)))
show("map", cuda.cuMemMap(va, SZ(gran.value), SZ(0), mh, u64(0)))
show("map again", cuda.cuMemMap(va, SZ(gran.value), SZ(0), mh, u64(0)))
desc = Access(Location(1, 0), 3)
show("access none", cuda.cuMemSetAccess(va, SZ(gran.value), None, SZ(0)))
show("access", cuda.cuMemSetAccess(va, SZ(gran.value), ref(desc), SZ(1)))
show("write", cuda.cuMemsetD32_v2(va, U32(42), SZ(16)))
ok(cuda.cuMemcpyDtoH_v2(back, va, SZ(64)))
show("read", 0, back[15])
show("release", cuda.cuMemRelease(mh))
show("still there", cuda.cuMemcpyDtoH_v2(back, va, SZ(64)), back[3])
show("free while mapped", cuda.cuMemAddressFree(va, SZ(2 * gran.value)))
show("unmap", cuda.cuMemUnmap(va, SZ(gran.value)))
show("unmap again", cuda.cuMemUnmap(va, SZ(gran.value)))
show("free reservation", cuda.cuMemAddressFree(va, SZ(2 * gran.value)))

section("linker")
ls = P()
show("create", cuda.cuLinkCreate_v2(0, None, None, ref(ls)))
show("add PTX", cuda.cuLinkAddData_v2(ls, 1, PTX, SZ(len(PTX) + 1), b"test.ptx", 0, None, None))
image, isize = P(), SZ()
show("complete", cuda.cuLinkComplete(ls, ref(image), ref(isize)), isize.value > 0)
m2, f2 = P(), P()
show("load linked", cuda.cuModuleLoadData(ref(m2), image))
show("function of linked", cuda.cuModuleGetFunction(ref(f2), m2, b"store"))
show("launch linked", launch(f2, (1, 1, 1), (32, 1, 1), 0, s, params))
ok(cuda.cuStreamSynchronize(s))
show("destroy", cuda.cuLinkDestroy(ls))
show("unload", cuda.cuModuleUnload(m2))

section("libraries")
lib, kern, fk = P(), P(), P()
show("load", cuda.cuLibraryLoadData(ref(lib), PTX, None, None, 0, None, None, 0))
show("kernel", cuda.cuLibraryGetKernel(ref(kern), lib, b"store"))
show("kernel missing", cuda.cuLibraryGetKernel(ref(P()), lib, b"nothing"))
show("count", cuda.cuLibraryGetKernelCount(ref(flags), lib), flags.value)
show("function", cuda.cuKernelGetFunction(ref(fk), kern))
show("kernel as function", launch(kern, (1, 1, 1), (32, 1, 1), 0, s, params))
ok(cuda.cuStreamSynchronize(s))
show("global", cuda.cuLibraryGetGlobal(ref(g2 := U64()), ref(gs), lib, b"counter"), gs.value)
show("unload", cuda.cuLibraryUnload(lib))

section("proc addresses")
fp, st = P(), I32(-1)
for nm, ver, fl in ((b"cuMemAlloc", 13000, 0), (b"cuMemAlloc", 2000, 0), (b"cuNothing", 13000, 0), (b"cuLaunchKernelEx", 2000, 0), (b"cuCtxGetDevice", 12000, 0)):
    code = cuda.cuGetProcAddress_v2(nm, ref(fp), ver, u64(fl), ref(st))
    show(f"{nm.decode()} {ver} {fl}", code, st.value, bool(fp.value))
show("version of the future", cuda.cuGetProcAddress_v2(b"cuMemAlloc", ref(fp), 99000, u64(0), ref(st)))
show("flags 9", cuda.cuGetProcAddress_v2(b"cuMemAlloc", ref(fp), 12000, u64(9), ref(st)))
table = P()
show("unknown export table", cuda.cuGetExportTable(ref(table), b"\x01" * 16), table.value)

section("a fault")
show("launch", launch(wild, (1, 1, 1), (1, 1, 1), 0, s))
show("synchronize", cuda.cuStreamSynchronize(s))
show("synchronize again", cuda.cuStreamSynchronize(s))
show("cuCtxSynchronize", cuda.cuCtxSynchronize())
show("cuMemAlloc", cuda.cuMemAlloc_v2(ref(a), SZ(16)))
show("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(back, d, SZ(4)))
show("cuMemFree", cuda.cuMemFree_v2(d))
show("cuEventRecord", cuda.cuEventRecord(e, s))
show("launch", launch(f, (1, 1, 1), (32, 1, 1), 0, s, params))
show("cuStreamQuery", cuda.cuStreamQuery(s))
show("cuModuleLoadData", cuda.cuModuleLoadData(ref(m2), PTX))
show("cuCtxGetDevice", cuda.cuCtxGetDevice(ref(dev)), dev.value)
show("cuDeviceGetAttribute", cuda.cuDeviceGetAttribute(ref(v), 10, 0), v.value)
show("primary reset", cuda.cuDevicePrimaryCtxReset_v2(0))
show("primary state", cuda.cuDevicePrimaryCtxGetState(0, ref(flags), ref(active)), active.value)
show("retain", cuda.cuDevicePrimaryCtxRetain(ref(primary), 0))
ok(cuda.cuCtxSetCurrent(primary))
show("cuMemAlloc", cuda.cuMemAlloc_v2(ref(a), SZ(16)))
show("cuMemFree", cuda.cuMemFree_v2(a))
