//! What the machine's NVML says: which GPUs there are, what they measure, and what is wrong with them.

use super::gpm::{Figures, Gpm, Source, whole_percent};
use super::gpu::Reading;
use locks::lock;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample, Nvml as Library};
use pool_api::Counters;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// NVML, and the critical errors (Xid) that it has told of.
pub(crate) struct Nvml {
    /// Never closed: the agent uses it as long as its process lives, and samples that are kept refer to it.
    library: &'static Library,
    critical: Arc<Mutex<HashMap<String, u64>>>,
}

/// The sensors of one GPU. The seat on a GPU has the same ones.
pub(crate) struct Sensors {
    nvml: Arc<Nvml>,
    uuid: String,
    /// Locked for each GPU alone: a broken GPU, whose driver answers late, does not hold up the others.
    gpm: Mutex<Gpm<GpmSample<'static>>>,
}

/// A GPU that NVML shows.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) memory_bytes: u64,
    pub(crate) is_nvlinked: bool,
}

/// Xids that mean that the GPU or its link to the machine is broken, not the program: uncorrectable memory errors (48,
/// 94, 95), row remapping failures (64), a GPU that fell off the bus (79), NVLink (74), and errors of its processors (119,
/// 120, 140).
const FATAL_XIDS: [u64; 9] = [48, 64, 74, 79, 94, 95, 119, 120, 140];
/// NVLinks of one GPU, at most.
const LINKS_MAX: u32 = 18;

impl Nvml {
    pub(crate) fn open() -> Result<Self, NvmlError> {
        let library = Box::leak(Box::new(Library::init()?));
        let nvml = Self { library, critical: Arc::default() };
        nvml.listen();
        Ok(nvml)
    }

    pub(crate) fn gpus(&self) -> Result<Vec<Found>, NvmlError> {
        let found = (0..self.library.device_count()?).map(|index| {
            let device = self.library.device_by_index(index)?;
            let is_nvlinked =
                (0..LINKS_MAX).any(|link| device.link_wrapper_for(link).is_active().unwrap_or(false));
            Ok(Found {
                name: device.name()?,
                uuid: device.uuid()?,
                memory_bytes: device.memory_info()?.total,
                is_nvlinked,
            })
        });
        found.collect()
    }

    /// Hears of critical errors as long as this process lives.
    fn listen(&self) {
        let critical = self.critical.clone();
        let listen = move || -> Result<(), NvmlError> {
            let library = Library::init()?;
            let mut events = library.create_event_set()?;
            for index in 0..library.device_count()? {
                let device = library.device_by_index(index)?;
                events = device
                    .register_events(EventTypes::CRITICAL_XID_ERROR, events)
                    .map_err(|error| error.error)?;
            }
            loop {
                match events.wait(60_000) {
                    Ok(event) => {
                        let (Ok(uuid), Some(XidError::Value(xid))) = (event.device.uuid(), event.event_data)
                        else {
                            continue;
                        };
                        tracing::warn!(uuid, xid, "the driver reports a critical error");
                        if FATAL_XIDS.contains(&xid) {
                            critical.lock().unwrap_or_else(PoisonError::into_inner).insert(uuid, xid);
                        }
                    }
                    Err(NvmlError::Timeout) => {}
                    Err(error) => return Err(error),
                }
            }
        };
        let thread = std::thread::Builder::new().name("dxpu-xid".to_owned());
        let _ = thread.spawn(move || {
            if let Err(error) = listen() {
                tracing::warn!(%error, "NVML does not tell of critical errors");
            }
        });
    }
}

impl Sensors {
    pub(crate) fn new(nvml: Arc<Nvml>, uuid: String) -> Self {
        Self { nvml, uuid, gpm: Mutex::default() }
    }

    pub(crate) fn read(&self) -> Reading {
        let device = match self.nvml.library.device_by_uuid(self.uuid.as_str()) {
            Ok(device) => device,
            Err(error) => {
                // A sample from before says nothing about the time after.
                *lock(&self.gpm) = Gpm::default();
                return Reading {
                    counters: None,
                    fault: Some(format!("NVML does not show it any more: {error}")),
                };
            }
        };
        let activity = lock(&self.gpm).read(&device, Instant::now());
        let counters = Counters {
            utilization_pct: device.utilization_rates().ok().map(|rates| rates.gpu),
            memory_used_bytes: device.memory_info().ok().map(|memory| memory.used),
            temperature_c: device
                .temperature(TemperatureSensor::Gpu)
                .ok()
                .and_then(|t| i32::try_from(t).ok()),
            power_mw: device.power_usage().ok().map(u64::from),
            ecc_uncorrected: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
            sm_activity_pct: whole_percent(activity.sm_activity),
            sm_occupancy_pct: whole_percent(activity.sm_occupancy),
            dram_activity_pct: whole_percent(activity.dram_activity),
        };
        let critical = lock(&self.nvml.critical).get(&self.uuid).copied();
        Reading { fault: fault(&device, &counters, critical), counters: Some(counters) }
    }
}

impl Source for Device<'static> {
    type Sample = GpmSample<'static>;

    fn is_supported(&self) -> Result<bool, NvmlError> {
        self.gpm_support()
    }

    fn sample(&self) -> Result<Self::Sample, NvmlError> {
        self.gpm_sample()
    }

    fn compare(&self, from: &Self::Sample, to: &Self::Sample) -> Result<Figures, NvmlError> {
        let wanted = [GpmMetricId::SmUtil, GpmMetricId::SmOccupancy, GpmMetricId::DramBwUtil];
        let found = gpm_metrics_get(self.nvml(), from, to, &wanted)?;
        let figure = |index: usize| Some(found.get(index)?.as_ref().ok()?.value);
        Ok(Figures { sm_activity: figure(0), sm_occupancy: figure(1), dram_activity: figure(2) })
    }
}

/// What is wrong with a GPU, the worst first.
fn fault(device: &Device<'_>, counters: &Counters, xid: Option<u64>) -> Option<String> {
    if let Some(xid) = xid {
        return Some(format!("the driver reported the critical error Xid {xid}"));
    }
    if counters.ecc_uncorrected.is_some_and(|errors| errors > 0) {
        return Some(format!(
            "{} memory errors could not be corrected",
            counters.ecc_uncorrected.unwrap_or(0)
        ));
    }
    if device.are_pages_pending_retired().unwrap_or(false) {
        return Some("memory pages wait to be retired".to_owned());
    }
    let limit = device.temperature_threshold(TemperatureThreshold::Shutdown).ok();
    match (counters.temperature_c, limit.and_then(|limit| i32::try_from(limit).ok())) {
        (Some(now), Some(limit)) if now >= limit => {
            Some(format!("it is at {now} °C and shuts down at {limit} °C"))
        }
        _ => None,
    }
}
