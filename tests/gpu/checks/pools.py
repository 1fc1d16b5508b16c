"""Stream-ordered memory through the driver itself: levels of a pool, reuse while kernels run, running out, trimming, endings."""

import ctypes as c
import functools
import time

from say import attempts, note, same

cuda = c.CDLL("libcuda.so.1")
U64, SIZE, POINTER = c.c_uint64, c.c_size_t, c.c_void_p
MIB, GIB = 1 << 20, 1 << 30
REUSE, THRESHOLD, RESERVED, USED = (1, 2, 3), 4, 5, 7

SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 turns, .param .u32 value)
{
 .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd1;
 ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [turns]; ld.param.u32 %r2, [value];
AGAIN:
 sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0;
 bar.sync 0;
 @%p bra AGAIN;
 st.global.u32 [%rd1], %r2;
 ret;
}
\0"""
# How long a kernel runs that others must not overtake.
SPIN_SECONDS = 0.2


def must(code):
    assert code == 0, f"CUDA error {code}"


def start():
    must(cuda.cuInit(0))
    context, module, function = POINTER(), POINTER(), POINTER()
    must(cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuModuleLoadData(c.byref(module), SPIN))
    must(cuda.cuModuleGetFunction(c.byref(function), module, b"spin"))
    return function


spin_function = start()


def new_stream():
    stream = POINTER()
    must(cuda.cuStreamCreate(c.byref(stream), 1))
    return stream


def allocate(size, stream, pool=None):
    place = U64()
    if pool is None:
        code = cuda.cuMemAllocAsync(c.byref(place), SIZE(size), stream)
    else:
        code = cuda.cuMemAllocFromPoolAsync(c.byref(place), SIZE(size), pool, stream)
    return code, place


def block(size, stream):
    code, place = allocate(size, stream)
    must(code)
    return place


def free(place, stream):
    must(cuda.cuMemFreeAsync(place, stream))


def spin(place, stream, seconds=SPIN_SECONDS, turns=0, value=0xBAD):
    """A kernel that writes a word at its end."""
    turns = turns or int(seconds / seconds_per_turn()) + 1
    arguments = (U64(place.value), c.c_uint32(turns), c.c_uint32(value))
    pointers = (POINTER * 3)(*(c.cast(c.pointer(argument), POINTER) for argument in arguments))
    must(cuda.cuLaunchKernel(spin_function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None))


@functools.cache
def seconds_per_turn():
    stream, turns = new_stream(), 100_000
    place = block(512, stream)
    spin(place, stream, turns=1)
    synchronize(stream)
    began = time.perf_counter()
    spin(place, stream, turns=turns)
    synchronize(stream)
    taken = time.perf_counter() - began
    free(place, stream)
    synchronize(stream)
    return taken / turns


def fill(place, value, size, stream):
    must(cuda.cuMemsetD32Async(place, c.c_uint(value), SIZE(size // 4), stream))


def words(place, size):
    """The word that is everywhere in a block."""
    host = (c.c_ubyte * size)()
    must(cuda.cuMemcpyDtoH_v2(host, place, SIZE(size)))
    found = bytes(host)
    return int.from_bytes(found[:4], "little") if found == found[:4] * (size // 4) else "several"


def default_pool():
    pool = POINTER()
    must(cuda.cuDeviceGetDefaultMemPool(c.byref(pool), 0))
    return pool


def level(pool, attribute):
    value = U64()
    must(cuda.cuMemPoolGetAttribute(pool, attribute, c.byref(value)))
    return value.value


def levels(pool):
    return [level(pool, attribute) for attribute in (4, 5, 6, 7, 8)]


def set_level(pool, attribute, value):
    must(cuda.cuMemPoolSetAttribute(pool, attribute, c.byref(U64(value))))


def synchronize(stream=None):
    must(cuda.cuStreamSynchronize(stream) if stream else cuda.cuCtxSynchronize())


def free_memory():
    found, total = SIZE(), SIZE()
    must(cuda.cuMemGetInfo_v2(c.byref(found), c.byref(total)))
    return found.value


class Props(c.Structure):
    _fields_ = [(name, c.c_int) for name in ("allocation", "handles", "location", "device")]
    _fields_ += [("security", POINTER), ("max_size", SIZE), ("reserved", c.c_ubyte * 56)]


def new_pool(max_size=0):
    pool = POINTER()
    must(cuda.cuMemPoolCreate(c.byref(pool), c.byref(Props(1, 0, 1, 0, None, max_size))))
    return pool


def levels_move():
    """In a pool of its own: another check may have used the device's."""
    pool, stream, found = new_pool(), new_stream(), []
    small = allocate(1000, stream, pool)[1]
    found.append(levels(pool))
    large = allocate(100 * MIB, stream, pool)[1]
    found.append(levels(pool))
    free(small, stream)
    synchronize(stream)
    found.append(levels(pool))
    free(large, stream)
    synchronize(stream)
    found.append(levels(pool))
    set_level(pool, THRESHOLD, 2**64 - 1)
    free(allocate(100 * MIB, stream, pool)[1], stream)
    synchronize(stream)
    found.append(levels(pool))
    must(cuda.cuMemPoolTrimTo(pool, SIZE(40 * MIB)))
    found.append(levels(pool))
    must(cuda.cuMemPoolTrimTo(pool, SIZE(0)))
    found.append(levels(pool))
    must(cuda.cuMemPoolDestroy(pool))
    return found


def alignment_and_ranges():
    stream, found = new_stream(), []
    for size in (1, 511, 513, 5 * MIB, 70 * MIB):
        place = block(size, stream)
        base, bytes_found, of = U64(), SIZE(), POINTER()
        must(cuda.cuMemGetAddressRange_v2(c.byref(base), c.byref(bytes_found), U64(place.value + size // 2)))
        must(cuda.cuPointerGetAttribute(c.byref(of), 17, place))
        found.append((place.value % 256, base.value == place.value, bytes_found.value, of.value == default_pool().value))
        free(place, stream)
    return found


def a_stream_has_its_memory_back():
    stream = new_stream()
    first = block(64 << 10, stream)
    spin(first, stream)
    free(first, stream)
    again = block(64 << 10, stream)
    fill(again, 7, 64 << 10, stream)
    synchronize(stream)
    note("same-place", again.value == first.value)
    found = words(again, 64 << 10)
    free(again, stream)
    return found


def another_stream_waits_or_gets_other_memory():
    """With every permission to use memory again: no kernel of one life of a block is seen in the next."""
    pool, found = default_pool(), []
    for permissions in range(8):
        for bit, attribute in enumerate(REUSE):
            must(cuda.cuMemPoolSetAttribute(pool, attribute, c.byref(c.c_int(permissions >> bit & 1))))
        one, two = new_stream(), new_stream()
        first = block(8 * MIB, one)
        spin(first, one)
        free(first, one)
        others = [block(8 * MIB, two) for _ in range(8)]
        for at, place in enumerate(others):
            fill(place, at, 8 * MIB, two)
        synchronize(two)
        synchronize(one)
        found.append(all(words(place, 8 * MIB) == at for at, place in enumerate(others)))
        for place in others:
            free(place, two)
        must(cuda.cuStreamDestroy_v2(one))
        must(cuda.cuStreamDestroy_v2(two))
    for attribute in REUSE:
        must(cuda.cuMemPoolSetAttribute(pool, attribute, c.byref(c.c_int(1))))
    return found


def one_stream_allocates_and_another_frees():
    maker, taker, made = new_stream(), new_stream(), POINTER()
    must(cuda.cuEventCreate(c.byref(made), 2))
    results = U64()
    must(cuda.cuMemAlloc_v2(c.byref(results), SIZE(4 * 500)))
    for turn in range(500):
        place = block(4 * MIB, maker)
        fill(place, turn, 4 * MIB, maker)
        must(cuda.cuEventRecord(made, maker))
        must(cuda.cuStreamWaitEvent(taker, made, 0))
        spin(U64(place.value + 4), taker, seconds=1e-4)
        must(cuda.cuMemcpyDtoDAsync_v2(U64(results.value + 4 * turn), place, SIZE(4), taker))
        free(place, taker)
    note("reserved-mib", level(default_pool(), RESERVED) // MIB)
    synchronize()
    host = (c.c_uint32 * 500)()
    must(cuda.cuMemcpyDtoH_v2(host, results, SIZE(2000)))
    must(cuda.cuMemFree_v2(results))
    return list(host) == list(range(500))


def streams_that_end():
    kept = []
    for turn in range(30):
        one, two = new_stream(), new_stream()
        mine = block(16 * MIB, one)
        spin(mine, one, seconds=SPIN_SECONDS / 20)
        free(mine, one)
        must(cuda.cuStreamDestroy_v2(one))
        kept.append(block(MIB, two))
        fill(kept[-1], turn, MIB, two)
        must(cuda.cuStreamDestroy_v2(two))
    note("reserved-mib", level(default_pool(), RESERVED) // MIB)
    synchronize()
    found = [words(place, MIB) for place in kept]
    for place in kept:
        must(cuda.cuMemFree_v2(place))
    return found == list(range(30))


def running_out():
    """Fill what is there from two streams, meet the end, free it in both, and have most of it in one piece."""
    pool, streams, held = default_pool(), (new_stream(), new_stream()), []
    synchronize()
    must(cuda.cuMemPoolTrimTo(pool, SIZE(0)))
    set_level(pool, THRESHOLD, 2**64 - 1)
    before = free_memory()
    # Natively what an ended stream freed may count as used for good.
    used_before = level(pool, USED)
    while len(held) < 1000:
        code, place = allocate(GIB, streams[len(held) % 2])
        if code:
            break
        held.append(place)
    same("code", code)
    note("gibibytes", (len(held), before // GIB))
    same("nearly-all", len(held) >= before // GIB - 3)
    same("used", level(pool, USED) - used_before == len(held) * GIB)
    fill(held[-1], 9, GIB, streams[0])
    synchronize()
    same("last", words(U64(held[-1].value + GIB - MIB), MIB))
    for at, place in enumerate(held):
        free(place, streams[at % 2])
    code, large = allocate(len(held) * GIB * 3 // 4, streams[0])
    same("most-in-one-piece", code)
    if code == 0:
        fill(large, 3, MIB, streams[0])
        free(large, streams[0])
    plain = U64()
    same("plain-memory-too", cuda.cuMemAlloc_v2(c.byref(plain), SIZE(len(held) * GIB * 3 // 4)))
    must(cuda.cuMemFree_v2(plain))
    synchronize()
    must(cuda.cuMemPoolTrimTo(pool, SIZE(0)))
    set_level(pool, THRESHOLD, 0)
    same("too-much", allocate(1 << 45, streams[0])[0])
    return abs(free_memory() - before) < GIB, level(pool, USED) - used_before, level(pool, RESERVED)


def endings():
    stream, found = new_stream(), []
    pool = new_pool(10 * MIB)
    code, place = allocate(6 * MIB, stream, pool)
    found.append(code)
    must(cuda.cuMemPoolDestroy(pool))
    fill(place, 5, 6 * MIB, stream)
    synchronize(stream)
    found.append(words(place, 6 * MIB))
    found.append(cuda.cuMemFreeAsync(place, stream))
    found.append(cuda.cuMemFreeAsync(place, stream))
    place = block(MIB, stream)
    synchronize(stream)
    found.append(cuda.cuMemFree_v2(place))
    found.append(cuda.cuMemFree_v2(place))
    found.append(cuda.cuMemFreeAsync(U64(place.value + 4096), stream))
    plain = U64()
    must(cuda.cuMemAlloc_v2(c.byref(plain), SIZE(MIB)))
    found.append(cuda.cuMemFreeAsync(plain, stream))
    synchronize(stream)
    return found


attempts(
    levels_move,
    alignment_and_ranges,
    a_stream_has_its_memory_back,
    another_stream_waits_or_gets_other_memory,
    one_stream_allocates_and_another_frees,
    streams_that_end,
    endings,
    running_out,
)
