//! Words for the user that runs the program, on standard error, as many as `DXPU_LOG` asks for.
//!
//! The library lives in the process of another program: it says nothing unless something is wrong.

use std::{
    env,
    io::{self, Write},
    sync::OnceLock,
    time::SystemTime,
};

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match env::var("DXPU_LOG").as_deref() {
        Ok("off") => Level::Off,
        Ok("info") => Level::Info,
        Ok("debug" | "trace") => Level::Debug,
        Ok("error") => Level::Error,
        _ => Level::Warn,
    })
}

fn write(at: Level, name: &str, text: &str) {
    if level() >= at {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let now = readable(now);
        // Not `eprintln`, which panics where the program's log lies on a full disk.
        let line = format!("dxpu[{}] {now} {name} {text}\n", std::process::id());
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// The program cannot go on with the GPU.
pub fn error(text: &str) {
    write(Level::Error, "ERROR", text);
}

/// Something the user should look at.
pub fn warn(text: &str) {
    write(Level::Warn, "WARN", text);
}

/// Something that helps to see what happens.
pub fn info(text: &str) {
    write(Level::Info, "INFO", text);
}

/// Something that helps to find out why a program fails; `text` runs only at that level.
pub fn debug(text: impl FnOnce() -> String) {
    if level() >= Level::Debug {
        write(Level::Debug, "DEBUG", &text());
    }
}

/// Seconds since 1970 as `2026-11-15T09:33:11Z`, which is how `dxpu` itself writes times into logs.
fn readable(seconds: u64) -> String {
    const DAY: u64 = 86_400;
    let (mut days, rest) = (seconds / DAY, seconds % DAY);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        (days, year) = (days - length, year + 1);
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        (days, month) = (days - length, month + 1);
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_794_735_191, "2026-11-15T09:33:11Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(readable(seconds), text);
        }
    }
}
