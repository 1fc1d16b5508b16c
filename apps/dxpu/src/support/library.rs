//! The client libraries that this binary carries, as files that programs can load.
//!
//! ```text
//! ~/.cache/dxpu/lib-HASH/libcuda.so.1         the driver under its ordinary name
//!                        libcuda.so           a link to it
//!                        libnvidia-ml.so.1    NVML under its ordinary name
//!                        libnvidia-ml.so      a link to it
//! ```
//!
//! The directory is named by the content, so several versions of dxpu live side by side and a running program never
//! sees its libraries change. The binary has them compressed, with their hashes: they are unpacked only when they are not there.

use crate::support::exit::{Exit, Failure};
use anyhow::Context;
use machine::files;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use transport::Address;

/// A library inside the binary, packed.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// BLAKE3 of the library, in hexadecimal.
    pub hash: &'a str,
    /// Where it begins in what [`Carried::frame`] unpacks to.
    pub start: usize,
    /// How long it is.
    pub bytes: usize,
}

/// The libraries inside the binary.
#[derive(Debug)]
pub struct Carried {
    /// All of them, one behind the other, as one frame of zstd: they have much code in common.
    pub frame: &'static [u8],
    /// The driver.
    pub driver: Packed<'static>,
    /// NVML.
    pub nvml: Packed<'static>,
    /// The pass-through library of `dxpu trace` and `dxpu inject`. It has the driver's name, so it gets a directory of its own.
    pub trace: Packed<'static>,
}

static CARRIED: OnceLock<&'static Carried> = OnceLock::new();

/// Says, once, what the binary carries.
pub(crate) fn carry(carried: &'static Carried) {
    let _ = CARRIED.set(carried);
}

/// A library, by the name that programs know it by, without its version.
type Named<'a> = (&'a str, Packed<'a>);

const DRIVER: &str = "libcuda.so";
const NVML: &str = "libnvidia-ml.so";

/// Where the libraries lie after [`extract`].
pub(crate) struct Library {
    pub(crate) directory: PathBuf,
    /// The driver.
    pub(crate) file: PathBuf,
}

impl Library {
    /// A search path that begins with these libraries.
    pub(crate) fn before(&self, path: Option<&OsStr>) -> OsString {
        let mut search = self.directory.clone().into_os_string();
        if let Some(path) = path.filter(|path| !path.is_empty()) {
            search.push(":");
            search.push(path);
        }
        search
    }

    /// The environment variables that make a program load these libraries and find its workers.
    pub(crate) fn environment(&self, workers: &[Address]) -> Vec<(&'static str, OsString)> {
        let search = self.before(std::env::var_os("LD_LIBRARY_PATH").as_deref());
        let workers: Vec<String> = workers.iter().map(ToString::to_string).collect();
        vec![
            ("LD_LIBRARY_PATH", search),
            ("DXPU_WORKER", workers.join(",").into()),
            // Programs that do not ask the loader: Numba wants the file, Triton the directory.
            ("NUMBA_CUDA_DRIVER", self.file.clone().into()),
            ("TRITON_LIBCUDA_PATH", self.directory.clone().into()),
        ]
    }
}

/// What has programs compile to what their GPUs execute. A soft GPU executes PTX and no machine code.
///
/// CuPy reads its variable when it is imported: too late for the library to say so. What the user has set stays.
pub(crate) fn soft_environment(is_soft: bool) -> Vec<(&'static str, OsString)> {
    const CUPY: &str = "CUPY_COMPILE_WITH_PTX";
    if is_soft && std::env::var_os(CUPY).is_none() { vec![(CUPY, "1".into())] } else { Vec::new() }
}

/// The same for the pass-through library.
pub(crate) fn extract_trace() -> anyhow::Result<Library> {
    let carried = carried()?;
    extract_to(&files::cache_directory()?, carried.frame, &[(DRIVER, carried.trace)])
}

fn carried() -> anyhow::Result<&'static Carried> {
    CARRIED.get().copied().context("this program carries no client libraries")
}

fn extract_client_libraries(cache: &Path) -> anyhow::Result<Library> {
    let Carried { frame, driver, nvml, .. } = carried()?;
    extract_to(cache, frame, &[(DRIVER, *driver), (NVML, *nvml)])
}

/// Puts the libraries into the user's cache, if they are not there already, and checks them.
pub(crate) fn extract() -> anyhow::Result<Library> {
    extract_client_libraries(&files::cache_directory()?)
}

/// The same into another folder, where containers and functions find them: every user may read them there.
pub(crate) fn extract_for_containers(folder: &Path) -> anyhow::Result<PathBuf> {
    let directory = extract_client_libraries(folder)?.directory;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&directory, readable)
        .with_context(|| format!("cannot let every user read {}", directory.display()))?;
    Ok(directory)
}

fn extract_to(cache: &Path, frame: &[u8], libraries: &[Named<'_>]) -> anyhow::Result<Library> {
    let mut hasher = blake3::Hasher::new();
    for (name, library) in libraries {
        // Each by its own hash, so that no two sets of libraries read alike.
        hasher.update(name.as_bytes()).update(library.hash.as_bytes());
    }
    let directory = cache.join(format!("lib-{}", &hasher.finalize().to_hex()[..16]));
    let mut unpacked = Vec::new();
    for library in libraries {
        extract_one(&directory, library, || {
            if unpacked.is_empty() {
                let end = libraries.iter().map(|(_, library)| library.start + library.bytes).max();
                unpacked = unpack(frame, end.unwrap_or(0))?;
            }
            Ok(unpacked
                .get(library.1.start..)
                .and_then(|rest| rest.get(..library.1.bytes))
                .map(<[u8]>::to_vec))
        })?;
    }
    let file = directory.join(format!("{DRIVER}.1"));
    Ok(Library { directory, file })
}

/// The first `bytes` of what a frame unpacks to.
fn unpack(frame: &[u8], bytes: usize) -> anyhow::Result<Vec<u8>> {
    let mut unpacked = Vec::with_capacity(bytes);
    ruzstd::decoding::StreamingDecoder::new(frame)?.take(bytes as u64).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

fn extract_one(
    directory: &Path,
    library: &Named<'_>,
    unpacked: impl FnOnce() -> anyhow::Result<Option<Vec<u8>>>,
) -> anyhow::Result<()> {
    let (name, Packed { hash, .. }) = library;
    let versioned = format!("{name}.1");
    let file = directory.join(&versioned);
    let is_good = || std::fs::read(&file).is_ok_and(|found| blake3::hash(&found).to_hex().as_str() == *hash);
    if !is_good() {
        // Damaged, or not there. A program that has the damaged one open keeps its copy.
        let _ = std::fs::remove_file(&file);
        let damaged = || format!("this binary is damaged: its {versioned} cannot be unpacked");
        let unpacked = unpacked().with_context(damaged)?.with_context(damaged)?;
        files::write_new(&file, 0o555, &unpacked)?;
        if !is_good() {
            let what = format!("{} does not hold what was written to it", file.display());
            return Err(Failure::new(Exit::Failure, what, "check the file system (is it full?)").into());
        }
    }
    let link = directory.join(name);
    match std::os::unix::fs::symlink(versioned, &link) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make {}", link.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn libraries_are_extracted_once_and_repaired_when_damaged() {
        let cache = tempfile::tempdir().unwrap();
        let extract = |driver: &[u8], nvml: &[u8]| {
            let hash = |library: &[u8]| blake3::hash(library).to_hex().to_string();
            let frame = zstd::bulk::compress(&[driver, nvml].concat(), 1).unwrap();
            let hashes = [hash(driver), hash(nvml)];
            let of_driver = Packed { hash: &hashes[0], start: 0, bytes: driver.len() };
            let of_nvml = Packed { hash: &hashes[1], start: driver.len(), bytes: nvml.len() };
            extract_to(cache.path(), &frame, &[(DRIVER, of_driver), (NVML, of_nvml)]).unwrap()
        };
        let first = extract(b"one", b"two");
        assert_eq!(std::fs::read(first.directory.join("libcuda.so")).unwrap(), b"one");
        assert_eq!(std::fs::read(first.directory.join("libnvidia-ml.so")).unwrap(), b"two");
        std::fs::set_permissions(&first.file, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&first.file, b"0ne").unwrap();
        assert_eq!(std::fs::read(extract(b"one", b"two").file).unwrap(), b"one");
        for (driver, nvml) in [(&b"two"[..], &b"two"[..]), (b"one", b"one"), (b"onet", b"wo")] {
            assert_ne!(extract(driver, nvml).directory, first.directory);
        }
    }
}
