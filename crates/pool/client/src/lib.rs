//! Speaks to the managers of a pool.
//!
//! A [`Client`] is given any number of addresses. One of them leads; the others say which one. A client goes there,
//! stays there, and looks again when that manager is gone. It knows managers by the name that only the pool's authority
//! gives out (`manager.dxpu`), whatever address it dials, so neither a box nor a stranger at a stolen address can pass
//! for one.
//!
//! It blocks, and keeps connections open. What may be sent twice (everything but making tokens) is sent again after a
//! failure, for as long as [`Patience`] says.

#![forbid(unsafe_code)]

mod client;
mod dial;
mod error;
mod idempotency;
mod managers;
mod survival;

pub use client::{Client, Patience, TOLD_AFTER, Teller};
pub use error::{ClientError, Silence};
pub use idempotency::idempotency_key;
