//! Bodies: managed memory.
//!
//! Prefetches and advice are taken although the devices show CONCURRENT_MANAGED_ACCESS = 0. A driver would refuse them with
//! CUDA_ERROR_INVALID_DEVICE there; programs that do not ask the attribute use them as hints, and that is what they are here.

#![allow(unsafe_code)]

use crate::{
    border::*,
    state::{
        Stream, client, current_context, forbid_unsafe_call,
        managed::{self, Attached},
    },
};
use cuda_abi::*;
use cuda_client::managed::advice::{Advice, HOST, NOWHERE, Place};

/// `CUmemAttach_flags`.
const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;
const ATTACH_SINGLE: u32 = 4;

/// `CUmemLocationType`.
mod location_type {
    pub(super) const INVALID: u32 = 0;
    pub(super) const DEVICE: u32 = 1;
    pub(super) const HOST: u32 = 2;
    pub(super) const HOST_NUMA: u32 = 3;
    pub(super) const HOST_NUMA_CURRENT: u32 = 4;
}

/// `CUmem_advise`.
mod advice {
    pub(super) const SET_READ_MOSTLY: u32 = 1;
    pub(super) const UNSET_READ_MOSTLY: u32 = 2;
    pub(super) const SET_PREFERRED_LOCATION: u32 = 3;
    pub(super) const UNSET_PREFERRED_LOCATION: u32 = 4;
    pub(super) const SET_ACCESSED_BY: u32 = 5;
    pub(super) const UNSET_ACCESSED_BY: u32 = 6;
}

/// `CUmem_range_attribute`.
mod range_attribute {
    pub(super) const READ_MOSTLY: u32 = 1;
    pub(super) const PREFERRED_LOCATION: u32 = 2;
    pub(super) const ACCESSED_BY: u32 = 3;
    pub(super) const LAST_PREFETCH_LOCATION: u32 = 4;
    pub(super) const PREFERRED_LOCATION_TYPE: u32 = 5;
    pub(super) const PREFERRED_LOCATION_ID: u32 = 6;
    pub(super) const LAST_PREFETCH_LOCATION_TYPE: u32 = 7;
    pub(super) const LAST_PREFETCH_LOCATION_ID: u32 = 8;
}

/// cuMemAllocManaged
pub(crate) fn alloc(mut device_pointer: Out<'_, u64>, byte_size: usize, flags: u32) -> CuResult<()> {
    let context = current_context()?;
    forbid_unsafe_call()?;
    let attached = match flags {
        ATTACH_GLOBAL => Attached::Global,
        ATTACH_HOST => Attached::Host,
        _ => return Err(CudaError::INVALID_VALUE),
    };
    if byte_size == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    device_pointer.set(managed::allocate_managed(&context, byte_size as u64, attached)?);
    Ok(())
}

/// A place by a device's number, where -1 is the host.
fn place_of_device(device: i32) -> CuResult<Place> {
    if device == HOST {
        return Ok(HOST);
    }
    Ok(client()?.device(device)?.ordinal as Place)
}

fn place_of(location: &CUmemLocation) -> CuResult<Place> {
    match location.kind {
        location_type::DEVICE => Ok(client()?.device(location.id)?.ordinal as Place),
        location_type::HOST | location_type::HOST_NUMA | location_type::HOST_NUMA_CURRENT => Ok(HOST),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// cuMemPrefetchAsync
pub(crate) fn prefetch_v1(
    device_pointer: u64,
    count: usize,
    dst_device: i32,
    stream: StreamArg,
) -> CuResult<()> {
    prefetch(device_pointer, count, place_of_device(dst_device)?, stream)
}

/// cuMemPrefetchAsync_v2
pub(crate) fn prefetch_v2(
    device_pointer: u64,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    stream: StreamArg,
) -> CuResult<()> {
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    prefetch(device_pointer, count, place_of(&location)?, stream)
}

fn prefetch(address: u64, count: usize, to: Place, stream: StreamArg) -> CuResult<()> {
    let stream = Stream::of(stream)?;
    if crate::state::capturing(&stream).is_some() {
        crate::state::spoil_capture(&stream);
        return Err(CudaError::STREAM_CAPTURE_UNSUPPORTED);
    }
    managed::prefetch(&stream, address, count as u64, to)
}

/// The place of each range of a batch: a location holds from its index on.
fn places_of_batch(count: usize, locations: &[CUmemLocation], indices: &[usize]) -> CuResult<Vec<Place>> {
    let is_ascending = indices.first() == Some(&0) && indices.is_sorted_by(|a, b| a < b);
    if count == 0 || !is_ascending || indices.last().is_some_and(|last| *last >= count) {
        return Err(CudaError::INVALID_VALUE);
    }
    let location_at = |at: usize| {
        let named = indices.partition_point(|first| *first <= at) - 1;
        locations.get(named).ok_or(CudaError::INVALID_VALUE).and_then(place_of)
    };
    (0..count).map(location_at).collect()
}

/// cuMemPrefetchBatchAsync
pub(crate) fn prefetch_batch(
    device_pointers: &[u64],
    sizes: &[usize],
    count: usize,
    locations: &[CUmemLocation],
    location_idxs: &[usize],
    _num_locations: usize,
    flags: u64,
    stream: StreamArg,
) -> CuResult<()> {
    if flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let places = places_of_batch(count, locations, location_idxs)?;
    for ((address, bytes), to) in device_pointers.iter().zip(sizes).zip(places) {
        prefetch(*address, *bytes, to, stream)?;
    }
    Ok(())
}

/// cuMemDiscardBatchAsync
pub(crate) fn discard_batch(
    device_pointers: &[u64],
    sizes: &[usize],
    count: usize,
    flags: u64,
    stream: StreamArg,
) -> CuResult<()> {
    Stream::of(stream)?;
    if flags != 0 || count == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let ranges = device_pointers.iter().zip(sizes);
    ranges.into_iter().try_for_each(|(address, bytes)| managed::check_managed(*address, *bytes as u64))
}

/// cuMemDiscardAndPrefetchBatchAsync
pub(crate) fn discard_and_prefetch_batch(
    device_pointers: &[u64],
    sizes: &[usize],
    count: usize,
    locations: &[CUmemLocation],
    location_idxs: &[usize],
    num_locations: usize,
    flags: u64,
    stream: StreamArg,
) -> CuResult<()> {
    prefetch_batch(device_pointers, sizes, count, locations, location_idxs, num_locations, flags, stream)
}

/// cuMemAdvise
pub(crate) fn advise_v1(device_pointer: u64, count: usize, advice: u32, device: i32) -> CuResult<()> {
    // These two ignore the device.
    let ignores = matches!(
        advice,
        advice::SET_READ_MOSTLY | advice::UNSET_READ_MOSTLY | advice::UNSET_PREFERRED_LOCATION
    );
    let place = if ignores { HOST } else { place_of_device(device)? };
    advise(device_pointer, count, advice, place)
}

/// cuMemAdvise_v2
pub(crate) fn advise_v2(
    device_pointer: u64,
    count: usize,
    advice: u32,
    location: CUmemLocation,
) -> CuResult<()> {
    let ignores = matches!(
        advice,
        advice::SET_READ_MOSTLY | advice::UNSET_READ_MOSTLY | advice::UNSET_PREFERRED_LOCATION
    );
    let place = if ignores { HOST } else { place_of(&location)? };
    advise(device_pointer, count, advice, place)
}

fn advise(address: u64, count: usize, advice: u32, place: Place) -> CuResult<()> {
    if !(advice::SET_READ_MOSTLY..=advice::UNSET_ACCESSED_BY).contains(&advice) {
        return Err(CudaError::INVALID_VALUE);
    }
    managed::advise(address, count as u64, |known: &mut Advice| match advice {
        advice::SET_READ_MOSTLY => known.read_mostly = true,
        advice::UNSET_READ_MOSTLY => known.read_mostly = false,
        advice::SET_PREFERRED_LOCATION => known.preferred = place,
        advice::UNSET_PREFERRED_LOCATION => known.preferred = NOWHERE,
        advice::SET_ACCESSED_BY => {
            if let Err(at) = known.accessed_by.binary_search(&place) {
                known.accessed_by.insert(at, place);
            }
        }
        _ => known.accessed_by.retain(|other| *other != place),
    })
}

/// Type and number of a place, as `CUmemLocation` has them.
fn location_of(place: Place) -> (u32, i32) {
    match place {
        HOST => (location_type::HOST, 0),
        NOWHERE => (location_type::INVALID, 0),
        device => (location_type::DEVICE, device),
    }
}

/// The numbers of one attribute: one, or as many as there is room for.
fn numbers(known: &Advice, attribute: u32, bytes: usize) -> CuResult<Vec<i32>> {
    use range_attribute::*;
    let one = match attribute {
        READ_MOSTLY => known.read_mostly.into(),
        PREFERRED_LOCATION => known.preferred,
        LAST_PREFETCH_LOCATION => known.prefetched,
        PREFERRED_LOCATION_TYPE => location_of(known.preferred).0 as i32,
        PREFERRED_LOCATION_ID => location_of(known.preferred).1,
        LAST_PREFETCH_LOCATION_TYPE => location_of(known.prefetched).0 as i32,
        LAST_PREFETCH_LOCATION_ID => location_of(known.prefetched).1,
        ACCESSED_BY => {
            if bytes == 0 || !bytes.is_multiple_of(4) {
                return Err(CudaError::INVALID_VALUE);
            }
            let mut places = known.accessed_by.clone();
            places.resize(bytes / 4, NOWHERE);
            return Ok(places);
        }
        _ => return Err(CudaError::INVALID_VALUE),
    };
    if bytes == 4 { Ok(vec![one]) } else { Err(CudaError::INVALID_VALUE) }
}

fn write_numbers(address: u64, numbers: &[i32]) -> CuResult<()> {
    for (at, number) in numbers.iter().enumerate() {
        // SAFETY: the API has the caller provide `data_size` bytes, and `numbers` are no more.
        let place = unsafe { OutAny::at(address + 4 * at as u64) };
        place.ok_or(CudaError::INVALID_VALUE)?.set(*number);
    }
    Ok(())
}

/// cuMemRangeGetAttribute
pub(crate) fn range_attribute(
    data: OutAny<'_>,
    data_size: usize,
    attribute: u32,
    device_pointer: u64,
    count: usize,
) -> CuResult<()> {
    let known = managed::advice_for(device_pointer, count as u64)?;
    write_numbers(data.address(), &numbers(&known, attribute, data_size)?)
}

/// cuMemRangeGetAttributes
pub(crate) fn range_attributes(
    data: &[u64],
    data_sizes: &[usize],
    attributes: &[u32],
    num_attributes: usize,
    device_pointer: u64,
    count: usize,
) -> CuResult<()> {
    if num_attributes == 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let known = managed::advice_for(device_pointer, count as u64)?;
    for ((place, bytes), attribute) in data.iter().zip(data_sizes).zip(attributes) {
        write_numbers(*place, &numbers(&known, *attribute, *bytes)?)?;
    }
    Ok(())
}

/// cuStreamAttachMemAsync
pub(crate) fn attach(stream: StreamArg, device_pointer: u64, length: usize, flags: u32) -> CuResult<()> {
    let is_default = !matches!(stream, StreamArg::Created(_));
    let stream = Stream::of(stream)?;
    let attached = match flags {
        ATTACH_GLOBAL => Attached::Global,
        ATTACH_HOST => Attached::Host,
        // A default stream cannot have memory of its own.
        ATTACH_SINGLE if is_default => return Err(CudaError::INVALID_VALUE),
        ATTACH_SINGLE => Attached::Stream(stream.id.0),
        _ => return Err(CudaError::INVALID_VALUE),
    };
    managed::attach(device_pointer, length as u64, attached)
}
