"""The frame of a program that shares a GPU: it does what it is told on standard input, line by line.

    {"do": "prepare", "request": "graph"}                 makes a request's or a work's network ready; other orders do it as well
    {"do": "service", "request": "graph", "count": 200}   how long a request takes, one after another
    {"do": "online", "request": "graph", "gap_us": 2600, "seconds": 8}
                                                          requests at random arrivals; latencies from the arrival
    {"do": "offline", "work": "train", "seconds": 8}      steps, one after another; when each ended
    {"do": "online", …, "burst_seconds": 0.4}             the same, in bursts with pauses that are as long
    {"do": "online" or "offline", …, "stop": true}        the same until the next line, whatever it says
    {"do": "verify", "work": "train", "steps": 20}        steps from a fixed state; a digest of all bits of the result
    {"do": "release", "work": "train"}                    gives back what only `verify` needs

Each answer is one line of JSON. Times are of the machine's monotonic clock, in seconds, so that several programs can be compared.
An order without a name means the first request or work.
"""

import dataclasses
import json
import random
import select
import sys
import time
from collections.abc import Callable

# A sleep may be late by this; the rest is waited for without one.
SLEEP_MARGIN_SECONDS = 0.0003


@dataclasses.dataclass
class Request:
    """`run` does one request and returns when it is done. `check` says whether all results since the last check were right."""

    run: Callable[[], None]
    check: Callable[[], bool] = lambda: True


@dataclasses.dataclass
class Work:
    """`step` does one step. `verify` does a number of steps from a fixed state and returns a digest of the result. `check` says
    whether the last step's result was right, or None where a step has no result to compare."""

    step: Callable[[], None]
    verify: Callable[[int], str]
    check: Callable[[], bool | None] = lambda: None
    release: Callable[[], None] = lambda: None


def wait_until(moment):
    left = moment - time.monotonic() - SLEEP_MARGIN_SECONDS
    if left > 0:
        time.sleep(left)
    while time.monotonic() < moment:
        pass


class Arrivals:
    """Random ones from a moment on; with bursts, in every other span of that length alone."""

    def __init__(self, order, start):
        self.dice, self.rate = random.Random(order.get("seed", 1)), 1e6 / order["gap_us"]
        self.start, self.burst, self.at = start, order.get("burst_seconds"), start

    def next(self):
        self.at += self.dice.expovariate(self.rate)
        if self.burst and (passed := self.at - self.start) % (2 * self.burst) >= self.burst:
            self.at = self.start + (passed // (2 * self.burst) + 1) * 2 * self.burst
        return self.at


def is_told_to_stop(order):
    if order.get("stop") and select.select([sys.stdin], [], [], 0)[0]:
        sys.stdin.readline()
        return True
    return False


class Server:
    """`requests` and `works` map names to functions that make a Request or a Work; each is made when it is first asked for."""

    def __init__(self, requests=None, works=None):
        self.makers = {"request": requests or {}, "work": works or {}}
        self.made = {}

    def get(self, kind, order):
        makers = self.makers[kind]
        name = order.get(kind) or next(iter(makers))
        if (kind, name) not in self.made:
            self.made[kind, name] = makers[name]()
        return self.made[kind, name]

    def prepare(self, order):
        self.get("request" if "request" in order else "work", order)
        return {"ready": True}

    def service(self, order):
        request = self.get("request", order)
        began = time.monotonic()
        for _ in range(order["count"]):
            request.run()
        return {"service_us": (time.monotonic() - began) / order["count"] * 1e6}

    def online(self, order):
        request, start = self.get("request", order), time.monotonic() + 0.01
        coming, end = Arrivals(order, start), start + order["seconds"]
        at = coming.next()
        arrivals, latencies_us, is_stopped = [], [], False
        while at <= end and not is_stopped:
            wait_until(at)
            request.run()
            arrivals.append(at)
            latencies_us.append((time.monotonic() - at) * 1e6)
            at = coming.next()
            is_stopped = is_told_to_stop(order)
            # A program that falls behind does not end otherwise.
            if time.monotonic() > start + 1.5 * order["seconds"]:
                break
        arrived = len(arrivals)
        # Those that it did not come to. When it is told to stop, some may be on their way, which says nothing.
        while at <= end and not is_stopped:
            arrived += 1
            at = coming.next()
        return {"arrivals": arrivals, "latencies_us": latencies_us, "arrived": arrived, "right": request.check()}

    def offline(self, order):
        work, ends = self.get("work", order), [time.monotonic()]
        until = ends[0] + order["seconds"]
        while ends[-1] < until and not is_told_to_stop(order):
            work.step()
            ends.append(time.monotonic())
        return {"ends": ends, "right": work.check()}

    def verify(self, order):
        return {"digest": self.get("work", order).verify(order["steps"])}

    def release(self, order):
        self.get("work", order).release()
        return {"released": True}

    def serve(self):
        print(json.dumps({"ready": True}), flush=True)
        # Not `for line in sys.stdin`: that reads ahead, and `select` would not see what it holds.
        while line := sys.stdin.readline():
            order = json.loads(line)
            if order["do"] == "stop":
                # It came after the end of what it was to stop.
                continue
            try:
                answer = getattr(self, order["do"])(order)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
