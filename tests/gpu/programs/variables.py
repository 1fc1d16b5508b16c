"""Says where the driver puts variables of modules, and goes when its input says so. Needs nothing but the driver.

With `late` it copies for a second before it loads them: when it is protected, cuts come first.
"""
import ctypes as c
import sys
import time

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 8 .b8 large[%d];
.visible .global .align 4 .u32 counter;
.visible .entry count() { .reg .u32 %%r; ld.global.u32 %%r, [counter]; add.u32 %%r, %%r, 1; st.global.u32 [counter], %%r; ret; }
\0"""
# Bytes of a variable: the driver's own memory has room for the first one, and not for the last.
SIZES = (64, 1 << 20, 64, 8 << 20)
cuda = c.CDLL("libcuda.so.1")


def ok(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} answered {code}"


context, address = c.c_void_p(), c.c_uint64()
ok("cuInit", 0)
ok("cuDevicePrimaryCtxRetain", c.byref(context), 0)
ok("cuCtxSetCurrent", context)
ok("cuMemAlloc_v2", c.byref(address), c.c_size_t(64 << 20))
if sys.argv[1:] == ["late"]:
    for _ in range(20):
        ok("cuMemcpyHtoD_v2", address, b"x" * (1 << 20), c.c_size_t(1 << 20))
        ok("cuCtxSynchronize")
        time.sleep(0.05)
places = []
for size in SIZES:
    module, place, count = c.c_void_p(), c.c_uint64(), c.c_size_t()
    ok("cuModuleLoadData", c.byref(module), PTX % size)
    ok("cuModuleGetGlobal_v2", c.byref(place), c.byref(count), module, b"counter")
    places.append(f"{place.value:#x}")
print("variables", *places, flush=True)
sys.stdin.read(1)
