//! The container nvcc writes: images for several architectures, one after the other.
//!
//! ```text
//! header    0  u32 magic 0xBA55ED50   4  u16 version   6  u16 header bytes (16)   8  u64 bytes of all entries
//! entry     0  u16 kind (1 PTX, 2 ELF)     2  u16 version        4  u32 header bytes (64 and more)
//!           8  u32 payload bytes, padded  16  u32 compressed bytes, 0 when it is not
//!          20  u32 offset of options      24  u16 minor, u16 major of the format
//!          28  u32 architecture (90)      32  u32 name at, u32 name bytes
//!          40  u64 flags                  56  u64 bytes when unpacked
//! ```
//! The next entry starts after header and payload.

use crate::{
    ImageError,
    bytes::{u16_at, u32_at, u64_at},
    length::{FATBIN_HEADER_BYTES, FATBIN_MAGIC},
    unpack::unpack,
};
use std::borrow::Cow;

const ENTRY_HEADER_BYTES: usize = 64;
const FLAG_COMPRESSED_OLD: u64 = 0x1000;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_ARCHITECTURE_SPECIFIC: u64 = 0x10_0000;
const FLAG_FAMILY_SPECIFIC: u64 = 0x20_0000;

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// PTX text.
    Ptx,
    /// A cubin.
    Elf,
    /// Something a module load does not use, such as code for the link-time optimiser.
    Other(u16),
}

/// How an entry is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4 blocks.
    Lz4,
    /// A Zstandard frame.
    Zstd,
}

/// On which devices the code of an entry runs, beside those of exactly its architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Later ones as well: of the same major version for a cubin, all for PTX.
    Open,
    /// Later ones of the same family (`sm_100f`).
    Family,
    /// No other (`sm_90a`).
    Exact,
}

/// One image in a fatbin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it is.
    pub kind: EntryKind,
    /// Its architecture, such as 90.
    pub architecture: u32,
    /// On which other devices it runs.
    pub reach: Reach,
    /// All flags.
    pub flags: u64,
    /// Bytes after unpacking; 0 in entries that are not compressed.
    pub unpacked_bytes: u64,
    /// Header and payload as they are.
    pub raw: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        const WHAT: &str = "fatbin entry";
        let truncated = ImageError::Truncated { what: WHAT };
        let header_bytes = u32_at(bytes, 4, WHAT)? as usize;
        if header_bytes < ENTRY_HEADER_BYTES {
            return Err(ImageError::Malformed { what: WHAT });
        }
        let padded_bytes = u32_at(bytes, 8, WHAT)? as usize;
        let compressed_bytes = u32_at(bytes, 16, WHAT)? as usize;
        let payload_bytes = padded_bytes.max(compressed_bytes);
        let end = header_bytes.checked_add(payload_bytes).ok_or(truncated.clone())?;
        let raw = bytes.get(..end).ok_or(truncated)?;
        let flags = u64_at(bytes, 40, WHAT)?;
        let used_bytes = if compressed_bytes > 0 { compressed_bytes } else { payload_bytes };
        Ok(Self {
            kind: match u16_at(bytes, 0, WHAT)? {
                1 => EntryKind::Ptx,
                2 => EntryKind::Elf,
                other => EntryKind::Other(other),
            },
            architecture: u32_at(bytes, 28, WHAT)?,
            reach: match flags {
                _ if flags & FLAG_ARCHITECTURE_SPECIFIC != 0 => Reach::Exact,
                _ if flags & FLAG_FAMILY_SPECIFIC != 0 => Reach::Family,
                _ => Reach::Open,
            },
            flags,
            unpacked_bytes: u64_at(bytes, 56, WHAT)?,
            raw,
            payload: &raw[header_bytes..header_bytes + used_bytes],
        })
    }

    /// How its payload is compressed.
    pub fn compression(&self) -> Result<Compression, ImageError> {
        match self.flags & (FLAG_COMPRESSED_OLD | FLAG_LZ4 | FLAG_ZSTD) {
            0 => Ok(Compression::None),
            FLAG_LZ4 => Ok(Compression::Lz4),
            FLAG_ZSTD => Ok(Compression::Zstd),
            _ => Err(ImageError::UnknownCompression { flags: self.flags }),
        }
    }

    /// The image, unpacked. PTX comes without the padding behind it.
    pub fn contents(&self) -> Result<Cow<'a, [u8]>, ImageError> {
        let contents = match self.compression()? {
            Compression::None => Cow::Borrowed(self.payload),
            packed => Cow::Owned(unpack(self.payload, packed, self.unpacked_bytes)?),
        };
        Ok(match self.kind {
            EntryKind::Ptx => without_padding(contents),
            _ => contents,
        })
    }
}

fn without_padding(text: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let bytes = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..bytes]),
        Cow::Owned(mut text) => {
            text.truncate(bytes);
            Cow::Owned(text)
        }
    }
}

/// The entries of a fatbin, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatbin<'a> {
    /// The entries.
    pub entries: Vec<Entry<'a>>,
}

impl<'a> Fatbin<'a> {
    /// Reads the container. What follows its end is ignored.
    pub fn parse(image: &'a [u8]) -> Result<Self, ImageError> {
        const WHAT: &str = "fatbin header";
        if u32_at(image, 0, WHAT)? != FATBIN_MAGIC {
            return Err(ImageError::UnknownKind);
        }
        let start = usize::from(u16_at(image, 6, WHAT)?);
        let bytes =
            usize::try_from(u64_at(image, 8, WHAT)?).map_err(|_| ImageError::Malformed { what: WHAT })?;
        if start < FATBIN_HEADER_BYTES {
            return Err(ImageError::Malformed { what: WHAT });
        }
        let end = start.checked_add(bytes).ok_or(ImageError::Malformed { what: WHAT })?;
        let mut rest = image.get(start..end).ok_or(ImageError::Truncated { what: "fatbin" })?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let entry = Entry::parse(rest)?;
            // An entry is at least its header, so this comes to an end.
            rest = &rest[entry.raw.len()..];
            entries.push(entry);
        }
        Ok(Self { entries })
    }

    /// A fatbin that holds exactly these entries, byte for byte.
    pub fn build<'e>(entries: impl IntoIterator<Item = &'e Entry<'e>>) -> Vec<u8> {
        let mut image = Vec::new();
        image.extend_from_slice(&FATBIN_MAGIC.to_le_bytes());
        image.extend_from_slice(&1u16.to_le_bytes());
        image.extend_from_slice(&(FATBIN_HEADER_BYTES as u16).to_le_bytes());
        image.extend_from_slice(&0u64.to_le_bytes());
        for entry in entries {
            image.extend_from_slice(entry.raw);
        }
        let bytes = (image.len() - FATBIN_HEADER_BYTES) as u64;
        image[8..16].copy_from_slice(&bytes.to_le_bytes());
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: &[u8] = include_bytes!("../samples/ptx-none.fatbin");
    const SIZE: &[u8] = include_bytes!("../samples/ptx-size.fatbin");
    const SPEED: &[u8] = include_bytes!("../samples/ptx-speed.fatbin");
    const BALANCE: &[u8] = include_bytes!("../samples/ptx-balance.fatbin");
    const PAIR: &[u8] = include_bytes!("../samples/pair-size.fatbin");
    const MANY: &[u8] = include_bytes!("../samples/many.fatbin");
    const CUBIN: &[u8] = include_bytes!("../samples/sample.cubin");

    fn only(image: &[u8]) -> Entry<'_> {
        let entries = Fatbin::parse(image).unwrap().entries;
        assert_eq!(entries.len(), 1);
        entries[0]
    }

    #[test]
    fn every_compression_of_nvcc_gives_the_same_text() {
        let text = only(NONE).contents().unwrap();
        assert!(text.starts_with(b"\n") || text.starts_with(b".") || text.starts_with(b"/"));
        assert!(text.windows(5).any(|window| window == b"scale"));
        for (image, compression) in
            [(SIZE, Compression::Zstd), (SPEED, Compression::Lz4), (BALANCE, Compression::Zstd)]
        {
            assert_eq!(only(image).compression(), Ok(compression));
            assert_eq!(only(image).contents().unwrap(), text);
        }
    }

    #[test]
    fn a_compressed_cubin_unpacks_to_a_whole_elf_file() {
        let fatbin = Fatbin::parse(PAIR).unwrap();
        let elf = fatbin.entries.iter().find(|entry| entry.kind == EntryKind::Elf).unwrap();
        assert_eq!(elf.contents().unwrap().len(), CUBIN.len());
        assert_eq!(elf.contents().unwrap()[..4], CUBIN[..4]);
    }

    #[test]
    fn architectures_and_reaches_are_read() {
        let fatbin = Fatbin::parse(MANY).unwrap();
        let found: Vec<_> = fatbin.entries.iter().map(|e| (e.kind, e.architecture, e.reach)).collect();
        assert!(found.contains(&(EntryKind::Elf, 90, Reach::Exact)));
        assert!(found.contains(&(EntryKind::Elf, 90, Reach::Open)));
        assert!(found.contains(&(EntryKind::Ptx, 80, Reach::Open)));
        assert_eq!(found.len(), 8);
    }

    #[test]
    fn building_from_all_entries_gives_the_same_bytes() {
        assert_eq!(Fatbin::build(&Fatbin::parse(MANY).unwrap().entries), MANY);
    }

    #[test]
    fn a_claim_of_a_huge_size_takes_no_memory() {
        for (image, bytes) in [(SPEED, 1u64 << 29), (SIZE, 1 << 29), (SIZE, u64::MAX)] {
            let mut image = image.to_vec();
            image[16 + 56..16 + 64].copy_from_slice(&bytes.to_le_bytes());
            assert!(only(&image).contents().is_err());
        }
    }

    proptest! {
        #[test]
        fn a_flipped_byte_never_panics(at in 0..SIZE.len(), to: u8, which in 0..3usize) {
            let mut image = [SIZE, SPEED, NONE][which].to_vec();
            image[at] = to;
            if let Ok(fatbin) = Fatbin::parse(&image) {
                for entry in fatbin.entries {
                    let _ = entry.contents();
                }
            }
        }

        #[test]
        fn a_cut_never_panics(at in 0..PAIR.len()) {
            prop_assert!(Fatbin::parse(&PAIR[..at]).is_err());
        }
    }
}
