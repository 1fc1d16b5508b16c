"""One run of `bench/gpu/distance`: who is measured when, what becomes of profiles, and of failures."""

import dataclasses
import gzip
import json
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import distance_report
import figures
from modes import Mode
from runner_control import RunnerControl, RunnerFailed
from workloads import WORKLOADS

PREPARE_SECONDS = 60
MEASURE_EXTRA_SECONDS = 20
PREDICT_SECONDS = 60
# The paper's constants.
NATIVE_RTT_US, TAGS, READ_REQUEST_BYTES = 1.2, 140, 128
# More than any PCIe link has: injection knows no network that is narrower.
NO_BANDWIDTH_LIMIT = "1000GB"
# A profile whose length is not that of its measurement belongs to another.
LENGTH_TOLERANCE = 0.15
# Tells how long a round trip over TCP takes without added delay.
ROUND_TRIP = "kernel_sync"


@dataclasses.dataclass(frozen=True)
class Traced(Mode):
    """A program behind the pass-through library. Each start writes into a folder of its own."""

    dxpu: str = ""
    words: tuple = ()
    folder: str = ""
    starts: list = dataclasses.field(default_factory=list)

    @property
    def kind(self):
        return "traced"

    def command(self, worker, *program):
        folder = os.path.join(self.folder, f"{self.name}-{len(self.starts) + 1}")
        os.makedirs(folder, exist_ok=True)
        self.starts.append(folder)
        words = [word.replace("FOLDER", folder) for word in self.words]
        return [self.dxpu, *words, "--", *map(str, program)]


class PatientRunner(RunnerControl):
    """Whoever records has profiles to write after the program's end."""

    end_seconds = 60


class DistanceMeasurement:
    def __init__(self, options, results, place, worker, out, keep):
        self.options, self.results, self.place, self.out, self.keep = options, results, place, out, keep
        self.began = time.monotonic()
        self.dxpu = os.path.abspath(options.dxpu)
        trace = ("trace", "--range", "profiler", "--out", "FOLDER/range.profile", "--report", "FOLDER/trace.json")
        inject = ("inject", "--rtt", "8us", "--report", "FOLDER/inject.json")
        modes = [Mode("native")]
        if options.device == "cuda":
            modes += [
                Traced(name, dxpu=self.dxpu, words=words, folder=out) for name, words in (("trace", trace), ("inject", inject))
            ]
        if worker:
            modes += [Mode(self.tcp(delay), "tcp", "" if delay == "none" else delay) for delay in options.delays]
        self.runners = {
            mode.name: PatientRunner(
                mode, worker, place, options.device, options.tiny, os.path.join(out, f"runner-{mode.name}.log")
            )
            for mode in modes
        }
        # Which measurement each range of a traced process belongs to, in order, by the folder of the process.
        self.ranges = {}

    @staticmethod
    def tcp(delay):
        return "tcp" if delay == "none" else f"tcp+{delay}"

    def say(self, text):
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def complain(self, text):
        self.results["errors"].append(text)
        self.say(f"error: {text}")

    def run(self):
        for runner in self.runners.values():
            runner.start()
        for name, runner in list(self.runners.items()):
            try:
                runner.await_hello()
                self.results.update({key: value for key, value in runner.hello.items() if key not in self.results})
            except RunnerFailed as error:
                self.complain(f"{name}: the runner does not start: {error}")
                del self.runners[name]
        self.say(f"runners are ready: {', '.join(self.runners)}")
        for mode in ("trace", "inject"):
            # Whoever calibrates its filler wants the GPU to itself.
            if mode in self.runners and self.prepare(mode, ROUND_TRIP, {"probe": {}}):
                self.drop(mode)
        if any(name.startswith("tcp") for name in self.runners):
            self.measure(ROUND_TRIP, self.results.setdefault("calibration", {}), is_traced=False)
        for name in self.options.only:
            if time.monotonic() - self.began > self.options.budget:
                self.complain(f"{name} was not measured: the time is up")
                continue
            row = self.results["workloads"][name] = {"title": WORKLOADS[name].title}
            self.measure(name, row, is_traced=True)
            self.keep()
        self.end()
        self.predict_all()

    def end(self):
        with ThreadPoolExecutor(max(1, len(self.runners))) as pool:
            list(pool.map(lambda runner: runner.end(), self.runners.values()))

    # Measuring.

    def measure(self, name, row, is_traced):
        modes = [mode for mode in self.runners if is_traced or mode not in ("trace", "inject")]
        row["ms"], row["samples"], row["probe"] = {}, {}, {}
        self.lost = set()
        together = [mode for mode in modes if mode != "trace"]
        with ThreadPoolExecutor(len(together)) as pool:
            ready = [mode for mode in pool.map(lambda mode: self.prepare(mode, name, row), together) if mode]
        # Alone: what it times while it warms up counts, and others would stand in the way.
        if "trace" in modes and self.prepare("trace", name, row):
            ready.append("trace")
        for repetition in range(self.options.reps):
            for mode in ready if repetition % 2 == 0 else ready[::-1]:
                if mode == "inject":
                    self.measure_injected(name, row)
                else:
                    self.sample(mode, mode, name, row, is_marked=mode == "trace")
        for mode in ready:
            if mode not in self.lost:
                self.drop(mode)
        # The shortest of the medians: what disturbs a run only ever makes it longer.
        row["ms"] = {key: min(values) for key, values in row["samples"].items()}
        probes = row["probe"]
        for mode, probe in probes.items():
            if "native" in probes and not figures.are_near(probe, probes["native"], 1e-2):
                self.complain(f"{name}, {mode}: its results differ: {probe[:4]}, natively {probes['native'][:4]}")
        self.say(f"{name}: " + " ".join(f"{key} {value:.3f}" for key, value in row["ms"].items()))

    def prepare(self, mode, name, row):
        try:
            row["probe"][mode] = self.runners[mode].ask(PREPARE_SECONDS, do="prepare", workload=name)["probe"]
            return mode
        except RunnerFailed as error:
            self.complain(f"{name}, {mode}: {error}")
            return None

    def drop(self, mode):
        try:
            self.runners[mode].ask(PREPARE_SECONDS, do="drop")
        except RunnerFailed as error:
            self.complain(f"{mode}: {error}")

    def sample(self, mode, key, name, row, **more):
        if mode in self.lost:
            return
        seconds = WORKLOADS[name].seconds * self.options.seconds
        folder = self.runners[mode].mode.starts[-1] if mode == "trace" else None
        try:
            found = self.runners[mode].ask(seconds * 4 + MEASURE_EXTRA_SECONDS, do="measure", seconds=seconds, **more)
        except RunnerFailed as error:
            self.complain(f"{name}, {key}: {error}")
            # Its process may be another by now, with nothing prepared.
            self.lost.add(mode)
            found = None
        if mode == "trace":
            self.ranges.setdefault(folder, []).append((name, found))
        if found:
            row["samples"].setdefault(key, []).append(found["median_ms"])

    def measure_injected(self, name, row):
        """Every round trip between two measurements without any, in one process."""
        for rtt in [0, *self.options.rtts, 0]:
            added_ns = max(0.0, rtt - NATIVE_RTT_US) * 1e3
            rate = TAGS * READ_REQUEST_BYTES / (rtt * 1e-6) if rtt else 0.0
            key = f"inject {rtt:g}us" if rtt else "inject nothing"
            self.sample("inject", key, name, row, inject=[added_ns, rate])

    # Predicting.

    def predict_all(self):
        files = self.profile_files()
        for name, row in self.results["workloads"].items():
            paths = files.get(name, [])
            if "trace" in row["ms"] and "native" in row["ms"]:
                row["trace_overhead_pct"] = 100.0 * (row["ms"]["trace"] / row["ms"]["native"] - 1.0)
            try:
                if paths:
                    self.predict(row, paths[0])
                else:
                    self.complain(f"{name}: there is no profile")
            except (OSError, ValueError, KeyError, RuntimeError, subprocess.SubprocessError) as error:
                self.complain(f"{name}: no prediction: {str(error)[:500]}")
            distance_report.compare(self.results, row)
            self.keep()
            self.say(f"{name}: predicted")
        if not self.options.keep_profiles:
            self.compress()

    def profile_files(self):
        """Profiles by workload. A range whose length is not that of its measurement is named and left out."""
        files = {}
        for folder, ranges in self.ranges.items():
            try:
                with open(os.path.join(folder, "trace.json")) as file:
                    reports = json.load(file)
            except (OSError, ValueError) as error:
                self.complain(f"there are no profiles: {error}")
                continue
            if len(reports) != len(ranges):
                self.complain(f"{len(ranges)} ranges were marked, {len(reports)} are recorded")
            for (name, found), report in zip(ranges, reports):
                if found:
                    self.keep_profile(name, found, report, files)
        return files

    def keep_profile(self, name, found, report, files):
        block = WORKLOADS[name].block
        expected_us = found["sum_ms"] * 1e3 * block
        if abs(report["wall_us"] / expected_us - 1.0) > LENGTH_TOLERANCE:
            self.complain(f"{name}: its profile lasts {report['wall_us']:.0f} us, its measurement {expected_us:.0f}")
            return
        steps = found["count"] * block
        row = self.results["workloads"][name]
        row.setdefault("profiles", []).append(
            {
                "file": os.path.relpath(report["profile"], self.out),
                "ms_per_step": report["wall_us"] / steps / 1e3,
                **{key: report[key] / steps for key in ("launches", "kernel_us", "memsets", "waits", "local_calls")},
                "mean_kernel_us": report["mean_kernel_us"],
                "mean_period_us": report["mean_period_us"],
                "measured": report["measured"],
                "bytes": os.path.getsize(report["profile"]),
            }
        )
        files.setdefault(name, []).append(report["profile"])

    def predict(self, row, profile):
        prediction = self.ask_model(
            profile, "pcie", "8us", "--pcie-cost", "injected", "--bandwidth", NO_BANDWIDTH_LIMIT, "--rtt-max", "50us"
        )
        row["native_replay_error_pct"] = prediction["native_replay_error_pct"]
        row["gap_us"] = prediction["gap_us"]
        row["terms"] = prediction["terms"][:4]
        row["predicted_injected"] = {}
        for rtt in self.options.rtts:
            point = self.ask_model(
                profile, "pcie", f"{rtt}us", "--pcie-cost", "injected", "--bandwidth", NO_BANDWIDTH_LIMIT, "--rtt-max", f"{rtt}us"
            )
            row["predicted_injected"][f"{rtt:g}"] = point["kept_pct"]
        row["predicted_api"] = {}
        base_us = distance_report.tcp_round_trip_us(self.results)
        for delay in self.options.delays if base_us is not None else []:
            rtt = base_us + distance_report.microseconds(delay)
            point = self.ask_model(profile, "api", f"{rtt:.3f}us", "--bandwidth", "10GB", "--rtt-max", f"{rtt:.3f}us")
            row["predicted_api"][delay] = point["kept_pct"]

    def ask_model(self, profile, plane, rtt, *more):
        words = [self.dxpu, "model", "predict", "--profile", profile, "--plane", plane, "--rtt", rtt, "--json", *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PREDICT_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return json.loads(done.stdout)

    def compress(self):
        for folder in self.ranges:
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if name.endswith(".profile"):
                    with open(path, "rb") as plain, gzip.open(f"{path}.gz", "wb", compresslevel=6) as packed:
                        shutil.copyfileobj(plain, packed)
                    os.remove(path)
