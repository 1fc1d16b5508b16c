"""PyTorch's expandable segments: its allocator reserves addresses and maps physical memory itself, with the VMM calls.

Run with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF in newer versions).
"""

import os

import torch
from say import attempts, same


def the_setting_is_in_force():
    return "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")


def segments_grow_in_place():
    x = torch.ones(1 << 20, device="cuda")
    found = [x.sum()]
    for n in range(1, 9):
        x = torch.arange(n << 22, device="cuda", dtype=torch.float32)
        found.append(x[-3:].clone())
    segments = torch.cuda.memory_snapshot()
    same("expandable", sorted({segment.get("is_expandable") for segment in segments}))
    return found


def fragments_are_reused():
    held = [torch.full((1 << 18,), n, device="cuda") for n in range(64)]
    total = sum(tensor[7] for tensor in held)
    del held[::2]
    big = torch.zeros(1 << 24, device="cuda")
    return [total, big.sum(), *(tensor[3] for tensor in held)]


def memory_is_unmapped_and_mapped_again():
    x = torch.ones(1 << 26, device="cuda")
    same("allocated", torch.cuda.memory_allocated() >= 1 << 28)
    del x
    torch.cuda.empty_cache()
    y = torch.full((1 << 26,), 3.0, device="cuda")
    return y.sum()


def training():
    torch.manual_seed(6)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for size in (32, 64, 96, 48):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 3, size, size, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


attempts(the_setting_is_in_force, segments_grow_in_place, fragments_are_reused, memory_is_unmapped_and_mapped_again, training)
