//! Copies and fills of rows.

use crate::op::SharedCopy;
use crate::space::{BadAddress, Cursor, Space};
use cuda_wire::{Plane, Shape};

/// Bytes that a copy within the device reads before it writes them: they stay in the innermost cache.
const PIECE: usize = 16 << 10;

/// Calls `each(offset in packed rows, address in the plane, bytes)` for the rows of `shape` between the packed offsets
/// `from` and `from + bytes`.
fn rows(
    plane: &Plane,
    shape: &Shape,
    from: u64,
    bytes: u64,
    mut each: impl FnMut(u64, u64, usize) -> Result<(), BadAddress>,
) -> Result<(), BadAddress> {
    if shape.width == 0 {
        return Ok(());
    }
    let mut offset = from;
    let end = from.saturating_add(bytes);
    while offset < end {
        let (row, column) = (offset / shape.width, offset % shape.width);
        let (slice, row) = (row / shape.height.max(1), row % shape.height.max(1));
        let count = (shape.width - column).min(end - offset);
        let address = plane.address + slice * plane.slice_pitch + row * plane.row_pitch + column;
        each(offset, address, count as usize)?;
        offset += count;
    }
    Ok(())
}

/// Writes packed bytes that start at `offset` into their rows.
pub(crate) fn scatter(
    space: &Space,
    plane: &Plane,
    shape: &Shape,
    offset: u64,
    bytes: &[u8],
) -> Result<(), BadAddress> {
    let mut cursor = Cursor::new(space);
    rows(plane, shape, offset, bytes.len() as u64, |at, address, count| {
        let start = (at - offset) as usize;
        cursor.write(address, &bytes[start..start + count])
    })
}

/// Reads packed bytes from `offset` on out of their rows.
pub(crate) fn gather(
    space: &Space,
    plane: &Plane,
    shape: &Shape,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), BadAddress> {
    let mut cursor = Cursor::new(space);
    rows(plane, shape, offset, bytes.len() as u64, |at, address, count| {
        let start = (at - offset) as usize;
        cursor.read(address, &mut bytes[start..start + count])
    })
}

/// Copies rows within device memory.
pub(crate) fn copy(space: &Space, target: &Plane, source: &Plane, shape: &Shape) -> Result<(), BadAddress> {
    let mut buffer = [0; PIECE];
    let (mut from, mut to) = (Cursor::new(space), Cursor::new(space));
    for slice in 0..shape.depth {
        for row in 0..shape.height {
            let source = source.address + slice * source.slice_pitch + row * source.row_pitch;
            let target = target.address + slice * target.slice_pitch + row * target.row_pitch;
            let mut column = 0;
            while column < shape.width {
                let count = (shape.width - column).min(PIECE as u64);
                let piece = &mut buffer[..count as usize];
                from.read(source + column, piece)?;
                to.write(target + column, piece)?;
                column += count;
            }
        }
    }
    Ok(())
}

/// Copies rows between device memory and memory of the program's.
pub(crate) fn shared(space: &Space, copy: &SharedCopy) -> Result<(), BadAddress> {
    let SharedCopy { device, host, shape, pages, is_in } = copy;
    let mut buffer = [0; PIECE];
    let mut cursor = Cursor::new(space);
    for slice in 0..shape.depth {
        for row in 0..shape.height {
            let at = device.address + slice * device.slice_pitch + row * device.row_pitch;
            let offset = host.offset + slice * host.slice_pitch + row * host.row_pitch;
            let mut column = 0;
            while column < shape.width {
                let count = (shape.width - column).min(PIECE as u64);
                let piece = &mut buffer[..count as usize];
                // The session checked the place when it made the copy; a mistake must not reach other memory all the same.
                if *is_in {
                    pages.read(offset + column, piece).map_err(|_| BadAddress)?;
                    cursor.write(at + column, piece)?;
                } else {
                    cursor.read(at + column, piece)?;
                    pages.write(offset + column, piece).map_err(|_| BadAddress)?;
                }
                column += count;
            }
        }
    }
    Ok(())
}

/// Fills rows with an element of 1, 2 or 4 bytes.
pub(crate) fn fill(
    space: &Space,
    target: &Plane,
    shape: &Shape,
    element_bytes: u8,
    value: u32,
) -> Result<(), BadAddress> {
    let element = value.to_le_bytes();
    let element = &element[..usize::from(element_bytes).clamp(1, 4)];
    // A piece is a multiple of every element, so each starts with a whole one.
    let piece: Vec<u8> = element.iter().copied().cycle().take(PIECE.min(shape.width as usize)).collect();
    let mut cursor = Cursor::new(space);
    for slice in 0..shape.depth {
        for row in 0..shape.height {
            let start = target.address + slice * target.slice_pitch + row * target.row_pitch;
            let mut column = 0;
            while column < shape.width {
                let count = (shape.width - column).min(PIECE as u64);
                cursor.write(start + column, &piece[..count as usize])?;
                column += count;
            }
        }
    }
    Ok(())
}
