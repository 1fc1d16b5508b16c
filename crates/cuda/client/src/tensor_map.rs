//! Tensor maps: 128 bytes that tell the copy engine of a Hopper GPU where a tensor lies and how to cut tiles out of it.
//!
//! A program makes one with cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col and hands it to kernels as a parameter,
//! often one for every launch. Nothing in it depends on anything but the arguments, so the client makes it without
//! asking the worker: addresses are the same on both sides.
//!
//! CUDA calls the bytes opaque. This is what they are for compute capability 9.x, in little-endian words:
//!
//! ```text
//! byte  bits
//!    0   0..64   address of the tensor
//!    8   0       im2col instead of tiles
//!        4..7    rank - 1
//!        7..11   type of an element, as the hardware numbers them
//!       11..13   interleave
//!       13..15   swizzle
//!       15       fill with NaN what lies outside
//!       16       round to TF32
//!       17..19   L2 promotion
//!   12  4 × 32   strides of dimensions 1 to 4, in units of 16 bytes: their low bits
//!   28  4 ×  4   and their high bits
//!   32  5 × 32   sizes - 1
//!   52  5 ×  3   element strides - 1
//!       24..32   box of dimension 0 - 1; for im2col channels - 1
//!   56  4 ×  8   tiles: box of dimensions 1 to 4, - 1
//!       2 × 16   im2col: lower corner, then upper corner; W, H and D share the bits of each
//!   60   0..10   im2col: pixels - 1
//!   64   0..32   bytes that one copy puts into shared memory, by the driver's count
//!   72   0..32   how these must be aligned there
//! ```
//!
//! Two things vouch for it. The files in `tensor_map/samples` hold what driver 580 made on an H200, and the tests
//! compare with every line of them. And NVIDIA's compiler turns each form of the PTX instruction `tensormap.replace`
//! into plain shifts and stores, which for compute capability 9.0 touch just these bits of the first 64 bytes (it has
//! no form for L2 promotion and im2col). The rest of the bytes was 0 in every sample.
//!
//! What neither of them decides is not guessed but refused: see [`Refusal::Unknown`].

mod choice;
mod descriptor;
mod im2col;
#[cfg(test)]
mod samples;
mod tensor;
#[cfg(test)]
mod tests;
mod tiled;

pub use im2col::{Im2col, im2col_rank};
pub use tensor::{Tensor, replace_address};
pub use tiled::{tiled, tiled_rank};

use cuda_abi::CudaError;

/// Dimensions of a tensor at most.
pub const RANK_MAX: usize = 5;

/// Why there is no tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The arguments break a rule of the driver. It has most of them from CUDA's documentation and lets some go.
    Invalid(&'static str),
    /// They are good, but what the driver makes of them was never observed.
    Unknown(&'static str),
}

impl Refusal {
    /// What the call returns.
    pub fn error(self) -> CudaError {
        match self {
            Self::Invalid(_) => CudaError::INVALID_VALUE,
            Self::Unknown(_) => CudaError::NOT_SUPPORTED,
        }
    }
}

/// Fails with a broken rule unless it holds.
fn rule(holds: bool, says: &'static str) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(Refusal::Invalid(says)) }
}

/// Fails as unknown unless the case was observed.
fn observed(holds: bool, says: &'static str) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(Refusal::Unknown(says)) }
}

/// Where the program keeps a tensor map. CUDA's documentation asks for a multiple of 64 bytes, but the driver does not
/// look: it only writes the words, and a kernel gets a copy. A place where the words are torn was not tried.
pub fn check_place(address: u64) -> Result<(), Refusal> {
    observed(address.is_multiple_of(8), "a tensor map off a multiple of 8 bytes was not observed")
}
