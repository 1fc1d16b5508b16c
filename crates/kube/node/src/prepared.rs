//! Which claims are prepared on this node, in a file that outlives the plugin.

use crate::error::NodeError;
use crate::proto::Claim;
use locks::lock;
use machine::files::{self, FileError};
use pool_api::{GpuId, LeaseId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Of the file. Another version is not read: a plugin that forgot prepared claims would leave their files behind.
const VERSION: u32 = 1;

/// A claim whose containers may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) lease: LeaseId,
    /// What the scheduler allocated.
    pub(crate) devices: Vec<AllocatedDevice>,
    /// The lease's GPUs, in the order of its grants.
    pub(crate) workers: Vec<Worker>,
    /// Programs outlive the loss of a session.
    pub(crate) survives: bool,
    /// Some of the GPUs are in software.
    pub(crate) is_soft: bool,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AllocatedDevice {
    /// The request in the claim that it is for.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<String>,
}

/// The way to a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Worker {
    pub(crate) gpu: GpuId,
    pub(crate) epoch: u64,
    pub(crate) address: String,
    /// The name in its certificate.
    pub(crate) name: String,
}

impl Prepared {
    /// As the kubelet calls it.
    pub(crate) fn claim(&self) -> Claim {
        Claim { namespace: self.namespace.clone(), uid: self.uid.clone(), name: self.name.clone() }
    }
}

#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    claims: BTreeMap<String, Prepared>,
}

/// All prepared claims, by UID. Every change is in the file before it is seen.
pub(crate) struct Book {
    path: PathBuf,
    claims: Mutex<BTreeMap<String, Prepared>>,
}

impl Book {
    /// Reads the file; there is none at first.
    pub(crate) fn open(path: &Path) -> Result<Self, NodeError> {
        let odd = |why: String| NodeError::State { path: path.to_owned(), why };
        let claims = match std::fs::read(path) {
            Ok(bytes) => {
                let written: Written =
                    serde_json::from_slice(&bytes).map_err(|error| odd(error.to_string()))?;
                if written.version != VERSION {
                    return Err(odd(format!("its version is {}", written.version)));
                }
                written.claims
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(odd(error.to_string())),
        };
        Ok(Self { path: path.to_owned(), claims: Mutex::new(claims) })
    }

    pub(crate) fn get(&self, uid: &str) -> Option<Prepared> {
        lock(&self.claims).get(uid).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Prepared> {
        lock(&self.claims).values().cloned().collect()
    }

    pub(crate) fn put(&self, prepared: Prepared) -> Result<(), FileError> {
        self.change(|claims| {
            claims.insert(prepared.uid.clone(), prepared);
        })
    }

    pub(crate) fn remove(&self, uid: &str) -> Result<(), FileError> {
        self.change(|claims| {
            claims.remove(uid);
        })
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Prepared>)) -> Result<(), FileError> {
        let mut kept = lock(&self.claims);
        let mut claims = kept.clone();
        change(&mut claims);
        let written = Written { version: VERSION, claims };
        let text = serde_json::to_vec_pretty(&written).unwrap_or_default();
        files::replace(&self.path, 0o600, &text)?;
        *kept = written.claims;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_outlives_its_plugin_and_another_version_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prepared.json");
        let one = Prepared {
            namespace: "n".to_owned(),
            name: "c".to_owned(),
            uid: "u-1".to_owned(),
            lease: LeaseId(7),
            devices: Vec::new(),
            workers: Vec::new(),
            survives: false,
            is_soft: true,
        };
        let book = Book::open(&path).unwrap();
        book.put(one.clone()).unwrap();
        book.put(Prepared { uid: "u-2".to_owned(), ..one.clone() }).unwrap();
        book.remove("u-2").unwrap();
        drop(book);
        assert_eq!(Book::open(&path).unwrap().all(), [one]);
        for odd in ["{", r#"{"version":2,"claims":{}}"#] {
            std::fs::write(&path, odd).unwrap();
            assert!(matches!(Book::open(&path), Err(NodeError::State { .. })), "{odd}");
        }
    }
}
