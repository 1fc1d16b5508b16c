"""DataLoader with worker processes made by fork and pinned memory: the children inherit a process that already uses the GPU."""

import torch
from device import DEVICE
from say import attempts, same
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, n):
        generator = torch.Generator().manual_seed(n)
        return torch.rand(3, 32, 32, generator=generator), n % 10


def batches(**options):
    is_pinned = DEVICE == "cuda"
    return DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=is_pinned, multiprocessing_context="fork", **options)


def epoch_with_fork_after_first_use():
    # The context exists before the fork: the children hold a copy of it that they must not touch.
    weight = torch.ones(3 * 32 * 32, 10, device=DEVICE)
    found = []
    for x, y in batches():
        same("pinned", x.is_pinned())
        x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
        found += [(x.flatten(1) @ weight)[:, 0], y]
    return found


def persistent_workers():
    loader = batches(persistent_workers=True, prefetch_factor=4)
    found = []
    for _ in range(2):
        total = torch.zeros(3, device=DEVICE)
        for x, _ in loader:
            total += x.to(DEVICE, non_blocking=True).mean(dim=(0, 2, 3))
        found.append(total)
    return found


def the_parent_goes_on():
    return torch.arange(1000, device=DEVICE).float().cumsum(0)


attempts(epoch_with_fork_after_first_use, persistent_workers, the_parent_goes_on)
