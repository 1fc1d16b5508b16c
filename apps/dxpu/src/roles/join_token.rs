//! What an admin made for a box or host to join a pool with.

use machine::files;
use pool_auth::Secret;
use std::path::Path;

/// The token of this file, or of the environment variable DXPU_JOIN_TOKEN.
///
/// An agent that has joined does not need it any more: its configuration may go on naming a file that was deleted since.
pub(crate) fn join_token(file: Option<&Path>, state: &Path) -> anyhow::Result<Option<Secret>> {
    Ok(match file {
        Some(file) if !file.exists() && pool_agent::has_joined(state) => None,
        Some(file) => Some(Secret::new(files::read_secret(file)?)),
        None => std::env::var("DXPU_JOIN_TOKEN").ok().map(Secret::new),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_file_is_missed_only_before_the_agent_has_joined() {
        let state = tempfile::tempdir().unwrap();
        let gone = state.path().join("token.json");
        assert!(join_token(Some(&gone), state.path()).is_err());
        files::write_new(&state.path().join("membership.json"), 0o600, b"{}").unwrap();
        assert!(join_token(Some(&gone), state.path()).unwrap().is_none());
        files::write_new(&gone, 0o600, b"again").unwrap();
        assert!(join_token(Some(&gone), state.path()).unwrap().is_some(), "a new token counts");
    }
}
