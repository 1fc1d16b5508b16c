//! Images of suspended sessions on disk, encrypted with a key that is not on the disk.
//!
//! ```text
//! DIRECTORY/IMAGE-LEASE    IMAGE is a digest. LEASE is the lease's name: a guardian that was started anew must be able to
//!                          say whose files it has, so that they go with their leases
//!   salt (32 bytes), then records: length u32, sealed bytes
//!   record 0: number, incarnation, counts, seal;   then the ages of events;   then each block;   last: empty
//! ```
//!
//! The key of a file comes from the image's secret and the file's salt. Each record is sealed (AES-256-GCM) with its
//! place and with whether it is the last, so that a file which was changed, shortened or put together from two is
//! refused. The image checks every digest and the seal on top of that.

mod record;

use crate::error::Refusal;
use crate::protocol::Open;
use crate::shelf::{Reader, Writer};
use machine::files;
use record::{Opener, Sealer, bad};
use snapshot::{Block, BlockDigest, Bytes, Digest, EventAge, Seal};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use thiserror::Error;

/// What files are named with; a derived name says nothing of what it was derived from.
const NAME_CONTEXT: &str = "dxpu guardian 2026-11-16 name of a parked image";

/// The longest name of a lease in the name of a file.
const LEASE_BYTES_MAX: usize = 128;

/// Digits of the image's part of a name.
const IMAGE_DIGITS: usize = 32;

/// Begins the name of a file that is not finished.
const UNFINISHED: &str = ".unfinished-";

/// Why the disk does not take an image, or does not give it back.
#[derive(Debug, Error)]
pub enum DiskError {
    /// It cannot be written. The image is still in memory.
    #[error("the image cannot be written to {directory}: {source}; it stays in memory")]
    Write {
        /// Where.
        directory: String,
        /// As the system says it.
        source: io::Error,
    },
    /// It cannot be read, or was damaged.
    #[error(
        "the suspended image in {directory} cannot be read back: {source}; it is lost, start the program again"
    )]
    Read {
        /// Where.
        directory: String,
        /// As the system says it.
        source: io::Error,
    },
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] files::FileError),
}

/// A private directory of parked images.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    directory: PathBuf,
}

/// What the first record says.
struct Summary {
    number: u64,
    incarnation: u64,
    blocks: u64,
    ages: u64,
}

impl Disk {
    /// Uses a directory, and removes what an earlier guardian has not finished there.
    pub(crate) fn open(directory: &Path) -> Result<Self, DiskError> {
        files::make_private(directory)?;
        let disk = Self { directory: directory.to_owned() };
        disk.remove(|name, _| name.starts_with(UNFINISHED));
        Ok(disk)
    }

    fn path(&self, open: &Open) -> PathBuf {
        let mut hasher = blake3::Hasher::new_derive_key(NAME_CONTEXT);
        hasher.update(&open.name.bytes).update(&open.secret[..]);
        let name = hasher.finalize().to_hex();
        self.directory.join(&name[..IMAGE_DIGITS])
    }

    /// The file of an image, whatever lease it has.
    fn find(&self, open: &Open) -> Option<PathBuf> {
        let beginning = self.path(open).file_name()?.to_str()?.to_owned();
        let entries = fs::read_dir(&self.directory).ok()?.flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&beginning))
        })
    }

    /// Writes a committed cut. The file appears whole or not at all.
    pub(crate) fn park(&self, open: &Open, reader: &mut Reader) -> Result<(), Refusal> {
        let state = reader.state()?;
        let (entries, ages) = reader.list(state.committed)?;
        let summary = Summary {
            number: state.committed,
            incarnation: state.incarnation,
            blocks: entries.len() as u64,
            ages: ages.len() as u64,
        };
        let mut path = self.path(open).into_os_string();
        let mut write = || -> io::Result<()> {
            path.push("-");
            path.push(lease_name(&open.lease)?);
            let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.directory)?;
            let mut sealer =
                Sealer::new(BufWriter::with_capacity(1 << 20, file.as_file_mut()), &open.secret)?;
            write_image(&mut sealer, &summary, &entries, &ages, reader)?;
            sealer.finish()?.flush()?;
            file.as_file().sync_all()?;
            file.persist(&path).map(drop).map_err(|failed| failed.error)
        };
        let directory = self.directory.display().to_string();
        write().map_err(|source| Refusal::Disk(DiskError::Write { directory, source }.to_string()))
    }

    /// Whether there is a file for this image.
    pub(crate) fn has(&self, open: &Open) -> bool {
        self.find(open).is_some()
    }

    /// Reads an image back into a new, empty one, and removes the file.
    pub(crate) fn restore(&self, open: &Open, writer: &Writer) -> Result<(), Refusal> {
        let Some(path) = self.find(open) else { return Ok(()) };
        let read = || -> io::Result<Result<(), Refusal>> {
            let file = BufReader::with_capacity(1 << 20, File::open(&path)?);
            read_image(&mut Opener::new(file, &open.secret)?, open, writer)
        };
        let directory = self.directory.display().to_string();
        read().map_err(|source| Refusal::Disk(DiskError::Read { directory, source }.to_string()))??;
        let _ = fs::remove_file(path);
        Ok(())
    }

    /// Removes the file of an image that has ended.
    pub(crate) fn end(&self, open: &Open) {
        if let Some(path) = self.find(open) {
            let _ = fs::remove_file(path);
        }
    }

    /// Removes the files of a lease; says how many.
    pub(crate) fn end_lease(&self, lease: &str) -> usize {
        self.remove(|name, _| !lease.is_empty() && lease_of(name) == Some(lease))
    }

    /// The leases that have files.
    pub(crate) fn leases(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| lease_of(entry.file_name().to_str()?).map(str::to_owned)).collect()
    }

    /// Removes files that are older than this; says how many.
    pub(crate) fn reap(&self, now: SystemTime, keep: Duration) -> usize {
        self.remove(|_, written| now.duration_since(written).is_ok_and(|age| age >= keep))
    }

    fn remove(&self, is_over: impl Fn(&str, SystemTime) -> bool) -> usize {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let over = entries.filter(|entry| {
            let written = entry.metadata().and_then(|metadata| metadata.modified());
            let written = written.unwrap_or_else(|_| SystemTime::now());
            entry.file_name().to_str().is_some_and(|name| is_over(name, written))
        });
        over.filter(|entry| fs::remove_file(entry.path()).is_ok()).count()
    }
}

/// The lease's part of a name. Names that could mean something else in a path, or are too long for one, are refused.
fn lease_name(lease: &str) -> io::Result<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match lease.len() <= LEASE_BYTES_MAX && lease.bytes().all(is_plain) {
        true => Ok(lease),
        false => Err(io::Error::other("the name of its lease is no name of a file")),
    }
}

/// The lease in the name of a finished file; `None`: it has none.
fn lease_of(name: &str) -> Option<&str> {
    let (image, lease) = name.split_at_checked(IMAGE_DIGITS)?;
    let lease = lease.strip_prefix('-').filter(|lease| !lease.is_empty())?;
    image.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(lease)
}

fn write_image(
    sealer: &mut Sealer<impl Write>,
    summary: &Summary,
    entries: &[BlockDigest],
    ages: &[EventAge],
    reader: &Reader,
) -> io::Result<()> {
    let numbers = [summary.number, summary.incarnation, summary.blocks, summary.ages];
    sealer.write(&[&numbers.map(u64::to_le_bytes).concat()], false)?;
    for age in ages {
        sealer.write(&[&age.event.to_le_bytes(), &age.age_ns.to_le_bytes()], false)?;
    }
    for entry in entries {
        let bytes = reader.read(summary.number, entry.block).map_err(io::Error::other)?;
        sealer.write(&[&entry.block.address.to_le_bytes(), &entry.digest.0.to_le_bytes(), &bytes], false)?;
    }
    sealer.write(&[], true)
}

/// The outer error is the disk's, the inner one the image's.
fn read_image(
    opener: &mut Opener<impl io::Read>,
    open: &Open,
    writer: &Writer,
) -> io::Result<Result<(), Refusal>> {
    let first = opener.next()?;
    let numbers: Vec<u64> = first.chunks_exact(8).map(u64_of).collect();
    let [number, incarnation, blocks, ages] = numbers[..] else { return Err(bad()) };
    if open.incarnation < incarnation {
        let current = incarnation;
        return Ok(Err(snapshot::ImageError::Superseded { incarnation: open.incarnation, current }.into()));
    }
    let mut events = Vec::new();
    for _ in 0..ages {
        let record = opener.next()?;
        let (event, age_ns) = record.split_first_chunk::<4>().ok_or_else(bad)?;
        let age_ns = u64::from_le_bytes(age_ns.try_into().map_err(|_| bad())?);
        events.push(EventAge { event: u32::from_le_bytes(*event), age_ns });
    }
    let mut seal_entries = Vec::new();
    if let Err(refusal) = writer.begin(0, number) {
        return Ok(Err(refusal));
    }
    for _ in 0..blocks {
        let record = opener.next()?;
        let (address, rest) = record.split_first_chunk::<8>().ok_or_else(bad)?;
        let (digest, bytes) = rest.split_first_chunk::<16>().ok_or_else(bad)?;
        let block = Block { address: u64::from_le_bytes(*address), bytes: bytes.len() as u32 };
        let entry = BlockDigest { block, digest: Digest(u128::from_le_bytes(*digest)) };
        if let Err(refusal) = writer.put(number, entry, Bytes::copy_of(bytes)) {
            return Ok(Err(refusal));
        }
        seal_entries.push(entry);
    }
    opener.finish()?;
    Ok(writer.commit(number, Seal::of(seal_entries), events))
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}
