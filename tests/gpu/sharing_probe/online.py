"""The online side: requests of ResNet-50 (fp16, batch 4, a CUDA graph) that close the gate, with stamps of the device's clock in them."""

import json
import os
import random
import subprocess
import sys

import numpy
import torch
from device import Kernels, SharedWords, call, now, settle, spin_until
from model import resnet50

GATE, STOP, CLOCK, STAMPS = 0, 1, 8, 32
HERE = os.path.dirname(os.path.abspath(__file__))
LINGER_NS = 50_000


class Online:
    def __init__(self, path):
        torch.manual_seed(0)
        self.words = SharedWords(path)
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.words.register()
        self.kernels = Kernels()
        self.stream = torch.cuda.Stream()
        self.flushed = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
        self.foreign = resnet50().cuda().eval()
        self.foreign_x = torch.randn(32, 3, 224, 224, device="cuda")
        model = resnet50().cuda().half().eval().to(memory_format=torch.channels_last)
        x = torch.randn(4, 3, 224, 224, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
        # A stamp at the beginning, behind each of the four parts, and at the end.
        stamps = [self.kernels.launcher("stamp", 1, 1, self.words.pointer(STAMPS + at))[0] for at in range(6)]
        for at, part in enumerate((model.layer1, model.layer2, model.layer3, model.layer4), start=1):
            part.register_forward_hook(lambda *_, run=stamps[at]: run(torch.cuda.current_stream().cuda_stream))

        def request():
            stamps[0](torch.cuda.current_stream().cuda_stream)
            model(x)
            stamps[5](torch.cuda.current_stream().cuda_stream)

        for at, run in enumerate(stamps):
            self.words.words[STAMPS + at] = 0
            run(self.stream.cuda_stream)
            settle(f"stamp {at}")
            if self.words.words[STAMPS + at] == 0:
                raise RuntimeError(f"stamp {at} has run, and its word is not written")
        with torch.no_grad(), torch.cuda.stream(self.stream):
            for _ in range(3):
                request()
            settle("the first requests")
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                request()
        torch.cuda.synchronize()
        self.clock = self.calibrate()

    def calibrate(self):
        """What the device's clock shows more than the host's, from the questions that were answered fastest."""
        run, _ = self.kernels.launcher("stamp", 1, 1, self.words.pointer(CLOCK))
        seen = []
        for _ in range(300):
            self.words.words[CLOCK] = 0
            before = now()
            run(self.stream.cuda_stream)
            while self.words.words[CLOCK] == 0:
                pass
            after = now()
            seen.append((after - before, self.words.words[CLOCK] - (before + after) // 2))
        seen.sort()
        return sorted(offset for _, offset in seen[:20])[10]

    def request(self):
        """One request: times of launch and end on the host, and its stamps. The gate is the caller's."""
        words = self.words.words
        words[STAMPS + 5] = 0
        began = now()
        with torch.cuda.stream(self.stream):
            self.graph.replay()
        while words[STAMPS + 5] == 0:
            pass
        return began, now(), [words[STAMPS + at] for at in range(6)]

    def row(self, gap_us, seconds, before=None, drained_us=0, is_gated=True, keep_closed=False):
        """Requests with pauses of `gap_us` (a number, or a range) between them, for so long."""
        words, until, rows = self.words.words, now() + int(seconds * 1e9), []
        dice = random.Random(1)
        while now() < until:
            gap = gap_us if isinstance(gap_us, (int, float)) else dice.uniform(*gap_us)
            spin_until(now() + int(gap * 1000))
            if before:
                before()
                torch.cuda.synchronize()
            closed = now()
            if is_gated:
                words[GATE] = 1
            if drained_us:
                spin_until(closed + drained_us * 1000)
            began, ended, stamps = self.request()
            opened = now()
            if is_gated and not keep_closed:
                words[GATE] = 0
            rows.append((closed, began, ended, opened, *stamps))
        return numpy.array(rows, dtype=numpy.int64)

    def flush(self):
        self.flushed.add_(1)

    def run_foreign(self):
        with torch.no_grad():
            self.foreign(self.foreign_x)

    def poisson(self, mean_us, seconds, is_gated):
        """Latencies from the arrival, at random arrivals with this mean distance, with a linger of 50 us."""
        words, dice = self.words.words, random.Random(2)
        start, at, latencies, is_closed, idle_since = now(), 0, [], False, 0
        arrivals = []
        while at < seconds * 1e9:
            at += dice.expovariate(1 / (mean_us * 1000))
            arrivals.append(start + int(at))
        for arrival in arrivals:
            while now() < arrival:
                if is_closed and now() - idle_since > LINGER_NS:
                    words[GATE], is_closed = 0, False
            if is_gated and not is_closed:
                words[GATE], is_closed = 1, True
            _, ended, _ = self.request()
            latencies.append(ended - arrival)
            idle_since = now()
        words[GATE] = 0
        return numpy.array(latencies) / 1e6


class Child:
    """The offline process."""

    def __init__(self, path, scratch):
        command = [sys.executable, os.path.join(HERE, "offline.py"), path]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.scratch = scratch
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the offline process ended")
        return json.loads(line)

    def begin(self, words, order):
        words[STOP] = 0
        self.file = os.path.join(self.scratch, "ring")
        self.process.stdin.write(json.dumps({**order, "file": self.file}) + "\n")
        self.process.stdin.flush()

    def end(self, words):
        words[STOP] = 1
        words[GATE] = 0
        answer = self.answer()
        ring = numpy.fromfile(self.file, dtype="<u8").reshape(-1, 2).astype(numpy.int64)
        return answer, ring[ring[:, 1] > 0]

    def stop(self):
        self.process.stdin.close()
        self.process.wait(10)


def percentiles(values):
    if not len(values):
        return "      -      "
    p50, p99 = numpy.percentile(values, [50, 99])
    return f"{p50:6.0f}/{p99:6.0f}"


def shown(name, rows, clock, ring=None, rate=""):
    """One line: latency = until the first stamp + on the device; the drain and what follows it, where the offline side is known."""
    rows = rows[5:]
    closed, began, ended = rows[:, 0] + clock, rows[:, 1] + clock, rows[:, 2] + clock
    stamps = rows[:, 4:]
    parts = numpy.diff(stamps, axis=1) / 1e3
    latency, first, inside = (ended - began) / 1e3, (stamps[:, 0] - began) / 1e3, (stamps[:, 5] - stamps[:, 0]) / 1e3
    drain, switch, late, resume = [], [], [], []
    if ring is not None and len(ring):
        ring = ring[numpy.argsort(ring[:, 1])]
        starts = numpy.sort(ring[:, 0])
        for at in range(len(rows)):
            # The last offline end before the request's own end; the gate keeps others away until then.
            last = numpy.searchsorted(ring[:, 1], stamps[at, 5]) - 1
            last_end = ring[last, 1] if last >= 0 else 0
            drain.append(max(0, last_end - closed[at]) / 1e3)
            switch.append((stamps[at, 0] - max(last_end, began[at])) / 1e3)
            late.append(numpy.searchsorted(starts, stamps[at, 5]) - numpy.searchsorted(starts, closed[at]))
            opened = rows[at, 3] + clock
            following = numpy.searchsorted(starts, opened)
            if following < len(starts) and (at + 1 == len(rows) or starts[following] < closed[at + 1]):
                resume.append((starts[following] - opened) / 1e3)
    mean_parts = " ".join(f"{value:4.0f}" for value in numpy.percentile(parts, 50, axis=0))
    late_text = f"{numpy.mean(late):4.1f}/{max(late):2d}" if len(late) else "   -   "
    print(
        f"{name:44} {len(rows):5d} {percentiles(latency)} {percentiles(first)} {percentiles(inside)}  {mean_parts}"
        f"  {percentiles(drain)} {percentiles(switch)} {late_text} {percentiles(resume)} {rate}",
        flush=True,
    )
    return float(numpy.percentile(latency, 50)), float(numpy.percentile(inside, 50))


def main():
    path, scratch, plane, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
    is_brief = sys.argv[5:] == ["brief"]
    online = Online(path)
    words, clock, results = online.words.words, online.clock, {}
    words[GATE], words[STOP] = 0, 1
    gap = (500, 4000)
    print(f"\n== {plane}; microseconds, p50/p99 ==")
    print(
        f"{'':44} {'n':>5} {'latency':^13} {'to 1st stamp':^13} {'on the device':^13}  {'its five parts, p50':^24}"
        f"  {'drain':^13} {'after it':^13}  late   {'resume':^13} offline"
    )

    def alone(name, gap_us, **options):
        results[name] = shown(name, online.row(gap_us, seconds, is_gated=False, **options), clock)

    alone("alone, back to back", 0)
    alone("alone, pauses 0.5 to 4 ms", gap)
    if not is_brief:
        for gap_us in (200, 1000, 3000, 10000):
            alone(f"alone, pauses of {gap_us} us", gap_us)
        alone("own sweep of 256 MB before (cold L2)", gap, before=online.flush)
        alone("own other model before (cold L2, code)", gap, before=online.run_foreign)

    child = Child(path, scratch)
    rates = {}

    def beside(name, order, **options):
        """The offline process does `order` while requests come; its rate beside its rate with the gate always open."""
        key = json.dumps(order)
        is_paced = order["what"] in ("tiny", "spin", "sweep", "train")
        if is_paced and key not in rates:
            child.begin(words, order)
            if order["what"] == "train":
                spin_until(now() + int(4e9))  # the model is built and captured
                child.end(words)
                child.begin(words, order)
            spin_until(now() + int(max(1.0, seconds / 2) * 1e9))
            answer, _ = child.end(words)
            rates[key] = answer["count"] / answer["seconds"]
        if options.pop("always_closed", False):
            words[GATE] = 1
            options["keep_closed"] = True
        child.begin(words, order)
        spin_until(now() + int(5e7))
        rows = online.row(options.pop("gap", gap), seconds, **options)
        answer, ring = child.end(words)
        rate = ""
        if is_paced and rates[key]:
            rate = f"{answer['count'] / answer['seconds'] / rates[key]:.2f} of {rates[key]:.0f}/s {answer['kind']}"
        results[name] = shown(name, rows, clock, ring if is_paced else None, rate)

    if is_brief:
        for us in (10, 50):
            beside(f"kernels of {us} us that fill the GPU", {"what": "spin", "us": us})
        for in_group in (1, 4):
            beside(f"training, a wait every {in_group} operations", {"what": "train", "in_group": in_group})
        child.stop()
        return

    beside("neighbour does nothing", {"what": "idle"})
    beside("neighbour blocked at the gate all the time", {"what": "blocked"}, always_closed=True)
    beside("tiny kernels (switch)", {"what": "tiny"})
    beside("tiny kernels, drained 1 ms before", {"what": "tiny"}, drained_us=1000)
    for us in (20, 50, 100, 300):
        beside(f"kernels of {us} us that fill the GPU", {"what": "spin", "us": us})
    beside("kernels of 50 us, drained 1 ms before", {"what": "spin", "us": 50}, drained_us=1000)
    beside("kernels of 10 us in groups of 5", {"what": "spin", "us": 10, "in_group": 5})
    beside("sweeps of 96 MB (cold L2)", {"what": "sweep"})
    beside("sweeps of 96 MB, drained 1 ms before", {"what": "sweep"}, drained_us=1000)
    for in_group in (1, 4, 16):
        beside(f"training, a wait every {in_group} operations", {"what": "train", "in_group": in_group})
    beside("training, 1, drained 1 ms before", {"what": "train", "in_group": 1}, drained_us=1000)

    service = results["alone, back to back"][0]
    for name, order in (("alone", None), ("training, 1, gate", {"what": "train", "in_group": 1})):
        if order:
            child.begin(words, order)
            spin_until(now() + int(5e7))
        latencies = online.poisson(2 * service, 2 * seconds, order is not None)
        rate = ""
        if order:
            answer, _ = child.end(words)
            rate = f", offline {answer['count'] / answer['seconds'] / rates[json.dumps(order)]:.2f}"
        p50, p90, p99 = numpy.percentile(latencies, [50, 90, 99])
        print(f"load 0.5, {name:32} p50 {p50:6.2f}  p90 {p90:6.2f}  p99 {p99:6.2f} ms{rate}", flush=True)
    child.stop()
    summary(results)
    call("cuCtxSynchronize")


def summary(results):
    """What each cause adds to the p50 of a request, by rows that differ in one thing."""
    base = results["alone, pauses 0.5 to 4 ms"][0]
    rows = [
        ("the pause itself (clocks, idle)", base - results["alone, back to back"][0]),
        ("cold L2, no switch", results["own sweep of 256 MB before (cold L2)"][0] - base),
        ("cold L2 and code, no switch", results["own other model before (cold L2, code)"][0] - base),
        ("a neighbour that exists", results["neighbour does nothing"][0] - base),
        ("a neighbour blocked all the time", results["neighbour blocked at the gate all the time"][0] - base),
        ("switch (tiny kernels, drained)", results["tiny kernels, drained 1 ms before"][0] - base),
        ("switch from a full GPU (50 us, drained)", results["kernels of 50 us, drained 1 ms before"][0] - base),
        ("switch and cold L2 (sweeps, drained)", results["sweeps of 96 MB, drained 1 ms before"][0] - base),
        ("switch and cold (training, drained)", results["training, 1, drained 1 ms before"][0] - base),
        ("all of it (training, a wait every operation)", results["training, a wait every 1 operations"][0] - base),
        ("longer groups (4, 16 operations), beyond that",
         results["training, a wait every 4 operations"][0] - results["training, a wait every 1 operations"][0]),
        ("", results["training, a wait every 16 operations"][0] - results["training, a wait every 1 operations"][0]),
    ]
    print("what it adds to the p50 of a request, us:")
    for name, value in rows:
        print(f"  {name:48} {value:8.0f}")


if __name__ == "__main__":
    main()
