//! Plugs devices into a running QEMU by its monitor, and takes them out.
//!
//! Nothing here waits for ever: QEMU answers its monitor in its main loop, and a main loop that is held up does not
//! answer.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long QEMU may take to answer a command that waits for nothing.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// A guest that has not let go after this is asked again. Not sooner: to ask is to press the slot's button, Linux waits five
/// seconds for a second press and takes one for a change of mind.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(15);
/// The longest line that is read: an answer that lists devices has a few kilobytes.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Why QEMU did not do it.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// No process listens: there is no virtual machine.
    #[error("no virtual machine listens at its monitor")]
    Gone(#[source] std::io::Error),
    /// The monitor takes connections and does not answer: whether the command was done is not known.
    #[error("the virtual machine's monitor does not answer")]
    Silent,
    /// The connection to the monitor broke: whether the command was done is not known.
    #[error("the connection to the virtual machine's monitor is lost")]
    Io(#[from] std::io::Error),
    /// It does not speak QMP.
    #[error("this is no QMP monitor: {0}")]
    Protocol(String),
    /// It refuses.
    #[error("the virtual machine refuses: {0}")]
    Refused(String),
    /// The guest does not let the device go.
    #[error("the guest has not let go of {0}")]
    Held(String),
}

/// A connection to a QEMU's monitor.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    /// What has come and was not a whole line yet.
    heard: Vec<u8>,
    /// Names of devices that are gone, as events said.
    gone: Vec<String>,
}

impl Qmp {
    /// Connects to the socket that QEMU was given with `-qmp unix:PATH,server=on,wait=off`.
    ///
    /// QEMU talks to one client of a monitor at a time and lets the others wait: programs that share a monitor
    /// take turns.
    pub fn connect(path: &Path) -> Result<Self, QmpError> {
        let stream = connect(path)?;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
        let mut qmp = Self { stream, heard: Vec::new(), gone: Vec::new() };
        let greeting = qmp.read(Instant::now() + ANSWERS_WITHIN)?;
        if greeting.get("QMP").is_none() {
            return Err(QmpError::Protocol(greeting.to_string()));
        }
        qmp.execute("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// Reads one line.
    fn read(&mut self, until: Instant) -> Result<Value, QmpError> {
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|_| QmpError::Protocol(String::from_utf8_lossy(&line).into_owned()));
            }
            if self.heard.len() > LINE_BYTES_MAX {
                return Err(QmpError::Protocol("a line without an end".to_owned()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(QmpError::Silent);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(QmpError::Io(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => self.heard.extend_from_slice(&piece[..bytes]),
                Err(error) if is_timeout(&error) || error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads one line; remembers it if it is an event that matters here.
    fn next(&mut self, until: Instant) -> Result<Value, QmpError> {
        let value = self.read(until)?;
        if value["event"] == "DEVICE_DELETED"
            && let Some(id) = value["data"]["device"].as_str()
        {
            self.gone.push(id.to_owned());
        }
        Ok(value)
    }

    /// Runs one command and gives what it returns.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        self.execute_within(ANSWERS_WITHIN, command, arguments)
    }

    fn execute_within(
        &mut self,
        within: Duration,
        command: &str,
        arguments: Value,
    ) -> Result<Value, QmpError> {
        let until = Instant::now() + within;
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let mut line = request.to_string();
        line.push('\n');
        self.stream.write_all(line.as_bytes()).map_err(|error| match is_timeout(&error) {
            true => QmpError::Silent,
            false => error.into(),
        })?;
        loop {
            let answer = self.next(until)?;
            if let Some(error) = answer.get("error") {
                return Err(QmpError::Refused(
                    error["desc"].as_str().unwrap_or("no reason given").to_owned(),
                ));
            }
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
    }

    /// Whether there is a device of this name.
    pub fn has(&mut self, id: &str) -> Result<bool, QmpError> {
        let path = format!("/machine/peripheral/{id}");
        match self.execute("qom-get", json!({ "path": path, "property": "type" })) {
            Ok(_) => Ok(true),
            Err(QmpError::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Plugs the device behind a vfio-user socket into a port, unless it is there already: an earlier attempt may have
    /// succeeded after its caller had given up.
    ///
    /// QEMU reads the device's configuration meanwhile, with its main loop held, and is given `answers_within` for each
    /// answer: less than that, and it never understands another word of a device that was slow once.
    pub fn plug(
        &mut self,
        id: &str,
        port: &str,
        socket: &Path,
        answers_within: Duration,
    ) -> Result<(), QmpError> {
        if self.has(id)? {
            return Ok(());
        }
        let mut device = json!({ "driver": "vfio-user-pci", "id": id, "bus": port });
        device["socket"] = json!({ "type": "unix", "path": socket });
        device["x-msg-timeout"] = json!(answers_within.as_millis() as u64);
        self.gone.retain(|gone| gone != id);
        self.execute_within(answers_within + ANSWERS_WITHIN, "device_add", device).map(drop)
    }

    /// Asks the guest to let a device go and waits until it has. Says whether there was one.
    pub fn unplug(&mut self, id: &str, within: Duration) -> Result<bool, QmpError> {
        let until = Instant::now() + within;
        let mut was_there = false;
        loop {
            match self.execute("device_del", json!({ "id": id })) {
                Err(QmpError::Refused(reason)) if reason.contains("not found") => return Ok(was_there),
                // It was asked before and has not answered yet.
                Err(QmpError::Refused(_)) | Ok(_) => was_there = true,
                Err(error) => return Err(error),
            }
            let ask_again = Instant::now() + ASK_AGAIN_AFTER;
            loop {
                if self.gone.iter().any(|gone| gone == id) {
                    return Ok(true);
                }
                match self.next(until.min(ask_again)) {
                    Ok(_) => {}
                    Err(QmpError::Silent) => break,
                    Err(error) => return Err(error),
                }
            }
            if Instant::now() >= until {
                return Err(QmpError::Held(id.to_owned()));
            }
        }
    }
}

/// Connects without waiting: a listener whose queue is full would otherwise be waited for, for ever if QEMU hangs.
fn connect(path: &Path) -> Result<UnixStream, QmpError> {
    let other = |errno: Errno| QmpError::Io(errno.into());
    let address = SocketAddrUnix::new(path).map_err(other)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(other)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(socket.into()),
        Err(Errno::AGAIN) => Err(QmpError::Silent),
        Err(errno @ (Errno::NOENT | Errno::CONNREFUSED)) => Err(QmpError::Gone(errno.into())),
        Err(errno) => Err(other(errno)),
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// As a QEMU whose main loop is held: it listens, and that is all. Its queue is full after the first few.
    #[test]
    fn a_monitor_that_hangs_blocks_nobody_and_one_that_is_gone_is_told_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        assert!(matches!(Qmp::connect(&path), Err(QmpError::Gone(_))), "never was there");
        let listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100_000);
        };
        assert!(matches!(full, QmpError::Silent), "{full}");
        drop(listener);
        assert!(matches!(Qmp::connect(&path), Err(QmpError::Gone(_))), "its socket is left behind");
    }

    #[test]
    fn whoever_only_talks_of_events_has_not_answered() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut qmp = Qmp { stream: ours, heard: Vec::new(), gone: Vec::new() };
        let talks = std::thread::spawn(move || {
            let event = b"{\"event\": \"RTC_CHANGE\"}\n";
            while theirs.write_all(event).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let within = Duration::from_millis(100);
        let answer = qmp.execute_within(within, "query-status", Value::Null);
        assert!(matches!(answer, Err(QmpError::Silent)), "{answer:?}");
        drop(qmp);
        talks.join().unwrap();
    }
}
