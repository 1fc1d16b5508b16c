//! One suite, every engine.

mod conformance;
mod memory;
mod sqlite;
