//! One suite, every engine.

mod cluster;
mod conformance;
mod crashes;
mod etcd;
mod memory;
mod peer;
mod proxy;
mod sqlite;
