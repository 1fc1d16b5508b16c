//! The files of a prepared claim.
//!
//! ```text
//! RUN/UID/token                        a line for each GPU of the lease (DXPU_TOKEN_FILE), written anew while the pod runs
//! RUN/UID/ca.pem                       by which boxes are known (DXPU_CA)
//! CDI/dxpu.dev-claim-UID.json          what the container runtime does to the claim's containers
//! ```
//!
//! RUN belongs to root alone. The runtime mounts RUN/UID into the claim's containers, whose user may be any: so the files
//! in it can be read by everybody that can get there. The folder is mounted and not the file, because a file that is
//! replaced would stay the old one in the container.

use crate::error::PrepareError;
use crate::prepared::Prepared;
use kube_claims::DRIVER;
use machine::files::{self, FileError};
use pool_api::LeaseTokens;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The kind of the devices that containers ask for.
const KIND: &str = "dxpu.dev/claim";
/// What a CDI file of ours begins with.
const PREFIX: &str = "dxpu.dev-claim-";
/// Everybody that can reach the folder may read; see above.
const READABLE: u32 = 0o444;

/// Where files go.
pub(crate) struct Files {
    pub(crate) run: PathBuf,
    pub(crate) cdi: PathBuf,
    pub(crate) libraries: PathBuf,
}

/// The name of a claim's device for the container runtime.
pub(crate) fn device_id(uid: &str) -> String {
    format!("{KIND}={uid}")
}

/// Whether a UID can be a part of a file's name.
pub(crate) fn is_uid(text: &str) -> bool {
    const LONGEST: usize = 63;
    text.len() <= LONGEST && cdi::is_name(text) && !text.contains(':')
}

impl Files {
    /// Writes all files of a claim. The CDI file is the last: when it is there, all of them are.
    pub(crate) fn write(&self, prepared: &Prepared, tokens: &LeaseTokens) -> Result<(), PrepareError> {
        self.make_folder(&prepared.uid)?;
        let folder = self.folder(&prepared.uid);
        files::replace(&folder.join("ca.pem"), READABLE, tokens.ca_certificate.as_bytes())?;
        self.write_tokens(prepared, tokens)?;
        self.write_cdi(prepared)
    }

    /// Hands new tokens to running programs.
    pub(crate) fn write_tokens(&self, prepared: &Prepared, tokens: &LeaseTokens) -> Result<(), FileError> {
        let text: String = tokens.grants.iter().map(|grant| format!("{}\n", grant.token)).collect();
        files::replace(&self.folder(&prepared.uid).join("token"), READABLE, text.as_bytes())
    }

    /// Whether everything that a container needs is there.
    pub(crate) fn are_there(&self, uid: &str) -> bool {
        let folder = self.folder(uid);
        [folder.join("ca.pem"), folder.join("token"), self.cdi_file(uid)].iter().all(|file| file.is_file())
    }

    /// Removes all files of a claim, the CDI file first: no container gets a folder that goes.
    pub(crate) fn remove(&self, uid: &str) -> Result<(), FileError> {
        let file = self.cdi_file(uid);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(FileError::io("remove", &file)(error));
            }
            _ => {}
        }
        files::remove_directory(&self.folder(uid))
    }

    /// Removes what belongs to no prepared claim: a plugin that was killed may have left it. Returns the UIDs.
    pub(crate) fn sweep(&self, prepared: &BTreeSet<String>) -> Vec<String> {
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
        };
        let of_cdi = |name: &String| Some(name.strip_prefix(PREFIX)?.strip_suffix(".json")?.to_owned());
        let mut found: BTreeSet<String> = names(&self.cdi).iter().filter_map(of_cdi).collect();
        found.extend(names(&self.run).into_iter().filter(|name| is_uid(name)));
        found.retain(|uid| !prepared.contains(uid) && is_uid(uid));
        for uid in &found {
            if let Err(error) = self.remove(uid) {
                tracing::warn!(uid, %error, "files of a claim that is not prepared cannot be removed");
            }
        }
        found.into_iter().collect()
    }

    fn make_folder(&self, uid: &str) -> Result<(), FileError> {
        files::make_private(&self.run)?;
        let folder = self.folder(uid);
        let make = || -> std::io::Result<()> {
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))
        };
        make().map_err(FileError::io("make the directory", &folder))
    }

    fn write_cdi(&self, prepared: &Prepared) -> Result<(), PrepareError> {
        let list = |part: fn(&crate::prepared::Worker) -> &str| {
            prepared.workers.iter().map(part).collect::<Vec<_>>().join(",")
        };
        let folder = self.folder(&prepared.uid);
        let mut edits = cdi::Edits::with_libraries(&self.libraries)?;
        // The same path inside: what the plugin tells a program of its files is true in the container, too.
        edits.mount(&folder, &folder)?;
        edits.set("DXPU_WORKER", &list(|worker| &worker.address));
        edits.set("DXPU_WORKER_NAMES", &list(|worker| &worker.name));
        edits.set("DXPU_CA", &folder.join("ca.pem").to_string_lossy());
        edits.set("DXPU_TOKEN_FILE", &folder.join("token").to_string_lossy());
        if prepared.survives {
            edits.set("DXPU_SURVIVE", "1");
        }
        if prepared.is_soft {
            // A soft GPU executes PTX and no machine code. CuPy reads this when it is imported.
            edits.set("CUPY_COMPILE_WITH_PTX", "1");
        }
        let document = edits.into_specification(KIND, &prepared.uid);
        let text = format!("{document:#}\n");
        // The first driver on a node finds no folder.
        fs::create_dir_all(&self.cdi).map_err(FileError::io("make the directory", &self.cdi))?;
        Ok(files::replace(&self.cdi_file(&prepared.uid), 0o644, text.as_bytes())?)
    }

    fn folder(&self, uid: &str) -> PathBuf {
        self.run.join(uid)
    }

    fn cdi_file(&self, uid: &str) -> PathBuf {
        debug_assert!(PREFIX.starts_with(DRIVER));
        self.cdi.join(format!("{PREFIX}{uid}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uids_become_names_of_files() {
        assert!(is_uid("0f8fad5b-d9cb-469f-a165-70867728950e"));
        for odd in ["", "..", ".", "a/b", "../x", "a b", "-a", &"x".repeat(64)] {
            assert!(!is_uid(odd), "{odd:?}");
        }
    }
}
