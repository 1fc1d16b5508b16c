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
