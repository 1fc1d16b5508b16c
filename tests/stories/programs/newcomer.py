"""What somebody types who tries a GPU for the first time, held against numpy. `newcomer.py PART...` runs these parts.

No variable is set for any of it: a plain shell and a home without caches.
"""
import sys

import numpy as np

host = np.random.default_rng(3)


def same(name, found, expected, **tolerance):
    np.testing.assert_allclose(np.asarray(found), expected, err_msg=name, **({"rtol": 0} | tolerance))


def cupy_sums():
    import cupy as cp

    same("sum", cp.arange(1e6).sum().get(), 499999500000.0)
    a = host.random((200, 300))
    d = cp.asarray(a)
    for name in ("sum", "max", "mean", "argmin"):
        same(name, getattr(d, name)().get(), getattr(a, name)(), rtol=1e-12)
        same(name + " of rows", getattr(d, name)(axis=1).get(), getattr(a, name)(axis=1), rtol=1e-12)
    same("cumsum", cp.cumsum(cp.arange(100000)).get(), np.cumsum(np.arange(100000)))
    same("cumprod", cp.cumprod(d[0] + 0.5).get(), np.cumprod(a[0] + 0.5), rtol=1e-10)
    same("bool", (d > 0.5).sum().get(), (a > 0.5).sum())
    same("count", cp.count_nonzero(d > 0.25).get(), np.count_nonzero(a > 0.25))
    i = host.integers(0, 1000, 50000, dtype=np.int32)
    same("integers", cp.asarray(i).sum().get(), i.sum())
    same("float32", cp.asarray(a, dtype="f").sum().get(), a.sum(), rtol=1e-5)


def cupy_sorts():
    import cupy as cp

    for kind in ("d", "i"):
        a = (host.random(5000) * 1e6).astype(kind)
        d = cp.asarray(a)
        same("sort", cp.sort(d).get(), np.sort(a))
        same("argsort", a[cp.argsort(d).get()], np.sort(a))
    i = host.integers(0, 300, 5000)
    d = cp.asarray(i)
    same("unique", cp.unique(d).get(), np.unique(i))
    values, counts = cp.unique(d, return_counts=True)
    same("counts", counts.get(), np.unique(i, return_counts=True)[1])
    same("bincount", cp.bincount(d).get(), np.bincount(i))
    same("searchsorted", cp.searchsorted(cp.arange(300), d).get(), i)
    same("histogram", cp.histogram(d, bins=10)[0].get(), np.histogram(i, bins=10)[0])
    same("nonzero", cp.nonzero(d > 150)[0].get(), np.nonzero(i > 150)[0])
    rows = host.random((50, 70))
    same("rows", cp.sort(cp.asarray(rows), axis=1).get(), np.sort(rows, axis=1))
    same("median", cp.median(cp.asarray(rows)).get(), np.median(rows))


def cupy_kernels():
    import cupy as cp

    a, b = host.random((40, 50)), host.random((50, 30))
    da, db = cp.asarray(a), cp.asarray(b)
    same("elementwise", (cp.sin(da) * 2 + da**2).get(), np.sin(a) * 2 + a**2, rtol=1e-14)
    same("product by broadcasting", (da[:, :, None] * db[None]).sum(axis=1).get(), a @ b, rtol=1e-12)
    product = cp.RawKernel(
        r"""extern "C" __global__ void product(const double *a, const double *b, double *c, int m, int k, int n) {
            int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
            if (row >= m || column >= n) return;
            double sum = 0;
            for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
            c[row * n + column] = sum;
        }""",
        "product",
    )
    c = cp.zeros((40, 30))
    product((2, 3), (16, 16), (da, db, c, np.int32(40), np.int32(50), np.int32(30)))
    same("raw kernel", c.get(), a @ b, rtol=1e-12)
    square = cp.ElementwiseKernel("T x", "T y", "y = x * x", "square")
    same("own elementwise kernel", square(da).get(), a * a)
    longest = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    same("own reduction", longest(da).get(), np.sqrt((a * a).sum()), rtol=1e-12)
    same("where", cp.where(da > 0.5, da, 0).get(), np.where(a > 0.5, a, 0))


def cupy_random():
    import cupy as cp

    generator = cp.random.default_rng(5)
    numbers = generator.random(5000)
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
    same("mean", numbers.mean().get(), 0.5, atol=0.03)
    same("spread", numbers.std().get(), np.sqrt(1 / 12), atol=0.03)
    assert cp.unique(numbers).size > 4900, "they are not all the same"
    dice = generator.integers(1, 7, 6000)
    same("dice", cp.unique(dice).get(), np.arange(1, 7))
    same("normal", generator.standard_normal(5000).std().get(), 1, atol=0.1)
    same("the same seed", cp.random.default_rng(5).random(5000).get(), numbers.get())


def numba():
    import warnings

    from numba import cuda
    from numba.core.errors import NumbaPerformanceWarning

    warnings.simplefilter("ignore", NumbaPerformanceWarning)

    @cuda.jit
    def add(a, b, c):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    a, b = host.random(5000), host.random(5000)
    c = np.zeros(5000)
    add[40, 128](a, b, c)
    same("vector add", c, a + b)

    @cuda.reduce
    def total(x, y):
        return x + y

    same("reduction", total(a), a.sum(), rtol=1e-12)

    @cuda.jit
    def count(values, counts):
        i = cuda.grid(1)
        if i < values.size:
            cuda.atomic.add(counts, values[i], 1)

    values = host.integers(0, 16, 4000)
    counts = np.zeros(16, dtype=np.int64)
    count[32, 128](values, counts)
    same("histogram", counts, np.bincount(values, minlength=16))


def nvrtc():
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    architecture = "".join(map(str, device.compute_capability))
    code = 'extern "C" __global__ void fill(int *out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = i * i; }'
    program = Program(code, "c++", options=ProgramOptions(arch=f"compute_{architecture}"))
    kernel = program.compile("ptx").get_kernel("fill")
    buffer = device.memory_resource.allocate(4000, stream=stream)
    launch(stream, LaunchConfig(grid=10, block=100), kernel, buffer, np.int32(1000))
    found = np.zeros(1000, dtype=np.int32)
    from cuda.bindings import driver

    stream.sync()
    (error,) = driver.cuMemcpyDtoH(found.ctypes.data, int(buffer.handle), 4000)
    assert error == 0, error
    same("squares", found, np.arange(1000) ** 2)


def first_line():
    import cupy

    print(cupy.arange(1e6).sum())


def main():
    for part in sys.argv[1:]:
        globals()[part]()
        print("ok", part, flush=True)


main()
