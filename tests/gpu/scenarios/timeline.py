"""The timeline of a program against what its own events say, natively and remotely, and what the timeline costs."""

import json
import os
import re
import statistics

from bed import hold, tail

SECONDS = 240
# Events of a program and of the timeline lie around the same kernel, one pair within the other.
APART_US = 12
APART_SHARE = 0.03
# The promise, for steps of training and decoding.
COST_MAX = 0.05
# Steps of each program; the first ones load kernels.
STEPS, COLD_STEPS = 150, 30
# A program alternates with and without, since machines have moods.
TURNS = 2


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
        of_it = [event["args"] for event in events if event.get("name") == name and event.get("cat") == "kernel"][-5:]
        kernels = [arguments.get("gpu_us", arguments.get("estimated_us")) for arguments in of_it]
        shown, own, alone = (statistics.median(values) for values in (kernels or [0], traced[name], native_us))
        lines.append(f"{name}: timeline {shown:.1f} us, the program's events {own:.1f} us, natively {alone:.1f} us")
        for other in (own, alone):
            if abs(shown - other) > APART_US + APART_SHARE * other:
                wrong.append(lines[-1])
    missed = sum(event["args"]["count"] for event in events if event["ph"] == "i" and "count" in event["args"])
    # Kernels of 4 us that follow each other at once: each pays for the event behind it. Told, not promised.
    cost = traced["short_s"] / without["short_s"] - 1
    lines.append(f"cost for short kernels: {100 * cost:.1f} % ({without['short_s']:.3f} s without), {missed} not shown")
    hold(not wrong, "\n".join(wrong))
    return lines


def _step_ms(bed, model, options):
    """The middle step of a program over TCP."""
    result = bed.run(f"timeline-{model}", "tcp", [*bed.python("programs/train.py"), str(STEPS), model], SECONDS, options=options)
    hold(result.problem() is None, model, result.problem(), tail(result.err))
    moments = [float(moment) for moment in re.findall(r"^step \d+ ([\d.]+) ", result.out, re.M)][COLD_STEPS:]
    return 1e3 * statistics.median(after - before for before, after in zip(moments, moments[1:]))


def programs_pay_little(bed):
    """Steps of real programs, with and without a timeline in turn."""
    lines, wrong = [], []
    for model in os.environ.get("GPU_MODELS", "resnet,bert,gpt2,mlp").split(","):
        path = os.path.join(bed.out, f"timeline-{model}.json")
        pairs = [(_step_ms(bed, model, ()), _step_ms(bed, model, ("--timeline", path))) for _ in range(TURNS)]
        without, traced = (min(times) for times in zip(*pairs))
        lines.append(f"{model}: a step of {without:.2f} ms takes {traced:.2f} ms with a timeline ({100 * (traced / without - 1):+.1f} %)")
        if traced > without * (1 + COST_MAX):
            wrong.append(lines[-1])
        os.remove(path)
    hold(not wrong, "\n".join(lines))
    return lines
