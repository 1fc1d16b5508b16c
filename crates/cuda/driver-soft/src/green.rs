//! Green contexts. Host threads share the processor evenly, so a part of the multiprocessors is only a number here; streams of a
//! green context are streams of its primary context.

use crate::{
    device_info::multiprocessors,
    session::{Session, Tables},
    sync::lock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{ContextId, GreenId, SM_GROUPS_MAX, SM_PARTS_MAX, SmGroups, SmInfo, SmPart, SmSplit};

/// Multiprocessors come in pairs, as on GPUs that have no clusters.
const PAIR: u32 = 2;

/// `CU_DEV_SM_RESOURCE_SPLIT_*` that exist.
const SPLIT_FLAGS: u32 = 3;

/// A green context.
pub(crate) struct Green {
    /// Of the primary context's life.
    pub(crate) life: u64,
    runs_on: SmInfo,
}

fn info(count: u32) -> SmInfo {
    SmInfo { count, least: PAIR, alignment: PAIR, flags: 0 }
}

/// What a split of so many gives.
fn split(count: u32, how: SmSplit) -> CuResult<SmGroups> {
    if how.flags & !SPLIT_FLAGS != 0 || how.groups > SM_GROUPS_MAX || how.least > count {
        return Err(CudaError::INVALID_VALUE);
    }
    let group = how.least.max(PAIR).next_multiple_of(PAIR);
    let possible = count / group;
    if possible == 0 {
        return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
    }
    let groups = if how.groups == 0 { possible } else { how.groups.min(possible) };
    let rest = count - groups * group;
    Ok(SmGroups { groups, group: info(group), rest: (rest > 0).then(|| info(rest)) })
}

impl Session {
    /// The multiprocessors of a device, or of a green context.
    pub(crate) fn sm_resource(&self, device: u32, green: Option<GreenId>) -> CuResult<SmInfo> {
        self.check_device(device)?;
        runs_on(&lock(&self.tables), green)
    }

    /// What splitting them would give.
    pub(crate) fn sm_split(&self, device: u32, green: Option<GreenId>, how: SmSplit) -> CuResult<SmGroups> {
        split(self.sm_resource(device, green)?.count, how)
    }

    /// Makes a green context.
    pub(crate) fn create_green(
        &self,
        green: GreenId,
        context: ContextId,
        parts: &[SmPart],
        _flags: u32,
    ) -> CuResult<SmInfo> {
        let mut tables = lock(&self.tables);
        let life = self.context(&mut tables, context)?.life;
        if tables.greens.contains_key(&green) || parts.is_empty() || parts.len() > SM_PARTS_MAX {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut count = 0;
        for part in parts {
            count += part_of(&tables, part)?;
        }
        if count > multiprocessors() {
            return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        }
        tables.greens.insert(green, Green { life, runs_on: info(count) });
        Ok(info(count))
    }

    /// Ends one; its streams go on.
    pub(crate) fn destroy_green(&self, green: GreenId) -> CuResult<()> {
        lock(&self.tables).greens.remove(&green).map(drop).ok_or(CudaError::INVALID_CONTEXT)
    }
}

fn runs_on(tables: &Tables, green: Option<GreenId>) -> CuResult<SmInfo> {
    match green {
        None => Ok(info(multiprocessors())),
        Some(green) => tables.greens.get(&green).map(|green| green.runs_on).ok_or(CudaError::INVALID_CONTEXT),
    }
}

fn part_of(tables: &Tables, part: &SmPart) -> CuResult<u32> {
    let whole = runs_on(tables, part.of)?;
    let Some(how) = part.split else { return Ok(whole.count) };
    let made = split(whole.count, how)?;
    match part.group {
        Some(group) if group < made.groups => Ok(made.group.count),
        Some(_) => Err(CudaError::INVALID_VALUE),
        None => made.rest.map(|rest| rest.count).ok_or(CudaError::INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_alike_and_the_rest_is_told() {
        let made = split(132, SmSplit { groups: 3, flags: 0, least: 15 });
        assert_eq!(made, Ok(SmGroups { groups: 3, group: info(16), rest: Some(info(84)) }));
        let counted = split(132, SmSplit { groups: 0, flags: 0, least: 66 });
        assert_eq!(counted, Ok(SmGroups { groups: 2, group: info(66), rest: None }));
    }

    #[test]
    fn what_cannot_be_split_is_refused() {
        let how = SmSplit { groups: 1, flags: 0, least: 5 };
        assert_eq!(split(4, how), Err(CudaError::INVALID_VALUE));
        assert_eq!(split(5, how), Err(CudaError::INVALID_RESOURCE_CONFIGURATION), "a sixth is missing");
        assert_eq!(split(8, SmSplit { flags: 4, ..how }), Err(CudaError::INVALID_VALUE));
        assert_eq!(split(8, SmSplit { groups: SM_GROUPS_MAX + 1, ..how }), Err(CudaError::INVALID_VALUE));
    }
}
