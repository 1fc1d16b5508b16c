//! Which arrays and textures a device takes, and the names of arrays.

use cuda_abi::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CuResult, CudaError,
    attributes::{
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS as SURFACE1D_LAYERED_LAYERS,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH as SURFACE1D_LAYERED_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH as SURFACE1D_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT as SURFACE2D_HEIGHT,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT as SURFACE2D_LAYERED_HEIGHT,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS as SURFACE2D_LAYERED_LAYERS,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH as SURFACE2D_LAYERED_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH as SURFACE2D_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH as SURFACE3D_DEPTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT as SURFACE3D_HEIGHT,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH as SURFACE3D_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS as SURFACECUBEMAP_LAYERED_LAYERS,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH as SURFACECUBEMAP_LAYERED_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH as SURFACECUBEMAP_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS as TEXTURE1D_LAYERED_LAYERS,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH as TEXTURE1D_LAYERED_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH as TEXTURE1D_MIPMAPPED_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH as TEXTURE1D_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT as TEXTURE2D_GATHER_HEIGHT,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH as TEXTURE2D_GATHER_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT as TEXTURE2D_HEIGHT,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT as TEXTURE2D_LAYERED_HEIGHT,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS as TEXTURE2D_LAYERED_LAYERS,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH as TEXTURE2D_LAYERED_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT as TEXTURE2D_MIPMAPPED_HEIGHT,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH as TEXTURE2D_MIPMAPPED_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH as TEXTURE2D_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH as TEXTURE3D_DEPTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT as TEXTURE3D_HEIGHT,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH as TEXTURE3D_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS as TEXTURECUBEMAP_LAYERED_LAYERS,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH as TEXTURECUBEMAP_LAYERED_WIDTH,
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH as TEXTURECUBEMAP_WIDTH,
    },
};
use cuda_wire::{
    ARRAY_BYTES_MAX, ARRAYS_MAX, ArrayId, ArrayInfo, ResourceView, Sampling, array_kind::*, channel_bytes,
};
use std::collections::BTreeSet;

/// Why an array is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The real driver refuses it too.
    Invalid,
    /// We do not serve it, in words.
    NotServed(&'static str),
}

impl Refusal {
    /// What the call returns.
    pub fn error(self) -> CudaError {
        match self {
            Self::Invalid => CudaError::INVALID_VALUE,
            Self::NotServed(_) => CudaError::NOT_SUPPORTED,
        }
    }
}

/// The array that a program describes. `levels` is 0 for an ordinary one. `attribute` gives those of the device.
pub fn describe(
    given: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    attribute: impl Fn(u32) -> Option<i32>,
) -> Result<ArrayInfo, Refusal> {
    let shapes = LAYERED | CUBEMAP;
    let known =
        shapes | SURFACE_LDST | TEXTURE_GATHER | DEPTH_TEXTURE | COLOR_ATTACHMENT | VIDEO_ENCODE_DECODE;
    if given.flags & (SPARSE | DEFERRED_MAPPING) != 0 {
        return Err(Refusal::NotServed("arrays whose memory is mapped piece by piece are not served"));
    }
    if given.flags & !known != 0 || !matches!(given.num_channels, 1 | 2 | 4) {
        return Err(Refusal::Invalid);
    }
    if channel_bytes(given.format).is_none() {
        // Video and block compression; other numbers are no formats.
        let is_format = matches!(given.format, 0x50..=0x73 | 0x91..=0xb3);
        let words = "arrays in formats of video and block compression are not served";
        return Err(if is_format { Refusal::NotServed(words) } else { Refusal::Invalid });
    }
    let info = ArrayInfo {
        format: given.format,
        channels: given.num_channels,
        width: given.width as u64,
        height: given.height as u64,
        depth: given.depth as u64,
        flags: given.flags,
        levels,
    };
    info.element_bytes().ok_or(Refusal::Invalid)?;
    check_shape(&info, &attribute)?;
    let bytes = info.bytes().filter(|bytes| *bytes <= ARRAY_BYTES_MAX);
    bytes.map(|_| info).ok_or(Refusal::Invalid)
}

/// The largest sizes of a kind of array: width, height, depth or layers.
fn most(info: &ArrayInfo) -> [u32; 3] {
    const NONE: u32 = 0;
    let is_surface = info.flags & SURFACE_LDST != 0;
    let has = |flag| info.flags & flag != 0;
    match () {
        () if has(CUBEMAP) && has(LAYERED) => match is_surface {
            true => [SURFACECUBEMAP_LAYERED_WIDTH, NONE, SURFACECUBEMAP_LAYERED_LAYERS],
            false => [TEXTURECUBEMAP_LAYERED_WIDTH, NONE, TEXTURECUBEMAP_LAYERED_LAYERS],
        },
        () if has(CUBEMAP) => {
            [if is_surface { SURFACECUBEMAP_WIDTH } else { TEXTURECUBEMAP_WIDTH }, NONE, NONE]
        }
        () if has(LAYERED) && info.height == 0 => match is_surface {
            true => [SURFACE1D_LAYERED_WIDTH, NONE, SURFACE1D_LAYERED_LAYERS],
            false => [TEXTURE1D_LAYERED_WIDTH, NONE, TEXTURE1D_LAYERED_LAYERS],
        },
        () if has(LAYERED) => match is_surface {
            true => [SURFACE2D_LAYERED_WIDTH, SURFACE2D_LAYERED_HEIGHT, SURFACE2D_LAYERED_LAYERS],
            false => [TEXTURE2D_LAYERED_WIDTH, TEXTURE2D_LAYERED_HEIGHT, TEXTURE2D_LAYERED_LAYERS],
        },
        () if info.depth != 0 => match is_surface {
            true => [SURFACE3D_WIDTH, SURFACE3D_HEIGHT, SURFACE3D_DEPTH],
            false => [TEXTURE3D_WIDTH, TEXTURE3D_HEIGHT, TEXTURE3D_DEPTH],
        },
        () if info.height != 0 && info.levels != 0 => {
            [TEXTURE2D_MIPMAPPED_WIDTH, TEXTURE2D_MIPMAPPED_HEIGHT, NONE]
        }
        () if info.height != 0 && has(TEXTURE_GATHER) => {
            [TEXTURE2D_GATHER_WIDTH, TEXTURE2D_GATHER_HEIGHT, NONE]
        }
        () if info.height != 0 => match is_surface {
            true => [SURFACE2D_WIDTH, SURFACE2D_HEIGHT, NONE],
            false => [TEXTURE2D_WIDTH, TEXTURE2D_HEIGHT, NONE],
        },
        () if info.levels != 0 => [TEXTURE1D_MIPMAPPED_WIDTH, NONE, NONE],
        () => [if is_surface { SURFACE1D_WIDTH } else { TEXTURE1D_WIDTH }, NONE, NONE],
    }
}

fn check_shape(info: &ArrayInfo, attribute: &impl Fn(u32) -> Option<i32>) -> Result<(), Refusal> {
    let ArrayInfo { width, height, depth, flags, levels, .. } = *info;
    let is_cube = flags & CUBEMAP != 0;
    let is_whole_cubes = width == height && depth.is_multiple_of(6) && depth != 0;
    let is_one_cube = flags & LAYERED != 0 || depth == 6;
    let largest = width.max(height).max(if info.is_layered() { 0 } else { depth });
    let is_good = width != 0
        && (!is_cube || is_whole_cubes && is_one_cube)
        && (flags & LAYERED == 0 || depth != 0)
        && (info.is_layered() || depth == 0 || height != 0)
        && (flags & TEXTURE_GATHER == 0 || height != 0 && (depth == 0 || info.is_layered()))
        && u64::from(levels) <= u64::from(u64::BITS - largest.leading_zeros());
    if !is_good {
        return Err(Refusal::Invalid);
    }
    let fits = |size: u64, number: u32| {
        let most = attribute(number).filter(|most| number != 0 && *most > 0);
        most.is_none_or(|most| size <= most as u64)
    };
    let [wide, high, deep] = most(info);
    let fits = fits(width, wide) && fits(height, high) && fits(depth, deep);
    if fits { Ok(()) } else { Err(Refusal::Invalid) }
}

/// How a texture is read, if the description means something. The driver takes any anisotropy, and the device has this much.
pub fn sampling(given: &CUDA_TEXTURE_DESC) -> CuResult<Sampling> {
    /// `CU_TRSF_*`
    const FLAGS: u32 = 0x01 | 0x02 | 0x10 | 0x20 | 0x40;
    const ANISOTROPY_MAX: u32 = 16;
    let is_good = given.address_mode.iter().all(|mode| *mode <= 3)
        && given.filter_mode <= 1
        && given.mipmap_filter_mode <= 1
        && given.flags & !FLAGS == 0;
    if !is_good {
        return Err(CudaError::INVALID_VALUE);
    }
    Ok(Sampling {
        address_modes: given.address_mode,
        filter_mode: given.filter_mode,
        flags: given.flags,
        max_anisotropy: given.max_anisotropy.min(ANISOTROPY_MAX),
        mipmap_filter_mode: given.mipmap_filter_mode,
        mipmap_level_bias: given.mipmap_level_bias,
        min_mipmap_level_clamp: given.min_mipmap_level_clamp,
        max_mipmap_level_clamp: given.max_mipmap_level_clamp,
        border_color: given.border_color,
    })
}

/// A view for the wire.
pub fn view(given: &CUDA_RESOURCE_VIEW_DESC) -> CuResult<ResourceView> {
    /// `CU_RES_VIEW_FORMAT_UNSIGNED_BC7`
    const LAST_FORMAT: u32 = 0x22;
    let is_good = given.format <= LAST_FORMAT
        && given.first_mipmap_level <= given.last_mipmap_level
        && given.first_layer <= given.last_layer;
    if !is_good {
        return Err(CudaError::INVALID_VALUE);
    }
    Ok(ResourceView {
        format: given.format,
        width: given.width as u64,
        height: given.height as u64,
        depth: given.depth as u64,
        first_level: given.first_mipmap_level,
        last_level: given.last_mipmap_level,
        first_layer: given.first_layer,
        last_layer: given.last_layer,
    })
}

/// The names of arrays: a small number each, free again when its array was destroyed.
#[derive(Debug, Default)]
pub struct ArrayNames {
    used: u32,
    free: BTreeSet<u32>,
}

impl ArrayNames {
    /// No name is taken.
    pub const fn new() -> Self {
        Self { used: 0, free: BTreeSet::new() }
    }

    /// Takes a name.
    pub fn take(&mut self) -> CuResult<ArrayId> {
        if let Some(number) = self.free.pop_first() {
            return Ok(ArrayId(number));
        }
        if self.used == ARRAYS_MAX {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        self.used += 1;
        Ok(ArrayId(self.used - 1))
    }

    /// Gives it back. Commands about the array were sent already, and later ones are about another array.
    pub fn give(&mut self, name: ArrayId) {
        self.free.insert(name.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format: FLOAT, num_channels: 1, flags }
    }

    fn made(given: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<ArrayInfo, Refusal> {
        describe(given, levels, |_| Some(1024))
    }

    #[test]
    fn every_shape_of_the_guide_is_taken() {
        for (width, height, depth, flags) in [
            (1024, 0, 0, 0),
            (64, 32, 0, 0),
            (64, 32, 16, SURFACE_LDST),
            (64, 0, 7, LAYERED),
            (64, 32, 7, LAYERED),
            (64, 64, 6, CUBEMAP),
            (64, 64, 18, CUBEMAP | LAYERED),
            (64, 32, 0, TEXTURE_GATHER),
        ] {
            assert!(made(&given(width, height, depth, flags), 0).is_ok(), "{width} {height} {depth} {flags}");
        }
    }

    #[test]
    fn what_no_device_has_is_invalid() {
        for (width, height, depth, flags) in [
            (0, 0, 0, 0),
            (1025, 0, 0, 0),
            (64, 1025, 0, 0),
            (64, 0, 8, 0),
            (64, 0, 0, LAYERED),
            (64, 32, 6, CUBEMAP),
            (64, 64, 12, CUBEMAP),
            (64, 64, 7, CUBEMAP | LAYERED),
            (64, 0, 0, TEXTURE_GATHER),
            (64, 32, 0, 0x8000),
        ] {
            assert_eq!(
                made(&given(width, height, depth, flags), 0),
                Err(Refusal::Invalid),
                "{width} {flags}"
            );
        }
        let three = CUDA_ARRAY3D_DESCRIPTOR { num_channels: 3, ..given(8, 0, 0, 0) };
        assert_eq!(made(&three, 0), Err(Refusal::Invalid));
        let none = CUDA_ARRAY3D_DESCRIPTOR { format: 7, ..given(8, 0, 0, 0) };
        assert_eq!(made(&none, 0), Err(Refusal::Invalid));
    }

    #[test]
    fn what_we_do_not_serve_is_said_in_words() {
        let video = CUDA_ARRAY3D_DESCRIPTOR { format: 0xb0, num_channels: 1, ..given(8, 8, 0, 0) };
        for refused in [given(64, 64, 0, SPARSE), given(64, 64, 0, DEFERRED_MAPPING), video] {
            let refusal = made(&refused, 0).unwrap_err();
            assert!(matches!(refusal, Refusal::NotServed(_)));
            assert_eq!(refusal.error(), CudaError::NOT_SUPPORTED);
        }
    }

    #[test]
    fn levels_go_down_to_one_element() {
        assert!(made(&given(64, 16, 0, 0), 7).is_ok());
        assert_eq!(made(&given(64, 16, 0, 0), 8), Err(Refusal::Invalid));
        assert_eq!(made(&given(1, 0, 0, 0), 1).unwrap().bytes(), Some(4));
    }

    #[test]
    fn names_are_used_again() {
        let mut names = ArrayNames::new();
        let taken: Vec<u32> = (0..3).map(|_| names.take().unwrap().0).collect();
        assert_eq!(taken, [0, 1, 2]);
        names.give(ArrayId(1));
        assert_eq!((names.take(), names.take()), (Ok(ArrayId(1)), Ok(ArrayId(3))));
    }

    #[test]
    fn modes_that_do_not_exist_are_invalid() {
        let plain = CUDA_TEXTURE_DESC::default();
        assert!(sampling(&plain).is_ok());
        assert!(sampling(&CUDA_TEXTURE_DESC { address_mode: [0, 4, 0], ..plain }).is_err());
        assert!(sampling(&CUDA_TEXTURE_DESC { filter_mode: 2, ..plain }).is_err());
        assert!(sampling(&CUDA_TEXTURE_DESC { flags: 0x80, ..plain }).is_err());
        let much = sampling(&CUDA_TEXTURE_DESC { max_anisotropy: 17, ..plain }).unwrap();
        assert_eq!(much.max_anisotropy, 16);
        let view_of = CUDA_RESOURCE_VIEW_DESC::default();
        assert!(view(&view_of).is_ok());
        assert!(view(&CUDA_RESOURCE_VIEW_DESC { first_layer: 1, ..view_of }).is_err());
    }
}
