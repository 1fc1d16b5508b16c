//! What an admin made for a box or host to join a pool with.

use machine::files;
use pool_auth::Secret;
use std::path::Path;

/// The token of this file, or of the environment variable DXPU_JOIN_TOKEN.
pub(crate) fn join_token(file: Option<&Path>) -> anyhow::Result<Option<Secret>> {
    Ok(match file {
        Some(file) => Some(Secret::new(files::read_secret(file)?)),
        None => std::env::var("DXPU_JOIN_TOKEN").ok().map(Secret::new),
    })
}
