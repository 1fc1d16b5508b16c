"""A handler with weights: each instance copies them to its GPU. It tells how many bytes its process has sent."""

import ctypes
import os
import random
import socket

BYTES = 48 << 20
WEIGHTS = random.Random(5).randbytes(BYTES)

cuda = ctypes.CDLL("libcuda.so.1")


def check(code):
    if code:
        raise RuntimeError(f"CUDA error {code}")


def sent():
    """Bytes that the other ends of this process's TCP connections have got (tcpi_bytes_acked)."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as copy:
                told = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        except OSError:
            continue
        total += int.from_bytes(told[120:128], "little")
    return total


def prepare():
    context, device = ctypes.c_void_p(), ctypes.c_uint64()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(BYTES)))
    check(cuda.cuMemcpyHtoD_v2(device, WEIGHTS, ctypes.c_size_t(BYTES)))
    travelled = sent()
    back = ctypes.create_string_buffer(BYTES)
    check(cuda.cuMemcpyDtoH_v2(back, device, ctypes.c_size_t(BYTES)))
    return {"right": back.raw == WEIGHTS, "sent": travelled}


FOUND = prepare()


def handler(event, context):
    return FOUND
