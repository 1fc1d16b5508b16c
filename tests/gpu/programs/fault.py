"""A kernel that does wrong: `illegal` writes where no memory is, `assert` fails an assertion. Says the error and how long it took."""

import sys
import time

import cupy
from say import note, same

# NVRTC has no assert.h; this is what its macro calls.
ASSERT = """
extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);
extern "C" __global__ void wrong(long long *where) {
    if (threadIdx.x <= 100) __assertfail("threadIdx.x > 100", "fault.cu", 1, "wrong", 1);
}
"""
ILLEGAL = 'extern "C" __global__ void wrong(long long *where) { where[threadIdx.x] = 1; }'
KERNELS = {"illegal": ILLEGAL, "assert": ASSERT}

x = cupy.arange(10)
total = int(x.sum())
kernel = cupy.RawKernel(KERNELS[sys.argv[1]], "wrong")
kernel.compile()
same("before", total)
print("ready", flush=True)
began = time.monotonic()
try:
    kernel((1,), (32,), (cupy.uint64(0x10000),))
    cupy.cuda.get_current_stream().synchronize()
    same("error", "none")
except cupy.cuda.runtime.CUDARuntimeError as error:
    same("error", str(error).splitlines()[0])
except cupy.cuda.driver.CUDADriverError as error:
    same("error", str(error).splitlines()[0])
took = time.monotonic() - began
note("seconds", took)
same("within-a-second", took < 1)
for name, body in {
    "alloc": lambda: cupy.zeros(5),
    "synchronize": lambda: cupy.cuda.runtime.deviceSynchronize(),
    "copy": lambda: x.get(),
}.items():
    try:
        body()
        same(f"later-{name}", "no error")
    except Exception as error:
        same(f"later-{name}", str(error).splitlines()[0])
sys.stdout.flush()
