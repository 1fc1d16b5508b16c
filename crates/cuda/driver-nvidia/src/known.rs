//! Kernels that an earlier session has described: the driver then need not load them before they are launched.

use cuda_driver::Descriptions;
use cuda_wire::{AppendedPlaces, DeviceInfo, JitOption, KernelInfo, ModuleInfo, Wire};
use std::sync::{Arc, OnceLock};

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`
const CAPABILITY: [u32; 2] = [75, 76];

/// What is known, once the worker has handed over its keeper.
pub(crate) struct Known {
    keeper: OnceLock<Arc<dyn Descriptions>>,
    build: String,
}

impl Known {
    /// `build`: the driver's build. Another one may compile other code from the same text.
    pub(crate) fn new(build: String) -> Self {
        Self { keeper: OnceLock::new(), build }
    }

    pub(crate) fn build(&self) -> &str {
        &self.build
    }

    pub(crate) fn keep_in(&self, keeper: Arc<dyn Descriptions>) {
        let _ = self.keeper.set(keeper);
    }

    /// The place of a module's description. `image`: the hash of its image.
    pub(crate) fn place(
        &self,
        image: &[u8; 32],
        device: &DeviceInfo,
        options: &[JitOption],
    ) -> Option<Place<'_>> {
        let mut hasher = blake3::Hasher::new_derive_key("dxpu 2026 descriptions of modules");
        hasher.update(image);
        for text in [&self.build, &device.name] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        for (_, value) in device.attributes.iter().filter(|(attribute, _)| CAPABILITY.contains(attribute)) {
            hasher.update(&value.to_le_bytes());
        }
        for option in options {
            hasher.update(&option.option.to_le_bytes()).update(&option.value.to_le_bytes());
        }
        Some(Place { keeper: self.keeper.get()?.as_ref(), key: *hasher.finalize().as_bytes() })
    }
}

/// Where the description of one module is kept.
pub(crate) struct Place<'a> {
    keeper: &'a dyn Descriptions,
    key: [u8; 32],
}

impl Place<'_> {
    /// The kernels in the order of their names, if they are the kernels that have these names.
    pub(crate) fn kernels<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> Option<Vec<KernelInfo>> {
        let kernels = ModuleInfo::from_bytes(&self.keeper.get(&self.key)?).ok()?.kernels;
        let are_these = kernels.iter().all(|kernel| names.next() == Some(kernel.name.as_str()));
        (are_these && names.next().is_none()).then_some(kernels)
    }

    pub(crate) fn keep(&self, kernels: &[KernelInfo]) {
        let info = ModuleInfo {
            kernels: kernels.to_vec(),
            variables: Vec::new(),
            info_log: String::new(),
            managed: AppendedPlaces::default(),
        };
        self.keeper.put(&self.key, &info.to_bytes());
    }
}
