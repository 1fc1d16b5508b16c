"""The ways to share a GPU that bench/gpu/share.py compares, and the programs of each: one online and one offline."""

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
import time

import share_page
import workers

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "share_programs")
# A program imports a framework before it is ready, and many start at the same time.
STARTS_WITHIN_SECONDS = 180
ANSWERS_WITHIN_SECONDS = 90
# A worker makes the next context ahead when a session begins, which other programs notice.
SETTLE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Side:
    title: str
    is_native: bool = False
    is_mps: bool = False
    # What its worker is started with; sides with the same have the same worker.
    worker: tuple = ()
    # The class of a program, by role.
    classes: dict = dataclasses.field(default_factory=dict)
    # Variables of a program's environment, by role.
    variables: dict = dataclasses.field(default_factory=dict)

    @property
    def is_merged(self):
        return self.worker == MERGED

    @property
    def plane(self):
        """Which programs alone its rows are compared with."""
        return "native" if self.is_native else "slices"


GATE = {"online": "online", "offline": "offline"}
# The best that can be set up without dxpu: the offline program has 30 % of the threads, the online one comes first.
MPS30 = {
    "online": {"CUDA_MPS_CLIENT_PRIORITY": "0"},
    "offline": {"CUDA_MPS_CLIENT_PRIORITY": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"},
}
# The worker also keeps images of the online program, which survives faults of the offline one. Faults are made in a row here, and no
# offline program waits for the one before.
MERGED = ("--merged", "--fault-wait-max", "0s")
SIDES = {
    "slices": Side("both dedicated: time slices"),
    "gate": Side("gate", classes=GATE),
    "native": Side("native: time slices", is_native=True),
    "mps": Side("MPS, native", is_native=True, is_mps=True),
    "mps30": Side("MPS, native, 30 % of threads and priority", is_native=True, is_mps=True, variables=MPS30),
    # What a box gives its workers.
    "isolated": Side("gate, slices of 100 us for long kernels", worker=("--offline-slice", "100us"), classes=GATE),
    "merged": Side("gate, merged contexts", worker=MERGED, classes=GATE),
} | {
    f"slice{us}": Side(f"gate, slices of {us} us", worker=("--offline-slice", f"{us}us"), classes=GATE) for us in (1, 100, 300)
}


class Program:
    """A program that does what it is told. `order` begins, `answer` waits for the end."""

    def __init__(self, name, command, environment):
        # What it has written to its error output is kept when it is stopped.
        self.name, self.prepared, self.is_ready, self._said = name, set(), False, None
        self._errors = tempfile.TemporaryFile()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def await_ready(self):
        if not self.is_ready:
            self.answer(STARTS_WITHIN_SECONDS)
            self.is_ready = True

    def order(self, **order):
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"the {self.name} program does not listen: {error}: {self.last_error()}") from error

    def has_answer(self, seconds=0):
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def answer(self, seconds=ANSWERS_WITHIN_SECONDS):
        if not self.has_answer(seconds):
            raise RuntimeError(f"the {self.name} program has not answered for {seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.name} program ended with {self.process.wait(10)}: {self.last_error()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the {self.name} program: {answer['error']}")
        return answer

    def last_error(self):
        """The last line it wrote to its error output."""
        return (self.errors().strip().splitlines() or ["it wrote no error"])[-1]

    def errors(self):
        """What it and its driver wrote to its error output."""
        if self._said is not None:
            return self._said
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def do(self, seconds=0, **order):
        """`seconds`: how long the order itself takes, if it says so."""
        self.order(**order, **({"seconds": seconds} if seconds else {}))
        return self.answer(ANSWERS_WITHIN_SECONDS + 2 * seconds)

    def begin_prepare(self, kind, name):
        """Whether `end_prepare` has something to wait for."""
        is_new = (kind, name) not in self.prepared
        if is_new:
            self.order(do="prepare", **{kind: name})
        return is_new

    def end_prepare(self, kind, name):
        """Whether that was its first work on the GPU."""
        self.answer(STARTS_WITHIN_SECONDS)
        self.prepared.add((kind, name))
        return len(self.prepared) == 1

    def end(self):
        """It ends when its input does."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def stop(self):
        self.end()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        if self._said is None:
            self._said = self.errors()
            self._errors.close()

    def kill(self):
        self.process.kill()
        self.stop()


class Programs:
    """The programs of all sides. Each is started when it is first asked for, and again after its side failed."""

    def __init__(self, options, start_worker, mps):
        self.options, self.mps, self._neighbours, self._ended_neighbours = options, mps, [], []
        # Workers and their pages by the workers' options, and a function that starts one.
        self._start_worker, self._workers, self._pages = start_worker, {}, {}
        self.running, self._started = {}, []
        # Which programs are started with --survive, by side and role.
        self.survivors = set()

    def worker_of(self, side):
        words = SIDES[side].worker
        if words not in self._workers:
            guarded = ("--guard-memory", self.options.guard_memory) if words == MERGED else ()
            self._workers[words] = self._start_worker(*words, *guarded, *self._on_page(side))
        return self._workers[words]

    def neighbour(self, side):
        """A further worker with the page of a side's worker, as the worker of a seat has."""
        worker = self._start_worker(*SIDES[side].worker, *self._on_page(side))
        self._neighbours.append(worker)
        return worker

    def stop_neighbours(self):
        for worker in self._neighbours:
            worker.stop()
        self._ended_neighbours += self._neighbours
        self._neighbours = []

    def page_of(self, side):
        """The page of its worker and that worker's neighbours; `None` for a side without classes."""
        return self._pages.get(SIDES[side].worker) if SIDES[side].classes else None

    def _on_page(self, side):
        words = SIDES[side].worker
        if words not in self._pages:
            self._pages[words] = share_page.Page()
        return "--page", self._pages[words].path

    def survive(self, side, role):
        """The program of a role is started anew, so that it goes on when its session is lost."""
        if program := self.running.pop((side, role), None):
            program.stop()
        self.survivors.add((side, role))

    def options_of(self, side, role):
        """Of `dxpu run`, for a program of this role."""
        given = SIDES[side].classes.get(role)
        options = ("--class", given) if given else ()
        return (*options, "--survive") if (side, role) in self.survivors else options

    def start(self, side, role):
        if (side, role) in self.running:
            return
        about = SIDES[side]
        command = [sys.executable, os.path.join(PROGRAMS, self.options.programs + ".py"), role]
        if about.is_native:
            environment = workers.plain_environment() | about.variables.get(role, {})
            if about.is_mps:
                environment |= self.mps.environment()
        else:
            worker = self.worker_of(side)
            command = worker.client(self.options.scheme, *command, options=self.options_of(side, role))
            environment = worker.environment
        self.running[side, role] = Program(f"{side} {role}", command, environment)
        self._started.append(self.running[side, role])

    def start_all(self, sides):
        """Imports of a framework take seconds: all programs do that at the same time, and before anything is measured. One that
        cannot start is told by its rows."""
        for side in sides:
            for role in ("online", "offline"):
                with contextlib.suppress(RuntimeError, OSError, subprocess.SubprocessError, workers.WorkerFailed):
                    self.start(side, role)
        for side, role in list(self.running):
            try:
                # The other program of its side may have failed, and both were dropped.
                if (side, role) in self.running:
                    self.running[side, role].await_ready()
            except RuntimeError:
                self.drop(side)

    def get(self, side, role):
        self.start(side, role)
        program = self.running[side, role]
        program.await_ready()
        return program

    def pair(self, side, request, work):
        """Both programs of a side with their networks ready. They get ready at the same time."""
        for role in ("online", "offline"):
            self.start(side, role)
        online, offline = self.get(side, "online"), self.get(side, "offline")
        self._prepare([(online, "request", request), (offline, "work", work)])
        return online, offline

    def one(self, side, role, kind, name):
        program = self.get(side, role)
        self._prepare([(program, kind, name)])
        return program

    def _prepare(self, wanted):
        waited_for = [one for one in wanted if one[0].begin_prepare(*one[1:])]
        if any([program.end_prepare(kind, name) for program, kind, name in waited_for]):
            time.sleep(SETTLE_SECONDS)

    def logs(self):
        """What workers, programs and MPS wrote, by name."""
        found = {f"worker{''.join(words)}.log": worker.log() for words, worker in self._workers.items()}
        found |= {f"neighbour{at}.log": worker.log() for at, worker in enumerate(self._ended_neighbours + self._neighbours)}
        said = {f"{program.name.replace(' ', '-')}{at}.log": program.errors() for at, program in enumerate(self._started)}
        return found | {name: text for name, text in said.items() if text} | self.mps.logs()

    def drop(self, side):
        """After a failure: what the programs of a side are doing is not known."""
        for role in ("online", "offline"):
            if program := self.running.pop((side, role), None):
                program.kill()

    def stop(self):
        for program in self.running.values():
            program.end()
        for program in self.running.values():
            program.stop()
        self.running = {}
        self.stop_neighbours()
        for worker in self._workers.values():
            worker.stop()
        for page in self._pages.values():
            page.remove()
        self._pages = {}
        if killed := self.mps.stop():
            print(f"MPS did not end by itself; killed: {killed}", flush=True)
