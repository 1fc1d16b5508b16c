//! Module images by content, shared by all sessions of one tenant: a module travels to a worker once.
//!
//! ```text
//! DIRECTORY/TENANT/HASH   one tenant never reads, or learns of, what another has loaded
//! ```
//!
//! A tenant is a lease, or all programs that hold the worker's token.
//! Files are named by the BLAKE3 of their content and appear whole or not at all. What is read is checked against
//! its name, so a damaged or foreign file is the same as none. Beside them lie descriptions of modules, which begin with the
//! BLAKE3 of the rest.

use cuda_driver::Descriptions;
use kept_files::KeptFiles;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The images of one tenant.
#[derive(Debug)]
pub struct ImageCache(KeptFiles);

/// A tenant that has loaded nothing for this long has left.
const TENANT_GONE_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

impl ImageCache {
    /// Opens or makes the directory of a tenant, for its owner alone. `tenant` is any text that no other tenant has; it may
    /// be a secret. Lets go of tenants that have left.
    pub fn open(directory: &Path, tenant: &str, bytes_max: u64) -> io::Result<Self> {
        let name = blake3::derive_key("dxpu 2026 whose module images", tenant.as_bytes());
        let own = directory.join(blake3::Hash::from_bytes(name).to_hex().as_str());
        let files = KeptFiles::open(&own, bytes_max)?;
        // The time of last use tells `sweep` which tenants have left.
        let _ = File::open(&own).and_then(|own| own.set_modified(SystemTime::now()));
        sweep(directory, SystemTime::now())?;
        Ok(Self(files))
    }

    /// The image with this hash.
    pub fn get(&self, hash: &[u8; 32]) -> Option<Vec<u8>> {
        self.0.get(&name(hash), |bytes| blake3::hash(bytes).as_bytes() == hash)
    }

    /// Keeps an image, whose hash the caller has checked, and lets go of those longest unused.
    pub fn put(&self, hash: &[u8; 32], image: &[u8]) -> io::Result<()> {
        self.0.put(&name(hash), image)
    }
}

impl Descriptions for ImageCache {
    fn get(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
        let is_good = |kept: &[u8]| {
            kept.split_at_checked(32).is_some_and(|(hash, rest)| blake3::hash(rest).as_bytes() == hash)
        };
        Some(self.0.get(&description_name(key), is_good)?.split_off(32))
    }

    fn put(&self, key: &[u8; 32], description: &[u8]) {
        let kept = [blake3::hash(description).as_bytes(), description].concat();
        if let Err(error) = self.0.put(&description_name(key), &kept) {
            tracing::warn!(%error, "cannot store the description of a module; the next session finds it out again");
        }
    }
}

fn name(hash: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

fn description_name(key: &[u8; 32]) -> String {
    format!("{}.described", name(key))
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
        fs::write(cache.0.path(&name(&hash(b"image"))), b"imagf").unwrap();
        assert_eq!(cache.get(&hash(b"image")), None);
        assert!(!cache.0.path(&name(&hash(b"image"))).exists());
    }

    #[test]
    fn a_description_comes_back_and_a_damaged_one_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let cache = ImageCache::open(directory.path(), "me", 1000).unwrap();
        let known = || Descriptions::get(&cache, &[7; 32]);
        assert_eq!(known(), None);
        Descriptions::put(&cache, &[7; 32], b"two kernels");
        assert_eq!(known().as_deref(), Some(&b"two kernels"[..]));
        assert_eq!(cache.get(&[7; 32]), None, "it is no image");
        for damaged in [&b"two kernels"[..], b""] {
            fs::write(cache.0.path(&description_name(&[7; 32])), damaged).unwrap();
            assert_eq!(known(), None);
        }
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
