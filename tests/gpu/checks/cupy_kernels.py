"""CuPy's own kernels: raw kernels and modules compiled by NVRTC, streams, events, pools, pinned memory and graphs."""

import cupy
import numpy
from say import attempts, note, same

SOURCE = r"""
__constant__ float factors[4];
__device__ int counter;
extern "C" __global__ void scale(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factors[i % 4];
}
extern "C" __global__ void count(int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && i % 3 == 0) atomicAdd(&counter, 1);
}
extern "C" __global__ void reverse(int *data, int n) {
    extern __shared__ int tile[];
    tile[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = tile[n - 1 - threadIdx.x];
}
template <typename T> __global__ void fill(T *out, T value, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = value + T(i);
}
"""


def raw_module():
    names = ["fill<float>", "fill<unsigned char>"]
    module = cupy.RawModule(code=SOURCE, options=("--std=c++17",), name_expressions=names)
    factors = module.get_global("factors")
    cupy.ndarray(4, cupy.float32, factors)[:] = cupy.array([1, 2, 3, 4], cupy.float32)
    x, y = cupy.arange(1000, dtype=cupy.float32), cupy.empty(1000, cupy.float32)
    module.get_function("scale")((8,), (128,), (x, y, numpy.int32(1000)))
    counter = cupy.ndarray(1, cupy.int32, module.get_global("counter"))
    counter[:] = 0
    module.get_function("count")((10,), (100,), (numpy.int32(900),))
    floats, bytes_ = cupy.empty(777, cupy.float32), cupy.empty(777, cupy.uint8)
    module.get_function(names[0])((3,), (64,), (floats, numpy.float32(0.5), numpy.int32(777)))
    module.get_function(names[1])((3,), (64,), (bytes_, numpy.uint8(3), numpy.int32(777)))
    return [y, counter, floats, bytes_]


def shared_memory():
    kernel = cupy.RawKernel(SOURCE, "reverse", options=("--std=c++17",))
    x = cupy.arange(512, dtype=cupy.int32)
    kernel((1,), (512,), (x, numpy.int32(512)), shared_mem=512 * 4)
    same("attributes", (kernel.max_threads_per_block, kernel.shared_size_bytes, kernel.const_size_bytes))
    return x


def large_shared_memory():
    kernel = cupy.RawKernel(SOURCE, "reverse", options=("--std=c++17",))
    kernel.max_dynamic_shared_size_bytes = 200 << 10
    x = cupy.arange(1024, dtype=cupy.int32)
    kernel((1,), (1024,), (x, numpy.int32(1024)), shared_mem=200 << 10)
    return x


def kernels_from_pieces():
    square = cupy.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "square_of_difference")
    total = cupy.ReductionKernel("T x", "int64 y", "x * 2", "a + b", "y = a", "0", "twice_the_sum")
    x = cupy.arange(100000, dtype=cupy.int64) % 1013
    return [square(x, x * 2), total(x), total(x.reshape(100, -1), axis=1)]


def streams_and_events():
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    found = []
    for n, stream in enumerate(streams):
        with stream:
            x = cupy.full(1 << 18, n, cupy.int32)
            for _ in range(10):
                x = x * 3 + 1
            found.append(x)
            done = stream.record()
        cupy.cuda.get_current_stream().wait_event(done)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    cupy.arange(1 << 20).sum()
    end.record()
    end.synchronize()
    note("milliseconds", cupy.cuda.get_elapsed_time(start, end))
    return found


def host_functions_in_order():
    seen = []
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for n in range(5):
            cupy.arange(1000) * n
            stream.launch_host_func(lambda at: seen.append(at), n)
    stream.synchronize()
    return seen


def pinned_memory():
    memory = cupy.cuda.alloc_pinned_memory(1 << 20)
    host = numpy.frombuffer(memory, numpy.float32, 1 << 18)
    host[:] = numpy.arange(1 << 18)
    there = cupy.empty(1 << 18, cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    there.set(host, stream=stream)
    with stream:
        there *= 2
    back = there.get(stream=stream)
    stream.synchronize()
    return [there, cupy.asarray(back)]


def pools():
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.ones(1 << 20)
        same("used", pool.used_bytes())
        del x
        same("after", (pool.used_bytes(), pool.total_bytes()))
        pool.free_all_blocks()
        same("freed", pool.total_bytes())


def asynchronous_pool():
    pool = cupy.cuda.MemoryAsyncPool()
    with cupy.cuda.using_allocator(pool.malloc):
        x = [cupy.full(1 << 16, n) for n in range(20)]
        total = sum(x)
    cupy.cuda.get_current_stream().synchronize()
    return total


def graphs():
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(1000, cupy.float32)
        x += 0
        x *= 1
        stream.synchronize()
        stream.begin_capture()
        x += 1
        x *= 2
        graph = stream.end_capture()
        for _ in range(4):
            graph.launch()
        stream.synchronize()
    return x


def a_kernel_that_does_not_compile():
    try:
        cupy.RawKernel('extern "C" __global__ void broken() { no_such_thing(); }', "broken").compile()
    except cupy.cuda.compiler.CompileException as error:
        return "no_such_thing" in str(error)
    return "compiled"


attempts(
    raw_module,
    shared_memory,
    large_shared_memory,
    kernels_from_pieces,
    streams_and_events,
    host_functions_in_order,
    pinned_memory,
    pools,
    asynchronous_pool,
    graphs,
    a_kernel_that_does_not_compile,
)
