//! The fence file of a slot: its epochs, changed by several processes, kept through crashes and power cuts.
//!
//! ```text
//! two records of 96 bytes:   dxpu-fence 1 SEQUENCE BOUND CLEANED CHECKSUM\n   numbers in hexadecimal
//! ```
//!
//! The older record is overwritten, then the file is synced: at any moment at least one of the two is whole.
//! A writer holds a lock on the file, which is never replaced by another file. A process waits for the lock
//! only for `LOCKED_WITHIN`: a process that was frozen while it held it must not freeze the others.

use crate::epochs::{EpochRefusal, Epochs};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RECORD_BYTES: usize = 96;
/// A change takes one write to the disk; a slow disk takes its time, a frozen process takes for ever.
const LOCKED_WITHIN: Duration = Duration::from_secs(3);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// Why a fence cannot be asked. A fence that cannot be asked admits no borrower.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// The epoch is refused.
    #[error(transparent)]
    Refused(#[from] EpochRefusal),
    /// The file cannot be read or written.
    #[error("cannot read or write the fence file {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process holds the lock and does not let go.
    #[error("another process has held the lock of the fence file {path} for seconds: end it if it hangs")]
    Busy {
        /// Which.
        path: PathBuf,
    },
    /// Neither record is whole. A file of our own never gets there.
    #[error("the fence file {path} is damaged, so this box lets no lease use the GPU")]
    Damaged {
        /// Which.
        path: PathBuf,
    },
}

/// The fence of one slot.
#[derive(Clone, Debug)]
pub struct Fence {
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    sequence: u64,
    epochs: Epochs,
}

impl Record {
    fn encode(self) -> [u8; RECORD_BYTES] {
        let Epochs { bound, cleaned } = self.epochs;
        let text = format!("dxpu-fence 1 {:x} {bound:x} {cleaned:x}", self.sequence);
        let line = format!("{text} {:016x}", checksum(text.as_bytes()));
        let mut bytes = [b' '; RECORD_BYTES];
        bytes[..line.len()].copy_from_slice(line.as_bytes());
        bytes[RECORD_BYTES - 1] = b'\n';
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let line = str::from_utf8(bytes.get(..RECORD_BYTES)?).ok()?.trim_end();
        let (text, sum) = line.rsplit_once(' ')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        if hex(sum)? != checksum(text.as_bytes()) {
            return None;
        }
        let mut numbers = text.strip_prefix("dxpu-fence 1 ")?.split(' ').map(hex);
        let mut next = || numbers.next().flatten();
        let sequence = next()?;
        let epochs = Epochs { bound: next()?, cleaned: next()? };
        Some(Self { sequence, epochs })
    }
}

/// 64-bit FNV-1a: it recognises a record that was torn, and is no protection against an attacker.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Fence {
    /// The fence in this file, which is made if there is none.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the slot remembers. Takes no lock: a record that is being written is not whole yet, and the other counts.
    pub fn read(&self) -> Result<Epochs, FenceError> {
        match File::open(&self.path) {
            Ok(file) => Ok(self.records(&file)?.0.epochs),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Epochs::default()),
            Err(source) => Err(FenceError::Io { path: self.path.clone(), source }),
        }
    }

    /// Lets an epoch in. When this returns, the disk knows.
    pub fn admit(&self, epoch: u64) -> Result<Epochs, FenceError> {
        self.change(|epochs| epochs.admit(epoch))
    }

    /// Lets an epoch in whose lease may have been there before, see [`Epochs::admit_since`]. When this returns, the disk
    /// knows.
    pub fn admit_since(&self, epoch: u64, since: u64) -> Result<Epochs, FenceError> {
        self.change(|epochs| epochs.admit_since(epoch, since))
    }

    /// Remembers that everything up to `epoch` is gone. Call it when it is.
    pub fn clean(&self, epoch: u64) -> Result<Epochs, FenceError> {
        self.change(|epochs| Ok(epochs.clean(epoch)))
    }

    /// The same if no borrower has been inside since the last cleaning: then there is nothing to end. Says whether.
    pub fn clean_unused(&self, epoch: u64) -> Result<bool, FenceError> {
        let mut is_unused = false;
        let clean = |epochs: Epochs| {
            is_unused = !epochs.is_used();
            Ok(if is_unused { epochs.clean(epoch) } else { epochs })
        };
        self.change(clean)?;
        Ok(is_unused)
    }

    /// Reads, decides and writes under the file's lock.
    fn change(
        &self,
        decide: impl FnOnce(Epochs) -> Result<Epochs, EpochRefusal>,
    ) -> Result<Epochs, FenceError> {
        let io = |source| FenceError::Io { path: self.path.clone(), source };
        let file = self.open().map_err(io)?;
        if !lock(&file).map_err(io)? {
            return Err(FenceError::Busy { path: self.path.clone() });
        }
        let (record, is_new) = self.records(&file)?;
        let epochs = decide(record.epochs)?;
        if epochs != record.epochs || is_new {
            let next = Record { sequence: record.sequence + 1, epochs };
            let place = (next.sequence % 2) * RECORD_BYTES as u64;
            file.write_all_at(&next.encode(), place).and_then(|()| file.sync_data()).map_err(io)?;
            if is_new {
                self.sync_directory().map_err(io)?;
            }
        }
        // Closing the file gives up the lock.
        Ok(epochs)
    }

    fn open(&self) -> io::Result<File> {
        File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&self.path)
    }

    /// The newest whole record, and whether the file is new.
    fn records(&self, file: &File) -> Result<(Record, bool), FenceError> {
        let io = |source| FenceError::Io { path: self.path.clone(), source };
        let length = file.metadata().map_err(io)?.len();
        if length == 0 {
            return Ok((Record { sequence: 0, epochs: Epochs::default() }, true));
        }
        let mut bytes = [0; 2 * RECORD_BYTES];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], filled as u64).map_err(io)? {
                0 => break,
                count => filled += count,
            }
        }
        let whole = bytes.chunks(RECORD_BYTES).filter_map(Record::decode);
        let newest = whole.max_by_key(|record| record.sequence);
        if newest.is_none() && is_unfinished(&bytes[..filled]) {
            return Ok((Record { sequence: 0, epochs: Epochs::default() }, true));
        }
        newest.map(|record| (record, false)).ok_or_else(|| FenceError::Damaged { path: self.path.clone() })
    }

    fn sync_directory(&self) -> io::Result<()> {
        match self.path.parent() {
            Some(directory) => File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// Whether this is all that came of the very first record, which goes to the second place: the disk was full, or the power
/// was cut. No borrower was admitted by it, and nothing was written to the first place.
fn is_unfinished(bytes: &[u8]) -> bool {
    bytes.iter().take(RECORD_BYTES).all(|byte| *byte == 0)
}

/// Locks a file. False when another process holds it for longer than any change takes.
fn lock(file: &File) -> io::Result<bool> {
    use rustix::io::Errno;
    let deadline = Instant::now() + LOCKED_WITHIN;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN_AFTER),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fence(directory: &tempfile::TempDir) -> Fence {
        Fence::new(directory.path().join("fence"))
    }

    #[test]
    fn what_was_let_in_is_remembered_by_the_next_process() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(fence(&directory).read().unwrap(), Epochs::default());
        fence(&directory).admit(3).unwrap();
        assert_eq!(fence(&directory).read().unwrap(), Epochs { bound: 3, ..Epochs::default() });
        assert!(matches!(
            fence(&directory).admit(4),
            Err(FenceError::Refused(EpochRefusal::NotCleanYet { .. }))
        ));
        assert!(!fence(&directory).clean_unused(3).unwrap(), "somebody may be inside");
        fence(&directory).clean(3).unwrap();
        assert!(fence(&directory).clean_unused(5).unwrap());
        let read = fence(&directory).read().unwrap();
        assert_eq!((read.bound, read.cleaned), (3, 5));
    }

    #[test]
    fn a_torn_record_is_not_believed_and_the_one_before_still_is() {
        let directory = tempfile::tempdir().unwrap();
        let fence = fence(&directory);
        fence.admit(1).unwrap();
        fence.clean(1).unwrap();
        fence.admit(2).unwrap();
        // A power cut in the middle of the next write.
        let file = File::options().read(true).write(true).open(fence.path()).unwrap();
        let newest = fence.records(&file).unwrap().0;
        let next = Record { sequence: newest.sequence + 1, epochs: newest.epochs.clean(2) };
        file.write_all_at(&next.encode()[..25], (next.sequence % 2) * RECORD_BYTES as u64).unwrap();
        let read = fence.read().unwrap();
        assert_eq!((read.bound, read.cleaned), (2, 1));
        fence.clean(2).unwrap();
        assert_eq!(fence.read().unwrap().cleaned, 2);
    }

    /// Before, such a file counted as damaged, and no borrower was admitted ever again.
    #[test]
    fn a_first_record_that_was_never_finished_is_written_anew() {
        let whole = Record { sequence: 1, epochs: Epochs { bound: 3, cleaned: 0 } }.encode();
        for kept in 0..RECORD_BYTES {
            let directory = tempfile::tempdir().unwrap();
            let fence = fence(&directory);
            let mut bytes = vec![0; RECORD_BYTES];
            bytes.extend_from_slice(&whole[..kept]);
            std::fs::write(fence.path(), bytes).unwrap();
            assert_eq!(fence.read().unwrap(), Epochs::default(), "{kept}");
            fence.admit(7).unwrap();
            assert_eq!(fence.read().unwrap().bound, 7);
        }
    }

    #[test]
    fn a_file_that_holds_something_else_lets_nobody_in() {
        let directory = tempfile::tempdir().unwrap();
        let fence = fence(&directory);
        std::fs::write(fence.path(), "all is well").unwrap();
        assert!(matches!(fence.admit(1), Err(FenceError::Damaged { .. })));
        let nowhere = Fence::new(directory.path().join("no/such/directory"));
        assert!(matches!(nowhere.admit(1), Err(FenceError::Io { .. })));
    }

    #[test]
    fn of_many_that_come_at_once_one_epoch_is_let_in() {
        let directory = tempfile::tempdir().unwrap();
        let admitted: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=16u64)
                .map(|epoch| {
                    let fence = fence(&directory);
                    scope.spawn(move || fence.admit(epoch).is_ok().then_some(epoch))
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(admitted.len(), 1, "{admitted:?}");
        assert_eq!(fence(&directory).read().unwrap().bound, admitted[0]);
    }

    #[test]
    fn who_holds_the_lock_for_ever_holds_up_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let fence = fence(&directory);
        fence.admit(4).unwrap();
        let frozen = fence.open().unwrap();
        assert!(lock(&frozen).unwrap());
        assert_eq!(fence.read().unwrap().bound, 4);
        assert!(matches!(fence.clean(4), Err(FenceError::Busy { .. })));
        drop(frozen);
        fence.clean(4).unwrap();
    }

    proptest! {
        #[test]
        fn records_read_back(sequence: u64, bound: u64, cleaned: u64) {
            let record = Record { sequence, epochs: Epochs { bound, cleaned } };
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn a_changed_byte_is_noticed(sequence in 0..1u64 << 40, at in 0..RECORD_BYTES - 1, byte: u8) {
            let record = Record { sequence, epochs: Epochs { bound: 5, cleaned: 4 } };
            let mut bytes = record.encode();
            bytes[at] = byte;
            let read = Record::decode(&bytes);
            prop_assert!(read.is_none() || read == Some(record), "{:?}", read);
        }
    }
}
