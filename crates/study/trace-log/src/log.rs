//! Reading a log: whole, or not at all.

use crate::entry::{ENTRY_BYTES, Entry, Kind, MAGIC};
use thiserror::Error;

/// Why a log cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// It is something else.
    #[error("byte {at}: {reason}")]
    Wrong {
        /// Where.
        at: usize,
        /// What is wrong.
        reason: String,
    },
    /// The process that wrote it did not come to its end.
    #[error("byte {at}: the process ended before its log did (it was killed, or left by _exit)")]
    Unfinished {
        /// Where it stops.
        at: usize,
    },
}

/// An entry with the text that follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The entry.
    pub entry: Entry,
    /// What it is.
    pub kind: Kind,
    /// The text, empty for most.
    pub text: String,
}

/// A whole log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// Everything between the beginning and the end.
    pub lines: Vec<Line>,
    /// The clock at the beginning.
    pub begin: u64,
    /// The clock at the end.
    pub end: u64,
    /// How many of its ticks make a microsecond.
    pub ticks_per_us: f64,
}

/// Names longer than this are no names.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Reads a log.
pub fn read(bytes: &[u8]) -> Result<Log, LogError> {
    let wrong = |at: usize, reason: &str| LogError::Wrong { at, reason: reason.to_owned() };
    if bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes) {
        return Err(LogError::Unfinished { at: bytes.len() });
    }
    let Some(mut rest) = bytes.strip_prefix(&MAGIC) else {
        return Err(wrong(0, "this is no log of this version of dxpu"));
    };
    let mut log = Log::default();
    let mut count = 0u64;
    loop {
        let at = bytes.len() - rest.len();
        let Some((first, after)) = rest.split_first_chunk::<ENTRY_BYTES>() else {
            return Err(LogError::Unfinished { at });
        };
        rest = after;
        let entry = Entry::from_bytes(first);
        let kind = Kind::from_number(entry.kind).ok_or_else(|| wrong(at, "there is no such entry"))?;
        if (kind == Kind::Begin) != (count == 0) {
            return Err(wrong(at, "a log begins once"));
        }
        let mut text = String::new();
        if kind.has_text() {
            if entry.bytes > TEXT_BYTES_MAX {
                return Err(wrong(at, "a name is too long"));
            }
            let length = entry.bytes as usize;
            let Some((filled, after)) = rest.split_at_checked(length.next_multiple_of(ENTRY_BYTES)) else {
                return Err(LogError::Unfinished { at });
            };
            text = String::from_utf8_lossy(&filled[..length]).into_owned();
            rest = after;
        }
        match kind {
            Kind::Begin => log.begin = entry.at,
            Kind::End => {
                if entry.object != count {
                    return Err(wrong(at, "entries are missing"));
                }
                if !rest.is_empty() {
                    return Err(wrong(at, "there is something after the end"));
                }
                log.end = entry.at;
                log.ticks_per_us = (entry.extra.max(1) as f64) / 1e3;
                return Ok(log);
            }
            _ => log.lines.push(Line { entry, kind, text }),
        }
        count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::text_bytes;

    fn small() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut put = |entry: Entry| bytes.extend(entry.to_bytes());
        put(Entry { at: 100, ..Entry::new(Kind::Begin) });
        put(Entry { bytes: 4, ..Entry::new(Kind::Name) });
        bytes.extend(text_bytes("gemm"));
        let mut put = |entry: Entry| bytes.extend(entry.to_bytes());
        put(Entry { at: 150, count: 1, ..Entry::new(Kind::Launch) });
        put(Entry { at: 200, object: 3, extra: 2_000_000, ..Entry::new(Kind::End) });
        bytes
    }

    #[test]
    fn a_whole_log_is_read() {
        let log = read(&small()).unwrap();
        assert_eq!((log.begin, log.end, log.ticks_per_us), (100, 200, 2000.0));
        assert_eq!(log.lines[0].text, "gemm");
        assert_eq!(log.lines[1].kind, Kind::Launch);
    }

    #[test]
    fn a_part_is_never_taken_for_the_whole() {
        let whole = small();
        for length in 0..whole.len() {
            read(&whole[..length]).expect_err("a part is not the whole");
        }
        let mut more = whole;
        more.push(0);
        read(&more).expect_err("nothing follows the end");
    }
}
