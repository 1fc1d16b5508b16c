//! The terminal: how wide it is, and colours where a user sees them.

use std::io::IsTerminal;

/// What a text wants to say beside its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// In use.
    Busy,
    /// Soon something else.
    Passing,
    /// An operator should look.
    Wrong,
    /// Of less interest.
    Faint,
}

impl Tone {
    fn code(self) -> Option<&'static str> {
        match self {
            Tone::Plain => None,
            Tone::Good => Some("32"),
            Tone::Busy => Some("36"),
            Tone::Passing => Some("33"),
            Tone::Wrong => Some("31;1"),
            Tone::Faint => Some("2"),
        }
    }

    pub(crate) fn paint(self, text: &str, is_colourful: bool) -> String {
        match self.code().filter(|_| is_colourful) {
            Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
            None => text.to_owned(),
        }
    }
}

/// Where tables go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paper {
    /// Nothing for a file or pipe: there lines may be long.
    pub(crate) width: Option<usize>,
    pub(crate) height: Option<usize>,
    pub(crate) is_colourful: bool,
}

impl Paper {
    /// Standard output.
    pub(crate) fn stdout() -> Self {
        let output = std::io::stdout();
        if !output.is_terminal() {
            return Self { width: None, height: None, is_colourful: false };
        }
        let size = rustix::termios::tcgetwinsize(&output).ok();
        let number = |number: Option<u16>| number.filter(|number| *number > 0).map(usize::from);
        let is_colourful = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            width: number(size.map(|size| size.ws_col)).or(Some(80)),
            height: number(size.map(|size| size.ws_row)).or(Some(24)),
            is_colourful,
        }
    }
}
