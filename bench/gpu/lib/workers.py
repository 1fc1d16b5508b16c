"""Workers for measurements and checks: start one, say how a client reaches it, end it."""

import os
import re
import signal
import subprocess
import tempfile
import time

SCHEMES = ("tcp", "tls", "unix", "shm")
# What a worker prints for each address it listens at.
SHOWN = re.compile(r"--worker (\w+):(\S+)(?: --fingerprint (\w+))? --token-file (\S+) -- PROGRAM\n")
# A worker on a real GPU makes contexts ahead before it is of use; it listens before that.
LISTENS_WITHIN_SECONDS = 60


class WorkerFailed(Exception):
    """A worker did not start, or ended by itself."""


def plain_environment():
    """This process's environment without anything that would make a native process a remote one."""
    return {name: value for name, value in os.environ.items() if name == "DXPU_LOG" or not name.startswith("DXPU_")}


class Place:
    """A folder for everything that workers and clients write, and the cache into which dxpu puts its libraries."""

    def __init__(self):
        # Below the system's temporary folder: socket addresses have room for about a hundred characters.
        self._folder = tempfile.TemporaryDirectory(prefix="dxpu-gpu-", ignore_cleanup_errors=True)
        self.folder = self._folder.name
        self.cache = self.make("cache")
        # Where `dxpu run` puts libcuda.so.1.
        self.libraries = os.path.join(self.cache, "dxpu")

    def make(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        return path

    def close(self):
        self._folder.cleanup()


class Worker:
    """A `dxpu worker` that listens in all four ways, with its identity, token and log in a folder of its own. `variables` are in its
    environment alone, not in that of its clients."""

    def __init__(self, dxpu, place, driver="nvidia", options=(), schemes=SCHEMES, variables=None):
        self.dxpu = os.path.abspath(dxpu)
        self.place = place
        self.folder = tempfile.mkdtemp(prefix="w", dir=place.folder)
        self.environment = plain_environment() | {
            "XDG_STATE_HOME": os.path.join(self.folder, "state"),
            "XDG_CACHE_HOME": place.cache,
        }
        listen = {"tcp": "tcp:127.0.0.1:0", "tls": "127.0.0.1:0"}
        listen |= {scheme: f"{scheme}:{self.folder}/{scheme}" for scheme in ("unix", "shm")}
        command = [self.dxpu, "worker", "--driver", driver, *options]
        command += ["--plain"] if "tcp" in schemes else []
        command += [word for scheme in schemes for word in ("--listen", listen[scheme])]
        self._said, self._log = (os.path.join(self.folder, name) for name in ("said", "log"))
        with open(self._said, "wb") as said, open(self._log, "wb") as log:
            environment = {"DXPU_LOG": "info"} | self.environment | (variables or {})
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=log)
        self.pid = self.process.pid
        self._await_addresses(schemes)

    def _await_addresses(self, schemes):
        deadline = time.monotonic() + LISTENS_WITHIN_SECONDS
        while True:
            found = SHOWN.findall(_read(self._said))
            if len(found) == len(schemes):
                break
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise WorkerFailed(f"the worker does not start: {_read(self._said)}{self.log()}".strip())
            time.sleep(0.02)
        self.addresses = {scheme: f"{scheme}:{where}" for scheme, where, _, _ in found}
        self.fingerprint = next((print for _, _, print, _ in found if print), None)
        self.token_file = found[0][3]

    def log(self):
        return _read(self._log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Ends it well, or hard when it does not end; its sessions end with it."""
        sessions = self.sessions()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + 5
        while any(map(alive, sessions)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in filter(alive, sessions):
            os.kill(pid, signal.SIGKILL)

    def sessions(self):
        """Its session processes, the spare ones included."""
        found = []
        try:
            for task in os.listdir(f"/proc/{self.pid}/task"):
                found += [int(pid) for pid in _read(f"/proc/{self.pid}/task/{task}/children").split()]
        except (FileNotFoundError, ProcessLookupError):
            pass
        return found

    def session_of(self, client_pid):
        """The process that serves this client, from the worker's log; None while there is none."""
        for line in reversed(self.log().splitlines()):
            # `dxpu run` looks whether the worker is there under the same process number before it becomes the program.
            is_it = f"(process {client_pid})" in line and "looks whether" not in line
            if is_it and "session began" in line and (pid := re.search(r" pid=(\d+)", line)):
                return int(pid[1])
        return None

    def client(self, scheme, *program, options=()):
        """The command line that runs `program` with this worker's GPU."""
        return client_of([self], scheme, *program, options=options)


def client_of(workers, scheme, *program, options=()):
    """The command line that runs `program` with the GPUs of several workers, in their order."""
    addresses = ",".join(worker.addresses[scheme] for worker in workers)
    # Workers that are used together share a token and, over TLS, an identity: `dxpu run` takes one of each.
    words = [workers[0].dxpu, "run", "--worker", addresses, "--token-file", workers[0].token_file, *options]
    if scheme == "tls":
        words += ["--fingerprint", workers[0].fingerprint]
    return [*words, "--", *map(str, program)]


def alive(pid):
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False


def _read(path):
    with open(path, errors="replace") as file:
        return file.read()
