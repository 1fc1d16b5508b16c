"""Numbers out of samples."""

import math
import statistics

# More samples than this are kept as their percentiles.
SAMPLES_KEPT = 200


def median(values):
    return statistics.median(values)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def percentiles(samples):
    """The samples themselves when they are few; otherwise the smallest, each hundredth, and the largest."""
    ordered = sorted(samples)
    if len(ordered) <= SAMPLES_KEPT:
        return list(samples)
    return [ordered[round(share / 100 * (len(ordered) - 1))] for share in range(101)]


def are_near(left, right, tolerance):
    """Whether two lists of numbers agree, each within this share."""
    same_length = len(left) == len(right)
    return same_length and all(math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-12) for a, b in zip(left, right))
