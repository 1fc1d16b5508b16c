"""From samples to what they say: ratios, geometric means, and which promises hold. Pure: results in, figures out.

A ratio is base time / time: above 1 is faster than the base (native, or TCP without delay when delays are measured).
"""

import dataclasses

import figures
from modes import BOUNDS
from workloads import STEPS, WORKLOADS


def time_ms(results, workload, mode):
    """The median over the repetitions of their medians; None where there is none."""
    row = results["workloads"].get(workload, {}).get("modes", {}).get(mode, {})
    repetitions = row.get("repetitions")
    return figures.median([one["median_ms"] for one in repetitions]) if repetitions else None


def ratio(results, workload, mode, base=None):
    """Base time / time."""
    left, right = time_ms(results, workload, base or results["base"]), time_ms(results, workload, mode)
    return left / right if left and right else None


def gbps(results, workload, mode):
    """Gigabytes a second of a copy."""
    milliseconds = time_ms(results, workload, mode)
    moved = results["workloads"].get(workload, {}).get("bytes_moved")
    return moved / milliseconds / 1e6 if milliseconds and moved else None


def step_ratios(results, mode, base=None):
    """Ratios of the step workloads that were measured in both modes."""
    found = {name: ratio(results, name, mode, base) for name in STEPS}
    return {name: value for name, value in found.items() if value}


def geometric_means(results):
    """Of the step workloads, by mode."""
    modes = [mode for mode in results["modes"] if mode not in (results["base"], *BOUNDS)]
    ratios = {mode: list(step_ratios(results, mode).values()) for mode in modes}
    return {mode: {"ratio": figures.geometric_mean(values), "of": len(values)} for mode, values in ratios.items() if values}


# The mode of a driver that does nothing, and that of the GPU's own work.
LIMIT, GPU = BOUNDS
# Where the fastest possible saves less than this share of native, the GPU sets the pace, and a share of what can be saved is noise.
SAVED_MIN = 0.05


def fastest_ms(results, workload):
    """What a step takes at least, whatever the driver: the program's own processor time, or the GPU's own work if that is more. A
    program may do both at once, so this may be less than is possible, and never more."""
    limit = time_ms(results, workload, LIMIT)
    return limit and max(limit, time_ms(results, workload, GPU) or 0)


def fastest_mean(results):
    """The geometric mean that the fastest possible driver would have, and of how many steps."""
    fastest = {name: fastest_ms(results, name) for name in STEPS}
    ratios = [time_ms(results, name, results["base"]) / ms for name, ms in fastest.items() if ms]
    return {"ratio": figures.geometric_mean(ratios), "of": len(ratios)} if ratios else None


def way_to_limit(results, workload, mode):
    """How much of the way from native to the fastest possible this mode has gone: 1 is there, 0 at native, below 0 where it is slower
    than native. None where there is no way to go."""
    base, time = (time_ms(results, workload, name) for name in (results["base"], mode))
    fastest = fastest_ms(results, workload)
    if not (base and fastest and time) or base - fastest < SAVED_MIN * base:
        return None
    return (base - time) / (base - fastest)


def first_use_s(results, mode):
    samples = results.get("first_use", {}).get(mode, {}).get("seconds")
    return figures.median(samples) if samples else None


@dataclasses.dataclass(frozen=True)
class Target:
    """A promise: a figure and its bound. `value` is None where it was not measured."""

    title: str
    value: float | None
    bound: float
    is_at_least: bool

    @property
    def verdict(self):
        if self.value is None:
            return "not measured"
        return "pass" if (self.value >= self.bound) == self.is_at_least or self.value == self.bound else "miss"

    @property
    def bound_text(self):
        return f"{'at least' if self.is_at_least else 'at most'} {self.bound:g}"


def targets(results):
    """Every promise that these results can say something about."""
    return [target for target in _all_targets(results) if target.value is not None]


def _all_targets(results):
    at_least = lambda title, value, bound: Target(title, value, bound, True)
    at_most = lambda title, value, bound: Target(title, value, bound, False)
    if results["base"] == "native":
        yield from _native_targets(results, at_least, at_most)
    for name in ("resnet_train_32", "resnet_train_128", "bert_train"):
        yield at_least(
            f"{WORKLOADS[name].title} at 50 us of round trip, of TCP's speed", ratio(results, name, "tcp+50us", "tcp"), 0.97
        )


def _native_targets(results, at_least, at_most):
    def mean(mode):
        found = geometric_means(results).get(mode)
        return found["ratio"] if found and found["of"] == len(STEPS) else None

    def inverse(value):
        return 1 / value if value else None

    def slowest(mode, base):
        values = step_ratios(results, mode, base).values()
        return 1 / min(values) if values else None

    steps = step_ratios(results, "tcp")
    yield at_least("steps over TCP, geometric mean", mean("tcp"), 1.20)
    yield at_least("steps over TCP, the slowest", min(steps.values()) if steps else None, 0.90)
    yield at_least("steps over shared memory, geometric mean", mean("shm"), 1.40)
    yield at_most("shared memory against TCP on the steps, the worst of times", slowest("shm", "tcp"), 1.00)
    yield at_most("TLS against TCP on the steps, geometric mean of times", _tls_cost(results), 1.10)
    yield at_most("TLS against TCP on the steps, the worst", slowest("tls", "tcp"), 1.10)
    for way in ("h2d", "d2h"):
        yield at_least(f"{WORKLOADS[f'{way}_pageable'].title}, over TCP", ratio(results, f"{way}_pageable", "tcp"), 0.8)
    for way in ("h2d", "d2h"):
        yield at_least(f"{WORKLOADS[f'{way}_pinned'].title}, of bare TCP streams", of_bare(results, f"{way}_pinned", "tcp"), 0.8)
    yield at_least("ResNet-50 batch 64 with host input and output, over TCP", ratio(results, "resnet_infer_64_host", "tcp"), 0.9)
    yield at_most("`.item()` over TCP, times native", inverse(ratio(results, "item", "tcp")), 2.5)
    yield at_most("`.item()` over shared memory, times native", inverse(ratio(results, "item", "shm")), 1.5)
    native = first_use_s(results, "native")
    for mode in results["modes"]:
        if mode != "native" and native and first_use_s(results, mode):
            yield at_most(f"first use in a fresh process over {mode}, times native", first_use_s(results, mode) / native, 0.5)


def _tls_cost(results):
    found = list(step_ratios(results, "tls", "tcp").values())
    return 1 / figures.geometric_mean(found) if len(found) == len(STEPS) else None


def of_bare(results, workload, mode):
    """A copy's rate as a share of what the bare streams moved in the same run."""
    rates = [one[mode]["gbps"] for one in results.get("bare", []) if mode in one]
    rate = gbps(results, workload, mode)
    return rate / figures.median(rates) if rates and rate else None


def complete(results):
    """The results with everything that follows from them, for JSON."""
    rows = {}
    for name, row in results["workloads"].items():
        rows[name] = {
            mode: {
                "median_ms": time_ms(results, name, mode),
                "ratio": ratio(results, name, mode),
                "gbps": gbps(results, name, mode),
                "way_to_limit": way_to_limit(results, name, mode),
            }
            for mode in row["modes"]
        }
    judged = [dataclasses.asdict(target) | {"verdict": target.verdict} for target in targets(results)]
    return results | {"summary": {"workloads": rows, "geometric_means": geometric_means(results), "fastest_mean": fastest_mean(results), "targets": judged}}
