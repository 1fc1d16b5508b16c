"""CuPy on our driver: its kernels come from NVRTC as PTX, its sorts and scans (thrust and cub) from PTX in its package.

That PTX is for compute capability 12.0, which is what soft GPUs have by default, and `dxpu run` has CuPy compile to PTX: no
variable is set for it here. What needs libraries of machine code (cuBLAS, cuFFT, cuRAND, cuSOLVER, cuSPARSE, cuTENSOR) is
no part of this: they are not even installed.
"""

import pickle
import subprocess
import sys

import cupy as cp
import numpy as np
import pytest
from conftest import run_python

rng = np.random.default_rng(7)


def same(device, host, **tolerance):
    assert isinstance(device, cp.ndarray)
    assert device.dtype == np.asarray(host).dtype
    if tolerance:
        np.testing.assert_allclose(device.get(), host, **tolerance)
    else:
        np.testing.assert_array_equal(device.get(), host)


# --- Element-wise -------------------------------------------------------------------------------------------------

DTYPES = ["?", "b", "B", "h", "i", "q", "Q", "e", "f", "d", "F", "D"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_on_every_type(dtype):
    host = (rng.random(1000) * 20).astype(dtype)
    device = cp.asarray(host)
    same(device + device, host + host)
    same(device * device, host * host, rtol=2e-6 if dtype == "F" else 1e-14 if dtype == "D" else 0)
    same(device == device[::-1], host == host[::-1])
    same(device.astype("d") if dtype not in "FD" else device.astype("D"), host.astype("d" if dtype not in "FD" else "D"))


@pytest.mark.parametrize("name", ["sin", "cos", "tanh", "exp", "log1p", "sqrt", "floor", "arctan", "expm1", "cbrt", "sign", "negative"])
@pytest.mark.parametrize("dtype", ["f", "d"])
def test_functions(name, dtype):
    host = (rng.random(2000) * 4).astype(dtype)
    same(getattr(cp, name)(cp.asarray(host)), getattr(np, name)(host), rtol=2e-6 if dtype == "f" else 1e-14)


@pytest.mark.parametrize("operation", ["floor_divide", "remainder", "power", "left_shift", "bitwise_xor", "maximum", "gcd"])
def test_integer_operations(operation):
    a, b = rng.integers(1, 9, (2, 500))
    same(getattr(cp, operation)(cp.asarray(a), cp.asarray(b)), getattr(np, operation)(a, b))


def test_broadcasting_and_views():
    a, b = rng.random((7, 1, 5)), rng.random((4, 1))
    da, db = cp.asarray(a), cp.asarray(b)
    same(da * db - 1, a * b - 1)
    same((da + db).transpose(2, 0, 1)[::-1, 1:], (a + b).transpose(2, 0, 1)[::-1, 1:])
    same(cp.where(da > 0.5, da, db), np.where(a > 0.5, a, b))
    same(cp.ascontiguousarray(da.T), np.ascontiguousarray(a.T))


def test_indexing():
    a = rng.random((40, 30))
    rows, columns = rng.integers(0, 30, (2, 100))
    d = cp.asarray(a)
    same(d[cp.asarray(rows), cp.asarray(columns)], a[rows, columns])
    same(d[d > 0.7], a[a > 0.7])
    same(d[:, cp.asarray([3, 1, 2])], a[:, [3, 1, 2]])
    d[cp.asarray(rows)] = 5
    a[rows] = 5
    same(d, a)
    d[d < 0.5] *= -1
    a[a < 0.5] *= -1
    same(d, a)
    same(cp.take(d, cp.asarray([1, 3]), axis=1), np.take(a, [1, 3], axis=1))
    same(cp.nonzero(d > 0)[0], np.nonzero(a > 0)[0])
    total = cp.zeros(5)
    cp.add.at(total, cp.asarray([0, 1, 1, 4]), 1.5)
    same(total, np.array([1.5, 3, 0, 0, 1.5]))


def test_shapes_and_joins():
    a, b = rng.random((6, 4)), rng.random((6, 4))
    da, db = cp.asarray(a), cp.asarray(b)
    same(cp.concatenate([da, db], axis=1), np.concatenate([a, b], axis=1))
    same(cp.stack([da, db]), np.stack([a, b]))
    same(cp.tile(da, (2, 3)), np.tile(a, (2, 3)))
    same(cp.roll(da, 2, axis=0), np.roll(a, 2, axis=0))
    same(cp.pad(da, 1), np.pad(a, 1))
    same(cp.eye(5, k=1), np.eye(5, k=1))
    same(cp.linspace(0, 1, 11), np.linspace(0, 1, 11), rtol=1e-15)


# --- Reductions and scans -----------------------------------------------------------------------------------------


@pytest.fixture(params=["cub", "own"])
def accelerator(request):
    """CuPy reduces with cub where it can, and with kernels of its own otherwise; both must work."""
    before = cp._core.get_reduction_accelerators(), cp._core.get_routine_accelerators()
    cp._core.set_reduction_accelerators(["cub"] if request.param == "cub" else [])
    cp._core.set_routine_accelerators(["cub"] if request.param == "cub" else [])
    yield request.param
    cp._core.set_reduction_accelerators(before[0])
    cp._core.set_routine_accelerators(before[1])


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "mean", "var", "std", "any", "all"])
def test_reductions(accelerator, name, axis):
    host = rng.random((13, 17, 9)) + 0.5
    expected = np.asarray(getattr(np, name)(host, axis=axis))
    same(getattr(cp, name)(cp.asarray(host), axis=axis), expected, rtol=1e-12)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions(accelerator, name, axis):
    host = rng.random((50, 60))
    same(getattr(cp, name)(cp.asarray(host), axis=axis), np.asarray(getattr(np, name)(host, axis=axis)))


@pytest.mark.parametrize("dtype", ["i", "f", "d", "e"])
def test_large_sums(accelerator, dtype):
    host = rng.integers(0, 3, 300_000).astype(dtype)
    total = cp.asarray(host).sum(dtype="d" if dtype in "ed" else None)
    assert float(total) == float(host.astype("d").sum())


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_scans(accelerator, name):
    host = rng.random((30, 100)) + 0.5
    same(getattr(cp, name)(cp.asarray(host), axis=1), getattr(np, name)(host, axis=1), rtol=1e-12)
    same(getattr(cp, name)(cp.asarray(host[0])), getattr(np, name)(host[0]), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["i", "q", "f", "d", "B"])
def test_sorts(dtype):
    host = (rng.random(5000) * 1e4).astype(dtype)
    device = cp.asarray(host)
    same(cp.sort(device), np.sort(host))
    same(device[cp.argsort(device)], np.sort(host))
    same(cp.unique(device), np.unique(host))


def test_sorts_along_an_axis_and_by_keys():
    host = rng.random((20, 33))
    same(cp.sort(cp.asarray(host), axis=0), np.sort(host, axis=0))
    same(cp.sort(cp.asarray(host), axis=1), np.sort(host, axis=1))
    keys = rng.integers(0, 5, (2, 200))
    same(cp.lexsort(cp.asarray(keys)), np.lexsort(keys))


def test_histograms_and_searches():
    host = rng.integers(0, 50, 3000)
    device = cp.asarray(host)
    same(cp.bincount(device), np.bincount(host))
    same(cp.histogram(device, bins=10)[0], np.histogram(host, bins=10)[0])
    edges = np.arange(0, 50, 7)
    same(cp.searchsorted(cp.asarray(edges), device), np.searchsorted(edges, host))
    same(cp.digitize(device, cp.asarray(edges)), np.digitize(host, edges))


def test_random_numbers_follow_their_distribution_and_seed():
    from cupy.random import XORWOW, Generator, Philox4x3210

    for kind in (XORWOW, Philox4x3210):
        first, again = Generator(kind(5)).random(20_000), Generator(kind(5)).random(20_000)
        assert (first == again).all()
        assert abs(float(first.mean()) - 0.5) < 0.02 and 0 <= float(first.min()) and float(first.max()) <= 1
        normal = Generator(kind(6)).standard_normal(20_000)
        assert abs(float(normal.mean())) < 0.05 and abs(float(normal.std()) - 1) < 0.05
        integers = Generator(kind(7)).integers(0, 10, 5000)
        assert set(integers.get()) == set(range(10))


# --- The user's own kernels ---------------------------------------------------------------------------------------


def test_raw_kernel():
    kernel = cp.RawKernel(
        r"""
        extern "C" __global__ void blend(const float *a, const float *b, float *out, float t, int n) {
            int i = blockDim.x * blockIdx.x + threadIdx.x;
            if (i < n) out[i] = a[i] * (1 - t) + b[i] * t;
        }
        """,
        "blend",
    )
    a, b = rng.random((2, 1000), dtype=np.float32)
    out = cp.empty(1000, np.float32)
    kernel((8,), (128,), (cp.asarray(a), cp.asarray(b), out, np.float32(0.25), np.int32(1000)))
    np.testing.assert_allclose(out.get(), a * 0.75 + b * 0.25, rtol=1e-6)
    assert kernel.max_threads_per_block == 1024
    assert kernel.num_regs > 0


def test_raw_kernel_with_shared_memory_and_structs():
    kernel = cp.RawKernel(
        r"""
        struct Pair { double x; int n; };
        extern "C" __global__ void fold(const double *in, double *out, Pair p) {
            extern __shared__ double cells[];
            cells[threadIdx.x] = in[threadIdx.x] * p.x;
            __syncthreads();
            for (int half = blockDim.x / 2; half > 0; half /= 2) {
                if (threadIdx.x < half) cells[threadIdx.x] += cells[threadIdx.x + half];
                __syncthreads();
            }
            if (threadIdx.x == 0) *out = cells[0] + p.n;
        }
        """,
        "fold",
    )
    pair = np.array([(3.0, 5)], dtype=np.dtype([("x", "d"), ("n", "i")], align=True))
    out = cp.zeros(1)
    kernel((1,), (256,), (cp.arange(256.0), out, pair[0]), shared_mem=256 * 8)
    assert float(out[0]) == 3 * 255 * 128 + 5


def test_raw_module_with_templates_globals_and_constants():
    module = cp.RawModule(
        code=r"""
        __constant__ double factors[3];
        __device__ int calls;
        template <typename T> __global__ void weigh(T *data) {
            data[threadIdx.x] *= factors[threadIdx.x % 3];
            if (threadIdx.x == 0) calls++;
        }
        """,
        options=("-std=c++17",),
        name_expressions=("weigh<float>", "weigh<double>"),
    )
    factors = cp.ndarray(3, "d", module.get_global("factors"))
    factors[...] = cp.asarray([1.0, 10.0, 100.0])
    for name, dtype in (("float", "f"), ("double", "d")):
        data = cp.ones(6, dtype)
        module.get_function(f"weigh<{name}>")((1,), (6,), (data,))
        same(data, np.array([1, 10, 100] * 2, dtype))
    assert int(cp.ndarray(1, "i", module.get_global("calls"))[0]) == 2


def test_elementwise_kernel():
    distance = cp.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared_distance")
    a, b = rng.random((2, 30, 1)), rng.random((2, 1, 20))
    same(distance(cp.asarray(a), cp.asarray(b)), (a - b) ** 2, rtol=1e-15)


def test_reduction_kernel():
    norm = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "euclidean")
    a = rng.random((30, 40))
    same(norm(cp.asarray(a), axis=1), np.sqrt((a * a).sum(axis=1)), rtol=1e-14)


def test_fused_functions():
    @cp.fuse()
    def activation(x, y):
        return cp.maximum(x, 0) * y + cp.exp(-x)

    @cp.fuse()
    def total(x, y):
        return cp.sum(x * y, axis=0)

    a, b = rng.standard_normal((2, 50, 7))
    same(activation(cp.asarray(a), cp.asarray(b)), np.maximum(a, 0) * b + np.exp(-a), rtol=1e-13, atol=1e-14)
    same(total(cp.asarray(a), cp.asarray(b)), (a * b).sum(axis=0), rtol=1e-12, atol=1e-13)


def test_python_kernels():
    from cupyx import jit

    @jit.rawkernel()
    def histogram(values, bins, size):
        index = jit.grid(1)
        step = jit.gridsize(1)
        for i in range(index, size, step):
            jit.atomic_add(bins, values[i], 1)

    values = rng.integers(0, 16, 4000).astype(np.int32)
    bins = cp.zeros(16, np.int32)
    histogram((4,), (128,), (cp.asarray(values), bins, np.int32(4000)))
    same(bins, np.bincount(values, minlength=16).astype(np.int32))

    @jit.rawkernel()
    def turn(data):
        cells = jit.shared_memory(np.float32, 64)
        i = jit.threadIdx.x
        cells[i] = data[i]
        jit.syncthreads()
        data[i] = cells[63 - i]

    data = cp.arange(64, dtype=np.float32)
    turn((1,), (64,), (data,))
    same(data, np.arange(63, -1, -1, dtype=np.float32))


def test_vectorized_functions():
    @cp.vectorize
    def collatz(n):
        steps = 0
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    def steps(n):
        count = 0
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    got = collatz(cp.arange(1, 200))
    np.testing.assert_array_equal(got.get(), [steps(n) for n in range(1, 200)])


# --- Streams, events, graphs, memory ------------------------------------------------------------------------------


def test_streams_and_events():
    first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    start, done = cp.cuda.Event(), cp.cuda.Event()
    with first:
        first.record(start)
        a = cp.arange(100_000, dtype="d")
        b = a * 2
        first.record(done)
    second.wait_event(done)
    with second:
        total = b.sum()
    second.synchronize()
    assert float(total) == 2 * 99_999 * 50_000
    first.synchronize()
    assert first.done and second.done
    assert 0 <= cp.cuda.get_elapsed_time(start, done) < 60_000


def test_callbacks_of_a_stream():
    seen = []
    stream = cp.cuda.Stream()
    stream.launch_host_func(lambda data: seen.append(data), "called")
    stream.synchronize()
    assert seen == ["called"]


def test_pinned_memory_and_async_copies():
    size = 1 << 20
    pinned = cp.cuda.alloc_pinned_memory(size)
    host = np.frombuffer(pinned, np.uint8, size)
    host[...] = rng.integers(0, 256, size)
    stream = cp.cuda.Stream(non_blocking=True)
    device = cp.empty(size, np.uint8)
    device.set(host, stream=stream)
    with stream:
        device += 1
    back = cp.cuda.alloc_pinned_memory(size)
    out = np.frombuffer(back, np.uint8, size)
    device.get(stream=stream, out=out, blocking=False)
    stream.synchronize()
    np.testing.assert_array_equal(out, host + 1)


def test_the_memory_pool_counts():
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        a = cp.zeros(1 << 20, np.uint8)
        assert pool.used_bytes() == 1 << 20
        assert pool.total_bytes() >= 1 << 20
        del a
        assert pool.used_bytes() == 0
        assert pool.n_free_blocks() == 1
        pool.free_all_blocks()
        assert pool.total_bytes() == 0


def test_the_drivers_own_pool():
    pool = cp.cuda.MemoryAsyncPool()
    with cp.cuda.using_allocator(pool.malloc):
        a = cp.arange(10_000)
        assert int(a.sum()) == 49_995_000
        del a
    cp.cuda.Device().synchronize()


def test_the_drivers_own_pool_among_streams():
    """What one stream frees while its kernel runs is not written by that kernel when another stream has it."""
    slow = cp.RawKernel(
        """extern "C" __global__ void slow(int *out, int turns) {
            volatile int left = turns;
            while (left) left = left - 1;
            for (int at = 0; at < 4096; at++) out[at] = -1;
        }""",
        "slow",
    )
    pool, one, two = cp.cuda.MemoryAsyncPool(), cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    with cp.cuda.using_allocator(pool.malloc):
        for _ in range(5):
            with one:
                a = cp.zeros(1 << 18, np.int32)
                slow((1,), (1,), (a, np.int32(100_000)))
                del a
                again = cp.full(1 << 18, 77, np.int32)
            with two:
                others = [cp.full(1 << 18, n, np.int32) for n in range(8)]
            two.synchronize()
            one.synchronize()
            assert all((other.get() == n).all() for n, other in enumerate(others))
            assert (again.get() == 77).all()
            del others, again
    cp.cuda.Device().synchronize()
    assert pool.used_bytes() == 0


def test_device_memory_information():
    free, total = cp.cuda.Device().mem_info
    assert 0 < free <= total
    block = cp.cuda.alloc(64 << 20)
    assert cp.cuda.Device().mem_info[0] <= free
    del block
    assert cp.cuda.Device().compute_capability == cp.cuda.Device().compute_capability
    assert cp.cuda.Device().attributes["WarpSize"] == 32


def test_graphs():
    stream = cp.cuda.Stream(non_blocking=True)
    a = cp.ones(1000)
    b = cp.empty_like(a)
    with stream:
        cp.multiply(a, 2, out=b)
        stream.synchronize()
        stream.begin_capture()
        cp.multiply(a, 3, out=b)
        cp.add(a, b, out=a)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(a.get(), np.full(1000, 64.0))


def test_arrays_are_pickled_and_shared_with_others():
    a = cp.arange(20).reshape(4, 5)
    same(pickle.loads(pickle.dumps(a)), a.get())
    same(cp.from_dlpack(a), a.get())
    assert a.__cuda_array_interface__["data"][0] == a.data.ptr


# --- What goes wrong ----------------------------------------------------------------------------------------------


def test_source_that_does_not_compile_is_reported():
    with pytest.raises(cp.cuda.compiler.CompileException, match="undefined_name"):
        cp.RawKernel('extern "C" __global__ void f(int *x) { *x = undefined_name; }', "f").compile()


def test_too_much_memory_is_refused():
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.cuda.alloc(1 << 45)
    assert int(cp.ones(10).sum()) == 10


def test_a_launch_that_cannot_be_is_refused():
    kernel = cp.RawKernel('extern "C" __global__ void f() {}', "f")
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="CUDA_ERROR_INVALID_VALUE"):
        kernel((1,), (2048,), ())
    kernel((1,), (32,), ())


def test_a_wild_access_raises_and_the_process_ends_cleanly():
    done = run_python(
        """
import cupy as cp
kernel = cp.RawKernel('extern "C" __global__ void f(int *x) { x[0] = 1; }', "f")
kernel((1,), (1,), (16,))
try:
    cp.cuda.Device().synchronize()
except cp.cuda.runtime.CUDARuntimeError as error:
    print("caught", error)
"""
    )
    assert "caught cudaErrorIllegalAddress" in done.stdout


# --- Textures -----------------------------------------------------------------------------------------------------

TEXTURES = r"""
extern "C" {
__global__ void read_2d(cudaTextureObject_t texture, float *out, int width, int height, float shift) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) out[y * width + x] = tex2D<float>(texture, x + 0.5f + shift, y + 0.5f);
}
__global__ void read_3d(cudaTextureObject_t texture, float *out, int width, int height, int depth) {
    int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;
    if (x < width && y < height && z < depth)
        out[(z * height + y) * width + x] = tex3D<float>(texture, x + 0.5f, y + 0.5f, z + 0.5f);
}
__global__ void fetch(cudaTextureObject_t texture, int *out, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) out[at] = tex1Dfetch<int>(texture, at);
}
__global__ void write_2d(cudaSurfaceObject_t surface, int width, int height) {
    int x = threadIdx.x, y = threadIdx.y;
    if (x < width && y < height) surf2Dwrite(float(x + 100 * y), surface, x * 4, y);
}
}
"""


def channels(bits=32, kind=None):
    kind = cp.cuda.runtime.cudaChannelFormatKindFloat if kind is None else kind
    return cp.cuda.texture.ChannelFormatDescriptor(bits, 0, 0, 0, kind)


def sampler(filter_mode=None):
    runtime = cp.cuda.runtime
    clamp = (runtime.cudaAddressModeClamp,) * 3
    mode = runtime.cudaFilterModePoint if filter_mode is None else filter_mode
    return cp.cuda.texture.TextureDescriptor(clamp, mode, runtime.cudaReadModeElementType)


def test_a_texture_of_an_array_is_read_and_blended():
    host = rng.random((16, 24), dtype=np.float32)
    array = cp.cuda.texture.CUDAarray(channels(), 24, 16)
    array.copy_from(host)
    back = np.zeros_like(host)
    array.copy_to(back)
    np.testing.assert_array_equal(back, host)
    resource = cp.cuda.texture.ResourceDescriptor(cp.cuda.runtime.cudaResourceTypeArray, cuArr=array)
    read = cp.RawModule(code=TEXTURES).get_function("read_2d")
    out = cp.zeros((16, 24), dtype=np.float32)
    nearest = cp.cuda.texture.TextureObject(resource, sampler())
    read((2, 1), (16, 16), (nearest, out, 24, 16, np.float32(0)))
    same(out, host)
    linear = cp.cuda.texture.TextureObject(resource, sampler(cp.cuda.runtime.cudaFilterModeLinear))
    read((2, 1), (16, 16), (linear, out, 24, 16, np.float32(0.25)))
    right = np.concatenate([host[:, 1:], host[:, -1:]], axis=1)
    same(out, host * np.float32(0.75) + right * np.float32(0.25), rtol=1e-6)


def test_an_array_of_the_device_fills_a_volume():
    host = rng.random((4, 6, 8), dtype=np.float32)
    array = cp.cuda.texture.CUDAarray(channels(), 8, 6, 4)
    array.copy_from(cp.asarray(host))
    resource = cp.cuda.texture.ResourceDescriptor(cp.cuda.runtime.cudaResourceTypeArray, cuArr=array)
    texture = cp.cuda.texture.TextureObject(resource, sampler())
    out = cp.zeros_like(cp.asarray(host))
    cp.RawModule(code=TEXTURES).get_function("read_3d")((1,), (8, 8, 4), (texture, out, 8, 6, 4))
    same(out, host)
    back = cp.zeros_like(out)
    array.copy_to(back)
    same(back, host)


def test_memory_is_fetched_through_a_texture():
    host = rng.integers(-(2**31), 2**31, 1000, dtype=np.int32)
    device = cp.asarray(host)
    runtime = cp.cuda.runtime
    kind = channels(kind=runtime.cudaChannelFormatKindSigned)
    resource = cp.cuda.texture.ResourceDescriptor(
        runtime.cudaResourceTypeLinear, arr=device, chDesc=kind, sizeInBytes=device.nbytes
    )
    texture = cp.cuda.texture.TextureObject(resource, sampler())
    out = cp.zeros_like(device)
    cp.RawModule(code=TEXTURES).get_function("fetch")((8,), (128,), (texture, out, 1000))
    same(out, host)


def test_a_surface_is_written():
    array = cp.cuda.texture.CUDAarray(channels(), 20, 10, 0, cp.cuda.runtime.cudaArraySurfaceLoadStore)
    resource = cp.cuda.texture.ResourceDescriptor(cp.cuda.runtime.cudaResourceTypeArray, cuArr=array)
    surface = cp.cuda.texture.SurfaceObject(resource)
    cp.RawModule(code=TEXTURES).get_function("write_2d")((1,), (32, 16), (surface, 20, 10))
    back = np.zeros((10, 20), dtype=np.float32)
    array.copy_to(back)
    np.testing.assert_array_equal(back, np.add.outer(100 * np.arange(10), np.arange(20)).astype(np.float32))


def test_an_affine_map_of_a_picture_goes_through_a_texture():
    from cupyx.scipy import ndimage

    picture = cp.asarray(rng.random((32, 32), dtype=np.float32))
    matrix = np.array([[1, 0, 3], [0, 1, 5], [0, 0, 1]], dtype=np.float32)
    moved = ndimage.affine_transform(picture, cp.asarray(matrix), order=1, texture_memory=True, mode="constant")
    same(moved[:-3, :-5], picture.get()[3:, 5:], atol=1e-6)


# --- Two processes ------------------------------------------------------------------------------------------------

# The other process of the test below: it opens what it is told of, waits for the event, doubles the numbers and records the event.
OTHER_PROCESS = """
import cupy
from cupy.cuda import runtime

memory, event = (bytes.fromhex(line) for line in (input(), input()))
address = runtime.ipcOpenMemHandle(memory)
assert runtime.ipcOpenMemHandle(memory) == address
event = runtime.ipcOpenEventHandle(event)
stream = cupy.cuda.Stream(non_blocking=True)
runtime.streamWaitEvent(stream.ptr, event)
whole = cupy.cuda.UnownedMemory(address, 8 << 20, None)
numbers = cupy.ndarray(1 << 20, cupy.int64, cupy.cuda.MemoryPointer(whole, 0))
with stream:
    total = int(numbers.sum())
    numbers *= 2
    runtime.eventRecord(event, stream.ptr)
print(total, flush=True)
input()
stream.synchronize()
runtime.ipcCloseMemHandle(address)
runtime.ipcCloseMemHandle(address)
runtime.eventDestroy(event)
try:
    runtime.ipcOpenMemHandle(bytes(64))
except runtime.CUDARuntimeError as error:
    print(error.status, flush=True)
"""


def test_two_processes_share_an_array_and_an_event():
    memory = cp.cuda.Memory(8 << 20)
    numbers = cp.ndarray(1 << 20, cp.int64, cp.cuda.MemoryPointer(memory, 0))
    event = cp.cuda.Event(disable_timing=True, interprocess=True)
    numbers[:] = cp.arange(1 << 20)
    event.record()
    handles = [cp.cuda.runtime.ipcGetMemHandle(memory.ptr), cp.cuda.runtime.ipcGetEventHandle(event.ptr)]
    other = subprocess.Popen([sys.executable, "-c", OTHER_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        other.stdin.write("".join(handle.hex() + "\n" for handle in handles))
        other.stdin.flush()
        assert int(other.stdout.readline()) == (1 << 20) * ((1 << 20) - 1) // 2
        event.synchronize()
        assert (numbers == 2 * cp.arange(1 << 20)).all()
        other.stdin.write("\n")
        other.stdin.flush()
        assert int(other.stdout.readline()) == 1, "bytes that are no handle"
        assert other.wait(60) == 0
    finally:
        other.kill()
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError) as refused:
        cp.cuda.runtime.ipcOpenMemHandle(handles[0])
    assert refused.value.status == 201, "not in the process that made it"
