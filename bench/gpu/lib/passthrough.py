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


FIGURES = ("fillers", "asked_us", "added_us", "launches", "launch_us", "calls", "call_us")


def injected():
    """What was injected so far: fillers, what they were asked to add and what they did, launches of them and what these took, and
    the same of the program's own launches."""
    function = _library().dxpuInjected
    function.argtypes, function.restype = [ctypes.POINTER(ctypes.c_double)], ctypes.c_uint
    numbers = (ctypes.c_double * len(FIGURES))()
    if function(numbers):
        raise RuntimeError("this process is not under `dxpu inject`")
    return {name: value / (1e3 if name.endswith("_us") else 1) for name, value in zip(FIGURES, numbers)}


def trace(is_on):
    """Whether `dxpu trace` looks at what the program does; if not, calls are only handed on."""
    function = _library().dxpuTrace
    function.argtypes, function.restype = [ctypes.c_uint], ctypes.c_uint
    if function(1 if is_on else 0):
        raise RuntimeError("this process is not under `dxpu trace`")


def trace_anew():
    """What was timed so far says nothing about what comes."""
    _library().dxpuTraceAnew()


def inject(added_ns, read_bytes_per_second):
    """What `dxpu inject` injects from here on; nothing with 0."""
    function = _library().dxpuInject
    function.argtypes, function.restype = [ctypes.c_double, ctypes.c_double], ctypes.c_uint
    if function(added_ns, read_bytes_per_second):
        raise RuntimeError("this process is not under `dxpu inject`")


def nothing(is_on):
    """Whether orders to the GPU and waits for it are answered and not given, under `dxpu inject`. Copies to the host are made."""
    function = _library().dxpuNothing
    function.argtypes, function.restype = [ctypes.c_uint], ctypes.c_uint
    if function(1 if is_on else 0):
        raise RuntimeError("this process is not under `dxpu inject`")
