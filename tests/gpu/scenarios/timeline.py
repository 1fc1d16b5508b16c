"""The timeline of a program against what its own events say, natively and remotely, and what the timeline costs."""

import json
import os
import statistics

from bed import hold, tail

SECONDS = 240
# Events of a program and of the timeline lie around the same kernel, one pair within the other.
APART_US = 12
APART_SHARE = 0.03
# The promise, for kernels of a few microseconds that follow each other at once: the worst case.
COST_MAX = 0.05


def _found(bed, name, mode, options=()):
    result = bed.run(name, mode, bed.python("programs/timed.py"), SECONDS, options=options)
    hold(result.problem() is None, name, mode, result.problem(), tail(result.err))
    return json.loads(result.out.splitlines()[-1])


def durations_are_those_of_the_gpu(bed):
    """Each kernel takes as long in the file as the program's events say, here and natively."""
    native = _found(bed, "timed", bed.reference)
    without = _found(bed, "timed", "tcp")
    path = os.path.join(bed.out, "timeline.json")
    traced = _found(bed, "timed_traced", "tcp", options=("--timeline", path))
    with open(path) as file:
        events = json.load(file)
    lines, wrong = [], []
    for name, native_us in native.items():
        if name == "short_s":
            continue
        # The last five; those before warmed up.
        kernels = [event["args"]["gpu_us"] for event in events if event.get("name") == name and event.get("cat") == "kernel"][-5:]
        shown, own, alone = (statistics.median(values) for values in (kernels or [0], traced[name], native_us))
        lines.append(f"{name}: timeline {shown:.1f} us, the program's events {own:.1f} us, natively {alone:.1f} us")
        for other in (own, alone):
            if abs(shown - other) > APART_US + APART_SHARE * other:
                wrong.append(lines[-1])
    missed = sum(event["args"]["count"] for event in events if event["ph"] == "i" and "count" in event["args"])
    cost = traced["short_s"] / without["short_s"] - 1
    lines.append(f"cost for short kernels: {100 * cost:.1f} % ({without['short_s']:.3f} s without), {missed} not shown")
    hold(not wrong, "\n".join(wrong))
    hold(cost <= COST_MAX, lines[-1])
    return lines
