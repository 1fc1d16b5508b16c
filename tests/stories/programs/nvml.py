"""Asks NVML, as a program that knows nothing of dxpu does: through the library of that name, and no other.

    nvml.py show       what NVML and CUDA say of every device, as JSON
    nvml.py allocate   memory in use before, during and after an allocation of the same process
    nvml.py count      how nvmlInit and nvmlShutdown are counted, and what bad calls get
    nvml.py fork       NVML in a child while the parent's threads use it
    nvml.py busy       percentages, once a second, until it is ended
    nvml.py poll       asks until NVML fails, then says with what and how long after the last good answer
"""
import ctypes
import json
import os
import sys
import threading
import time
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE = 1, 2, 3, 4, 6, 7
FUNCTION_NOT_FOUND = 13

nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlErrorString.restype = c_char_p


class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Memory2(ctypes.Structure):
    _fields_ = [("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Rates(ctypes.Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class Pci(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16)] + [(name, c_uint) for name in ("domain", "bus", "device", "id", "subsystem")]
    _fields_ += [("bus_id", ctypes.c_char * 32)]


def must(code):
    assert code == 0, f"{code}: {nvml.nvmlErrorString(code).decode()}"


def count():
    number = c_uint()
    must(nvml.nvmlDeviceGetCount_v2(byref(number)))
    return number.value


def handle(index):
    device = c_void_p()
    must(nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(device)))
    return device


def text(function, *arguments):
    buffer = create_string_buffer(96)
    must(function(*arguments, buffer, len(buffer)))
    return buffer.value.decode()


def memory(device):
    answer = Memory()
    must(nvml.nvmlDeviceGetMemoryInfo(device, byref(answer)))
    return answer


def cuda():
    """libcuda, initialised, with a context on its first device."""
    library = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    assert library.cuInit(0) == 0
    assert library.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
    assert library.cuCtxSetCurrent(context) == 0
    return library


def show():
    must(nvml.nvmlInit_v2())
    devices = []
    for index in range(count()):
        device, pci, rates = handle(index), Pci(), Rates()
        must(nvml.nvmlDeviceGetPciInfo_v3(device, byref(pci)))
        must(nvml.nvmlDeviceGetUtilizationRates(device, byref(rates)))
        devices.append({
            "name": text(nvml.nvmlDeviceGetName, device),
            "uuid": text(nvml.nvmlDeviceGetUUID, device),
            "bus": pci.bus_id.decode()[4:].lower(),
            "total": memory(device).total,
            "gpu": rates.gpu,
        })
    print(json.dumps({"nvml": devices, "cuda": cuda_devices()}))


def cuda_devices():
    library, number, devices = cuda(), c_int(), []
    assert library.cuDeviceGetCount(byref(number)) == 0
    for device in range(number.value):
        name, bus, uuid, total = create_string_buffer(96), create_string_buffer(32), create_string_buffer(16), ctypes.c_size_t()
        assert library.cuDeviceGetName(name, 96, device) == 0
        assert library.cuDeviceGetPCIBusId(bus, 32, device) == 0
        assert library.cuDeviceGetUuid_v2(uuid, device) == 0
        assert library.cuDeviceTotalMem_v2(byref(total), device) == 0
        digits = uuid.raw.hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        devices.append({"name": name.value.decode(), "uuid": "GPU-" + "-".join(parts), "bus": bus.value.decode().lower(), "total": total.value})
    return devices


def allocate():
    """More than a session has set aside for its small allocations, so that it must show."""
    size = 512 << 20
    library, address = cuda(), ctypes.c_uint64()
    must(nvml.nvmlInit_v2())
    device = handle(0)
    before = memory(device).used
    assert library.cuMemAlloc_v2(byref(address), ctypes.c_size_t(size)) == 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert library.cuMemGetInfo_v2(byref(free), byref(total)) == 0
    during = memory(device)
    assert library.cuMemFree_v2(address) == 0
    assert library.cuCtxSynchronize() == 0
    second = Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
    must(nvml.nvmlDeviceGetMemoryInfo_v2(device, byref(second)))
    assert second.total == second.free + second.used + second.reserved
    print(json.dumps({"size": size, "before": before, "during": during.used, "after": second.used, "total": total.value}))


def count_calls():
    number, device = c_uint(), c_void_p()
    assert nvml.nvmlDeviceGetCount_v2(byref(number)) == UNINITIALIZED
    assert nvml.nvmlShutdown() == UNINITIALIZED
    for init in (nvml.nvmlInit, nvml.nvmlInit_v2, lambda: nvml.nvmlInitWithFlags(0)):
        must(init())
    for left in (2, 1, 0):
        assert count() == 1, left
        must(nvml.nvmlShutdown())
    assert nvml.nvmlDeviceGetCount_v2(byref(number)) == UNINITIALIZED
    must(nvml.nvmlInit_v2())
    assert nvml.nvmlDeviceGetHandleByIndex_v2(1, byref(device)) == INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetHandleByUUID(b"GPU-nobody", byref(device)) == NOT_FOUND
    good = handle(0)
    assert nvml.nvmlDeviceGetName(good, create_string_buffer(4), 4) == INSUFFICIENT_SIZE
    assert nvml.nvmlDeviceGetName(good, None, 96) == INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetMemoryInfo(c_void_p(1), byref(Memory())) == INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetTemperature(good, 0, byref(number)) == NOT_SUPPORTED
    assert nvml.nvmlDeviceGetNvLinkState(good, 0, byref(number)) == NOT_SUPPORTED
    assert nvml.nvmlDeviceSetPersistenceMode(good, 1) == NO_PERMISSION
    table = c_void_p()
    assert nvml.nvmlInternalGetExportTable(byref(table), b"sixteen bytes id") == FUNCTION_NOT_FOUND and not table.value


def fork():
    must(nvml.nvmlInit_v2())
    device = handle(0)

    def asks(times=300):
        return all(memory(device).total > 0 for _ in range(times))

    good = []
    threads = [threading.Thread(target=lambda: good.append(asks())) for _ in range(2)]
    for thread in threads:
        thread.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if asks() and nvml.nvmlShutdown() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child"
    for thread in threads:
        thread.join()
    assert good == [True, True] and asks(), "the parent"


def busy():
    must(nvml.nvmlInit_v2())
    device, rates = handle(0), Rates()
    while True:
        must(nvml.nvmlDeviceGetUtilizationRates(device, byref(rates)))
        print(f"gpu {rates.gpu} memory {rates.memory}", flush=True)
        time.sleep(0.2)


def poll():
    must(nvml.nvmlInit_v2())
    device, answer = handle(0), Memory()
    print("polling", flush=True)
    good = time.monotonic()
    while (code := nvml.nvmlDeviceGetMemoryInfo(device, byref(answer))) == 0:
        good = time.monotonic()
        time.sleep(0.005)
    print(f"code {code} after {time.monotonic() - good:.3f}", flush=True)
    for _ in range(100):
        assert nvml.nvmlDeviceGetMemoryInfo(device, byref(answer)) == code
    print(f"still {time.monotonic() - good:.3f}", flush=True)
    must(nvml.nvmlShutdown())


{"show": show, "allocate": allocate, "count": count_calls, "fork": fork, "busy": busy, "poll": poll}[sys.argv[1]]()
