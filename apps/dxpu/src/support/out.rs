//! Answers on standard output.
//!
//! `println!` panics when the reader of a pipe is gone (`dxpu gpu ls | head`). These macros end the process instead, without
//! a word: the reader has what it wanted.

use std::io::Write;

/// Prints to standard output.
macro_rules! out {
    ($($text:tt)*) => {
        $crate::support::out::write(format_args!($($text)*))
    };
}

/// Prints a line to standard output.
macro_rules! outln {
    () => {
        $crate::support::out::write(format_args!("\n"))
    };
    ($($text:tt)*) => {
        $crate::support::out::write(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints a line to standard error; goes on where that is not possible.
macro_rules! errln {
    () => {
        $crate::support::log::say(format_args!(""))
    };
    ($($text:tt)*) => {
        $crate::support::log::say(format_args!($($text)*))
    };
}

/// What [`out`] and [`outln`] do.
pub(crate) fn write(text: std::fmt::Arguments<'_>) {
    write_bytes(text.to_string().as_bytes());
}

/// The same for bytes.
pub(crate) fn write_bytes(bytes: &[u8]) {
    let mut output = std::io::stdout().lock();
    if let Err(error) = output.write_all(bytes).and_then(|()| output.flush()) {
        std::process::exit(match error.kind() {
            std::io::ErrorKind::BrokenPipe => 0,
            _ => {
                crate::support::log::say(format_args!("dxpu: cannot write the answer: {error}"));
                1
            }
        });
    }
}
