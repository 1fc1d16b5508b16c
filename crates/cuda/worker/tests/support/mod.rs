//! A client that speaks the wire, and a small driver to speak to.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]

pub mod client;
pub mod guardian;
pub mod protected;
pub mod toy;
pub mod window;
pub mod worker;
