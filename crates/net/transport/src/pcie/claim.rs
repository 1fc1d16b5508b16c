//! A channel that no other process of this machine uses, with memory that the function can reach.
//!
//! ```text
//! a huge page    0         64      512 Ki     1 Mi            2 Mi
//!                | status  |       | outbound | inbound       |
//! ```
//!
//! Each channel has a file in hugetlbfs with one page. The process that holds the file's lock owns the channel; the
//! kernel drops the lock with the process, however that ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu_registers::{CHANNELS, channel_at, control, register, state};

use super::Registers;
use super::map::Mapping;
use crate::address::PciAddress;

/// What hugetlbfs gives on every machine that we know of.
pub(super) const PAGE_BYTES: usize = 2 << 20;
pub(super) const STATUS_AT: usize = 0;
pub(super) const OUTBOUND_AT: usize = 512 << 10;
pub(super) const OUTBOUND_BYTES: usize = 512 << 10;
pub(super) const INBOUND_AT: usize = 1 << 20;
pub(super) const INBOUND_BYTES: usize = 1 << 20;

/// How long a channel that a process has just closed may take to deliver its last bytes, when there is no other.
const CLOSING_MAX: Duration = Duration::from_secs(2);
const CLOSING_LOOK: Duration = Duration::from_millis(5);

/// Memory that a channel uses.
#[derive(Debug)]
pub(crate) struct Page {
    pub(super) memory: Mapping,
    /// Where the function finds it.
    pub(super) address: u64,
    /// Holds the lock.
    pub(super) file: File,
}

/// A channel that is ours, idle.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(super) channel: usize,
    pub(super) page: Page,
}

/// Where pages for channels come from.
pub(super) trait Pages {
    /// The locked file of a channel; none when another process holds it, or when there is none and `may_make` is false.
    fn lock(&self, channel: usize, may_make: bool) -> io::Result<Option<File>>;
    /// Its memory.
    fn map(&self, file: File) -> io::Result<Page>;
}

/// Takes the first channel that is free, and ends what killed processes have left open in the others: a worker must not
/// work for the dead.
pub(super) fn claim(registers: &Arc<dyn Registers>, pages: &dyn Pages) -> io::Result<Claim> {
    let (mut free, mut closing) = (None, None);
    for channel in 0..CHANNELS {
        let Some(file) = pages.lock(channel, free.is_none())? else { continue };
        let state = registers.read(channel_at(channel) + register::STATE);
        if state == u32::MAX {
            return Err(io::Error::new(ErrorKind::NotConnected, "the function does not answer"));
        }
        let is_closing = state & state::CLOSING != 0;
        if state != 0 && !is_closing {
            registers.write(channel_at(channel) + register::CONTROL, control::RESET);
        }
        match is_closing {
            // What was sent there last is still on its way.
            true => closing = closing.or(Some((channel, file))),
            false => free = free.or(Some((channel, file))),
        }
    }
    let all_taken = || {
        let text = format!("all {CHANNELS} channels of the function are in use; end another program first");
        io::Error::new(ErrorKind::ResourceBusy, text)
    };
    let (channel, file) = match (free, closing) {
        (Some(free), _) => free,
        (None, closing) => closing.ok_or_else(all_taken)?,
    };
    let at = channel_at(channel);
    let deadline = Instant::now() + CLOSING_MAX;
    while registers.read(at + register::STATE) & state::CLOSING != 0 && Instant::now() < deadline {
        std::thread::sleep(CLOSING_LOOK);
    }
    registers.write(at + register::CONTROL, control::RESET);
    // The answer comes behind everything that the function wrote for the channel's last owner.
    registers.read(at + register::STATE);
    let page = pages.map(file)?;
    page.memory.write(STATUS_AT, &[0; gpu_registers::status::BYTES as usize]);
    Ok(Claim { channel, page })
}

/// Pages of hugetlbfs: they never move and are never swapped.
#[derive(Debug)]
pub(super) struct HugePages {
    folder: PathBuf,
    address: PciAddress,
}

impl HugePages {
    /// Those for the channels of one function.
    pub(super) fn of(address: PciAddress) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let folder = mount_of(&mounts).ok_or_else(|| {
            io::Error::new(
                ErrorKind::NotFound,
                "no hugetlbfs with pages of 2 MiB is mounted; mount -t hugetlbfs none /dev/hugepages",
            )
        })?;
        Ok(Self { folder, address })
    }
}

/// The first hugetlbfs with pages of the size that we use.
fn mount_of(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (folder, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let fits =
            options.split(',').all(|option| !option.starts_with("pagesize=") || option == "pagesize=2M");
        (kind == "hugetlbfs" && fits).then(|| PathBuf::from(folder))
    })
}

impl Pages for HugePages {
    fn lock(&self, channel: usize, may_make: bool) -> io::Result<Option<File>> {
        let path = self.folder.join(format!("dxpu-{}-{channel}", self.address));
        let open = OpenOptions::new().read(true).write(true).create(may_make).mode(0o600).open(&path);
        let file = match open {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound && !may_make => return Ok(None),
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display())));
            }
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn map(&self, file: File) -> io::Result<Page> {
        let no_page = |error: io::Error| match error.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC) => io::Error::new(
                ErrorKind::OutOfMemory,
                "there are no free huge pages, and a connection needs one (a program about seven); \
                 echo 16 > /proc/sys/vm/nr_hugepages",
            ),
            _ => error,
        };
        file.set_len(PAGE_BYTES as u64).map_err(no_page)?;
        // The kernel sets a page aside for the mapping, so touching it cannot fail.
        let memory = Mapping::new(&file, PAGE_BYTES).map_err(no_page)?;
        memory.word(STATUS_AT).store(0, Ordering::Relaxed);
        let address = physical_address(memory.virtual_address())?;
        Ok(Page { memory, address, file })
    }
}

/// Where a page of this process is in the machine.
fn physical_address(virtual_address: usize) -> io::Result<u64> {
    /// Of a page that the map speaks of, whatever the size of the page behind it.
    const SMALL_PAGE: u64 = 4096;
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    let mut entry = [0; 8];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, virtual_address as u64 / SMALL_PAGE * 8)?;
    let entry = u64::from_le_bytes(entry);
    // The kernel hides frames from all users but root.
    if entry & PRESENT == 0 || entry & FRAME == 0 {
        let text = "the kernel does not say where our memory is; only root may use a pcie: address";
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    Ok((entry & FRAME) * SMALL_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_with_fitting_pages_is_found() {
        let mounts = "proc /proc proc rw 0 0\n\
                      hugetlbfs /big hugetlbfs rw,relatime,pagesize=1024M 0 0\n\
                      hugetlbfs /dev/hugepages hugetlbfs rw,relatime,pagesize=2M 0 0\n";
        assert_eq!(mount_of(mounts), Some(PathBuf::from("/dev/hugepages")));
        assert_eq!(mount_of("none /mnt hugetlbfs rw,relatime 0 0"), Some(PathBuf::from("/mnt")));
        assert_eq!(mount_of("tmpfs /tmp tmpfs rw 0 0"), None);
    }

    #[test]
    fn a_locked_file_is_somebody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let address = "0000:01:00.0".parse().unwrap();
        let pages = HugePages { folder: folder.path().to_owned(), address };
        assert!(pages.lock(3, false).unwrap().is_none(), "nobody has ever used it");
        let held = pages.lock(3, true).unwrap().expect("free");
        assert!(pages.lock(3, true).unwrap().is_none());
        drop(held);
        assert!(pages.lock(3, false).unwrap().is_some());
        assert!(folder.path().join("dxpu-0000:01:00.0-3").exists());
    }
}
