"""Allocates more than the worker grants: PyTorch must say that it is out of memory, and go on with less."""

import sys
import time

import torch
from say import attempts, note, same

LIMIT = int(sys.argv[1])
GIB = 1 << 30


def what_the_device_says():
    free, total = torch.cuda.mem_get_info()
    note("free-and-total", (free, total))
    return total <= LIMIT


def too_much_is_refused():
    began = time.monotonic()
    try:
        torch.empty(LIMIT + GIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        note("text", str(error).splitlines()[0])
        return time.monotonic() - began < 1
    return "granted"


def bit_by_bit():
    held = []
    try:
        while len(held) < 1000:
            held.append(torch.empty(GIB // 4, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        note("quarters-held", len(held))
        same("some-were-granted", len(held) > 2)
        return len(held) * (GIB // 4) <= LIMIT
    return "never refused"


def less_is_granted():
    torch.cuda.empty_cache()
    x = torch.arange(1 << 20)
    return torch.equal(x.cuda().cpu(), x)


attempts(what_the_device_says, too_much_is_refused, bit_by_bit, less_is_granted)
