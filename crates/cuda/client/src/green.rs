//! `CUdevResource` as programs hold it: how its multiprocessors come about is written where the driver keeps its own notes.

use cuda_abi::{CUdevResource, CuResult, CudaError};
use cuda_wire::{GreenId, SmInfo, SmPart, SmSplit};

/// `CU_DEV_RESOURCE_TYPE_SM`.
pub const TYPE_SM: u32 = 1;

/// Begins our notes, so that what a program made up is not taken for ours.
const MARK: u32 = 0x5678_70d6;

/// Some multiprocessors of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessors {
    /// The device.
    pub device: u32,
    /// How they come about.
    pub part: SmPart,
    /// What the driver says of them.
    pub info: SmInfo,
}

impl Multiprocessors {
    /// As a program holds them.
    pub fn to_resource(&self) -> CUdevResource {
        let SmPart { of, split, group } = self.part;
        let how = split.unwrap_or(SmSplit { groups: 0, flags: 0, least: 0 });
        let notes = [
            MARK,
            self.device,
            u32::from(of.is_some()) | u32::from(split.is_some()) << 1 | u32::from(group.is_some()) << 2,
            of.map_or(0, |green| green.0),
            how.groups,
            how.flags,
            how.least,
            group.unwrap_or(0),
        ];
        let mut resource = CUdevResource { kind: TYPE_SM, ..CUdevResource::default() };
        resource.internal[..notes.len()].copy_from_slice(&notes);
        let SmInfo { count, least, alignment, flags } = self.info;
        resource.sm[..4].copy_from_slice(&[count, least, alignment, flags]);
        resource
    }

    /// What a program holds.
    pub fn of_resource(resource: &CUdevResource) -> CuResult<Self> {
        if resource.kind != TYPE_SM {
            return Err(CudaError::INVALID_RESOURCE_TYPE);
        }
        let [mark, device, has, of, groups, flags, least, group, ..] = resource.internal;
        if mark != MARK {
            return Err(CudaError::INVALID_VALUE);
        }
        let part = SmPart {
            of: (has & 1 != 0).then_some(GreenId(of)),
            split: (has & 2 != 0).then_some(SmSplit { groups, flags, least }),
            group: (has & 4 != 0).then_some(group),
        };
        let [count, least, alignment, flags, ..] = resource.sm;
        Ok(Self { device, part, info: SmInfo { count, least, alignment, flags } })
    }

    /// A part of them; what is a part already cannot be split before a green context has it.
    pub fn part(&self, how: SmSplit, group: Option<u32>, info: SmInfo) -> CuResult<Self> {
        if self.part.split.is_some() {
            return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
        }
        Ok(Self { part: SmPart { of: self.part.of, split: Some(how), group }, info, ..*self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_holds_says_where_it_came_from() {
        let info = SmInfo { count: 132, least: 8, alignment: 8, flags: 0 };
        let whole = Multiprocessors {
            device: 3,
            part: SmPart { of: Some(GreenId(7)), split: None, group: None },
            info,
        };
        let how = SmSplit { groups: 2, flags: 1, least: 16 };
        let group = whole.part(how, Some(1), SmInfo { count: 16, ..info }).expect("it is whole");
        let rest = whole.part(how, None, SmInfo { count: 100, ..info }).expect("it is whole");
        for some in [whole, group, rest] {
            assert_eq!(Multiprocessors::of_resource(&some.to_resource()), Ok(some));
            assert_eq!(some.to_resource().sm[0], some.info.count);
        }
        assert_eq!(group.part(how, Some(0), info), Err(CudaError::INVALID_RESOURCE_CONFIGURATION));
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let made_up = CUdevResource { kind: TYPE_SM, ..CUdevResource::default() };
        assert_eq!(Multiprocessors::of_resource(&made_up), Err(CudaError::INVALID_VALUE));
        let none = CUdevResource::default();
        assert_eq!(Multiprocessors::of_resource(&none), Err(CudaError::INVALID_RESOURCE_TYPE));
    }
}
