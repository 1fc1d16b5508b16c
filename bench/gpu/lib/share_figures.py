"""Numbers of bench/gpu/share.py. Pure: what programs answered in, figures out."""

import math

# A p99 above so many service times is a queue that grows: at load 0.8 a queue of constant service has a p99 of 11.
BEHIND_SERVICES = 20
PERCENTILES = (0.5, 0.9, 0.99, 0.999)
LOAD_LEAST, LOAD_MOST = 0.1, 0.8
HOURS = 24


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def falls_behind(completed, arrived, p99_us, service_us):
    """Whether requests come faster than the program serves them."""
    return completed < arrived or (p99_us is not None and p99_us > BEHIND_SERVICES * service_us)


def online_figures(answer, service_us):
    latencies = answer["latencies_us"]
    figures = {f"p{int(share * 1000) / 10:g}_us": percentile(latencies, share) for share in PERCENTILES}
    behind = falls_behind(len(latencies), answer["arrived"], figures["p99_us"], service_us)
    return figures | {
        "longest_us": max(latencies, default=None),
        "requests": len(latencies),
        "arrived": answer["arrived"],
        "falls_behind": behind,
        "right": answer["right"],
    }


def steps_between(ends, since, until):
    """Steps within a span of time; of those that lie in it in part, that part."""
    return sum(max(0.0, min(end, until) - max(begin, since)) / (end - begin) for begin, end in zip(ends, ends[1:]) if end > begin)


def rate(ends, since, until):
    """Steps a second within a span of time, from the times at which steps ended. Also of a program that stands still for most of it."""
    return steps_between(ends, since, until) / (until - since) if until > since else 0.0


def pauses(arrivals, latencies_us, least_seconds):
    """Spans without a request: from the end of one to the arrival of the next, if that takes so long."""
    ends = [at + us / 1e6 for at, us in zip(arrivals, latencies_us)]
    return [(end, at) for end, at in zip(ends, arrivals[1:]) if at - end >= least_seconds]


def ratio(value, base):
    return value / base if value is not None and base else None


def latencies_around(answer, since, until):
    """Of the requests that were waiting or served at some time of a span."""
    return [us for at, us in zip(answer["arrivals"], answer["latencies_us"]) if at < until and at + us / 1e6 > since]


def silence_around(answer, since, until):
    """The longest time without an answer that began or ended in a span. None where there was no request."""
    ends = sorted(at + us / 1e6 for at, us in zip(answer["arrivals"], answer["latencies_us"]))
    gaps = [(end - begin) * 1e6 for begin, end in zip(ends, ends[1:]) if begin < until and end > since]
    return max(gaps, default=None)


def longest_around(answer, since, until):
    """None where there was no request."""
    return max(latencies_around(answer, since, until), default=None)


def day_load(hour):
    """The online load at an hour of the day: a hump before noon, a higher one in the evening, little at night."""

    def hump(middle, width):
        # The day is a circle: the evening's hump goes on after midnight.
        away = min(abs(hour - middle), HOURS - abs(hour - middle))
        return math.exp(-((away / width) ** 2))

    shape = 0.75 * hump(11, 3) + hump(20, 2.5)
    return LOAD_LEAST + (LOAD_MOST - LOAD_LEAST) * min(1.0, shape)


def mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None
