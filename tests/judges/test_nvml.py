"""NVML through NVIDIA's own Python bindings, both of them: `pynvml` (nvidia-ml-py) and `cuda.bindings.nvml`."""

import multiprocessing

import pynvml
import pytest
from cuda.bindings import driver, nvml


@pytest.fixture
def device():
    pynvml.nvmlInit()
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


def cuda(result):
    assert result[0] == driver.CUresult.CUDA_SUCCESS, result
    return result[1] if len(result) == 2 else result[1:]


@pytest.fixture(scope="module")
def context():
    cuda(driver.cuInit(0) + (None,))
    context = cuda(driver.cuDevicePrimaryCtxRetain(0))
    driver.cuCtxSetCurrent(context)
    yield context
    driver.cuDevicePrimaryCtxRelease(0)


def test_the_device_is_cudas_device(device, context):
    assert pynvml.nvmlDeviceGetCount() == cuda(driver.cuDeviceGetCount())
    name = cuda(driver.cuDeviceGetName(96, 0)).split(b"\0")[0].decode()
    assert pynvml.nvmlDeviceGetName(device) == name
    digits = bytes(cuda(driver.cuDeviceGetUuid(0)).bytes).hex()
    assert pynvml.nvmlDeviceGetUUID(device).removeprefix("GPU-").replace("-", "") == digits
    bus = cuda(driver.cuDeviceGetPCIBusId(32, 0)).split(b"\0")[0].decode()
    assert pynvml.nvmlDeviceGetPciInfo(device).busId.lower().endswith(bus.lower())
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus)) == 0
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device))) == 0
    attribute = driver.CUdevice_attribute
    major = cuda(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0))
    minor = cuda(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0))
    assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == (major, minor)
    assert pynvml.nvmlSystemGetCudaDriverVersion() == cuda(driver.cuDriverGetVersion())
    assert pynvml.nvmlSystemGetDriverVersion() and pynvml.nvmlSystemGetNVMLVersion()


def test_memory_in_both_versions(device, context):
    size = 512 << 20
    before = pynvml.nvmlDeviceGetMemoryInfo(device)
    address = cuda(driver.cuMemAlloc(size))
    during = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    driver.cuMemFree(address)
    assert before.total == during.total == cuda(driver.cuDeviceTotalMem(0))
    assert during.total == during.free + during.used + during.reserved
    # A session has a little set aside, which becomes the first bytes of the allocation.
    assert during.used + during.reserved - before.used >= size - (64 << 20)


def test_percentages_are_percentages(device):
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    assert 0 <= rates.gpu <= 100 and 0 <= rates.memory <= 100


def test_no_process_of_somebody_else_is_shown(device):
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(device) == []
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(device) == []


def test_what_a_soft_gpu_lacks_is_not_supported(device):
    for ask in (
        pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetFanSpeed,
        pynvml.nvmlDeviceGetSerial,
        pynvml.nvmlDeviceGetEccMode,
        pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
        pynvml.nvmlDeviceGetPerformanceState,
        lambda device: pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU),
        lambda device: pynvml.nvmlDeviceGetNvLinkState(device, 0),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            ask(device)


def test_fields_have_codes_of_their_own(device):
    answers = pynvml.nvmlDeviceGetFieldValues(device, [pynvml.NVML_FI_DEV_MEMORY_TEMP, (pynvml.NVML_FI_DEV_POWER_AVERAGE, 2)])
    assert [answer.nvmlReturn for answer in answers] == [pynvml.NVML_ERROR_NOT_SUPPORTED] * 2


def test_a_lent_device_is_not_changed(device):
    for change in (
        lambda: pynvml.nvmlDeviceSetPersistenceMode(device, 1),
        lambda: pynvml.nvmlDeviceSetPowerManagementLimit(device, 100_000),
        lambda: pynvml.nvmlDeviceSetComputeMode(device, 0),
    ):
        with pytest.raises(pynvml.NVMLError_NoPermission):
            change()


def test_bad_arguments_are_named(device):
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(99)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml._nvmlGetFunctionPointer("nvmlDeviceGetTheMoon")


def test_init_and_shutdown_are_counted():
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() >= 1
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def _name_in_a_child(queue):
    queue.put(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))


def test_a_forked_child_goes_on(device):
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    child = fork.Process(target=_name_in_a_child, args=(queue,))
    child.start()
    assert queue.get(timeout=30) == pynvml.nvmlDeviceGetName(device)
    child.join(30)
    assert child.exitcode == 0


def test_the_bindings_of_cuda_python_agree(device):
    nvml.init_v2()
    try:
        assert nvml.device_get_count_v2() == pynvml.nvmlDeviceGetCount()
        handle = nvml.device_get_handle_by_index_v2(0)
        assert nvml.device_get_name(handle) == pynvml.nvmlDeviceGetName(device)
        assert nvml.device_get_uuid(handle) == pynvml.nvmlDeviceGetUUID(device)
        assert nvml.device_get_memory_info_v2(handle).total == pynvml.nvmlDeviceGetMemoryInfo(device).total
        with pytest.raises(nvml.NotSupportedError):
            nvml.device_get_power_usage(handle)
    finally:
        nvml.shutdown()
