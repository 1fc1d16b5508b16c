//! The choices a program has: enums of C, checked.

use super::{Refusal, rule};

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// Bytes of one.
    pub(super) bytes: u32,
    /// Its number in the descriptor.
    pub(super) code: u32,
    /// Whether values are rounded to TF32 on their way.
    pub(super) tf32: bool,
    /// Whether it can be a NaN.
    pub(super) float: bool,
}

impl Element {
    /// By `CUtensorMapDataType`. The packed types of 4 and 6 bits begin with compute capability 10.0: driver 580
    /// answers them with CUDA_ERROR_INVALID_VALUE on an H200.
    pub(super) fn new(number: u32) -> Result<Self, Refusal> {
        const fn of(bytes: u32, code: u32, float: bool) -> Element {
            Element { bytes, code, tf32: false, float }
        }
        const fn tf32(code: u32) -> Element {
            Element { bytes: 4, code, tf32: true, float: true }
        }
        Ok(match number {
            0 => of(1, 0, false), // UINT8
            1 => of(2, 1, false), // UINT16
            2 => of(4, 2, false), // UINT32
            3 => of(4, 3, false), // INT32
            4 => of(8, 4, false), // UINT64
            5 => of(8, 5, false), // INT64
            6 => of(2, 6, true),  // FLOAT16
            7 => of(4, 7, true),  // FLOAT32
            8 => of(8, 9, true),  // FLOAT64
            9 => of(2, 10, true), // BFLOAT16
            10 => of(4, 8, true), // FLOAT32_FTZ
            11 => tf32(7),        // TFLOAT32
            12 => tf32(8),        // TFLOAT32_FTZ
            _ => return Err(Refusal::Invalid("the device has no such type of element")),
        })
    }
}

/// How channels lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interleave {
    /// All channels of a pixel together.
    None,
    /// In slices of 16 bytes.
    Bytes16,
    /// In slices of 32 bytes.
    Bytes32,
}

impl Interleave {
    /// By `CUtensorMapInterleave`.
    pub(super) fn new(number: u32) -> Result<Self, Refusal> {
        match number {
            0 => Ok(Self::None),
            1 => Ok(Self::Bytes16),
            2 => Ok(Self::Bytes32),
            _ => Err(Refusal::Invalid("there is no such interleave")),
        }
    }

    /// What the address and the strides are multiples of.
    pub(super) fn alignment(self) -> u64 {
        if self == Self::Bytes32 { 32 } else { 16 }
    }
}

/// How rows are shuffled in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swizzle {
    /// Not at all.
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    /// By `CUtensorMapSwizzle`. The swizzles of larger atoms begin with compute capability 10.0: driver 580 answers
    /// them with CUDA_ERROR_INVALID_VALUE on an H200.
    pub(super) fn new(number: u32) -> Result<Self, Refusal> {
        match number {
            0 => Ok(Self::None),
            1 => Ok(Self::Bytes32),
            2 => Ok(Self::Bytes64),
            3 => Ok(Self::Bytes128),
            _ => Err(Refusal::Invalid("the device has no such swizzle")),
        }
    }

    /// The bytes it shuffles within, which bound a row of the box.
    pub(super) fn span(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
            Self::Bytes128 => Some(128),
        }
    }

    /// The alignment of the box in shared memory: the pattern repeats after eight rows.
    pub(super) fn alignment(self) -> u32 {
        self.span().map_or(16, |span| 8 * span)
    }
}

/// `CUtensorMapL2promotion`, in the numbers of the descriptor.
pub(super) fn promotion(number: u32) -> Result<u32, Refusal> {
    rule(number <= 3, "there is no such L2 promotion")?;
    Ok(number)
}

/// `CUtensorMapFloatOOBfill`: whether elements outside of the tensor read as NaN instead of 0.
pub(super) fn fills_with_nan(number: u32, element: Element) -> Result<bool, Refusal> {
    rule(number <= 1, "there is no such fill")?;
    rule(number == 0 || element.float, "only floating-point elements can be NaN")?;
    Ok(number == 1)
}
