//! Blocks of what clients have sent, by content: what one program of a tenant has sent need not travel again for the next.
//!
//! ```text
//!   header │ table: sets of 16 entries │ a place of 1 MiB for each entry       one memory file for all sessions of a worker
//! ```
//!
//! The front makes the file, and each session process opens it again for itself. It is memory of this machine and goes with the
//! worker. A block lies in the set that its name says; in a full set the block that was not used for longest goes.
//!
//! Readers and writers exclude each other by `flock`, which the kernel gives back for a process that was killed. A writer clears an
//! entry before it touches the entry's place, so that a killed writer leaves no name for bytes that are not there.
//!
//! One tenant never learns of another's blocks: an entry has its tenant's tag, names are made with a key that each tenant has for
//! itself, and sets are chosen by names. What a tenant can see is that its own blocks go sooner when others keep many.

use cuda_wire::content::BLOCK_BYTES;
use rustix::fs::{FallocateFlags, MemfdFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of a block.
pub(crate) type Name = [u8; 32];

/// Entries of a set.
const WAYS: u64 = 16;
const ENTRY_BYTES: usize = 64;
const SET_BYTES: usize = ENTRY_BYTES * WAYS as usize;
const HEADER_BYTES: u64 = 4096;

/// Makes the memory that all sessions of a worker share. `None` if that is less than one set has.
pub(crate) fn make(bytes_max: u64) -> io::Result<Option<OwnedFd>> {
    let sets = bytes_max / (WAYS * BLOCK_BYTES);
    if sets == 0 {
        return Ok(None);
    }
    let memory = File::from(rustix::fs::memfd_create(c"dxpu-content", MemfdFlags::CLOEXEC)?);
    memory.set_len(Layout { sets }.place_of(sets * WAYS))?;
    let mut header = [0; 40];
    let filled = rustix::rand::getrandom(&mut header[..32], rustix::rand::GetRandomFlags::empty())?;
    if filled != 32 {
        return Err(io::Error::other("the system gave too few random bytes"));
    }
    header[32..].copy_from_slice(&sets.to_le_bytes());
    memory.write_all_at(&header, 0)?;
    Ok(Some(memory.into()))
}

/// Has the kernel make all of that memory now. Its first touch costs many times as much as the next, and the blocks of a program that
/// sends faster than pages are made are not kept. Stops where the machine has little left.
pub(crate) fn make_ready(memory: BorrowedFd<'_>) -> io::Result<()> {
    const STEP: u64 = 64 << 20;
    const THREADS: u64 = 4;
    let bytes = File::from(memory.try_clone_to_owned()?).metadata()?.len();
    let next = AtomicU64::new(0);
    let make = || loop {
        let at = next.fetch_add(STEP, Ordering::Relaxed);
        let is_enough = guardian::available_bytes().is_some_and(|left| left / 2 > bytes.saturating_sub(at));
        if at >= bytes || !is_enough {
            return Ok(());
        }
        rustix::fs::fallocate(memory, FallocateFlags::empty(), at, STEP.min(bytes - at))?;
    };
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..THREADS).map(|_| scope.spawn(make)).collect();
        makers.into_iter().try_for_each(|maker| maker.join().unwrap_or(Ok(())))
    })
}

/// Where things lie.
#[derive(Clone, Copy, Debug)]
struct Layout {
    sets: u64,
}

impl Layout {
    fn set_of(self, name: &Name) -> u64 {
        let (first, _) = name.split_first_chunk().unwrap_or((&[0; 8], &[]));
        u64::from_le_bytes(*first) % self.sets
    }

    fn entry_at(self, entry: u64) -> u64 {
        HEADER_BYTES + entry * ENTRY_BYTES as u64
    }

    fn place_of(self, entry: u64) -> u64 {
        self.entry_at(self.sets * WAYS).next_multiple_of(BLOCK_BYTES) + entry * BLOCK_BYTES
    }
}

/// What the table says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: [u8; 16],
    name: Name,
    /// When it was last used, in milliseconds of a clock that all sessions have.
    used: u64,
    /// 0: the entry is free.
    bytes: u32,
}

impl Entry {
    fn read(bytes: &[u8]) -> Self {
        let part = |at: usize, count: usize| &bytes[at..at + count];
        Self {
            tag: part(0, 16).try_into().unwrap_or_default(),
            name: part(16, 32).try_into().unwrap_or_default(),
            used: u64::from_le_bytes(part(48, 8).try_into().unwrap_or_default()),
            bytes: u32::from_le_bytes(part(56, 4).try_into().unwrap_or_default()),
        }
    }

    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut out = [0; ENTRY_BYTES];
        out[..16].copy_from_slice(&self.tag);
        out[16..48].copy_from_slice(&self.name);
        out[48..56].copy_from_slice(&self.used.to_le_bytes());
        out[56..60].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }
}

/// One tenant's view of the memory. Its lock is its own, so each thread has a view of its own.
pub(crate) struct Store {
    file: File,
    layout: Layout,
    tag: [u8; 16],
    key: [u8; 32],
}

impl Store {
    /// Opens the memory for a tenant: any text that no other tenant has.
    pub(crate) fn open(memory: BorrowedFd<'_>, tenant: &str) -> io::Result<Self> {
        // A descriptor that was passed on shares its locks with the one it was made from. Opened again it has its own.
        let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
        let file = File::options().read(true).write(true).open(path)?;
        let mut header = [0; 40];
        file.read_exact_at(&mut header, 0)?;
        let (secret, sets) = header.split_at(32);
        let secret: [u8; 32] = secret.try_into().unwrap_or_default();
        let sets = u64::from_le_bytes(sets.try_into().unwrap_or_default());
        if sets == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no memory of this worker's sessions"));
        }
        let key = *blake3::keyed_hash(&secret, tenant.as_bytes()).as_bytes();
        let of_key = blake3::derive_key("dxpu 2026-11-17 tag of a tenant's blocks", &key);
        let tag = of_key[..16].try_into().unwrap_or_default();
        Ok(Self { file, layout: Layout { sets }, tag, key })
    }

    /// The key of this tenant's names.
    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.key
    }

    /// All bytes of all tenants that fit.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.layout.sets * WAYS * BLOCK_BYTES
    }

    /// How many blocks of this tenant there are.
    pub(crate) fn count(&self) -> io::Result<u64> {
        let mut count = 0;
        let mut some = [0; SET_BYTES * 64];
        for first in (0..self.layout.sets).step_by(64) {
            let sets = (self.layout.sets - first).min(64) as usize;
            let part = &mut some[..sets * SET_BYTES];
            self.file.read_exact_at(part, self.layout.entry_at(first * WAYS))?;
            let ours = |bytes: &[u8]| {
                let entry = Entry::read(bytes);
                entry.bytes != 0 && entry.tag == self.tag
            };
            count += part.chunks_exact(ENTRY_BYTES).filter(|bytes| ours(bytes)).count() as u64;
        }
        Ok(count)
    }

    /// Has `take` read a block of this length, if it is there: `take` is given a function that fills memory with its next bytes.
    /// The block stays for as long as `take` runs.
    pub(crate) fn read<T>(
        &mut self,
        name: &Name,
        bytes: u32,
        now_ms: u64,
        take: impl FnOnce(&mut dyn FnMut(&mut [u8])) -> T,
    ) -> io::Result<Option<T>> {
        self.file.lock_shared()?;
        let taken = self.read_locked(name, bytes, now_ms, take);
        self.file.unlock()?;
        taken
    }

    fn read_locked<T>(
        &self,
        name: &Name,
        bytes: u32,
        now_ms: u64,
        take: impl FnOnce(&mut dyn FnMut(&mut [u8])) -> T,
    ) -> io::Result<Option<T>> {
        let set = self.set(name)?;
        let found = self.find(&set, name).filter(|(_, entry)| entry.bytes == bytes);
        let Some((number, entry)) = found else { return Ok(None) };
        let mut at = self.layout.place_of(number);
        let mut failed = None;
        let taken = take(&mut |piece| {
            failed = failed.take().or(self.file.read_exact_at(piece, at).err());
            at += piece.len() as u64;
        });
        if let Some(error) = failed {
            return Err(error);
        }
        // Several readers may write this at once: any of their times will do.
        self.write_entry(number, Entry { used: now_ms, ..entry })?;
        Ok(Some(taken))
    }

    /// Keeps a block under the name that its bytes have. True: it is new.
    pub(crate) fn put(&mut self, block: &[u8], now_ms: u64) -> io::Result<bool> {
        if block.is_empty() || block.len() as u64 > BLOCK_BYTES {
            return Ok(false);
        }
        let name = *blake3::keyed_hash(&self.key, block).as_bytes();
        self.file.lock()?;
        let put = self.put_locked(&name, block, now_ms);
        self.file.unlock()?;
        put
    }

    fn put_locked(&self, name: &Name, block: &[u8], now_ms: u64) -> io::Result<bool> {
        let set = self.set(name)?;
        let entry = Entry { tag: self.tag, name: *name, used: now_ms, bytes: block.len() as u32 };
        if let Some((number, _)) = self.find(&set, name) {
            self.write_entry(number, entry)?;
            return Ok(false);
        }
        let age = |(_, entry): &(u64, Entry)| if entry.bytes == 0 { 0 } else { entry.used.max(1) };
        let Some((number, _)) = self.entries(&set, name).min_by_key(age) else { return Ok(false) };
        self.write_entry(number, Entry { tag: [0; 16], name: [0; 32], used: 0, bytes: 0 })?;
        self.file.write_all_at(block, self.layout.place_of(number))?;
        self.write_entry(number, entry)?;
        Ok(true)
    }

    fn set(&self, name: &Name) -> io::Result<[u8; SET_BYTES]> {
        let mut set = [0; SET_BYTES];
        let first = self.layout.set_of(name) * WAYS;
        self.file.read_exact_at(&mut set, self.layout.entry_at(first))?;
        Ok(set)
    }

    fn entries(&self, set: &[u8; SET_BYTES], name: &Name) -> impl Iterator<Item = (u64, Entry)> {
        let first = self.layout.set_of(name) * WAYS;
        (first..).zip(set.chunks_exact(ENTRY_BYTES)).map(|(number, bytes)| (number, Entry::read(bytes)))
    }

    fn find(&self, set: &[u8; SET_BYTES], name: &Name) -> Option<(u64, Entry)> {
        let is_it = |entry: &Entry| entry.bytes != 0 && entry.tag == self.tag && entry.name == *name;
        self.entries(set, name).find(|(_, entry)| is_it(entry))
    }

    fn write_entry(&self, number: u64, entry: Entry) -> io::Result<()> {
        self.file.write_all_at(&entry.to_bytes(), self.layout.entry_at(number))
    }
}

/// What a session process needs to open it.
#[derive(Debug)]
pub(crate) struct Memory(OwnedFd);

impl Memory {
    pub(crate) fn new(memory: OwnedFd) -> Self {
        Self(memory)
    }

    pub(crate) fn open(&self, tenant: &str) -> io::Result<Store> {
        Store::open(self.0.as_fd(), tenant)
    }
}

#[cfg(test)]
mod tests;
