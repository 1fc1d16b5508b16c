//! The compute cache: what the program has compiled before need not be compiled again.
//!
//! NVRTC compiles in the program's process and asks the driver for a place on the disk where results are kept. The place,
//! its size and how to turn it off are those that NVIDIA documents:
//!
//! | variable | is | else |
//! |---|---|---|
//! | `CUDA_CACHE_DISABLE` | 1: nothing is kept | 0 |
//! | `CUDA_CACHE_PATH` | the folder | `~/.nv/ComputeCache` |
//! | `CUDA_CACHE_MAXSIZE` | its bytes | 1 GiB, at most 4 GiB |
//!
//! Entries lie in a folder `dxpu` of it, in a format of our own, so that NVIDIA's driver and this library never read each
//! other's files. An entry has the key and a digest of its bytes in front: a damaged or foreign one is the same as none. A
//! full or read-only disk costs the compiling, nothing else.

use crate::log;
use kept_files::KeptFiles;
use std::{ffi::OsString, path::PathBuf, sync::OnceLock};

/// In front of an entry; another version of this format begins otherwise.
const MAGIC: [u8; 8] = *b"dxpucc01";
const DIGEST_BYTES: usize = 32;
const HEAD_BYTES: usize = MAGIC.len() + 2 * DIGEST_BYTES;

const BYTES_DEFAULT: u64 = 1 << 30;
const BYTES_LIMIT: u64 = 4 << 30;

/// What the user has set.
#[derive(Debug, Default)]
struct Settings {
    disable: Option<OsString>,
    path: Option<OsString>,
    bytes_max: Option<OsString>,
    home: Option<OsString>,
}

impl Settings {
    fn of_this_process() -> Self {
        let [disable, path, bytes_max, home] =
            ["CUDA_CACHE_DISABLE", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "HOME"].map(std::env::var_os);
        Self { disable, path, bytes_max, home }
    }

    /// The folder and its size; `None` if nothing is to be kept.
    fn place(&self) -> Option<(PathBuf, u64)> {
        let is_set = |value: &&OsString| !value.is_empty();
        let number = |value: &OsString| value.to_str()?.trim().parse::<u64>().ok();
        if self.disable.as_ref().and_then(number).is_some_and(|value| value != 0) {
            return None;
        }
        let folder = match (self.path.as_ref().filter(is_set), self.home.as_ref().filter(is_set)) {
            (Some(path), _) => PathBuf::from(path),
            (None, Some(home)) => PathBuf::from(home).join(".nv").join("ComputeCache"),
            (None, None) => return None,
        };
        let bytes = self.bytes_max.as_ref().and_then(number).unwrap_or(BYTES_DEFAULT).min(BYTES_LIMIT);
        (bytes > 0).then(|| (folder.join("dxpu"), bytes))
    }
}

/// What an entry is the result of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u8; DIGEST_BYTES]);

impl Key {
    /// The key of a compilation: everything that its result depends on. Lengths go in front, so that no two lists of parts
    /// give the same bytes.
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("dxpu compute cache key v1");
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    fn name(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

/// The cache of this process' user.
pub(crate) struct ComputeCache(KeptFiles);

impl ComputeCache {
    /// The cache, unless the user has turned it off or its folder cannot be made.
    pub(crate) fn of_this_process() -> Option<&'static Self> {
        static CACHE: OnceLock<Option<ComputeCache>> = OnceLock::new();
        CACHE.get_or_init(|| Self::open(&Settings::of_this_process())).as_ref()
    }

    fn open(settings: &Settings) -> Option<Self> {
        let (folder, bytes_max) = settings.place()?;
        KeptFiles::open(&folder, bytes_max)
            .inspect_err(|error| {
                log::debug(|| format!("the compute cache {} cannot be used: {error}", folder.display()));
            })
            .ok()
            .map(Self)
    }

    /// What was kept for this key.
    pub(crate) fn find(&self, key: Key) -> Option<Vec<u8>> {
        let mut entry = self.0.get(&key.name(), |entry| is_good(key, entry))?;
        entry.drain(..HEAD_BYTES);
        Some(entry)
    }

    /// Keeps bytes for this key, if the disk takes them.
    pub(crate) fn put(&self, key: Key, bytes: &[u8]) {
        let digest = blake3::hash(bytes);
        let entry = [&MAGIC[..], &key.0, digest.as_bytes(), bytes].concat();
        if let Err(error) = self.0.put(&key.name(), &entry) {
            log::debug(|| format!("a compiled kernel is not kept in the compute cache: {error}"));
        }
    }

    /// Forgets what was kept for this key.
    pub(crate) fn remove(&self, key: Key) {
        self.0.remove(&key.name());
    }
}

fn is_good(key: Key, entry: &[u8]) -> bool {
    let Some((head, bytes)) = entry.split_at_checked(HEAD_BYTES) else { return false };
    let digest = blake3::hash(bytes);
    head == [&MAGIC[..], &key.0, digest.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn settings(path: &std::path::Path) -> Settings {
        Settings { path: Some(path.into()), ..Settings::default() }
    }

    #[test]
    fn an_entry_comes_back_in_another_process_and_a_damaged_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ComputeCache::open(&settings(folder.path())).unwrap();
        let (one, other) = (Key::of(&[b"source", b"-arch=sm_90"]), Key::of(&[b"source-", b"arch=sm_90"]));
        assert_ne!(one, other, "the same bytes, divided otherwise");
        cache.put(one, b"cubin");
        let again = ComputeCache::open(&settings(folder.path())).unwrap();
        assert_eq!(again.find(one).as_deref(), Some(&b"cubin"[..]));
        assert_eq!(again.find(other), None);
        let path = again.0.path(&one.name());
        let mut entry = fs::read(&path).unwrap();
        for at in 0..entry.len() {
            entry[at] ^= 1;
            fs::write(&path, &entry).unwrap();
            assert_eq!(again.find(one), None, "byte {at} differs");
            entry[at] ^= 1;
        }
        for length in 0..entry.len() {
            fs::write(&path, &entry[..length]).unwrap();
            assert_eq!(again.find(one), None, "{length} bytes of it");
        }
        fs::write(&path, &entry).unwrap();
        assert!(again.find(one).is_some());
        again.remove(one);
        assert_eq!(again.find(one), None);
    }

    #[test]
    fn an_entry_under_the_name_of_another_key_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ComputeCache::open(&settings(folder.path())).unwrap();
        let (one, other) = (Key::of(&[b"1"]), Key::of(&[b"2"]));
        cache.put(one, b"cubin");
        fs::rename(cache.0.path(&one.name()), cache.0.path(&other.name())).unwrap();
        assert_eq!(cache.find(other), None);
    }

    #[test]
    fn the_variables_mean_what_nvidia_documents() {
        let place = |disable: &str, path: &str, bytes: &str, home: &str| {
            let set = |value: &str| (value != "-").then(|| OsString::from(value));
            let settings =
                Settings { disable: set(disable), path: set(path), bytes_max: set(bytes), home: set(home) };
            settings.place().map(|(folder, bytes)| (folder.to_str().unwrap().to_owned(), bytes))
        };
        let some = |folder: &str, bytes| Some((folder.to_owned(), bytes));
        assert_eq!(place("-", "-", "-", "/home/me"), some("/home/me/.nv/ComputeCache/dxpu", 1 << 30));
        assert_eq!(place("0", "/cache", "1000", "/home/me"), some("/cache/dxpu", 1000));
        assert_eq!(place("-", "/cache", "99999999999", "-"), some("/cache/dxpu", 4 << 30));
        assert_eq!(place("1", "/cache", "-", "/home/me"), None);
        assert_eq!(place("-", "-", "-", "-"), None, "no home");
        assert_eq!(place("-", "/cache", "0", "-"), None);
        assert_eq!(place("-", "/cache", "much", "-"), some("/cache/dxpu", 1 << 30));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_cache() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), b"").unwrap();
        assert!(ComputeCache::open(&settings(&folder.path().join("file"))).is_none());
    }
}
