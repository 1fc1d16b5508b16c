"""Call by call: the transcripts of tests/behaviour, from the driver of this machine and through dxpu."""

import difflib
import os
import sys

from bed import ROOT, hold, tail

SECONDS = 120
SCRIPTS = ("behaviour.py", "graphs.py", "textures.py")
# What the client answers by itself, on every driver; the reasons are in tests/behaviour/soft-differences.txt.
OURS = {"memory of the host -> 0": "memory of the host -> 1", "variable of its name -> 1": "variable of its name -> 500"}


def every_call_answers_as_the_driver_does(bed):
    """The same codes and values, line by line, over TCP and shared memory."""
    lines, wrong = [], []
    for script in SCRIPTS:
        program = [sys.executable, os.path.join(ROOT, "tests", "behaviour", script)]
        results = {mode: bed.run(script, mode, program, SECONDS) for mode in dict.fromkeys((bed.reference, "tcp", "shm"))}
        native = results[bed.reference]
        hold(native.code == 0 and native.out.count("\n") > 50, script, "fails natively:", tail(native.err))
        for mode, result in results.items():
            if problem := result.problem():
                wrong.append(f"{script}, {mode}: {problem}")
            names = (f"{script} {bed.reference}", f"{script} {mode}")
            expected = native.out.splitlines()
            if mode != bed.reference:
                expected = [OURS.get(line, line) for line in expected]
            wrong += difflib.unified_diff(expected, result.out.splitlines(), *names, lineterm="", n=1)
        lines.append(f"{script}: {len(native.out.splitlines())} lines")
    hold(not wrong, "\n".join(wrong[:150]))
    return lines
