"""What NVML says of the GPU, by pynvml where it is installed and by PyTorch's own use of it."""

import pynvml
from say import attempts, note, same

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def what_it_is():
    same("count", pynvml.nvmlDeviceGetCount())
    same("name", text(pynvml.nvmlDeviceGetName(device)))
    same("driver", text(pynvml.nvmlSystemGetDriverVersion()))
    same("cuda", pynvml.nvmlSystemGetCudaDriverVersion())
    same("capability", pynvml.nvmlDeviceGetCudaComputeCapability(device))
    note("uuid", text(pynvml.nvmlDeviceGetUUID(device)))
    note("nvml", text(pynvml.nvmlSystemGetNVMLVersion()))


def memory():
    found = pynvml.nvmlDeviceGetMemoryInfo(device)
    note("total-free-used", (found.total, found.free, found.used))
    return found.used + found.free <= found.total and found.total > 0


def sensors():
    """Values that move: that they are there and plausible."""
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    temperature = pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU)
    power = pynvml.nvmlDeviceGetPowerUsage(device)
    note("gpu-memory-celsius-milliwatts", (rates.gpu, rates.memory, temperature, power))
    return 0 <= rates.gpu <= 100 and 10 < temperature < 110 and 10_000 < power < 1_500_000


def by_its_name():
    uuid = pynvml.nvmlDeviceGetUUID(device)
    again = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return pynvml.nvmlDeviceGetIndex(again)


def through_pytorch():
    import torch

    torch.ones(10, device="cuda").sum().item()
    note("utilization", torch.cuda.utilization())
    note("temperature", torch.cuda.temperature())
    note("power", torch.cuda.power_draw())
    note("clock", torch.cuda.clock_rate())
    same("memory-rate-is-a-share", 0 <= torch.cuda.memory_usage() <= 100)
    return torch.cuda.utilization() in range(101)


def errors():
    found = []
    for body in (lambda: pynvml.nvmlDeviceGetHandleByIndex(99), lambda: pynvml.nvmlDeviceGetHandleByUUID(b"GPU-none")):
        try:
            body()
            found.append("no error")
        except pynvml.NVMLError as error:
            found.append(str(error))
    return found


attempts(what_it_is, memory, sensors, by_its_name, through_pytorch, errors)
