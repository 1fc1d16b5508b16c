//! Reads the zip file of a function, which a stranger made.
//!
//! Only what Lambda's packages hold is understood: stored and deflated files. A name that leaves the folder, a link, a file
//! that unpacks to more than was promised and parts that overlap are refused before anything is written.

use crate::limits::{FILES_MAX, UNPACKED_BYTES_MAX};

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path below the folder, with `/`.
    pub path: String,
    /// It may be executed.
    pub is_executable: bool,
    /// What it holds.
    pub content: Vec<u8>,
}

/// Why a zip file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// It is no zip file, or a damaged one.
    #[error("could not unzip the uploaded file: {0}; please check that it is a whole zip file")]
    Damaged(&'static str),
    /// A name that would be written elsewhere.
    #[error("the zip file has an entry whose name is not allowed: {0:?}")]
    BadName(String),
    /// A link or a device.
    #[error("the zip file has an entry that is neither a file nor a folder: {0:?}")]
    NotAFile(String),
    /// More than there may be.
    #[error("unzipped, the code may have {FILES_MAX} files and {UNPACKED_BYTES_MAX} bytes")]
    TooLarge,
}

use ArchiveError::Damaged;

const END: u32 = 0x0605_4b50;
const END_BYTES: usize = 22;
const CENTRAL: u32 = 0x0201_4b50;
const CENTRAL_BYTES: usize = 46;
const LOCAL: u32 = 0x0403_4b50;
const LOCAL_BYTES: usize = 30;
/// A comment behind the end is at most this long.
const COMMENT_BYTES_MAX: usize = 0xffff;

/// Reads all files.
pub fn unpack(zip: &[u8]) -> Result<Vec<File>, ArchiveError> {
    let end = find_end(zip)?;
    let count = usize::from(u16_at(zip, end + 10)?);
    let mut at = u32_at(zip, end + 16)? as usize;
    if count == 0xffff || at == u32::MAX as usize {
        return Err(Damaged("it is in the format zip64, which is not needed at this size"));
    }
    if count > FILES_MAX {
        return Err(ArchiveError::TooLarge);
    }
    let mut files = Vec::new();
    let (mut packed, mut unpacked) = (0_u64, 0_u64);
    for _ in 0..count {
        let entry = Entry::read(zip, at)?;
        at = entry.next;
        packed += entry.packed as u64;
        unpacked += entry.unpacked as u64;
        // Entries that share bytes make a small file unpack to anything.
        if packed > zip.len() as u64 {
            return Err(Damaged("its entries overlap"));
        }
        if unpacked > UNPACKED_BYTES_MAX {
            return Err(ArchiveError::TooLarge);
        }
        if let Some(file) = entry.file(zip)? {
            files.push(file);
        }
    }
    Ok(files)
}

fn find_end(zip: &[u8]) -> Result<usize, ArchiveError> {
    let last = zip.len().checked_sub(END_BYTES).ok_or(Damaged("it is too short"))?;
    let first = last.saturating_sub(COMMENT_BYTES_MAX);
    (first..=last).rev().find(|at| u32_at(zip, *at) == Ok(END)).ok_or(Damaged("it has no directory"))
}

struct Entry {
    name: String,
    flags: u16,
    method: u16,
    crc: u32,
    packed: usize,
    unpacked: usize,
    /// Unix permissions and kind, or 0.
    mode: u32,
    local: usize,
    next: usize,
}

impl Entry {
    fn read(zip: &[u8], at: usize) -> Result<Self, ArchiveError> {
        if u32_at(zip, at)? != CENTRAL {
            return Err(Damaged("its directory is damaged"));
        }
        let name_bytes = usize::from(u16_at(zip, at + 28)?);
        let rest = usize::from(u16_at(zip, at + 30)?) + usize::from(u16_at(zip, at + 32)?);
        let name = part(zip, at + CENTRAL_BYTES, name_bytes)?;
        let name = std::str::from_utf8(name).map_err(|_| Damaged("a name in it is not UTF-8"))?;
        let is_unix = u16_at(zip, at + 4)? >> 8 == 3;
        Ok(Self {
            name: name.to_owned(),
            flags: u16_at(zip, at + 8)?,
            method: u16_at(zip, at + 10)?,
            crc: u32_at(zip, at + 16)?,
            packed: u32_at(zip, at + 20)? as usize,
            unpacked: u32_at(zip, at + 24)? as usize,
            mode: if is_unix { u32_at(zip, at + 38)? >> 16 } else { 0 },
            local: u32_at(zip, at + 42)? as usize,
            next: at + CENTRAL_BYTES + name_bytes + rest,
        })
    }

    /// Its content; none for a folder.
    fn file(&self, zip: &[u8]) -> Result<Option<File>, ArchiveError> {
        check_name(&self.name)?;
        const KIND: u32 = 0o170_000;
        let kind = self.mode & KIND;
        if ![0, 0o100_000, 0o040_000].contains(&kind) {
            return Err(ArchiveError::NotAFile(self.name.clone()));
        }
        if self.name.ends_with('/') || kind == 0o040_000 {
            return Ok(None);
        }
        if self.flags & 1 != 0 {
            return Err(Damaged("it is encrypted"));
        }
        if u32_at(zip, self.local)? != LOCAL {
            return Err(Damaged("an entry of it is damaged"));
        }
        let head = usize::from(u16_at(zip, self.local + 26)?) + usize::from(u16_at(zip, self.local + 28)?);
        let packed = part(zip, self.local + LOCAL_BYTES + head, self.packed)?;
        let content = match self.method {
            0 => packed.to_vec(),
            8 => miniz_oxide::inflate::decompress_to_vec_with_limit(packed, self.unpacked)
                .map_err(|_| Damaged("an entry of it cannot be unpacked to its size"))?,
            _ => return Err(Damaged("it is compressed by a method other than deflate")),
        };
        if content.len() != self.unpacked || crc32fast::hash(&content) != self.crc {
            return Err(Damaged("an entry of it has another checksum or size"));
        }
        Ok(Some(File { path: self.name.clone(), is_executable: self.mode & 0o111 != 0, content }))
    }
}

fn check_name(name: &str) -> Result<(), ArchiveError> {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    let trimmed = name.strip_suffix('/').unwrap_or(name);
    let is_plain = !name.contains(|c: char| c == '\\' || c.is_control()) && name.len() <= 1024;
    if is_plain && trimmed.split('/').all(is_part) {
        Ok(())
    } else {
        Err(ArchiveError::BadName(name.to_owned()))
    }
}

fn part(zip: &[u8], at: usize, bytes: usize) -> Result<&[u8], ArchiveError> {
    at.checked_add(bytes).and_then(|end| zip.get(at..end)).ok_or(Damaged("it ends too early"))
}

fn u16_at(zip: &[u8], at: usize) -> Result<u16, ArchiveError> {
    let bytes = part(zip, at, 2)?;
    Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn u32_at(zip: &[u8], at: usize) -> Result<u32, ArchiveError> {
    let bytes = part(zip, at, 4)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zip file with one entry: its name, mode, method, bytes as packed, and the size that it claims.
    fn zip(name: &str, mode: u32, method: u16, packed: &[u8], content: &[u8], claimed: usize) -> Vec<u8> {
        let mut file = Vec::new();
        let fields = |out: &mut Vec<u8>| {
            out.extend(method.to_le_bytes());
            out.extend([0; 4]);
            out.extend(crc32fast::hash(content).to_le_bytes());
            out.extend((packed.len() as u32).to_le_bytes());
            out.extend((claimed as u32).to_le_bytes());
            out.extend((name.len() as u16).to_le_bytes());
            out.extend([0, 0]);
        };
        file.extend(LOCAL.to_le_bytes());
        file.extend([20, 0, 0, 0]);
        fields(&mut file);
        file.extend(name.as_bytes());
        file.extend(packed);
        let directory = file.len();
        file.extend(CENTRAL.to_le_bytes());
        file.extend([20, 3, 20, 0, 0, 0]);
        fields(&mut file);
        file.extend([0; 6]);
        file.extend((mode << 16).to_le_bytes());
        file.extend(0_u32.to_le_bytes());
        file.extend(name.as_bytes());
        let bytes = file.len() - directory;
        file.extend(END.to_le_bytes());
        file.extend([0, 0, 0, 0, 1, 0, 1, 0]);
        file.extend((bytes as u32).to_le_bytes());
        file.extend((directory as u32).to_le_bytes());
        file.extend([0, 0]);
        file
    }

    fn stored(name: &str, mode: u32) -> Vec<u8> {
        zip(name, mode, 0, b"hello", b"hello", 5)
    }

    #[test]
    fn files_come_out_as_they_went_in() {
        let content = b"hello hello hello hello".repeat(100);
        let packed = miniz_oxide::deflate::compress_to_vec(&content, 6);
        let files = unpack(&zip("a/run", 0o100_755, 8, &packed, &content, content.len())).unwrap();
        assert_eq!(files, [File { path: "a/run".to_owned(), is_executable: true, content }]);
        assert!(!unpack(&stored("b.py", 0o100_644)).unwrap()[0].is_executable);
        assert!(unpack(&stored("folder/", 0o040_755)).unwrap().is_empty());
    }

    #[test]
    fn nothing_is_written_elsewhere() {
        for name in ["../x", "/etc/passwd", "a/../../x", "a//b", "a\\..\\b", "./x", "", "a\nb"] {
            assert_eq!(
                unpack(&stored(name, 0o100_644)),
                Err(ArchiveError::BadName(name.to_owned())),
                "{name}"
            );
        }
        assert!(matches!(unpack(&stored("link", 0o120_777)), Err(ArchiveError::NotAFile(_))));
    }

    #[test]
    fn a_bomb_does_not_go_off() {
        let content = vec![0; 1 << 20];
        let packed = miniz_oxide::deflate::compress_to_vec(&content, 9);
        // It claims less than it holds, and is stopped there.
        assert!(unpack(&zip("a", 0, 8, &packed, &content, 1000)).is_err());
        let claimed = UNPACKED_BYTES_MAX as usize + 1;
        assert_eq!(unpack(&zip("a", 0, 8, &packed, &content, claimed)), Err(ArchiveError::TooLarge));
    }

    #[test]
    fn a_damaged_file_is_refused_at_every_cut_and_every_changed_byte() {
        let whole = stored("a.py", 0o100_644);
        for cut in 0..whole.len() {
            assert!(unpack(&whole[..cut]).is_err(), "{cut}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            // Whatever it says, it ends, and never with another content.
            if let Ok(files) = unpack(&changed) {
                assert!(files.iter().all(|file| file.content == b"hello"), "{at}");
            }
        }
    }
}
