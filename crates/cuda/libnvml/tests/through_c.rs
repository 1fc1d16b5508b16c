//! The library as C programs call it: by the signatures of NVML's header, against a worker in processes of its own.
//!
//! One test, for what it changes (the environment, whether NVML is initialised) belongs to the whole process.

use cuda_abi::{CuResult, CudaError};
use cuda_driver::StatusSource;
use cuda_wire::DeviceStatus;
use cuda_worker::{FrontConfig, FrontHandle, Grant, NoDevices, SessionConfig, SessionSpawn, serve_listener};
use driver_nvidia::NvidiaStatus;
use nvml_wrapper_sys::bindings::*;
use std::{
    ffi::{CStr, CString, c_char},
    mem::{MaybeUninit, zeroed},
    os::fd::AsFd,
    path::{Path, PathBuf},
    ptr::{null, null_mut},
    time::{Duration, Instant},
};
use testkit::samples;

const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const TIMEOUT: u32 = 10;
const GPU_IS_LOST: u32 = 15;
const VERSION_MISMATCH: u32 = 25;

/// A device that has everything, and one that has nothing but its name.
struct TwoDevices;

fn bare() -> DeviceStatus {
    DeviceStatus {
        name: "bare".to_owned(),
        uuid: "GPU-ffffffff-0000-0000-0000-000000000001".to_owned(),
        pci_bus: 2,
        ..DeviceStatus::default()
    }
}

impl StatusSource for TwoDevices {
    fn device_count(&self) -> u32 {
        2
    }

    fn device_status(&self, device: u32) -> CuResult<DeviceStatus> {
        [samples::device_status(), bare()].get(device as usize).cloned().ok_or(CudaError::INVALID_DEVICE)
    }
}

/// Not a test: the worker's processes run this, with their control socket as standard input.
#[test]
#[ignore = "the entry of session processes"]
fn session_process() {
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end = cuda_worker::run_session_process(
        control,
        &|_, _| Err(NoDevices::because("this worker has no driver")),
        &|_, _| Ok(Box::new(TwoDevices)),
    );
    std::process::exit(end.kind.exit_code().into());
}

fn start_worker(directory: &Path) -> FrontHandle {
    let arguments = ["--exact", "session_process", "--ignored", "--nocapture"].map(str::to_owned).to_vec();
    let config = FrontConfig {
        addresses: vec![format!("unix:{}/socket", directory.display()).parse().unwrap()],
        spawn: SessionSpawn { program: std::env::current_exe().unwrap(), arguments },
        session: SessionConfig::new("secret".to_owned()),
        grant: std::sync::Arc::new(|| Ok(Grant::plain(serde_json::Value::Null))),
        sessions_max: 1,
        unauthenticated_max: 16,
        preamble_timeout: Duration::from_secs(2),
        hold: Duration::from_secs(2),
        spares: 0,
        executes_ptx_only: false,
    };
    serve_listener(config, |_| {}).unwrap()
}

fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libnvidia_ml.so")
}

/// Calls a function with places for its answers, which come back if the code is 0.
macro_rules! ask {
    ($lib:ident.$name:ident($($argument:expr),*; $($answer:ident: $ty:ty),+)) => {{
        $(let mut $answer = MaybeUninit::<$ty>::zeroed();)+
        // SAFETY: the arguments are what the header asks for; the answers are of its types.
        let code = unsafe { $lib.$name($($argument,)* $($answer.as_mut_ptr()),+) };
        // SAFETY: zeroed at first; all answers are numbers or arrays of them.
        if code == 0 { Ok(unsafe { ($($answer.assume_init()),+) }) } else { Err(code) }
    }};
}

/// How long a worker may be silent before the library takes it for lost. Longer than this test may ever take: a worker that
/// is noticed earlier was noticed by its closed connection.
const SILENCE: Duration = Duration::from_secs(600);

/// Text answers, with a buffer of `length`.
fn text(length: u32, call: impl FnOnce(*mut c_char, u32) -> u32) -> Result<String, u32> {
    let mut buffer = vec![0x55u8; 256];
    match call(buffer.as_mut_ptr().cast(), length) {
        0 => Ok(CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap().to_owned()),
        code => Err(code),
    }
}

#[test]
fn a_c_program_sees_the_devices_of_its_worker() {
    let directory = tempfile::tempdir().unwrap();
    let worker = start_worker(directory.path());
    // SAFETY: this is the only test of the process, and nothing else has started a thread that reads the environment.
    unsafe { std::env::set_var("DXPU_WORKER", worker.addresses()[0].to_string()) };
    // SAFETY: as above.
    unsafe { std::env::set_var("DXPU_STALL_TIMEOUT", format!("{}s", SILENCE.as_secs())) };
    // SAFETY: as above.
    unsafe { std::env::set_var("DXPU_TOKEN", "wrong") };
    // SAFETY: loading our own library runs nothing but Rust's start-up.
    let nvml = unsafe { NvmlLib::new(library()) }.unwrap();

    before_init(&nvml);
    // SAFETY: takes nothing.
    assert_eq!(unsafe { nvml.nvmlInit_v2() }, NO_PERMISSION, "the token is wrong");
    // SAFETY: as above.
    unsafe { std::env::set_var("DXPU_TOKEN", "secret") };
    // SAFETY: takes nothing.
    assert_eq!(unsafe { nvml.nvmlInit_v2() }, 0);
    let (full, bare) = devices(&nvml);
    identity(&nvml, full);
    numbers(&nvml, full);
    structures(&nvml, full);
    fields(&nvml, full);
    what_is_absent_is_not_supported(&nvml, bare);
    bad_arguments(&nvml, full);
    events_and_neighbours(&nvml, full, bare);
    round_trip();
    private_table(full);
    counted(&nvml, full);
    forked(&nvml, full);
    lost(&nvml, full, worker, directory.path());
}

fn before_init(nvml: &NvmlLib) {
    assert_eq!(ask!(nvml.nvmlDeviceGetCount_v2(; count: u32)), Err(UNINITIALIZED));
    assert_eq!(
        ask!(nvml.nvmlDeviceGetMemoryInfo(null_mut(); memory: nvmlMemory_t)).err(),
        Some(UNINITIALIZED)
    );
    // SAFETY: takes nothing.
    assert_eq!(unsafe { nvml.nvmlShutdown() }, UNINITIALIZED);
    // SAFETY: refused whatever it is.
    assert_eq!(unsafe { nvml.nvmlDeviceSetPersistenceMode(null_mut(), 1) }, UNINITIALIZED);
    // SAFETY: any number may be asked for; the answer is text that stays.
    let words = unsafe { CStr::from_ptr(nvml.nvmlErrorString(UNINITIALIZED)) };
    assert_eq!(words, c"Uninitialized");
}

fn devices(nvml: &NvmlLib) -> (nvmlDevice_t, nvmlDevice_t) {
    assert_eq!(ask!(nvml.nvmlDeviceGetCount_v2(; count: u32)), Ok(2));
    assert_eq!(ask!(nvml.nvmlDeviceGetCount(; count: u32)), Ok(2));
    let full = ask!(nvml.nvmlDeviceGetHandleByIndex_v2(0; device: nvmlDevice_t)).unwrap();
    let bare = ask!(nvml.nvmlDeviceGetHandleByIndex(1; device: nvmlDevice_t)).unwrap();
    assert_ne!(full, bare);
    assert_eq!(ask!(nvml.nvmlDeviceGetHandleByIndex_v2(2; device: nvmlDevice_t)), Err(INVALID_ARGUMENT));
    assert_eq!(ask!(nvml.nvmlDeviceGetIndex(bare; index: u32)), Ok(1));
    let by = |text: &str| CString::new(text).unwrap();
    let uuid = by(&samples::device_status().uuid.to_uppercase());
    assert_eq!(ask!(nvml.nvmlDeviceGetHandleByUUID(uuid.as_ptr(); device: nvmlDevice_t)), Ok(full));
    let unknown = by("GPU-00000000-0000-0000-0000-000000000000");
    assert_eq!(ask!(nvml.nvmlDeviceGetHandleByUUID(unknown.as_ptr(); device: nvmlDevice_t)), Err(NOT_FOUND));
    let serial = by("1650000000000");
    assert_eq!(ask!(nvml.nvmlDeviceGetHandleBySerial(serial.as_ptr(); device: nvmlDevice_t)), Ok(full));
    for id in ["00000010:1B:06.0", "0010:1b:06.0", "1b:06.0"] {
        let id = by(id);
        assert_eq!(ask!(nvml.nvmlDeviceGetHandleByPciBusId_v2(id.as_ptr(); device: nvmlDevice_t)), Ok(full));
    }
    let elsewhere = by("0011:1b:06.0");
    let found = ask!(nvml.nvmlDeviceGetHandleByPciBusId_v2(elsewhere.as_ptr(); device: nvmlDevice_t));
    assert_eq!(found, Err(NOT_FOUND));
    // SAFETY: all zeros is a valid value of a C structure of numbers.
    let mut binary: nvmlUUID_v1_t = unsafe { zeroed() };
    binary.version = size_of::<nvmlUUID_v1_t>() as u32 | 1 << 24;
    binary.type_ = nvmlUUIDType_t_NVML_UUID_TYPE_BINARY;
    binary.value.bytes = std::array::from_fn(|at| at as u8 + 1);
    assert_eq!(ask!(nvml.nvmlDeviceGetHandleByUUIDV(&raw const binary; device: nvmlDevice_t)), Ok(full));
    (full, bare)
}

fn identity(nvml: &NvmlLib, device: nvmlDevice_t) {
    macro_rules! says {
        ($($name:ident($($first:expr),*) $expected:expr;)*) => {$(
            // SAFETY: the buffer is as long as it is said to be, or longer.
            let ask = |length| text(length, |buffer, length| unsafe { nvml.$name($($first,)* buffer, length) });
            assert_eq!(ask(200).as_deref(), Ok($expected), stringify!($name));
            assert_eq!(ask($expected.len() as u32), Err(INSUFFICIENT_SIZE), stringify!($name));
        )*};
    }
    says! {
        nvmlSystemGetDriverVersion() "580.159.04";
        nvmlSystemGetNVMLVersion() "13.580.159.04";
        nvmlDeviceGetName(device) "NVIDIA H200";
        nvmlDeviceGetUUID(device) "GPU-01020304-0506-0708-090a-0b0c0d0e0f10";
        nvmlDeviceGetSerial(device) "1650000000000";
        nvmlDeviceGetBoardPartNumber(device) "965-2G520-0041-0R0";
        nvmlDeviceGetVbiosVersion(device) "96.00.A5.00.1A";
        nvmlDeviceGetInforomImageVersion(device) "G520.0282.02.02";
        nvmlDeviceGetInforomVersion(device, 1) "7.16";
    }
    assert_eq!(ask!(nvml.nvmlSystemGetCudaDriverVersion_v2(; version: i32)), Ok(13000));
    assert_eq!(ask!(nvml.nvmlDeviceGetCudaComputeCapability(device; major: i32, minor: i32)), Ok((9, 0)));
    // SAFETY: the buffer has more than the 64 bytes that are documented.
    let firmware = text(64, |buffer, _| unsafe { nvml.nvmlDeviceGetGspFirmwareVersion(device, buffer) });
    assert_eq!(firmware.as_deref(), Ok("580.159.04"));
    // SAFETY: the buffer is as long as it is said to be.
    let name = text(200, |buffer, length| unsafe {
        nvml.nvmlSystemGetProcessName(std::process::id(), buffer, length)
    });
    assert!(name.unwrap().contains("through_c"));
}

fn numbers(nvml: &NvmlLib, device: nvmlDevice_t) {
    macro_rules! says {
        ($($name:ident($($argument:expr),*) $ty:ty: $expected:expr;)*) => {$(
            assert_eq!(ask!(nvml.$name(device $(, $argument)*; value: $ty)), Ok($expected), stringify!($name));
        )*};
    }
    says! {
        nvmlDeviceGetBrand() u32: 14;
        nvmlDeviceGetArchitecture() u32: 9;
        nvmlDeviceGetNumGpuCores() u32: 16896;
        nvmlDeviceGetMinorNumber() u32: 3;
        nvmlDeviceGetBoardId() u32: 0x600;
        nvmlDeviceGetMultiGpuBoard() u32: 0;
        nvmlDeviceGetModuleId() u32: 2;
        nvmlDeviceGetBusType() u32: 2;
        nvmlDeviceGetCurrPcieLinkGeneration() u32: 4;
        nvmlDeviceGetMaxPcieLinkGeneration() u32: 5;
        nvmlDeviceGetGpuMaxPcieLinkGeneration() u32: 6;
        nvmlDeviceGetCurrPcieLinkWidth() u32: 8;
        nvmlDeviceGetMaxPcieLinkWidth() u32: 16;
        nvmlDeviceGetPcieSpeed() u32: 32000;
        nvmlDeviceGetPcieLinkMaxSpeed() u32: 5;
        nvmlDeviceGetPcieReplayCounter() u32: 7;
        nvmlDeviceGetMemoryBusWidth() u32: 6144;
        nvmlDeviceGetTemperature(0) u32: 31;
        nvmlDeviceGetTemperatureThreshold(3) u32: 87;
        nvmlDeviceGetNumFans() u32: 2;
        nvmlDeviceGetFanSpeed() u32: 30;
        nvmlDeviceGetFanSpeed_v2(1) u32: 33;
        nvmlDeviceGetPowerUsage() u32: 124_170;
        nvmlDeviceGetPowerManagementLimit() u32: 650_000;
        nvmlDeviceGetPowerManagementDefaultLimit() u32: 700_000;
        nvmlDeviceGetEnforcedPowerLimit() u32: 640_000;
        nvmlDeviceGetPowerManagementMode() u32: 1;
        nvmlDeviceGetTotalEnergyConsumption() u64: 1 << 40;
        nvmlDeviceGetPowerSource() u32: 0;
        nvmlDeviceGetClockInfo(1) u32: 1981;
        nvmlDeviceGetMaxClockInfo(2) u32: 3202;
        nvmlDeviceGetApplicationsClock(0) u32: 1984;
        nvmlDeviceGetDefaultApplicationsClock(2) u32: 3204;
        nvmlDeviceGetMaxCustomerBoostClock(0) u32: 1986;
        nvmlDeviceGetClock(3, 0) u32: 1545;
        nvmlDeviceGetClock(2, 1) u32: 3203;
        nvmlDeviceGetCurrentClocksEventReasons() u64: 1 << 33;
        nvmlDeviceGetCurrentClocksThrottleReasons() u64: 1 << 33;
        nvmlDeviceGetSupportedClocksEventReasons() u64: 0x1ff;
        nvmlDeviceGetPerformanceState() u32: 2;
        nvmlDeviceGetPersistenceMode() u32: 1;
        nvmlDeviceGetComputeMode() u32: 3;
        nvmlDeviceGetDisplayMode() u32: 0;
        nvmlDeviceGetDisplayActive() u32: 1;
        nvmlDeviceGetAccountingMode() u32: 1;
        nvmlDeviceGetAccountingBufferSize() u32: 4000;
        nvmlDeviceGetVirtualizationMode() u32: 1;
        nvmlDeviceGetDefaultEccMode() u32: 1;
        nvmlDeviceIsMigDeviceHandle() u32: 0;
        nvmlDeviceGetTotalEccErrors(1, 0) u64: 5;
        nvmlDeviceGetMemoryErrorCounter(0, 1, 2) u64: 1 << 33;
    }
    macro_rules! pairs {
        ($($name:ident $expected:expr;)*) => {$(
            assert_eq!(ask!(nvml.$name(device; first: u32, second: u32)), Ok($expected), stringify!($name));
        )*};
    }
    pairs! {
        nvmlDeviceGetGspFirmwareMode (1, 1);
        nvmlDeviceGetEncoderUtilization (11, 167_000);
        nvmlDeviceGetDecoderUtilization (12, 167_001);
        nvmlDeviceGetJpgUtilization (13, 167_002);
        nvmlDeviceGetOfaUtilization (14, 167_003);
        nvmlDeviceGetPowerManagementLimitConstraints (200_000, 710_000);
        nvmlDeviceGetAutoBoostedClocksEnabled (1, 0);
        nvmlDeviceGetGpuOperationMode (0, 1);
        nvmlDeviceGetMigMode (0, 1);
        nvmlDeviceGetEccMode (1, 0);
    }
    let stats = ask!(nvml.nvmlDeviceGetEncoderStats(device; sessions: u32, frames: u32, latency: u32));
    assert_eq!(stats, Ok((1, 2, 3)));
    let rows = ask!(nvml.nvmlDeviceGetRemappedRows(device; good: u32, bad: u32, pending: u32, failed: u32));
    assert_eq!(rows, Ok((1, 2, 0, 1)));
}

fn structures(nvml: &NvmlLib, device: nvmlDevice_t) {
    let memory = ask!(nvml.nvmlDeviceGetMemoryInfo(device; memory: nvmlMemory_t)).unwrap();
    assert_eq!((memory.total, memory.free), (143_771 << 20, 143_000 << 20));
    assert_eq!(memory.used, (155 + 616) << 20, "the first version counts reserved memory as used");
    // SAFETY: all zeros is a valid value of a C structure of numbers.
    let mut second: nvmlMemory_v2_t = unsafe { zeroed() };
    // SAFETY: a structure of the header, though its version word is missing.
    assert_eq!(unsafe { nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut second) }, VERSION_MISMATCH);
    second.version = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;
    // SAFETY: a structure of the header.
    assert_eq!(unsafe { nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut second) }, 0);
    assert_eq!((second.used, second.reserved, second.free), (155 << 20, 616 << 20, 143_000 << 20));

    let use_ = ask!(nvml.nvmlDeviceGetUtilizationRates(device; rates: nvmlUtilization_t)).unwrap();
    assert_eq!((use_.gpu, use_.memory), (80, 9));
    let bar = ask!(nvml.nvmlDeviceGetBAR1MemoryInfo(device; memory: nvmlBAR1Memory_t)).unwrap();
    assert_eq!((bar.bar1Total, bar.bar1Free, bar.bar1Used), (1 << 38, (1 << 38) - 1, 1));
    let pci = ask!(nvml.nvmlDeviceGetPciInfo_v3(device; pci: nvmlPciInfo_t)).unwrap();
    assert_eq!((pci.domain, pci.bus, pci.device), (0x10, 0x1b, 6));
    assert_eq!((pci.pciDeviceId, pci.pciSubSystemId), (0x2335_10de, 0x18bf_10de));
    let written = |text: &[c_char]| {
        let bytes: Vec<u8> = text.iter().map(|&byte| byte as u8).collect();
        CStr::from_bytes_until_nul(&bytes).unwrap().to_str().unwrap().to_owned()
    };
    assert_eq!(written(&pci.busId), "00000010:1B:06.0");
    assert_eq!(written(&pci.busIdLegacy), "0010:1B:06.0");
    // SAFETY: all zeros is a valid value of a C structure of numbers.
    let mut ext: nvmlPciInfoExt_v1_t = unsafe { zeroed() };
    ext.version = size_of::<nvmlPciInfoExt_v1_t>() as u32 | 1 << 24;
    // SAFETY: a structure of the header.
    assert_eq!(unsafe { nvml.nvmlDeviceGetPciInfoExt(device, &raw mut ext) }, 0);
    assert_eq!((ext.baseClass, ext.subClass, ext.bus), (3, 2, 0x1b));
    let ecc = ask!(nvml.nvmlDeviceGetDetailedEccErrors(device, 0, 1; counts: nvmlEccErrorCounts_t)).unwrap();
    assert_eq!((ecc.deviceMemory, ecc.l1Cache), (1 << 33, 0));
    let banks = ask!(nvml.nvmlDeviceGetRowRemapperHistogram(device; banks: nvmlRowRemapperHistogramValues_t));
    let banks = banks.unwrap();
    assert_eq!((banks.max, banks.high, banks.partial, banks.low, banks.none), (3072, 4, 3, 2, 1));
    let capture = ask!(nvml.nvmlDeviceGetFBCStats(device; stats: nvmlFBCStats_t)).unwrap();
    assert_eq!((capture.sessionsCount, capture.averageFPS, capture.averageLatency), (4, 5, 6));
    // SAFETY: all zeros is a valid value of a C structure of numbers.
    let mut margin: nvmlMarginTemperature_v1_t = unsafe { zeroed() };
    margin.version = size_of::<nvmlMarginTemperature_v1_t>() as u32 | 1 << 24;
    // SAFETY: a structure of the header.
    assert_eq!(unsafe { nvml.nvmlDeviceGetMarginTemperature(device, &raw mut margin) }, 0);
    assert_eq!(margin.marginTemperature, -8);
    // SAFETY: all zeros is a valid value of a C structure of numbers.
    let mut heat: nvmlTemperature_v1_t = unsafe { zeroed() };
    heat.version = size_of::<nvmlTemperature_v1_t>() as u32 | 1 << 24;
    // SAFETY: a structure of the header.
    assert_eq!(unsafe { nvml.nvmlDeviceGetTemperatureV(device, &raw mut heat) }, 0);
    assert_eq!(heat.temperature, 31);
    // SAFETY: all zeros is a valid value of a C structure of numbers.
    let mut pdi: nvmlPdi_v1_t = unsafe { zeroed() };
    pdi.version = size_of::<nvmlPdi_v1_t>() as u32 | 1 << 24;
    // SAFETY: a structure of the header.
    assert_eq!(unsafe { nvml.nvmlDeviceGetPdi(device, &raw mut pdi) }, 0);
    assert_eq!(pdi.value, 0x11ef_4534_cd5e_49ba);
}

fn fields(nvml: &NvmlLib, device: nvmlDevice_t) {
    // SAFETY: all zeros is a valid value of a C structure of numbers.
    let mut values: [nvmlFieldValue_t; 3] = unsafe { zeroed() };
    for (value, (field, scope)) in values.iter_mut().zip([(185, 2), (185, 0), (1, 2)]) {
        (value.fieldId, value.scopeId) = (field, scope);
    }
    // SAFETY: three structures of the header.
    assert_eq!(unsafe { nvml.nvmlDeviceGetFieldValues(device, 3, values.as_mut_ptr()) }, 0);
    assert_eq!((values[0].nvmlReturn, values[0].valueType), (0, 5));
    // SAFETY: the bits of a signed number.
    assert_eq!(unsafe { values[0].value.sllVal }, -9);
    assert!(values[0].timestamp > 0);
    assert_eq!((values[1].nvmlReturn, values[2].nvmlReturn), (NOT_SUPPORTED, NOT_SUPPORTED));
    // SAFETY: refused before anything is read.
    assert_eq!(unsafe { nvml.nvmlDeviceGetFieldValues(device, 0, values.as_mut_ptr()) }, INVALID_ARGUMENT);
    // SAFETY: null is refused.
    assert_eq!(unsafe { nvml.nvmlDeviceGetFieldValues(device, 1, null_mut()) }, INVALID_ARGUMENT);
}

fn what_is_absent_is_not_supported(nvml: &NvmlLib, device: nvmlDevice_t) {
    macro_rules! lacks {
        ($($name:ident($($argument:expr),*) $ty:ty;)*) => {$(
            let code = ask!(nvml.$name(device $(, $argument)*; value: $ty)).err();
            assert_eq!(code, Some(NOT_SUPPORTED), stringify!($name));
        )*};
    }
    lacks! {
        nvmlDeviceGetTemperature(0) u32;
        nvmlDeviceGetTemperatureThreshold(0) u32;
        nvmlDeviceGetPowerUsage() u32;
        nvmlDeviceGetFanSpeed() u32;
        nvmlDeviceGetFanSpeed_v2(0) u32;
        nvmlDeviceGetClockInfo(0) u32;
        nvmlDeviceGetUtilizationRates() nvmlUtilization_t;
        nvmlDeviceGetMinorNumber() u32;
        nvmlDeviceGetBAR1MemoryInfo() nvmlBAR1Memory_t;
        nvmlDeviceGetDetailedEccErrors(0, 0) nvmlEccErrorCounts_t;
        nvmlDeviceGetTotalEccErrors(0, 0) u64;
        nvmlDeviceGetNumaNodeId() u32;
    }
    // SAFETY: the buffer is as long as it is said to be.
    let serial = text(200, |buffer, length| unsafe { nvml.nvmlDeviceGetSerial(device, buffer, length) });
    assert_eq!(serial, Err(NOT_SUPPORTED));
}

fn bad_arguments(nvml: &NvmlLib, device: nvmlDevice_t) {
    for handle in [null_mut(), 0x1000 as nvmlDevice_t, (device as usize + 1) as nvmlDevice_t] {
        assert_eq!(ask!(nvml.nvmlDeviceGetPowerUsage(handle; power: u32)), Err(INVALID_ARGUMENT));
    }
    // SAFETY: null is refused.
    assert_eq!(unsafe { nvml.nvmlDeviceGetPowerUsage(device, null_mut()) }, INVALID_ARGUMENT);
    // SAFETY: null is refused.
    assert_eq!(unsafe { nvml.nvmlDeviceGetName(device, null_mut(), 96) }, INVALID_ARGUMENT);
    // SAFETY: null is refused.
    assert_eq!(unsafe { nvml.nvmlDeviceGetHandleByUUID(null(), null_mut()) }, INVALID_ARGUMENT);
    assert_eq!(ask!(nvml.nvmlDeviceGetTemperature(device, 1; celsius: u32)), Err(INVALID_ARGUMENT));
    assert_eq!(ask!(nvml.nvmlDeviceGetTemperatureThreshold(device, 8; celsius: u32)), Err(INVALID_ARGUMENT));
    assert_eq!(ask!(nvml.nvmlDeviceGetClockInfo(device, 4; mhz: u32)), Err(INVALID_ARGUMENT));
    assert_eq!(ask!(nvml.nvmlDeviceGetTotalEccErrors(device, 2, 0; count: u64)), Err(INVALID_ARGUMENT));
    // SAFETY: refused whatever it is.
    assert_eq!(unsafe { nvml.nvmlDeviceSetPersistenceMode(device, 1) }, NO_PERMISSION);
    // SAFETY: refused whatever it is.
    assert_eq!(unsafe { nvml.nvmlDeviceSetPowerManagementLimit(device, 1) }, NO_PERMISSION);
}

fn events_and_neighbours(nvml: &NvmlLib, first: nvmlDevice_t, second: nvmlDevice_t) {
    assert_eq!(ask!(nvml.nvmlDeviceGetSupportedEventTypes(first; types: u64)), Ok(0));
    let set = ask!(nvml.nvmlEventSetCreate(; set: nvmlEventSet_t)).unwrap();
    // SAFETY: the set is a good one.
    assert_eq!(unsafe { nvml.nvmlDeviceRegisterEvents(first, 8, set) }, NOT_SUPPORTED);
    let start = Instant::now();
    // SAFETY: all zeros is a valid value of a C structure of numbers and pointers.
    let mut data: nvmlEventData_t = unsafe { zeroed() };
    // SAFETY: the set and the structure are good ones.
    assert_eq!(unsafe { nvml.nvmlEventSetWait_v2(set, &raw mut data, 50) }, TIMEOUT);
    assert!(start.elapsed() >= Duration::from_millis(50));
    // SAFETY: the set is a good one.
    assert_eq!(unsafe { nvml.nvmlEventSetFree(set) }, 0);
    // SAFETY: a wrong one is refused.
    assert_eq!(unsafe { nvml.nvmlEventSetFree(null_mut()) }, INVALID_ARGUMENT);

    assert_eq!(ask!(nvml.nvmlDeviceGetTopologyCommonAncestor(first, second; level: u32)), Ok(50));
    assert_eq!(ask!(nvml.nvmlDeviceGetTopologyCommonAncestor(first, first; level: u32)), Ok(0));
    assert_eq!(ask!(nvml.nvmlDeviceGetP2PStatus(first, second, 2; status: u32)), Ok(5));
    let mut count = 9;
    // SAFETY: a count and no place for more.
    let code = unsafe { nvml.nvmlDeviceGetComputeRunningProcesses_v3(first, &raw mut count, null_mut()) };
    assert_eq!((code, count), (0, 0));
    assert_eq!(ask!(nvml.nvmlUnitGetCount(; units: u32)), Ok(0));
}

/// What nvidia-smi does first: it takes its table and asks for the bus ids and processes of all devices.
fn private_table(device: nvmlDevice_t) {
    type GetTable = unsafe extern "C" fn(*mut *const usize, *const u8) -> u32;
    type BusId = unsafe extern "C" fn(u32, *mut c_char) -> u32;
    type Processes = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut u8) -> u32;
    type Log = unsafe extern "C" fn(*const c_char, ...) -> u32;
    let name = CString::new(library().to_str().unwrap()).unwrap();
    // SAFETY: opens the library that is loaded already.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the handle is good, and the name ends with a zero.
    let get = unsafe { libc::dlsym(handle, c"nvmlInternalGetExportTable".as_ptr()) };
    // SAFETY: that is its type.
    let get: GetTable = unsafe { std::mem::transmute(get) };
    let mut table: *const usize = null();
    // SAFETY: a place and an id of 16 bytes.
    assert_eq!(unsafe { get(&raw mut table, [7; 16].as_ptr()) }, 13, "there is no such table");
    assert!(table.is_null());
    let id = 0xc4fe3e6c_c98f_6c4e_a327_ee696e12f7c4_u128.to_be_bytes();
    // SAFETY: null is refused.
    assert_eq!(unsafe { get(null_mut(), id.as_ptr()) }, INVALID_ARGUMENT);
    // SAFETY: a place and an id of 16 bytes.
    assert_eq!(unsafe { get(&raw mut table, id.as_ptr()) }, 0);
    // SAFETY: the first word is the size of the table, which is as long as it says.
    let words = unsafe { std::slice::from_raw_parts(table, *table / size_of::<usize>()) };
    assert_eq!(size_of_val(words), 0x870, "as long as driver 580's");
    assert!(words.iter().all(|word| *word != 0), "an empty place would crash its caller");
    // SAFETY: that is its type.
    let bus_id: BusId = unsafe { std::mem::transmute(words[81]) };
    // SAFETY: the buffer is longer than any bus id.
    let ask = |index| text(0, |buffer, _| unsafe { bus_id(index, buffer) });
    assert_eq!((ask(0).as_deref(), ask(1).as_deref()), (Ok("0010:1B:06.0"), Ok("0000:02:00.0")));
    assert_eq!(ask(2), Err(INVALID_ARGUMENT));
    for word in &words[213..=215] {
        // SAFETY: that is its type.
        let processes: Processes = unsafe { std::mem::transmute(*word) };
        let mut count = 500;
        // SAFETY: a device, a count and no place for more.
        assert_eq!((unsafe { processes(device, &raw mut count, null_mut()) }, count), (0, 0));
    }
    // SAFETY: that is its type.
    let log: Log = unsafe { std::mem::transmute(words[26]) };
    // SAFETY: texts that end with a zero.
    assert_eq!(unsafe { log(c"%s %d".as_ptr(), c"text".as_ptr(), 5) }, 0);
    // SAFETY: takes whatever it is given.
    let other: Processes = unsafe { std::mem::transmute(words[231]) };
    // SAFETY: as above.
    assert_eq!(unsafe { other(device, null_mut(), null_mut()) }, NOT_SUPPORTED);
}

/// What a worker reads from a real NVML, read from ours: everything that was put in comes out again.
fn round_trip() {
    let uuids = [samples::device_status().uuid, bare().uuid];
    let source = NvidiaStatus::of(library().as_os_str(), 13000, &uuids, None).unwrap();
    assert_eq!(source.device_count(), 2);
    assert_eq!(source.device_status(0), Ok(samples::device_status()));
    let seen = source.device_status(1).unwrap();
    assert_eq!((seen.name.as_str(), seen.temperature_c, seen.fields.len()), ("bare", None, 0));
    assert_eq!(source.device_status(2), Err(CudaError::INVALID_DEVICE));
    let limited = NvidiaStatus::of(library().as_os_str(), 13000, &uuids, Some(1 << 30)).unwrap();
    assert_eq!(limited.device_status(0).unwrap().memory_total_bytes, 1 << 30);
    let stranger = "GPU-00000000-0000-0000-0000-000000000000".to_owned();
    assert!(NvidiaStatus::of(library().as_os_str(), 13000, &[stranger], None).is_err());
    assert!(NvidiaStatus::of("libnothing.so.1".as_ref(), 13000, &uuids, None).is_err());
}

fn counted(nvml: &NvmlLib, device: nvmlDevice_t) {
    let usable = || ask!(nvml.nvmlDeviceGetPowerUsage(device; power: u32));
    // SAFETY: takes flags.
    assert_eq!(unsafe { nvml.nvmlInitWithFlags(1) }, 0);
    // SAFETY: takes nothing.
    assert_eq!(unsafe { nvml.nvmlShutdown() }, 0);
    assert!(usable().is_ok(), "the first nvmlInit still holds");
    // SAFETY: takes nothing.
    assert_eq!(unsafe { nvml.nvmlShutdown() }, 0);
    assert_eq!(usable(), Err(UNINITIALIZED));
    // SAFETY: takes nothing.
    assert_eq!(unsafe { nvml.nvmlShutdown() }, UNINITIALIZED);
    // SAFETY: takes nothing.
    assert_eq!(unsafe { nvml.nvmlInit() }, 0);
    assert!(usable().is_ok(), "a handle stays good, as NVIDIA's do");
}

/// A child asks over a connection of its own while the parent's threads ask over theirs.
fn forked(nvml: &NvmlLib, device: nvmlDevice_t) {
    extern "C" fn ask_on(nvml: &NvmlLib, device: nvmlDevice_t) -> bool {
        (0..200).all(|_| ask!(nvml.nvmlDeviceGetPowerUsage(device; power: u32)) == Ok(124_170))
    }
    let device = device as usize;
    std::thread::scope(|scope| {
        let (asks, hears) = std::sync::mpsc::channel();
        let parent = scope.spawn(move || {
            let first = ask_on(nvml, device as nvmlDevice_t);
            asks.send(()).unwrap();
            first && ask_on(nvml, device as nvmlDevice_t)
        });
        // From here on the parent's thread is between two questions, or in one.
        hears.recv().unwrap();
        // SAFETY: the child calls NVML, which handles forks, and leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let good = ask_on(nvml, device as nvmlDevice_t);
            // SAFETY: ends the child without running the parent's handlers.
            unsafe { libc::_exit(if good { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child");
        assert!(parent.join().unwrap(), "the parent");
    });
    assert!(ask_on(nvml, device as nvmlDevice_t), "the parent afterwards");
}

fn lost(nvml: &NvmlLib, device: nvmlDevice_t, worker: FrontHandle, directory: &Path) {
    worker.stop();
    let start = Instant::now();
    assert_eq!(ask!(nvml.nvmlDeviceGetPowerUsage(device; power: u32)), Err(GPU_IS_LOST));
    assert_eq!(ask!(nvml.nvmlDeviceGetMemoryInfo(device; memory: nvmlMemory_t)).err(), Some(GPU_IS_LOST));
    assert!(start.elapsed() < SILENCE, "a worker that has closed its connection is lost, not silent");
    let again = start_worker(directory);
    let back = || ask!(nvml.nvmlDeviceGetPowerUsage(device; power: u32)) == Ok(124_170);
    while !back() {
        assert!(start.elapsed() < SILENCE, "a worker that is back is found again");
        std::thread::sleep(Duration::from_millis(50));
    }
    // SAFETY: takes nothing.
    assert_eq!(unsafe { nvml.nvmlShutdown() }, 0);
    again.stop();
    // SAFETY: takes nothing.
    assert_ne!(unsafe { nvml.nvmlInit_v2() }, 0, "nobody is there");
}
