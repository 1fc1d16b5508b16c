"""One run of the benchmark: who is measured when, and what becomes of failures."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import bare
import figures
import tables
from modes import BOUNDS
from runner_control import BENCH, RunnerControl, RunnerFailed, client_environment
from workloads import WORKLOADS

# Building a network and running it until it is warm; the first time kernels travel to the worker.
PREPARE_SECONDS = 60
# Beyond what a repetition was told to take.
MEASURE_EXTRA_SECONDS = 20
FIRST_USE_SECONDS = 90
# How far a result may lie from the base's: other kernels may be chosen, other results may not be.
PROBE_TOLERANCE = 1e-2


def last_error(text):
    """The line of a traceback that names the error, or the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)]
    return (named or lines)[-1][:300]


class Measurement:
    def __init__(self, options, results, place, worker, out, keep):
        self.options, self.results, self.place, self.worker, self.keep = options, results, place, worker, keep
        self.began = time.monotonic()
        self.modes = {mode.name: mode for mode in options.modes}
        self.runners = {
            name: RunnerControl(mode, worker, place, options.device, options.tiny, os.path.join(out, f"runner-{name}.log"))
            for name, mode in self.modes.items()
        }

    def say(self, text):
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def complain(self, text):
        self.results.setdefault("errors", []).append(text)
        self.say(f"error: {text}")

    def run(self):
        names = [name for name in self.options.only if name in WORKLOADS]
        if names:
            self.start_runners()
        copies = [name for name in names if WORKLOADS[name].bytes_moved]
        for name in names:
            if time.monotonic() - self.began > self.options.budget - self.first_use_seconds():
                self.complain(f"{name} was not measured: the time is up")
                continue
            if copies and name == copies[0]:
                self.measure_bare()
            self.measure(name)
            if copies and name == copies[-1]:
                self.measure_bare()
            self.keep()
        for runner in self.runners.values():
            runner.end()
        if "first_use" in self.options.only:
            self.measure_first_use()

    def end(self):
        for runner in self.runners.values():
            runner.end()

    def start_runners(self):
        """All at once: importing frameworks takes long and disturbs nobody."""
        for runner in self.runners.values():
            runner.start()
        for name, runner in self.runners.items():
            try:
                runner.await_hello()
                self.results.update({key: value for key, value in runner.hello.items() if key not in self.results})
            except RunnerFailed as error:
                self.complain(f"{name}: the runner does not start: {error}")
        self.say(f"runners are ready: {', '.join(name for name, runner in self.runners.items() if runner.hello)}")

    def measure(self, name):
        workload = WORKLOADS[name]
        row = {"title": workload.title, "bytes_moved": 0 if self.options.tiny else workload.bytes_moved, "modes": {}}
        self.results["workloads"][name] = row
        for mode in self.modes_of(workload):
            row["modes"][mode] = {"repetitions": []}
        ready = self.prepare(name, row)
        for repetition in range(self.options.reps):
            # Each repetition begins with another mode, so that none is always the one after the pause.
            first = repetition % max(1, len(ready))
            for mode in ready[first:] + ready[:first]:
                kept = row["modes"][mode]
                if "error" in kept:
                    continue
                seconds = workload.seconds * self.options.seconds
                try:
                    found = self.runners[mode].ask(seconds * 3 + MEASURE_EXTRA_SECONDS, do="measure", seconds=seconds)
                    kept["repetitions"].append(found)
                except RunnerFailed as error:
                    kept["error"] = str(error)
        for mode in ready:
            if "error" not in row["modes"][mode]:
                self.drop(mode)
        self.say(tables.row(self.results, name))
        for mode, kept in row["modes"].items():
            if "error" in kept:
                self.say(f"         {mode}: {kept['error'][:300]}")
            if kept.get("is_different"):
                base = row["modes"][self.results["base"]]
                self.say(f"         {mode}: its results differ: {kept['probe'][:8]}, {self.results['base']} {base['probe'][:8]}")

    def modes_of(self, workload):
        """A driver that does nothing copies nothing: there is no limit to the rate of a copy."""
        return [name for name, mode in self.modes.items() if not (mode.kind in BOUNDS and workload.bytes_moved)]

    def prepare(self, name, row):
        """Sets the workload up in every mode, together; the modes that are ready, those with other results marked."""

        def one(mode):
            try:
                row["modes"][mode] |= self.runners[mode].ask(PREPARE_SECONDS, do="prepare", workload=name)
                return mode
            except RunnerFailed as error:
                row["modes"][mode]["error"] = str(error)
                return None

        with ThreadPoolExecutor(len(self.modes)) as pool:
            ready = [mode for mode in pool.map(one, row["modes"]) if mode]
        base = row["modes"][self.results["base"]].get("probe")
        for mode in ready:
            if base is not None and not figures.are_near(row["modes"][mode]["probe"], base, PROBE_TOLERANCE):
                row["modes"][mode]["is_different"] = True
        return ready

    def drop(self, mode):
        try:
            self.runners[mode].ask(PREPARE_SECONDS, do="drop")
        except RunnerFailed as error:
            self.complain(f"{mode}: {error}")

    def measure_bare(self):
        if self.worker is None:
            return
        try:
            found, note = bare.measure(self.worker, megabytes=16 if self.options.tiny else 256)
        except OSError as error:
            self.complain(f"the bare transport was not measured: {error}")
            return
        if note:
            self.results["bare_note"] = note
            self.say(note)
        self.results.setdefault("bare", []).append(found)
        self.say("bare transport, GB/s: " + " ".join(f"{mode} {row['gbps']:.2f}" for mode, row in found.items()))

    def first_use_seconds(self):
        """About what the first uses will take; kept free for them."""
        is_wanted = "first_use" in self.options.only
        return (7 + self.options.settle) * len(self.modes) * self.first_use_repetitions() if is_wanted else 0

    def first_use_repetitions(self):
        return 1 if self.options.quick else max(3, self.options.reps)

    def measure_first_use(self):
        """A fresh process each time, modes in turn."""
        modes = {name: mode for name, mode in self.modes.items() if mode.kind not in BOUNDS}
        rows = self.results["first_use"] = {mode: {"seconds": [], "process_seconds": []} for mode in modes}
        for repetition in range(self.first_use_repetitions()):
            for name, mode in modes.items():
                if "error" in rows[name]:
                    continue
                # A worker makes a session ready after it has given one away: as it is when programs do not queue up.
                time.sleep(self.options.settle)
                try:
                    self.use_first(mode, rows[name])
                except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                    rows[name]["error"] = str(error)[:500]
                    self.complain(f"first use, {name}: {str(error)[:500]}")
            self.keep()
        shown = [f"{name} {figures.median(row['seconds']):.3f} s" for name, row in rows.items() if row["seconds"]]
        self.say(f"first use: {' '.join(shown)}")

    def use_first(self, mode, row):
        program = [sys.executable, os.path.join(BENCH, "first_use.py"), "--kind", mode.kind, "--ours", self.place.libraries]
        program += ["--device", self.options.device]
        began = time.monotonic()
        done = subprocess.run(
            mode.command(self.worker, *program),
            env=client_environment(mode, self.place),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FIRST_USE_SECONDS,
        )
        if done.returncode != 0:
            raise RuntimeError(f"ended with {done.returncode}: {last_error(done.stderr)}")
        row["process_seconds"].append(time.monotonic() - began)
        row["seconds"].append(json.loads(done.stdout.splitlines()[-1])["first_use_s"])
