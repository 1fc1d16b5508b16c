"""What a process under `dxpu trace` or `dxpu inject` may tell the library in front of its driver."""

import ctypes
import functools


@functools.cache
def _library():
    # Already loaded under this name: the one that the program's own calls go to.
    return ctypes.CDLL("libcuda.so.1")


def mark(begins):
    """Begins or ends the range that `dxpu trace --range profiler` records."""
    function = _library().cuProfilerStart if begins else _library().cuProfilerStop
    if code := function():
        raise RuntimeError(f"the profiler's switch answered {code}")


def inject(added_ns, read_bytes_per_second):
    """What `dxpu inject` injects from here on; nothing with 0."""
    function = _library().dxpuInject
    function.argtypes, function.restype = [ctypes.c_double, ctypes.c_double], ctypes.c_uint
    if function(added_ns, read_bytes_per_second):
        raise RuntimeError("this process is not under `dxpu inject`")
