"""The smallest things a program does: one kernel and a wait, one number read back, a network of tiny layers, one large product."""

import ctypes

import torch

from . import models
from .workload import Prepared


def kernel_and_synchronize(where):
    x = torch.zeros(1024, device=where.device)
    synchronize = where.synchronize

    def step():
        x.add_(1)
        synchronize()

    # How often it ran depends on the time: what must be the same is that all elements agree.
    return Prepared(step, lambda: [float(x.min() == x.max())])


def item(where):
    x = torch.ones(1, device=where.device)
    return Prepared(lambda: (x + 1).item(), lambda: [(x + 1).item()])


def mlp_training(where):
    model, width = models.mlp(where.is_tiny)
    model.to(where.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, width, device=where.device)
    target = torch.randn(32, width, device=where.device)
    last = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return Prepared(step, lambda: [last[0].item()])


def matmul(where):
    size = where.pick(8192, 64)
    models.seed()
    a, b = (torch.randn(size, size, device=where.device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return Prepared(lambda: torch.mm(a, b, out=out), lambda: [out.float().norm().item()])


def pool_blocks(where):
    """cuMemAllocAsync and cuMemFreeAsync of one block after the other, among many that live: what ctypes adds is in `driver_calls`."""
    if where.device != "cuda":
        return Prepared(lambda: None, lambda: [0.0])
    driver, stream, place = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    torch.zeros(1, device="cuda")
    codes = [driver.cuStreamCreate(ctypes.byref(stream), 1)]
    pool, kept = ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1)
    codes += [driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0), driver.cuMemPoolSetAttribute(pool, 4, ctypes.byref(kept))]
    allocate, free, place_of = driver.cuMemAllocAsync, driver.cuMemFreeAsync, ctypes.byref(place)
    living = []
    for at in range(500):
        codes.append(allocate(place_of, ctypes.c_size_t(1000 << at % 12), stream))
        living.append(ctypes.c_uint64(place.value))
    # Every other one goes, so that there are holes of all sizes.
    codes += [free(block, stream) for block in living[::2]]
    sizes = [ctypes.c_size_t(700 << at * 7 % 12) for at in range(1000)]

    def step():
        for size in sizes:
            allocate(place_of, size, stream)
            free(place, stream)

    return Prepared(step, lambda: [float(sum(codes))])


def driver_calls(where):
    """As many calls through ctypes as `pool_blocks` makes, of a function that does nothing for a null pointer."""
    if where.device != "cuda":
        return Prepared(lambda: None, lambda: [0.0])
    driver, stream, nothing = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64(0)
    torch.zeros(1, device="cuda")
    code = driver.cuStreamCreate(ctypes.byref(stream), 1)
    free = driver.cuMemFreeAsync

    def step():
        for _ in range(2000):
            free(nothing, stream)

    return Prepared(step, lambda: [float(code)])
