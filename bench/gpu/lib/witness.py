"""Which NVIDIA driver does this process have? Read from /proc, so that nothing can claim otherwise.

A client of dxpu must have our libcuda.so.1 mapped, no library of NVIDIA's driver, and no device file of it open. A native
process must have the opposite; a traced one has our pass-through library and the driver behind it. Libraries that ship with frameworks (libcublas, libnvrtc, …) are no part of the driver.
"""

import json
import os
import re

# What NVIDIA's driver installs, by file name. libnvidia-ml.so.1 is one of ours too.
DRIVER_LIBRARY = re.compile(r"^(libcuda\.so|libcudadebugger\.so|libnvidia-)")


def driver_files(pid="self"):
    """Mapped driver libraries, and device files of the driver that are mapped or open."""
    libraries, devices = set(), set()
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[5].strip() if line.count(" ") >= 5 and "/" in line else ""
            path = path.removesuffix(" (deleted)")
            if path.startswith("/dev/nvidia"):
                devices.add(path)
            elif DRIVER_LIBRARY.match(os.path.basename(path)):
                libraries.add(path)
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue  # closed since the listing, as the listing's own is
        if path.startswith("/dev/nvidia"):
            devices.add(path)
    return sorted(libraries), sorted(devices)


def complaint(kind, ours, pid="self", must_have_cuda=True):
    """What is wrong with this process as a `kind` ("native", "gpu", "remote", "traced" or "limit") one; None if nothing is.

    `ours` is the folder below which dxpu puts its libraries.
    """
    libraries, devices = driver_files(pid)
    folder = os.path.realpath(ours) + os.sep
    is_ours = lambda path: os.path.realpath(path).startswith(folder)
    foreign = [path for path in libraries if not is_ours(path)]
    cuda = [path for path in libraries if os.path.basename(path).startswith("libcuda.so")]
    if kind == "remote":
        if foreign:
            return f"the client has NVIDIA's driver mapped: {', '.join(foreign)}"
        if devices:
            return f"the client has NVIDIA's devices open: {', '.join(devices)}"
        if must_have_cuda and not cuda:
            return "the client never loaded libcuda.so.1"
        return None
    if kind in ("traced", "limit"):
        if not [path for path in cuda if is_ours(path)]:
            return f"the traced process does not have dxpu's libcuda.so.1: mapped {libraries}"
        if must_have_cuda and not ([path for path in cuda if not is_ours(path)] and devices):
            return f"the traced process does not use the driver: mapped {libraries}, open {devices}"
        return None
    if [path for path in libraries if is_ours(path)]:
        return f"the native process has dxpu's libraries mapped: {', '.join(libraries)}"
    if must_have_cuda and not (cuda and devices):
        return f"the native process does not use the driver: mapped {libraries}, open {devices}"
    return None


def write_testimony(path, kind, ours):
    """Writes what this process is into `path`."""
    libraries, devices = driver_files()
    said = {
        "pid": os.getpid(),
        "libraries": libraries,
        "devices": devices,
        "complaint": complaint(kind, ours, must_have_cuda=False),
    }
    with open(path, "w") as file:
        json.dump(said, file)
