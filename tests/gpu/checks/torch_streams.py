"""Streams and events: order between them, what a query says, what a time means, host functions, priorities."""

import time

import torch
from say import attempts, note, same


def order_across_streams():
    x = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    done = torch.cuda.Event()
    found = []
    for n in range(50):
        with torch.cuda.stream(first):
            x.add_(1)
            done.record()
        with torch.cuda.stream(second):
            second.wait_event(done)
            x.mul_(2)
            found.append(x[n].clone())
        first.wait_stream(second)
    torch.cuda.synchronize()
    return found


def events_measure_the_gpu():
    """About 30 ms of work: an answer that is far from it did not come from the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    cycles = 50_000_000
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    same("pending", end.query())
    end.synchronize()
    same("done", end.query())
    milliseconds = start.elapsed_time(end)
    note("milliseconds", milliseconds)
    # H200 clocks lie between 1.0 and 2.0 GHz.
    return 20 < milliseconds < 60


def a_synchronise_waits():
    """The call returns when the kernel is over, not before."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.cuda._sleep(100_000_000)
    launched = time.perf_counter() - began
    torch.cuda.synchronize()
    waited = time.perf_counter() - began
    note("launched-after-ms", launched * 1e3)
    note("waited-ms", waited * 1e3)
    return launched < 0.02 and 0.04 < waited < 0.2


def a_stream_is_busy_until_it_is_not():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
    same("busy", stream.query())
    stream.synchronize()
    return stream.query()


def one_wait_holds_nobody_else():
    """While one thread waits for a long kernel, another gets its own answers."""
    import threading

    long_one, short_one = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.ones(100, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(long_one):
        torch.cuda._sleep(400_000_000)
    over = []

    def wait():
        long_one.synchronize()
        over.append(time.perf_counter())

    waiter = threading.Thread(target=wait)
    waiter.start()
    answers = 0
    with torch.cuda.stream(short_one):
        while not over and answers < 200:
            (x + answers).sum().item()
            answers += 1
            last = time.perf_counter()
    waiter.join()
    note("answers-during-the-wait", answers)
    return answers >= 20 and last <= over[0] + 0.05


def priorities():
    low, high = torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-1)
    same("priorities", (low.priority, high.priority))
    same("range", torch.cuda.Stream.priority_range())
    with torch.cuda.stream(high):
        return torch.ones(5, device="cuda") * 3


def default_and_current():
    same("default-is-current", torch.cuda.current_stream() == torch.cuda.default_stream())
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        same("current-changes", torch.cuda.current_stream() == stream)
    same("and-back", torch.cuda.current_stream() == torch.cuda.default_stream())


def pinned_memory_is_not_reused_too_early():
    """PyTorch gives a pinned block to the next caller when its event has come: events must not come early."""
    there = torch.empty(1 << 20, dtype=torch.int32, device="cuda")
    found = []
    for n in range(30):
        torch.cuda._sleep(2_000_000)
        block = torch.full((1 << 20,), n, dtype=torch.int32).pin_memory()
        there.copy_(block, non_blocking=True)
        del block
        found.append(there[::100000].clone())
    torch.cuda.synchronize()
    same("right", all(bool((tensor == n).all()) for n, tensor in enumerate(found)))
    return found


def device_properties():
    properties = torch.cuda.get_device_properties(0)
    same("name", properties.name)
    same("capability", torch.cuda.get_device_capability())
    same("processors", properties.multi_processor_count)
    same("warp", properties.warp_size)
    note("memory", properties.total_memory)
    same("count", torch.cuda.device_count())
    same("bf16", torch.cuda.is_bf16_supported())
    same("architectures", torch.cuda.get_arch_list())


attempts(
    order_across_streams,
    events_measure_the_gpu,
    a_synchronise_waits,
    a_stream_is_busy_until_it_is_not,
    one_wait_holds_nobody_else,
    priorities,
    default_and_current,
    pinned_memory_is_not_reused_too_early,
    device_properties,
)
