//! What a program sets about core dumps of a GPU. A remote GPU writes none, so dumps cannot be switched on; everything else is
//! kept and read back as from the real driver.

use cuda_abi::{CuResult, CudaError};

/// `CU_COREDUMP_*`.
const ENABLE_ON_EXCEPTION: u32 = 1;
const TRIGGER_HOST: u32 = 2;
const LIGHTWEIGHT: u32 = 3;
const ENABLE_USER_TRIGGER: u32 = 4;
const FILE: u32 = 5;
const PIPE: u32 = 6;
const GENERATION_FLAGS: u32 = 7;

/// Generation flags that the two older attributes stand for.
const LIGHTWEIGHT_FLAGS: u32 = 0b10_1111;
const SKIP_ABORT: u32 = 1 << 4;
const KNOWN_FLAGS: u32 = 0xff | 1 << 30 | 1 << 31;

/// The longest name of a file, with its final zero.
const NAME_ROOM: usize = 1024;

/// The settings of a context, or those that contexts begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coredump {
    file: Vec<u8>,
    pipe: Vec<u8>,
    flags: u32,
}

impl Coredump {
    /// As they are at first in a process. The driver names no file before dumps are on.
    pub fn new(host: &str, process: u32) -> Self {
        Self { file: Vec::new(), pipe: format!("corepipe.cuda.{host}.{process}").into_bytes(), flags: 0 }
    }

    /// Whether contexts have an attribute of their own: a trigger by the user is the process's.
    pub fn is_of_contexts(attribute: u32) -> bool {
        !matches!(attribute, ENABLE_USER_TRIGGER | PIPE)
    }

    /// The part of an attribute's bytes that goes into so much room: a name as far as it goes, others whole and exactly.
    pub fn fitted(attribute: u32, mut bytes: Vec<u8>, room: usize) -> CuResult<Vec<u8>> {
        match attribute {
            FILE | PIPE => bytes.truncate(room),
            _ if bytes.len() != room => return Err(CudaError::INVALID_VALUE),
            _ => {}
        }
        Ok(bytes)
    }

    /// How many bytes an attribute takes.
    pub fn size(attribute: u32) -> CuResult<usize> {
        match attribute {
            ENABLE_ON_EXCEPTION..=ENABLE_USER_TRIGGER => Ok(1),
            FILE | PIPE => Ok(NAME_ROOM),
            GENERATION_FLAGS => Ok(4),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// An attribute's bytes; a name has its final zero.
    pub fn get(&self, attribute: u32) -> CuResult<Vec<u8>> {
        let text = |name: &[u8]| name.iter().copied().chain([0]).collect();
        Ok(match attribute {
            ENABLE_ON_EXCEPTION | ENABLE_USER_TRIGGER => vec![0],
            TRIGGER_HOST => vec![u8::from(self.flags & SKIP_ABORT == 0)],
            LIGHTWEIGHT => vec![u8::from(self.flags & LIGHTWEIGHT_FLAGS == LIGHTWEIGHT_FLAGS)],
            FILE => text(&self.file),
            PIPE => text(&self.pipe),
            GENERATION_FLAGS => self.flags.to_le_bytes().to_vec(),
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    /// Sets an attribute to what these bytes mean. Switching dumps on is not permitted.
    pub fn set(&mut self, attribute: u32, bytes: &[u8]) -> CuResult<()> {
        let is_on = || bytes.first().map(|byte| *byte != 0).ok_or(CudaError::INVALID_VALUE);
        match attribute {
            ENABLE_ON_EXCEPTION | ENABLE_USER_TRIGGER => {
                if is_on()? {
                    return Err(CudaError::NOT_PERMITTED);
                }
            }
            TRIGGER_HOST => self.put_flags(SKIP_ABORT, !is_on()?),
            LIGHTWEIGHT => self.put_flags(LIGHTWEIGHT_FLAGS, is_on()?),
            FILE => self.file = name(bytes)?,
            PIPE => self.pipe = name(bytes)?,
            GENERATION_FLAGS => {
                let flags = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
                self.flags =
                    flags.filter(|flags| flags & !KNOWN_FLAGS == 0).ok_or(CudaError::INVALID_VALUE)?;
            }
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    fn put_flags(&mut self, flags: u32, is_on: bool) {
        if is_on {
            self.flags |= flags;
        } else {
            self.flags &= !flags;
        }
    }
}

/// A name up to its final zero, which must fit.
fn name(bytes: &[u8]) -> CuResult<Vec<u8>> {
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    if length < NAME_ROOM { Ok(bytes[..length].to_vec()) } else { Err(CudaError::INVALID_VALUE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_an_h200_s() {
        let settings = Coredump::new("here", 7);
        assert_eq!(settings.get(FILE), Ok(b"\0".to_vec()));
        assert_eq!(Coredump::fitted(FILE, b"abc\0".to_vec(), 2), Ok(b"ab".to_vec()));
        assert_eq!(Coredump::fitted(TRIGGER_HOST, vec![1], 4), Err(CudaError::INVALID_VALUE));
        assert_eq!(Coredump::fitted(GENERATION_FLAGS, vec![0; 4], 3), Err(CudaError::INVALID_VALUE));
        assert!(!Coredump::is_of_contexts(PIPE) && Coredump::is_of_contexts(FILE));
        assert_eq!(settings.get(PIPE), Ok(b"corepipe.cuda.here.7\0".to_vec()));
        assert_eq!(settings.get(ENABLE_ON_EXCEPTION), Ok(vec![0]));
        assert_eq!(settings.get(TRIGGER_HOST), Ok(vec![1]));
        assert_eq!(settings.get(LIGHTWEIGHT), Ok(vec![0]));
        assert_eq!(settings.get(8), Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn what_is_set_is_read_back_and_dumps_stay_off() {
        let mut settings = Coredump::new("here", 7);
        assert_eq!(settings.set(ENABLE_ON_EXCEPTION, &[1]), Err(CudaError::NOT_PERMITTED));
        assert_eq!(settings.set(ENABLE_ON_EXCEPTION, &[0]), Ok(()));
        assert_eq!(settings.set(FILE, b"/tmp/x\0rest"), Ok(()));
        assert_eq!(settings.get(FILE), Ok(b"/tmp/x\0".to_vec()));
        assert_eq!(settings.set(FILE, &[b'x'; NAME_ROOM]), Err(CudaError::INVALID_VALUE));
        assert_eq!(settings.set(LIGHTWEIGHT, &[1]), Ok(()));
        assert_eq!(settings.get(GENERATION_FLAGS), Ok(LIGHTWEIGHT_FLAGS.to_le_bytes().to_vec()));
        assert_eq!(settings.set(GENERATION_FLAGS, &0x100_u32.to_le_bytes()), Err(CudaError::INVALID_VALUE));
        assert_eq!(settings.set(GENERATION_FLAGS, &[]), Err(CudaError::INVALID_VALUE));
    }
}
