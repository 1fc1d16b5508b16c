//! Copies between packed bytes and rows in device memory, as calls of the driver.

use cuda_wire::{Plane, Shape};

/// A rectangle of whole rows, or a part of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Where it starts among the packed bytes.
    pub(crate) packed: u64,
    /// Where it starts in device memory.
    pub(crate) address: u64,
    /// Bytes of a row.
    pub(crate) width: u64,
    /// Rows.
    pub(crate) height: u64,
    /// Bytes from a row to the next in device memory.
    pub(crate) pitch: u64,
}

/// The rectangles that hold the packed bytes `from..from + bytes`.
pub(crate) fn blocks(plane: Plane, shape: Shape, from: u64, bytes: u64) -> impl Iterator<Item = Block> {
    let end = from + bytes;
    let mut at = from;
    let (width, height) = (shape.width.max(1), shape.height.max(1));
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        if shape.height <= 1 && shape.depth <= 1 {
            let block = Block {
                packed: at,
                address: plane.address + at,
                width: end - at,
                height: 1,
                pitch: end - at,
            };
            at = end;
            return Some(block);
        }
        let (row, column) = (at / width, at % width);
        let (slice, row_of_slice) = (row / height, row % height);
        let address = plane.address + slice * plane.slice_pitch + row_of_slice * plane.row_pitch + column;
        let whole_rows = (end - at) / width;
        let block = if column != 0 || whole_rows == 0 {
            let count = (width - column).min(end - at);
            Block { packed: at, address, width: count, height: 1, pitch: count }
        } else {
            let rows = whole_rows.min(height - row_of_slice);
            Block { packed: at, address, width, height: rows, pitch: plane.row_pitch }
        };
        at += block.width * block.height;
        Some(block)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where each packed byte lies, by the definition.
    fn place(plane: Plane, shape: Shape, at: u64) -> u64 {
        let (row, column) = (at / shape.width, at % shape.width);
        let (slice, row) = (row / shape.height, row % shape.height);
        plane.address + slice * plane.slice_pitch + row * plane.row_pitch + column
    }

    #[test]
    fn blocks_cover_every_byte_once_and_in_place() {
        let plane = Plane { address: 1000, row_pitch: 16, slice_pitch: 100 };
        let shapes = [
            Shape { width: 10, height: 4, depth: 3 },
            Shape { width: 1, height: 1, depth: 5 },
            Shape { width: 7, height: 6, depth: 1 },
            Shape { width: 64, height: 1, depth: 1 },
        ];
        for shape in shapes {
            let total = shape.bytes().unwrap();
            for from in 0..total {
                for bytes in 0..=total - from {
                    let mut expected = from;
                    for block in blocks(plane, shape, from, bytes) {
                        for row in 0..block.height {
                            for column in 0..block.width {
                                assert_eq!(block.packed + row * block.width + column, expected);
                                let address = block.address + row * block.pitch + column;
                                assert_eq!(address, place(plane, shape, expected));
                                expected += 1;
                            }
                        }
                    }
                    assert_eq!(expected, from + bytes);
                }
            }
        }
    }

    #[test]
    fn whole_slices_are_one_block() {
        let plane = Plane { address: 0, row_pitch: 512, slice_pitch: 8192 };
        let shape = Shape { width: 100, height: 16, depth: 2 };
        assert_eq!(blocks(plane, shape, 0, 3200).count(), 2);
    }
}
