"""256 MiB between host and device, each way, from pinned and from ordinary memory."""

import torch

from . import COPY_BYTES
from .workload import Prepared


def copy(is_pinned, to_device):
    def prepare(where):
        size = where.pick(COPY_BYTES, 1 << 16)
        pin = is_pinned and where.device == "cuda"
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
        # Every page is there before the clock starts, with bytes that tell one place from another.
        host.view(torch.int64).copy_(torch.arange(size // 8))
        device = torch.empty(size, dtype=torch.uint8, device=where.device)
        source, target = (host, device) if to_device else (device, host)
        # Only a real copy brings the bytes to the target: it does not have them yet, or no longer.
        if not to_device:
            device.copy_(host)
            host.zero_()

        synchronize = where.synchronize

        def step():
            target.copy_(source, non_blocking=is_pinned)
            synchronize()

        def probe():
            assert host.is_pinned() == pin
            assert torch.equal(target.cpu().view(torch.int64), torch.arange(size // 8)), "the copy is not the original"
            return [float(size)]

        return Prepared(step, probe)

    return prepare


h2d_pinned = copy(is_pinned=True, to_device=True)
h2d_pageable = copy(is_pinned=False, to_device=True)
d2h_pinned = copy(is_pinned=True, to_device=False)
d2h_pageable = copy(is_pinned=False, to_device=False)
