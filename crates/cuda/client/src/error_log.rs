//! The log of errors that a program reads with cuLogs*: lines in order, numbered, the oldest lost when there is no more room.

use std::collections::VecDeque;

/// The driver keeps so many bytes of messages.
const ROOM: usize = 25_600;

/// Said first where lines are missing.
const LOST: &str = "[older messages were lost]\n";

/// The log.
#[derive(Debug, Default)]
pub struct ErrorLog {
    lines: VecDeque<String>,
    bytes: usize,
    /// The number of the first line that is kept.
    first: u32,
}

/// What a program is given of a log.
#[derive(Debug, PartialEq, Eq)]
pub struct Dump {
    /// Whole lines, each with its end.
    pub text: String,
    /// Where the next dump begins.
    pub next: u32,
}

impl ErrorLog {
    /// Adds a line.
    pub fn push(&mut self, line: String) {
        self.bytes += line.len() + 1;
        self.lines.push_back(line);
        while self.bytes > ROOM {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.len() + 1;
            self.first = self.first.wrapping_add(1);
        }
    }

    /// The number that the next line will have.
    pub fn next(&self) -> u32 {
        self.first.wrapping_add(self.lines.len() as u32)
    }

    /// The lines from number `from`, or all. With less than `room` for them the newest that fit; none if not even one fits.
    pub fn dump(&self, from: Option<u32>, room: usize) -> Option<Dump> {
        let skipped = from.map_or(0, |from| from.wrapping_sub(self.first));
        // A number from before the first line lies far behind the last one when it is counted from the first.
        let (skipped, mut is_cut) = match skipped as usize {
            count if count <= self.lines.len() => (count, false),
            _ => (0, true),
        };
        is_cut |= from.is_none() && self.first != 0;
        let wanted: Vec<&String> = self.lines.iter().skip(skipped).collect();
        let whole: usize = wanted.iter().map(|line| line.len() + 1).sum();
        let notice = if is_cut { LOST.len() } else { 0 };
        let mut left = room;
        let mut start = 0;
        if whole + notice > room {
            is_cut = true;
            left = room.saturating_sub(LOST.len());
            start = wanted.len();
            while let Some(line) = start.checked_sub(1).map(|index| wanted[index])
                && line.len() < left
            {
                left -= line.len() + 1;
                start -= 1;
            }
            if start == wanted.len() {
                return None;
            }
        }
        let mut text = if is_cut { LOST.to_owned() } else { String::new() };
        for line in &wanted[start..] {
            text.push_str(line);
            text.push('\n');
        }
        debug_assert!(text.len() <= room && left <= room, "a dump fits its room");
        Some(Dump { text, next: self.next() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[&str]) -> ErrorLog {
        let mut log = ErrorLog::default();
        lines.iter().for_each(|line| log.push((*line).to_owned()));
        log
    }

    #[test]
    fn a_dump_goes_on_where_the_last_one_ended() {
        let mut log = log(&["one", "two"]);
        assert_eq!(log.dump(None, 100), Some(Dump { text: "one\ntwo\n".to_owned(), next: 2 }));
        log.push("three".to_owned());
        assert_eq!(log.dump(Some(2), 100), Some(Dump { text: "three\n".to_owned(), next: 3 }));
        assert_eq!(log.dump(Some(3), 0), Some(Dump { text: String::new(), next: 3 }));
    }

    #[test]
    fn the_newest_lines_are_given_where_not_all_fit() {
        let log = log(&["one", "two", "three"]);
        let room = LOST.len() + "three\n".len();
        assert_eq!(log.dump(None, 14).map(|dump| dump.text), Some("one\ntwo\nthree\n".to_owned()));
        assert_eq!(log.dump(None, 13), None, "no room for the notice and a line");
        let many = self::log(&["a line that is long enough to need room", "two", "three"]);
        assert_eq!(many.dump(None, room).map(|dump| dump.text), Some(format!("{LOST}three\n")));
        assert_eq!(many.dump(None, room - 1), None);
    }

    #[test]
    fn old_lines_are_lost_and_that_is_said() {
        let mut log = ErrorLog::default();
        let line = "x".repeat(99);
        for _ in 0..ROOM / 100 + 1 {
            log.push(line.clone());
        }
        assert_eq!(log.first, 1);
        let dump = log.dump(Some(0), usize::MAX).expect("there is room");
        assert!(dump.text.starts_with(LOST));
        assert_eq!(dump.next, 257);
        assert_eq!(dump.text.len(), LOST.len() + ROOM);
        assert!(!log.dump(Some(1), usize::MAX).expect("there is room").text.starts_with(LOST));
    }
}
