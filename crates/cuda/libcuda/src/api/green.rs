//! Bodies: green contexts and the multiprocessors that they are made of.

use super::stream;
use crate::{
    border::*,
    state::{Current, Device, Green, Stream, StreamKind, client, current_view, lock},
};
use cuda_abi::*;
use cuda_client::green::{Multiprocessors, TYPE_SM};
use cuda_wire::{Command, SM_GROUPS_MAX, SM_PARTS_MAX, SmGroups, SmInfo, SmPart, SmSplit};
use std::sync::Mutex;

/// Lists of multiprocessors that the program has described. CUDA has no function that ends one, so equal ones are one.
static LISTS: Mutex<Vec<(u32, Vec<SmPart>)>> = Mutex::new(Vec::new());

/// The handle of the first list; the others follow.
const FIRST_LIST: u64 = 0x2a << 40 | 1;

fn check_kind(kind: u32) -> CuResult<()> {
    if kind == TYPE_SM { Ok(()) } else { Err(CudaError::INVALID_RESOURCE_TYPE) }
}

fn whole(device: &Device) -> CuResult<Multiprocessors> {
    let ask = Command::SmResource { device: device.remote, green: None };
    let info = device.link.ask::<SmInfo>(&ask)?;
    let part = SmPart { of: None, split: None, group: None };
    Ok(Multiprocessors { device: device.ordinal as u32, part, info })
}

/// cuDeviceGetDevResource
pub(crate) fn device_resource(device: i32, mut resource: Out<'_, CUdevResource>, kind: u32) -> CuResult<()> {
    let device = client()?.device(device)?;
    check_kind(kind)?;
    resource.set(whole(device)?.to_resource());
    Ok(())
}

/// cuCtxGetDevResource
pub(crate) fn context_resource(
    context: ContextHandle,
    mut resource: Out<'_, CUdevResource>,
    kind: u32,
) -> CuResult<()> {
    // The driver does not take the current context for none.
    if context.is_null() {
        return Err(CudaError::INVALID_CONTEXT);
    }
    let current = Current::find(context.0)?;
    current.context.check()?;
    check_kind(kind)?;
    let found = match &current.green {
        Some(green) => green.runs_on,
        None => whole(current.context.device()?)?,
    };
    resource.set(found.to_resource());
    Ok(())
}

/// cuGreenCtxGetDevResource
pub(crate) fn resource(
    green_context: GreenContextHandle,
    mut resource: Out<'_, CUdevResource>,
    kind: u32,
) -> CuResult<()> {
    let green = Green::find(green_context.0)?;
    check_kind(kind)?;
    resource.set(green.runs_on.to_resource());
    Ok(())
}

/// cuDevSmResourceSplitByCount
pub(crate) fn split(
    result: Option<OutSlice<'_, CUdevResource>>,
    mut groups: InOut<'_, u32>,
    input: &CUdevResource,
    remainder: Option<Out<'_, CUdevResource>>,
    flags: u32,
    min_count: u32,
) -> CuResult<()> {
    let input = Multiprocessors::of_resource(input)?;
    let wanted = result.as_ref().map_or(0, |_| groups.get().min(SM_GROUPS_MAX));
    if result.is_some() && wanted == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let device = client()?.device(input.device as i32)?;
    let how = SmSplit { groups: wanted, flags, least: min_count };
    // Checked before the worker is asked, which is not told what cannot be split.
    input.part(how, None, SmInfo::default())?;
    let ask = Command::SmSplit { device: device.remote, green: input.part.of, split: how };
    let made = device.link.ask::<SmGroups>(&ask)?;
    if let Some(mut result) = result {
        for index in 0..made.groups.min(wanted) {
            result.set(index as usize, input.part(how, Some(index), made.group)?.to_resource());
        }
    }
    if let Some(mut remainder) = remainder {
        remainder.set(match made.rest {
            Some(rest) => input.part(how, None, rest)?.to_resource(),
            None => CUdevResource::default(),
        });
    }
    groups.set(made.groups);
    Ok(())
}

/// cuDevResourceGenerateDesc
pub(crate) fn describe(
    mut description: Out<'_, u64>,
    resources: &[CUdevResource],
    _count: u32,
) -> CuResult<()> {
    if resources.is_empty() || resources.len() > SM_PARTS_MAX {
        return Err(CudaError::INVALID_VALUE);
    }
    let all = resources.iter().map(Multiprocessors::of_resource).collect::<CuResult<Vec<_>>>()?;
    let device = all[0].device;
    if all.iter().any(|some| some.device != device) {
        return Err(CudaError::INVALID_RESOURCE_CONFIGURATION);
    }
    let list = (device, all.iter().map(|some| some.part).collect());
    let mut lists = lock(&LISTS);
    let index = lists.iter().position(|known| *known == list).unwrap_or_else(|| {
        lists.push(list);
        lists.len() - 1
    });
    description.set(FIRST_LIST + index as u64);
    Ok(())
}

/// cuGreenCtxCreate
pub(crate) fn create(
    mut green_context: Out<'_, GreenContextHandle>,
    description: u64,
    device: i32,
    flags: u32,
) -> CuResult<()> {
    let device = client()?.device(device)?;
    let index = description.checked_sub(FIRST_LIST).ok_or(CudaError::INVALID_VALUE)?;
    let list = lock(&LISTS).get(index as usize).cloned();
    let (of, parts) = list.ok_or(CudaError::INVALID_VALUE)?;
    if of as usize != device.ordinal {
        return Err(CudaError::INVALID_DEVICE);
    }
    let primary = device.retain_primary()?;
    let made = Green::create(primary, parts, flags);
    if made.is_err() {
        device.release_primary()?;
    }
    green_context.set(GreenContextHandle(made?.handle));
    Ok(())
}

/// cuGreenCtxDestroy
pub(crate) fn destroy(green_context: GreenContextHandle) -> CuResult<()> {
    Green::find(green_context.0)?.destroy()
}

/// cuGreenCtxGetId
pub(crate) fn id(green_context: GreenContextHandle, mut id: Out<'_, u64>) -> CuResult<()> {
    let green = if green_context.is_null() {
        current_view().and_then(|current| current.green).ok_or(CudaError::INVALID_CONTEXT)?
    } else {
        Green::find(green_context.0)?
    };
    id.set(u64::from(green.id.0));
    Ok(())
}

/// cuGreenCtxStreamCreate
pub(crate) fn create_stream(
    mut stream: Out<'_, StreamHandle>,
    green_context: GreenContextHandle,
    flags: u32,
    priority: i32,
) -> CuResult<()> {
    let green = Green::find(green_context.0)?;
    green.check()?;
    if flags != CU_STREAM_NON_BLOCKING {
        return Err(CudaError::INVALID_VALUE);
    }
    let priority = stream::in_range(&green.context, priority)?;
    stream.set(StreamHandle(Stream::create_green(&green, StreamKind::NonBlocking, flags, priority)?.handle));
    Ok(())
}

/// cuCtxFromGreenCtx
pub(crate) fn context(
    mut context: Out<'_, ContextHandle>,
    green_context: GreenContextHandle,
) -> CuResult<()> {
    let green = Green::find(green_context.0)?;
    context.set(ContextHandle(green.view()));
    Ok(())
}
