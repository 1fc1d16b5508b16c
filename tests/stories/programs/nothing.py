"""Fills memory with a driver that does, that does nothing, and that does again; looks at it each time, and captures meanwhile."""
import ctypes as c

BYTES = 4096
cuda = c.CDLL("libcuda.so.1")


def ok(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} answered {code}"


def fill(value):
    ok("cuMemsetD8Async", address, c.c_ubyte(value), c.c_size_t(BYTES), stream)


def first_byte():
    """As programs look at results: an asynchronous copy to pinned memory, then a wait."""
    c.memset(pinned, 0xEE, BYTES)
    ok("cuMemcpyDtoHAsync_v2", pinned, address, c.c_size_t(BYTES), stream)
    ok("cuStreamSynchronize", stream)
    return pinned[0]


context, address, stream, event = c.c_void_p(), c.c_uint64(), c.c_void_p(), c.c_void_p()
pinned = c.POINTER(c.c_ubyte)()
ok("cuInit", 0)
ok("cuDevicePrimaryCtxRetain", c.byref(context), 0)
ok("cuCtxSetCurrent", context)
ok("cuMemAlloc_v2", c.byref(address), c.c_size_t(BYTES))
ok("cuMemAllocHost_v2", c.byref(pinned), c.c_size_t(BYTES))
ok("cuStreamCreate", c.byref(stream), 1)
ok("cuEventCreate", c.byref(event), 0)
ok("dxpuInject", c.c_double(0), c.c_double(0))
fill(7)
assert first_byte() == 7, "before"

ok("dxpuNothing", 1)
fill(9)
ok("cuEventRecord", event, stream)
ok("cuEventQuery", event)
ok("cuCtxSynchronize")
assert first_byte() == 7, "an order was given"
wide = (c.c_ubyte * BYTES)(*([5] * BYTES))
ok("cuMemcpyHtoD_v2", address, wide, c.c_size_t(BYTES))
assert first_byte() == 7, "a copy to the device was made"
graph, nodes = c.c_void_p(), c.c_size_t()
ok("cuStreamBeginCapture_v2", stream, 2)
fill(11)
ok("cuStreamEndCapture", stream, c.byref(graph))
ok("cuGraphGetNodes", graph, None, c.byref(nodes))
assert nodes.value == 1, f"a capture has {nodes.value} nodes"
executable = c.c_void_p()
ok("cuGraphInstantiateWithFlags", c.byref(executable), graph, c.c_uint64(0))
ok("cuGraphLaunch", executable, stream)
assert first_byte() == 7, "a graph was launched"

ok("dxpuNothing", 0)
ok("cuGraphLaunch", executable, stream)
assert first_byte() == 11, "after"
print("done")
