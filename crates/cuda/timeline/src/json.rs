//! One trace event as a line of JSON.

use std::fmt::Write as _;

/// An event under construction. The line begins with a comma: it follows others ([`crate::HEAD`]).
pub(crate) struct Line<'a> {
    out: &'a mut String,
    has_args: bool,
}

impl<'a> Line<'a> {
    /// `phase` as the format has it: `X` a slice, `i` an instant, `M` a name for a process or thread.
    pub(crate) fn begin(out: &'a mut String, phase: char, name: &str, (pid, tid): (u64, u64)) -> Self {
        let _ = write!(out, ",\n{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid},\"name\":");
        quoted(out, name);
        Self { out, has_args: false }
    }

    pub(crate) fn category(self, category: &str) -> Self {
        self.out.push_str(",\"cat\":");
        quoted(self.out, category);
        self
    }

    /// When it began.
    pub(crate) fn at(self, start_ns: u64) -> Self {
        self.out.push_str(",\"ts\":");
        microseconds(self.out, start_ns);
        self
    }

    /// How long it took.
    pub(crate) fn lasts(self, duration_ns: u64) -> Self {
        self.out.push_str(",\"dur\":");
        microseconds(self.out, duration_ns);
        self
    }

    /// An instant of the whole process.
    pub(crate) fn of_process(self) -> Self {
        self.out.push_str(",\"s\":\"p\"");
        self
    }

    pub(crate) fn number(mut self, key: &str, value: u64) -> Self {
        self.key(key);
        let _ = write!(self.out, "{value}");
        self
    }

    pub(crate) fn us(mut self, key: &str, value_ns: u64) -> Self {
        self.key(key);
        microseconds(self.out, value_ns);
        self
    }

    pub(crate) fn text(mut self, key: &str, value: &str) -> Self {
        self.key(key);
        quoted(self.out, value);
        self
    }

    pub(crate) fn triple(mut self, key: &str, [x, y, z]: [u32; 3]) -> Self {
        self.key(key);
        let _ = write!(self.out, "[{x},{y},{z}]");
        self
    }

    pub(crate) fn end(self) {
        self.out.push_str(if self.has_args { "}}" } else { "}" });
    }

    fn key(&mut self, key: &str) {
        self.out.push_str(if self.has_args { "," } else { ",\"args\":{" });
        self.has_args = true;
        quoted(self.out, key);
        self.out.push(':');
    }
}

/// Nanoseconds as microseconds, which is the format's unit, with nothing lost.
fn microseconds(out: &mut String, ns: u64) {
    let _ = write!(out, "{}.{:03}", ns / 1000, ns % 1000);
}

fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // A line is an event: a torn file is cut at the last whole line.
            '\u{0}'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", letter as u32);
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}
