//! libcuda.so.1 as a pass-through: `dxpu trace` and `dxpu inject` put it in front of the machine's own.
//!
//! Every symbol of a driver is here. Most are a jump or a counted call into the real library (`symbols`, made by build.rs from the
//! table of the driver API); those that matter are hooks (`hooks`), which hand the call on too and, on the way,
//!
//! - write down what was called, when and for how long (`log`), and time a sample of it on the GPU (`timing`),
//! - put a filler kernel before it (`inject`, `filler`), or
//! - answer it without doing it, while a program asks for that (`nothing`).
//!
//! Private tables (`cuGetExportTable`) are the real library's own. Nothing that a program can see changes but the time.

// Modules that need unsafe code say so at their top; everything else is held to safe code.
#![deny(unsafe_code)]

mod clock;
mod context;
mod counted;
mod driver;
mod exit;
mod filler;
mod graphs;
mod hooks;
mod inject;
mod log;
mod mean;
mod names;
mod nothing;
mod operation;
mod real;
mod sampling;
mod state;
mod streams;
mod symbols;
mod timing;
