"""Leases with shares in the parts of one GPU: the memory and the time that each has."""

import json
import os
import sys

from bed import BENCH, ROOT, hold, until
from share_sides import Program

from .pool import READY_SECONDS, Pool

PARTS = 4
# Thousandths of the GPU that the leases ask for, and their memory.
SHARES = (200, 100, 50)
MEMORY_GIB = {"nvidia": 24, "soft": 0.25}
# What does the same work in each lease. Steps of the first take 6 ms on an H200.
PROGRAMS = {"nvidia": "networks.py", "soft": "plain.py"}
SECONDS = 10
# How far from what was asked for a share of time may be, in points.
POINTS = {"nvidia": 5, "soft": 20}
# Takes nine tenths of the memory that the lease has, and then two more.
TAKES_MEMORY = (os.path.join(ROOT, "tests", "stories", "programs", "takes_memory.py"), "9", "2")


def leases_have_their_shares(bed):
    with Pool(bed, options=("--shares", str(PARTS))) as pool:
        free = lambda: [gpu["state"] for gpu in pool.ask("gpu", "ls")].count("free")
        until(lambda: f"{PARTS} parts are free: {pool.ask('gpu', 'ls')} {pool.logs()}", lambda: free() == PARTS, READY_SECONDS)
        return [_memory(bed, pool), _time(bed, pool)]


def _wish(bed, milli):
    return ("--gpus", "1", "--share", f"{milli},{int(MEMORY_GIB[bed.driver] * 1024)}MiB")


def _memory(bed, pool):
    seen = json.loads(pool.must("run", *_wish(bed, SHARES[0]), "--", sys.executable, *TAKES_MEMORY))
    wanted = int(MEMORY_GIB[bed.driver] * (1 << 30))
    hold(seen == {"codes": [0, 0, 0, 0], "total": wanted, "taken": [0, 2]}, "a lease of", wanted, "bytes sees and gets", seen)
    return f"a lease of {wanted >> 20} MiB has them and no more"


def _time(bed, pool):
    program = os.path.join(BENCH, "share_programs", PROGRAMS[bed.driver])
    command = lambda milli: [bed.dxpu, "run", *_wish(bed, milli), "--", sys.executable, program, "offline"]
    programs = [Program(f"share {milli}", command(milli), pool.environment) for milli in SHARES]
    try:
        for one in programs:
            one.await_ready()
            one.do(do="prepare", work="product")
        for one in programs:
            one.order(do="offline", work="product", seconds=SECONDS)
        answers = [one.answer(SECONDS + 60) for one in programs]
    finally:
        for one in programs:
            one.stop()
    hold(all(answer["right"] is not False for answer in answers), "a result is wrong:", [answer["right"] for answer in answers])
    since, until_ = max(answer["ends"][0] for answer in answers), min(answer["ends"][-1] for answer in answers)
    steps = [sum(since <= end <= until_ for end in answer["ends"]) for answer in answers]
    got, asked = ([100 * value / sum(values) for value in values] for values in (steps, SHARES))
    told = ", ".join(f"{milli}: {mine:.1f} % ({wanted:.1f})" for milli, mine, wanted in zip(SHARES, got, asked))
    hold(all(abs(mine - wanted) <= POINTS[bed.driver] for mine, wanted in zip(got, asked)), "shares of time are not as asked:", told)
    return f"in {until_ - since:.1f} s the shares of all steps were {told}, and {sum(steps)} steps in all"
