//! What the driver sees of a ResourceClaim.

use crate::{
    CONDITION_GRANTED, CONDITION_REFUSED, ConfigError, DRIVER, FINALIZER, GpuConfig, POOL, lease_key,
};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceAllocationConfiguration, ResourceClaim};

/// A claim, as far as it concerns the driver.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimView {
    /// Its UID.
    pub uid: String,
    /// Where it is.
    pub namespace: String,
    /// Its name there.
    pub name: String,
    /// It is to be deleted when its finalizers are gone.
    pub is_deleting: bool,
    /// The driver's finalizer is on it.
    pub has_finalizer: bool,
    /// A pod may still use it.
    pub is_reserved: bool,
    /// The pool's devices that it has; none if it has none.
    pub allocation: Option<Allocation>,
    /// What the driver has said of its devices: granted, refused, or nothing.
    pub said: Said,
}

/// The devices of an allocation that are the pool's.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// Their names, in order, each once.
    pub devices: Vec<String>,
    /// The scheduler waits for the driver's conditions before it binds the pod.
    pub binds: bool,
    /// The driver's parameters.
    pub config: Result<GpuConfig, ConfigError>,
    /// When it was made, as far as the server says.
    pub stamp: String,
}

/// What the conditions of a claim's devices say together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing, or not the same of all devices.
    Nothing,
    /// All are granted.
    Granted,
    /// One was refused.
    Refused,
    /// All are neither granted nor refused.
    Waiting,
}

impl ClaimView {
    /// Reads a claim. Nothing if it has no UID or name, as no claim of a server has.
    pub fn of(claim: &ResourceClaim) -> Option<Self> {
        let metadata = &claim.metadata;
        let status = claim.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref()).and_then(Allocation::of);
        let devices = allocation.as_ref().map(|found| found.devices.as_slice()).unwrap_or_default();
        Some(Self {
            uid: metadata.uid.clone()?,
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
            is_deleting: metadata.deletion_timestamp.is_some(),
            has_finalizer: metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER),
            is_reserved: status.is_some_and(|status| status.reserved_for.iter().flatten().next().is_some()),
            said: said(claim, devices),
            allocation,
        })
    }

    /// The label of its lease.
    pub fn label(&self) -> String {
        lease_key(&self.uid)
    }

    /// The allocation for which it is to have a lease. A claim that is to be deleted and that no pod uses any more is
    /// to have none: the server only waits for the finalizers.
    pub fn wanted(&self) -> Option<&Allocation> {
        self.allocation.as_ref().filter(|_| !self.is_deleting || self.is_reserved)
    }
}

impl Allocation {
    fn of(allocation: &AllocationResult) -> Option<Self> {
        let devices = allocation.devices.as_ref()?;
        let own = || {
            let results = devices.results.iter().flatten();
            results.filter(|result| result.driver == DRIVER && result.pool == POOL)
        };
        let mut names: Vec<String> = own().map(|result| result.device.clone()).collect();
        names.sort();
        names.dedup();
        if names.is_empty() {
            return None;
        }
        let waits_for = |conditions: &Option<Vec<String>>| {
            conditions.iter().flatten().any(|condition| condition == CONDITION_GRANTED)
        };
        let stamp = allocation.allocation_timestamp.as_ref().map(|time| time.0.to_string());
        let requests: Vec<&str> = own().map(|result| result.request.as_str()).collect();
        Some(Self {
            devices: names,
            binds: own().any(|result| waits_for(&result.binding_conditions)),
            config: config_of(devices.config.as_deref().unwrap_or_default(), &requests),
            stamp: stamp.unwrap_or_default(),
        })
    }
}

/// The parameters that count: of the claim before those of the class, the last of each, as far as they concern one of
/// these requests.
fn config_of(all: &[DeviceAllocationConfiguration], requests: &[&str]) -> Result<GpuConfig, ConfigError> {
    // A request with alternatives is named `request/alternative` in results, and may be meant by its first part.
    let is_of = |named: &String| {
        requests.iter().any(|request| request == named || request.split('/').next() == Some(named.as_str()))
    };
    let concerns = |config: &&DeviceAllocationConfiguration| {
        config.requests.as_ref().is_none_or(|named| named.is_empty() || named.iter().any(is_of))
    };
    let own = |source: &str| {
        let of_source = all.iter().rev().filter(move |config| config.source == source).filter(concerns);
        let mut opaque = of_source.filter_map(|config| config.opaque.as_ref());
        opaque.find(|opaque| opaque.driver == DRIVER)
    };
    match own("FromClaim").or_else(|| own("FromClass")) {
        Some(opaque) => GpuConfig::read(&opaque.parameters.0),
        None => Ok(GpuConfig::default()),
    }
}

fn said(claim: &ResourceClaim, devices: &[String]) -> Said {
    let statuses = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
    let own: Vec<_> = statuses.filter(|status| status.driver == DRIVER && status.pool == POOL).collect();
    let is = |device: &String, condition: &str, value: &str| {
        let of_device = own.iter().filter(|status| status.device == *device);
        let conditions = of_device.flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|one| one.type_ == condition && one.status == value)
    };
    let all = |granted: &str, refused: &str| {
        !devices.is_empty()
            && devices.iter().all(|device| {
                is(device, CONDITION_GRANTED, granted) && is(device, CONDITION_REFUSED, refused)
            })
    };
    if devices.iter().any(|device| is(device, CONDITION_REFUSED, "True")) {
        Said::Refused
    } else if all("True", "False") {
        Said::Granted
    } else if all("False", "False") {
        Said::Waiting
    } else {
        Said::Nothing
    }
}
