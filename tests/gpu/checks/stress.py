"""Sixteen threads, each with streams of its own, do a random but fixed sequence of everything at once: kernels, copies from and to
pinned and ordinary memory, events, waits across streams, allocations of all sizes, numbers read back. What each computes does not
depend on the others, so it must come out as it does natively."""

import random
import threading

import torch
from device import DEVICE
from say import fingerprint, same

THREADS = 16
OPERATIONS = 400
ELEMENTS = 1 << 15


class Walk:
    """One thread's random walk over integers, whose sums do not depend on rounding."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        # A prime modulus keeps values small and every operation exact.
        self.state = torch.arange(ELEMENTS, dtype=torch.int64, device=DEVICE) % 1009 + seed
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        self.at = self.streams[0]
        self.numbers = []
        self.held = []
        torch.cuda.current_stream().synchronize()

    def run(self):
        steps = [
            self.kernel,
            self.kernel,
            self.hop,
            self.pinned_trip,
            self.pageable_trip,
            self.read,
            self.allocate,
            self.slices,
            self.event_wait,
            self.sort,
        ]
        for n in range(OPERATIONS):
            with torch.cuda.stream(self.at):
                self.random.choice(steps)()
        self.at.synchronize()

    def kernel(self):
        self.state = (self.state * self.random.randrange(2, 50) + self.random.randrange(100)) % 1009

    def hop(self):
        """Goes on in another stream, which waits for this one."""
        other = self.random.choice(self.streams)
        other.wait_stream(self.at)
        self.state.record_stream(other)
        self.at = other

    def pinned_trip(self):
        host = torch.empty(ELEMENTS, dtype=torch.int64, pin_memory=True)
        host.copy_(self.state, non_blocking=True)
        self.at.synchronize()
        host += 1
        self.state = host.to(DEVICE, non_blocking=True)

    def pageable_trip(self):
        host = self.state.cpu()
        host[:: self.random.randrange(3, 99)] += 7
        self.state = host.to(DEVICE)

    def read(self):
        self.numbers.append(self.state[self.random.randrange(ELEMENTS)].item())

    def allocate(self):
        size = self.random.choice([1, 1000, 1 << 17, 1 << 21, 1 << 24])
        self.held.append((torch.full((size,), size % 251, dtype=torch.uint8, device=DEVICE), self.at))
        if len(self.held) > 6:
            gone, made_in = self.held.pop(self.random.randrange(6))
            self.at.wait_stream(made_in)
            gone.record_stream(self.at)
            self.numbers.append(gone[-1].item())

    def slices(self):
        start = self.random.randrange(ELEMENTS // 2)
        self.state[start : start + 1000] += self.state[:1000].flip(0)
        self.state.remainder_(1009)

    def event_wait(self):
        event, other = torch.cuda.Event(), self.random.choice(self.streams)
        event.record()
        other.wait_event(event)
        if self.random.random() < 0.3:
            event.synchronize()

    def sort(self):
        self.state = self.state.sort().values + torch.arange(ELEMENTS, device=DEVICE) % 13


def main():
    walks, found = [Walk(seed) for seed in range(THREADS)], [None] * THREADS

    def work(n):
        try:
            walks[n].run()
            found[n] = fingerprint(walks[n].state), sum(walks[n].numbers), len(walks[n].numbers)
        except Exception as error:
            found[n] = f"raised {error}"

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for n, result in enumerate(found):
        same(f"thread-{n}", result)
    torch.cuda.synchronize()


main()
