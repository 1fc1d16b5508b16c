//! The file behind a range of guest memory, and how it is reached.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::SealFlags;

use crate::mapping::Mapping;
use crate::memory::MapError;

/// The number Linux gives its memory file systems.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// One file of guest memory, whole.
pub(crate) struct Backing {
    /// Which file it is, for as long as we hold it.
    pub(crate) identity: (u64, u64),
    access: Access,
}

enum Access {
    /// Sealed against shrinking, so it can be mapped: no peer can take the pages away under us.
    Mapped(Mapping),
    /// Any other file in memory: read and written by system calls, which report a short file as an error.
    Calls { file: File, len: u64 },
}

impl Backing {
    /// Looks at a file that a stranger handed us.
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, MapError> {
        let file = File::from(fd);
        let meta = file.metadata().map_err(MapError::Inspect)?;
        if !meta.is_file() {
            return Err(MapError::NotMemory);
        }
        let identity = (meta.dev(), meta.ino());
        let len = meta.len();
        let sealed = rustix::fs::fcntl_get_seals(&file)
            .is_ok_and(|seals| seals.contains(SealFlags::SHRINK) && !seals.contains(SealFlags::WRITE));
        if sealed && len > 0 {
            let len = usize::try_from(len).map_err(|_| MapError::NotMemory)?;
            let mapping = Mapping::new(&file, len).map_err(|error| MapError::Inspect(error.into()))?;
            return Ok(Self { identity, access: Access::Mapped(mapping) });
        }
        // A file on a slow or dead file system could hold a device up for as long as its owner likes.
        let system = rustix::fs::fstatfs(&file).map_err(|error| MapError::Inspect(error.into()))?;
        #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
        if system.f_type as i64 != TMPFS_MAGIC {
            return Err(MapError::NotMemory);
        }
        Ok(Self { identity, access: Access::Calls { file, len } })
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.access {
            Access::Mapped(mapping) => mapping.len() as u64,
            Access::Calls { len, .. } => *len,
        }
    }

    /// Copies out. The caller has checked the range against [`Backing::len`].
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        match &self.access {
            Access::Mapped(mapping) => mapping.read(offset as usize, into),
            Access::Calls { file, .. } => file.read_exact_at(into, offset)?,
        }
        Ok(())
    }

    /// Copies in, within the range the caller has checked.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        match &self.access {
            Access::Mapped(mapping) => mapping.write(offset as usize, from),
            // Aligned words go one by one at the end of a record, since a record's last word says that it is complete.
            Access::Calls { file, .. } => {
                let last = if from.len() > 8 { from.len() - 8 } else { 0 };
                if last > 0 {
                    file.write_all_at(&from[..last], offset)?;
                }
                file.write_all_at(&from[last..], offset + last as u64)?;
            }
        }
        Ok(())
    }
}
