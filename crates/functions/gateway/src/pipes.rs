//! What an instance prints, line by line, and whether all of it has been read.
//!
//! A line belongs to the invocation that ran when it was printed. So an answer is taken only after the lines before it: else
//! they would be counted for the next invocation, or be missing where the client asked for them.

use crate::logs::LINE_BYTES_MAX;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

const CHUNK: usize = 16 << 10;

/// The pipes of one instance.
pub(crate) struct Pipes {
    pipes: Vec<OwnedFd>,
    /// Held from the reading of bytes until their lines are taken.
    hand: Mutex<()>,
}

impl Pipes {
    pub(crate) fn new(pipes: Vec<OwnedFd>) -> Self {
        Self { pipes, hand: Mutex::new(()) }
    }

    pub(crate) fn count(&self) -> usize {
        self.pipes.len()
    }

    /// Whether everything that was printed so far has been taken.
    pub(crate) fn are_drained(&self) -> bool {
        let _hand = locks::lock(&self.hand);
        self.pipes.iter().all(|pipe| rustix::io::ioctl_fionread(pipe).is_ok_and(|bytes| bytes == 0))
    }

    /// Reads one pipe to its end.
    pub(crate) fn read(&self, which: usize, mut take: impl FnMut(String)) {
        let Some(pipe) = self.pipes.get(which) else { return };
        let (mut buffer, mut line) = (vec![0; CHUNK], Vec::new());
        loop {
            let mut waits = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
            match poll(&mut waits, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            }
            let _hand = locks::lock(&self.hand);
            match rustix::io::read(pipe, &mut buffer) {
                Ok(count @ 1..) => split(&buffer[..count], &mut line, &mut take),
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => {
                    if !line.is_empty() {
                        take(text(&line));
                    }
                    return;
                }
            }
        }
    }
}

/// Takes whole lines; what is too long for one becomes several.
fn split(bytes: &[u8], line: &mut Vec<u8>, take: &mut impl FnMut(String)) {
    for byte in bytes {
        if *byte != b'\n' {
            line.push(*byte);
        }
        if *byte == b'\n' || line.len() >= LINE_BYTES_MAX {
            take(text(line));
            line.clear();
        }
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim_end_matches('\r').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;

    #[test]
    fn all_that_was_printed_is_taken_before_the_pipe_counts_as_drained() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let pipes = Arc::new(Pipes::new(vec![reader.into()]));
        writeln!(writer, "one\r\ntwo").unwrap();
        assert!(!pipes.are_drained());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (own, taken) = (pipes.clone(), lines.clone());
        let thread = std::thread::spawn(move || own.read(0, |line| taken.lock().unwrap().push(line)));
        for number in 0..500 {
            writeln!(writer, "{number}").unwrap();
            while !pipes.are_drained() {
                std::thread::yield_now();
            }
            assert_eq!(lines.lock().unwrap().last(), Some(&number.to_string()));
        }
        write!(writer, "{}", "x".repeat(LINE_BYTES_MAX + 1)).unwrap();
        drop(writer);
        thread.join().unwrap();
        let lines = lines.lock().unwrap();
        assert_eq!(lines[..2], ["one", "two"]);
        assert_eq!(lines[502..].iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES_MAX, 1]);
    }
}
