"""NVRTC to PTX to the driver, through NVIDIA's Python bindings and through cuda.core's own objects."""

import ctypes
import os

import numpy as np
import pytest
from conftest import run_python
from cuda.bindings import driver, nvrtc

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
template <typename T, int N> __global__ void scale(T *data) { data[threadIdx.x] *= N; }
__constant__ int table[4] = {1, 2, 3, 4};
__device__ int counter;
extern "C" __global__ void count(void) { atomicAdd(&counter, table[threadIdx.x % 4]); }
"""


def ok(result):
    """The values of a call of the bindings, whose first is the status."""
    status, *values = result
    assert int(status) == 0, status
    return values[0] if len(values) == 1 else tuple(values)


def compile_to_ptx(source, *options, names=()):
    program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"judge.cu", 0, [], []))
    for name in names:
        ok(nvrtc.nvrtcAddNameExpression(program, name))
    options = [b"--gpu-architecture=compute_90", *options]
    status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    if int(status) != 0:
        log = b" " * ok(nvrtc.nvrtcGetProgramLogSize(program))
        ok(nvrtc.nvrtcGetProgramLog(program, log))
        raise AssertionError(log.decode())
    ptx = b" " * ok(nvrtc.nvrtcGetPTXSize(program))
    ok(nvrtc.nvrtcGetPTX(program, ptx))
    lowered = {name: ok(nvrtc.nvrtcGetLoweredName(program, name)) for name in names}
    ok(nvrtc.nvrtcDestroyProgram(program))
    return ptx, lowered


@pytest.fixture(scope="module")
def context():
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    handle = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(handle))
    yield handle
    ok(driver.cuDevicePrimaryCtxRelease(device))


@pytest.fixture(scope="module")
def module(context):
    ptx, names = compile_to_ptx(SAXPY, names=(b"scale<double, 3>",))
    handle = ok(driver.cuModuleLoadData(ptx))
    yield handle, names
    ok(driver.cuModuleUnload(handle))


def device_copy(array):
    pointer = ok(driver.cuMemAlloc(array.nbytes))
    ok(driver.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
    return pointer


def host_copy(pointer, like):
    array = np.empty_like(like)
    ok(driver.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
    return array


def test_a_kernel_computes(module):
    n = 10_007
    x, y = np.random.default_rng(1).random((2, n), dtype=np.float32)
    dx, dy = device_copy(x), device_copy(y)
    kernel = ok(driver.cuModuleGetFunction(module[0], b"saxpy"))
    values = (np.float32(2.5), int(dx), int(dy), n)
    kinds = (ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    ok(driver.cuLaunchKernel(kernel, (n + 127) // 128, 1, 1, 128, 1, 1, 0, 0, (values, kinds), 0))
    got = host_copy(dy, y)
    np.testing.assert_allclose(got, np.float32(2.5) * x + y, rtol=3e-7)
    ok(driver.cuMemFree(dx))
    ok(driver.cuMemFree(dy))


def test_launches_of_cuda_3_compute(module):
    """Parameters one at a time, as programs before cuLaunchKernel set them; the bindings do not know these calls any more."""
    libcuda = ctypes.CDLL("libcuda.so.1")
    n = 1000
    x, y = np.random.default_rng(2).random((2, n), dtype=np.float32)
    dx, dy = device_copy(x), device_copy(y)
    kernel = ctypes.c_void_p(int(ok(driver.cuModuleGetFunction(module[0], b"saxpy"))))
    assert libcuda.cuLaunchGrid(kernel, 1, 1) == 1, "no block was set"
    pointers = (ctypes.c_uint64 * 2)(int(dx), int(dy))
    calls = [
        ("cuFuncSetBlockShape", 50, 1, 1),
        ("cuFuncSetSharedSize", 0),
        ("cuParamSetf", 0, ctypes.c_float(2.5)),
        ("cuParamSetv", 8, pointers, 16),
        ("cuParamSeti", 24, 500),
        ("cuParamSeti", 28, 0),
        ("cuParamSetSize", 32),
    ]
    for name, *arguments in calls:
        assert getattr(libcuda, name)(kernel, *arguments) == 0, name
    assert libcuda.cuLaunchGrid(kernel, 20, 1) == 0
    ok(driver.cuCtxSynchronize())
    got = host_copy(dy, y)
    assert (got[500:] == y[500:]).all()
    np.testing.assert_allclose(got[:500], (np.float32(2.5) * x + y)[:500], rtol=3e-7)
    assert libcuda.cuParamSetSize(kernel, 5000) == 1
    assert libcuda.cuParamSeti(kernel, -4, 1) == 1
    ok(driver.cuMemFree(dx))
    ok(driver.cuMemFree(dy))


def test_a_template_is_found_by_its_lowered_name(module):
    data = np.arange(32, dtype=np.float64)
    pointer = device_copy(data)
    kernel = ok(driver.cuModuleGetFunction(module[0], module[1][b"scale<double, 3>"]))
    ok(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, ((int(pointer),), (ctypes.c_void_p,)), 0))
    np.testing.assert_array_equal(host_copy(pointer, data), data * 3)
    ok(driver.cuMemFree(pointer))


def test_globals_have_addresses_sizes_and_first_values(module):
    table, size = ok(driver.cuModuleGetGlobal(module[0], b"table"))
    assert size == 16
    np.testing.assert_array_equal(host_copy(table, np.zeros(4, np.int32)), [1, 2, 3, 4])
    kernel = ok(driver.cuModuleGetFunction(module[0], b"count"))
    ok(driver.cuLaunchKernel(kernel, 2, 1, 1, 8, 1, 1, 0, 0, 0, 0))
    counter, _ = ok(driver.cuModuleGetGlobal(module[0], b"counter"))
    assert host_copy(counter, np.zeros(1, np.int32))[0] == 40


def test_functions_know_their_attributes(module):
    kernel = ok(driver.cuModuleGetFunction(module[0], b"saxpy"))
    attribute = driver.CUfunction_attribute
    assert ok(driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel)) == 1024
    assert ok(driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel)) == 90
    assert [ok(driver.cuFuncGetParamInfo(kernel, i)) for i in range(4)] == [(0, 4), (8, 8), (16, 8), (24, 8)]
    assert int(driver.cuFuncGetParamInfo(kernel, 4)[0]) == 1
    assert ok(driver.cuFuncGetName(kernel)) == b"saxpy"
    assert ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 128, 0)) >= 1


def test_wrong_names_and_wrong_images_are_refused(module):
    assert int(driver.cuModuleGetFunction(module[0], b"missing")[0]) == 500
    assert int(driver.cuModuleGetGlobal(module[0], b"missing")[0]) == 500
    assert int(driver.cuModuleLoadData(b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry f() { nonsense; }\n\0")[0]) == 218


def test_a_library_gives_kernels(context):
    ptx, _ = compile_to_ptx(SAXPY)
    library = ok(driver.cuLibraryLoadData(ptx, [], [], 0, [], [], 0))
    assert ok(driver.cuLibraryGetKernelCount(library)) == 2
    kernel = ok(driver.cuLibraryGetKernel(library, b"count"))
    ok(driver.cuLaunchKernel(driver.CUfunction(int(kernel)), 1, 1, 1, 4, 1, 1, 0, 0, 0, 0))
    pointer, _ = ok(driver.cuLibraryGetGlobal(library, b"counter"))
    assert host_copy(pointer, np.zeros(1, np.int32))[0] == 10
    ok(driver.cuLibraryUnload(library))


def test_the_driver_links_separate_pieces(context):
    caller, _ = compile_to_ptx(
        'extern __device__ int twice(int); extern "C" __global__ void call(int *x) { *x = twice(*x); }', b"-rdc=true"
    )
    callee, _ = compile_to_ptx("__device__ int twice(int x) { return 2 * x; }", b"-rdc=true")
    state = ok(driver.cuLinkCreate(0, [], []))
    kind = driver.CUjitInputType.CU_JIT_INPUT_PTX
    ok(driver.cuLinkAddData(state, kind, caller, len(caller), b"caller", 0, [], []))
    ok(driver.cuLinkAddData(state, kind, callee, len(callee), b"callee", 0, [], []))
    image, _ = ok(driver.cuLinkComplete(state))
    module = ok(driver.cuModuleLoadData(image))
    ok(driver.cuLinkDestroy(state))
    kernel = ok(driver.cuModuleGetFunction(module, b"call"))
    pointer = device_copy(np.array([21], np.int32))
    ok(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((int(pointer),), (ctypes.c_void_p,)), 0))
    assert host_copy(pointer, np.zeros(1, np.int32))[0] == 42
    ok(driver.cuModuleUnload(module))


def test_an_unresolved_symbol_fails_the_link(context):
    caller, _ = compile_to_ptx(
        'extern __device__ int absent(int); extern "C" __global__ void call(int *x) { *x = absent(*x); }', b"-rdc=true"
    )
    state = ok(driver.cuLinkCreate(0, [], []))
    kind = driver.CUjitInputType.CU_JIT_INPUT_PTX
    statuses = [int(driver.cuLinkAddData(state, kind, caller, len(caller), b"caller", 0, [], [])[0])]
    statuses.append(int(driver.cuLinkComplete(state)[0]))
    assert any(statuses)
    ok(driver.cuLinkDestroy(state))


# --- cuda.core ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def core_device():
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    return device


def test_core_knows_the_device(core_device):
    assert core_device.name
    assert core_device.compute_capability >= (7, 0)
    assert core_device.properties.warp_size == 32
    assert core_device.uuid


def test_core_compiles_launches_and_copies(core_device):
    from cuda.core import LaunchConfig, Program, ProgramOptions, launch

    stream = core_device.create_stream()
    options = ProgramOptions(std="c++17", arch="compute_90")
    kernel = Program(SAXPY, code_type="c++", options=options).compile("ptx").get_kernel("saxpy")
    n = 5000
    x, y = np.random.default_rng(2).random((2, n), dtype=np.float32)
    bx, by = core_device.allocate(x.nbytes, stream=stream), core_device.allocate(y.nbytes, stream=stream)
    driver.cuMemcpyHtoDAsync(int(bx.handle), x.ctypes.data, x.nbytes, stream.handle)
    driver.cuMemcpyHtoDAsync(int(by.handle), y.ctypes.data, y.nbytes, stream.handle)
    config = LaunchConfig(grid=(n + 255) // 256, block=256)
    launch(stream, config, kernel, np.float32(-1.5), bx, by, np.uint64(n))
    got = np.empty_like(y)
    driver.cuMemcpyDtoHAsync(got.ctypes.data, int(by.handle), got.nbytes, stream.handle)
    stream.sync()
    np.testing.assert_allclose(got, np.float32(-1.5) * x + y, rtol=3e-6, atol=1e-7)
    assert kernel.attributes.max_threads_per_block == 1024
    bx.close(stream)
    by.close(stream)
    stream.close()


def test_core_times_with_events(core_device):
    from cuda.core import EventOptions

    stream = core_device.create_stream()
    try:
        options = EventOptions(timing_enabled=True)
    except TypeError:
        options = EventOptions(enable_timing=True)
    start = stream.record(options=options)
    buffer = core_device.allocate(1 << 22, stream=stream)
    buffer.fill(np.uint8(3), stream=stream)
    end = stream.record(options=options)
    end.sync()
    assert 0 <= end - start < 60000
    other = core_device.create_stream()
    other.wait(end)
    other.sync()
    buffer.close(stream)


def test_core_links_through_the_driver(core_device):
    from cuda.core import LaunchConfig, Linker, LinkerOptions, ObjectCode, launch

    caller, _ = compile_to_ptx(
        'extern __device__ int twice(int); extern "C" __global__ void call(int *x) { *x = twice(*x); }', b"-rdc=true"
    )
    callee, _ = compile_to_ptx("__device__ int twice(int x) { return 2 * x; }", b"-rdc=true")
    pieces = [ObjectCode.from_ptx(piece) for piece in (caller, callee)]
    linker = Linker(*pieces, options=LinkerOptions(arch="sm_90"))
    kernel = linker.link("cubin").get_kernel("call")
    stream = core_device.create_stream()
    buffer = core_device.allocate(4, stream=stream)
    stream.sync()
    value = np.array([7], np.int32)
    ok(driver.cuMemcpyHtoD(int(buffer.handle), value.ctypes.data, 4))
    launch(stream, LaunchConfig(grid=1, block=1), kernel, buffer)
    stream.sync()
    assert host_copy(int(buffer.handle), value)[0] == 14
    buffer.close(stream)


COMPILE = """
from cuda.bindings import nvrtc
program = nvrtc.nvrtcCreateProgram(b'extern "C" __global__ void triple(float *x) { x[threadIdx.x] *= 3; }', b"cached.cu", 0, [], [])[1]
assert nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90"])[0] == 0
print(nvrtc.nvrtcGetCUBINSize(program)[1])
"""


def test_what_was_compiled_is_kept_for_the_next_process(tmp_path):
    """NVRTC keeps results in the driver's compute cache, with the variables that NVIDIA documents."""
    cache = tmp_path / "cache"

    def entries():
        return sorted(path for path in cache.rglob("*") if path.is_file())

    first = run_python(COMPILE, CUDA_CACHE_PATH=str(cache)).stdout
    kept = entries()
    assert kept, "nothing was kept"
    before = {path: path.read_bytes() for path in kept}
    for path in kept:
        os.utime(path, (1, 1))
    assert run_python(COMPILE, CUDA_CACHE_PATH=str(cache)).stdout == first
    assert entries() == kept
    assert all(path.stat().st_mtime > 1 for path in kept), "the second process did not use what the first one kept"
    # A damaged entry is compiled anew and replaced.
    for path in kept:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run_python(COMPILE, CUDA_CACHE_PATH=str(cache)).stdout == first
    assert {path: path.read_bytes() for path in entries()} == before


def test_a_cache_that_is_off_or_cannot_be_written_costs_only_time(tmp_path):
    off = tmp_path / "off"
    run_python(COMPILE, CUDA_CACHE_PATH=str(off), CUDA_CACHE_DISABLE="1")
    assert not off.exists()
    (tmp_path / "file").write_text("not a folder")
    run_python(COMPILE, CUDA_CACHE_PATH=str(tmp_path / "file"))
    small = tmp_path / "small"
    run_python(COMPILE, CUDA_CACHE_PATH=str(small), CUDA_CACHE_MAXSIZE="100")
    assert not [path for path in small.rglob("*") if path.is_file()], "more was kept than CUDA_CACHE_MAXSIZE says"
