"""What a GPU did in a span of time, from NVML: utilisation, memory, and activity of its multiprocessors where GPM counts it (Hopper
and later). Without a GPU all figures are None."""

import ctypes
import threading
import time

SAMPLE_SECONDS = 0.1
# Identifiers of GPM metrics; all are percentages.
METRICS = {"sm_active": 2, "sm_occupancy": 3, "dram_active": 10}
GPM_VERSION = 1
# The library knows its own number of metrics, which grows: this is more than any version has.
METRICS_MAX = 1024
NAMES = ("utilization", "memory_used_gib", *METRICS)


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class GpmSupport(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("is_supported", ctypes.c_uint)]


class GpmMetric(ctypes.Structure):
    _fields_ = [("metric", ctypes.c_uint), ("status", ctypes.c_uint), ("value", ctypes.c_double), ("names", ctypes.c_char_p * 3)]


class GpmQuestion(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("sample1", ctypes.c_void_p),
        ("sample2", ctypes.c_void_p),
        ("metrics", GpmMetric * METRICS_MAX),
    ]


class Activity:
    """A thread reads NVML all along; `begin` and `end` enclose a span."""

    def __init__(self, index=0):
        self._samples, self._is_over, self._gpm, self._thread = [], threading.Event(), None, None
        self.why_not = None
        try:
            self._open(index)
        except (OSError, AttributeError, RuntimeError) as error:
            self.why_not = str(error)
            return
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _open(self, index):
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self._device))
        try:
            support = GpmSupport(version=GPM_VERSION)
            self._call("nvmlGpmQueryDeviceSupport", self._device, ctypes.byref(support))
            if not support.is_supported:
                raise RuntimeError("this GPU has no GPM")
            samples = [ctypes.c_void_p(), ctypes.c_void_p()]
            for sample in samples:
                self._call("nvmlGpmSampleAlloc", ctypes.byref(sample))
            self._gpm = samples
        except (AttributeError, RuntimeError) as error:
            self.why_not = str(error)

    def _call(self, name, *arguments):
        if code := getattr(self._nvml, name)(*arguments):
            raise RuntimeError(f"{name}: error {code}")

    def _watch(self):
        while not self._is_over.wait(SAMPLE_SECONDS):
            used, memory = Utilization(), Memory()
            try:
                self._call("nvmlDeviceGetUtilizationRates", self._device, ctypes.byref(used))
                self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(memory))
            except RuntimeError as error:
                self.why_not = str(error)
                return
            self._samples.append((time.monotonic(), used.gpu, memory.used / 2**30))

    def begin(self):
        """What `end` wants back."""
        return time.monotonic(), self._sampled(0)

    def end(self, begun):
        since, is_sampled = begun
        now = time.monotonic()
        found = dict.fromkeys(NAMES)
        inside = [sample for sample in self._samples if since <= sample[0] <= now]
        if inside:
            found["utilization"] = sum(used for _, used, _ in inside) / len(inside)
            found["memory_used_gib"] = max(memory for _, _, memory in inside)
        if is_sampled and self._sampled(1):
            found |= self._metrics()
        return found

    def _sampled(self, at):
        if self._gpm is None:
            return False
        try:
            self._call("nvmlGpmSampleGet", self._device, self._gpm[at])
        except RuntimeError as error:
            self.why_not = str(error)
            return False
        return True

    def _metrics(self):
        question = GpmQuestion(version=GPM_VERSION, count=len(METRICS), sample1=self._gpm[0], sample2=self._gpm[1])
        for at, metric in enumerate(METRICS.values()):
            question.metrics[at].metric = metric
        try:
            self._call("nvmlGpmMetricsGet", ctypes.byref(question))
        except RuntimeError as error:
            self.why_not = str(error)
            return {}
        return {name: question.metrics[at].value if question.metrics[at].status == 0 else None for at, name in enumerate(METRICS)}

    def stop(self):
        self._is_over.set()
        if self._thread:
            self._thread.join(5)
