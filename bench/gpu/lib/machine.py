"""What was measured, where and when."""

import datetime
import os
import platform
import shutil
import subprocess


def describe(commit):
    """Machine, time and commit; unknown things are None."""
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    gpu = _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total,pcie.link.gen.current", "--format=csv,noheader")
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit or _output("git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "--short", "HEAD"),
        "cpu": names[0] if names else None,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "gpu": gpu,
    }


def _output(*command):
    if not shutil.which(command[0]):
        return None
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip() or None
    except (subprocess.SubprocessError, OSError):
        return None
