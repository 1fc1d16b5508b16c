"""Variables of modules lie at the same addresses in every session: a program that outlives its session finds them."""

import collections
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bed import GPU_TESTS, hold, tail

# Sessions that are compared, and how many begin at a time: session processes start beside others that work.
SESSIONS = int(os.environ.get("GPU_SESSIONS", "48"))
AT_A_TIME = 4
SECONDS = 60


def variables_lie_where_they_lay(bed):
    """Many sessions load the same modules in the same order."""
    worker = bed.worker()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        told = list(pool.map(lambda number: _places(bed, worker, number), range(SESSIONS)))
    if bed.driver == "soft":
        # There modules have places by their numbers, and a program that does more before has other numbers.
        told = [places for number, places in enumerate(told) if number % 3 != 2]
    counted = collections.Counter(told)
    usual, count = counted.most_common(1)[0]
    others = "; ".join(f"{count} times {places}" for places, count in counted.most_common()[1:])
    hold(len(counted) == 1, f"{count} of {SESSIONS} sessions have {usual}, others not: {others}")
    return [f"{SESSIONS} sessions: {usual}"]


def _places(bed, worker, number):
    # Plain, protected, and protected with cuts before the first module.
    way, words = (([], []), (["--survive"], []), (["--survive"], ["late"]))[number % 3]
    program = [sys.executable, os.path.join(GPU_TESTS, "programs", "variables.py"), *words]
    environment = bed.environment("remote", bed.place.make("witness-variables"))
    process = subprocess.Popen(
        worker.client("tcp", *program, options=way), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline().strip()
        session = worker.session_of(process.pid)
        # What else lies in the process explains a session whose variables lie elsewhere.
        if session is not None:
            _keep_map(bed, session, f"variables-{number}.{line.replace(' ', '_')[:60]}.maps")
        _, errors = process.communicate("\n", timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    hold(line.startswith("variables "), "the program said", repr(line), tail(errors))
    time.sleep(0.05)
    return re.sub(r"^variables ", "", line)


def _keep_map(bed, process, name):
    try:
        with open(f"/proc/{process}/maps") as source, open(os.path.join(bed.out, name), "w") as target:
            target.write(source.read())
    except OSError:
        pass
