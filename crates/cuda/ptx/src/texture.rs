//! What texture and surface instructions read and write: images in device memory, and the rules of sampling them.
//!
//! ```text
//!   handle ──Hooks::sampler──▶ Sampler ──coordinates──▶ texels ──addresses──▶ device memory
//! ```
//!
//! Everything here is a function of coordinates and of the words that a fetch gives. Point sampling is exact. Filters use
//! weights of 8 fractional bits, as the CUDA programming guide defines them (texture fetching); their sums are exact and
//! rounded once.

mod channel;
mod cube;
mod filter;
mod surface;

pub use channel::{Channel, ChannelKind};
pub(crate) use filter::{Coordinates, Lod};
pub(crate) use surface::{Bounds, Outside};

/// How a coordinate outside of an image is brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressMode {
    /// The image repeats. Only with normalised coordinates; a clamp otherwise.
    Wrap,
    /// The nearest texel of the edge.
    Clamp,
    /// The image repeats, every other time backwards. Only with normalised coordinates; a clamp otherwise.
    Mirror,
    /// The border colour.
    Border,
}

/// One level of an image: rows of elements in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Address of the first element.
    pub address: u64,
    /// Bytes from a row to the next.
    pub row_pitch: u64,
    /// Bytes from a slice or layer to the next.
    pub slice_pitch: u64,
    /// Elements of a row.
    pub width: u64,
    /// Rows, at least 1.
    pub height: u64,
    /// Slices or layers, at least 1.
    pub depth: u64,
}

/// What a texture or surface handle stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampler {
    /// The levels, the largest first. A sampler without any reads zeros.
    pub levels: Vec<Level>,
    /// What an element is made of.
    pub channel: Channel,
    /// Plain memory: an index past its end reads zero.
    pub is_memory: bool,
    /// For x, y and z.
    pub address_modes: [AddressMode; 3],
    /// Texels are blended; otherwise the nearest one is taken.
    pub is_linear: bool,
    /// Coordinates go from 0 to 1.
    pub is_normalized: bool,
    /// Integers of 8 and 16 bits are read as they are, not as fractions.
    pub reads_integers: bool,
    /// Colours of 8 bits are sRGB.
    pub is_srgb: bool,
    /// Levels are blended; otherwise the nearest one is taken.
    pub is_mip_linear: bool,
    /// Added to every level of detail.
    pub lod_bias: f32,
    /// Bounds of the level of detail.
    pub lod_bounds: (f32, f32),
    /// What lies outside, in the border mode.
    pub border: [f32; 4],
}

impl Sampler {
    /// Whether what is read are floats.
    pub(crate) fn reads_floats(&self) -> bool {
        match self.channel.kind {
            ChannelKind::Unsigned | ChannelKind::Signed => !self.reads_integers && self.channel.bytes < 4,
            ChannelKind::Float | ChannelKind::Unorm | ChannelKind::Snorm => true,
        }
    }

    /// Bytes of an element.
    pub(crate) fn element_bytes(&self) -> u64 {
        u64::from(self.channel.bytes) * u64::from(self.channel.count)
    }
}
