//! The file that a timeline is written to, by one process or several at once.
//!
//! Each writer holds a shared lock on the file and appends whole lines. A writer that finds itself alone, when it comes or when it
//! goes, sees to the begin and the end of the file. A writer that is killed leaves a file without an end, and perhaps half a line,
//! which the next one that comes cuts off.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};
use timeline::{CLOSE, HEAD};

/// The longest line is a kernel's; its name is as long as compilers make them.
const TAIL_BYTES: u64 = 64 << 10;
/// Between two attempts another writer can come or go; hardly this often.
const ATTEMPTS: usize = 8;

pub(crate) struct TraceFile {
    file: File,
}

impl TraceFile {
    /// Opens the file, or makes it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut opened = Self { file };
        for _ in 0..ATTEMPTS {
            // Without locks (some network file systems) every writer takes itself for the only one.
            if !matches!(opened.file.try_lock(), Err(std::fs::TryLockError::WouldBlock)) {
                opened.prepare()?;
            }
            let _ = opened.file.lock_shared();
            // The last of the others may have ended the file meanwhile.
            if !opened.tail()?.ends_with(CLOSE.as_bytes()) {
                break;
            }
        }
        Ok(opened)
    }

    /// Makes the file one that lines can be appended to.
    fn prepare(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length == 0 {
            return self.file.write_all(HEAD.as_bytes());
        }
        let tail = self.tail()?;
        let kept = if tail.ends_with(CLOSE.as_bytes()) {
            tail.len() - CLOSE.len()
        } else if tail.ends_with(b"}") {
            return Ok(());
        } else {
            match tail.windows(2).rposition(|pair| pair == b",\n") {
                Some(at) => at,
                None => return Err(io::Error::other("it is not empty, and no timeline")),
            }
        };
        self.file.set_len(length - (tail.len() - kept) as u64)
    }

    fn tail(&mut self) -> io::Result<Vec<u8>> {
        let length = self.file.metadata()?.len();
        self.file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        (&self.file).take(TAIL_BYTES).read_to_end(&mut tail)?;
        Ok(tail)
    }

    /// Appends whole lines.
    pub(crate) fn append(&mut self, lines: &str) -> io::Result<()> {
        self.file.write_all(lines.as_bytes())
    }

    /// Ends the file, unless others go on with it.
    pub(crate) fn close(mut self) -> io::Result<()> {
        if self.file.try_lock().is_ok() {
            self.file.write_all(CLOSE.as_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn line(name: &str) -> String {
        format!(",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"{name}\"}}")
    }

    fn names(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let events: Vec<Value> =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        events.iter().skip(1).map(|event| event["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn several_writers_make_one_file_which_the_last_one_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.json");
        let mut first = TraceFile::open(&path).unwrap();
        first.append(&line("a")).unwrap();
        let mut second = TraceFile::open(&path).unwrap();
        second.append(&line("b")).unwrap();
        first.append(&line("c")).unwrap();
        first.close().unwrap();
        assert!(serde_json::from_str::<Value>(&std::fs::read_to_string(&path).unwrap()).is_err());
        second.append(&line("d")).unwrap();
        second.close().unwrap();
        assert_eq!(names(&path), ["a", "b", "c", "d"]);
        // Another process of the same program, later.
        let mut third = TraceFile::open(&path).unwrap();
        third.append(&line("e")).unwrap();
        third.close().unwrap();
        assert_eq!(names(&path), ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn half_a_line_of_a_killed_writer_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.json");
        let mut killed = TraceFile::open(&path).unwrap();
        killed.append(&line("whole")).unwrap();
        killed.append(&line("torn")[..20]).unwrap();
        drop(killed);
        let mut next = TraceFile::open(&path).unwrap();
        next.append(&line("next")).unwrap();
        next.close().unwrap();
        assert_eq!(names(&path), ["whole", "next"]);
    }

    #[test]
    fn a_file_that_is_no_timeline_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "my notes").unwrap();
        assert!(TraceFile::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my notes");
    }
}
