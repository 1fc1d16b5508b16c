"""Runs a check natively and remotely, compares, and says how it went."""
import dataclasses
import time

import compare
from bed import Wrong


@dataclasses.dataclass
class Verdict:
    name: str
    # "ok", "failed" or "skipped".
    status: str
    seconds: float
    # Lines that tell more: differences, errors, known differences.
    lines: list


class Skipped(Exception):
    """A check that cannot be made here, and why."""


def runs_of(bed, check, modes, pool):
    """Starts all runs of a check; its futures by mode."""
    chosen = [bed.reference, *(mode for mode in check.modes if mode in modes)]
    program = bed.python(check.path)

    def one(mode):
        return bed.run(check.name, mode, program, check.limit, check.environment)

    return {mode: pool.submit(one, mode) for mode in chosen}


def judge(bed, check, results):
    """The verdict over a check's finished runs, by mode."""
    lines, is_ok = [], True
    native = results[bed.reference]
    took = " ".join(f"{mode} {result.seconds:.0f} s" for mode, result in results.items())
    native_facts = compare.facts(native.out)
    if problem := native.problem():
        is_ok = False
        lines.append(f"{bed.reference}: {problem}")
    for key, fact in native_facts.items():
        if fact.kind == "!":
            is_ok = False
            lines.append(f"fails natively too: {key} {fact.value[:200]}")
    known = compare.expected(check.name)
    for mode, result in results.items():
        if mode == bed.reference:
            continue
        if problem := result.problem():
            is_ok = False
            lines.append(f"{mode}: {problem}")
        is_ok &= _judge_facts(bed, check, mode, native_facts, compare.facts(result.out), known, lines)
    count = len(native_facts)
    if count == 0 and is_ok:
        is_ok = False
        lines.append("said nothing that could be compared")
    return Verdict(f"{check.name} ({count} facts; {took})", "ok" if is_ok else "failed", max(r.seconds for r in results.values()), lines)


def _judge_facts(bed, check, mode, native, remote, known, lines):
    is_ok, again = True, None
    for key in compare.differing(native, remote):
        shown = f"{mode}: {compare.show(key, native, remote)}"
        if reason := compare.reason_for(key, known):
            lines.append(f"known: {reason}: {shown}")
            continue
        if again is None:
            again = _native_again(bed, check)
        if key in native and key in again and not native[key].agrees_with(again[key]) and native[key].kind != "!":
            lines.append(f"varies natively, so not judged: {shown}")
            continue
        is_ok = False
        lines.append(shown)
    return is_ok


def _native_again(bed, check):
    """A second native run: a fact that differs from the first proves nothing about dxpu."""
    result = bed.run(f"{check.name}-again", bed.reference, bed.python(check.path), check.limit, check.environment)
    return compare.facts(result.out)


def scenario(name, body, bed):
    """Runs one story of several processes."""
    start, lines = time.monotonic(), []
    try:
        lines += body(bed) or []
        status = "ok"
    except Skipped as why:
        status = "skipped"
        lines.append(str(why))
    except Wrong as wrong:
        status = "failed"
        lines.append(str(wrong))
    except Exception as error:
        import traceback

        status = "failed"
        lines.append(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    return Verdict(name, status, time.monotonic() - start, lines)
