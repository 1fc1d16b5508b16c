//! Where the pools of this user keep their files on this machine.

use machine::files::{self, FileError};
use std::path::{Path, PathBuf};

/// Where the first start of a manager writes the admin's credential, in the manager's directory.
const ADMIN_FILE: &str = "admin.json";

/// Where a manager of this user keeps its files.
pub(crate) fn manager_directory() -> Result<PathBuf, FileError> {
    Ok(files::state_directory()?.join("manager"))
}

/// Where `dxpu up` keeps the files of its pool.
pub(crate) fn up_directory() -> Result<PathBuf, FileError> {
    Ok(files::state_directory()?.join("up"))
}

/// Where the manager of `dxpu up` keeps its files.
pub(crate) fn up_manager_directory(up_directory: &Path) -> PathBuf {
    up_directory.join("manager")
}

/// The admin's credential of the manager with this directory.
pub(crate) fn admin_file(manager_directory: &Path) -> PathBuf {
    manager_directory.join(ADMIN_FILE)
}
