//! The bits. The caller has checked the values; a value that does not fit its field is our fault.

use cuda_abi::CUtensorMap;

/// A descriptor in the making, as little-endian words.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Descriptor([u32; 32]);

/// Where a field lies: its word, first bit and width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field(usize, u32, u32);

impl Field {
    pub(super) const IS_IM2COL: Self = Self(2, 0, 1);
    pub(super) const RANK: Self = Self(2, 4, 3);
    pub(super) const ELEMENT: Self = Self(2, 7, 4);
    pub(super) const INTERLEAVE: Self = Self(2, 11, 2);
    pub(super) const SWIZZLE: Self = Self(2, 13, 2);
    pub(super) const FILLS_WITH_NAN: Self = Self(2, 15, 1);
    pub(super) const TF32: Self = Self(2, 16, 1);
    pub(super) const PROMOTION: Self = Self(2, 17, 2);
    pub(super) const CHANNELS: Self = Self(13, 24, 8);
    pub(super) const PIXELS: Self = Self(15, 0, 10);
    pub(super) const COPY_BYTES: Self = Self(16, 0, 32);
    pub(super) const ALIGNMENT: Self = Self(18, 0, 32);

    /// Size of a dimension, less 1.
    pub(super) const fn size(dimension: usize) -> Self {
        Self(8 + dimension, 0, 32)
    }

    /// Element stride of a dimension, less 1.
    pub(super) const fn step(dimension: usize) -> Self {
        Self(13, 3 * dimension as u32, 3)
    }

    /// Box of a dimension, less 1.
    pub(super) const fn tile(dimension: usize) -> Self {
        match dimension {
            0 => Self(13, 24, 8),
            _ => Self(14, 8 * (dimension as u32 - 1), 8),
        }
    }

    /// The offset of the lower (0) or the upper (1) corner along W, H or D. Each corner has 16 bits, which its `axes`
    /// share evenly: 16, 8 or 5 for each, and of 16 bits three axes leave one over.
    pub(super) const fn corner(corner: usize, axis: usize, axes: usize) -> Self {
        let width = 16 / axes as u32;
        Self(14, 16 * corner as u32 + width * axis as u32, width)
    }

    /// The numbers that the field holds in two's complement, if it is narrower than 32 bits.
    pub(super) const fn signed_range(self) -> core::ops::RangeInclusive<i32> {
        let end = 1 << (self.2 - 1);
        -end..=end - 1
    }
}

impl Descriptor {
    /// Sets the address of the tensor.
    pub(super) fn set_address(&mut self, address: u64) {
        self.0[0] = address as u32;
        self.0[1] = (address >> 32) as u32;
    }

    /// Sets a field that is still 0.
    pub(super) fn set(&mut self, Field(word, first, width): Field, value: u32) {
        debug_assert!(width == 32 || value >> width == 0, "{value} does not fit {width} bits");
        self.0[word] |= value << first;
    }

    /// Sets a field that is still 0 to a number in two's complement.
    pub(super) fn set_signed(&mut self, field: Field, value: i32) {
        debug_assert!(field.signed_range().contains(&value), "{value} does not fit {} bits", field.2);
        self.set(field, value as u32 & ((1 << field.2) - 1));
    }

    /// Sets the stride of a dimension from 1 on, in bytes below 2^40.
    pub(super) fn set_stride(&mut self, dimension: usize, bytes: u64) {
        let units = bytes / 16;
        self.0[2 + dimension] = units as u32;
        self.set(Field(7, 4 * (dimension as u32 - 1), 4), (units >> 32) as u32);
    }

    /// The stride of a dimension from 1 on, in bytes.
    #[cfg(test)]
    pub(super) fn stride(&self, dimension: usize) -> u64 {
        let high = self.get(Field(7, 4 * (dimension as u32 - 1), 4));
        16 * (u64::from(self.0[2 + dimension]) | u64::from(high) << 32)
    }

    /// As the program gets it.
    pub(super) fn finish(self) -> CUtensorMap {
        let opaque = core::array::from_fn(|index| {
            u64::from(self.0[2 * index]) | u64::from(self.0[2 * index + 1]) << 32
        });
        CUtensorMap { opaque }
    }

    /// The descriptor that a program holds.
    pub(super) fn of(map: &CUtensorMap) -> Self {
        Self(core::array::from_fn(|index| (map.opaque[index / 2] >> (32 * (index % 2))) as u32))
    }

    /// What a field holds.
    pub(super) fn get(&self, Field(word, first, width): Field) -> u32 {
        let value = self.0[word] >> first;
        if width == 32 { value } else { value & ((1 << width) - 1) }
    }
}
