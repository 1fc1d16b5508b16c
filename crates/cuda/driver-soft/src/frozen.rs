//! What an image holds: mapped memory by address, variables by module and name.

use crate::session::{Session, Tables};
use cuda_abi::{CuResult, CudaError};
use snapshot::{Block, Extent, Extents, variable_extents};

/// The addresses of an image and where they are in this session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frozen {
    /// What the program has mapped, and variables.
    pub(crate) extents: Extents,
    /// Variables: their extent in an image and their address here, ascending.
    variables: Vec<(Extent, u64)>,
}

impl Frozen {
    /// The address in this session of an address in an image.
    pub(crate) fn here(&self, address: u64) -> u64 {
        let after = self.variables.partition_point(|(extent, _)| extent.address <= address);
        match after.checked_sub(1).map(|index| self.variables[index]) {
            Some((extent, here)) => here + (address - extent.address),
            None => address,
        }
    }

    /// Whether all of a block is mapped; it may lie in several extents that touch.
    pub(crate) fn holds(&self, block: Block) -> bool {
        self.covers(Extent { address: block.address, bytes: block.bytes.into() })
    }

    fn covers(&self, extent: Extent) -> bool {
        let mut at = extent.address;
        while at < extent.address + extent.bytes {
            let Some(mapped) = self.extents.holding(at) else { return false };
            at = mapped.address + mapped.bytes;
        }
        true
    }

    /// The same without memory whose bytes the program does not need.
    pub(crate) fn without(self, dead: &Extents) -> Self {
        if dead.is_empty() {
            return self;
        }
        Self { extents: self.extents.without(dead), ..self }
    }
}

impl Session {
    /// Everything that an image holds at this place in the order of commands.
    pub(crate) fn freeze(&self, tables: &Tables) -> CuResult<Frozen> {
        let mut extents = tables.promises.reaches(self.client_end());
        let mut variables = Vec::new();
        for (id, module) in &tables.modules {
            let named: Vec<(&str, u64)> =
                module.named.iter().map(|variable| (variable.name.as_str(), variable.bytes)).collect();
            let placed = variable_extents(id.0, &named).ok_or(CudaError::NOT_SUPPORTED)?;
            variables.extend(placed.into_iter().map(|(index, extent)| (extent, module.named[index].address)));
        }
        variables.retain(|(extent, _)| extent.bytes > 0);
        variables.sort_unstable();
        extents.extend(variables.iter().map(|(extent, _)| *extent));
        let extents = Extents::new(extents).map_err(|_| CudaError::INVALID_VALUE)?;
        Ok(Frozen { extents, variables })
    }
}
