"""Runs a check natively and remotely, compares, and says how it went."""

import dataclasses
import time

import compare
from bed import Skipped, Wrong


@dataclasses.dataclass
class Verdict:
    name: str
    # "ok", "failed" or "skipped".
    status: str
    seconds: float
    # Lines that tell more: differences, errors, known differences.
    lines: list


def runs_of(bed, check, modes, pool):
    """Starts all runs of a check; its futures by mode."""
    chosen = [bed.reference, *(mode for mode in check.modes if mode in modes)]
    program = bed.python(check.path)

    def one(mode):
        return bed.run(check.name, mode, program, check.limit, check.environment)

    return {mode: pool.submit(one, mode) for mode in chosen}


def judge(bed, check, futures):
    """Waits for a check's runs, by mode; the verdict over them."""
    try:
        results = {mode: future.result() for mode, future in futures.items()}
    except Skipped as why:
        return Verdict(check.name, "skipped", 0, [str(why)])
    native, lines, is_ok = results[bed.reference], [], True
    native_facts, known = compare.facts(native.out), compare.expected(check.name)
    code = native.code if check.may_end_badly else 0
    for key, fact in native_facts.items():
        if fact.kind == "!":
            is_ok = False
            lines.append(f"fails natively too: {key} {fact.value[:200]}")
    for mode, result in results.items():
        if problem := result.problem(code):
            is_ok = False
            lines.append(f"{mode}: {problem}")
        if mode != bed.reference:
            is_ok &= _judge_facts(bed, check, mode, native_facts, compare.facts(result.out), known, lines)
    if not native_facts:
        is_ok = False
        lines.append("said nothing that could be compared")
    took = ", ".join(f"{mode} {result.seconds:.0f} s" for mode, result in results.items())
    name = f"{check.name} ({len(native_facts)} facts; {took})"
    return Verdict(name, "ok" if is_ok else "failed", max(result.seconds for result in results.values()), lines)


def _judge_facts(bed, check, mode, native, remote, known, lines):
    is_ok, again = True, None
    for key in compare.differing(native, remote):
        shown = f"{mode}: {compare.show(key, native, remote)}"
        if reason := compare.reason_for(key, known):
            lines.append(f"known: {reason}: {shown}")
            continue
        if compare.are_both_values(native.get(key), remote.get(key)):
            # A fact that differs between two native runs proves nothing about dxpu.
            again = _native_again(bed, check) if again is None else again
            if key in again and not native[key].agrees_with(again[key]):
                lines.append(f"varies natively, so not judged: {shown}")
                continue
        is_ok = False
        lines.append(shown)
    return is_ok


def _native_again(bed, check):
    try:
        result = bed.run(f"{check.name}-again", bed.reference, bed.python(check.path), check.limit, check.environment)
    except Skipped:
        return {}
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
