//! Managed memory: which side has the newest bytes of each block, and what moves when.
//!
//! An allocation lies at one address here and on the worker. On the worker it is ordinary device memory. Here it is host
//! memory whose pages the program may or may not touch at the moment. [`Table`] says for each block of 64 KiB who has
//! its newest bytes:
//!
//! ```text
//!               the program writes                work begins that may use it (the block is sent)
//!    ┌─ Same ──────────────────────▶ HostNewer ───────────────────────────┐
//!    │  readable                     writable                             │
//!    │   ▲                              ▲                                 ▼
//!    │   │ the program reads            │ the program writes          DeviceNewer
//!    │   └── (fetched) ─────────────────┴─── (fetched) ───────────── not accessible
//!    │                                                                    ▲
//!    └────────────────────────────────────────────────────────────────────┘
//!         work begins that may use it (nothing is sent)
//! ```
//!
//! New memory is zero on both sides, so it begins as `Same`. Since only a fault tells what the program touches, and a
//! fault costs at least a round trip where bytes must be fetched, `walk` widens what a fault opens while the program
//! goes through memory in order, and never beyond what the program has gone through already: a program that touches n
//! bytes in order moves at most 2n, and a touch at a random place moves one block.
//!
//! What is fetched ahead stays closed (`Ready`). So the first touch of it is a fault, which costs no round trip, and the shell
//! fetches the next while the program uses this: a walk waits for the network only where the network is the slower one.
//!
//! [`advice`] keeps what the program said about ranges, because it may ask for it.
//!
//! Nothing here locks, maps or sends: the shell does (`libcuda`'s `state::managed`).

pub mod advice;
mod table;
mod walk;

#[cfg(test)]
mod tests;

pub use table::{Block, Fault, Lent, Table, opened};
pub use walk::WINDOW_BLOCKS_MAX;

/// The unit in which bytes move. It is what one command carries inline, so that a random touch is one round trip.
pub const BLOCK_BYTES: u64 = 64 << 10;
