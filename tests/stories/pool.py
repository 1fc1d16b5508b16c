"""A pool of soft boxes on loopback: a manager, boxes with their agents, and borrowers, all real processes."""
import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import tempfile
import time

import kit

# Short, so that a story about silence takes no minutes; long against what two loaded cores may hold up.
TTL = "6s"
MANAGER_TIMES = ["--report-every", "500ms", "--suspect-after", "3s", "--dead-after", "8s"]


class Pool:
    """A manager with an admin's and a borrower's credential."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(dir=kit.scratch, prefix="pool-")
        self.environment = kit.clean_environment() | {
            "XDG_STATE_HOME": self.file("state"),
            "XDG_CONFIG_HOME": self.file("config"),
            "XDG_CACHE_HOME": os.path.join(kit.scratch, "cache"),
        }
        self.boxes = []
        with open(self.file("manager.said"), "wb") as said, open(self.file("manager.log"), "wb") as log:
            self.manager = subprocess.Popen(
                [kit.dxpu, "manager", "--listen", "127.0.0.1:0", "--state-dir", self.file("manager"), *MANAGER_TIMES],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=log,
            )
        self.admin = self.file("manager/admin.json")
        kit.until(lambda: f"the manager listens: {self.read('manager.log')}", lambda: "listening at" in self.read("manager.said"), 60)
        kit.until("the first admin has a credential", lambda: os.path.exists(self.admin), 60)
        self.borrower = self.file("borrower.json")
        kit.until(lambda: f"a borrower is let in: {self.last}", lambda: self.token("tenant/stories/ada", self.borrower), 60)

    def file(self, name):
        return os.path.join(self.directory, name)

    def read(self, name):
        try:
            with open(self.file(name), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for box in self.boxes:
            box.end()
        if self.manager.poll() is None:
            self.manager.kill()
        self.manager.wait()

    def ask(self, *words, credential=None, seconds=60):
        """Runs a `dxpu` command as the admin."""
        environment = self.environment | {"DXPU_CREDENTIAL": credential or self.admin}
        self.last = kit.run_plainly([kit.dxpu, *words], environment, seconds)
        return self.last

    def token(self, identity, path):
        return self.ask("token", "create", identity, "--out", path).returncode == 0

    def json(self, *words):
        result = self.ask(*words, "-o", "json")
        kit.hold(result.returncode == 0, *words, "failed:", result.stdout, result.stderr)
        return json.loads(result.stdout)

    def gpus(self):
        return {gpu["id"]: gpu for gpu in self.json("gpu", "ls")}

    def leases(self):
        return {lease["id"]: lease for lease in self.json("lease", "ls")}

    def live_leases(self):
        return [lease for lease in self.leases().values() if lease["state"] in ("pending", "granted")]

    def all_free(self, seconds=40):
        """Waits until every GPU is free and no lease lives."""
        def state():
            return {name: gpu["state"] for name, gpu in self.gpus().items()}
        kit.until(lambda: f"GPUs come back: {state()} {self.live_leases()}\n{self.logs()}",
                  lambda: set(state().values()) == {"free"} and not self.live_leases(), seconds)

    def logs(self):
        return "\n".join(f"{box.name}: {line}" for box in self.boxes for line in box.log().splitlines()[-12:])

    def box(self, name, *options):
        box = Box(self, name, options)
        self.boxes.append(box)
        return box

    def command(self, words, gpus=1, options=()):
        return [kit.dxpu, "run", "--gpus", str(gpus), "--ttl", TTL, *options, "--", *map(str, words)]

    def borrow(self, *words, gpus=1, options=()):
        """Starts a program on borrowed GPUs."""
        return kit.Client(self.command(words, gpus, options), self.environment | {"DXPU_CREDENTIAL": self.borrower})

    def must(self, *words, gpus=1, options=(), code=0):
        with self.borrow(*words, gpus=gpus, options=options) as client:
            client.ends(code)
            return client.said()


class Box:
    """A `dxpu box` with soft GPUs, and the workers that outlive it."""

    def __init__(self, pool, name, options):
        self.pool, self.name, self.options = pool, name, options
        self.state = pool.file(name)
        os.makedirs(self.state, mode=0o700)
        self.invitation = pool.file(f"{name}.json")
        kit.hold(pool.token(f"box/{name}", self.invitation), "no invitation:", pool.last.stderr)
        self.start()

    def start(self):
        with open(self.file("agent.log"), "ab") as log:
            self.process = subprocess.Popen(
                [kit.dxpu, "box", "--join-token-file", self.invitation, "--name", self.name, "--state-dir", self.state,
                 "--listen", "127.0.0.1", *self.options],
                env=self.pool.environment | {"DXPU_LOG": "debug"}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )

    def file(self, name):
        return os.path.join(self.state, name)

    def log(self):
        with open(self.file("agent.log"), errors="replace") as file:
            return file.read()

    def worker(self, slot=0):
        """The process that serves a slot, if one does."""
        with contextlib.suppress(OSError, ValueError):
            with open(self.file(f"slot-{slot}/worker.json")) as file:
                pid = json.load(file)["pid"]
            if kit.alive(pid):
                return pid
        return None

    def workers(self):
        slots = [int(path.rpartition("-")[2]) for path in glob.glob(self.file("slot-*"))]
        return [pid for pid in map(self.worker, slots) if pid]

    def epochs(self, slot=0):
        """Bound and cleaned, as the fence file says."""
        records = []
        with contextlib.suppress(FileNotFoundError):
            with open(self.file(f"slot-{slot}/fence")) as file:
                for line in file.read().splitlines():
                    words = line.split()
                    if len(words) == 6:
                        records.append(tuple(int(word, 16) for word in words[2:5]))
        return max(records)[1:] if records else (0, 0)

    def sessions(self):
        """What every worker of this box has ever let in, as (time, slot, lease)."""
        found = []
        for path in glob.glob(self.file("slot-*/worker.log*")):
            slot = int(re.search(r"slot-(\d+)", path)[1])
            with open(path, errors="replace") as file:
                for line in file:
                    if match := re.search(r"^(\S+).*session began.*lease (l-[0-9a-f]{16})", re.sub(r"\x1b\[[0-9;]*m", "", line)):
                        found.append((match[1], slot, match[2]))
        return sorted(found)

    def kill_agent(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Everything, the hard way."""
        workers = self.workers()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for pid in workers + self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(map(kit.alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.02)
