"""Runs programs natively and remotely, and keeps what they said and which driver they had."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GPU_TESTS = os.path.dirname(HERE)
ROOT = os.path.dirname(os.path.dirname(GPU_TESTS))
BENCH = os.path.join(ROOT, "bench", "gpu")
sys.path.insert(0, os.path.join(BENCH, "lib"))

import workers  # noqa: E402


class Wrong(Exception):
    """What a check found that should not be."""


class Skipped(Exception):
    """A check that cannot be made here, and why."""


def hold(condition, *what):
    if not condition:
        raise Wrong(" ".join(map(str, what)))


def until(what, holds, seconds):
    """Waits until `holds()` is true; how long it took."""
    start = time.monotonic()
    while not (found := holds()):
        hold(time.monotonic() - start < seconds, f"after {seconds} s still not:", what() if callable(what) else what)
        time.sleep(0.01)
    return found


@dataclasses.dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float
    is_late: bool
    # What is wrong with the process as a native or as a remote one.
    complaint: str | None

    def problem(self, code=0):
        """Why this run as a whole is of no use; None if it ended with `code` as what it should be."""
        if self.is_late:
            return f"does not end within its time limit\n{tail(self.err)}"
        if self.code != code:
            return f"ended with {self.code}\n{tail(self.err)}"
        return self.complaint


def tail(text, lines=25):
    return "\n".join(text.strip().splitlines()[-lines:])


class Bed:
    """A folder, a worker, and the ways to run a program on them."""

    def __init__(self, dxpu, out, driver, device, reference="native", worker_options=()):
        self.dxpu, self.out, self.driver, self.device = dxpu, out, driver, device
        # The way that is right by definition.
        self.reference = reference
        self.worker_options = list(worker_options)
        if driver == "soft":
            # The kernels inside CuPy are machine code for everything older, and the soft driver runs PTX.
            self.worker_options += ["--compute-capability", "12.0"]
        self.place = workers.Place()
        # Nothing may run longer than this, on the monotonic clock.
        self.deadline = math.inf
        self._worker = None
        self._lock = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._worker:
            self._worker.stop()
            with open(os.path.join(self.out, "worker.log"), "w") as file:
                file.write(self._worker.log())
        self.place.close()

    def new_worker(self, *options, **more):
        """A worker of one's own."""
        return workers.Worker(self.dxpu, self.place, self.driver, [*self.worker_options, *options], **more)

    def worker(self):
        """The worker that all share."""
        with self._lock:
            if self._worker is None:
                self._worker = self.new_worker()
            return self._worker

    def environment(self, kind, witness_folder):
        """Both kinds keep compiled kernels apart, so that neither lives off the other's."""
        cache = self.place.cache if kind == "remote" else self.place.make("native-cache")
        folders = {
            name: os.path.join(cache, name.lower())
            for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
        }
        search = [os.path.join(BENCH, "lib", "hook"), HERE, BENCH]
        return (
            workers.plain_environment()
            | folders
            | {
                "XDG_CACHE_HOME": cache,
                "PYTHONPATH": os.pathsep.join(search),
                "PYTHONFAULTHANDLER": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "CHECK_DEVICE": self.device,
                "CUPY_COMPILE_WITH_PTX": "1" if self.driver == "soft" else "0",
                "WITNESS_FOLDER": witness_folder,
                "WITNESS_KIND": kind,
                "WITNESS_OURS": self.place.libraries,
            }
        )

    def start(self, name, mode, program, environment=None, worker=None, options=()):
        """Starts a program; `mode` is "native" or a transport."""
        return Process(self, name, mode, program, environment or {}, worker, options)

    def run(self, name, mode, program, seconds, environment=None, **more):
        """Runs a program to its end."""
        left = self.deadline - time.monotonic()
        if left < 1:
            raise Skipped("the time is up")
        seconds = min(seconds, left)
        return self.start(name, mode, program, environment, **more).finish(seconds)

    def python(self, file):
        """The command that runs one of our Python files."""
        return [sys.executable, os.path.join(GPU_TESTS, file)]


class Process:
    """A program that runs, with what it says in files of the output folder."""

    def __init__(self, bed, name, mode, program, environment, worker, options):
        self.bed, self.mode = bed, mode
        self.kind = "native" if mode == "native" else "remote"
        self.witness_folder = bed.place.make(os.path.join("witness", f"{name}.{mode}.{time.monotonic_ns()}"))
        if self.kind == "remote":
            command = (worker or bed.worker()).client(mode, *program, options=options)
        else:
            command = list(map(str, program))
        paths = [os.path.join(bed.out, f"{name}.{mode}.{end}") for end in ("out", "err")]
        self.out_path, self.err_path = paths
        self.began = time.monotonic()
        with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
            self.process = subprocess.Popen(
                command,
                env=bed.environment(self.kind, self.witness_folder) | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=bed.place.make("cwd"),
            )
        # `dxpu run` becomes the program, so this is the program's number in both kinds.
        self.pid = self.process.pid

    def said(self):
        with open(self.out_path, errors="replace") as file:
            return file.read()

    def complained(self):
        with open(self.err_path, errors="replace") as file:
            return file.read()

    def wait_for(self, text, seconds):
        """Waits until the program has said this."""
        ended = lambda: self.process.poll() is not None
        describe = lambda: f"the program says {text!r}; it said {tail(self.said(), 5)} {tail(self.complained(), 15)}"
        until(describe, lambda: text in self.said() or ended(), seconds)
        hold(text in self.said(), "the program ended with", self.process.returncode, tail(self.complained()))

    def end(self):
        """Ends it and what it started: first so that it can say where it is, then hard."""
        for number, patience in ((signal.SIGABRT, 3), (signal.SIGKILL, 10)):
            if self.process.poll() is not None:
                break
            os.kill(self.pid, number)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)  # its own group: compilers and loaders it left behind
        except ProcessLookupError:
            pass

    def finish(self, seconds):
        """Waits for the end; a program that is late is ended."""
        is_late = False
        try:
            self.process.wait(max(0.1, seconds - (time.monotonic() - self.began)))
        except subprocess.TimeoutExpired:
            is_late = True
        took = time.monotonic() - self.began
        self.end()
        code = self.process.returncode
        complaint = None if is_late or code != 0 else self.testimony()
        return Result(code, self.said(), self.complained(), took, is_late, complaint)

    def testimony(self):
        """What is wrong with this process and its children as what they should be, from what they wrote at their ends."""
        if self.bed.device != "cuda":
            return None
        found = {}
        for name in os.listdir(self.witness_folder):
            with open(os.path.join(self.witness_folder, name)) as file:
                found[name] = json.load(file)
        mine = found.get(f"{self.pid}.json")
        if mine is None:
            return "the process did not say which driver it had"
        for said in found.values():
            if said["complaint"]:
                return said["complaint"]
        is_cuda = lambda path: os.path.basename(path).startswith("libcuda.so")
        if not any(map(is_cuda, mine["libraries"])):
            return f"the process never loaded libcuda.so.1: {mine['libraries']}"
        if self.kind == "native" and not mine["devices"]:
            return "the native process never opened the GPU"
        return None
