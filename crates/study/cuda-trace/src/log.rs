//! The file that entries go to. One lock: calls of one thread are far enough apart that it is almost always free.

use crate::clock;
use crate::state;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use trace_log::entry::{Entry, Kind, MAGIC, text_bytes};

struct Log {
    file: File,
    /// Not written yet.
    buffer: Vec<u8>,
    entries: u64,
}

static LOG: Mutex<Option<Log>> = Mutex::new(None);

/// A write costs microseconds; one in some ten thousand entries has it.
const BUFFER_BYTES: usize = 1 << 20;

impl Log {
    fn put(&mut self, entry: &Entry, text: &str) {
        self.buffer.extend_from_slice(&entry.to_bytes());
        self.buffer.extend_from_slice(&text_bytes(text));
        self.entries += 1;
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        // A log that could not be written has no end, and is refused for that.
        if self.file.write_all(&self.buffer).is_ok() {
            self.buffer.clear();
        }
    }
}

fn with<R>(body: impl FnOnce(&mut Log) -> R) -> Option<R> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(body)
}

/// Makes the file.
pub(crate) fn begin() -> io::Result<()> {
    let Some(config) = state::config() else { return Ok(()) };
    let path = config.folder.join(format!("{}.log", std::process::id()));
    let file = File::create_new(path)?;
    let mut log = Log { file, buffer: Vec::with_capacity(BUFFER_BYTES + 4096), entries: 0 };
    log.buffer.extend_from_slice(&MAGIC);
    log.put(&Entry { at: config.began.ticks, ..Entry::new(Kind::Begin) }, "");
    *LOG.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
    Ok(())
}

/// Appends entries.
pub(crate) fn append(before: Option<Entry>, entry: Entry) {
    with(|log| {
        if let Some(before) = before {
            log.put(&before, "");
        }
        log.put(&entry, "");
    });
}

/// Appends an entry with a text.
pub(crate) fn append_text(mut entry: Entry, text: &str) {
    entry.bytes = text.len() as u64;
    with(|log| log.put(&entry, text));
}

/// Appends the end and closes the file.
pub(crate) fn end() {
    let Some(config) = state::config() else { return };
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mut log) = log.take() {
        let end = Entry {
            at: clock::ticks(),
            object: log.entries,
            extra: config.began.ticks_per_ms(),
            ..Entry::new(Kind::End)
        };
        log.put(&end, "");
        log.flush();
    }
}

/// In a forked child: the file is the parent's. Another thread of the parent may have held the lock, so it is only tried.
pub(crate) fn abandon() {
    if let Ok(mut log) = LOG.try_lock()
        && let Some(mut log) = log.take()
    {
        log.buffer.clear();
    }
}
