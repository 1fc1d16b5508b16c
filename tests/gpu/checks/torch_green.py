"""Green contexts: PyTorch's own class, the results of work on a part of the multiprocessors, and the order with other streams."""

import torch
from device import DEVICE
from say import attempts, same


def work(size):
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, size, generator=generator).to(DEVICE)
    return x @ x.T + torch.relu(x)


def within(green, *sizes):
    green.set_context()
    found = [work(size) for size in sizes]
    green.pop_context()
    torch.cuda.synchronize()
    return found


def parts():
    """The same numbers, whatever part of the GPU computes them."""
    from torch.cuda.green_contexts import GreenContext

    results = []
    for count in (8, 16, 64):
        green = GreenContext.create(num_sms=count, device_id=0)
        results += within(green, 64, 256)
    return results


def order():
    """What a green context computes is there when the default stream goes on, and the other way round."""
    from torch.cuda.green_contexts import GreenContext

    green = GreenContext.create(num_sms=16, device_id=0)
    x = torch.zeros(1 << 20, device=DEVICE)
    for _ in range(20):
        x.add_(1)
        green.set_context()
        x.mul_(2)
        y = x.clone()
        green.pop_context()
        x.add_(y)
    return [x, x.sum()]


def errors():
    from torch.cuda.green_contexts import GreenContext

    for count in (0, 1_000_000):
        try:
            GreenContext.create(num_sms=count, device_id=0)
            same(f"count-{count}", "made")
        except (RuntimeError, ValueError) as error:
            same(f"count-{count}", str(error).splitlines()[0][:80])


attempts(parts, order, errors)
