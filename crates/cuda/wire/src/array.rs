//! Arrays: device memory whose layout only its driver knows, and how copies name places in it.
//!
//! An array has addresses all the same, in a window where no device memory lies. There its rows and slices lie side by side,
//! and the levels of a mipmapped array one behind the other. So a [`Plane`] names a place in an array as it names one in
//! memory, and every copy takes either.
//!
//! ```text
//! bit 63   62        39 38          0
//!    | 1 |    array    |    byte    |
//! ```

use crate::{
    ids::ArrayId,
    op::{Plane, Shape},
};

/// Bits of a place in an array.
const BYTE_BITS: u32 = 39;
/// Set in the addresses of arrays alone.
const WINDOW: u64 = 1 << 63;
/// One past the highest number of an array.
pub const ARRAYS_MAX: u32 = 1 << 24;
/// The most bytes of an array, all levels and layers together.
pub const ARRAY_BYTES_MAX: u64 = 1 << BYTE_BITS;
/// The most levels of a mipmapped array: 2^31 elements down to one.
pub const LEVELS_MAX: u32 = 32;

/// `CUarray_format` and flags of `CUDA_ARRAY3D_DESCRIPTOR`, by their values.
pub mod array_kind {
    #![allow(missing_docs, reason = "the names of cuda.h")]

    pub const UNSIGNED_INT8: u32 = 0x01;
    pub const UNSIGNED_INT16: u32 = 0x02;
    pub const UNSIGNED_INT32: u32 = 0x03;
    pub const SIGNED_INT8: u32 = 0x08;
    pub const SIGNED_INT16: u32 = 0x09;
    pub const SIGNED_INT32: u32 = 0x0a;
    pub const HALF: u32 = 0x10;
    pub const FLOAT: u32 = 0x20;
    pub const UNORM_INT8X1: u32 = 0xc0;
    pub const UNORM_INT16X4: u32 = 0xc5;
    pub const SNORM_INT8X1: u32 = 0xc6;
    pub const SNORM_INT16X4: u32 = 0xcb;

    pub const LAYERED: u32 = 0x01;
    pub const SURFACE_LDST: u32 = 0x02;
    pub const CUBEMAP: u32 = 0x04;
    pub const TEXTURE_GATHER: u32 = 0x08;
    pub const DEPTH_TEXTURE: u32 = 0x10;
    pub const COLOR_ATTACHMENT: u32 = 0x20;
    pub const SPARSE: u32 = 0x40;
    pub const DEFERRED_MAPPING: u32 = 0x80;
    pub const VIDEO_ENCODE_DECODE: u32 = 0x100;
}

impl ArrayId {
    /// Where its window begins.
    pub const fn address(self) -> u64 {
        WINDOW | (self.0 as u64) << BYTE_BITS
    }

    /// The array whose window holds `address`, and the byte in it. `None`: it is an address of memory.
    pub const fn at(address: u64) -> Option<(Self, u64)> {
        if address & WINDOW == 0 {
            return None;
        }
        Some((Self((address >> BYTE_BITS) as u32 & (ARRAYS_MAX - 1)), address & (ARRAY_BYTES_MAX - 1)))
    }
}

/// Bytes of one channel of a format, and how many channels it fixes. `None`: no such format, or one of video and block
/// compression.
pub const fn channel_bytes(format: u32) -> Option<(u32, Option<u32>)> {
    use array_kind::*;
    Some(match format {
        UNSIGNED_INT8 | SIGNED_INT8 => (1, None),
        UNSIGNED_INT16 | SIGNED_INT16 | HALF => (2, None),
        UNSIGNED_INT32 | SIGNED_INT32 | FLOAT => (4, None),
        // Six of each: one, two and four channels of 8 bits, then of 16.
        UNORM_INT8X1..=SNORM_INT16X4 => {
            let place = (format - UNORM_INT8X1) % 6;
            (1 + place / 3, Some(1 << (place % 3)))
        }
        _ => return None,
    })
}

wire_struct! {
    /// An array as the program described it.
    #[derive(Copy, Eq, Hash)]
    pub struct ArrayInfo {
        /// `CUarray_format`.
        pub format: u32,
        /// Channels of an element: 1, 2 or 4.
        pub channels: u32,
        /// Elements of a row.
        pub width: u64,
        /// Rows; 0 in one dimension.
        pub height: u64,
        /// Slices of an array of three dimensions, or layers; 0 if there are none.
        pub depth: u64,
        /// `CUDA_ARRAY3D_*`.
        pub flags: u32,
        /// Levels of a mipmapped array; 0 for an ordinary one.
        pub levels: u32,
    }
}

/// One level of an array in bytes and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelExtent {
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Rows of a slice, at least 1.
    pub rows: u64,
    /// Slices or layers, at least 1.
    pub slices: u64,
}

impl LevelExtent {
    /// All bytes of the level.
    pub fn bytes(&self) -> Option<u64> {
        self.row_bytes.checked_mul(self.rows)?.checked_mul(self.slices)
    }

    /// How a copy of the level's bytes is described, from `address` on.
    pub fn plane(&self, address: u64) -> Plane {
        Plane { address, row_pitch: self.row_bytes, slice_pitch: self.row_bytes.saturating_mul(self.rows) }
    }
}

/// A place in an array, as CUDA names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayPlace {
    /// Level of a mipmapped array; 0 in an ordinary one.
    pub level: u32,
    /// Bytes from the start of the row.
    pub x_bytes: u64,
    /// Row.
    pub y: u64,
    /// Slice or layer.
    pub z: u64,
}

impl ArrayInfo {
    /// Bytes of an element. `None` for a format or a number of channels that is not served.
    pub fn element_bytes(&self) -> Option<u64> {
        let (bytes, fixed) = channel_bytes(self.format)?;
        let is_good = matches!(self.channels, 1 | 2 | 4) && fixed.is_none_or(|fixed| fixed == self.channels);
        is_good.then(|| u64::from(bytes * self.channels))
    }

    /// Whether `depth` counts layers.
    pub fn is_layered(&self) -> bool {
        self.flags & (array_kind::LAYERED | array_kind::CUBEMAP) != 0
    }

    /// How many levels there are, one in an ordinary array.
    pub fn level_count(&self) -> u32 {
        self.levels.max(1)
    }

    /// The array that a level is, as a description of its own.
    pub fn level(&self, level: u32) -> Self {
        let shrink = |size: u64| if size == 0 { 0 } else { size.checked_shr(level).unwrap_or(0).max(1) };
        let depth = if self.is_layered() { self.depth } else { shrink(self.depth) };
        Self { width: shrink(self.width), height: shrink(self.height), depth, levels: 0, ..*self }
    }

    /// The extent of a level. `None` where it does not fit 64 bits, or the format is none.
    pub fn extent(&self, level: u32) -> Option<LevelExtent> {
        let info = self.level(level);
        let row_bytes = info.width.checked_mul(info.element_bytes()?)?;
        Some(LevelExtent { row_bytes, rows: info.height.max(1), slices: info.depth.max(1) })
    }

    /// Where a level begins in the array's window.
    pub fn level_offset(&self, level: u32) -> Option<u64> {
        (0..level).try_fold(0u64, |offset, level| offset.checked_add(self.extent(level)?.bytes()?))
    }

    /// All bytes of all levels.
    pub fn bytes(&self) -> Option<u64> {
        self.level_offset(self.level_count())
    }

    /// The place where a copy of `shape` begins whose end in this array is the `offset` of `plane.address` in the window.
    /// `None` where the copy leaves the array, or its pitches are not the array's.
    pub fn place(&self, offset: u64, plane: &Plane, shape: &Shape) -> Option<ArrayPlace> {
        let mut start = 0;
        for level in 0..self.level_count().min(LEVELS_MAX) {
            let extent = self.extent(level)?;
            let bytes = extent.bytes()?;
            if offset - start >= bytes {
                start += bytes;
                continue;
            }
            let inside = offset - start;
            let whole = extent.plane(0);
            let (z, rest) = (inside / whole.slice_pitch, inside % whole.slice_pitch);
            let place = ArrayPlace { level, x_bytes: rest % extent.row_bytes, y: rest / extent.row_bytes, z };
            let fits = |at: u64, count: u64, most: u64| at.checked_add(count).is_some_and(|end| end <= most);
            let is_good = fits(place.x_bytes, shape.width, extent.row_bytes)
                && fits(place.y, shape.height.max(1), extent.rows)
                && fits(z, shape.depth.max(1), extent.slices)
                && (shape.height <= 1 || plane.row_pitch == whole.row_pitch)
                && (shape.depth <= 1 || plane.slice_pitch == whole.slice_pitch);
            return is_good.then_some(place);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(width: u64, height: u64, depth: u64, levels: u32) -> ArrayInfo {
        ArrayInfo { format: array_kind::FLOAT, channels: 2, width, height, depth, flags: 0, levels }
    }

    #[test]
    fn an_address_names_an_array_and_a_byte() {
        let last = ArrayId(ARRAYS_MAX - 1);
        assert_eq!(ArrayId::at(last.address() + 77), Some((last, 77)));
        assert_eq!(ArrayId::at(ArrayId(0).address()), Some((ArrayId(0), 0)));
        assert_eq!(ArrayId::at(0x7fff_ffff_ffff), None);
    }

    #[test]
    fn elements_have_the_bytes_of_their_channels() {
        let bytes = |format, channels| ArrayInfo { format, channels, ..info(1, 0, 0, 0) }.element_bytes();
        assert_eq!(bytes(array_kind::FLOAT, 4), Some(16));
        assert_eq!(bytes(array_kind::HALF, 2), Some(4));
        assert_eq!(bytes(array_kind::UNORM_INT8X1, 1), Some(1));
        assert_eq!(bytes(array_kind::UNORM_INT8X1 + 2, 4), Some(4));
        assert_eq!(bytes(array_kind::UNORM_INT16X4, 4), Some(8));
        assert_eq!(bytes(array_kind::SNORM_INT8X1 + 1, 2), Some(2));
        assert_eq!(bytes(array_kind::UNORM_INT8X1, 4), None, "the format says how many channels there are");
        assert_eq!(bytes(array_kind::FLOAT, 3), None);
        assert_eq!(bytes(0xb0, 1), None, "video");
    }

    #[test]
    fn levels_shrink_to_one_and_layers_stay() {
        let plain = info(10, 5, 3, 4);
        assert_eq!(plain.extent(1), Some(LevelExtent { row_bytes: 40, rows: 2, slices: 1 }));
        assert_eq!(plain.extent(3), Some(LevelExtent { row_bytes: 8, rows: 1, slices: 1 }));
        let layered = ArrayInfo { flags: array_kind::LAYERED, ..plain };
        assert_eq!(layered.extent(3), Some(LevelExtent { row_bytes: 8, rows: 1, slices: 3 }));
        assert_eq!(plain.level_offset(1), Some(80 * 5 * 3));
        assert_eq!(plain.bytes(), Some(1200 + 80 + 16 + 8));
        assert_eq!(info(u64::MAX, 2, 2, 0).bytes(), None);
    }

    #[test]
    fn every_byte_of_every_level_has_one_place() {
        let info = info(5, 3, 2, 3);
        let mut expected = 0;
        for level in 0..3 {
            let extent = info.extent(level).unwrap();
            for (z, y) in (0..extent.slices).flat_map(|z| (0..extent.rows).map(move |y| (z, y))) {
                for x_bytes in 0..extent.row_bytes {
                    let place = info.place(expected, &Plane::line(0), &Shape::line(1));
                    assert_eq!(place, Some(ArrayPlace { level, x_bytes, y, z }));
                    expected += 1;
                }
            }
        }
        assert_eq!(info.bytes(), Some(expected));
        assert_eq!(info.place(expected, &Plane::line(0), &Shape::line(1)), None);
    }

    #[test]
    fn a_copy_that_leaves_a_row_a_slice_or_the_array_is_none() {
        let info = info(5, 3, 2, 0);
        let plane = info.extent(0).unwrap().plane(0);
        let place =
            |offset, width, height, depth| info.place(offset, &plane, &Shape { width, height, depth });
        assert!(place(0, 40, 3, 2).is_some());
        assert!(place(8, 40, 1, 1).is_none(), "past the row");
        assert!(place(40, 8, 3, 1).is_none(), "past the slice");
        assert!(place(120, 8, 1, 2).is_none(), "past the last slice");
        assert!(
            info.place(0, &Plane::line(0), &Shape { width: 8, height: 2, depth: 1 }).is_none(),
            "its pitch"
        );
    }
}
