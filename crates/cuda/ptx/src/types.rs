//! The fundamental types of PTX and its state spaces.

/// A type suffix such as `.u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub(crate) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F32x2,
    F64,
    Tf32,
    E4m3x2,
    E5m2x2,
    U16x2,
    S16x2,
}

impl Type {
    /// The type of a suffix without its dot.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "b128" => Self::B128,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f32x2" => Self::F32x2,
            "f64" => Self::F64,
            "tf32" => Self::Tf32,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            "u16x2" => Self::U16x2,
            "s16x2" => Self::S16x2,
            _ => return None,
        })
    }

    /// Bytes of one value; 0 for a predicate, which has no place in memory.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::Pred => 0,
            Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::Tf32 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::U16x2 | Self::S16x2 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 | Self::F32x2 => 8,
            Self::B128 => 16,
        }
    }

    /// Bits of one value.
    pub(crate) fn bits(self) -> u32 {
        self.bytes() * 8
    }

    /// Whether arithmetic on it is signed.
    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Whether it is an integer or untyped bits (no predicate, no float).
    pub(crate) fn is_integer(self) -> bool {
        matches!(
            self,
            Self::B8
                | Self::B16
                | Self::B32
                | Self::B64
                | Self::U8
                | Self::U16
                | Self::U32
                | Self::U64
                | Self::S8
                | Self::S16
                | Self::S32
                | Self::S64
        )
    }
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory.
    Global,
    /// Constant memory; device memory to this engine.
    Const,
    /// Memory of one block.
    Shared,
    /// Memory of one thread.
    Local,
    /// Parameters of an entry or of a call.
    Param,
}
