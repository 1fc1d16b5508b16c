//! Decoded kernels: registers are numbers, types are gone into the functions that compute.

use crate::texture::Outside;
use std::sync::Arc;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// One register of a warp: its value in every lane. Narrow values stand in the low bits.
pub(crate) type Row = [u64; LANES];

pub(crate) type Fn1 = Box<dyn Fn(&mut Row, &Row, u32) + Send + Sync>;
pub(crate) type Fn2 = Box<dyn Fn(&mut Row, &Row, &Row, u32) + Send + Sync>;
pub(crate) type Fn3 = Box<dyn Fn(&mut Row, &Row, &Row, &Row, u32) + Send + Sync>;
pub(crate) type Fn4 = Box<dyn Fn(&mut Row, [&Row; 4], u32) + Send + Sync>;
pub(crate) type FnN = Box<dyn Fn(&mut [Row], &[&Row], u32) + Send + Sync>;
/// Compares; a bit per lane.
pub(crate) type FnCmp = Box<dyn Fn(&Row, &Row) -> u32 + Send + Sync>;
/// Tests one value; a bit per lane.
pub(crate) type FnTest = Box<dyn Fn(&Row) -> u32 + Send + Sync>;
/// New value of memory from the old one and the operand.
pub(crate) type FnAtom = Box<dyn Fn(u64, u64) -> u64 + Send + Sync>;

/// Iterates over the lanes of a mask.
#[inline]
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}

/// A register row of the frame, or a constant row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Src(pub(crate) u32);

impl Src {
    const CONSTANT: u32 = 1 << 31;

    pub(crate) fn constant(index: usize) -> Self {
        Self(index as u32 | Self::CONSTANT)
    }

    #[inline]
    pub(crate) fn is_constant(self) -> bool {
        self.0 & Self::CONSTANT != 0
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        (self.0 & !Self::CONSTANT) as usize
    }
}

/// A predicate that is read, perhaps negated; or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pred(pub(crate) u32);

impl Pred {
    const NEGATED: u32 = 1 << 31;
    const NONE: u32 = Self::NEGATED - 1;
    /// Always true.
    pub(crate) const TRUE: Self = Self(Self::NONE | Self::NEGATED);
    /// Always false.
    pub(crate) const FALSE: Self = Self(Self::NONE);

    pub(crate) fn new(index: u32, negated: bool) -> Self {
        Self(index | if negated { Self::NEGATED } else { 0 })
    }

    /// The register, unless it is a constant.
    #[inline]
    pub(crate) fn index(self) -> Option<usize> {
        let index = self.0 & !Self::NEGATED;
        (index != Self::NONE).then_some(index as usize)
    }

    #[inline]
    pub(crate) fn is_negated(self) -> bool {
        self.0 & Self::NEGATED != 0
    }
}

/// No destination: `_`.
pub(crate) const SINK: u32 = u32::MAX;

/// How a comparison joins with another predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    None,
    And,
    Or,
    Xor,
}

/// State space of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mem {
    /// Generic, global or constant: decided by the address.
    Generic,
    /// Offsets into the block's shared memory.
    Shared,
    /// Offsets into the thread's local memory.
    Local,
    /// Offsets into the frame of the current function; never out of bounds.
    Frame,
    /// Offsets into the kernel's parameters.
    Param,
}

/// Where an access goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) space: Mem,
    pub(crate) base: Src,
    pub(crate) offset: i64,
}

/// A read-modify-write.
pub(crate) struct Atomic {
    pub(crate) address: Address,
    /// Bytes: 2, 4 or 8.
    pub(crate) width: u32,
    /// Elements that follow one another (`red.v2` and so on).
    pub(crate) d: Vec<u32>,
    pub(crate) b: Vec<Src>,
    pub(crate) kind: AtomicKind,
}

pub(crate) enum AtomicKind {
    /// A plain 32-bit add, which memory can do best itself.
    Add32,
    /// Anything else.
    Update(FnAtom),
    /// Writes `b` where the old value is the source.
    Compare(Src),
}

/// What an arithmetic instruction with carry computes before the carry comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarryKind {
    Add,
    Sub,
    MadLo,
    MadHi,
}

pub(crate) struct Carry {
    pub(crate) kind: CarryKind,
    pub(crate) wide: bool,
    pub(crate) signed: bool,
    pub(crate) carry_in: bool,
    pub(crate) carry_out: bool,
    pub(crate) d: u32,
    pub(crate) a: Src,
    pub(crate) b: Src,
    pub(crate) c: Src,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteKind {
    All,
    Any,
    Uni,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleKind {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduxKind {
    Add,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
    /// f32: whether it is the minimum, `.abs`, `.NaN`.
    Float {
        min: bool,
        abs: bool,
        nan: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    /// The reduction's predicate comes from `Barrier::pred`.
    RedAnd,
    RedOr,
    RedPopc,
}

pub(crate) struct Barrier {
    pub(crate) kind: BarrierKind,
    pub(crate) id: Src,
    pub(crate) count: Option<Src>,
    pub(crate) pred: Pred,
    /// Row for popc, predicate for and/or; [`SINK`] otherwise.
    pub(crate) d: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    GlobalTimer,
    GlobalTimerHi,
    EnvReg(u8),
    DynamicSmem,
    TotalSmem,
    One,
    Zero,
}

/// Functions that every module may call without defining them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    Printf,
    Malloc,
    Free,
    AssertFail,
    SetCondition,
}

/// What a call passes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// Bytes of the caller's frame.
    Frame { offset: u32, size: u32 },
    /// A register or constant.
    Value(Src),
}

pub(crate) struct CallSite {
    pub(crate) target: Target,
    pub(crate) arguments: Vec<Argument>,
    /// Frame offset and size of each result in the caller.
    pub(crate) results: Vec<(u32, u32)>,
}

pub(crate) enum Target {
    /// Index in [`Kernel::functions`].
    Direct(usize),
    Indirect(Src),
    Builtin(Builtin),
}

/// What an instruction does.
pub(crate) enum Op {
    /// A label: lanes may meet here.
    Join,
    Nop,
    Map1 {
        f: Fn1,
        d: u32,
        a: Src,
    },
    Map2 {
        f: Fn2,
        d: u32,
        a: Src,
        b: Src,
    },
    Map3 {
        f: Fn3,
        d: u32,
        a: Src,
        b: Src,
        c: Src,
    },
    Map4 {
        f: Fn4,
        d: u32,
        s: [Src; 4],
    },
    /// Several results: unpacking, matrix pieces.
    MapN {
        f: FnN,
        d: Vec<u32>,
        s: Vec<Src>,
    },
    /// `setp`: `p` gets the comparison, `q` its opposite, each combined with `c`.
    Compare {
        f: FnCmp,
        a: Src,
        b: Src,
        p: u32,
        q: u32,
        combine: Combine,
        c: Pred,
    },
    /// `set`: the comparison as a number.
    Set {
        f: FnCmp,
        a: Src,
        b: Src,
        d: u32,
        combine: Combine,
        c: Pred,
        yes: u64,
    },
    /// Two comparisons, for the halves of a packed pair.
    Compare2 {
        lo: FnCmp,
        hi: FnCmp,
        a: Src,
        b: Src,
        p: u32,
        q: u32,
        combine: Combine,
        c: Pred,
    },
    Test {
        f: FnTest,
        a: Src,
        p: u32,
    },
    Mov {
        d: u32,
        a: Src,
    },
    Select {
        d: u32,
        a: Src,
        b: Src,
        p: Pred,
    },
    PredLogic {
        combine: Combine,
        p: u32,
        a: Pred,
        b: Pred,
    },
    Carry(Box<Carry>),
    Special {
        d: u32,
        kind: Special,
    },
    /// Address of a place in the current frame: an offset in local memory.
    FrameAddress {
        d: u32,
        offset: u32,
    },
    Load {
        at: Address,
        d: u32,
        width: u32,
        signed: bool,
        spin: bool,
    },
    LoadVector {
        at: Address,
        d: Vec<u32>,
        width: u32,
        signed: bool,
        /// Volatile, relaxed or acquire: read whole.
        strong: bool,
    },
    Store {
        at: Address,
        s: Src,
        width: u32,
    },
    StoreVector {
        at: Address,
        s: Vec<Src>,
        width: u32,
        /// Volatile, relaxed or release: written whole.
        strong: bool,
    },
    /// `cp.async`: `size` bytes, of which the first `source_size` are read and the rest are zero.
    Copy {
        to: Address,
        from: Address,
        size: u32,
        source_size: Option<Src>,
    },
    Atomic(Box<Atomic>),
    /// A memory fence.
    Fence,
    Yield,
    Bra {
        target: u32,
    },
    /// `brx.idx`.
    BraTable {
        index: Src,
        targets: Vec<u32>,
    },
    Call(Box<CallSite>),
    Ret,
    Exit,
    Trap,
    Barrier(Box<Barrier>),
    WarpSync {
        members: Src,
    },
    Vote {
        kind: VoteKind,
        d: u32,
        p: Pred,
        members: Option<Src>,
    },
    Shuffle {
        kind: ShuffleKind,
        d: u32,
        p: u32,
        a: Src,
        b: Src,
        c: Src,
        members: Option<Src>,
    },
    Match {
        all: bool,
        wide: bool,
        d: u32,
        p: u32,
        a: Src,
        members: Src,
    },
    Redux {
        kind: ReduxKind,
        d: u32,
        a: Src,
        members: Src,
    },
    Elect {
        d: u32,
        p: u32,
        members: Src,
    },
    ActiveMask {
        d: u32,
    },
    Mbarrier(Box<Mbarrier>),
    Texture(Box<TextureOp>),
    Surface(Box<SurfaceOp>),
    /// `txq` and `suq`.
    SamplerQuery {
        d: u32,
        handle: Src,
        level: Option<Src>,
        question: SamplerQuestion,
    },
}

/// The shape of what a texture or surface instruction looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Coordinates, without the layer.
    pub(crate) dimensions: usize,
    pub(crate) is_layered: bool,
    pub(crate) is_cube: bool,
}

/// `tex` and `tld4`.
pub(crate) struct TextureOp {
    pub(crate) d: Vec<u32>,
    pub(crate) handle: Src,
    pub(crate) geometry: Geometry,
    pub(crate) layer: Option<Src>,
    pub(crate) at: Vec<Src>,
    /// Coordinates are integers.
    pub(crate) is_integer: bool,
    pub(crate) lod: TextureLod,
    /// `tld4`: this component of four texels.
    pub(crate) gather: Option<usize>,
}

pub(crate) enum TextureLod {
    Base,
    Level(Src),
    Gradients(Vec<Src>, Vec<Src>),
}

/// `suld`, `sust` and `sured`.
pub(crate) struct SurfaceOp {
    pub(crate) handle: Src,
    pub(crate) layer: Option<Src>,
    pub(crate) at: Vec<Src>,
    /// Bytes of one value.
    pub(crate) width: u32,
    pub(crate) outside: Outside,
    /// The first coordinate counts elements; otherwise it counts bytes.
    pub(crate) counts_elements: bool,
    pub(crate) work: SurfaceWork,
}

pub(crate) enum SurfaceWork {
    Load {
        d: Vec<u32>,
    },
    Store {
        values: Vec<Src>,
        /// Values are converted to the surface's format.
        is_formatted: bool,
    },
    Reduce(Atomic),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplerQuestion {
    Width,
    Height,
    Depth,
    Layers,
    Levels,
    IsNormalized,
    ChannelType,
    ChannelOrder,
}

/// An operation on an mbarrier object in shared memory.
pub(crate) struct Mbarrier {
    pub(crate) kind: MbarrierKind,
    pub(crate) at: Address,
    pub(crate) d: u32,
    pub(crate) a: Option<Src>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MbarrierKind {
    Init,
    Inval,
    Arrive {
        drop: bool,
        expect: bool,
    },
    /// Result is a predicate: has the phase of the state (or of the parity) completed?
    Test {
        parity: bool,
    },
    PendingCount,
    ExpectTx,
    CompleteTx,
}

/// An instruction with its guard.
pub(crate) struct Inst {
    pub(crate) op: Op,
    pub(crate) guard: Pred,
    pub(crate) line: u32,
}

/// One function of a decoded kernel; the kernel itself is number 0.
#[derive(Debug)]
pub(crate) struct FunctionCode {
    pub(crate) name: Arc<str>,
    pub(crate) entry: u32,
    pub(crate) rows: u32,
    pub(crate) preds: u32,
    /// Bytes of parameters, results and local variables.
    pub(crate) frame: u32,
    /// Offset and size of each parameter in the frame.
    pub(crate) params: Vec<(u32, u32)>,
    /// Offset and size of each result in the frame.
    pub(crate) results: Vec<(u32, u32)>,
}

/// A kernel, ready to run.
pub(crate) struct Kernel {
    pub(crate) name: Arc<str>,
    pub(crate) code: Vec<Inst>,
    pub(crate) constants: Vec<Row>,
    pub(crate) functions: Vec<FunctionCode>,
    /// Function of the program (by number) to function of this kernel, ascending; empty without indirect calls.
    pub(crate) by_address: Vec<(u64, u32)>,
    pub(crate) static_shared: u32,
    /// Live registers at the worst place, in 32-bit units.
    pub(crate) registers: u32,
}
