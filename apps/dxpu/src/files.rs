//! Files that `dxpu` keeps for its user: state (identity, token) and cache (libraries, images).

use crate::exit::{Exit, Failure};
use anyhow::Context;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// `$XDG_STATE_HOME/dxpu`, or `~/.local/state/dxpu`.
pub(crate) fn state_directory() -> anyhow::Result<PathBuf> {
    user_directory("XDG_STATE_HOME", ".local/state")
}

/// `$XDG_CACHE_HOME/dxpu`, or `~/.cache/dxpu`.
pub(crate) fn cache_directory() -> anyhow::Result<PathBuf> {
    user_directory("XDG_CACHE_HOME", ".cache")
}

/// `$XDG_CONFIG_HOME/dxpu`, or `~/.config/dxpu`.
pub(crate) fn config_directory() -> anyhow::Result<PathBuf> {
    user_directory("XDG_CONFIG_HOME", ".config")
}

fn user_directory(variable: &str, below_home: &str) -> anyhow::Result<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let base = std::env::var_os(variable).map(PathBuf::from).filter(absolute).or_else(|| {
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(absolute)?;
        Some(home.join(below_home))
    });
    let base = base.ok_or_else(|| {
        Failure::new(
            Exit::Failure,
            "there is no place to keep files: HOME is not set",
            format!("set HOME or {variable} to an absolute path"),
        )
    })?;
    Ok(base.join("dxpu"))
}

/// Makes a directory that only its owner can look into.
pub(crate) fn make_private(directory: &Path) -> anyhow::Result<()> {
    let make = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    make.with_context(|| format!("cannot make the directory {}", directory.display()))
}

/// Removes a directory with everything in it, if it is there.
pub(crate) fn remove_directory(directory: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Writes a file that appears whole or not at all, and never replaces one that another process has just made.
pub(crate) fn write_new(path: &Path, mode: u32, content: &[u8]) -> anyhow::Result<()> {
    let directory = path.parent().context("a file has a directory")?;
    make_private(directory)?;
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".unfinished-").tempfile_in(directory)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.persist_noclobber(path).map(drop).or_else(|failed| match failed.error.kind() {
            std::io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(failed.error),
        })
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file in place of the one that is there; a reader sees the old one or the new one, whole.
///
/// What is there already is not written again: an agent that starts while its disk is full finds its files as it left them.
pub(crate) fn replace(path: &Path, mode: u32, content: &[u8]) -> anyhow::Result<()> {
    if holds(path, mode, content) {
        return Ok(());
    }
    put(path, mode, content)
}

fn holds(path: &Path, mode: u32, content: &[u8]) -> bool {
    let kept = fs::metadata(path).is_ok_and(|found| {
        found.is_file() && found.len() == content.len() as u64 && found.permissions().mode() & 0o777 == mode
    });
    kept && fs::read(path).is_ok_and(|found| found == content)
}

/// Whether files can be written in a directory now: its disk may be full, or may have been made read-only.
pub(crate) fn probe(directory: &Path) -> anyhow::Result<()> {
    // A block of its own, so that a disk without one left shows itself.
    const BLOCK: [u8; 4096] = [b'.'; 4096];
    put(&directory.join(".probe"), 0o600, &BLOCK)
}

fn put(path: &Path, mode: u32, content: &[u8]) -> anyhow::Result<()> {
    let directory = path.parent().context("a file has a directory")?;
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".unfinished-").tempfile_in(directory)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.persist(path).map(drop).map_err(|failed| failed.error)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a secret, and refuses one that others can read too.
pub(crate) fn read_secret(path: &Path) -> anyhow::Result<String> {
    let reading = || format!("cannot read {}", path.display());
    let file = fs::File::options().read(true).custom_flags(0).open(path).with_context(reading)?;
    let mode = file.metadata().with_context(reading)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Failure::new(
            Exit::Failure,
            format!("{} is readable by others (mode {:o})", path.display(), mode & 0o777),
            format!("make it private: chmod 600 {}", path.display()),
        )
        .into());
    }
    // A secret is short; a device or a wrong file is not.
    const SECRET_BYTES_MAX: u64 = 1 << 20;
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text).with_context(reading)?;
    Ok(text)
}

/// How a box says among the ways to its worker on which machine, since which start of it, its sockets are.
pub(crate) const BOOT_PREFIX: &str = "boot:";

/// This start of this machine; no other machine has the same.
pub(crate) fn boot_id() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|boot| !boot.is_empty())
}

/// Random bytes of the kernel, as hex digits.
pub(crate) fn random_hex(bytes: usize) -> anyhow::Result<String> {
    let mut random = vec![0; bytes];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .context("no randomness")?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// One agent for each state directory, as long as the file that this gives is open.
pub(crate) fn only_one(state: &Path) -> anyhow::Result<std::fs::File> {
    let path = state.join("lock");
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        let what = format!("another agent keeps {}", state.display());
        return Err(Failure::new(Exit::Failure, what, "stop it, or give this one another --state-dir").into());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_must_be_private_and_the_first_writer_wins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/token");
        write_new(&path, 0o600, b"first").unwrap();
        write_new(&path, 0o600, b"second").unwrap();
        assert_eq!(read_secret(&path).unwrap(), "first");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_secret(&path).unwrap_err().to_string().contains("readable by others"));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn what_is_there_already_is_not_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept");
        replace(&path, 0o600, b"same").unwrap();
        let number = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let first = number(&path);
        replace(&path, 0o600, b"same").unwrap();
        assert_eq!(number(&path), first);
        replace(&path, 0o600, b"else").unwrap();
        assert_ne!((number(&path), fs::read(&path).unwrap()), (first, b"same".to_vec()));
        probe(directory.path()).unwrap();
        assert!(probe(&directory.path().join("nowhere")).is_err());
    }
}
