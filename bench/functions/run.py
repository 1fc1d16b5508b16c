"""Six workloads as functions, against processes that use the GPU themselves: one command, a report with tables and plots.

    python3 bench/functions/run.py --dxpu target/release/dxpu --budget 9m --out bench-functions
    python3 bench/functions/run.py … --budget 9m --continue bench-functions/functions.json     # what did not fit

Needs python3 with torch, and a GPU on this machine; nothing of AWS, and no network. It starts a manager, a box and the service
itself, on loopback. What does not fit into the budget any more is left out and named; `--continue` takes what an earlier run has
measured and does the rest.

    single      one request at a time: native, dxpu with a new instance each time, dxpu with warm instances
    start       time to the first CUDA result of a new instance, and of 2 GiB of weights, first and second instance
    ablation    nothing, each optimisation alone, all: two requests to each workload, one after the other; one where nothing is kept
    loads       Poisson arrivals with mean gaps of 3 s and 2 s, ten of each workload; bursts of all six every 2 s:
                native and dxpu exclusive, dxpu with 2 and 4 instances on a GPU

A check of the bench itself: `--tiny --no-gpu` runs the workloads with torch on a processor and without a pool, and `--tiny --soft`
runs everything but torch on a GPU in software, where k-means by the CUDA driver stands in for each workload.
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
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent / "workloads"))
import driver  # noqa: E402
import load  # noqa: E402
import report  # noqa: E402
from sides import DECLARED, HERE, Functions, Native, Pool  # noqa: E402

WARM = "dxpu, warm instance"
SHORT = "1ms"
LONG = "600s"

# By name, what the service is told. What an optimisation is alone: everything else as in "none".
ABLATION = {
    "none": {"sharing": 1, "keep_warm": SHORT, "gpu_keep": "0s"},
    "kept GPU with known modules": {"sharing": 1, "keep_warm": SHORT, "gpu_keep": LONG},
    "sharing 4": {"sharing": 4, "keep_warm": SHORT, "gpu_keep": "0s"},
    "warm instances": {"sharing": 1, "keep_warm": LONG, "gpu_keep": "0s"},
    # The store of a worker goes with its lease, so the GPU is kept for these.
    "kept GPU with weights by content and modules ahead": {"sharing": 1, "keep_warm": SHORT, "gpu_keep": LONG, "content": True},
    "all": {"sharing": 4, "keep_warm": LONG, "gpu_keep": LONG, "fit": "fewest-moves", "content": True},
}
# Requests to a workload in the ablation: from the second one on, what is kept is there. One where nothing is.
IN_A_ROW = 2
# The longest last: what does not fit into the budget is what the others are least compared with.
SIDES = {
    "dxpu, exclusive": {"sharing": 1},
    "dxpu, sharing 2": {"sharing": 2},
    "dxpu, sharing 4": {"sharing": 4, "fit": "worst"},
    "native, exclusive": None,
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
            "dxpu": str(pathlib.Path(options.dxpu).resolve()), "tiny": options.tiny, "soft": options.soft, "gpus": options.gpus,
            "weights": str(pathlib.Path(options.weights or tempfile.mkdtemp(prefix="dxpu-weights-")).resolve()),
            "logs": str(pathlib.Path(options.out, "logs").resolve()),
        }
        self.found = {
            "machine": machine(), "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": commit(), "tiny": options.tiny,
            "soft": options.soft, "used_s": 0.0, "single": {}, "start": {}, "loads": {}, "ablation": {},
            "costs": {}, "results": {}, "errors": [], "wrong": [],
        }
        if options.earlier:
            self.found |= json.loads(pathlib.Path(options.earlier).read_text())
        self.found["skipped"] = []
        self.used_before = self.found["used_s"]
        self.costs = self.found["costs"]

    def left(self):
        return self.options.budget - (time.time() - self.began)

    def fits(self, what, needs_s):
        """Whether there is time for a phase; if not, it is named in the report."""
        if self.left() > needs_s:
            return True
        self.found["skipped"].append(f"{what}: {max(0, self.left()):.0f} s were left and it needs about {needs_s:.0f} s")
        return False

    def take(self, name, answer):
        """Compares a result with the first one of its workload."""
        first = self.found["results"].setdefault(name, answer)
        for field, value in answer.items():
            close = abs(value - first[field]) <= 0.02 * max(abs(value), abs(first[field]), 0.01)
            # Rounding moves which boxes overlap by just enough.
            if not close:
                self.found["wrong"].append(f"{name}: {field} is {value} and was {first[field]}")

    def save(self):
        self.found["used_s"] = self.used_before + time.time() - self.began
        out = pathlib.Path(self.options.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / "functions.json").write_text(json.dumps(self.found, indent=1))
        drawn = report.plots(self.found)
        for name, text in drawn.items():
            (out / name).write_text(text)
        pictures = "".join(f"![{name}]({name})\n\n" for name in drawn)
        (out / "functions.md").write_text(report.markdown(self.found) + ("\n## Plots\n\n" + pictures if drawn else ""))

    def one(self, label, side, name, cold=False, **event):
        """The answer of one request and how long it took; none if it failed, which is kept and told. `cold`: by a new instance."""
        began = time.time()
        try:
            if cold:
                side.cool(name)
            began = time.time()
            answer = side.invoke(name, **event)
            if cold and answer["served_by_this_instance"] != 1:
                raise RuntimeError("an old instance served it")
        except Exception as error:
            self.found["errors"].append(f"{label}: {name}: {str(error)[-400:]}")
            print(f"{label}: {name} FAILED: {str(error)[-400:]}", flush=True)
            return None, time.time() - began
        took = time.time() - began
        self.take(name, answer["result"])
        print(f"{label:28} {name:20} {took:7.2f} s, compute {answer['compute_s']:.2f} s on {answer['device']}", flush=True)
        return answer, took

    def one_by_one(self, label, side, rounds, cold=False):
        times = self.found["single"].setdefault(label, {})
        for name in self.missing(label):
            for _ in range(rounds):
                if not self.fits(f"{label}: {name}", self.costs.get(name, 0)):
                    return
                answer, took = self.one(label, side, name, cold)
                self.costs[name] = max(self.costs.get(name, 0), took)
                if answer is None:
                    break
                # Of warm instances, the request that started one does not count.
                if label != WARM or answer["served_by_this_instance"] > 1:
                    times.setdefault(name, []).append(took)
            self.save()

    def missing(self, label):
        return [name for name in self.names if not self.found["single"].get(label, {}).get(name)]

    def single(self, pool):
        if self.missing("native"):
            self.one_by_one("native", Native(self.settings), self.options.rounds)
        for label, options, rounds in [
            ("dxpu, new instance", {"keep_warm": SHORT}, self.options.rounds),
            (WARM, {"keep_warm": LONG, "sharing": 4}, self.options.rounds + 1),
        ]:
            if self.missing(label):
                with Functions(self.settings, pool, **options) as side:
                    self.one_by_one(label, side, rounds, options["keep_warm"] == SHORT)

    def start(self, pool):
        """What a new instance costs before its own work: without any library, and with weights."""
        megabytes = 16 if self.options.tiny else 2048
        if self.found["start"] or not self.fits("start", 60):
            return
        os.environ["BENCH_WEIGHTS"] = self.settings["weights"]
        driver.weights_file(megabytes)
        with Functions(self.settings, pool, keep_warm=SHORT) as side:
            for label, where in (("native", Native(self.settings)), ("dxpu", side)):
                for name, event in (("start", {}), ("weights", {"weights_mb": megabytes})):
                    for number in range(5 if name == "start" else 3):
                        answer, took = self.one(f"start, {label}", where, name, True, **event)
                        if answer:
                            of_it = {"end_to_end_s": took, "first_s": answer["first_s"], "load_s": answer["load_s"]}
                            self.found["start"].setdefault(f"{label}, {name}", []).append(of_it)
        self.save()

    def of_each(self, means):
        """How many requests of each workload: ten, or as many as the budget has room for."""
        if self.options.of_each:
            return self.options.of_each
        most = 2 if self.options.tiny else 10
        sides = len(SIDES) * len(self.options.loads)
        return next((n for n in range(most, 2, -1) if sides * (n * sum(means) + 20) < self.left()), 2)

    def loads(self, pool):
        means = [self.costs.get(name, 1) for name in self.names]
        of_each = self.of_each(means)
        gap = 0.1 if self.options.tiny else 1.0
        plans = {
            "low": load.poisson(self.names, of_each, 3 * gap, 1),
            "high": load.poisson(self.names, of_each, 2 * gap, 2),
            "bursts": load.bursts(self.names, of_each, 2 * gap),
        }
        for name in self.options.loads:
            plan, label_of_plan = plans[name], f"{name}, {of_each} of each"
            for label, options in SIDES.items():
                # One after the other, or as many at a time as share the GPU, or as long as the arrivals take.
                at_once = self.options.gpus * (options or {"sharing": 1})["sharing"]
                needs = max(plan[-1][0], sum(means) * of_each / at_once) * 1.1 + 20
                if label in self.found["loads"].get(label_of_plan, {}) or not self.fits(f"load {label_of_plan}, {label}", needs):
                    continue
                side = Native(self.settings, self.options.gpus) if options is None else Functions(self.settings, pool, keep_warm=LONG, **options)
                with side, Sampler() as sampler:
                    measured = load.play(plan, side.invoke, time.time() + self.left())
                measured["utilisation"] = sampler.points
                self.found["loads"].setdefault(label_of_plan, {})[label] = measured
                for request in report.good(measured["requests"]):
                    self.take(request["workload"], request["result"])
                self.found["errors"] += [f"load {name}, {label}: {r['error']}" for r in measured["requests"] if "error" in r][:3]
                print(f"load {label_of_plan}, {label}: {report.of_load(measured)}", flush=True)
                self.save()

    def ablation(self, pool):
        needs = IN_A_ROW * sum(self.costs.get(name, 1) for name in self.names) + 5
        for label in self.options.ablation:
            options = ABLATION[label]
            if label in self.found["ablation"] or not self.fits(f"ablation, {label}", needs):
                continue
            with Functions(self.settings, pool, **{"content": False, **options}) as side:
                cold = options["keep_warm"] == SHORT
                count = 1 if cold and options["gpu_keep"] == "0s" else IN_A_ROW
                tried = [[self.one(f"ablation, {label}", side, name, cold) for _ in range(count)] for name in self.names]
            self.found["ablation"][label] = [[took for answer, took in one_after_the_other if answer] for one_after_the_other in tried]
            self.save()

    def write_weights(self):
        """Before anything is measured, by a process without limits: an instance may not write files of a gigabyte."""
        folder = pathlib.Path(self.settings["weights"])
        missing = [name for name in self.names if not list(folder.glob(f"{name}*.pt")) and self.fits(f"weights of {name}", 1)]
        with ThreadPoolExecutor(max(1, len(missing))) as pool:
            list(pool.map(lambda name: self.one("native, writes weights", Native(self.settings), name), missing))

    def run(self):
        phases = [getattr(self, name) for name in self.options.phases]
        self.write_weights()
        if self.options.no_gpu:
            for phase in phases:
                if phase != self.start:
                    phase(None)
        else:
            with Pool(self.settings) as pool:
                for phase in phases:
                    phase(pool)
        self.save()
        print((pathlib.Path(self.options.out) / "functions.md").read_text())
        return 1 if self.found["wrong"] or self.found["errors"] else 0


def commit():
    try:
        told = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    except OSError:
        told = ""
    return told.strip() or "unknown"


def listed(*known):
    def read(text):
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]}: known are {','.join(known)}")
        return names

    return read


def machine():
    try:
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10).stdout.split(" (UUID")[0]
    except OSError:
        told = ""
    return f"{told or platform.machine()}, {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dxpu", default="target/release/dxpu")
    parser.add_argument("--budget", type=seconds, default=1200, metavar="TIME", help="such as 540s or 9m")
    parser.add_argument("--out", default="bench-functions", metavar="DIR")
    parser.add_argument("--continue", dest="earlier", metavar="FILE", help="functions.json of an earlier run, to be completed")
    parser.add_argument("--weights", metavar="DIR", help="where weights are kept between runs")
    parser.add_argument("--rounds", type=int, default=3, help="requests one at a time, for each workload and side")
    parser.add_argument("--of-each", type=int, metavar="N", help="requests of each workload in a load [default: 10, or what fits]")
    phases, loads = ("single", "start", "ablation", "loads"), ("low", "high", "bursts")
    parser.add_argument("--phases", type=listed(*phases), default=list(phases), metavar="LIST", help=",".join(phases))
    parser.add_argument("--ablation", type=listed(*ABLATION), default=list(ABLATION), metavar="LIST", help=",".join(ABLATION))
    parser.add_argument("--loads", type=listed(*loads), default=list(loads), metavar="LIST", help=",".join(loads))
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(DECLARED))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--soft", action="store_true", help="a GPU in software")
    parser.add_argument("--no-gpu", action="store_true")
    sys.exit(Bench(parser.parse_args()).run())


main()
