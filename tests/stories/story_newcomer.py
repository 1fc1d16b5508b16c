"""The first programs that somebody tries, as they would be typed: a plain shell without any variable, a home without any
cache, and a GPU in software from wherever dxpu lends one. What they compute is held against numpy."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile

import kit
from pool import Pool

ROOT = os.path.dirname(os.path.dirname(kit.HERE))
PYTHON = os.path.join(ROOT, ".venv", "bin", "python")
PROGRAM = os.path.join(kit.HERE, "programs", "newcomer.py")
PARTS = ["cupy_sums", "cupy_sorts", "cupy_kernels", "cupy_random", "numba", "nvrtc"]
FIRST = [PYTHON, "-c", "import cupy; print(cupy.arange(1e6).sum())"]
ANSWER = "499999500000.0\n"
# All of it compiles, on cores that others use as well.
SECONDS = 600


def tell(record):
    record.part("Python is there for the programs", python)
    with Plain("worker", "--listen", "unix:{home}/w") as worker:
        for part in PARTS:
            record.part(f"on a worker: {part}", program, worker, part)
        record.part("on a worker: the first line, cold and warm", first_line, worker)
        record.part("on a worker: machine code is refused in words", machine_code, worker)
    with Plain("worker", "--listen", "unix:{home}/w", "--compute-capability", "9.0") as old:
        record.part("a sum that cannot be computed is an error", not_silently, old)
    with Plain("up", "--listen", "127.0.0.1:{port}", "--boxes", "1", "--gpus", "1", says="The pool is up") as up:
        record.part("in the pool of `dxpu up`", first_line, up)
        record.part("in the pool of `dxpu up`: sorts", program, up, "cupy_sorts")
    with Plain("demo", "--stay", says="The pool stays up") as demo:
        record.part("in the pool of `dxpu demo`", first_line, demo)
    record.part("on a box that joined a pool", on_a_box)


def python():
    kit.hold(os.access(PYTHON, os.X_OK), "there is no", PYTHON, "; run scripts/setup-python")


def shell(home):
    """What `env -i` leaves, and where the user lives."""
    return {"PATH": os.environ["PATH"], "HOME": home}


class Plain:
    """Something of dxpu's that lends GPUs, started as a newcomer starts it."""

    def __init__(self, *words, says="listening at"):
        self.home = tempfile.mkdtemp(dir=kit.scratch, prefix="home-")
        filled = [word.format(home=self.home, port=kit.free_port()) for word in words]
        self.log = os.path.join(self.home, "said")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([kit.dxpu, *filled], env=shell(self.home), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        kit.until(lambda: f"it says {says!r}: {self.said()}", lambda: says in self.said() or self.process.poll() is not None, 120)
        kit.hold(says in self.said(), self.said())
        self.options = {
            "worker": ["--worker", f"unix:{self.home}/w"],
            "up": ["--gpus", "1"],
            "demo": ["--gpus", "1"],
        }[words[0]]
        self.environment = shell(self.home)
        # The demo says which credential opens its pool.
        if credential := re.search(r"credential  (\S+)", self.said()) if words[0] == "demo" else None:
            self.environment["DXPU_CREDENTIAL"] = credential[1]

    def said(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def run(self, *words, **more):
        return kit.run_plainly([kit.dxpu, "run", *self.options, "--", *words], self.environment | more, SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        self.process.wait()


def program(lender, part):
    done = lender.run(PYTHON, PROGRAM, part)
    kit.hold(done.returncode == 0 and f"ok {part}" in done.stdout, part, "ended with", done.returncode, "\n", done.stdout, done.stderr[-3000:])


def first_line(lender):
    """Cold, then warm: compiled, then from CuPy's cache."""
    shutil.rmtree(os.path.join(lender.home, ".cupy"), ignore_errors=True)
    for temperature in ("cold", "warm"):
        done = lender.run(*FIRST)
        kit.hold((done.returncode, done.stdout) == (0, ANSWER), temperature, "it ended with", done.returncode, "\n", done.stdout, done.stderr[-3000:])


def not_silently(lender):
    """CuPy drops the error that its cub gets for kernels that are not there. What it copies back must not look like a sum."""
    done = lender.run(*FIRST)
    kit.hold(done.returncode != 0 and not done.stdout.strip(), "ended with", done.returncode, "and said", done.stdout, done.stderr[-3000:])
    kit.hold("cudaErrorNoKernelImageForDevice" in done.stderr, "another error:", done.stderr[-3000:])
    kit.hold("no PTX for compute capability 9.0" in done.stderr, "nobody says why:", done.stderr[-3000:])


def machine_code(lender):
    done = lender.run(*FIRST, CUPY_COMPILE_WITH_PTX="0")
    kit.hold(done.returncode != 0 and not done.stdout.strip(), "ended with", done.returncode, "and said", done.stdout)
    kit.hold("CUPY_COMPILE_WITH_PTX=1" in done.stderr, "nobody says what to do:", done.stderr[-3000:])


def on_a_box():
    with Pool() as pool:
        pool.box("plain", "--soft", "1")
        home = tempfile.mkdtemp(dir=kit.scratch, prefix="home-")
        environment = shell(home) | {"DXPU_CREDENTIAL": pool.borrower, "DXPU_MANAGER": pool.environment["DXPU_MANAGER"]}
        done = kit.run_plainly([kit.dxpu, "run", "--gpus", "1", "--", *FIRST], environment, SECONDS)
        kit.hold((done.returncode, done.stdout) == (0, ANSWER), "ended with", done.returncode, "\n", done.stdout, done.stderr[-3000:], pool.logs())
