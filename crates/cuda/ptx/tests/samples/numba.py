"""Kernels in Python; numba_*.ptx is what numba.cuda.compile_ptx makes of them."""

from numba import cuda, float32


def shared(x, o):
    s = cuda.shared.array(64, float32)
    l = cuda.local.array(8, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    for k in range(8):
        l[k] = s[(t + k) % 64]
    a = 0.0
    for k in range(8):
        a += l[(t * 3 + k) % 8]
    o[t] = a


def atomics(x, o, b):
    i = cuda.grid(1)
    cuda.atomic.add(o, i % 4, x[i])
    cuda.atomic.max(o, 1, x[i])
    cuda.atomic.min(o, 2, x[i])
    cuda.atomic.compare_and_swap(b[1:], 0, 1)
    cuda.atomic.inc(b, 0, 7)
    cuda.atomic.exch(b, 2, 5)
    cuda.atomic.nanmax(o, 3, x[i])
    cuda.atomic.xor(b, 3, 2)
