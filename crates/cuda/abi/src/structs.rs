//! Structures that cross the border, with the names of the C header and snake-case fields.
//!
//! Handles and pointers are `u64`: the structures are plain values that may be kept, compared and sent, and whoever
//! follows a pointer in one does so where unsafe code is allowed. Fields that are a union are bytes with accessors.

mod copy;
mod device;
mod graph;
mod launch;
mod memory;
mod stream;
mod texture;

pub use copy::*;
pub use device::*;
pub use graph::*;
pub use launch::*;
pub use memory::*;
pub use stream::*;
pub use texture::*;
