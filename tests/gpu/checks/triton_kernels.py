"""Triton: its launcher is compiled C that calls libcuda by name; kernels with tensor cores, autotuning and tensor descriptors (TMA)."""

import torch
import triton
import triton.language as tl
from say import attempts, near, note, same

torch.manual_seed(14)


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * stride + at, value / tl.sum(value, 0), mask=at < columns)


@triton.jit
def product_kernel(a, b, c, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * n + inner[None, :])
        right = tl.load(b + inner[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


@triton.autotune(configs=[triton.Config({"BLOCK": size}, num_warps=warps) for size in (256, 1024) for warps in (2, 8)], key=["n"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, value * value + 1, mask=at < n)


@triton.jit
def described_kernel(source, target, rows, columns, BLOCK: tl.constexpr):
    """Moves tiles with tensor descriptors made on the device."""
    read = tl.make_tensor_descriptor(source, shape=[rows, columns], strides=[columns, 1], block_shape=[BLOCK, BLOCK])
    write = tl.make_tensor_descriptor(target, shape=[rows, columns], strides=[columns, 1], block_shape=[BLOCK, BLOCK])
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    write.store([row, column], read.load([row, column]) * 2)


@triton.jit
def from_host_descriptor_kernel(read, write, BLOCK: tl.constexpr):
    """The same with descriptors made by the host: kernel parameters of 128 bytes, encoded by cuTensorMapEncodeTiled."""
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    write.store([row, column], read.load([row, column]) + 1)


@triton.jit
def counting_kernel(counter, BLOCK: tl.constexpr):
    tl.atomic_add(counter + tl.arange(0, BLOCK) % 4, 1)


def addition():
    found = []
    for n in (1, 1000, 100003):
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
        same(f"exact-{n}", torch.equal(out, x + y))
        found.append(out)
    return found


def softmax():
    x = torch.randn(500, 781, device="cuda")
    out = torch.empty_like(x)
    softmax_kernel[(500,)](x, out, 781, x.stride(0), BLOCK=1024)
    same("close", torch.allclose(out, x.softmax(1), atol=1e-6))
    return out


def product():
    found = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        a, b = torch.randn(512, 512, device="cuda").to(dtype), torch.randn(512, 512, device="cuda").to(dtype)
        c = torch.empty_like(a)
        product_kernel[(8, 8)](a, b, c, 512, BLOCK=64)
        near(f"product-{dtype}", c.float().norm().item() / (a.float() @ b.float()).norm().item(), 1e-3)
        found.append(c)
    return found


def autotuned():
    x = torch.arange(1 << 20, dtype=torch.float32, device="cuda") % 1000
    out = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    note("best", tuned_kernel.best_config)
    return out


def device_descriptors():
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    x = torch.randn(256, 512, device="cuda")
    out = torch.empty_like(x)
    described_kernel[(4, 8)](x, out, 256, 512, BLOCK=64)
    same("doubled", torch.equal(out, x * 2))
    return out


def host_descriptors():
    from triton.tools.tensor_descriptor import TensorDescriptor

    x = torch.randn(256, 512, device="cuda").half()
    out = torch.empty_like(x)
    read, write = (TensorDescriptor.from_tensor(tensor, [64, 64]) for tensor in (x, out))
    from_host_descriptor_kernel[(4, 8)](read, write, BLOCK=64)
    same("plus-one", torch.equal(out, x + 1))
    return out


def atomics():
    counter = torch.zeros(4, dtype=torch.int32, device="cuda")
    counting_kernel[(1000,)](counter, BLOCK=128)
    return counter


def many_small_launches():
    x = torch.zeros(1000, device="cuda")
    one = torch.ones(1000, device="cuda")
    for _ in range(2000):
        add_kernel[(1,)](x, one, x, 1000, BLOCK=1024)
    return x


attempts(addition, softmax, product, autotuned, device_descriptors, host_descriptors, atomics, many_small_launches)
