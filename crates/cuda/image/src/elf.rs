//! How long an ELF file is: to the end of whatever its headers point to.
//!
//! ```text
//! offset  0  7f 45 4c 46, class (2 = 64 bit), data (1 = little-endian)
//!        32  u64 program headers at     54  u16 bytes of one   56  u16 how many
//!        40  u64 section headers at     58  u16 bytes of one   60  u16 how many
//! ```

use crate::{
    ImageError,
    bytes::{u16_at, u32_at, u64_at},
};

pub(crate) const MAGIC: [u8; 4] = *b"\x7fELF";
const HEADER_BYTES: usize = 64;
const CLASS_64_LITTLE: [u8; 2] = [2, 1];
const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;
/// `SHT_NOBITS`: a section that occupies no bytes of the file.
const SECTION_WITHOUT_BYTES: u32 = 8;

/// The length of the ELF file that `read` shows pieces of.
pub(crate) fn length<'a>(read: &impl Fn(u64, usize) -> Option<&'a [u8]>) -> Result<u64, ImageError> {
    const WHAT: &str = "ELF header";
    let header = read(0, HEADER_BYTES).ok_or(ImageError::Truncated { what: WHAT })?;
    if header.get(..4) != Some(&MAGIC) || header.get(4..6) != Some(&CLASS_64_LITTLE) {
        return Err(ImageError::Malformed { what: WHAT });
    }
    let mut end = HEADER_BYTES as u64;

    let programs = Table::read(header, 32, 54, PROGRAM_HEADER_BYTES, "ELF program headers")?;
    end = end.max(programs.end()?);
    for index in 0..programs.count {
        let entry = programs.entry(read, index)?;
        let (at, bytes) = (u64_at(entry, 8, programs.what)?, u64_at(entry, 32, programs.what)?);
        end = end.max(at.checked_add(bytes).ok_or(ImageError::Malformed { what: programs.what })?);
    }

    let sections = Table::read(header, 40, 58, SECTION_HEADER_BYTES, "ELF section headers")?;
    end = end.max(sections.end()?);
    for index in 0..sections.count {
        let entry = sections.entry(read, index)?;
        if u32_at(entry, 4, sections.what)? == SECTION_WITHOUT_BYTES {
            continue;
        }
        let (at, bytes) = (u64_at(entry, 24, sections.what)?, u64_at(entry, 32, sections.what)?);
        end = end.max(at.checked_add(bytes).ok_or(ImageError::Malformed { what: sections.what })?);
    }
    Ok(end)
}

/// One of the two header tables.
struct Table {
    at: u64,
    entry_bytes: u64,
    count: u64,
    what: &'static str,
}

impl Table {
    fn read(
        header: &[u8],
        at: usize,
        sizes: usize,
        entry_bytes: usize,
        what: &'static str,
    ) -> Result<Self, ImageError> {
        let table = Self {
            at: u64_at(header, at, what)?,
            entry_bytes: u16_at(header, sizes, what)?.into(),
            count: u16_at(header, sizes + 2, what)?.into(),
            what,
        };
        if table.count > 0 && table.entry_bytes < entry_bytes as u64 {
            return Err(ImageError::Malformed { what });
        }
        Ok(table)
    }

    fn end(&self) -> Result<u64, ImageError> {
        if self.count == 0 {
            return Ok(0);
        }
        // Both factors have 16 bits.
        self.at.checked_add(self.entry_bytes * self.count).ok_or(ImageError::Malformed { what: self.what })
    }

    fn entry<'a>(
        &self,
        read: &impl Fn(u64, usize) -> Option<&'a [u8]>,
        index: u64,
    ) -> Result<&'a [u8], ImageError> {
        let at =
            self.at.checked_add(self.entry_bytes * index).ok_or(ImageError::Malformed { what: self.what })?;
        read(at, self.entry_bytes as usize).ok_or(ImageError::Truncated { what: self.what })
    }
}
