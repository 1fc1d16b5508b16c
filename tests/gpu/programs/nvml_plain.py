"""What NVML says of the GPU, by its C functions: for where pynvml is not installed."""

import ctypes

from say import attempts, note, same

ctypes.CDLL("libcuda.so.1").cuInit(0)  # a process that looks at a GPU usually uses it too
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = ctypes.c_void_p()


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def text(function, *arguments):
    """The code and the text of a function that fills a buffer."""
    buffer = ctypes.create_string_buffer(96)
    return function(*arguments, buffer, 96), buffer.value.decode()


def number(function, *arguments):
    found = ctypes.c_uint()
    return function(*arguments, ctypes.byref(found)), found.value


def beginning():
    same("before-init", number(nvml.nvmlDeviceGetCount_v2)[0])
    same("init", nvml.nvmlInit_v2())
    same("count", number(nvml.nvmlDeviceGetCount_v2))
    same("handle", nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
    same("no-such", nvml.nvmlDeviceGetHandleByIndex_v2(99, ctypes.byref(ctypes.c_void_p())))


def what_it_is():
    same("name", text(nvml.nvmlDeviceGetName, device))
    same("driver", text(nvml.nvmlSystemGetDriverVersion))
    same("cuda", number(nvml.nvmlSystemGetCudaDriverVersion_v2))
    same("index", number(nvml.nvmlDeviceGetIndex, device))
    note("uuid", text(nvml.nvmlDeviceGetUUID, device))


def memory():
    found = Memory()
    same("memory-code", nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(found)))
    note("memory", (found.total, found.free, found.used))
    return 0 < found.total and found.free + found.used <= found.total


def sensors():
    code, celsius = number(nvml.nvmlDeviceGetTemperature, device, 0)
    power_code, milliwatts = number(nvml.nvmlDeviceGetPowerUsage, device)
    same("codes", (code, power_code))
    note("celsius-milliwatts", (celsius, milliwatts))
    return 10 < celsius < 110 and 10_000 < milliwatts < 1_500_000


def end():
    same("shutdown", nvml.nvmlShutdown())


attempts(beginning, what_it_is, memory, sensors, end)
