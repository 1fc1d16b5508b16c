//! The client side of the api plane: handles, addresses, contexts, capture and graphs, without I/O.
//!
//! Building blocks of `libcuda.so.1`. Each module is one idea and knows no socket, clock, thread or environment
//! variable; what is shared between threads locks itself with the standard library's primitives and says so.
//!
//! Reading order:
//!
//! 1. [`slab`]: handles that the program holds, and what they stand for.
//! 2. [`addresses`]: where device memory lies.
//! 3. [`host_memory`]: pinned host memory, and bytes still on their way into it.
//!    [`shadow`]: which of its bytes travel when a kernel is given a pointer into it.
//!    [`managed`]: memory that the program and kernels both use at one address.
//! 4. [`limits`]: what a device and a kernel allow.
//! 5. [`launch`]: whether a launch fits them, and its parameters as one block of bytes.
//! 6. [`occupancy`]: how many blocks of a kernel run at once.
//! 7. [`graph`]: graphs and stream capture.
//! 8. [`integrity`]: the digest by which the CUDA runtime recognises a driver.
//! 9. [`stream_order`]: which stream comes after what another one freed; [`suballocator`]: the memory of a pool, given out
//!    here; [`pool`]: a memory pool with its books.
//! 10. [`tensor_map`]: descriptors for the copy engine of Hopper GPUs.
//! 11. [`arrays`]: what arrays and textures a device takes.
//! 12. [`shares`]: handles that the program's processes give each other.
//! 13. [`green`]: parts of a device's multiprocessors, as programs hold them.
//! 14. [`content`]: whether copies are asked for by content.
//! 15. [`error_log`]: the messages that cuLogs* give; [`coredump`]: settings that programs read back.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

pub mod addresses;
pub mod arrays;
pub mod content;
pub mod coredump;
pub mod error_log;
pub mod graph;
pub mod green;
pub mod host_memory;
pub mod integrity;
pub mod launch;
pub mod limits;
pub mod managed;
pub mod occupancy;
pub mod old_launch;
pub mod pool;
pub mod shadow;
pub mod shares;
pub mod slab;
pub mod stream_order;
pub mod suballocator;
pub mod tensor_map;
