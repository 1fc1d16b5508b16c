"""The program that `managed` measures: one JSON line with what it found. Speaks to the driver itself, so that no framework is measured.

    managed_program.py order BYTES       the host fills memory, a kernel changes it, the host reads it in order; with copies, and managed
    managed_program.py sparse BYTES      a kernel fills managed memory, the host touches one part in a hundred of it at random places
"""

import ctypes
import json
import random
import sys
import time

import numpy

PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry change(.param .u64 p_words, .param .u64 p_count)
{
    .reg .u64 %words, %count, %at, %step, %address;
    .reg .u32 %a, %b, %c, %word;
    .reg .pred %p;
    ld.param.u64 %words, [p_words];
    ld.param.u64 %count, [p_count];
    mov.u32 %a, %ctaid.x;
    mov.u32 %b, %ntid.x;
    mov.u32 %c, %tid.x;
    mad.lo.u32 %a, %a, %b, %c;
    cvt.u64.u32 %at, %a;
    mov.u32 %c, %nctaid.x;
    mul.lo.u32 %c, %c, %b;
    cvt.u64.u32 %step, %c;
again:
    setp.ge.u64 %p, %at, %count;
    @%p bra done;
    mad.lo.u64 %address, %at, 4, %words;
    ld.global.u32 %word, [%address];
    mad.lo.u32 %word, %word, 3, 1;
    st.global.u32 [%address], %word;
    add.u64 %at, %at, %step;
    bra again;
done:
    ret;
}
"""
THREADS = 256
BLOCKS_MAX = 4096
TOUCH_BYTES = 64 << 10
PAGE_BYTES = 4096
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise SystemExit(f"{name}: error {code}")


def word():
    return ctypes.c_uint64()


class Gpu:
    def __init__(self):
        call("cuInit", 0)
        context, module, self.function = (ctypes.c_void_p() for _ in range(3))
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        call("cuModuleLoadData", ctypes.byref(module), PTX)
        call("cuModuleGetFunction", ctypes.byref(self.function), module, b"change")

    def change(self, address, count):
        """Each word becomes three times itself and one."""
        words = (ctypes.c_uint64(address), ctypes.c_uint64(count))
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(one) for one in words))
        blocks = max(1, min(BLOCKS_MAX, -(-count // THREADS)))
        call("cuLaunchKernel", self.function, blocks, 1, 1, THREADS, 1, 1, 0, None, pointers, None)

    def settle(self):
        call("cuCtxSynchronize")

    def managed(self, size):
        address = word()
        call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(size), 1)
        return address.value


def view(address, size):
    return numpy.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32)), (size // 4,))


def fill(words):
    # In order, as a program that reads a file does.
    for at in range(0, len(words), 1 << 20):
        part = words[at : at + (1 << 20)]
        part[:] = numpy.arange(at, at + len(part), dtype=numpy.uint32)


def is_right(words):
    """Reads all words in order."""
    right = True
    for at in range(0, len(words), 1 << 20):
        part = words[at : at + (1 << 20)]
        right &= bool((part == numpy.arange(at, at + len(part), dtype=numpy.uint32) * 3 + 1).all())
    return right


class Clock:
    """Seconds of each part, in the order of their names: fill, work, read."""

    def __init__(self):
        self.parts, self.last = {}, time.monotonic()

    def ends(self, part):
        now = time.monotonic()
        self.parts[part], self.last = now - self.last, now

    def all(self):
        return sum(self.parts.values())


def by_copies(gpu, size):
    clock = Clock()
    words = numpy.empty(size // 4, dtype=numpy.uint32)
    device = word()
    call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(size))
    fill(words)
    clock.ends("fill")
    call("cuMemcpyHtoD_v2", device, ctypes.c_void_p(words.ctypes.data), ctypes.c_size_t(size))
    gpu.change(device.value, size // 4)
    call("cuMemcpyDtoH_v2", ctypes.c_void_p(words.ctypes.data), device, ctypes.c_size_t(size))
    clock.ends("work")
    right = is_right(words)
    clock.ends("read")
    call("cuMemFree_v2", device)
    return clock, right


def by_managed(gpu, size):
    clock = Clock()
    address = gpu.managed(size)
    words = view(address, size)
    fill(words)
    clock.ends("fill")
    gpu.change(address, size // 4)
    gpu.settle()
    clock.ends("work")
    right = is_right(words)
    clock.ends("read")
    call("cuMemFree_v2", ctypes.c_uint64(address))
    return clock, right


def order(gpu, size):
    found = {"copies_s": [], "managed_s": [], "parts_s": {"copies_s": [], "managed_s": []}, "right": True}
    # The first of each is cold: its memory and buffers are new.
    for _ in range(3):
        for name, way in (("copies_s", by_copies), ("managed_s", by_managed)):
            clock, right = way(gpu, size)
            found[name].append(clock.all())
            found["parts_s"][name].append(clock.parts)
            found["right"] &= right
    return found


def carried():
    """Bytes that the loopback has carried."""
    with open("/proc/net/dev") as file:
        return next(int(line.split()[1]) for line in file if line.strip().startswith("lo:"))


def sparse(gpu, size):
    address = gpu.managed(size)
    words = view(address, size)
    call("cuMemsetD32_v2", ctypes.c_uint64(address), ctypes.c_uint32(5), ctypes.c_size_t(size // 4))
    gpu.change(address, size // 4)
    gpu.settle()
    chance = random.Random(1)
    touches = size // 100 // TOUCH_BYTES
    before, began, times, right = carried(), time.monotonic(), [], True
    for _ in range(touches):
        at = chance.randrange(0, size // 4)
        since = time.monotonic()
        right &= int(words[at]) == 16
        times.append(time.monotonic() - since)
    took, moved = time.monotonic() - began, carried() - before
    times.sort()
    call("cuMemFree_v2", ctypes.c_uint64(address))
    return {"touches": touches, "took_s": took, "moved_bytes": moved, "touch_middle_s": times[len(times) // 2], "touch_longest_s": times[-1], "right": right}


print(json.dumps({"order": order, "sparse": sparse}[sys.argv[1]](Gpu(), int(sys.argv[2]))), flush=True)
