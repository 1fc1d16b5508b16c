"""Faults of offline programs beside an online one behind the gate: what the longest request around each was.

One worker serves the online program as well; where a worker is to be killed, it is a neighbour that has the same page, as the worker of
a seat for guests has. With merged contexts the online program has --survive: a
fault ends its session, and it goes on in another one. The offline programs that wait for their turn would die with the first fault
there, so one at a time is ready.
"""

import collections
import contextlib
import os
import select
import signal
import statistics
import subprocess
import sys
import time

from share_figures import latencies_around, online_figures, percentile, ratio, silence_around
from share_sides import PROGRAMS, SIDES, STARTS_WITHIN_SECONDS

# A program that is to be killed works for so long before.
BUSY_SECONDS = 0.15
# So that each fault has requests of its own to be seen in.
BETWEEN_SECONDS = 0.25
# The same where a fault ends the contexts of all: the online program is in another session by then, and has done what has come meanwhile.
BETWEEN_MERGED_SECONDS = 3.0
# Contexts that the worker makes ahead after these starts are made by then.
SETTLE_SECONDS = 0.4
# Workers that wait to be killed, at most: each has contexts of its own.
NEIGHBOURS_READY = 8
# The worker ends a session whose kernel runs on at a closed gate for half a second. A GPU in software does not.
ENDS_WITHIN_SECONDS = 1.5


class Victim:
    """An offline program that waits for the word."""

    def __init__(self, worker, scheme, role):
        self.worker, self.role = worker, role
        command = worker.client(scheme, sys.executable, os.path.join(PROGRAMS, "plain.py"), role, options=("--class", "offline"))
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        self.process = subprocess.Popen(command, env=worker.environment, text=True, **pipes)

    def is_ready(self):
        is_told = select.select([self.process.stdout], [], [], STARTS_WITHIN_SECONDS)[0]
        return bool(is_told) and self.process.stdout.readline().strip() == "ready"

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def session(self):
        return self.worker.session_of(self.process.pid)

    def end(self, seconds=0.0):
        """How it ended: the last line it wrote to its error output, or that it was killed."""
        try:
            _, text = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return "killed by the benchmark"
        return (text.strip().splitlines() or [f"status {self.process.returncode}"])[-1][:160]


def kill_client(victim):
    victim.go()
    time.sleep(BUSY_SECONDS)
    since = time.monotonic()
    victim.process.send_signal(signal.SIGKILL)
    return since, victim.end(5)


def kill_session(victim):
    session = victim.session()
    if session is None:
        raise RuntimeError("the worker's log does not name its session")
    victim.go()
    time.sleep(BUSY_SECONDS)
    since = time.monotonic()
    os.kill(session, signal.SIGKILL)
    return since, victim.end(5)


def kill_worker(victim):
    victim.go()
    time.sleep(BUSY_SECONDS)
    since = time.monotonic()
    os.kill(victim.worker.pid, signal.SIGKILL)
    return since, victim.end(5)


def by_itself(victim):
    since = time.monotonic()
    victim.go()
    return since, victim.end(ENDS_WITHIN_SECONDS)


# The role of plain.py, and what is done to it. `start` is no fault: one program starts, alone, and the worker makes the next spare.
KINDS = {
    "start": ("held", None),
    "kill_client": ("held", kill_client),
    "kill_session": ("held", kill_session),
    "kill_worker": ("held", kill_worker),
    "illegal": ("illegal", by_itself),
    "endless": ("endless", by_itself),
    "long": ("long", by_itself),
    "greedy": ("greedy", by_itself),
}


def start(programs, side, scheme, kind, count):
    """Victims that are ready. They start at the same time, because a start takes longer than a fault; then the GPU settles. Their worker
    serves the online program as well; those whose worker is to be killed have a neighbour of it each."""
    is_of_neighbour = kind == "kill_worker"
    workers = [programs.neighbour(side) if is_of_neighbour else programs.worker_of(side) for _ in range(count)]
    started = [Victim(worker, scheme, KINDS[kind][0]) for worker in workers]
    ready = []
    for victim in started:
        if victim.is_ready():
            ready.append(victim)
        else:
            print(f"    a victim for {kind} did not start: {victim.end(1)}", flush=True)
    time.sleep(SETTLE_SECONDS)
    return ready


def pause_after(kind, side):
    is_of_all = SIDES[side].is_merged and KINDS[kind][1] is by_itself
    return BETWEEN_MERGED_SECONDS if is_of_all else BETWEEN_SECONDS


def happen(kind, victim, pause=BETWEEN_SECONDS):
    """One fault, and the pause after it."""
    try:
        since, said = KINDS[kind][1](victim)
    except (RuntimeError, OSError) as error:
        since, said = time.monotonic(), f"the benchmark: {error}"
    time.sleep(pause)
    return {"since": since, "until": time.monotonic(), "said": said}


def start_alone(worker, scheme):
    """A program starts and waits. It is killed when the time that counts is over."""
    since = time.monotonic()
    victim = Victim(worker, scheme, KINDS["start"][0])
    said = "started" if victim.is_ready() else "did not start"
    time.sleep(SETTLE_SECONDS)
    until = time.monotonic()
    victim.end()
    time.sleep(BETWEEN_SECONDS)
    return {"since": since, "until": until, "said": said}


class Faults:
    def __init__(self, options, programs, rows, matrix):
        self.options, self.programs, self.rows, self.matrix = options, programs, rows, matrix

    def measure(self, request, load):
        for side in self.options.fault_sides:
            if SIDES[side].is_merged:
                self.programs.survive(side, "online")
            self.matrix.online_alone_once(side, request, load)
            for kind in self.options.fault_kinds:
                about = {"row": "faults", "side": side, "kind": kind, "request": request, "load": load}
                self.rows.tried(self.programs, about, self.one_kind, about)

    def one_kind(self, about):
        order = self.matrix.online_order(about["request"], about["load"])
        side = about["side"]
        online = self.programs.one(side, "online", "request", about["request"])
        online.order(**order, seconds=3600, stop=True)
        began = time.monotonic()
        happened = self.repeat(side, about["kind"], online)
        found = {
            "count": len(happened),
            "took_s": time.monotonic() - began,
            "said": collections.Counter(one["said"] for one in happened).most_common(4),
        }
        try:
            online.order(do="stop")
            answer = online.answer()
        except RuntimeError as error:
            # The online program must not notice: this is the worst result that there is.
            self.rows.add(about | found | {"online_errors": [str(error)]})
            self.programs.drop(side)
            return
        around = [latencies_around(answer, one["since"], one["until"]) for one in happened]
        longest = [max(found, default=None) for found in around]
        known = [us for us in longest if us is not None]
        found |= {"online_errors": [], "longest_us": max(known, default=None), "each_us": longest}
        found["median_longest_us"] = statistics.median(known) if known else None
        # Requests that wait for others count the time of all of them; how long there was no answer at all does not.
        silences = [silence_around(answer, one["since"], one["until"]) for one in happened]
        found |= {"silence_us": max(filter(None, silences), default=None), "each_silence_us": silences}
        found["p99_around_us"] = percentile([us for found in around for us in found], 0.99)
        figures = online_figures(answer, self.matrix.service(about["request"]))
        figures["p99_of_alone"] = ratio(figures["p99_us"], self.matrix.p99_alone.get((side, about["request"], about["load"])))
        self.rows.add(about | found | {"online": figures})

    def repeat(self, side, kind, online):
        happened, count = [], self.options.faults
        ready = 1 if SIDES[side].is_merged else self.options.ready
        if kind == "kill_worker":
            ready = min(ready, NEIGHBOURS_READY)
        while kind == "start" and len(happened) < count and not self.rows.is_time_over() and not online.has_answer():
            happened.append(start_alone(self.programs.worker_of(side), self.options.scheme))
        while len(happened) < count and not self.rows.is_time_over():
            # Not while others do wrong: a start beside a program that has all memory would fail, and starts have effects too.
            victims = start(self.programs, side, self.options.scheme, kind, min(ready, count - len(happened)))
            if not victims:
                break
            try:
                for victim in victims:
                    if online.has_answer():
                        # It has an error: no word was given to end.
                        return happened
                    happened.append(happen(kind, victim, pause_after(kind, side)))
            finally:
                for victim in victims:
                    if victim.process.poll() is None:
                        with contextlib.suppress(OSError, ValueError):
                            victim.end()
                self.programs.stop_neighbours()
        return happened
