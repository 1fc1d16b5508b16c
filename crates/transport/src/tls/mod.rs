//! TLS 1.3, and nothing older, with rustls and ring.

mod config;
mod verify;

pub(crate) use config::{client_config, server_config, sha256};
