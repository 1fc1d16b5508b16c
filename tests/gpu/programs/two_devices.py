"""One process with the GPUs of two workers: what it sees, copies between them, streams and events of both, threads on each."""

import threading

import torch
from say import attempts, note, same

first, second = "cuda:0", "cuda:1"


def pattern(count, seed=0):
    return torch.arange(count, dtype=torch.int64) * 2654435761 % 1000003 + seed


def two_devices():
    same("names", torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1))
    assert torch.cuda.device_count() == 2, torch.cuda.device_count()
    note("peer-access", (torch.cuda.can_device_access_peer(0, 1), torch.cuda.can_device_access_peer(1, 0)))


def copies_between_them():
    for count in (1, 1000, 1 << 20, 8 << 20):
        x = pattern(count)
        there = x.to(first).to(second)
        assert there.device.index == 1
        assert torch.equal(there.cpu(), x), count
        assert torch.equal(there.to(first).cpu(), x), count


def copies_in_order():
    """A copy between devices waits for the work before it on both, and the work after it waits for the copy."""
    x = pattern(4 << 20).to(first)
    y = torch.zeros(4 << 20, dtype=torch.int64, device=second)
    for n in range(20):
        x.add_(1)
        y.copy_(x, non_blocking=True)
        x.mul_(1)
        y.sub_(n)
    assert torch.equal(y.cpu(), pattern(4 << 20) + 20 - 19)


def odd_shapes():
    x = pattern(1 << 20).view(1024, 1024)
    there = x.to(first).t()[3:700, ::5].to(second)
    assert torch.equal(there.cpu(), x.t()[3:700, ::5])


def work_on_both():
    x = [torch.randn(512, 512, generator=torch.Generator().manual_seed(3)).to(device) for device in (first, second)]
    products = [tensor @ tensor for tensor in x]
    assert torch.equal(products[0].cpu(), products[1].cpu())


def events_across():
    """A stream of one device waits for an event of the other."""
    mine, other = torch.cuda.Stream(first), torch.cuda.Stream(second)
    x = pattern(1 << 20).to(first)
    y = torch.empty(1 << 20, dtype=torch.int64, device=second)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    done = torch.cuda.Event()
    with torch.cuda.stream(mine):
        torch.cuda._sleep(20_000_000)
        x.add_(5)
        done.record()
    with torch.cuda.stream(other):
        other.wait_event(done)
        y.copy_(x, non_blocking=True)
    other.synchronize()
    assert torch.equal(y.cpu(), pattern(1 << 20) + 5)


def a_thread_on_each():
    found = {}

    def work(device):
        x = torch.ones(1000, device=device)
        for _ in range(500):
            x = x * 1.001 + 0.5
        found[device] = x.sum().item()

    threads = [threading.Thread(target=work, args=(device,)) for device in (first, second) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found[first] == found[second]


def memory_of_each():
    before = torch.cuda.memory_allocated(1)
    x = torch.empty(1 << 28, dtype=torch.uint8, device=first)
    assert torch.cuda.memory_allocated(1) == before
    assert torch.cuda.memory_allocated(0) >= x.numel()


def autograd_across():
    weight = torch.ones(64, 64, device=first, requires_grad=True)
    x = torch.full((8, 64), 2.0, device=first)
    ((x @ weight).to(second) * 3).sum().backward()
    assert weight.grad.device.index == 0
    assert torch.equal(weight.grad.cpu(), torch.full((64, 64), 48.0))


def scatter_and_gather():
    x = pattern(1 << 16).view(16, -1)
    parts = torch.nn.parallel.scatter(x.to(first), [0, 1])
    assert [part.device.index for part in parts] == [0, 1]
    assert torch.equal(torch.nn.parallel.gather(parts, 0).cpu(), x)


attempts(
    two_devices,
    copies_between_them,
    copies_in_order,
    odd_shapes,
    work_on_both,
    events_across,
    a_thread_on_each,
    memory_of_each,
    autograd_across,
    scatter_and_gather,
)
