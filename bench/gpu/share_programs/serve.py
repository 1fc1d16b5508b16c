"""The frame of a program that shares a GPU: prepares its work, then does what it is told on standard input, line by line.

    {"do": "service", "count": 200}                       how long a request takes, one after another
    {"do": "online", "gap_us": 2600, "seconds": 8}        requests at random arrivals; latencies from the arrival
    {"do": "online", …, "stop": true}                     the same until the next line, whatever it says
    {"do": "offline", "work": "train", "seconds": 8}      steps, one after another; when each ended

Each answer is one line of JSON. Times are of the machine's monotonic clock, in seconds, so that several programs can be compared.
"""

import json
import random
import select
import sys
import time

# A sleep may be late by this; the rest is waited for without one.
SLEEP_MARGIN_SECONDS = 0.0003


def wait_until(moment):
    left = moment - time.monotonic() - SLEEP_MARGIN_SECONDS
    if left > 0:
        time.sleep(left)
    while time.monotonic() < moment:
        pass


class Server:
    """`request` does one request and returns when it is done; `works` maps names to steps; `check` says whether results are right."""

    def __init__(self, request=None, works=None, check=lambda: True):
        self.request, self.works, self.check = request, works or {}, check

    def service(self, order):
        began = time.monotonic()
        for _ in range(order["count"]):
            self.request()
        return {"service_us": (time.monotonic() - began) / order["count"] * 1e6}

    def online(self, order):
        dice = random.Random(order.get("seed", 1))
        start = at = time.monotonic() + 0.01
        arrivals, latencies_us = [], []
        while True:
            at += dice.expovariate(1e6 / order["gap_us"])
            if at > start + order["seconds"]:
                break
            wait_until(at)
            self.request()
            arrivals.append(at)
            latencies_us.append((time.monotonic() - at) * 1e6)
            if order.get("stop") and select.select([sys.stdin], [], [], 0)[0]:
                sys.stdin.readline()
                break
            # A program that falls behind does not end otherwise.
            if time.monotonic() > start + 1.5 * order["seconds"]:
                break
        return {"arrivals": arrivals, "latencies_us": latencies_us, "right": self.check()}

    def offline(self, order):
        step, ends = self.works[order["work"]], [time.monotonic()]
        until = ends[0] + order["seconds"]
        while ends[-1] < until:
            step()
            ends.append(time.monotonic())
        return {"ends": ends, "right": self.check()}

    def serve(self):
        print(json.dumps({"ready": True}), flush=True)
        # Not `for line in sys.stdin`: that reads ahead, and `select` would not see what it holds.
        while line := sys.stdin.readline():
            order = json.loads(line)
            try:
                answer = getattr(self, order["do"])(order)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
