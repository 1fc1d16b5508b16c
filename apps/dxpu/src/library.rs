//! The client library that this binary carries, as a file that programs can load.
//!
//! ```text
//! ~/.cache/dxpu/lib-HASH/libcuda.so.1      the library under its ordinary name
//!                        libcuda.so        a link to it
//! ```
//!
//! The directory is named by the content, so several versions of dxpu live side by side and a running program never
//! sees its library change.

use crate::exit::{Exit, Failure};
use crate::files;
use anyhow::Context;
use std::path::{Path, PathBuf};

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libcuda.so.1"));

/// Where the library lies after [`extract`].
pub(crate) struct Library {
    pub(crate) directory: PathBuf,
    pub(crate) file: PathBuf,
}

/// Puts the library into the user's cache, if it is not there already, and checks it.
pub(crate) fn extract() -> anyhow::Result<Library> {
    extract_to(&files::cache_directory()?, LIBRARY)
}

fn extract_to(cache: &Path, content: &[u8]) -> anyhow::Result<Library> {
    let hash = blake3::hash(content).to_hex();
    let directory = cache.join(format!("lib-{}", &hash[..16]));
    let file = directory.join("libcuda.so.1");
    let is_good = || std::fs::read(&file).is_ok_and(|found| found == content);
    if !is_good() {
        // Damaged, or not there. A program that has the damaged one open keeps its copy.
        let _ = std::fs::remove_file(&file);
        files::write_new(&file, 0o555, content)?;
        if !is_good() {
            let what = format!("{} does not hold what was written to it", file.display());
            return Err(Failure::new(Exit::Failure, what, "check the file system (is it full?)").into());
        }
    }
    let link = directory.join("libcuda.so");
    match std::os::unix::fs::symlink("libcuda.so.1", &link) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", link.display()));
        }
        _ => {}
    }
    Ok(Library { directory, file })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_library_is_extracted_once_and_repaired_when_damaged() {
        let cache = tempfile::tempdir().unwrap();
        let first = extract_to(cache.path(), b"one").unwrap();
        assert_eq!(std::fs::read(first.directory.join("libcuda.so")).unwrap(), b"one");
        std::fs::set_permissions(&first.file, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&first.file, b"0ne").unwrap();
        let again = extract_to(cache.path(), b"one").unwrap();
        assert_eq!(std::fs::read(&again.file).unwrap(), b"one");
        assert_ne!(extract_to(cache.path(), b"two").unwrap().directory, first.directory);
    }
}
