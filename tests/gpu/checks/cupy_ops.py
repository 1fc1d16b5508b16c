"""CuPy: element-wise, reductions, sorts, linear algebra, Fourier, sparse and random, on its own kernels and NVIDIA's libraries."""

import cupy
import cupyx.scipy.sparse
import numpy
from say import attempts, near, same

cupy.random.seed(1)


def elementwise():
    x = cupy.linspace(-3, 3, 100003)
    return [
        cupy.sin(x) * 2 + x**2,
        cupy.where(x > 0, x, -x),
        cupy.floor(x).astype(cupy.int32),
        x.astype(cupy.float16) * 3,
        cupy.exp(1j * x),
    ]


def reductions():
    x = cupy.arange(1 << 20, dtype=cupy.int64).reshape(1024, 1024) * 7919 % 10007
    return [
        x.sum(),
        x.sum(0),
        x.max(1),
        x.argmin(0),
        (x > 9000).any(1),
        x.prod(1, dtype=cupy.uint64),
        cupy.cumsum(x[0]),
        x.astype(cupy.float64).var(),
    ]


def sorting():
    x = cupy.arange(200000, dtype=cupy.int32) * 7919 % 200003
    return [
        cupy.sort(x),
        cupy.argsort(x),
        cupy.unique(x % 1000),
        cupy.lexsort(cupy.stack([x % 10, x])),
        cupy.partition(x, 99)[99],
        cupy.searchsorted(cupy.arange(0, 200003, 100), x[:50]),
    ]


def indexing():
    x = cupy.arange(10000).reshape(100, 100)
    y = x.copy()
    y[::3, 5:50:7] = -1
    cupy.add.at(y, cupy.array([1, 1, 2]), 5)
    return [
        x[cupy.array([3, 1, 4])],
        x[x % 7 == 0],
        y,
        cupy.take(x, cupy.array([5, 6]), 1),
        cupy.nonzero(x % 1000 == 0)[0],
        x.T.copy(),
    ]


def linear_algebra():
    a = cupy.random.RandomState(3).standard_normal((80, 80))
    positive = a @ a.T + 80 * cupy.eye(80)
    near("norm", cupy.linalg.norm(a @ a), 1e-9)
    near("solve", cupy.linalg.norm(cupy.linalg.solve(positive, a)), 1e-9)
    near("cholesky", cupy.linalg.norm(cupy.linalg.cholesky(positive)), 1e-9)
    near("svd", cupy.linalg.svd(a, compute_uv=False)[0], 1e-9)
    near("eigh", cupy.linalg.eigvalsh(positive)[40], 1e-9)
    near("einsum", cupy.einsum("ij,kj->ik", a, a).sum(), 1e-6)


def fourier():
    x = cupy.random.RandomState(4).standard_normal((16, 1000))
    near("fft", cupy.linalg.norm(cupy.fft.fft(x)), 1e-9)
    near("round-trip", cupy.abs(cupy.fft.irfft(cupy.fft.rfft(x), 1000) - x).max() + 1, 1e-9)
    near("fft2", cupy.linalg.norm(cupy.fft.fft2(x)), 1e-9)


def sparse():
    dense = cupy.asarray(numpy.where(numpy.random.default_rng(5).random((200, 150)) < 0.1, 1.5, 0))
    a = cupyx.scipy.sparse.csr_matrix(dense)
    same("entries", a.nnz)
    near("product", (a @ cupy.ones(150)).sum(), 1e-9)
    near("square", (a @ a.T).sum(), 1e-9)
    return [a.indices, a.indptr, a.T.tocsr().toarray()]


def random_numbers():
    generator = cupy.random.default_rng(6)
    state = cupy.random.RandomState(7)
    return [
        generator.random(1000),
        generator.integers(0, 99, 500),
        state.rand(1000),
        state.randint(0, 9, 300),
        state.permutation(100),
    ]


def to_and_fro():
    x = numpy.arange(1 << 20, dtype=numpy.float32)[::3]
    there = cupy.asarray(x)
    return [
        there,
        there.reshape(-1)[5:],
        cupy.concatenate([there, there]),
        cupy.asarray(numpy.asfortranarray(x[:100].reshape(10, 10))),
    ]


def fused():
    @cupy.fuse()
    def both(x, y):
        return cupy.sqrt(x * x + y * y) - x

    x = cupy.arange(50000, dtype=cupy.float64)
    return both(x, x + 1)


attempts(elementwise, reductions, sorting, indexing, linear_algebra, fourier, sparse, random_numbers, to_and_fro, fused)
