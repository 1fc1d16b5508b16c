"""Rounds of measurements: what is compared with what, and medians of that.

A machine is never quiet for long, so each measurement is divided by another of the same round that was taken right beside it, and the
median of these ratios over the rounds is what counts.
"""

import figures

NOTHING = "inject nothing"
RECORDED = "recorded"


def injected_key(rtt):
    return f"inject {rtt:g}us" if rtt else NOTHING


def with_nothing_between(rtts):
    """Each round trip beside a 0: [0, a, b, 0, c, d, 0, …, 0]."""
    order = [0]
    for at in range(0, len(rtts), 2):
        order += [*rtts[at : at + 2], 0]
    return order


def medians(rounds):
    """Milliseconds by what was measured, over all rounds."""
    samples = {}
    for found in rounds:
        for key, ms, _ in found:
            samples.setdefault(key, []).append(ms)
    return {key: figures.median(values) for key, values in samples.items()}


def ratios(rounds, key, base):
    """`base` over `key`, once for each measurement of `key`: the base is the mean of those next before and next after it."""
    found = []
    for one in rounds:
        places = [at for at, (name, _, _) in enumerate(one) if name == base]
        for at, (name, ms, _) in enumerate(one):
            if name == key and places:
                before, after = [place for place in places if place < at], [place for place in places if place > at]
                beside = before[-1:] + after[:1]
                found.append(sum(one[place][1] for place in beside) / len(beside) / ms)
    return found


def ratio(rounds, key, base):
    """The median of them, or None."""
    found = ratios(rounds, key, base)
    return figures.median(found) if found else None


def middle_half_points(rounds, key, base):
    """How far apart the middle half of the ratios is, in percentage points."""
    found = sorted(ratios(rounds, key, base))
    return 100.0 * (found[(3 * len(found) - 1) // 4] - found[len(found) // 4]) if found else None


def _sums(rounds, key):
    sums = {}
    for one in rounds:
        for name, _, injected in one:
            if name == key and injected:
                for figure, value in injected.items():
                    sums[figure] = sums.get(figure, 0.0) + value
    return sums


def added(rounds, key):
    """Microseconds that each filler was asked to add, that it did add, and that it took of the calling thread: its own launch, and
    what it made the program's launches dearer by."""
    sums, without = _sums(rounds, key), _sums(rounds, NOTHING)
    if not sums.get("fillers"):
        return None
    launch_us = None
    if sums["launches"]:
        launch_us = sums["launch_us"] / sums["launches"]
        if sums["calls"] and without.get("calls"):
            launch_us += max(0.0, sums["call_us"] / sums["calls"] - without["call_us"] / without["calls"])
    return {"asked_us": sums["asked_us"] / sums["fillers"], "added_us": sums["added_us"] / sums["fillers"], "launch_us": launch_us}
