"""The client answers as the real driver did, line by line, over every transport.

The standard is a transcript of NVIDIA's driver. What the soft driver does differently, and why, stands in
tests/behaviour/soft-differences.txt; an entry that nothing needs any more is an error too.
"""
import difflib
import os
import sys

import kit

BEHAVIOUR = os.path.join(os.path.dirname(kit.HERE), "behaviour")
TRANSCRIPTS = {"behaviour.py": "h200-580.txt", "graphs.py": "graphs-h200-580.txt", "textures.py": "textures-h200-580.txt", "parts.py": "parts-h200-580.txt"}


def tell(record):
    with kit.Worker() as worker:
        for script, transcript in TRANSCRIPTS.items():
            for scheme in kit.SCHEMES:
                record.part(f"{script} over {scheme}", compare, worker, script, transcript, scheme)


def compare(worker, script, transcript, scheme):
    with open(os.path.join(BEHAVIOUR, transcript)) as file:
        expected = file.read().splitlines()
    found = worker.must(sys.executable, os.path.join(BEHAVIOUR, script), scheme=scheme).splitlines()
    allowed = differences().get(script, {})
    # An entry that matches no line would hide nothing; one whose line comes out right fails the comparison below.
    unused = [line for line in allowed if line not in expected]
    kit.hold(not unused, "soft-differences.txt has entries that are not needed:", unused)
    expected = [allowed.get(line, line) for line in expected]
    wrong = list(difflib.unified_diff(expected, found, "the real driver", "dxpu", lineterm="", n=2))
    kit.hold(not wrong, "\n" + "\n".join(wrong))
    return f"{len(found)} lines"


def differences():
    """Reads blocks of a reason (`#`), the script (`in`), the real driver's line (`-`) and the soft driver's (`+`)."""
    allowed = {}
    with open(os.path.join(BEHAVIOUR, "soft-differences.txt")) as file:
        for line in file:
            mark, _, rest = line.rstrip("\n").partition(" ")
            if mark == "in":
                script = rest
            elif mark == "-":
                real = rest
            elif mark == "+":
                kit.hold(rest != real, "soft-differences.txt: no difference:", rest)
                allowed.setdefault(script, {})[real] = rest
    return allowed
