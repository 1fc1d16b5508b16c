"""What a CUDA driver answers about green contexts, conditional nodes, its log, core dumps and old forms, as text: one line per question.

Run it on NVIDIA's driver and through dxpu, and compare. It uses nothing but ctypes and libcuda.so.1. Handles are never shown.
Codes are CUresult. Numbers of multiprocessors are the device's own.

    parts.py               core dumps, log, conditional nodes, each in a process of its own
    parts.py green old     others: an H200's driver dies of the question "split nothing" of `green`, and takes the `old` forms in
                           contexts of CUDA 3.1 alone, where dxpu takes them in all
"""
import ctypes as c
import struct
import subprocess
import sys

cuda = c.CDLL("libcuda.so.1")
ref, P, SZ, U = c.byref, c.c_void_p, c.c_size_t, c.c_uint
SM = 1
RESOURCE_BYTES = 144


def show(what, code, *more):
    print(" ".join([what, "->", str(code), *[str(part) for part in more]]))


def section(name):
    print(f"[{name}]")


def resource():
    return c.create_string_buffer(RESOURCE_BYTES)


def count(some):
    return struct.unpack_from("II", some.raw, 0)[0], struct.unpack_from("I", some.raw, 96)[0]


def early():
    section("before cuInit")
    iterator, size, flags = U(), SZ(4), U(1)
    show("logs current", cuda.cuLogsCurrent(ref(iterator), 0), iterator.value)
    show("coredump set flags", cuda.cuCoredumpSetAttributeGlobal(7, ref(flags), ref(size)))
    show("coredump get flags", cuda.cuCoredumpGetAttributeGlobal(7, ref(flags), ref(size)), flags.value, size.value)
    flags.value = 0
    show("coredump set flags back", cuda.cuCoredumpSetAttributeGlobal(7, ref(flags), ref(size)))
    show("coredump local", cuda.cuCoredumpGetAttribute(7, ref(flags), ref(size)))


def coredump():
    section("core dumps")
    for attribute in range(9):
        size = SZ()
        show(f"size of {attribute}", cuda.cuCoredumpGetAttribute(attribute, None, ref(size)), size.value)
    for attribute, room in [(1, 1), (2, 1), (3, 1), (4, 1), (7, 4), (7, 3), (1, 0), (1, 4)]:
        value, size = c.create_string_buffer(8), SZ(room)
        code = cuda.cuCoredumpGetAttribute(attribute, value, ref(size))
        show(f"get {attribute} in {room}", code, value.raw[:4].hex(), size.value)
    for room in (4, 1024):
        name, size = c.create_string_buffer(1024), SZ(room)
        show(f"get file in {room}", cuda.cuCoredumpGetAttribute(5, name, ref(size)), name.value[:10], size.value)
    show("no size", cuda.cuCoredumpGetAttribute(1, c.create_string_buffer(8), None))


def logs():
    section("log")
    start, size = U(), SZ(4096)
    show("current", cuda.cuLogsCurrent(ref(start), 0))
    show("current with flags", cuda.cuLogsCurrent(ref(start), 1))
    show("current nowhere", cuda.cuLogsCurrent(None, 0))
    show("a failure", cuda.cuDeviceGet(ref(c.c_int()), 99))
    text = c.create_string_buffer(4096)
    show("dump", cuda.cuLogsDumpToMemory(ref(start), text, ref(size), 0), size.value > 0)
    # Without time and thread, and without the driver's sentences about its own arguments.
    for line in filter(lambda line: "Returning" in line, text.value.decode().splitlines()):
        print("    " + "]".join(line.split("]")[2:]))
    small = SZ(5)
    show("too small", cuda.cuLogsDumpToMemory(None, text, ref(small), 0), small.value)
    show("nowhere", cuda.cuLogsDumpToMemory(None, None, ref(size), 0))
    show("unregister nothing", cuda.cuLogsUnregisterCallback(None))


def green():
    section("multiprocessors")
    whole, group, rest, groups = resource(), resource(), resource(), U()
    show("of the device", cuda.cuDeviceGetDevResource(0, whole, SM), *count(whole))
    show("of no device", cuda.cuDeviceGetDevResource(9, whole, SM))
    for kind in (0, 2, 1000, 10000):
        show(f"kind {kind}", cuda.cuDeviceGetDevResource(0, resource(), kind))
    show("of the context", cuda.cuCtxGetDevResource(None, resource(), SM))
    cuda.cuDeviceGetDevResource(0, whole, SM)
    all_of_them = count(whole)[1]
    part = min(16, all_of_them // 2)
    for least in (0, 1, 2, 7, 8, 9, 16, 60, all_of_them, all_of_them + 1):
        for flags in (0, 1, 2, 4):
            groups = U()
            code = cuda.cuDevSmResourceSplitByCount(None, ref(groups), whole, None, flags, least)
            show(f"split {least} flags {flags}", code, groups.value)
    for wanted in (0, 1, 3, 100):
        several, groups = c.create_string_buffer(100 * RESOURCE_BYTES), U(wanted)
        code = cuda.cuDevSmResourceSplitByCount(several, ref(groups), whole, rest, 0, part)
        show(f"groups {wanted}", code, groups.value, *count(several), *count(rest))
    groups = U(1)
    cuda.cuDevSmResourceSplitByCount(group, ref(groups), whole, rest, 0, part)
    show("split a group", cuda.cuDevSmResourceSplitByCount(None, ref(groups), group, None, 0, 8))
    show("split nothing", cuda.cuDevSmResourceSplitByCount(None, ref(groups), resource(), None, 0, 8))
    description, made = P(), P()
    show("describe none", cuda.cuDevResourceGenerateDesc(ref(description), group, 0))
    show("describe nothing", cuda.cuDevResourceGenerateDesc(ref(description), resource(), 1))
    show("describe", cuda.cuDevResourceGenerateDesc(ref(description), group, 1))
    section("green contexts")
    for flags in (0, 2):
        show(f"flags {flags}", cuda.cuGreenCtxCreate(ref(made), description, 0, flags))
    show("none", cuda.cuGreenCtxCreate(ref(made), None, 0, 1))
    show("create", cuda.cuGreenCtxCreate(ref(made), description, 0, 1))
    own, context, stream, number = resource(), P(), P(), c.c_ulonglong()
    show("its own", cuda.cuGreenCtxGetDevResource(made, own, SM), *count(own))
    show("split its own", cuda.cuDevSmResourceSplitByCount(None, ref(groups), own, None, 0, 8), groups.value)
    show("id", cuda.cuGreenCtxGetId(made, ref(number)))
    show("id of none", cuda.cuGreenCtxGetId(None, ref(number)))
    show("context", cuda.cuCtxFromGreenCtx(ref(context), made))
    for flags in (0, 1, 2):
        show(f"stream flags {flags}", cuda.cuGreenCtxStreamCreate(ref(stream), made, flags, 0))
    cuda.cuGreenCtxStreamCreate(ref(stream), made, 1, 0)
    show("push", cuda.cuCtxPushCurrent_v2(context))
    plain, found = P(), P()
    show("plain stream", cuda.cuStreamCreate(ref(plain), 0))
    show("green of it", cuda.cuStreamGetGreenCtx(plain, ref(found)), found.value == made.value)
    show("green of 0", cuda.cuStreamGetGreenCtx(None, ref(found)), found.value == made.value)
    show("green of 2", cuda.cuStreamGetGreenCtx(P(2), ref(found)))
    show("query 0", cuda.cuStreamQuery(None))
    show("synchronise", cuda.cuCtxSynchronize())
    show("pop", cuda.cuCtxPopCurrent_v2(ref(found)), found.value == context.value)
    event = P()
    cuda.cuEventCreate(ref(event), 0)
    show("record", cuda.cuGreenCtxRecordEvent(made, event))
    show("wait", cuda.cuGreenCtxWaitEvent(made, event))
    show("record over the context", cuda.cuCtxRecordEvent(None, event))
    show("wait over the context", cuda.cuCtxWaitEvent(None, event))
    show("destroy", cuda.cuGreenCtxDestroy(made))
    show("its stream", cuda.cuStreamQuery(stream))
    show("destroy its stream", cuda.cuStreamDestroy_v2(stream))


def conditional():
    section("conditional nodes")
    graph, other, handle, context = P(), P(), c.c_ulonglong(), P()
    cuda.cuCtxGetCurrent(ref(context))
    cuda.cuGraphCreate(ref(graph), 0)
    cuda.cuGraphCreate(ref(other), 0)
    create = cuda.cuGraphConditionalHandleCreate
    show("flags 2", create(ref(handle), graph, context, 0, 2))
    show("no graph", create(ref(handle), None, context, 0, 0))
    show("no context", create(ref(handle), other, None, 0, 0))
    show("handle", create(ref(handle), graph, context, 1, 1))

    def add(where, value, kind, size):
        params = c.create_string_buffer(struct.pack("I12xQIIQQ", 13, value, kind, size, 0, context.value), 256)
        code = cuda.cuGraphAddNode_v2(ref(P()), where, None, None, SZ(0), params)
        return code, struct.unpack_from("Q", params.raw, 32)[0]

    for kind, size in [(0, 0), (0, 3), (1, 0), (1, 2), (2, 0), (3, 1)]:
        show(f"kind {kind} size {size}", add(graph, handle.value, kind, size)[0])
    show("unused", cuda.cuGraphInstantiateWithFlags(ref(P()), graph, c.c_ulonglong(0)))
    show("another graph's", add(other, handle.value, 0, 1)[0])
    code, bodies = add(graph, handle.value, 0, 2)
    show("if and else", code, bodies != 0)
    show("once more", add(graph, handle.value, 0, 1)[0])
    body = P(c.cast(bodies, c.POINTER(P))[0]) if bodies else P()
    show("clone", cuda.cuGraphClone(ref(P()), graph))
    show("destroy a body", cuda.cuGraphDestroy(body))
    executable = P()
    show("instantiate a body", cuda.cuGraphInstantiateWithFlags(ref(P()), body, c.c_ulonglong(0)))
    show("instantiate", cuda.cuGraphInstantiateWithFlags(ref(executable), graph, c.c_ulonglong(0)))
    show("launch", cuda.cuGraphLaunch(executable, None))
    show("wait", cuda.cuCtxSynchronize())
    show("instantiate again", cuda.cuGraphInstantiateWithFlags(ref(P()), graph, c.c_ulonglong(0)))
    params = c.create_string_buffer(struct.pack("I12xQQ", 3, c.cast(HOST, P).value, 0), 256)
    show("a host node in a body", cuda.cuGraphAddNode_v2(ref(P()), body, None, None, SZ(0), params))
    show("instantiate with it", cuda.cuGraphInstantiateWithFlags(ref(P()), graph, c.c_ulonglong(0)))


HOST = c.CFUNCTYPE(None, P)(lambda _: None)


def old():
    section("old forms")
    total, free, bytes_ = U(), U(), U()
    show("total", cuda.cuDeviceTotalMem(ref(total), 0), hex(total.value))
    show("info", cuda.cuMemGetInfo(ref(free), ref(bytes_)), hex(bytes_.value))
    array, narrow = P(), c.create_string_buffer(struct.pack("IIII", 16, 2, 0x20, 1), 16)
    show("array", cuda.cuArrayCreate(ref(array), narrow))
    back = c.create_string_buffer(16)
    show("descriptor", cuda.cuArrayGetDescriptor(back, array), back.raw.hex())
    show("copy", cuda.cuMemcpyAtoH(c.create_string_buffer(64), array, 0, 64))
    show("copy too much", cuda.cuMemcpyAtoH(c.create_string_buffer(256), array, 64, 256))
    show("allocate", cuda.cuMemAlloc(ref(total), 1024))
    show("profiler", cuda.cuProfilerInitialize(b"a", b"b", 0))
    show("luid", cuda.cuDeviceGetLuid(c.create_string_buffer(8), ref(U()), 0))
    for target, scope in [(0, 100), (0, 200), (1, 100), (0, 0)]:
        show(f"flush {target} {scope}", cuda.cuFlushGPUDirectRDMAWrites(target, scope))
    show("decompress nothing", cuda.cuMemBatchDecompressAsync(None, SZ(0), 0, None, None))
    notify = c.CFUNCTYPE(None, P, P, P)(lambda *_: None)
    handle = P()
    show("notify", cuda.cuDeviceRegisterAsyncNotification(0, notify, None, ref(handle)))
    show("notify no more", cuda.cuDeviceUnregisterAsyncNotification(0, handle))


def ask(part):
    early()
    cuda.cuInit(0)
    primary = P()
    cuda.cuDevicePrimaryCtxRetain(ref(primary), 0)
    cuda.cuCtxSetCurrent(primary)
    part()


PARTS = {part.__name__: part for part in (coredump, logs, conditional, old, green)}
BY_DEFAULT = ("coredump", "logs", "conditional")

for name in sys.argv[1:]:
    ask(PARTS[name])
if not sys.argv[1:]:
    for name in BY_DEFAULT:
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, name], check=True)
