"""Takes parts of the memory that it sees, in tenths, one after the other, and says what each call returned.

    takes_memory.py 7 4           ends then
    takes_memory.py 9 2 keep      keeps what it has until its input ends
"""
import ctypes
import json
import sys

parts = [int(word) for word in sys.argv[1:3]]
cuda = ctypes.CDLL("libcuda.so.1")
device, context, free, total, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
codes = [
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
]
taken = [cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(total.value * part // 10)) for part in parts]
print(json.dumps({"codes": codes, "total": total.value, "taken": taken}), flush=True)
if sys.argv[3:]:
    sys.stdin.read()
