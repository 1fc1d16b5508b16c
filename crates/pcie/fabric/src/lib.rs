//! TLPs between two proxies: the paper's network packets and a reliable link, sans-I/O.
//!
//! ```text
//!   TLP ─▶ outbox ─▶ flight ─▶ datagram ─▶ (any network) ─▶ datagram ─▶ assembly ─▶ inbox ─▶ TLP
//!          per class  sequence   many packets,  lossy, slow,    opened,     in order,   per class
//!          credits    acks       sealed         out of order    checked     whole       credits
//! ```
//!
//! A [`Link`] carries the TLPs of one paired slot between its host and its box. A [`Trunk`] is all links of one proxy,
//! and shares its network fairly among them. Both are values: datagrams and the time go in, datagrams, TLPs and
//! events come out. [`Scripted`] is a network of bad habits for tests and experiments.
//!
//! What a link promises:
//! - every TLP arrives exactly once, in order within its class, while one path works;
//! - non-posted TLPs and completions never pass posted ones; posted TLPs and completions pass non-posted ones that wait;
//! - a receiver never holds more than the credits it gave; a sender that waits never holds the credit it waits for;
//! - datagrams of another epoch, another link, another session or a forger change nothing but a counter;
//! - no allocation once buffers have reached their working size.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod assembly;
mod counters;
mod credit;
mod flight;
mod ids;
mod inbox;
mod link;
mod outbox;
mod path;
mod requests;
mod scripted;
mod seal;
mod trunk;
pub mod wire;

pub use counters::Counters;
pub use credit::Credits;
pub use ids::{Endpoint, Route};
pub use inbox::Willing;
pub use link::{Allowance, Event, Link, LinkConfig, LinkConfigError, Role, SendError, Transmit};
pub use requests::RequestError;
pub use scripted::{Faults, Scripted};
pub use seal::{LeaseSecret, Protection};
pub use trunk::{Trunk, TrunkCounters, TrunkTransmit};
pub use units::{Epoch, LinkName, NodeId, PathId, SlotId, Time, TooLarge};
