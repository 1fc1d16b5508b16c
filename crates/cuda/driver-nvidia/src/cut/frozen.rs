//! What an image holds: mapped memory by address, variables by module and name; and where each lies here.

use crate::{
    memory::{FrozenMemory, Owner},
    tables::Tables,
};
use cuda_abi::{CuResult, CudaError};
use snapshot::{Block, Extent, Extents, variable_extents};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A variable of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Variable {
    /// Where an image has it.
    extent: Extent,
    /// Where this session has it.
    here: u64,
    context: u32,
}

/// A block and where it is in this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: Block,
    pub(super) here: u64,
    /// The end of the variable or mapping that it is in. One copy never reaches beyond it: the library refuses a copy that
    /// leaves the variable it begins in.
    pub(super) reach: u64,
}

/// The blocks of an image by the context whose kernels reach them, ascending.
pub(super) type Layouts = BTreeMap<u32, Arc<Vec<Place>>>;

/// The addresses of an image and where they are in this session.
#[derive(PartialEq, Eq)]
pub(super) struct Frozen {
    pub(super) extents: Extents,
    /// Ascending.
    variables: Vec<Variable>,
    owners: Vec<Owner>,
}

impl Frozen {
    /// Everything that an image holds at this place in the order of commands.
    pub(super) fn new(tables: &Tables, memory: FrozenMemory) -> CuResult<Self> {
        let mut variables = Vec::new();
        for (id, module) in &tables.modules {
            let named: Vec<(&str, u64)> =
                module.variables.iter().map(|variable| (variable.name.as_str(), variable.bytes)).collect();
            let placed = variable_extents(id.0, &named).ok_or(CudaError::NOT_SUPPORTED)?;
            let context = module.context.id;
            variables.extend(
                placed.into_iter().filter(|(_, extent)| extent.bytes > 0).map(|(index, extent)| Variable {
                    extent,
                    here: module.variables[index].address,
                    context,
                }),
            );
        }
        variables.sort_unstable();
        let mut extents = memory.extents;
        extents.extend(variables.iter().map(|variable| variable.extent));
        let extents = Extents::new(extents).map_err(|_| CudaError::INVALID_VALUE)?;
        Ok(Self { extents, variables, owners: memory.owners })
    }

    /// The same without memory whose bytes the program does not need.
    pub(super) fn without(self, dead: &Extents) -> Self {
        if dead.is_empty() {
            return self;
        }
        Self { extents: self.extents.without(dead), ..self }
    }

    /// Whether all of a range is there; it may lie in several extents that touch.
    pub(super) fn covers(&self, extent: Extent) -> bool {
        let mut at = extent.address;
        while at < extent.address + extent.bytes {
            let Some(mapped) = self.extents.holding(at) else { return false };
            at = mapped.address + mapped.bytes;
        }
        true
    }

    /// Where all blocks are. `None` if a device may not use some of its memory.
    pub(super) fn layouts(&self) -> Option<Layouts> {
        let mut layouts: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
        for block in self.extents.blocks() {
            let (context, place) = self.place(block)?;
            layouts.entry(context).or_default().push(place);
        }
        Some(layouts.into_iter().map(|(context, places)| (context, Arc::new(places))).collect())
    }

    /// Where a block is, and the context whose kernels reach it: the device's primary one, or a variable's. `None` if its
    /// device may not use it.
    pub(super) fn place(&self, block: Block) -> Option<(u32, Place)> {
        let after = self.variables.partition_point(|variable| variable.extent.address <= block.address);
        if let Some(variable) = after.checked_sub(1).map(|index| self.variables[index]) {
            let here = variable.here + (block.address - variable.extent.address);
            let reach = variable.here + variable.extent.bytes;
            return Some((variable.context, Place { block, here, reach }));
        }
        let after = self.owners.partition_point(|owner| owner.from <= block.address);
        let owner = self.owners[after.checked_sub(1)?];
        // Mappings begin and end at steps that blocks do not cross, so one owner has all of it.
        let is_inside = block.address + u64::from(block.bytes) <= owner.to;
        let place = Place { block, here: block.address, reach: owner.to };
        (is_inside && owner.has_access).then_some((owner.device, place))
    }
}
