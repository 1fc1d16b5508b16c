//! Modules that an earlier session has described: the driver then need not load kernels before they are launched, and the image
//! need not be unpacked and read.

use cuda_driver::Descriptions;
use cuda_image::Symbols;
use cuda_wire::{AppendedPlaces, DeviceInfo, JitOption, KernelInfo, ModuleInfo, VariableInfo, Wire};
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
        let mut hasher = blake3::Hasher::new_derive_key("dxpu 2026-11-18 descriptions of modules");
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
    /// The description, if it is that of a module whose kernels have these names.
    pub(crate) fn described<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> Option<Described> {
        let kept = self.keeper.get(&self.key)?;
        let (&[prints, allocates], info) = kept.split_first_chunk()?;
        let ModuleInfo { kernels, variables, .. } = ModuleInfo::from_bytes(info).ok()?;
        let are_these = kernels.iter().all(|kernel| names.next() == Some(kernel.name.as_str()));
        let variables = variables.into_iter().map(|variable| variable.name).collect();
        let symbols = Symbols { variables, prints: prints != 0, allocates: allocates != 0 };
        (are_these && names.next().is_none()).then_some(Described { kernels, symbols })
    }

    pub(crate) fn keep(&self, described: &Described) {
        let Described { kernels, symbols } = described;
        // Where a variable lies is another matter in every session.
        let named = |name: &String| VariableInfo { name: name.clone(), address: 0, bytes: 0 };
        let info = ModuleInfo {
            kernels: kernels.clone(),
            variables: symbols.variables.iter().map(named).collect(),
            info_log: String::new(),
            managed: AppendedPlaces::default(),
        };
        let flags = [u8::from(symbols.prints), u8::from(symbols.allocates)];
        self.keeper.put(&self.key, &[&flags[..], &info.to_bytes()].concat());
    }
}

/// What a module's image says, the same wherever it is loaded.
pub(crate) struct Described {
    /// In the order of their names.
    pub(crate) kernels: Vec<KernelInfo>,
    pub(crate) symbols: Symbols,
}
