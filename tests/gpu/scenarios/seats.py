"""An online lease and a guest on one GPU of a box: each has its memory, the guest makes way, and memory that is promised twice."""

import json
import os
import signal
import sys
import time

from bed import BENCH, ROOT, hold, until
from share_figures import online_figures
from share_sides import Program

from .pool import CLEAN_SECONDS, READY_SECONDS, Pool

GIB = 1 << 30
SEAT_GIB = {"nvidia": 48, "soft": 0.25}
PROGRAMS = {"nvidia": "networks.py", "soft": "plain.py"}
SECONDS = {"nvidia": 6, "soft": 2}
LOAD = 0.5
HOLDS = os.path.join(ROOT, "tests", "stories", "programs", "holds_memory.py")
# Of the GPU's memory: what the guest holds, what the online program takes at first, and what it takes then. Together more than there is.
HELD, MOST, MORE = 0.25, 0.6, 0.25
# The longest that an allocation of an online program waits.
PATIENCE = 15
LEAVES_SECONDS = 60


class Holder(Program):
    """holds_memory.py: takes memory by orders, and says what it sees first."""

    def await_ready(self):
        self.seen = self.answer(READY_SECONDS)

    def takes(self, share, whole):
        return self.do(do="take", mib=int(share * whole) >> 20)


def _options(bed, *more):
    return ("--guests", "1", "--guest-memory", f"{int(SEAT_GIB[bed.driver] * 1024)}MiB", *more)


def _command(bed, given_class, *program, more=()):
    return [bed.dxpu, "run", "--gpus", "1", "--class", given_class, *more, "--", sys.executable, *program]


def _state(pool, slot):
    return next((gpu["state"] for gpu in pool.ask("gpu", "ls") if gpu["id"] == f"b1/{slot}"), "absent")


def _until_free(pool, slot):
    until(lambda: f"b1/{slot} is free: {pool.ask('gpu', 'ls')} {pool.logs()}", lambda: _state(pool, slot) == "free", READY_SECONDS)


def leases_meet(bed):
    with Pool(bed, options=_options(bed)) as pool:
        _until_free(pool, 32)
        return [*_memory(bed, pool), *_both(bed, pool)]


def _memory(bed, pool):
    """Each lease sees its part, and the next guest finds none of the one before."""
    lines, seen = [], {}
    for given_class in ("online", "offline"):
        holder = Holder(given_class, _command(bed, given_class, HOLDS), pool.environment)
        try:
            holder.await_ready()
            seen[given_class] = holder.seen["total"]
            code = holder.takes(0.8, holder.seen["total"])["code"]
            hold(code == 0, "of its memory", given_class, "gets", code)
            hold(holder.takes(0.3, holder.seen["total"])["code"] == 2, given_class, "gets more than it has")
        finally:
            holder.stop()
        _until_free(pool, 0), _until_free(pool, 32)
    hold(seen["offline"] == int(SEAT_GIB[bed.driver] * GIB), "the guest sees", seen["offline"])
    whole = pool.gpu()["memory_bytes"]
    hold(seen["online"] <= whole - seen["offline"], "the online lease sees", seen["online"], "of", whole)
    lines.append(f"the guest has {seen['offline'] / GIB:.1f} GiB and the online lease {seen['online'] / GIB:.1f}, and no more")
    return lines


def _both(bed, pool):
    """The pair alone and together; then the guest's worker is killed."""
    program = os.path.join(BENCH, "share_programs", PROGRAMS[bed.driver])
    online = Program("online", _command(bed, "online", program, "online"), pool.environment)
    offline = Program("offline", _command(bed, "offline", program, "offline"), pool.environment)
    lines, seconds = [], SECONDS[bed.driver]
    try:
        for one in (online, offline):
            one.await_ready()
        offline.do(do="prepare", work="train"), online.do(do="prepare", request="graph")
        places = sorted(grant["gpu"] for lease in pool.ask("lease", "ls") for grant in lease.get("grants", []))
        hold(places == ["b1/0", "b1/32"], "the leases are at", places)
        service_us = min(online.do(do="service", request="graph", count=50)["service_us"] for _ in range(3))
        order = {"do": "online", "request": "graph", "gap_us": service_us / LOAD}
        alone = online_figures(online.do(**order, seconds=seconds), service_us)
        rate = _rate(offline.do(do="offline", work="train", seconds=seconds)["ends"])
        offline.order(do="offline", work="train", seconds=600, stop=True)
        shared = online_figures(online.do(**order, seconds=seconds), service_us)
        offline.order(do="stop")
        together = _rate(offline.answer()["ends"])
        hold(alone["right"] and shared["right"], "a result of the online program is wrong")
        p99s = f"p99 {alone['p99_us'] / 1e3:.2f} ms alone, {shared['p99_us'] / 1e3:.2f} with its guest"
        lines.append(f"load {LOAD}: {p99s}; the guest has {together / rate:.2f} of its rate alone")
        online.order(**order, seconds=600, stop=True)
        offline.order(do="offline", work="train", seconds=600, stop=True)
        time.sleep(1)
        [worker] = _workers(pool, 32)
        os.kill(worker, signal.SIGKILL)
        time.sleep(1)
        lines.append(_after_the_kill(pool))
        online.order(do="stop")
        killed = online_figures(online.answer(), service_us)
        hold(killed["right"], "a result of the online program is wrong after the kill")
        longest = killed["longest_us"] / 1e3
        lines.append(f"the guest's worker was killed: the online program had no error; its longest request took {longest:.1f} ms")
    finally:
        online.stop(), offline.stop()
    return lines


def _after_the_kill(pool):
    """The lease of the guest has its seat again, or waits for it; it has ended if its program has, which had an error."""
    states = [lease["state"] for lease in pool.ask("lease", "ls") if lease["request"]["class"] == "offline"]
    hold(all(state in ("granted", "pending", "ended") for state in states), "the guest's lease is", states)
    works = lambda: _state(pool, 32) in ("free", "leased")
    until(lambda: f"the seat works again: {pool.ask('gpu', 'ls')} {pool.logs()}", works, READY_SECONDS)
    return f"its lease was {states[-1] if states else 'ended'} a second later"


def _rate(ends):
    return (len(ends) - 1) / (ends[-1] - ends[0])


def _workers(pool, slot):
    """The worker of a slot, which the directory in its command line names."""
    wanted, found = f"/slot-{slot}", []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "--by-lease" in words and words[words.index("--by-lease") + 1].endswith(wanted) and pool.place in " ".join(words):
            found.append(int(name))
    # Its sessions have the same words before they become programs of their own; the worker came first.
    return sorted(found)[:1]


def a_dedicated_lease_has_it_all(bed):
    with Pool(bed, options=_options(bed)) as pool:
        _until_free(pool, 32)
        guest = Holder("guest", _command(bed, "offline", HOLDS), pool.environment)
        try:
            guest.await_ready()
            guest.takes(0.5, guest.seen["total"])
            began = time.monotonic()
            words = pool.borrow("look")
            waited = time.monotonic() - began
        finally:
            guest.stop()
        hold(words == 0, words, "words of others were found")
        hold(waited < CLEAN_SECONDS + READY_SECONDS, "a dedicated lease waited for", waited, "s")
        return [f"a dedicated lease had the GPU and ended {waited:.1f} s after it was asked for; the guest had left"]


def memory_is_promised_twice(bed):
    guard = {"nvidia": "64GiB", "soft": "512MiB"}[bed.driver]
    with Pool(bed, options=_options(bed, "--overcommit", "--guard-memory", guard)) as pool:
        _until_free(pool, 32)
        return [_needs_it(bed, pool, survive) for survive in (False, True)]


def _needs_it(bed, pool, survive):
    more = ("--survive",) if survive else ()
    online = Holder("online", _command(bed, "online", HOLDS), pool.environment)
    guest = Holder("guest", _command(bed, "offline", HOLDS, more=more), pool.environment)
    try:
        online.await_ready(), guest.await_ready()
        whole = pool.gpu()["memory_bytes"]
        hold(online.seen["total"] > 0.9 * whole, "the online lease sees", online.seen, "of", whole)
        held = min(HELD, 0.9 * SEAT_GIB[bed.driver] * GIB / whole)
        for holder, share in ((online, MOST), (guest, held)):
            code = holder.takes(share, whole)["code"]
            hold(code == 0, holder.name, "gets", code, pool.logs())
        answer = online.takes(MORE, whole)
        hold(answer["code"] == 0, "the online program gets", answer, "\n", pool.logs())
        hold(answer["seconds"] < PATIENCE, "it waited for", answer["seconds"], "s")
        hold(online.do(do="check")["code"] == 0, "its memory has other bytes")
        [lease] = [lease for lease in pool.ask("lease", "ls") if lease["request"]["class"] == "offline" and lease["state"] != "ended"]
        moves = pool.ask("lease", "show", lease["id"])["moves"]
        hold(any("needs the memory" in move["reason"] for move in moves), "the guest was not told:", moves)
        words = f"waited for {answer['seconds']:.1f} s until the guest had left"
        if not survive:
            return f"an allocation of {MORE * whole / GIB:.1f} GiB {words}"
        for _ in range(2):
            hold(online.do(do="give")["code"] == 0, "it cannot free")
        # Its next call waits for its seat.
        guest.order(do="check")
        back = guest.answer(150)
        hold(back["code"] == 0, "the guest's memory has other bytes:", back)
        return f"with --survive it {words}; the guest was suspended, and went on with the same bytes when there was room"
    finally:
        guest.stop(), online.stop()
        _until_free(pool, 0)
        until(lambda: f"the seat is empty: {pool.ask('gpu', 'ls')} {pool.logs()}", lambda: _state(pool, 32) != "leased", LEAVES_SECONDS)
