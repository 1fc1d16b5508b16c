//! The two sockets, and their names.

use crate::error::NodeError;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Where the kubelet finds plugins, below its own folder.
///
/// There is an `@` in the name for a reason. The kubelet dials this socket with its path as the target, and so sends the
/// path, with `%2F` for each slash, as the request's HTTP authority. In an authority `%` is allowed only before an `@`;
/// HTTP/2 servers like ours refuse a request with another one as malformed. With the `@`, everything before it is the
/// user's name, and what is behind it is the host.
pub const REGISTRATION_SOCKET: &str = "plugins_registry/dxpu.dev@registration.sock";
/// Where the plugin serves, below the kubelet's folder.
pub const PLUGIN_SOCKET: &str = "plugins/dxpu.dev/dra.sock";

/// A socket that goes with its plugin.
pub(crate) struct Socket {
    path: PathBuf,
    /// So that no socket of a later plugin at the same path is removed.
    inode: u64,
}

impl Socket {
    /// Listens, in place of a plugin that is gone. Must be called in a runtime.
    pub(crate) fn listen(path: &Path) -> Result<(UnixListener, Self), NodeError> {
        let make = || {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            let inode = fs::metadata(path)?.ino();
            Ok((listener, Self { path: path.to_owned(), inode }))
        };
        make().map_err(|source| NodeError::Listen { path: path.to_owned(), source })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The authority that the kubelet sends to a socket that it dials by its path: what may not be in one is escaped.
pub(crate) fn authority_of(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Whether the kubelet's requests to a socket reach their method.
pub(crate) fn check(path: &Path) -> Result<(), NodeError> {
    match authority_of(path).parse::<http::uri::Authority>() {
        Ok(_) => Ok(()),
        Err(_) => Err(NodeError::Unnameable(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelet_can_name_the_registration_socket() {
        check(&Path::new("/var/lib/kubelet").join(REGISTRATION_SOCKET)).unwrap();
        let plain = Path::new("/var/lib/kubelet/plugins_registry/dxpu.dev-reg.sock");
        assert!(matches!(check(plain), Err(NodeError::Unnameable(_))), "or the @ is of no use");
    }

    #[tokio::test]
    async fn a_socket_that_was_left_behind_is_replaced_and_a_later_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.sock");
        let (_listener, first) = Socket::listen(&path).unwrap();
        let (_listener, second) = Socket::listen(&path).unwrap();
        drop(first);
        assert!(path.exists(), "it is the second one's");
        drop(second);
        assert!(!path.exists());
    }
}
