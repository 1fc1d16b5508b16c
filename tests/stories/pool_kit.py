"""A manager with its files in a directory of its own, and `dxpu` as its admin uses it."""
import contextlib
import json
import os
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request

import kit


class Manager:
    def __init__(self):
        self.directory = tempfile.mkdtemp(dir=kit.scratch)
        self.port = kit.free_port()
        self.address = f"https://127.0.0.1:{self.port}"
        self.environment = kit.clean_environment()
        self.environment["XDG_CONFIG_HOME"] = os.path.join(self.directory, "config")
        self.environment["XDG_STATE_HOME"] = os.path.join(self.directory, "state")
        self.environment["XDG_CACHE_HOME"] = os.path.join(kit.scratch, "cache")
        self.admin = os.path.join(self.directory, "manager", "admin.json")
        self.environment["DXPU_CREDENTIAL"] = self.admin
        self.boxes = []
        self.start_manager()

    def start_manager(self):
        self.manager = self._start("manager", "--listen", f"127.0.0.1:{self.port}", "--name", "m1", "--state-dir", os.path.dirname(self.admin))
        kit.until(self.logs, lambda: self.manager.poll() is not None or self.is_leading(), 30)
        kit.hold(self.manager.poll() is None, self.logs())

    def is_leading(self):
        if not os.path.exists(self.admin):
            return False
        with contextlib.suppress(OSError):
            return self.fetch("/readyz")[0] == 200
        return False

    def stop_manager(self):
        self.manager.send_signal(signal.SIGINT)
        self.manager.wait(20)

    def _start(self, *arguments):
        with open(os.path.join(self.directory, f"{arguments[0]}.log"), "ab") as log:
            return subprocess.Popen([kit.dxpu, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def logs(self):
        told = []
        for name in sorted(os.listdir(self.directory)):
            if name.endswith(".log"):
                with open(os.path.join(self.directory, name), errors="replace") as file:
                    told.append(f"{name}: {file.read()[-2000:]}")
        return "\n".join(told)

    def simulate(self, boxes):
        """Boxes that only pretend."""
        for box in boxes:
            box["join"] = self.credential(f"box/{box['name']}")
        plan = os.path.join(self.directory, "plan.json")
        with open(plan, "w") as file:
            json.dump({"boxes": boxes}, file)
        self.boxes.append(self._start("box", "--simulate", plan, "--state-dir", os.path.join(self.directory, "boxes")))

    def wait_for_gpus(self, count):
        free = lambda: [gpu for gpu in self.json("gpu", "ls") if gpu["state"] == "free" and not gpu.get("unready")]
        kit.until(self.logs, lambda: len(free()) == count, 60)

    def credential(self, identity):
        path = os.path.join(self.directory, identity.replace("/", "-") + ".json")
        self.must("token", "create", identity, "--out", path)
        return path

    def run(self, *arguments, credential=None, seconds=60):
        environment = self.environment | ({"DXPU_CREDENTIAL": credential} if credential else {})
        return subprocess.run([kit.dxpu, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)

    def must(self, *arguments, **options):
        result = self.run(*arguments, **options)
        kit.hold(result.returncode == 0, "dxpu", *arguments, "ended with", result.returncode, result.stderr, self.logs())
        return result.stdout

    def json(self, *arguments, **options):
        return json.loads(self.must(*arguments, "-o", "json", **options))

    def fetch(self, path):
        """As a stranger: status, headers, text."""
        around = ssl.create_default_context(cadata=self.authority())
        try:
            with urllib.request.urlopen(self.address + path, context=around, timeout=10) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def authority(self):
        with open(self.admin) as file:
            return json.load(file)["authority"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [*self.boxes, self.manager]:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in [*self.boxes, self.manager]:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
