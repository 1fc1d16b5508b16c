"""torch.profiler with CUDA activities: the program's results and the events of the processor are those of a run without dxpu.

Remotely the profiler has no events of the GPU (docs/timeline.md), and it must not invent any: every event that it shows of a kernel
has a time that can be true.
"""

import time

import torch
from device import DEVICE
from say import attempts, same
from torch.profiler import ProfilerActivity, profile, record_function, schedule

ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.CUDA]


def step(x):
    with record_function("a step"):
        y = torch.relu(x @ x.T)
        return y.sum(dim=0, keepdim=True) + x[:1, :1]


def check_times(profiler, began):
    """Whatever is shown of the GPU took some time, and less than the whole."""
    whole = (time.perf_counter() - began) * 1e6
    for event in profiler.key_averages():
        assert 0 <= event.device_time_total <= whole * max(1, event.count), (event.key, event.device_time_total, whole)


def once():
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    began = time.perf_counter()
    with profile(activities=ACTIVITIES) as profiler:
        for _ in range(10):
            y = step(x)
        torch.cuda.synchronize()
    check_times(profiler, began)
    counts = {event.key: event.count for event in profiler.key_averages() if event.key in ("a step", "aten::mm", "aten::relu")}
    same("events of the processor", sorted(counts.items()))
    return [y]


def by_schedule():
    """As trainings use it: some steps are left out, some are traced, again and again."""
    x = torch.randn(128, 128, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    traces = []
    with profile(
        activities=ACTIVITIES,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=3),
        on_trace_ready=lambda profiler: traces.append(len(profiler.key_averages()) > 0),
    ) as profiler:
        for _ in range(14):
            x = step(x).expand(128, 128).contiguous() / 1000
            profiler.step()
    same("traces", traces)
    return [x]


attempts(once, by_schedule)
