//! Files that `dxpu` keeps for its user: state (identity, token) and cache (libraries, images).

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses it.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// As the system says it.
        #[source]
        source: io::Error,
    },
    /// A path that names no file in a directory.
    #[error("{} is no file in a directory", .0.display())]
    NoFile(PathBuf),
    /// Other users may read a secret.
    #[error("{} is readable by others (mode {mode:o})", path.display())]
    Exposed {
        /// The secret's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another agent works with the same directory.
    #[error("another agent keeps {}", .0.display())]
    Kept(PathBuf),
    /// The environment names no directory for the user's files.
    #[error("there is no place to keep files: HOME is not set")]
    NoHome {
        /// The variable that would name it.
        variable: &'static str,
    },
}

impl FileError {
    /// What failed where, for `map_err`.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    /// What to do about it; empty if the message says all there is to say.
    pub fn hint(&self) -> String {
        match self {
            Self::Io { .. } | Self::NoFile(_) => String::new(),
            Self::Exposed { path, .. } => format!("make it private: chmod 600 {}", path.display()),
            Self::Kept(_) => "stop it, or give this one another --state-dir".to_owned(),
            Self::NoHome { variable } => format!("set HOME or {variable} to an absolute path"),
        }
    }
}

/// `$XDG_STATE_HOME/dxpu`, or `~/.local/state/dxpu`.
pub fn state_directory() -> Result<PathBuf, FileError> {
    user_directory("XDG_STATE_HOME", ".local/state")
}

/// `$XDG_CACHE_HOME/dxpu`, or `~/.cache/dxpu`.
pub fn cache_directory() -> Result<PathBuf, FileError> {
    user_directory("XDG_CACHE_HOME", ".cache")
}

/// `$XDG_CONFIG_HOME/dxpu`, or `~/.config/dxpu`.
pub fn config_directory() -> Result<PathBuf, FileError> {
    user_directory("XDG_CONFIG_HOME", ".config")
}

fn user_directory(variable: &'static str, below_home: &str) -> Result<PathBuf, FileError> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let base = std::env::var_os(variable).map(PathBuf::from).filter(absolute).or_else(|| {
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(absolute)?;
        Some(home.join(below_home))
    });
    base.map(|base| base.join("dxpu")).ok_or(FileError::NoHome { variable })
}

/// Makes a directory that only its owner can look into.
pub fn make_private(directory: &Path) -> Result<(), FileError> {
    let make = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    make.map_err(FileError::io("make the directory", directory))
}

/// Removes a directory with everything in it, if it is there.
pub fn remove_directory(directory: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::io("remove", directory)(error))
        }
        _ => Ok(()),
    }
}

/// Writes a file that appears whole or not at all, and never replaces one that another process has just made.
pub fn write_new(path: &Path, mode: u32, content: &[u8]) -> Result<(), FileError> {
    let directory = path.parent().ok_or_else(|| FileError::NoFile(path.to_owned()))?;
    make_private(directory)?;
    let write = || -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".unfinished-").tempfile_in(directory)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.persist_noclobber(path).map(drop).or_else(|failed| match failed.error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(failed.error),
        })
    };
    write().map_err(FileError::io("write", path))
}

/// Writes a file in place of the one that is there; a reader sees the old one or the new one, whole.
///
/// What is there already is not written again: an agent that starts while its disk is full finds its files as it left them.
pub fn replace(path: &Path, mode: u32, content: &[u8]) -> Result<(), FileError> {
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
pub fn probe(directory: &Path) -> Result<(), FileError> {
    // A block of its own, so that a disk without one left shows itself.
    const BLOCK: [u8; 4096] = [b'.'; 4096];
    put(&directory.join(".probe"), 0o600, &BLOCK)
}

fn put(path: &Path, mode: u32, content: &[u8]) -> Result<(), FileError> {
    let directory = path.parent().ok_or_else(|| FileError::NoFile(path.to_owned()))?;
    let write = || -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".unfinished-").tempfile_in(directory)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.persist(path).map(drop).map_err(|failed| failed.error)
    };
    write().map_err(FileError::io("write", path))
}

/// Reads a secret, and refuses one that others can read too.
pub fn read_secret(path: &Path) -> Result<String, FileError> {
    let file = fs::File::options().read(true).custom_flags(0).open(path);
    let file = file.map_err(FileError::io("read", path))?;
    let mode = file.metadata().map_err(FileError::io("read", path))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(FileError::Exposed { path: path.to_owned(), mode: mode & 0o777 });
    }
    // A secret is short; a device or a wrong file is not.
    const SECRET_BYTES_MAX: u64 = 1 << 20;
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(FileError::io("read", path))?;
    Ok(text)
}

/// One agent for each state directory, as long as the file that this gives is open.
pub fn only_one(state: &Path) -> Result<fs::File, FileError> {
    let path = state.join("lock");
    let file = fs::File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(FileError::io("write", &path))?;
    if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(FileError::Kept(state.to_owned()));
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
