"""The two sides: functions of dxpu on a pool of this machine, and processes that use the GPU themselves."""

import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

from lambda_client import Client

HERE = pathlib.Path(__file__).resolve().parent
WORKLOADS = HERE / "workloads"

# GPU memory that each declares in MiB, as DGSF's do, and what a process may use of this machine's memory.
DECLARED = {"kmeans": 350, "ct3d": 12_000, "face_detection": 12_000, "face_identification": 4_000, "bert": 5_000, "resnet": 7_000}
HOST_MB = 10_240
# What costs are told apart with: no library, and weights of 2 GiB.
OTHERS = {"start": 350, "weights": 2_500}
# A GPU in software takes its memory from this machine only when it is used.
SOFT_MEMORY = "48GiB"


# Where this interpreter finds its packages: instances have another home and a clean environment.
PACKAGES = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]


def module_of(settings, name):
    """The module of a workload. On a GPU in software, which runs PTX alone, one stands in for all."""
    return "driver" if settings["soft"] or name not in DECLARED else name


def python_path(*first):
    return os.pathsep.join([*map(str, first), *PACKAGES])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def keep(folder, logs):
    """Adds logs to those of the same name."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in logs:
        with open(log, "rb") as source, open(folder / log.name, "ab") as out:
            shutil.copyfileobj(source, out)


def wait_until(what, holds, seconds):
    end = time.time() + seconds
    while not holds():
        if time.time() > end:
            raise RuntimeError(f"after {seconds} s still not: {what}")
        time.sleep(0.1)


class Native:
    """A process for each request, with the GPU to itself: `gpus` at a time, first come first served."""

    def __init__(self, settings, gpus=1):
        self.settings = settings
        self.turns = FirstComeFirstServed(gpus)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def cool(self, _):
        """Each request has a process of its own."""

    def invoke(self, name, **event):
        with self.turns:
            environment = {**os.environ, "PYTHONPATH": python_path(WORKLOADS), "BENCH_WEIGHTS": self.settings["weights"]}
            environment |= {"BENCH_STARTED": repr(time.time()), "BENCH_WORKLOAD": name}
            if self.settings["soft"]:
                environment["BENCH_DEVICE"] = "cpu"
            event, module = {"tiny": self.settings["tiny"], **event}, module_of(self.settings, name)
            code = f"import json, {module}; print(json.dumps({module}.handler({event!r})))"
            done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise RuntimeError(done.stderr[-500:])
        return json.loads(done.stdout.splitlines()[-1])


class FirstComeFirstServed:
    def __init__(self, places):
        self.lock, self.free, self.waiting = threading.Lock(), places, []

    def __enter__(self):
        turn = threading.Event()
        with self.lock:
            if self.free > 0:
                self.free -= 1
                return
            self.waiting.append(turn)
        turn.wait()

    def __exit__(self, *_):
        with self.lock:
            if self.waiting:
                self.waiting.pop(0).set()
            else:
                self.free += 1


class Pool:
    """A manager and a box with this machine's GPUs."""

    def __init__(self, settings):
        self.dxpu = settings["dxpu"]
        self.soft = ["--soft", "1", "--memory", SOFT_MEMORY] if settings["soft"] else []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dxpu-functions-bench-"))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DXPU_")}
        self.environment = {**clean, "XDG_STATE_HOME": str(self.folder / "xdg"), "XDG_CACHE_HOME": str(self.folder / "cache")}
        self.environment["DXPU_MANAGER"] = f"https://127.0.0.1:{free_port()}"
        self.processes, self.logs = [], pathlib.Path(settings["logs"])

    def __enter__(self):
        try:
            return self.up()
        except BaseException:
            self.__exit__()
            raise

    def up(self):
        state = self.folder / "manager"
        self.start("manager", "--listen", self.environment["DXPU_MANAGER"].removeprefix("https://"), "--state-dir", str(state))
        self.credential = state / "admin.json"
        wait_until("the manager has made a credential", self.credential.exists, 60)
        self.environment["DXPU_CREDENTIAL"] = str(self.credential)
        invitation = self.folder / "box.json"
        wait_until("the manager answers", lambda: self.ask("token", "create", "box/bench", "--out", str(invitation)).returncode == 0, 60)
        box = self.folder / "box"
        box.mkdir(mode=0o700)
        self.start("box", "--join-token-file", str(invitation), "--name", "bench", "--state-dir", str(box), "--listen", "127.0.0.1", *self.soft)
        wait_until("a GPU is free (see the logs in " + str(self.folder) + ")", lambda: "free" in self.ask("gpu", "ls").stdout, 180)
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            # As Ctrl-C does: a box that is asked to end otherwise leaves its workers to the next one.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
        keep(self.logs, [*self.folder.glob("*.log"), *self.folder.glob("box/slot-*/worker.log")])
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, role, *words):
        with open(self.folder / f"{role}.log", "ab") as log:
            started = subprocess.Popen([self.dxpu, role, *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append(started)

    def ask(self, *words):
        return subprocess.run([self.dxpu, *words], env=self.environment, capture_output=True, text=True)


class Functions:
    """`dxpu functions` on a pool, with the six workloads deployed."""

    def __init__(self, settings, pool, sharing=1, keep_warm="300s", fit="best", gpu_keep="10s", content=None):
        self.settings, self.pool = settings, pool
        self.port = free_port()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dxpu-functions-bench-service-"))
        self.environment = dict(pool.environment if pool else os.environ)
        # Off for the sides of the ablation that are not about it; on otherwise.
        self.environment["DXPU_CONTENT"] = "0" if content is False else "1"
        place = ["--state-dir", str(self.folder / "state")]
        self.place = place
        self.words = ["--listen", f"127.0.0.1:{self.port}", *place, "--run-dir", str(self.folder / "run"), "--same-user"]
        self.words += ["--python", sys.executable, "--keep-warm", keep_warm, "--memory", "512GiB"]
        if pool:
            self.words += ["--gpus", str(settings["gpus"]), "--sharing", str(sharing), "--fit", fit, "--gpu-keep", gpu_keep]
            self.words += ["--credential", str(pool.credential)]

    def __enter__(self):
        try:
            return self.up()
        except BaseException:
            self.__exit__()
            raise

    def up(self):
        with open(self.folder / "functions.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.settings["dxpu"], "functions", *self.words], env=self.environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )
        line = self.process.stdout.readline()
        if not line.startswith("functions listening"):
            raise RuntimeError((self.folder / "functions.log").read_text()[-2000:])
        told = subprocess.run(
            [self.settings["dxpu"], "functions", "new-key", "--tenant", "bench", *self.place],
            env=self.environment, check=True, capture_output=True, text=True,
        ).stdout
        self.client = Client(self.port, dict(line.split("=", 1) for line in told.split()))
        for name, declared in (DECLARED | OTHERS).items():
            environment = {"BENCH_WEIGHTS": self.settings["weights"], "BENCH_WORKLOAD": name, "PYTHONPATH": python_path()}
            if self.pool:
                environment["DXPU_GPU_MEMORY_MB"] = str(declared)
            if not self.pool and self.settings["soft"]:
                environment["BENCH_DEVICE"] = "cpu"
            handler = f"{module_of(self.settings, name)}.handler"
            self.client.create(name, package(), "provided.al2023", handler, HOST_MB, 900, environment)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        keep(pathlib.Path(self.settings["logs"]), [self.folder / "functions.log"])
        shutil.rmtree(self.folder, ignore_errors=True)

    def cool(self, name):
        """Waits until no instance of a workload is left."""
        def is_cold():
            _, _, body = self.client.ask("GET", f"/dxpu/v1/functions/{name}/status")
            standing = json.loads(body)
            return standing["Starting"] + standing["Idle"] + standing["Busy"] == 0

        wait_until(f"no instance of {name} is left", is_cold, 60)

    def invoke(self, name, **event):
        return self.client.invoke(name, {"tiny": self.settings["tiny"], **event})


def package():
    """The zip file of all workloads, with a runtime of their own."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(WORKLOADS.glob("*.py")):
            archive.write(file, file.name)
        bootstrap = zipfile.ZipInfo("bootstrap")
        bootstrap.external_attr = 0o755 << 16
        archive.writestr(bootstrap, f"#!{sys.executable}\n" + (HERE / "bootstrap.py").read_text())
    return target.getvalue()
