//! A PTX parser and a lockstep warp engine: kernels really run, on the CPU.
//!
//! ```text
//! text --Module::parse--> Module --link--> Linked --Program::bind--> Program --Run::new--> Run
//! ```
//!
//! [`Module::parse`] keeps everything it reads. [`Program::bind`] gives addresses to variables; a kernel is decoded
//! when it is first asked for, and an instruction that is not supported refuses that kernel only. A [`Run`] is one
//! launch: any number of host threads call [`Run::work`] until no blocks are left.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod address;
mod code;
mod engine;
mod error;
mod flat;
mod hooks;
mod lex;
mod lower;
mod memory;
mod module;
mod num;
mod parse;
mod program;
mod syntax;
mod texture;
mod types;

pub use engine::{Fault, FaultKind, Launch, LaunchError, Run, Stats};
pub use error::PtxError;
pub use flat::{FlatMemory, FlatSpan};
pub use hooks::{AbortFlag, Hooks};
pub use memory::{DeviceMemory, Span};
pub use module::{Linked, Module, Variable, link};
pub use program::{KernelInfo, Param, Program};
pub use texture::{AddressMode, Channel, ChannelKind, Level, Sampler};
pub use types::Space;
