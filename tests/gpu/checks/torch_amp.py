"""Automatic mixed precision: autocast to half and bfloat16, and the gradient scaler's infinities and skipped steps."""

import torch
from device import DEVICE
from say import attempts, same


def model():
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 16)).to(
        DEVICE
    )


def data():
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(64, 256, generator=generator), torch.randint(0, 16, (64,), generator=generator)
    return x.to(DEVICE), y.to(DEVICE)


def train(dtype, is_scaled):
    network, (x, y) = model(), data()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(DEVICE, enabled=is_scaled)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=dtype):
            out = network(x)
            loss = torch.nn.functional.cross_entropy(out, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    same(f"{dtype}-type-of-output", out.dtype)
    same(f"{dtype}-scale", scaler.get_scale())
    return [*losses, *network.parameters()]


def half():
    return train(torch.float16, is_scaled=True)


def bfloat16():
    return train(torch.bfloat16, is_scaled=False)


def an_infinite_gradient_skips_the_step():
    network, (x, y) = model(), data()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**40)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    with torch.autocast(DEVICE, dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(network(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    same("scale-after", scaler.get_scale())
    return all(torch.equal(a, b) for a, b in zip(before, network.parameters()))


def half_sums():
    x = torch.arange(1000, device=DEVICE).half()
    return [x.sum(), x.mean(), (x.float() / 3).half(), x.bfloat16().cumsum(0)]


attempts(half, bfloat16, an_infinite_gradient_skips_the_step, half_sums)
