//! How a container gets the client libraries and the way to its GPUs, as a specification of the Container Device Interface.
//! Container runtimes (podman, docker, containerd) read it; nothing is installed in the image.
//!
//! ```text
//!   libraries of this machine ──▶ /usr/lib/dxpu in the container, LD_LIBRARY_PATH
//!   token, credential, authority ──▶ files in the container, and the variables that name them
//! ```
//!
//! A specification names files; it holds no secret itself.

#![forbid(unsafe_code)]

use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};

/// Versions of 2022 and later know all that is used here.
const VERSION: &str = "0.5.0";
/// Where a container finds the client libraries.
const LIBRARIES_INSIDE: &str = "/usr/lib/dxpu";

/// What changes in a container.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    env: Vec<String>,
    mounts: Vec<Value>,
}

/// No container could be started with these edits.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// What is to be mounted is not there.
    #[error("there is no {}", .0.display())]
    Missing(PathBuf),
    /// A relative path has no meaning.
    #[error("cannot find the current directory")]
    Here(#[source] io::Error),
}

impl Edits {
    /// The client libraries that lie in this folder, and the variables by which programs find them.
    pub fn with_libraries(folder: &Path) -> Result<Self, CdiError> {
        let mut edits = Self::default();
        edits.mount(folder, Path::new(LIBRARIES_INSIDE))?;
        edits.set("LD_LIBRARY_PATH", LIBRARIES_INSIDE);
        // Programs that do not ask the loader: Numba wants the file, Triton the directory.
        edits.set("NUMBA_CUDA_DRIVER", &format!("{LIBRARIES_INSIDE}/libcuda.so.1"));
        edits.set("TRITON_LIBCUDA_PATH", LIBRARIES_INSIDE);
        Ok(edits)
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &str) {
        self.env.push(format!("{name}={value}"));
    }

    /// Shows a file or a folder of this machine, which the container cannot change.
    pub fn mount(&mut self, outside: &Path, inside: &Path) -> Result<(), CdiError> {
        let outside = std::path::absolute(outside).map_err(CdiError::Here)?;
        if !outside.exists() {
            return Err(CdiError::Missing(outside));
        }
        let options = ["ro", "nosuid", "nodev", "bind"];
        self.mounts.push(json!({"hostPath": outside, "containerPath": inside, "options": options}));
        Ok(())
    }

    /// The whole document, with one device: containers ask for `KIND=DEVICE`.
    pub fn into_specification(self, kind: &str, device: &str) -> Value {
        let Self { env, mounts } = self;
        let device = json!({"name": device, "containerEdits": {"env": env, "mounts": mounts}});
        json!({"cdiVersion": VERSION, "kind": kind, "devices": [device]})
    }
}

/// Whether text can be a device's name, or one of the two parts of a kind.
pub fn is_name(text: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_one_device_with_libraries_mounts_and_variables() {
        let folder = tempfile::tempdir().unwrap();
        let mut edits = Edits::with_libraries(folder.path()).unwrap();
        edits.set("DXPU_WORKER", "tls:a:1");
        let made = edits.into_specification("dxpu.dev/gpu", "pool");
        assert_eq!((&made["cdiVersion"], &made["kind"]), (&json!("0.5.0"), &json!("dxpu.dev/gpu")));
        assert_eq!(made["devices"][0]["name"], "pool");
        let edits = &made["devices"][0]["containerEdits"];
        assert_eq!(edits["mounts"][0]["hostPath"], folder.path().to_str().unwrap());
        assert_eq!(edits["mounts"][0]["options"], json!(["ro", "nosuid", "nodev", "bind"]));
        let env: Vec<&str> = edits["env"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(env.contains(&"LD_LIBRARY_PATH=/usr/lib/dxpu") && env.contains(&"DXPU_WORKER=tls:a:1"));
    }

    #[test]
    fn what_is_not_there_is_not_mounted_and_odd_names_are_refused() {
        let missing = Edits::with_libraries(Path::new("/no/such")).unwrap_err();
        assert_eq!(missing.to_string(), "there is no /no/such");
        assert!(is_name("dxpu.dev") && is_name("0a-b"));
        assert!(!is_name("") && !is_name("a b") && !is_name("-a") && !is_name("a/b"));
    }
}
