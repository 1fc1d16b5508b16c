//! Shared memory: two rings, four eventfds for wake-ups, and a Unix socket that tells when the peer is gone.
//!
//! A message between two busy threads costs no system call: the writer copies and moves `head`, the reader sees it. A
//! thread that finds nothing to do spins for a moment, then says in the ring that it sleeps, looks once more, and polls
//! its eventfd together with the socket. The other side signals the eventfd only when it sees that word.

mod half;
mod map;
mod memory;
mod setup;
mod spin;
#[cfg(test)]
mod tests;

pub(crate) use half::{ShmLink, ShmRx, ShmTx};
pub(crate) use memory::Memory;
pub(crate) use setup::{accept_rings, offer_rings};
pub(crate) use spin::Spinner;
