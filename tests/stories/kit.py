"""What the stories share: workers, client programs, waiting, and the record of what was right and wrong."""
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
LOOKS = "dxpu run (looks"
# Nothing here may take longer; a story that meets this has found a hang.
HANG_SECONDS = 90

dxpu = ""
scratch = ""


class Wrong(Exception):
    """What a story found that should not be."""


def hold(condition, *what):
    if not condition:
        raise Wrong(" ".join(str(part) for part in what))


def until(what, holds, seconds=15.0):
    """Waits until `holds()` is true; how long it took."""
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > seconds:
            raise Wrong(f"after {seconds} s still not: {what() if callable(what) else what}")
        time.sleep(0.01)
    return time.monotonic() - start


def steady(what, value, seconds=15.0):
    """Waits until `value()` is something and stays so for a moment; what it is."""
    seen = []

    def is_steady():
        seen.append(value())
        return len(seen) >= 20 and seen[-1] is not None and len(set(seen[-20:])) == 1

    until(what, is_steady, seconds)
    return seen[-1]


class Record:
    """Counts parts of stories and says how each went."""

    def __init__(self):
        self.passed = 0
        self.failed = 0
        self._lock = threading.Lock()

    def part(self, name, body, *arguments):
        """Runs one part of a story; a failure is printed and the others go on."""
        start = time.monotonic()
        error = None
        try:
            note = body(*arguments) or ""
        except Wrong as wrong:
            error = str(wrong)
        except Exception:
            error = traceback.format_exc()
        seconds = time.monotonic() - start
        with self._lock:
            if error is None:
                self.passed += 1
                print(f"  ok     {name} ({seconds:.1f} s) {note}".rstrip(), flush=True)
            else:
                self.failed += 1
                said = error.splitlines()
                # The first line says what was waited for; the last ones say what was there instead.
                said = said if len(said) <= 41 else [said[0], "…", *said[-39:]]
                lines = "\n".join("         " + line for line in said)
                print(f"  FAILED {name} ({seconds:.1f} s)\n{lines}", flush=True)


def main(stories):
    global dxpu, scratch
    if len(sys.argv) != 2 or not os.access(sys.argv[1], os.X_OK):
        print("usage: tests/stories/run PATH_TO_DXPU", file=sys.stderr)
        return 2
    dxpu = os.path.abspath(sys.argv[1])
    # A shell that starts us in the background has us ignore it, and our programs with us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [name for name in os.environ.get("STORIES", "").split(",") if name] or list(stories)
    if unknown := [name for name in chosen if name not in stories]:
        print(f"no such story: {', '.join(unknown)}; there are {', '.join(stories)}", file=sys.stderr)
        return 2
    record = Record()
    with tempfile.TemporaryDirectory(prefix="dxpu-stories-", ignore_cleanup_errors=True) as scratch:
        build()
        start = time.monotonic()
        for name in chosen:
            print(f"{name}:", flush=True)
            tell(record, name, stories[name])
        seconds = time.monotonic() - start
    print(f"took {seconds:.0f} s")
    print(f"stories: {record.passed} passed, {record.failed} failed")
    return 1 if record.failed else 0


def tell(record, name, story):
    """Tells a story. What breaks it off between two parts counts as a failure, and the stories after it are still told."""
    try:
        story(record)
    except Exception:
        broken = traceback.format_exc()

        def broke_off():
            raise Wrong(broken)

        record.part(f"the story {name} broke off", broke_off)


def build():
    """Compiles the client programs."""
    sources = os.path.join(HERE, "programs")
    def compile_one(name):
        target = program(name[:-2])
        command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", target, os.path.join(sources, name), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, (name for name in os.listdir(sources) if name.endswith(".c"))))


def program(name):
    return os.path.join(scratch, name)


class Worker:
    """A `dxpu worker` with its files in a directory of its own, listening in all four ways."""

    def __init__(self, *options, log="info"):
        self.directory = tempfile.mkdtemp(dir=scratch)
        self.environment = clean_environment()
        self.environment["XDG_STATE_HOME"] = os.path.join(self.directory, "state")
        # One cache for all: the library in it is the same.
        self.environment["XDG_CACHE_HOME"] = os.path.join(scratch, "cache")
        self.sockets = [os.path.join(self.directory, name) for name in ("unix", "shm")]
        listen = ["127.0.0.1:0", "tcp:127.0.0.1:0", f"unix:{self.sockets[0]}", f"shm:{self.sockets[1]}"]
        command = [dxpu, "worker", "--driver", "soft", "--plain", *options]
        command += [word for address in listen for word in ("--listen", address)]
        with open(self._file("said"), "wb") as said, open(self._file("log"), "wb") as log_file:
            self.process = subprocess.Popen(
                command,
                env=self.environment | {"DXPU_LOG": log},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log_file,
            )
        self.pid = self.process.pid
        shown = r"--worker (\w+):(\S+)(?: --fingerprint (\w+))? --token-file (\S+) -- PROGRAM\n"
        found = lambda: re.findall(shown, self._read("said"))
        until(lambda: f"the worker listens; it wrote {self.log()}", lambda: len(found()) == 4)
        self.addresses = {scheme: f"{scheme}:{place}" for scheme, place, _, _ in found()}
        self.fingerprint = next(print for _, _, print, _ in found() if print)
        self.token_file = found()[0][3]
        # Spare sessions start after the listener: what is measured later is compared with the settled state.
        until("the worker has its spares", lambda: len(self.children()) >= SPARES)

    def _file(self, name):
        return os.path.join(self.directory, name)

    def _read(self, name):
        with open(self._file(name), errors="replace") as file:
            return file.read()

    def log(self):
        return self._read("log")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Ends the worker in the hard way, if the story has not ended it; its sessions end with it."""
        children = self.children()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in children:
            with contextlib.suppress(Wrong):
                until("a session ends with its worker", lambda: not alive(pid), 3)
            if alive(pid):
                os.kill(pid, signal.SIGKILL)

    def children(self):
        """Session processes, the spare ones included."""
        found = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{self.pid}/task"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    with open(f"/proc/{self.pid}/task/{task}/children") as children:
                        found += [int(pid) for pid in children.read().split()]
        return found

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_bytes(self):
        with open(f"/proc/{self.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def session_of(self, client_pid):
        """The process that serves this client, from the worker's log. The worker may write it down a moment later."""
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            for line in self.log().splitlines():
                if f"(process {client_pid})" in line and "session began" in line and LOOKS not in line:
                    return int(re.search(r" pid=(\d+)", line)[1])
            time.sleep(0.01)
        return None

    def command(self, arguments, scheme="unix", options=()):
        """The command line of `dxpu run` for a program, over one of the transports."""
        words = [dxpu, "run", "--worker", self.addresses[scheme], "--token-file", self.token_file]
        if scheme == "tls":
            words += ["--fingerprint", self.fingerprint]
        return words + list(options) + ["--"] + [str(word) for word in arguments]

    def run(self, *arguments, scheme="unix", options=(), seconds=HANG_SECONDS, **more):
        """Runs a program to its end: a CompletedProcess with text."""
        command = self.command(arguments, scheme, options)
        environment = self.environment | more.pop("environment", {})
        more = {"stdin": subprocess.DEVNULL} | more
        start = time.monotonic()
        try:
            result = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds, **more
            )
        except subprocess.TimeoutExpired as hung:
            raise Wrong(f"{' '.join(map(str, arguments))} hangs: {hung.stdout} {hung.stderr}") from None
        result.seconds = time.monotonic() - start
        return result

    def must(self, *arguments, code=0, **more):
        """Runs a program that ends with `code`; its output."""
        result = self.run(*arguments, **more)
        where = os.path.basename(str(arguments[0])) + " " + " ".join(map(str, arguments[1:]))
        hold(result.returncode == code, where, "ended with", result.returncode, "not", code, "\n", result.stdout, result.stderr)
        return result.stdout

    def start(self, *arguments, scheme="unix", options=(), environment=None):
        """Starts a program whose output can be waited for."""
        return Client(self.command(arguments, scheme, options), self.environment | (environment or {}))

    def free_memory(self):
        return int(self.must(program("free_memory")))

    @contextlib.contextmanager
    def left_as_found(self, neighbours=0, seconds=20):
        """Checks that what happens inside leaves nothing behind in the worker, where `neighbours` work all the time.

        Beside neighbours, free memory moves with what is set aside for them: there, look again with `memory_is_back` when
        they are gone.
        """
        free = self.free_memory()
        # Descriptors are compared for as many sessions: both wait until the looks of clients before them are over.
        count = lambda: self.descriptors() if len(self.children()) == SPARES + neighbours else None
        before = steady("the worker comes to rest", count)
        yield
        now = lambda: f"{len(self.children())} sessions, {self.descriptors()} descriptors (before: {before})"
        until(now, lambda: count() == before, seconds)
        if not neighbours:
            self.memory_is_back(free)

    def memory_is_back(self, free, seconds=20):
        """Checks that exactly as much device memory is free as there was."""
        until(lambda: f"device memory is gone: free before {free} now {self.free_memory()}", lambda: self.free_memory() == free, seconds)

    def stop(self):
        """The good end: SIGTERM, code 0, no socket left."""
        children = self.children()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            raise Wrong("the worker does not end after SIGTERM") from None
        hold(code == 0, "after SIGTERM the worker ended with", code)
        left = [path for path in self.sockets if os.path.exists(path)]
        hold(not left, "sockets are left:", left)
        until("session processes end with the worker", lambda: not any(map(alive, children)), 3)


# Session processes that a worker keeps ready.
SPARES = 2


class Client:
    """A program under `dxpu run` that is still running. `dxpu run` becomes the program, so the process is the program's."""

    def __init__(self, command, environment):
        self.out, self.err = (tempfile.TemporaryFile(dir=scratch) for _ in range(2))
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err
        )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.out.close()
        self.err.close()

    def said(self):
        return "\n".join(
            os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
            for file in (self.out, self.err)
        )

    def wait_for(self, text, seconds=HANG_SECONDS):
        until(
            lambda: f"the program says {text!r}; it said {self.said()}",
            lambda: text in self.said() or self.process.poll() is not None,
            seconds,
        )
        hold(text in self.said(), "the program ended with", self.process.returncode, "and said", self.said())

    def ends(self, code, seconds=HANG_SECONDS):
        """Waits for its end; how long that took."""
        start = time.monotonic()
        try:
            found = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Wrong(f"the program does not end within {seconds} s: {self.said()}\n{stacks(self.pid)}") from None
        hold(found == code, "the program ended with", found, "not", code, "\n", self.said())
        return time.monotonic() - start


def stacks(pid):
    """Where the threads of a hanging process are, as far as the system tells."""
    lines = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/comm") as comm, open(f"/proc/{pid}/task/{task}/wchan") as wchan:
                lines.append(f"{comm.read().strip()}: {wchan.read().strip()}")
    return "\n".join(lines)


def alive(pid):
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(("DXPU_", "XDG_", "CUDA_"))}


def each(count, body, at_once):
    """Calls body(n) for n below `count`, a few at a time; the first failure is the caller's."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(body, range(count)))


SCHEMES = ("unix", "tcp", "tls", "shm")
_ports = set()


def free_port():
    """A port that nobody uses, and that the system gives to nobody who only wants to connect: so it is still free when
    whoever listened there was killed and comes back."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as place:
            try:
                place.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _ports:
            _ports.add(port)
            return port


def run_plainly(command, environment, seconds=60):
    """Runs a command line to its end."""
    try:
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as hung:
        raise Wrong(f"{' '.join(command)} hangs: {hung.stdout} {hung.stderr}") from None
