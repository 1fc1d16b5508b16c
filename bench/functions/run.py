"""Six workloads as functions, against processes that use the GPU themselves: one command, a report with tables and plots.

    python3 bench/functions/run.py --dxpu target/release/dxpu --budget 20m --out bench-functions

Needs python3 with torch, and a GPU on this machine; nothing of AWS. Phases come in the order of their weight, and those that do
not fit into the budget any more are left out and named:

    one request at a time   native, dxpu with a new instance each time, dxpu with warm instances
    loads                   Poisson arrivals with mean gaps of 3 s and 2 s, ten of each workload; bursts of all six every 2 s:
                            native and dxpu exclusive, dxpu with 2 and 4 instances on a GPU
    ablation                nothing, each optimisation alone, all

`--tiny` takes sizes that a processor can do and `--no-gpu` leaves the pool out: a check of the bench itself.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import load  # noqa: E402
import report  # noqa: E402
from sides import DECLARED, Functions, Native, Pool  # noqa: E402

SHORT = "1ms"
LONG = "600s"

# By name, what the service is told. What an optimisation is alone: everything else as in "none".
ABLATION = {
    "none": {"sharing": 1, "keep_warm": SHORT, "compute_cache": False},
    "compute cache": {"sharing": 1, "keep_warm": SHORT, "compute_cache": True},
    "sharing 4": {"sharing": 4, "keep_warm": SHORT, "compute_cache": False},
    "warm instances": {"sharing": 1, "keep_warm": LONG, "compute_cache": False},
    "all": {"sharing": 4, "keep_warm": LONG, "compute_cache": True, "fit": "fewest-moves"},
}
SIDES = {
    "native, exclusive": None,
    "dxpu, exclusive": {"sharing": 1},
    "dxpu, sharing 2": {"sharing": 2},
    "dxpu, sharing 4": {"sharing": 4, "fit": "worst"},
}


def seconds(text):
    found = re.fullmatch(r"(\d+)(s|m|h)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: write 90s, 20m or 1h")
    return int(found[1]) * {None: 1, "s": 1, "m": 60, "h": 3600}[found[2]]


class Sampler:
    """The GPU's utilisation over time, as nvidia-smi says; nothing where there is none."""

    def __init__(self):
        self.points, self.stop = [], threading.Event()

    def __enter__(self):
        self.began = time.time()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def run(self):
        words = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self.stop.wait(0.5):
            try:
                told = subprocess.run(words, capture_output=True, text=True, timeout=5).stdout.split()
                self.points.append((round(time.time() - self.began, 2), sum(map(float, told)) / len(told)))
            except (OSError, ValueError, ZeroDivisionError, subprocess.TimeoutExpired):
                return


class Bench:
    def __init__(self, options):
        self.options = options
        self.began = time.time()
        self.names = [name for name in DECLARED if not options.only or name in options.only]
        self.settings = {
            "dxpu": str(pathlib.Path(options.dxpu).resolve()), "tiny": options.tiny, "gpus": options.gpus,
            "weights": str(pathlib.Path(options.weights or tempfile.mkdtemp(prefix="dxpu-weights-")).resolve()),
        }
        self.found = {
            "machine": machine(), "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "tiny": options.tiny,
            "budget_s": options.budget, "used_s": 0.0, "single": {}, "loads": {}, "ablation": {}, "skipped": [], "wrong": [],
        }
        self.results = {}
        self.costs = {}

    def left(self):
        return self.options.budget - (time.time() - self.began)

    def fits(self, what, needs_s):
        """Whether there is time for a phase; if not, it is named in the report."""
        if self.left() > needs_s:
            return True
        self.found["skipped"].append(f"{what}: {self.left():.0f} s were left and it needs about {needs_s:.0f} s")
        return False

    def take(self, name, answer):
        """Compares a result with the first one of its workload."""
        first = self.results.setdefault(name, answer)
        for field, value in answer.items():
            close = abs(value - first[field]) <= 0.02 * max(abs(value), abs(first[field]), 0.01)
            # Rounding moves which boxes overlap by just enough.
            if not close:
                self.found["wrong"].append(f"{name}: {field} is {value} and was {first[field]}")

    def save(self):
        self.found["used_s"] = time.time() - self.began
        out = pathlib.Path(self.options.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / "functions.json").write_text(json.dumps(self.found, indent=1))
        drawn = report.plots(self.found)
        for name, text in drawn.items():
            (out / name).write_text(text)
        pictures = "".join(f"![{name}]({name})\n\n" for name in drawn)
        (out / "functions.md").write_text(report.markdown(self.found) + ("\n## Plots\n\n" + pictures if drawn else ""))

    def one_by_one(self, label, side, rounds):
        times = self.found["single"].setdefault(label, {})
        for name in self.names:
            for _ in range(rounds):
                if not self.fits(f"{label}: {name}", self.costs.get(name, 0)):
                    return
                began = time.time()
                answer = side.invoke(name)
                took = time.time() - began
                times.setdefault(name, []).append(took)
                self.costs[name] = max(self.costs.get(name, 0), took)
                self.take(name, answer["result"])
                print(f"{label:28} {name:20} {took:7.2f} s, compute {answer['compute_s']:.2f} s on {answer['device']}", flush=True)
        self.save()

    def single(self, pool):
        # The first round of all writes the weights.
        native = Native(self.settings)
        for name in self.names:
            if self.fits(f"weights of {name}", 1):
                self.take(name, native.invoke(name)["result"])
        self.one_by_one("native", native, self.options.rounds)
        with Functions(self.settings, pool, keep_warm=SHORT) as side:
            self.one_by_one("dxpu, new instance", side, self.options.rounds)
        with Functions(self.settings, pool, keep_warm=LONG, sharing=4) as side:
            self.one_by_one("dxpu, warm instance", side, self.options.rounds + 1)

    def loads(self, pool):
        mean = sum(self.costs.get(name, 1) for name in self.names) / len(self.names)
        of_each, count = (2, 2) if self.options.tiny else (10, 10)
        gap = 0.1 if self.options.tiny else 1.0
        plans = {
            "low": load.poisson(self.names, of_each, 3 * gap, 1),
            "high": load.poisson(self.names, of_each, 2 * gap, 2),
            "bursts": load.bursts(self.names, count, 2 * gap),
        }
        for name, plan in plans.items():
            # Exclusive, one after the other, or as long as the arrivals take.
            needs = max(plan[-1][0], mean * len(plan)) * 1.1 + 20
            for label, options in SIDES.items():
                if not self.fits(f"load {name}, {label}", needs):
                    continue
                side = Native(self.settings, self.options.gpus) if options is None else Functions(self.settings, pool, keep_warm=LONG, **options)
                with side, Sampler() as sampler:
                    measured = load.play(plan, side.invoke, time.time() + self.left())
                measured["utilisation"] = sampler.points
                self.found["loads"].setdefault(name, {})[label] = measured
                for request in report.good(measured["requests"]):
                    self.take(request["workload"], request["result"])
                line = report.of_load(measured)
                print(f"load {name}, {label}: {line}", flush=True)
                self.save()

    def ablation(self, pool):
        needs = 2.2 * sum(self.costs.get(name, 1) for name in self.names) + 15
        for label, options in ABLATION.items():
            if not self.fits(f"ablation, {label}", needs):
                continue
            with Functions(self.settings, pool, **options) as side:
                ends = []
                for name in self.names:
                    for _ in range(2):
                        began = time.time()
                        self.take(name, side.invoke(name)["result"])
                        ends.append(time.time() - began)
            self.found["ablation"][label] = ends
            print(f"ablation, {label}: {sum(ends) / len(ends):.2f} s", flush=True)
            self.save()

    def run(self):
        phases = [self.single, self.loads, self.ablation]
        if self.options.no_gpu:
            for phase in phases:
                phase(None)
        else:
            with Pool(self.settings) as pool:
                for phase in phases:
                    phase(pool)
        self.save()
        print((pathlib.Path(self.options.out) / "functions.md").read_text())
        return 1 if self.found["wrong"] else 0


def machine():
    try:
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10).stdout.split(" (UUID")[0]
    except OSError:
        told = ""
    return f"{told or platform.machine()}, {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dxpu", default="target/release/dxpu")
    parser.add_argument("--budget", type=seconds, default=1200, metavar="TIME")
    parser.add_argument("--out", default="bench-functions", metavar="DIR")
    parser.add_argument("--weights", metavar="DIR", help="where weights are kept between runs")
    parser.add_argument("--rounds", type=int, default=3, help="requests one at a time, for each workload and side")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(DECLARED))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-gpu", action="store_true")
    sys.exit(Bench(parser.parse_args()).run())


main()
