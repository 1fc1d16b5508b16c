"""NVIDIA's own libcudart, unmodified, on our driver: called by ctypes, as any program that links it would."""

import ctypes
import random
import threading

import pytest
from conftest import run_python

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY = 0, 1, 2
INVALID_PITCH, INVALID_DIRECTION, INVALID_DEVICE, INVALID_HANDLE, NOT_READY = 12, 21, 101, 400, 600
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_ISOLATION = 900, 901, 905
TO_DEVICE, TO_HOST, ON_DEVICE, DEFAULT = 1, 2, 3, 4

c_void_p, c_int, c_size_t, c_uint, c_float = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_float
byref = ctypes.byref


class Runtime:
    """libcudart with every call checked; `status` gives the code instead of raising."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        self.library.cudaGetErrorName.restype = ctypes.c_char_p
        self.library.cudaGetErrorString.restype = ctypes.c_char_p

    def status(self, name, *arguments):
        return getattr(self.library, name)(*[c_size_t(a) if isinstance(a, int) else a for a in arguments])

    def call(self, name, *arguments):
        status = self.status(name, *arguments)
        assert status == SUCCESS, f"{name}: {self.library.cudaGetErrorString(status).decode()}"

    def out(self, kind, name, *arguments):
        """For calls whose first argument is where the answer goes."""
        result = kind()
        self.call(name, byref(result), *arguments)
        return result.value

    def malloc(self, size):
        return self.out(c_void_p, "cudaMalloc", size)


@pytest.fixture(scope="module")
def rt(libcudart):
    return Runtime(libcudart)


@pytest.fixture
def stream(rt):
    handle = rt.out(c_void_p, "cudaStreamCreate")
    yield handle
    rt.status("cudaStreamDestroy", handle)


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def upload(rt, data):
    device = rt.malloc(len(data))
    rt.call("cudaMemcpy", device, data, len(data), TO_DEVICE)
    return device


def download(rt, device, size):
    buffer = ctypes.create_string_buffer(size)
    rt.call("cudaMemcpy", buffer, device, size, TO_HOST)
    return buffer.raw


# --- Who is there -------------------------------------------------------------------------------------------------


def test_versions(rt, libcudart):
    runtime, driver = rt.out(c_int, "cudaRuntimeGetVersion"), rt.out(c_int, "cudaDriverGetVersion")
    assert runtime // 1000 == int(libcudart.name.removeprefix("libcudart.so."))
    # A driver serves later runtimes of its own major version, too.
    assert driver // 1000 >= runtime // 1000


def test_devices_are_enumerated(rt):
    count = rt.out(c_int, "cudaGetDeviceCount")
    assert count >= 1
    assert rt.out(c_int, "cudaGetDevice") == 0
    assert rt.status("cudaSetDevice", count) == INVALID_DEVICE
    rt.library.cudaGetLastError()
    rt.call("cudaSetDevice", 0)


def test_properties_and_attributes_agree(rt):
    properties = ctypes.create_string_buffer(4096)
    rt.call("cudaGetDeviceProperties", properties, 0)
    name = properties.raw[:256].split(b"\0")[0]
    assert name
    warp, threads, major = (rt.out(c_int, "cudaDeviceGetAttribute", which, 0) for which in (10, 1, 75))
    assert warp == 32 and threads == 1024 and major >= 7
    total = ctypes.c_size_t.from_buffer(properties, 256 + 16 + 8 + 8).value
    free, whole = c_size_t(), c_size_t()
    rt.call("cudaMemGetInfo", byref(free), byref(whole))
    assert whole.value == total
    assert 0 < free.value <= whole.value


def test_a_device_is_found_by_its_pci_address(rt):
    text = ctypes.create_string_buffer(32)
    rt.call("cudaDeviceGetPCIBusId", text, 32, 0)
    assert rt.out(c_int, "cudaDeviceGetByPCIBusId", text) == 0


def test_limits_and_cache_preferences(rt):
    for limit in (0, 1, 2):
        assert rt.out(c_size_t, "cudaDeviceGetLimit", limit) > 0
    rt.call("cudaDeviceSetLimit", 1, 2 << 20)
    assert rt.out(c_size_t, "cudaDeviceGetLimit", 1) >= 2 << 20
    least, greatest = c_int(), c_int()
    rt.call("cudaDeviceGetStreamPriorityRange", byref(least), byref(greatest))
    assert greatest.value <= 0 <= least.value


def test_errors_have_names_and_texts(rt):
    assert rt.library.cudaGetErrorName(2) == b"cudaErrorMemoryAllocation"
    assert rt.library.cudaGetErrorString(2) == b"out of memory"
    assert rt.library.cudaGetErrorName(700) == b"cudaErrorIllegalAddress"
    assert rt.library.cudaGetErrorString(999999) == b"unrecognized error code"


def test_the_last_error_is_kept_until_it_is_read(rt):
    assert rt.status("cudaMalloc", None, 16) == INVALID_VALUE
    assert rt.library.cudaPeekAtLastError() == INVALID_VALUE
    assert rt.library.cudaGetLastError() == INVALID_VALUE
    assert rt.library.cudaGetLastError() == SUCCESS


# --- Memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4096, 65537, 1 << 20, (9 << 20) + 5])
def test_bytes_come_back(rt, size):
    data = noise(size)
    device = upload(rt, data)
    assert download(rt, device, size) == data
    rt.call("cudaFree", device)


def test_device_to_device_and_memset(rt):
    data = noise(100000)
    a, b = upload(rt, data), rt.malloc(len(data))
    rt.call("cudaMemcpy", b, a, len(data), ON_DEVICE)
    rt.call("cudaMemset", a, 0xA5, 777)
    assert download(rt, a, len(data)) == b"\xa5" * 777 + data[777:]
    assert download(rt, b, len(data)) == data
    rt.call("cudaMemcpy", b + 10, a + 1, 50, DEFAULT)
    assert download(rt, b, 70) == data[:10] + b"\xa5" * 50 + data[60:70]
    rt.call("cudaFree", a)
    rt.call("cudaFree", b)


def test_allocations_are_aligned_and_apart(rt):
    pointers = [rt.malloc(100) for _ in range(50)]
    assert all(p % 256 == 0 for p in pointers)
    assert len(set(pointers)) == 50
    for p in pointers:
        rt.call("cudaFree", p)


def test_freeing_nothing_is_allowed_and_freeing_twice_is_not(rt):
    rt.call("cudaFree", None)
    device = rt.malloc(64)
    rt.call("cudaFree", device)
    assert rt.status("cudaFree", device) == INVALID_VALUE
    rt.library.cudaGetLastError()


def test_too_much_memory_is_refused_and_nothing_breaks(rt):
    pointer = c_void_p()
    assert rt.status("cudaMalloc", byref(pointer), 1 << 48) == OUT_OF_MEMORY
    rt.library.cudaGetLastError()
    rt.call("cudaFree", rt.malloc(1 << 20))


def test_free_memory_shrinks_and_grows_with_allocations(libcudart):
    """In a process of its own, since what others allocate meanwhile counts too; so within a margin."""
    free = run_python(FREE.format(library=str(libcudart))).stdout.split()
    before, during, after = (int(value) >> 20 for value in free)
    assert 90 <= before - during <= 110
    assert 90 <= after - during <= 110


FREE = """
import ctypes
rt = ctypes.CDLL({library!r})
def free():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert rt.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value
pointer = ctypes.c_void_p()
before = free()
assert rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(100 << 20)) == 0
during = free()
assert rt.cudaFree(pointer) == 0
print(before, during, free())
"""


def test_wrong_copies_are_refused(rt):
    device, buffer = rt.malloc(1024), ctypes.create_string_buffer(4096)
    assert rt.status("cudaMemcpy", device, buffer, 16, 77) == INVALID_DIRECTION
    assert rt.status("cudaMemcpy", buffer, device, 4096 << 20, TO_HOST) == INVALID_VALUE
    assert rt.status("cudaMemcpy2D", device, 3, buffer, 16, 8, 2, TO_DEVICE) == INVALID_PITCH
    rt.library.cudaGetLastError()
    rt.call("cudaFree", device)


def test_2d_copies_use_their_pitches(rt):
    pointer, pitch = c_void_p(), c_size_t()
    rt.call("cudaMallocPitch", byref(pointer), byref(pitch), 100, 7)
    data = noise(700)
    rt.call("cudaMemset2D", pointer, pitch, 0, 100, 7)
    rt.call("cudaMemcpy2D", pointer, pitch, data, 100, 100, 7, TO_DEVICE)
    back = ctypes.create_string_buffer(300)
    rt.call("cudaMemcpy2D", back, 30, c_void_p(pointer.value + 2 * pitch.value + 10), pitch, 30, 5, TO_HOST)
    assert back.raw[:150] == b"".join(data[row * 100 + 10 : row * 100 + 40] for row in range(2, 7))
    rt.call("cudaFree", pointer)


def test_pinned_memory_knows_what_it_is(rt):
    pinned = rt.out(c_void_p, "cudaHostAlloc", 1 << 16, c_uint(0))
    ctypes.memset(pinned, 7, 1 << 16)
    attributes = (c_int * 64)()
    rt.call("cudaPointerGetAttributes", attributes, c_void_p(pinned))
    assert attributes[0] == 1
    device = rt.malloc(1 << 16)
    rt.call("cudaMemcpy", device, c_void_p(pinned), 1 << 16, TO_DEVICE)
    assert download(rt, device, 100) == b"\7" * 100
    rt.call("cudaPointerGetAttributes", attributes, c_void_p(device + 5))
    assert attributes[0] == 2
    rt.call("cudaFree", device)
    rt.call("cudaFreeHost", c_void_p(pinned))


def test_plain_memory_can_be_registered(rt):
    buffer = ctypes.create_string_buffer(1 << 16)
    rt.call("cudaHostRegister", buffer, len(buffer), c_uint(0))
    assert rt.status("cudaHostRegister", buffer, len(buffer), c_uint(0)) == 712
    rt.library.cudaGetLastError()
    rt.call("cudaHostUnregister", buffer)
    assert rt.status("cudaHostUnregister", buffer) == 713
    rt.library.cudaGetLastError()


# --- Streams and events -------------------------------------------------------------------------------------------


def test_async_copies_keep_the_order_of_their_stream(rt, stream):
    size = 1 << 18
    pinned, back = (rt.out(c_void_p, "cudaMallocHost", size) for _ in range(2))
    device = rt.malloc(size)
    ctypes.memmove(pinned, noise(size), size)
    rt.call("cudaMemsetAsync", c_void_p(device), 0, size, c_void_p(stream))
    rt.call("cudaMemcpyAsync", c_void_p(device), c_void_p(pinned), size, TO_DEVICE, c_void_p(stream))
    rt.call("cudaMemsetAsync", c_void_p(device + 100), 1, 10, c_void_p(stream))
    rt.call("cudaMemcpyAsync", c_void_p(back), c_void_p(device), size, TO_HOST, c_void_p(stream))
    rt.call("cudaStreamSynchronize", c_void_p(stream))
    data = noise(size)
    assert ctypes.string_at(back, size) == data[:100] + b"\1" * 10 + data[110:]
    rt.call("cudaStreamQuery", c_void_p(stream))
    for pointer in (pinned, back):
        rt.call("cudaFreeHost", c_void_p(pointer))
    rt.call("cudaFree", c_void_p(device))


def test_streams_carry_flags_priorities_and_ids(rt):
    handle = c_void_p()
    rt.call("cudaStreamCreateWithPriority", byref(handle), c_uint(1), c_int(-1))
    flags, priority, first, second = c_uint(), c_int(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
    rt.call("cudaStreamGetFlags", handle, byref(flags))
    rt.call("cudaStreamGetPriority", handle, byref(priority))
    rt.call("cudaStreamGetId", handle, byref(first))
    rt.call("cudaStreamGetId", None, byref(second))
    assert flags.value == 1 and priority.value == -1 and first.value != second.value
    rt.call("cudaStreamDestroy", handle)


def test_events_order_streams_and_take_time(rt, stream):
    start, end = (rt.out(c_void_p, "cudaEventCreate") for _ in range(2))
    device = rt.malloc(16 << 20)
    rt.call("cudaEventRecord", c_void_p(start), c_void_p(stream))
    for value in range(8):
        rt.call("cudaMemsetAsync", c_void_p(device), value, 16 << 20, c_void_p(stream))
    rt.call("cudaEventRecord", c_void_p(end), c_void_p(stream))
    assert rt.status("cudaEventQuery", c_void_p(end)) in (SUCCESS, NOT_READY)
    rt.call("cudaEventSynchronize", c_void_p(end))
    elapsed = rt.out(c_float, "cudaEventElapsedTime", c_void_p(start), c_void_p(end))
    # 128 MiB are written between the two: more than nothing, less than a minute.
    assert 0.05 < elapsed < 60000
    for event in (start, end):
        rt.call("cudaEventDestroy", c_void_p(event))
    rt.call("cudaFree", c_void_p(device))


def test_elapsed_time_needs_two_recorded_timed_events(rt):
    untimed = rt.out(c_void_p, "cudaEventCreateWithFlags", c_uint(2))
    timed = rt.out(c_void_p, "cudaEventCreate")
    rt.call("cudaEventRecord", c_void_p(timed), None)
    rt.call("cudaEventRecord", c_void_p(untimed), None)
    rt.call("cudaDeviceSynchronize")
    elapsed = c_float()
    assert rt.status("cudaEventElapsedTime", byref(elapsed), c_void_p(timed), c_void_p(untimed)) == INVALID_HANDLE
    rt.library.cudaGetLastError()


def test_host_functions_run_in_stream_order(rt, stream):
    seen = []
    callback = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: seen.append((data, threading.get_ident())))
    for value in (1, 2, 3):
        rt.call("cudaLaunchHostFunc", c_void_p(stream), callback, c_void_p(value))
    rt.call("cudaStreamSynchronize", c_void_p(stream))
    assert [data for data, _ in seen] == [1, 2, 3]


def test_several_threads_share_one_context(rt):
    failures = []

    def work(seed):
        try:
            rt.call("cudaSetDevice", 0)
            for round_ in range(10):
                data = noise(5000 + seed, seed * 100 + round_)
                device = upload(rt, data)
                assert download(rt, device, len(data)) == data
                rt.call("cudaFree", device)
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- Pools --------------------------------------------------------------------------------------------------------


def test_memory_from_the_default_pool(rt, stream):
    assert rt.out(c_int, "cudaDeviceGetAttribute", 115, 0) == 1
    pool = rt.out(c_void_p, "cudaDeviceGetDefaultMemPool", 0)
    threshold = ctypes.c_uint64(1 << 30)
    rt.call("cudaMemPoolSetAttribute", c_void_p(pool), 4, byref(threshold))
    first = rt.out(c_void_p, "cudaMallocAsync", 1 << 20, c_void_p(stream))
    used = ctypes.c_uint64()
    rt.call("cudaMemPoolGetAttribute", c_void_p(pool), 7, byref(used))
    assert used.value >= 1 << 20
    rt.call("cudaMemsetAsync", c_void_p(first), 9, 1 << 20, c_void_p(stream))
    rt.call("cudaFreeAsync", c_void_p(first), c_void_p(stream))
    second = rt.out(c_void_p, "cudaMallocAsync", 1 << 20, c_void_p(stream))
    rt.call("cudaMemsetAsync", c_void_p(second), 8, 1 << 20, c_void_p(stream))
    rt.call("cudaStreamSynchronize", c_void_p(stream))
    assert download(rt, second, 64) == b"\x08" * 64
    rt.call("cudaFreeAsync", c_void_p(second), c_void_p(stream))
    rt.call("cudaStreamSynchronize", c_void_p(stream))
    rt.call("cudaMemPoolTrimTo", c_void_p(pool), 0)


# --- Graphs -------------------------------------------------------------------------------------------------------


def test_a_captured_graph_can_be_launched_again(rt, stream):
    device, s = rt.malloc(4096), c_void_p(stream)
    back = rt.out(c_void_p, "cudaMallocHost", 4096)
    rt.call("cudaMemset", device, 0, 4096)
    rt.call("cudaStreamBeginCapture", s, 0)
    status = c_int()
    rt.call("cudaStreamIsCapturing", s, byref(status))
    assert status.value == 1
    rt.call("cudaMemsetAsync", c_void_p(device), 5, 2048, s)
    rt.call("cudaMemcpyAsync", c_void_p(device + 2048), c_void_p(device), 1024, ON_DEVICE, s)
    rt.call("cudaMemcpyAsync", c_void_p(back), c_void_p(device), 4096, TO_HOST, s)
    graph = c_void_p()
    rt.call("cudaStreamEndCapture", s, byref(graph))
    # Capturing is not executing.
    assert download(rt, device, 4096) == bytes(4096)
    count = c_size_t()
    rt.call("cudaGraphGetNodes", graph, None, byref(count))
    assert count.value == 3
    executable = c_void_p()
    rt.call("cudaGraphInstantiate", byref(executable), graph, ctypes.c_ulonglong(0))
    for _ in range(3):
        rt.call("cudaMemset", device, 0, 4096)
        rt.call("cudaGraphLaunch", executable, s)
        rt.call("cudaStreamSynchronize", s)
        assert ctypes.string_at(back, 4096) == b"\5" * 3072 + bytes(1024)
    rt.call("cudaGraphExecDestroy", executable)
    rt.call("cudaGraphDestroy", graph)
    rt.call("cudaFree", device)


def test_what_may_not_be_captured_spoils_the_capture(rt, stream):
    s, graph = c_void_p(stream), c_void_p()
    rt.call("cudaStreamBeginCapture", s, 0)
    assert rt.status("cudaStreamSynchronize", s) == CAPTURE_UNSUPPORTED
    assert rt.status("cudaStreamEndCapture", s, byref(graph)) == CAPTURE_INVALIDATED
    assert not graph.value
    rt.library.cudaGetLastError()
    rt.call("cudaStreamSynchronize", s)


def test_graphs_made_by_hand_have_edges(rt, libcudart):
    # CUDA 13 has an argument more, for what edges carry.
    lists = (None,) * (2 if libcudart.name.endswith(".12") else 3)
    graph = c_void_p()
    rt.call("cudaGraphCreate", byref(graph), c_uint(0))
    a, b, c = c_void_p(), c_void_p(), c_void_p()
    rt.call("cudaGraphAddEmptyNode", byref(a), graph, None, 0)
    rt.call("cudaGraphAddEmptyNode", byref(b), graph, byref(a), 1)
    rt.call("cudaGraphAddEmptyNode", byref(c), graph, (c_void_p * 2)(a, b), 2)
    roots, edges = c_size_t(), c_size_t()
    rt.call("cudaGraphGetRootNodes", graph, None, byref(roots))
    rt.call("cudaGraphGetEdges", graph, *lists, byref(edges))
    assert (roots.value, edges.value) == (1, 3)
    clone = c_void_p()
    rt.call("cudaGraphClone", byref(clone), graph)
    rt.call("cudaGraphDestroy", graph)
    rt.call("cudaGraphGetEdges", clone, *lists, byref(edges))
    assert edges.value == 3
    rt.call("cudaGraphDestroy", clone)


# --- The end ------------------------------------------------------------------------------------------------------

RESET = """
import ctypes, sys
rt = ctypes.CDLL({library!r})
def call(name, *arguments):
    status = getattr(rt, name)(*arguments)
    assert status == 0, (name, status)
free, total, again = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
pointer = ctypes.c_void_p()
call("cudaFree", None)
call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(64 << 20))
call("cudaDeviceReset")
assert rt.cudaFree(pointer) == 1
rt.cudaGetLastError()
call("cudaMemGetInfo", ctypes.byref(again), ctypes.byref(total))
assert again.value >= free.value - (1 << 20), (free.value, again.value)
call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
call("cudaMemset", pointer, 1, ctypes.c_size_t(1 << 20))
call("cudaDeviceSynchronize")
print("anew")
"""


def test_a_reset_gives_everything_back(libcudart):
    library = str(libcudart)
    assert run_python(RESET.format(library=library)).stdout == "anew\n"


FORK = """
import ctypes, os
rt = ctypes.CDLL({library!r})
assert rt.cudaFree(None) == 0
child = os.fork()
if child == 0:
    pointer = ctypes.c_void_p()
    os._exit(rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(16)))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
pointer = ctypes.c_void_p()
assert rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(16)) == 0
"""


def test_a_forked_child_is_refused_and_its_parent_goes_on(libcudart):
    library = str(libcudart)
    assert run_python(FORK.format(library=library)).stdout == "3\n"
