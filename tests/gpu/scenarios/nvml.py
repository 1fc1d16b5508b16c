"""libnvidia-ml.so.1: pynvml, PyTorch's use of it, and the machine's own nvidia-smi see the leased GPU and only that."""

import glob
import os
import re
import shutil

import compare
from bed import Skipped, hold, tail

SECONDS = 90


def nvml_shows_the_leased_gpu(bed):
    """NVML says the same of the GPU natively and remotely, where it does not change by itself; by its C functions and by pynvml."""
    lines = []
    for name in ("nvml_plain", "nvml_facts"):
        program = bed.python(f"programs/{name}.py")
        results = {mode: bed.run(name, mode, program, SECONDS) for mode in dict.fromkeys((bed.reference, "tcp"))}
        if "No module named 'pynvml'" in results[bed.reference].err:
            lines.append("pynvml (nvidia-ml-py) is not installed: only the C functions were asked")
            continue
        for mode, result in results.items():
            hold(result.problem() is None, name, mode, result.problem())
            lines += [f"{mode}: {line}" for line in result.out.splitlines() if line.startswith(".")]
        native, remote = (compare.facts(results[mode].out) for mode in (bed.reference, "tcp"))
        broken = [f"{key}: {fact.value}" for key, fact in native.items() if fact.kind == "!"]
        hold(not broken, name, "fails natively too:", broken)
        different = compare.differing(native, remote)
        hold(not different, name + "\n" + "\n".join(compare.show(key, native, remote) for key in different))
    return lines


def nvidia_smi_runs(bed):
    """nvidia-smi with our library: the table, the list, and fields of the query."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise Skipped("there is no nvidia-smi")
    lines = []
    for name, arguments in {
        "smi-table": [],
        "smi-list": ["-L"],
        "smi-query": ["--query-gpu=name,driver_version,memory.total,compute_cap,uuid", "--format=csv"],
        "smi-details": ["-q"],
    }.items():
        loaded = os.path.join(bed.place.make("loaded"), name)
        watched = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": loaded}
        native = bed.run(name, "native", [tool, *arguments], SECONDS)
        remote = bed.run(name, "tcp", [tool, *arguments], SECONDS, watched)
        hold(native.code == 0, name, "fails natively:", tail(native.out + native.err))
        hold(remote.code == 0 and not remote.is_late, name, "ended with", remote.code, tail(remote.out + remote.err))
        _nothing_of_nvidia_was_loaded(bed, name, glob.glob(f"{loaded}.*"))
        lines.append(f"{name}: {len(remote.out.splitlines())} lines (native {len(native.out.splitlines())})")
        if name in ("smi-list", "smi-query"):
            strip = lambda text: re.sub(r"GPU-[0-9a-f-]+", "GPU-…", text)
            hold(strip(native.out) == strip(remote.out), name, "differs:\n", native.out, remote.out)
    return lines


def _nothing_of_nvidia_was_loaded(bed, name, logs):
    """The tool has no hook to testify; the loader says what it loaded."""
    hold(logs, name, "left no word of the loader")
    loaded = set()
    for log in logs:
        with open(log, errors="replace") as file:
            loaded |= set(re.findall(r"calling init: (\S+)", file.read()))
    driver = [path for path in loaded if re.match(r"libcuda\.so|libnvidia-", os.path.basename(path))]
    foreign = [path for path in driver if not os.path.realpath(path).startswith(os.path.realpath(bed.place.libraries) + os.sep)]
    hold(not foreign, name, "loaded NVIDIA's:", foreign)
    hold(any("libnvidia-ml" in path for path in driver), name, "never loaded our libnvidia-ml.so.1:", sorted(loaded)[:20])
