"""A pool of this machine's GPU: a box finds it, lends it, cleans it between borrowers, takes it back after a repair."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

import workers
from bed import Wrong, hold, tail

READY_SECONDS = 60
RUN_SECONDS = 120
# Enough that a later borrower would meet it.
PATTERN_MEBIBYTES = 512
# So long a GPU may take from a borrower's end to the next one's beginning: its memory is overwritten meanwhile.
CLEAN_SECONDS = 30


def a_box_lends_this_gpu(bed):
    with Pool(bed) as pool:
        lines = [f"found {pool.gpu()['model']}, {pool.gpu()['memory_bytes'] >> 20} MiB, kind {pool.ask('box', 'ls')[0]['kind']}"]
        words = PATTERN_MEBIBYTES << 18
        hold(pool.borrow("leave") == words, "the pattern did not stay")
        began = time.monotonic()
        found = pool.borrow("look")
        hold(found == 0, f"{found} words of the borrower before were left")
        lines.append(f"the next borrower had it after {time.monotonic() - began:.1f} s and found nothing of the one before")
        pool.must("box", "break", "0", "--reason", "pulled for a test", "--state-dir", pool.folder("box"))
        pool.until_state("bad")
        refused = pool.run("run", "--gpus", "1", "--wait", "1s", "--", "true")
        hold(refused.returncode != 0, "a broken GPU was lent")
        pool.must("box", "heal", "0", "--state-dir", pool.folder("box"))
        pool.must("gpu", "repair", "b1/0")
        pool.until_state("free")
        hold(pool.borrow("leave") == words, "it does not work after its repair")
        lines.append("broken on purpose, it was not lent; repaired and tested, it was")
    return lines


class Pool:
    """A manager and boxes, each with the GPU of this machine, or with one in software."""

    def __init__(self, bed, boxes=("b1",), options=()):
        self.bed, self.boxes, self.options = bed, boxes, options
        # Each has a folder of its own: the credential in it names this pool's manager.
        self.place = tempfile.mkdtemp(prefix="pool", dir=bed.place.folder)
        self.environment = workers.plain_environment() | {
            "XDG_CONFIG_HOME": self.folder("config"),
            "XDG_STATE_HOME": self.folder("state"),
            "XDG_CACHE_HOME": bed.place.cache,
            "CUPY_CACHE_DIR": self.folder("cupy"),
            "CUPY_COMPILE_WITH_PTX": "1" if bed.driver == "soft" else "0",
            "DXPU_CREDENTIAL": os.path.join(self.folder("manager"), "admin.json"),
        }
        self.processes = []

    def folder(self, name):
        return os.path.join(self.place, name)

    def __enter__(self):
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._start("manager", "--listen", f"127.0.0.1:{port}", "--state-dir", self.folder("manager"))
        self._until(lambda: self.run("box", "ls").returncode == 0, "the manager does not start")
        soft = ["--soft", "1", "--memory", "1GiB"] if self.bed.driver == "soft" else []
        listen = ["--listen", "127.0.0.1", "--advertise", "127.0.0.1"]
        for name in self.boxes:
            token = self.folder(f"{name}.json")
            self.must("token", "create", f"box/{name}", "--out", token)
            place = self.folder("box" if name == self.boxes[0] else name)
            self._start("box", "--join-token-file", token, "--name", name, "--state-dir", place, *listen, *soft, *self.options)
            # One after the other: each tests its GPU first, and here they have the same one.
            self.until_state("free", name)

    def __exit__(self, *_):
        # A box that is told to stop leaves its workers to the next one; these have no next one.
        for process, stop in reversed(self.processes):
            process.send_signal(stop)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, *words):
        # SIGINT ends a box with its workers.
        stop = signal.SIGINT if words[0] == "box" else signal.SIGTERM
        with open(self.folder(f"{words[0]}.log"), "ab") as log:
            started = subprocess.Popen([self.bed.dxpu, *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append((started, stop))

    def _until(self, holds, what, seconds=READY_SECONDS):
        ends = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > ends:
                raise Wrong(f"{what}\n{self.logs()}")
            time.sleep(0.1)

    def guardians_said(self):
        """Every word of the guardians of all boxes."""
        told = []
        for folder, _, names in os.walk(self.place):
            if "guardian.log" in names:
                with open(os.path.join(folder, "guardian.log"), errors="replace") as file:
                    told.append(file.read())
        return "\n".join(told)

    def logs(self):
        told = []
        for name in sorted(name for name in os.listdir(self.place) if name.endswith(".log")):
            with open(self.folder(name), errors="replace") as file:
                told.append(f"{name}:\n{tail(file.read())}")
        return "\n".join(told)

    def start(self, name, *words):
        """Starts a command; what it says goes to NAME.out and NAME.log of the pool's folder."""
        with open(self.folder(f"{name}.out"), "wb") as out, open(self.folder(f"{name}.log"), "wb") as log:
            process = subprocess.Popen([self.bed.dxpu, *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        self.processes.append((process, signal.SIGTERM))
        return process

    def said(self, name):
        with open(self.folder(f"{name}.out"), errors="replace") as file:
            return file.read()

    def complained(self, name):
        with open(self.folder(f"{name}.log"), errors="replace") as file:
            return file.read()

    def run(self, *words):
        return subprocess.run(
            [self.bed.dxpu, *words], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_SECONDS
        )

    def must(self, *words):
        result = self.run(*words)
        hold(result.returncode == 0, " ".join(words), "ended with", result.returncode, tail(result.stderr), self.logs())
        return result.stdout

    def ask(self, *words):
        return json.loads(self.must(*words, "-o", "json"))

    def gpu(self, box=None):
        gpus = [gpu for gpu in self.ask("gpu", "ls") if gpu["id"].startswith(f"{box or self.boxes[0]}/")]
        return gpus[0] if gpus else {"state": "absent"}

    def until_state(self, state, box=None):
        self._until(lambda: self.gpu(box)["state"] == state, f"the GPU does not become {state}", CLEAN_SECONDS)

    def borrow(self, action):
        """Runs a program on a borrowed GPU; how many words of the pattern it saw."""
        program = [*self.bed.python("programs/pattern.py"), action, str(PATTERN_MEBIBYTES)]
        said = self.must("run", "--gpus", "1", "--", *map(str, program))
        found = re.search(r"^words (\d+) of", said, re.M)
        hold(found, "the program said", said)
        return int(found[1])
