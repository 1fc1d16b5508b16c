//! Green contexts of the fake: multiprocessors are counted, and a green context is a context whose streams are its own.

use super::{Fake, handle, put};
use crate::sys::{Context, DevResource, GreenContext, RESOURCE_SM, ResourceList, Stream};
use cuda_abi::{CuResult, CudaError};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint};

/// Those of an H200, which come in groups of eight.
const ALL: c_uint = 132;
const EIGHT: c_uint = 8;

#[derive(Debug, Default)]
pub(super) struct GreenState {
    lists: HashMap<ResourceList, c_uint>,
    greens: HashMap<GreenContext, (Context, c_uint)>,
}

fn resource(count: c_uint) -> DevResource {
    let mut resource = DevResource::default();
    if count > 0 {
        resource.kind = RESOURCE_SM;
        resource.sm[..3].copy_from_slice(&[count, EIGHT, EIGHT]);
    }
    resource
}

impl Fake {
    pub(crate) fn device_resource(&self, _: c_int, out: *mut DevResource, kind: c_uint) -> CuResult<()> {
        if kind != RESOURCE_SM {
            return Err(CudaError::INVALID_RESOURCE_TYPE);
        }
        put(out, resource(ALL));
        Ok(())
    }

    pub(crate) fn resource_split(
        &self,
        groups: *mut DevResource,
        count: *mut c_uint,
        input: *const DevResource,
        rest: *mut DevResource,
        _flags: c_uint,
        least: c_uint,
    ) -> CuResult<()> {
        // SAFETY: pointers are good, as the C interface demands.
        let (all, wanted) = unsafe { ((*input).sm[0], *count) };
        let group = least.max(EIGHT).next_multiple_of(EIGHT);
        let possible = all / group;
        let made = if groups.is_null() { possible } else { wanted.min(possible) };
        for index in 0..if groups.is_null() { 0 } else { made as usize } {
            // SAFETY: there is room for as many as were wanted.
            put(unsafe { groups.add(index) }, resource(group));
        }
        put(count, made);
        put(rest, resource(all - made * group));
        Ok(())
    }

    pub(crate) fn resource_list(
        &self,
        out: *mut ResourceList,
        resources: *mut DevResource,
        count: c_uint,
    ) -> CuResult<()> {
        // SAFETY: there are as many as is said.
        let resources = unsafe { std::slice::from_raw_parts(resources, count as usize) };
        let list = ResourceList(handle());
        self.lock().green.lists.insert(list, resources.iter().map(|resource| resource.sm[0]).sum());
        put(out, list);
        Ok(())
    }

    pub(crate) fn green_create(
        &self,
        out: *mut GreenContext,
        list: ResourceList,
        device: c_int,
        _flags: c_uint,
    ) -> CuResult<()> {
        let mut primary = Context::default();
        self.primary_retain(&mut primary, device)?;
        let context = self.add_view(device);
        let mut state = self.lock();
        let count = state.green.lists.get(&list).copied().ok_or(CudaError::INVALID_VALUE)?;
        let green = GreenContext(handle());
        state.green.greens.insert(green, (context, count));
        put(out, green);
        Ok(())
    }

    pub(crate) fn green_destroy(&self, green: GreenContext) -> CuResult<()> {
        let gone = self.lock().green.greens.remove(&green);
        match gone {
            Some((context, _)) => self.context_destroy(context),
            None => {
                self.lock().violation("cuGreenCtxDestroy of a green context that is not there");
                Err(CudaError::INVALID_CONTEXT)
            }
        }
    }

    pub(crate) fn green_resource(
        &self,
        green: GreenContext,
        out: *mut DevResource,
        _kind: c_uint,
    ) -> CuResult<()> {
        let (_, count) = *self.lock().green.greens.get(&green).ok_or(CudaError::INVALID_CONTEXT)?;
        put(out, resource(count));
        Ok(())
    }

    pub(crate) fn green_context(&self, out: *mut Context, green: GreenContext) -> CuResult<()> {
        let (context, _) = *self.lock().green.greens.get(&green).ok_or(CudaError::INVALID_CONTEXT)?;
        put(out, context);
        Ok(())
    }

    pub(crate) fn green_stream_create(
        &self,
        out: *mut Stream,
        green: GreenContext,
        flags: c_uint,
        priority: c_int,
    ) -> CuResult<()> {
        let (context, _) = *self.lock().green.greens.get(&green).ok_or(CudaError::INVALID_CONTEXT)?;
        self.context_set_current(context)?;
        self.stream_create(out, flags, priority)
    }
}
