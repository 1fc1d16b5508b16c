//! Code of functions, unpacked once and named by its content.
//!
//! ```text
//! RUN/code/TENANT/SHA256/…     readable by the tenant's group alone
//! RUN/instances/N/             an instance's own folder: its home and its temporary files
//! RUN/gpus/N/                  tokens of a leased GPU, readable by the tenant's group alone
//! ```

use crate::users::Users;
use functions::{ArchiveError, FunctionKey, InstanceId};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why code is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("the code cannot be written")]
    Write(#[from] io::Error),
}

/// The folders of a service.
#[derive(Clone)]
pub(crate) struct Cache {
    run: PathBuf,
    users: Arc<Users>,
    count: Arc<AtomicU64>,
}

impl Cache {
    /// Makes the folders. What a service before left of instances and GPUs is removed.
    pub(crate) fn open(run: &Path, users: Arc<Users>) -> io::Result<Self> {
        let mode = if users.is_private() { 0o711 } else { 0o700 };
        for folder in ["instances", "gpus"] {
            let _ = fs::remove_dir_all(run.join(folder));
        }
        for folder in [run.to_owned(), run.join("code"), run.join("instances"), run.join("gpus")] {
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode))?;
        }
        Ok(Self { run: run.to_owned(), users, count: Arc::default() })
    }

    /// Where the code of a function is.
    pub(crate) fn code(&self, tenant: &str, code: &str) -> PathBuf {
        self.run.join("code").join(tenant).join(code)
    }

    /// Unpacks it, if it is not there.
    pub(crate) fn put(&self, key: &FunctionKey, code: &str, zip: &[u8]) -> Result<PathBuf, CacheError> {
        let place = self.code(&key.tenant, code);
        let of_tenant = self.run.join("code").join(&key.tenant);
        fs::create_dir_all(&of_tenant)?;
        self.give_to_group(&of_tenant, &key.tenant)?;
        if place.is_dir() {
            return Ok(place);
        }
        let files = functions::unpack(zip)?;
        // A folder of another name first: one with this name is whole.
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let draft = of_tenant.join(format!(".draft-{}-{number}", std::process::id()));
        fs::create_dir_all(&draft)?;
        let written = write_all(&draft, &files).and_then(|()| match fs::rename(&draft, &place) {
            Err(_) if place.is_dir() => Ok(()),
            renamed => renamed,
        });
        let _ = fs::remove_dir_all(&draft);
        written?;
        Ok(place)
    }

    pub(crate) fn forget(&self, tenant: &str, code: &str) {
        let _ = fs::remove_dir_all(self.code(tenant, code));
    }

    fn give_to_group(&self, folder: &Path, tenant: &str) -> io::Result<()> {
        let Some(group) = self.users.group(tenant) else {
            return fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
        };
        chown(folder, None, Some(group))?;
        // New files have the folder's group.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o2750))
    }

    /// An instance's own folder.
    pub(crate) fn instance(&self, instance: InstanceId) -> io::Result<PathBuf> {
        let folder = self.run.join("instances").join(instance.0.to_string());
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        if let Some(user) = self.users.user(instance) {
            chown(&folder, Some(user), None)?;
        }
        Ok(folder)
    }

    pub(crate) fn forget_instance(&self, instance: InstanceId) {
        for of in ["instances", "gpus"] {
            let _ = fs::remove_dir_all(self.run.join(of).join(instance.0.to_string()));
        }
    }

    /// The folder of an instance's token.
    pub(crate) fn gpu(&self, instance: InstanceId, tenant: &str) -> io::Result<PathBuf> {
        let folder = self.run.join("gpus").join(instance.0.to_string());
        fs::create_dir_all(&folder)?;
        self.give_to_group(&folder, tenant)?;
        Ok(folder)
    }
}

fn write_all(folder: &Path, files: &[functions::File]) -> io::Result<()> {
    for file in files {
        let path = folder.join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, &file.content)?;
        let mode = if file.is_executable { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    // Folders are made with the service's own mask, which may be narrow.
    open_folders(folder)
}

fn open_folders(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}
