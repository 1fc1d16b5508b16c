//! Sealed records of a file.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::io::{self, Read, Write};
use zeroize::Zeroizing;

/// What keys are derived with.
const KEY_CONTEXT: &str = "dxpu guardian 2026-11-16 key of a parked image";

/// Bytes of a file's salt.
const SALT_BYTES: usize = 32;

/// The most bytes of a record: a block, its address and digest, and the tag.
const RECORD_BYTES_MAX: usize = snapshot::BLOCK_BYTES + 64;

/// A file that is not what was written.
pub(super) fn bad() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file was changed or cut off since it was written")
}

fn key(secret: &[u8; 32], salt: &[u8; SALT_BYTES]) -> io::Result<LessSafeKey> {
    let mut hasher = blake3::Hasher::new_derive_key(KEY_CONTEXT);
    hasher.update(secret).update(salt);
    let key = Zeroizing::new(*hasher.finalize().as_bytes());
    UnboundKey::new(&AES_256_GCM, &key[..]).map(LessSafeKey::new).map_err(|_| bad())
}

/// A nonce is used once: the key belongs to this file alone, because its salt is random, and records are counted.
fn nonce(place: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&place.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Writes records.
pub(super) struct Sealer<W> {
    file: W,
    key: LessSafeKey,
    place: u64,
    buffer: Zeroizing<Vec<u8>>,
}

impl<W: Write> Sealer<W> {
    pub(super) fn new(mut file: W, secret: &[u8; 32]) -> io::Result<Self> {
        let mut salt = [0; SALT_BYTES];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut salt)?;
        file.write_all(&salt)?;
        let buffer = Zeroizing::new(Vec::with_capacity(RECORD_BYTES_MAX));
        Ok(Self { file, key: key(secret, &salt)?, place: 0, buffer })
    }

    /// Writes a record of these parts.
    pub(super) fn write(&mut self, parts: &[&[u8]], is_last: bool) -> io::Result<()> {
        self.buffer.clear();
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        let aad = Aad::from([u8::from(is_last)]);
        let sealed = self.key.seal_in_place_append_tag(nonce(self.place), aad, &mut *self.buffer);
        sealed.map_err(|_| bad())?;
        self.place += 1;
        self.file.write_all(&(self.buffer.len() as u32).to_le_bytes())?;
        self.file.write_all(&self.buffer)
    }

    pub(super) fn finish(self) -> io::Result<W> {
        Ok(self.file)
    }
}

/// Reads records.
pub(super) struct Opener<R> {
    file: R,
    key: LessSafeKey,
    place: u64,
    buffer: Zeroizing<Vec<u8>>,
}

impl<R: Read> Opener<R> {
    pub(super) fn new(mut file: R, secret: &[u8; 32]) -> io::Result<Self> {
        let mut salt = [0; SALT_BYTES];
        file.read_exact(&mut salt).map_err(cut_off)?;
        let buffer = Zeroizing::new(Vec::with_capacity(RECORD_BYTES_MAX));
        Ok(Self { file, key: key(secret, &salt)?, place: 0, buffer })
    }

    /// The next record, which is not the last.
    pub(super) fn next(&mut self) -> io::Result<&[u8]> {
        self.read(false)
    }

    /// The last record, after which nothing may come.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.read(true)?;
        match self.file.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(bad()),
        }
    }

    fn read(&mut self, is_last: bool) -> io::Result<&[u8]> {
        let mut length = [0; 4];
        self.file.read_exact(&mut length).map_err(cut_off)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > RECORD_BYTES_MAX {
            return Err(bad());
        }
        self.buffer.resize(length, 0);
        self.file.read_exact(&mut self.buffer).map_err(cut_off)?;
        let aad = Aad::from([u8::from(is_last)]);
        let opened = self.key.open_in_place(nonce(self.place), aad, &mut self.buffer);
        self.place += 1;
        opened.map(|plain| &*plain).map_err(|_| bad())
    }
}

fn cut_off(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { bad() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(records: &[&[u8]]) -> Vec<u8> {
        let mut sealer = Sealer::new(Vec::new(), &[7; 32]).unwrap();
        records.iter().for_each(|record| sealer.write(&[record], false).unwrap());
        sealer.write(&[], true).unwrap();
        sealer.finish().unwrap()
    }

    fn read(file: &[u8], secret: u8, records: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut opener = Opener::new(file, &[secret; 32])?;
        let read = (0..records).map(|_| opener.next().map(<[u8]>::to_vec)).collect::<io::Result<_>>()?;
        opener.finish()?;
        Ok(read)
    }

    #[test]
    fn what_is_written_comes_back_and_nothing_else_does() {
        let file = written(&[b"first of all", b"second"]);
        assert_eq!(read(&file, 7, 2).unwrap(), [b"first of all".to_vec(), b"second".to_vec()]);
        assert!(!file.windows(5).any(|window| window == b"first"), "it is not in the clear");
        assert!(read(&file, 8, 2).is_err(), "another secret");
        assert!(read(&file, 7, 1).is_err(), "a record that is not the last is not taken for it");
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(read(&changed, 7, 2).is_err(), "byte {at} was changed");
            assert!(read(&file[..at], 7, 2).is_err(), "cut off at byte {at}");
        }
        assert!(read(&[&file[..], &[0]].concat(), 7, 2).is_err(), "something was added");
        let other = written(&[b"first of all", b"second"]);
        assert_ne!(file, other, "each file has a key of its own");
        assert!(read(&[&file[..32], &other[32..]].concat(), 7, 2).is_err());
    }
}
