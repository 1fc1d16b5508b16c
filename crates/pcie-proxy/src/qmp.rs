//! Plugs devices into a running QEMU by its monitor, and takes them out.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long QEMU may take to answer a command.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// A guest that has not let go after this is asked again. Not sooner: to ask is to press the slot's button, Linux waits five
/// seconds for a second press and takes one for a change of mind.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(15);
/// The longest line that is read: an answer that lists devices has a few kilobytes.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Why QEMU did not do it.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The monitor cannot be reached or has gone.
    #[error("the virtual machine's monitor does not answer")]
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
    stream: BufReader<UnixStream>,
    /// Names of devices that are gone, as events said.
    gone: Vec<String>,
}

impl Qmp {
    /// Connects to the socket that QEMU was given with `-qmp unix:PATH,server=on,wait=off`.
    pub fn connect(path: &Path) -> Result<Self, QmpError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
        let mut qmp = Self { stream: BufReader::new(stream), gone: Vec::new() };
        let greeting = qmp.read()?;
        if greeting.get("QMP").is_none() {
            return Err(QmpError::Protocol(greeting.to_string()));
        }
        qmp.execute("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    fn read(&mut self) -> Result<Value, QmpError> {
        let mut line = String::new();
        let mut limited = std::io::Read::take(&mut self.stream, LINE_BYTES_MAX as u64);
        if limited.read_line(&mut line)? == 0 {
            return Err(QmpError::Io(std::io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_str(&line).map_err(|_| QmpError::Protocol(line))
    }

    /// Reads one line; remembers it if it is an event that matters here.
    fn next(&mut self) -> Result<Value, QmpError> {
        let value = self.read()?;
        if value["event"] == "DEVICE_DELETED"
            && let Some(id) = value["data"]["device"].as_str()
        {
            self.gone.push(id.to_owned());
        }
        Ok(value)
    }

    /// Runs one command and gives what it returns.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let mut line = request.to_string();
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes())?;
        loop {
            let answer = self.next()?;
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

    /// Plugs the device behind a vfio-user socket into a port.
    pub fn plug(&mut self, id: &str, port: &str, socket: &Path) -> Result<(), QmpError> {
        let socket = json!({ "type": "unix", "path": socket });
        let device = json!({ "driver": "vfio-user-pci", "id": id, "bus": port, "socket": socket });
        self.gone.retain(|gone| gone != id);
        self.execute("device_add", device).map(drop)
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
            while Instant::now() < until.min(ask_again) {
                if self.gone.iter().any(|gone| gone == id) {
                    return Ok(true);
                }
                let left = until.min(ask_again).saturating_duration_since(Instant::now());
                self.stream.get_ref().set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
                let heard = self.next();
                self.stream.get_ref().set_read_timeout(Some(ANSWERS_WITHIN))?;
                match heard {
                    Ok(_) => {}
                    Err(QmpError::Io(error)) if is_timeout(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            if Instant::now() >= until {
                return Err(QmpError::Held(id.to_owned()));
            }
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}
