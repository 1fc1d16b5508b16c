//! How a launch fails.

use std::fmt;

use cuda_abi::CudaError;

use crate::error::PtxError;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing is mapped there, or it may not be touched that way.
    IllegalAddress,
    /// An address that is no multiple of the access.
    MisalignedAddress,
    /// `trap`, or a program that can never go on.
    LaunchFailed,
    /// `assert` of the program.
    Assert,
    /// An instruction that means nothing with its operands.
    IllegalInstruction,
    /// A call of something that is no function of the kernel.
    InvalidPc,
    /// Calls nested deeper than the stack allows.
    StackOverflow,
    /// The launch was stopped from outside.
    Aborted,
}

/// A launch that failed, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Kernel that ran.
    pub kernel: String,
    /// Line of the PTX text, counted from 1; 0 if no single instruction is to blame.
    pub line: u32,
    /// Block index.
    pub block: [u32; 3],
    /// Thread index in the block.
    pub thread: [u32; 3],
    /// Address of the access, if it was one.
    pub address: u64,
    /// More words, such as the text of an assertion.
    pub message: String,
}

impl Fault {
    /// What the CUDA driver reports for it.
    pub fn cuda_error(&self) -> CudaError {
        let code = match self.kind {
            FaultKind::IllegalAddress => 700,
            FaultKind::Assert => 710,
            FaultKind::StackOverflow => 714,
            FaultKind::IllegalInstruction => 715,
            FaultKind::MisalignedAddress => 716,
            FaultKind::InvalidPc => 718,
            FaultKind::LaunchFailed | FaultKind::Aborted => 719,
        };
        CudaError::from_code(code).expect("none of these is 0")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in kernel {}", self.kind, self.kernel)?;
        if self.line > 0 {
            write!(f, ", ptx line {}", self.line)?;
        }
        write!(f, ", block {:?}, thread {:?}", self.block, self.thread)?;
        if self.address != 0 {
            write!(f, ", address {:#x}", self.address)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// A launch that cannot begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchError {
    /// The program has no such kernel.
    NoSuchKernel(String),
    /// The kernel contains something that is not supported.
    Refused(PtxError),
    /// Sizes that no device accepts, in words.
    Invalid(&'static str),
}

impl LaunchError {
    /// What the CUDA driver would report.
    pub fn cuda_error(&self) -> CudaError {
        let code = match self {
            Self::NoSuchKernel(_) => 500,
            Self::Refused(_) => 218,
            Self::Invalid(_) => 1,
        };
        CudaError::from_code(code).expect("none of these is 0")
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchKernel(name) => write!(f, "no kernel is called `{name}`"),
            Self::Refused(error) => write!(f, "the kernel cannot run: {error}"),
            Self::Invalid(what) => write!(f, "not a possible launch: {what}"),
        }
    }
}

impl std::error::Error for LaunchError {}

/// A fault of one lane, before it is known which thread that is.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) kind: FaultKind,
    pub(super) lane: usize,
    pub(super) address: u64,
    pub(super) message: String,
}

impl Trouble {
    pub(super) fn new(kind: FaultKind, lane: usize) -> Self {
        Self { kind, lane, address: 0, message: String::new() }
    }

    pub(super) fn at(kind: FaultKind, lane: usize, address: u64) -> Self {
        Self { kind, lane, address, message: String::new() }
    }

    pub(super) fn saying(kind: FaultKind, lane: usize, message: impl Into<String>) -> Self {
        Self { kind, lane, address: 0, message: message.into() }
    }
}
