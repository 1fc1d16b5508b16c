//! The client side of the api plane: handles, addresses, contexts, capture and graphs, without I/O.
//!
//! Building blocks of `libcuda.so.1`. Each module is one idea and knows no socket, clock, thread or environment
//! variable; what is shared between threads locks itself with the standard library's primitives and says so.
//!
//! Reading order:
//!
//! 1. [`slab`]: handles that the program holds, and what they stand for.
//! 2. [`addresses`]: where device memory lies.

#![forbid(unsafe_code)]

pub mod slab;

pub mod addresses;
