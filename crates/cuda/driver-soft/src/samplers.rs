//! Texture and surface objects: from what the program described to what the engine samples.

use crate::{
    retire::What,
    session::{Session, Tables},
    space::Cursor,
    sync::lock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{
    ArrayInfo, ContextId, ModuleId, Resource, ResourceView, SamplerId, Sampling, Shape, array_kind,
    channel_bytes, resource_kind,
};
use ptx::{AddressMode, Channel, ChannelKind, Level, Sampler};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// `CU_TRSF_*`.
const READ_AS_INTEGER: u32 = 0x01;
const NORMALIZED_COORDINATES: u32 = 0x02;
const SRGB: u32 = 0x10;

/// `CU_TR_FILTER_MODE_LINEAR`.
const FILTER_LINEAR: u32 = 1;

/// A texture or surface object of the program's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// What kernels know it by.
    handle: u64,
    /// The life of its context.
    pub(crate) life: u64,
}

impl Object {
    pub(crate) fn going(self) -> What {
        What::Sampler(self.handle)
    }
}

impl Session {
    pub(crate) fn create_texture(
        &self,
        id: SamplerId,
        context: ContextId,
        resource: &Resource,
        sampling: &Sampling,
        view: Option<&ResourceView>,
    ) -> CuResult<u64> {
        let mut sampler = read_plainly(lock(&self.tables).image(resource)?);
        if let Some(view) = view {
            look_through(&mut sampler, view)?;
        }
        apply(&mut sampler, sampling)?;
        self.keep_sampler(id, context, sampler)
    }

    pub(crate) fn create_surface(
        &self,
        id: SamplerId,
        context: ContextId,
        resource: &Resource,
    ) -> CuResult<u64> {
        if resource.kind != resource_kind::ARRAY {
            return Err(CudaError::INVALID_VALUE);
        }
        let sampler = read_plainly(lock(&self.tables).image(resource)?);
        self.keep_sampler(id, context, sampler)
    }

    fn keep_sampler(&self, id: SamplerId, context: ContextId, sampler: Sampler) -> CuResult<u64> {
        let mut tables = lock(&self.tables);
        let life = self.context(&mut tables, context)?.life;
        if tables.samplers.contains_key(&id) {
            return Err(CudaError::INVALID_VALUE);
        }
        let handle = self.next_sampler.fetch_add(1, Relaxed) + 1;
        lock(&self.samplers).insert(handle, Arc::new(sampler));
        tables.samplers.insert(id, Object { handle, life });
        Ok(handle)
    }

    /// Where a reference of a module keeps its handle.
    pub(crate) fn find_reference(&self, module: ModuleId, name: &str) -> CuResult<u64> {
        let tables = lock(&self.tables);
        let module = tables.modules.get(&module).ok_or(CudaError::INVALID_HANDLE)?;
        module.references.get(name).copied().ok_or(CudaError::NOT_FOUND)
    }

    /// Binds a reference. Kernels that were launched before read what was bound then, so they run first.
    pub(crate) fn bind_reference(
        &self,
        module: ModuleId,
        name: &str,
        resource: &Resource,
        sampling: &Sampling,
    ) -> CuResult<()> {
        let address = self.find_reference(module, name)?;
        let mut sampler = read_plainly(lock(&self.tables).image(resource)?);
        apply(&mut sampler, sampling)?;
        self.drain()?;
        let mut cursor = Cursor::new(&self.space);
        let mut before = [0; 8];
        cursor.read(address, &mut before)?;
        let handle = self.next_sampler.fetch_add(1, Relaxed) + 1;
        cursor.write(address, &handle.to_le_bytes())?;
        let mut samplers = lock(&self.samplers);
        samplers.remove(&u64::from_le_bytes(before));
        samplers.insert(handle, Arc::new(sampler));
        Ok(())
    }

    /// Ends a texture or surface object; kernels that were launched before may still use it.
    pub(crate) fn destroy_sampler(&self, id: SamplerId) -> CuResult<()> {
        let mut tables = lock(&self.tables);
        let object = tables.samplers.remove(&id).ok_or(CudaError::INVALID_HANDLE)?;
        let after = tables.all_busy_ends();
        drop(tables);
        self.retire(object.going(), after);
        Ok(())
    }
}

/// An image in memory.
struct Image {
    levels: Vec<Level>,
    channel: Channel,
    is_memory: bool,
}

impl Tables {
    fn image(&self, resource: &Resource) -> CuResult<Image> {
        let invalid = CudaError::INVALID_VALUE;
        if matches!(resource.kind, resource_kind::LINEAR | resource_kind::PITCH_2D) {
            let channel = channel(resource.format, resource.channels).ok_or(invalid)?;
            let element = u64::from(channel.bytes) * u64::from(channel.count);
            let is_memory = resource.kind == resource_kind::LINEAR;
            let level = match is_memory {
                // A texture of nothing is one that a kernel must not read; the engine needs an element to look for.
                true => ((resource.width / element).max(1), 1, resource.width),
                false => (resource.width, resource.height.max(1), resource.pitch),
            };
            let (address, (width, height, row_pitch)) = (resource.address, level);
            let level = Level { address, row_pitch, slice_pitch: 0, width, height, depth: 1 };
            return Ok(Image { levels: vec![level], channel, is_memory });
        }
        let (array, offset) = self.array_at(resource.address)?;
        let place = array.info.place(offset, &cuda_wire::Plane::line(0), &Shape::line(1)).ok_or(invalid)?;
        let numbers = match resource.kind {
            resource_kind::ARRAY => place.level..place.level + 1,
            resource_kind::MIPMAPPED_ARRAY => 0..array.info.level_count(),
            _ => return Err(invalid),
        };
        let level = |number| level(&array.info, array.address, number).ok_or(invalid);
        Ok(Image {
            levels: numbers.map(level).collect::<CuResult<_>>()?,
            channel: channel(array.info.format, array.info.channels).ok_or(invalid)?,
            is_memory: false,
        })
    }
}

fn level(info: &ArrayInfo, address: u64, number: u32) -> Option<Level> {
    let extent = info.extent(number)?;
    let plane = extent.plane(address + info.level_offset(number)?);
    Some(Level {
        address: plane.address,
        row_pitch: plane.row_pitch,
        slice_pitch: plane.slice_pitch,
        width: info.level(number).width,
        height: extent.rows,
        depth: extent.slices,
    })
}

fn channel(format: u32, channels: u32) -> Option<Channel> {
    use array_kind::*;
    let (bytes, fixed) = channel_bytes(format)?;
    let kind = match format {
        UNSIGNED_INT8 | UNSIGNED_INT16 | UNSIGNED_INT32 => ChannelKind::Unsigned,
        SIGNED_INT8 | SIGNED_INT16 | SIGNED_INT32 => ChannelKind::Signed,
        HALF | FLOAT => ChannelKind::Float,
        UNORM_INT8X1..=UNORM_INT16X4 => ChannelKind::Unorm,
        _ => ChannelKind::Snorm,
    };
    let count = fixed.unwrap_or(channels);
    matches!(count, 1 | 2 | 4).then_some(Channel { kind, bytes: bytes as u8, count: count as u8 })
}

/// The image as its bits are, without filters.
fn read_plainly(image: Image) -> Sampler {
    Sampler {
        levels: image.levels,
        channel: image.channel,
        is_memory: image.is_memory,
        address_modes: [AddressMode::Clamp; 3],
        is_linear: false,
        is_normalized: false,
        reads_integers: true,
        is_srgb: false,
        is_mip_linear: false,
        lod_bias: 0.0,
        lod_bounds: (0.0, 0.0),
        border: [0.0; 4],
    }
}

fn apply(sampler: &mut Sampler, sampling: &Sampling) -> CuResult<()> {
    for (mode, &given) in sampler.address_modes.iter_mut().zip(&sampling.address_modes) {
        *mode = match given {
            0 => AddressMode::Wrap,
            1 => AddressMode::Clamp,
            2 => AddressMode::Mirror,
            3 => AddressMode::Border,
            _ => return Err(CudaError::INVALID_VALUE),
        };
    }
    sampler.is_linear = sampling.filter_mode == FILTER_LINEAR;
    sampler.is_normalized = sampling.flags & NORMALIZED_COORDINATES != 0;
    sampler.reads_integers = sampling.flags & READ_AS_INTEGER != 0;
    sampler.is_srgb = sampling.flags & SRGB != 0;
    sampler.is_mip_linear = sampling.mipmap_filter_mode == FILTER_LINEAR;
    sampler.lod_bias = sampling.mipmap_level_bias;
    sampler.lod_bounds = (sampling.min_mipmap_level_clamp, sampling.max_mipmap_level_clamp);
    sampler.border = sampling.border_color;
    Ok(())
}

/// `CUresourceViewFormat`: three each of 8, 16 and 32 bits unsigned and signed, then floats. `None`: block compression.
fn view_channel(format: u32) -> Option<Channel> {
    use ChannelKind::{Float, Signed, Unsigned};
    let place = format.checked_sub(1)?;
    let (kind, bytes) = *[
        (Unsigned, 1),
        (Signed, 1),
        (Unsigned, 2),
        (Signed, 2),
        (Unsigned, 4),
        (Signed, 4),
        (Float, 2),
        (Float, 4),
    ]
    .get(place as usize / 3)?;
    Some(Channel { kind, bytes, count: 1 << (place % 3) })
}

/// Shows a part of the levels and layers, perhaps in another format.
fn look_through(sampler: &mut Sampler, view: &ResourceView) -> CuResult<()> {
    let invalid = CudaError::INVALID_VALUE;
    if view.format != 0 {
        let channel = view_channel(view.format).ok_or(CudaError::NOT_SUPPORTED)?;
        let bytes = |channel: Channel| channel.bytes * channel.count;
        if bytes(channel) != bytes(sampler.channel) {
            return Err(invalid);
        }
        sampler.channel = channel;
    }
    let (first, last) = (view.first_level as usize, view.last_level as usize);
    let shown = sampler.levels.get(first..last.checked_add(1).ok_or(invalid)?).ok_or(invalid)?;
    sampler.levels = shown.to_vec();
    if (view.first_layer, view.last_layer) == (0, 0) {
        return Ok(());
    }
    let (first, last) = (u64::from(view.first_layer), u64::from(view.last_layer));
    for level in &mut sampler.levels {
        if first > last || last >= level.depth {
            return Err(invalid);
        }
        level.address += first * level.slice_pitch;
        level.depth = last - first + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_name_every_plain_format() {
        let is = |format, kind, bytes, count| {
            assert_eq!(view_channel(format), Some(Channel { kind, bytes, count }), "{format:#x}");
        };
        is(0x01, ChannelKind::Unsigned, 1, 1);
        is(0x06, ChannelKind::Signed, 1, 4);
        is(0x08, ChannelKind::Unsigned, 2, 2);
        is(0x0d, ChannelKind::Unsigned, 4, 1);
        is(0x12, ChannelKind::Signed, 4, 4);
        is(0x14, ChannelKind::Float, 2, 2);
        is(0x18, ChannelKind::Float, 4, 4);
        assert_eq!(view_channel(0x19), None, "BC1");
        assert_eq!(view_channel(0), None);
    }
}
