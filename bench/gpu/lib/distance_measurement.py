"""One run of `bench/gpu/distance`: who is measured when, what becomes of profiles, and of failures."""

import dataclasses
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import figures
import rounds
from modes import Mode
from runner_control import RunnerControl, RunnerFailed
from workloads import WORKLOADS

PREPARE_SECONDS = 60
MEASURE_EXTRA_SECONDS = 20
# The paper's constants.
NATIVE_RTT_US, TAGS, READ_REQUEST_BYTES = 1.2, 140, 128
# Steps of one sample of a cycle. Short, so that what is compared is near in time.
CYCLE_STEPS = 2
# The part of a workload's time that goes into cycles; the rest is for other processes.
CYCLES_SHARE = 0.62
# Samples of a repetition, at least. Repetitions are short and many, since what they are compared with must be near in time.
BLOCKS_MIN = 2
ROUNDS_MIN = 3
# Giving a workload's memory back, in all processes.
DROP_SECONDS = 3
# Setting a workload up and one round of it.
WORKLOAD_SECONDS_MIN = 12
# Ending the processes, and writing profiles.
RESERVED_SECONDS = 10
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
        # One process records and injects by turns: its speed is the same for both.
        words = ("inject", "--rtt", "8us", "--profile", "FOLDER/range.profile", "--report", "FOLDER/inject.json")
        modes = [Mode("native")]
        if options.device == "cuda":
            modes.append(Traced("inject", dxpu=self.dxpu, words=words, folder=out))
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
        # Whoever calibrates its filler wants the GPU to itself.
        if "inject" in self.runners and self.prepare("inject", ROUND_TRIP, {"probe": {}}):
            self.drop("inject")
        if any(name.startswith("tcp") for name in self.runners):
            self.measure(ROUND_TRIP, self.results.setdefault("calibration", {}), is_traced=False)
        for number, name in enumerate(self.options.only):
            left = self.last_moment() - time.monotonic()
            if left < WORKLOAD_SECONDS_MIN:
                self.complain(f"{name} was not measured: the time is up")
                continue
            row = self.results["workloads"][name] = {"title": WORKLOADS[name].title}
            self.measure(name, row, is_traced=True, share=left / (len(self.options.only) - number))
            self.keep()
        self.end()
        self.find_profiles()
        self.keep()
        self.say("everything is measured")

    def last_moment(self):
        """When measuring must be over, so that processes can end and profiles be written."""
        return self.began + self.options.budget - RESERVED_SECONDS

    def end(self):
        with ThreadPoolExecutor(max(1, len(self.runners))) as pool:
            list(pool.map(lambda runner: runner.end(), self.runners.values()))

    def measure(self, name, row, is_traced, share=None):
        """Rounds of all processes by turns: all the repetitions asked for, or what `share` seconds let be, but `ROUNDS_MIN` of them.
        Then cycles of everything that one process can do by turns."""
        began = time.monotonic()
        modes = [mode for mode in self.runners if is_traced or mode != "inject"]
        row["probe"], row["rounds"], row["cycles"] = {}, [], []
        self.lost = set()
        together = [mode for mode in modes if mode != "inject"]
        with ThreadPoolExecutor(len(together)) as pool:
            ready = [mode for mode in pool.map(lambda mode: self.prepare(mode, name, row), together) if mode]
        # Alone: what it times while it warms up counts, and others would stand in the way.
        if "inject" in modes and self.prepare("inject", name, row):
            ready.append("inject")
        lasted = 0.0
        for repetition in range(self.options.reps):
            now = time.monotonic()
            is_late = share is not None and now + lasted > began + share * (1.0 - CYCLES_SHARE)
            if (is_late and repetition >= ROUNDS_MIN) or (repetition and now + lasted > self.last_moment()):
                self.say(f"{name}: {repetition} rounds, for want of time")
                break
            row["rounds"].append(self.round(name, ready, is_reversed=repetition % 2 == 1))
            lasted = time.monotonic() - now
        if "inject" in ready:
            self.cycle(name, row, min(began + (share or 0.0), self.last_moment()) - time.monotonic() - DROP_SECONDS)
        for mode in ready:
            if mode not in self.lost:
                self.drop(mode)
        row["ms"] = rounds.medians(row["rounds"] + row["cycles"])
        probes = row["probe"]
        for mode, probe in probes.items():
            if "native" in probes and not figures.are_near(probe, probes["native"], 1e-2):
                self.complain(f"{name}, {mode}: its results differ: {probe[:4]}, natively {probes['native'][:4]}")
        self.say(f"{name}: " + " ".join(f"{key} {value:.3f}" for key, value in row["ms"].items()))

    def round(self, name, ready, is_reversed):
        """Everything once, each beside what it is compared with: a list of [what, milliseconds, what was injected]."""
        found = []
        tcp = [mode for mode in ready if mode.startswith("tcp")]
        order = [mode for mode in ("native", "inject", "native") if mode in ready]
        order += [*(tcp[::-1] if is_reversed else tcp), *(["native"] if tcp else [])]
        for mode in order:
            if mode == "inject":
                self.sample(mode, "trace", name, found, is_marked=True, inject=[0.0, 0.0])
            else:
                self.sample(mode, mode, name, found)
        return found

    def cycle(self, name, row, seconds):
        """Everything that is measured in one process, by turns."""
        plan = []
        for rtt in rounds.with_nothing_between(self.options.rtts):
            rate = TAGS * READ_REQUEST_BYTES / (rtt * 1e-6) if rtt else 0.0
            plan.append([rounds.injected_key(rtt), [max(0.0, rtt - NATIVE_RTT_US) * 1e3, rate], False])
        plan += [[rounds.RECORDED, [0.0, 0.0], True], [rounds.NOTHING, [0.0, 0.0], False]]
        folder = self.runners["inject"].mode.starts[-1]
        try:
            limit = 2 * max(seconds, 0.0) + PREPARE_SECONDS
            said = self.runners["inject"].ask(limit, do="cycle", plan=plan, block=CYCLE_STEPS, seconds=seconds)
        except RunnerFailed as error:
            self.complain(f"{name}, cycles: {error}")
            self.lost.add("inject")
            return
        row["cycles"] = said["cycles"]
        for found in said["cycles"]:
            for key, ms, _ in found:
                if key == rounds.RECORDED:
                    self.ranges.setdefault(folder, []).append((name, {"sum_ms": ms, "count": 1, "block": CYCLE_STEPS}))
        self.say(f"{name}: {len(said['cycles'])} cycles")

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

    def sample(self, mode, key, name, found, **more):
        if mode in self.lost:
            return
        seconds = WORKLOADS[name].seconds * self.options.seconds
        folder = self.runners[mode].mode.starts[-1] if key == "trace" else None
        try:
            limit = seconds * 4 + MEASURE_EXTRA_SECONDS
            said = self.runners[mode].ask(limit, do="measure", seconds=seconds, blocks_min=BLOCKS_MIN, **more)
        except RunnerFailed as error:
            self.complain(f"{name}, {key}: {error}")
            # Its process may be another by now, with nothing prepared.
            self.lost.add(mode)
            said = None
        if key == "trace":
            self.ranges.setdefault(folder, []).append((name, said))
        if said:
            found.append([key, said["median_ms"], said.get("injected")])

    # Profiles.

    def find_profiles(self):
        files = self.profile_files()
        for name in self.results["workloads"]:
            if name not in files:
                self.complain(f"{name}: there is no profile")
        inject = self.runners.get("inject")
        try:
            with open(os.path.join(inject.mode.starts[-1], "inject.json")) as file:
                said = json.load(file)
            self.results["filler"] = {"gpu_us": said["filler_gpu_us"], "host_us": said["filler_host_us"]}
        except (AttributeError, IndexError, OSError, ValueError, KeyError) as error:
            self.complain(f"what fillers cost where they were injected is not known: {error}")

    def profile_files(self):
        """Profiles by workload. A range whose length is not that of its measurement is named and left out."""
        files = {}
        for folder, ranges in self.ranges.items():
            try:
                with open(os.path.join(folder, "inject.json")) as file:
                    reports = json.load(file)["profiles"]
            except (OSError, ValueError, KeyError) as error:
                self.complain(f"there are no profiles: {error}")
                continue
            if len(reports) != len(ranges):
                self.complain(f"{len(ranges)} ranges were marked, {len(reports)} are recorded")
            for (name, found), report in zip(ranges, reports):
                if found:
                    self.keep_profile(name, found, report, files)
        return files

    def keep_profile(self, name, found, report, files):
        block = found.get("block") or WORKLOADS[name].block
        expected_us = found["sum_ms"] * 1e3 * block
        if abs(report["wall_us"] / expected_us - 1.0) > LENGTH_TOLERANCE:
            self.complain(f"{name}: its profile lasts {report['wall_us']:.0f} us, its measurement {expected_us:.0f}")
            return
        steps = found["count"] * block
        row = self.results["workloads"][name]
        row.setdefault("profiles", []).append(
            {
                "file": os.path.relpath(report["profile"], self.out),
                "is_of_cycle": "block" in found,
                "ms_per_step": report["wall_us"] / steps / 1e3,
                **{key: report[key] / steps for key in ("launches", "kernel_us", "memsets", "waits", "local_calls")},
                "mean_kernel_us": report["mean_kernel_us"],
                "mean_period_us": report["mean_period_us"],
                "measured": report["measured"],
                "bytes": os.path.getsize(report["profile"]),
            }
        )
        files.setdefault(name, []).append(report["profile"])
