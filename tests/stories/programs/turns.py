"""Fills memory ten times recorded, ten times unwatched and ten times at a distance, as a program that compares these does."""
import ctypes as c

FILLS = 10
cuda = c.CDLL("libcuda.so.1")
cuda.dxpuInject.argtypes = [c.c_double, c.c_double]


def ok(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} answered {code}"


def fill():
    for _ in range(FILLS):
        ok("cuMemsetD8Async", address, c.c_ubyte(7), c.c_size_t(4096), None)
    ok("cuCtxSynchronize")


context, address = c.c_void_p(), c.c_uint64()
ok("cuInit", 0)
ok("cuDevicePrimaryCtxRetain", c.byref(context), 0)
ok("cuCtxSetCurrent", context)
ok("cuMemAlloc_v2", c.byref(address), c.c_size_t(4096))
ok("dxpuInject", 0.0, 0.0)
ok("dxpuTrace", 1)
ok("dxpuTraceAnew")
ok("cuProfilerStart")
fill()
ok("cuProfilerStop")
ok("dxpuTrace", 0)
fill()
ok("dxpuInject", 500_000.0, 0.0)
fill()
print("done")
