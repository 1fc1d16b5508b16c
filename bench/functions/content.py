#!/usr/bin/env python3
"""What the second instance of a function saves when its weights are named in place of being sent.

    sudo python3 bench/functions/content.py --dxpu target/release/dxpu --rates 10gbit,25gbit --out content.json
    sudo python3 bench/functions/content.py --driver nvidia …          # on a machine with a GPU
    python3 bench/functions/content.py --no-link --mib 64              # a check of the script itself: plain loopback

A worker and programs in a network namespace whose loopback has the given rate (tc tbf). Each program is one instance: a new process
that opens a session, copies `--mib` of weights from pageable memory, in tensors of `--tensor-mib`, and reads a part back. The
first one finds the worker empty. `off` is the same without --content. Times are those of the program from its first call of CUDA to
the end of the last copy; bytes are those that the loopback carried to and fro, so each byte counts once.
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
# In memory: a slow disk must not be measured. Each instance reads its weights from there before its clock starts.
WEIGHTS_FOLDER = "/dev/shm"
INSTANCE_SECONDS = 60


def program(file, tensor_bytes):
    """One instance. Its weights lie in memory before the clock starts."""
    size = os.path.getsize(file)
    weights = mmap.mmap(-1, size)
    with open(file, "rb") as source:
        while part := source.read(64 * MIB):
            weights.write(part)
    base = ctypes.addressof(ctypes.c_char.from_buffer(weights))
    cuda = ctypes.CDLL("libcuda.so.1")

    def good(code):
        if code:
            raise SystemExit(f"CUDA says {code}")

    context, device = ctypes.c_void_p(), ctypes.c_uint64()
    began = time.perf_counter()
    good(cuda.cuInit(0))
    good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    good(cuda.cuCtxSetCurrent(context))
    good(cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(size)))
    ready = time.perf_counter()
    for at in range(0, size, tensor_bytes):
        length = min(tensor_bytes, size - at)
        good(cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(device.value + at), ctypes.c_void_p(base + at), ctypes.c_size_t(length)))
    done = time.perf_counter()
    back = ctypes.create_string_buffer(MIB)
    for at in sorted(random.Random(1).randrange(0, size - MIB + 1) for _ in range(8)):
        good(cuda.cuMemcpyDtoH_v2(back, ctypes.c_uint64(device.value + at), ctypes.c_size_t(MIB)))
        if back.raw != weights[at : at + MIB]:
            raise SystemExit(f"another byte came at {at}")
    print(json.dumps({"ready_s": ready - began, "copies_s": done - ready, "all_s": done - began}))


def modules_program(count):
    """An instance that loads modules, with some work of its own before the second. Their images are at the worker already."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def good(code):
        if code:
            raise SystemExit(f"CUDA says {code}")

    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    good(cuda.cuInit(0))
    good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    good(cuda.cuCtxSetCurrent(context))
    kernel = """.visible .entry k%d_%d(.param .u64 p) { .reg .u64 %%a; .reg .u32 %%b;
        ld.param.u64 %%a, [p]; mov.u32 %%b, %%tid.x; add.u32 %%b, %%b, %d; st.global.u32 [%%a], %%b; ret; }"""
    took = []
    for number in range(count):
        text = ".version 7.0\n.target sm_70\n.address_size 64\n"
        text += "\n".join(kernel % (number, at, at) for at in range(400))
        began = time.perf_counter()
        good(cuda.cuModuleLoadData(ctypes.byref(module), text.encode() + b"\0"))
        took.append(time.perf_counter() - began)
        if number == 0:
            time.sleep(1)
    print(json.dumps({"first_s": took[0], "others_s": sum(took[1:])}))


class Link:
    """A namespace whose loopback is as fast as it is told."""

    def __init__(self, rate):
        self.rate, self.name = rate, f"dxpu-content-{os.getpid()}"

    def __enter__(self):
        if self.rate:
            subprocess.run(["ip", "netns", "add", self.name], check=True)
            self.run("ip", "link", "set", "lo", "up")
            self.run(*f"tc qdisc add dev lo root tbf rate {self.rate} burst 2mb latency 20ms".split())
        return self

    def __exit__(self, *_):
        if self.rate:
            subprocess.run(["ip", "netns", "del", self.name], check=False)

    def command(self, *words):
        return ["ip", "netns", "exec", self.name, *words] if self.rate else list(words)

    def run(self, *words):
        return subprocess.run(self.command(*words), check=True, capture_output=True, text=True).stdout

    def carried(self):
        lines = self.run("cat", "/proc/net/dev").splitlines()
        return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


class Worker:
    def __init__(self, options, link, folder, *more):
        memory = options.mib * 2 + 512
        words = [options.dxpu, "worker", "--listen", "tcp:127.0.0.1:7411", "--plain", "--driver", options.driver]
        words += ["--content-memory", f"{options.mib * 4}MiB", "--identity-dir", str(folder)]
        if options.driver == "soft":
            words += ["--memory", f"{memory}MiB"]
        self.words, self.folder = link.command(*words, *more), folder

    def __enter__(self):
        self.log = open(self.folder / "worker.log", "w")
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit((self.folder / "worker.log").read_text())
        time.sleep(1.5)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


def instance(options, link, folder, weights, content):
    words = [options.dxpu, "run", "--worker", "tcp:127.0.0.1:7411", "--token-file", str(folder / "token")]
    words += ["--content"] if content else []
    words += ["--", sys.executable, __file__, "--program", str(weights), "--tensor-mib", str(options.tensor_mib)]
    before = link.carried()
    told = subprocess.run(link.command(*words), capture_output=True, text=True, timeout=INSTANCE_SECONDS)
    if told.returncode:
        raise SystemExit(f"{told.stdout}\n{told.stderr}")
    found = json.loads(told.stdout.strip().splitlines()[-1])
    found["mib_carried"] = round((link.carried() - before) / MIB, 1)
    print(f"    {'by content' if content else 'off':10} {found['all_s']:.3f} s, {found['mib_carried']} MiB", flush=True)
    return found


def measure(options, rate, weights):
    found = {"off": [], "first": [], "second": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder, Link(rate) as link:
            folder = pathlib.Path(folder)
            with Worker(options, link, folder):
                # The worker replaces its spare session a second after it was taken.
                found["off"].append(instance(options, link, folder, weights, False))
                time.sleep(2)
                found["first"].append(instance(options, link, folder, weights, True))
                time.sleep(2)
                found["second"].append(instance(options, link, folder, weights, True))
    return found


def modules(options):
    """Seconds that the second instance waits for its modules but the first, with and without modules ahead."""
    found = {}
    for ahead in ("false", "true"):
        with tempfile.TemporaryDirectory() as folder, Link(None) as link:
            folder = pathlib.Path(folder)
            os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
            with Worker(options, link, folder, "--modules-ahead", ahead):
                words = [options.dxpu, "run", "--worker", "tcp:127.0.0.1:7411", "--token-file", str(folder / "token"), "--content"]
                words += ["--", sys.executable, __file__, "--program-modules", str(options.modules)]
                runs = []
                for _ in range(options.rounds + 1):
                    told = subprocess.run(words, capture_output=True, text=True)
                    if told.returncode:
                        raise SystemExit(f"{told.stdout}\n{told.stderr}")
                    runs.append(json.loads(told.stdout.strip().splitlines()[-1]))
                    time.sleep(2)
        found[ahead] = runs
        middle = statistics.median(run["others_s"] for run in runs[1:])
        print(f"modules ahead {ahead}: {middle * 1000:.1f} ms for {options.modules - 1} modules", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dxpu", default="target/release/dxpu")
    parser.add_argument("--driver", default="soft", choices=["soft", "nvidia"])
    parser.add_argument("--rates", default="10gbit,25gbit", help="as tc writes them, with commas")
    parser.add_argument("--no-link", action="store_true", help="plain loopback, without a namespace")
    parser.add_argument("--mib", type=int, default=2048, help="weights")
    parser.add_argument("--tensor-mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default="content.json")
    parser.add_argument("--modules", type=int, metavar="N", help="measure modules ahead with N modules, and no weights")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--program-modules", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program_modules:
        return modules_program(options.program_modules)
    if options.program:
        return program(options.program, options.tensor_mib * MIB)
    options.dxpu = str(pathlib.Path(options.dxpu).resolve())
    if options.modules:
        pathlib.Path(options.out).write_text(json.dumps(modules(options), indent=1) + "\n")
        return None
    rates = [None] if options.no_link else options.rates.split(",")
    told = {}
    with tempfile.NamedTemporaryFile(dir=WEIGHTS_FOLDER) as weights:
        source = random.Random(7)
        for _ in range(options.mib):
            weights.write(source.randbytes(MIB))
        weights.flush()
        for rate in rates:
            found = measure(options, rate, weights.name)
            median = {name: statistics.median(run["all_s"] for run in runs) for name, runs in found.items()}
            ratio = median["first"] / median["second"]
            told[rate or "loopback"] = {"runs": found, "median_s": median, "first_by_second": ratio}
            line = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in median.items())
            print(f"{rate or 'loopback'}: {line}; the second is {ratio:.2f} times sooner than the first", flush=True)
    pathlib.Path(options.out).write_text(json.dumps(told, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
