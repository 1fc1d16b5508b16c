"""CUDA C++ programs, built here with nvcc for this GPU, with the static and with the shared runtime.

Ours (`cuda/*.cu`) print facts that are compared. Those of the judges (`tests/judges/cuda`) check their own results and end with "ok".
"""

import dataclasses
import glob
import os
import shutil
import subprocess
import time

import compare
from bed import GPU_TESTS, ROOT, Skipped
from judge import Verdict

OURS = os.path.join(GPU_TESTS, "cuda")
JUDGES = os.path.join(ROOT, "tests", "judges", "cuda")
BUILD_SECONDS = 240
RUN_SECONDS = 90


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    source: str
    runtime: str
    # Says facts; otherwise its last line is "ok".
    says_facts: bool


def _programs():
    found = []
    for path in sorted(glob.glob(os.path.join(OURS, "*.cu"))):
        stem = os.path.splitext(os.path.basename(path))[0]
        found += [Program(f"cuda_{stem}", path, "static", True)]
        # One of them with the shared runtime is enough to know that it is found and works.
        if stem == "symbols":
            found += [Program(f"cuda_{stem}_shared", path, "shared", True)]
    for path in sorted(glob.glob(os.path.join(JUDGES, "*.cu"))):
        stem = os.path.splitext(os.path.basename(path))[0]
        found += [Program(f"judge_{stem}", path, "static", False)]
    return found


PROGRAMS = _programs()


def find_nvcc():
    places = [shutil.which("nvcc"), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def build(bed, program):
    """Builds a program; its path. Every one includes the witness that says at the end which driver it had."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise Skipped("there is no nvcc")
    root = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    target = os.path.join(bed.place.make("programs"), program.name)
    architecture = os.environ.get("CHECK_ARCH", "sm_90").split()
    command = [nvcc, "-std=c++17", "-O2", "--extended-lambda", "-rdc=false", "-arch", *architecture, "-cudart", program.runtime]
    command += ["-include", os.path.join(OURS, "witness.h")]
    for folder in (os.path.join(root, "include", "cccl"),):
        command += [f"-I{folder}"] if os.path.isdir(folder) else []
    for folder in (os.path.join(root, "lib64"), os.path.join(root, "lib")):
        command += [f"-L{folder}", f"-Xlinker=-rpath={folder}"] if os.path.isdir(folder) else []
    # The name only, from its folder: assertions quote it.
    command += ["-o", target, os.path.basename(program.source)]
    done = subprocess.run(command, cwd=os.path.dirname(program.source), capture_output=True, text=True, timeout=BUILD_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"nvcc says {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return target


def check(bed, program, modes):
    """Builds a program and runs it natively and over TCP."""
    start = time.monotonic()
    chosen = [bed.reference, *(mode for mode in ("tcp", "shm") if mode in modes)]
    lines, is_ok = [], True
    try:
        binary = build(bed, program)
        results = {mode: bed.run(program.name, mode, [binary], RUN_SECONDS) for mode in chosen}
    except Skipped as why:
        return Verdict(program.name, "skipped", 0, [str(why)])
    except Exception as error:
        return Verdict(program.name, "failed", time.monotonic() - start, [str(error)])
    for mode, result in results.items():
        if problem := result.problem():
            is_ok = False
            lines.append(f"{mode}: {problem}\n{result.out[-500:]}")
        elif not program.says_facts and result.out.splitlines()[-1:] != ["ok"]:
            is_ok = False
            lines.append(f"{mode}: does not end with ok\n{result.out[-500:]}\n{result.err[-500:]}")
    if program.says_facts:
        native = compare.facts(results[bed.reference].out)
        known = compare.expected(program.name)
        for mode in chosen[1:]:
            remote = compare.facts(results[mode].out)
            for key in compare.differing(native, remote):
                shown = f"{mode}: {compare.show(key, native, remote)}"
                reason = compare.reason_for(key, known)
                is_ok &= reason is not None
                lines.append(f"known: {reason}: {shown}" if reason else shown)
        is_ok &= bool(native)
    return Verdict(program.name, "ok" if is_ok else "failed", time.monotonic() - start, lines)
