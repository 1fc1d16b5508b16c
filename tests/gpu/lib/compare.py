"""Compares what a check said natively with what it said remotely."""

import dataclasses
import fnmatch
import math
import os

EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "expected-differences.txt")


@dataclasses.dataclass(frozen=True)
class Fact:
    kind: str
    value: str
    tolerance: float = 0.0

    def agrees_with(self, other):
        if self.kind != other.kind:
            return False
        if self.kind == "~":
            # NaN agrees with NaN: what matters is that both sides computed the same.
            left, right = float(self.value), float(other.value)
            return math.isclose(left, right, rel_tol=self.tolerance) or (math.isnan(left) and math.isnan(right))
        return self.value == other.value


def facts(text):
    """The facts that a check printed, by key; a key said several times counts up: `key`, `key#2`, …"""
    found = {}
    for line in text.splitlines():
        mark, _, rest = line.partition(" ")
        if mark not in ("=", "~", "!"):
            continue
        key, _, value = rest.partition(" ")
        tolerance = 0.0
        if mark == "~":
            tolerance_text, _, value = value.partition(" ")
            tolerance = float(tolerance_text)
        name, n = key, 1
        while name in found:
            n += 1
            name = f"{key}#{n}"
        found[name] = Fact(mark, value, tolerance)
    return found


def differing(native, remote):
    """Keys whose facts differ, or that only one side said."""
    keys = list(native) + [key for key in remote if key not in native]
    return [key for key in keys if key not in native or key not in remote or not native[key].agrees_with(remote[key])]


def are_both_values(left, right):
    """Whether both sides found something, be it different: neither an error nor silence."""
    return left is not None and right is not None and "!" not in (left.kind, right.kind)


def show(key, native, remote, width=160):
    """One difference, in two lines."""

    def side(facts):
        return f"{facts[key].kind} {facts[key].value}"[:width] if key in facts else "(said nothing)"

    return f"{key}\n    native {side(native)}\n    remote {side(remote)}"


def expected(check):
    """Differences that are known and have a reason: patterns of keys and why, from expected-differences.txt."""
    found = {}
    with open(EXPECTED) as file:
        for line in file:
            line = line.strip()
            if line and not line.startswith("#"):
                where, pattern, reason = line.split(maxsplit=2)
                if fnmatch.fnmatch(check, where):
                    found[pattern] = reason
    return found


def reason_for(key, patterns):
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatch(key, pattern)), None)
