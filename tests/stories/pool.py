"""A pool of soft boxes on loopback: a manager, boxes with their agents, and borrowers, all real processes."""
import contextlib
import glob
import json
import os
import re
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request

import kit

# Short, so that a story about silence takes no minutes; long against what two loaded cores may hold up.
TTL = "6s"
MANAGER_TIMES = ["--report-every", "500ms", "--suspect-after", "3s", "--dead-after", "8s"]


class Pool:
    """Managers on one store, with an admin's and a borrower's credential."""

    def __init__(self, managers=1, store=None):
        self.directory = tempfile.mkdtemp(dir=kit.scratch, prefix="pool-")
        self.environment = kit.clean_environment() | {
            "XDG_STATE_HOME": self.file("state"),
            "XDG_CONFIG_HOME": self.file("config"),
            "XDG_CACHE_HOME": os.path.join(kit.scratch, "cache"),
        }
        self.boxes, self.others = [], []
        self.managers = [Manager(self, number, store) for number in range(managers)]
        self.environment["DXPU_MANAGER"] = ",".join(manager.address for manager in self.managers)
        # The first one makes the authority and the first admin.
        self.managers[0].start()
        self.admin = self.file("manager-0/admin.json")
        kit.until("the first admin has a credential", lambda: os.path.exists(self.admin), 60)
        for manager in self.managers[1:]:
            manager.start()
        self.borrower = self.file("borrower.json")
        kit.until(lambda: f"a borrower is let in: {self.last}", lambda: self.token("tenant/stories/ada", self.borrower), 60)

    @property
    def manager(self):
        """The process of the only manager."""
        return self.managers[0].process

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
        for process in self.others:
            process.kill()
            process.wait()
        for manager in self.managers:
            manager.end()

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
            return {name: gpu.get("unready") or gpu["state"] for name, gpu in self.gpus().items()}
        kit.until(lambda: f"GPUs come back: {state()} {self.live_leases()}\n{self.logs()}",
                  lambda: set(state().values()) == {"free"} and not self.live_leases(), seconds)

    def logs(self):
        return "\n".join(f"{part.name}: {line}" for part in self.boxes + self.managers for line in part.log().splitlines()[-12:])

    def box(self, name, *options):
        box = Box(self, name, options)
        self.boxes.append(box)
        return box

    def simulated_box(self, name, model, count):
        """A box that only pretends to have GPUs; its process."""
        invitation, plan = self.file(f"{name}.json"), self.file(f"{name}-plan.json")
        kit.hold(self.token(f"box/{name}", invitation), "no invitation:", self.last.stderr)
        gpus = [{"model": model, "memory": "80GiB", "count": count}]
        with open(plan, "w") as file:
            json.dump({"boxes": [{"name": name, "kind": "pcie", "join": invitation, "gpus": gpus}]}, file)
        with open(self.file(f"{name}.log"), "ab") as log:
            process = subprocess.Popen([kit.dxpu, "box", "--simulate", plan, "--state-dir", self.file(f"{name}-state")],
                                       env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.others.append(process)
        return process

    def command(self, words, gpus=1, options=()):
        return [kit.dxpu, "run", "--gpus", str(gpus), "--ttl", TTL, *options, "--", *map(str, words)]

    def borrow(self, *words, gpus=1, options=()):
        """Starts a program on borrowed GPUs."""
        return kit.Client(self.command(words, gpus, options), self.environment | {"DXPU_CREDENTIAL": self.borrower})

    def must(self, *words, gpus=1, options=(), code=0):
        with self.borrow(*words, gpus=gpus, options=options) as client:
            client.ends(code)
            return client.said()


def plain(line):
    """A line of a log without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


class Manager:
    """A `dxpu manager` that can be started again at the same address."""

    def __init__(self, pool, number, store):
        self.pool, self.name = pool, f"m{number}"
        self.state = pool.file(f"manager-{number}")
        self.port = kit.free_port()
        self.address = f"https://127.0.0.1:{self.port}"
        self.options = ["--store", store] if store else []
        self.process = None

    def start(self):
        with open(self.pool.file(f"{self.name}.log"), "ab") as log:
            before = self.log().count("listening at")
            self.process = subprocess.Popen(
                [kit.dxpu, "manager", "--name", self.name, "--listen", f"127.0.0.1:{self.port}", "--state-dir", self.state,
                 *self.options, *MANAGER_TIMES],
                env=self.pool.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        kit.until(lambda: f"the manager listens: {self.log()[-2000:]}", lambda: self.log().count("listening at") > before, 60)

    def log(self):
        return self.pool.read(f"{self.name}.log")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def leads(self):
        """Whether it leads, as it says itself."""
        with open(self.pool.admin) as file:
            around = ssl.create_default_context(cadata=json.load(file)["authority"])
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(self.address + "/readyz", context=around, timeout=2) as answer:
                return json.loads(answer.read())["standing"] == "leading"
        return False

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        if self.process:
            self.process.wait()


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

    def happened(self):
        """What the logs tell of the slots, in order: (time, slot, "began" or "ended", session, lease), (time, slot, "started")."""
        found = []
        for path in glob.glob(self.file("slot-*/worker.log*")):
            slot = int(re.search(r"slot-(\d+)", path)[1])
            with open(path, errors="replace") as file:
                for line in map(plain, file):
                    if match := re.search(r"^(\S+).*session began pid=(\d+).*lease (l-[0-9a-f]{16})", line):
                        found.append((match[1], slot, "began", int(match[2]), match[3]))
                    elif match := re.search(r"^(\S+).*session ended pid=(\d+)", line):
                        found.append((match[1], slot, "ended", int(match[2]), None))
        for line in map(plain, self.log().splitlines()):
            if match := re.search(r"^(\S+).*worker started slot=(\d+)", line):
                found.append((match[1], int(match[2]), "started", 0, None))
        return sorted(found, key=lambda what: what[:3])

    def sessions(self):
        """What every worker of this box has ever let in, as (time, slot, lease)."""
        return [(at, slot, lease) for at, slot, what, _, lease in self.happened() if what == "began"]

    def overlaps(self):
        """Leases that were in a slot at the same time. A worker is started when all that was there before is gone."""
        inside, found = {}, []
        for at, slot, what, session, lease in self.happened():
            here = inside.setdefault(slot, {})
            if what == "started":
                here.clear()
            elif what == "ended":
                here.pop(session, None)
            else:
                found += [(at, slot, lease, other) for other in here.values() if other != lease]
                here[session] = lease
        return found

    def kill_agent(self):
        self.process.kill()
        self.process.wait()

    def guardian(self):
        """The process that keeps the images of this box, if there is one. It outlives the agent."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                if words[1:2] == [b"guardian"] and self.file("guardian").encode() in words:
                    return int(pid)
        return None

    def end(self):
        """Everything, the hard way."""
        workers = self.workers()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        guardian = self.guardian()
        for pid in workers + self.workers() + [guardian] * bool(guardian):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(map(kit.alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.02)
