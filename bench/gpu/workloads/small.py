"""The smallest things a program does: one kernel and a wait, one number read back, a network of tiny layers, one large product."""

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
