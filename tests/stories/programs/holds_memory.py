"""Takes and gives device memory by orders, a line of JSON each, and says what CUDA answered and how long that took.

    {"do": "take", "mib": 300}    {"do": "give"}, the block that was taken last    {"do": "check"}, what was written into all blocks
"""
import ctypes
import json
import os
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")
device, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
EDGE = 1 << 20
blocks = []


def must(code):
    if code:
        sys.exit(f"error {code}")


def edges(block):
    at, size, written = block
    return ((at, written[0]), (at + size - EDGE, written[1]))


def take(mib):
    at, size = ctypes.c_uint64(), mib << 20
    code = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))
    if not code:
        blocks.append((at.value, size, (os.urandom(EDGE), os.urandom(EDGE))))
        for place, written in edges(blocks[-1]):
            must(cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(place), written, ctypes.c_size_t(EDGE)))
    return code


def give():
    return cuda.cuMemFree_v2(ctypes.c_uint64(blocks.pop()[0]))


def check():
    found = ctypes.create_string_buffer(EDGE)
    for place, written in (edge for block in blocks for edge in edges(block)):
        must(cuda.cuMemcpyDtoH_v2(found, ctypes.c_uint64(place), ctypes.c_size_t(EDGE)))
        if found.raw != written:
            return -1
    return 0


must(cuda.cuInit(0))
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
must(cuda.cuCtxSetCurrent(context))
must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
print(json.dumps({"total": total.value, "free": free.value}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    began = time.monotonic()
    code = {"take": lambda: take(order["mib"]), "give": give, "check": check}[order["do"]]()
    print(json.dumps({"code": code, "seconds": time.monotonic() - began}), flush=True)
