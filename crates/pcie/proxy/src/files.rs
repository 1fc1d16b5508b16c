//! A file as the medium of an NVMe device.

use pcie::endpoint::nvme::{BLOCK_BYTES, BlockStore, StoreError};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file of whole blocks. What is longer than its last whole block is not shown.
#[derive(Debug)]
pub struct FileStore {
    file: File,
    blocks: u64,
}

impl FileStore {
    /// Opens a file that is there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let blocks = file.metadata()?.len() / BLOCK_BYTES as u64;
        if blocks == 0 {
            let why = format!("{} holds no whole block of {BLOCK_BYTES} bytes", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self { file, blocks })
    }
}

impl BlockStore for FileStore {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.file.read_exact_at(into, block * BLOCK_BYTES as u64).map_err(|_| StoreError)
    }

    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), StoreError> {
        self.file.write_all_at(from, block * BLOCK_BYTES as u64).map_err(|_| StoreError)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(|_| StoreError)
    }
}
