//! Green contexts: parts of a device's multiprocessors with streams of their own. The driver splits the same multiprocessors with
//! the same arguments in the same way, so a part is named by how it comes about.

#![allow(unsafe_code)]

use crate::{
    context::LiveContext,
    current,
    driver::NvidiaDriver,
    sys::{Api, Context, DevResource, GreenContext, RESOURCE_SM, ResourceList},
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{GreenId, SM_GROUPS_MAX, SM_PARTS_MAX, SmGroups, SmInfo, SmPart, SmSplit};
use std::sync::Arc;

/// A green context of the driver.
pub(crate) struct LiveGreen {
    api: Api,
    pub(crate) raw: GreenContext,
    /// How threads enter it.
    pub(crate) context: Context,
    pub(crate) primary: Arc<LiveContext>,
}

impl LiveGreen {
    fn create(api: &Api, primary: Arc<LiveContext>, parts: &mut [DevResource], flags: u32) -> CuResult<Self> {
        let mut list = ResourceList::default();
        // SAFETY: the pointers are valid for the call, and there are as many parts as is said.
        unsafe { api.resource_list(&mut list, parts.as_mut_ptr(), parts.len() as u32)? };
        let mut raw = GreenContext::default();
        // SAFETY: `raw` is valid for the call, and the list is the driver's own.
        unsafe { api.green_create(&mut raw, list, primary.device as i32, flags)? };
        let mut green = Self { api: *api, raw, context: Context::default(), primary };
        // SAFETY: the place is valid for the call.
        unsafe { api.green_context(&mut green.context, raw)? };
        Ok(green)
    }

    fn resource(&self) -> CuResult<DevResource> {
        let mut resource = DevResource::default();
        // SAFETY: the place is valid for the call, and the green context lives as long as `self`.
        unsafe { self.api.green_resource(self.raw, &mut resource, RESOURCE_SM)? };
        Ok(resource)
    }
}

impl Drop for LiveGreen {
    fn drop(&mut self) {
        current::forget();
        // SAFETY: the last `Arc` of it is gone, so no stream uses it.
        let _ = unsafe { self.api.green_destroy(self.raw) };
    }
}

fn info(resource: &DevResource) -> SmInfo {
    let [count, least, alignment, flags, ..] = resource.sm;
    SmInfo { count, least, alignment, flags }
}

/// The groups of a split, and the rest if there is one.
fn split(
    api: &Api,
    whole: &DevResource,
    how: SmSplit,
) -> CuResult<(u32, Vec<DevResource>, Option<DevResource>)> {
    if how.groups > SM_GROUPS_MAX {
        return Err(CudaError::INVALID_VALUE);
    }
    let mut groups = vec![DevResource::default(); how.groups as usize];
    let place = if groups.is_empty() { std::ptr::null_mut() } else { groups.as_mut_ptr() };
    let (mut count, mut rest) = (how.groups, DevResource::default());
    // SAFETY: the pointers are valid for the call, and `count` says how many groups there is room for; with room for none the
    // driver only counts them.
    unsafe { api.resource_split(place, &mut count, whole, &mut rest, how.flags, how.least)? };
    groups.truncate(count as usize);
    Ok((count, groups, Some(rest).filter(|rest| rest.kind == RESOURCE_SM && rest.sm[0] > 0)))
}

impl NvidiaDriver {
    fn multiprocessors(&self, device: u32, green: Option<GreenId>) -> CuResult<DevResource> {
        let Some(green) = green else {
            let mut resource = DevResource::default();
            // SAFETY: the place is valid for the call.
            unsafe { self.api.device_resource(device as i32, &mut resource, RESOURCE_SM)? };
            return Ok(resource);
        };
        let green = self.lock().green(green)?;
        if green.primary.device == device { green.resource() } else { Err(CudaError::INVALID_DEVICE) }
    }

    pub(crate) fn sm_info(&self, device: u32, green: Option<GreenId>) -> CuResult<SmInfo> {
        self.multiprocessors(device, green).map(|resource| info(&resource))
    }

    pub(crate) fn sm_groups(&self, device: u32, green: Option<GreenId>, how: SmSplit) -> CuResult<SmGroups> {
        let (count, groups, rest) = split(&self.api, &self.multiprocessors(device, green)?, how)?;
        let group = groups.first().map(info).unwrap_or_default();
        Ok(SmGroups { groups: count, group, rest: rest.as_ref().map(info) })
    }

    fn part(&self, device: u32, part: &SmPart) -> CuResult<DevResource> {
        let whole = self.multiprocessors(device, part.of)?;
        let Some(how) = part.split else { return Ok(whole) };
        let (_, groups, rest) = split(&self.api, &whole, how)?;
        let found = match part.group {
            Some(group) => groups.get(group as usize).copied(),
            None => rest,
        };
        found.ok_or(CudaError::INVALID_VALUE)
    }

    pub(crate) fn make_green(
        &self,
        primary: Arc<LiveContext>,
        parts: &[SmPart],
        flags: u32,
    ) -> CuResult<(LiveGreen, SmInfo)> {
        if parts.is_empty() || parts.len() > SM_PARTS_MAX {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut parts =
            parts.iter().map(|part| self.part(primary.device, part)).collect::<CuResult<Vec<_>>>()?;
        let green = LiveGreen::create(&self.api, primary, &mut parts, flags)?;
        let runs_on = info(&green.resource()?);
        Ok((green, runs_on))
    }
}
