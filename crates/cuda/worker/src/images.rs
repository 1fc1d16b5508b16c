//! Module images by content, shared by all sessions of one tenant: a module travels to a worker once.
//!
//! ```text
//! DIRECTORY/TENANT/HASH   one tenant never reads, or learns of, what another has loaded
//! ```
//!
//! A tenant is a lease, or all programs that hold the worker's token.
//! Files are named by the BLAKE3 of their content and appear whole or not at all. What is read is checked against
//! its name, so a damaged or foreign file is the same as none.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A bounded directory of images.
#[derive(Debug)]
pub struct ImageCache {
    directory: PathBuf,
    bytes_max: u64,
    /// Bytes that this process has put since it last looked through the directory.
    unseen_bytes: AtomicU64,
}

/// Looking through the directory costs a system call for each file, so a process does it once for so many new bytes:
/// the directory may be larger than it should by this part for each session, and a program with thousands of small
/// modules loads each of them in the same time.
const UNSEEN_PART: u64 = 64;

/// A tenant that has loaded nothing for this long has left.
const TENANT_GONE_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// Makes the names of unfinished files differ within a process; the process number makes them differ between.
static UNFINISHED: AtomicU64 = AtomicU64::new(0);

impl ImageCache {
    /// Opens or makes the directory of a tenant, for its owner alone. `tenant` is any text that no other tenant has; it may
    /// be a secret. Lets go of tenants that have left.
    pub fn open(directory: &Path, tenant: &str, bytes_max: u64) -> io::Result<Self> {
        let name = blake3::derive_key("dxpu 2026 whose module images", tenant.as_bytes());
        let own = directory.join(blake3::Hash::from_bytes(name).to_hex().as_str());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
        // The time of last use tells `sweep` which tenants have left.
        let _ = File::open(&own).and_then(|own| own.set_modified(SystemTime::now()));
        sweep(directory, SystemTime::now())?;
        Ok(Self { directory: own, bytes_max, unseen_bytes: AtomicU64::new(0) })
    }

    fn path(&self, hash: &[u8; 32]) -> PathBuf {
        self.directory.join(blake3::Hash::from_bytes(*hash).to_hex().as_str())
    }

    /// The image with this hash.
    pub fn get(&self, hash: &[u8; 32]) -> Option<Vec<u8>> {
        let path = self.path(hash);
        let bytes = fs::read(&path).ok()?;
        if blake3::hash(&bytes).as_bytes() != hash {
            // Whatever it is, it is not what its name says.
            let _ = fs::remove_file(&path);
            return None;
        }
        // The time of last use decides which images stay. Failing to write it down costs an eviction too early, no
        // more.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(bytes)
    }

    /// Keeps an image, whose hash the caller has checked, and lets go of those longest unused.
    pub fn put(&self, hash: &[u8; 32], image: &[u8]) -> io::Result<()> {
        if image.len() as u64 > self.bytes_max {
            return Ok(());
        }
        let unique = UNFINISHED.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.directory.join(format!("{UNFINISHED_PREFIX}{}-{unique}", std::process::id()));
        let written = (|| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.write_all(image)?;
            fs::rename(&unfinished, self.path(hash))
        })();
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        let bytes = image.len() as u64;
        if self.unseen_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.bytes_max / UNSEEN_PART {
            self.unseen_bytes.store(0, Ordering::Relaxed);
            self.evict()?;
        }
        written
    }

    fn evict(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            // Another session may have removed it meanwhile.
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if is_abandoned(&entry.file_name().to_string_lossy(), used) {
                let _ = fs::remove_file(entry.path());
                continue;
            }
            files.push((used, metadata.len(), entry.path()));
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, path) in files {
            if bytes <= self.bytes_max {
                break;
            }
            let _ = fs::remove_file(path);
            bytes -= size;
        }
        Ok(())
    }
}

/// Removes what belongs to tenants that have left, and images that belong to no tenant.
fn sweep(directory: &Path, now: SystemTime) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let age = metadata.modified().ok().and_then(|used| now.duration_since(used).ok());
        if age.unwrap_or_default() < TENANT_GONE_AFTER && metadata.is_dir() {
            continue;
        }
        let _ = match metadata.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
    }
    Ok(())
}

const UNFINISHED_PREFIX: &str = "unfinished-";

/// An unfinished file whose writer must have died: no write takes that long.
fn is_abandoned(name: &str, modified: SystemTime) -> bool {
    const ABANDONED_AFTER_S: u64 = 3600;
    let age = SystemTime::now().duration_since(modified).unwrap_or_default();
    name.starts_with(UNFINISHED_PREFIX) && age.as_secs() > ABANDONED_AFTER_S
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn hash(image: &[u8]) -> [u8; 32] {
        *blake3::hash(image).as_bytes()
    }

    #[test]
    fn an_image_comes_back_and_its_directory_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let cache = ImageCache::open(&directory.path().join("images"), "me", 1000).unwrap();
        cache.put(&hash(b"image"), b"image").unwrap();
        assert_eq!(cache.get(&hash(b"image")).as_deref(), Some(&b"image"[..]));
        assert_eq!(cache.get(&hash(b"other")), None);
        let mode = fs::metadata(directory.path().join("images")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_damaged_image_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let cache = ImageCache::open(directory.path(), "me", 1000).unwrap();
        cache.put(&hash(b"image"), b"image").unwrap();
        fs::write(cache.path(&hash(b"image")), b"imagf").unwrap();
        assert_eq!(cache.get(&hash(b"image")), None);
        assert!(!cache.path(&hash(b"image")).exists());
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let directory = tempfile::tempdir().unwrap();
        let cache = ImageCache::open(directory.path(), "me", 250).unwrap();
        let images: Vec<Vec<u8>> = (0..3).map(|at| vec![at; 100]).collect();
        for (at, image) in images.iter().take(2).enumerate() {
            cache.put(&hash(image), image).unwrap();
            let used = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 + at as u64);
            File::open(cache.path(&hash(image))).unwrap().set_modified(used).unwrap();
        }
        cache.get(&hash(&images[0])).unwrap();
        cache.put(&hash(&images[2]), &images[2]).unwrap();
        let kept: Vec<bool> = images.iter().map(|image| cache.get(&hash(image)).is_some()).collect();
        assert_eq!(kept, [true, false, true]);
    }

    #[test]
    fn one_tenant_does_not_see_the_images_of_another_and_who_has_left_is_swept() {
        let directory = tempfile::tempdir().unwrap();
        let open = |tenant: &str| ImageCache::open(directory.path(), tenant, 1000).unwrap();
        let one = open("lease one");
        one.put(&hash(b"image"), b"image").unwrap();
        assert_eq!(open("lease two").get(&hash(b"image")), None);
        assert_eq!(open("lease one").get(&hash(b"image")).as_deref(), Some(&b"image"[..]));
        for name in fs::read_dir(directory.path()).unwrap() {
            assert!(
                !name.unwrap().file_name().to_string_lossy().contains("lease"),
                "a tenant may be a secret"
            );
        }
        fs::write(directory.path().join("nobody's"), b"image").unwrap();
        let later = SystemTime::now() + TENANT_GONE_AFTER;
        sweep(directory.path(), later).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
