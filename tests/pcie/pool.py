"""A pool with PCIe proxies, all real processes: a manager, boxes with devices, a host whose slots a guest has."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

DXPU = os.environ["DXPU_BIN"]
TIMES = ["--report-every", "500ms", "--suspect-after", "3s", "--dead-after", "8s"]


def until(what, condition, seconds=60):
    """Polls until `condition` gives something true, and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what() if callable(what) else what}")
        time.sleep(0.1)


class Pool:
    """A manager, and whoever was started beside it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DXPU_")},
            "XDG_STATE_HOME": str(self.folder / "state"), "XDG_CONFIG_HOME": str(self.folder / "config"),
            "DXPU_LOG": "info",
        }
        self.processes = {}
        self.start("manager", "manager", "--listen", "127.0.0.1:0", "--state-dir", self.folder / "manager", *TIMES)
        self.admin = self.folder / "manager" / "admin.json"
        until(lambda: f"the manager listens: {self.log('manager')}", lambda: "listening at" in self.log("manager") and self.admin.exists())

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            for name in self.processes:
                print(f"--- {name}\n" + "\n".join(self.log(name).splitlines()[-25:]))
        for name in list(self.processes):
            self.kill(name)
        # Workers outlive their box's agent on purpose.
        subprocess.run(["pkill", "-9", "-f", f"worker --by-lease {self.folder}"], check=False)

    def start(self, name, *words):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [DXPU, *map(str, words)], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def pause(self, name, seconds):
        """Stops a process now, and lets it go on after so many seconds."""
        process = self.processes[name]
        process.send_signal(signal.SIGSTOP)
        timer = threading.Timer(seconds, lambda: process.send_signal(signal.SIGCONT))
        timer.start()
        return timer

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ask(self, *words, check=True, seconds=60):
        """Runs a `dxpu` command as the admin; gives what it prints."""
        environment = self.environment | {"DXPU_CREDENTIAL": str(self.admin)}
        done = subprocess.run([DXPU, *map(str, words)], env=environment, capture_output=True, text=True, timeout=seconds, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{words} failed: {done.stdout} {done.stderr}")
        return done.stdout

    def json(self, *words):
        return json.loads(self.ask(*words, "-o", "json"))

    def invite(self, kind, name):
        path = self.folder / f"{name}.json"
        if not path.exists():
            self.ask("token", "create", f"{kind}/{name}", "--out", path)
        return path

    def box(self, name, *options):
        """Starts the agent of a box, or starts it again."""
        token = self.invite("box", name)
        self.start(name, "box", "--join-token-file", token, "--name", name, "--state-dir", self.folder / name,
                   "--listen", "127.0.0.1", "--fabric", "127.0.0.1:0", *options)

    def host(self, name, *options):
        token = self.invite("host", name)
        self.start(name, "host", "--join-token-file", token, "--name", name, "--state-dir", self.folder / name,
                   "--sockets", self.folder / "s", *options)
        until(lambda: f"{name} is there: {self.log(name)}", lambda: any(host["name"] == name for host in self.json("host", "ls")))

    def gpus(self):
        return {gpu["id"]: gpu for gpu in self.json("gpu", "ls")}

    def free(self, gpu, seconds=60):
        until(lambda: f"{gpu} is free: {self.gpus()} {self.json('lease', 'ls')}",
              lambda: self.gpus().get(gpu, {}).get("state") == "free" and not self.gpus()[gpu].get("unready"), seconds)

    def leases(self):
        return {lease["id"]: lease for lease in self.json("lease", "ls")}
