//! One worker, asked for the state of its devices.
//!
//! One question at a time: the asking thread holds the lock of `line` until the answer is here. A connection that ended
//! is opened again, once for each question: workers close those that were silent for long, and a worker may have been
//! started anew. A worker that does not answer is lost at once: it has had its time.

use crate::abi::{NvmlError, NvmlResult};
use cuda_abi::CudaError;
use cuda_wire::{
    Command, DeviceStatus, Handshake, ReplyHeader, StatusWelcome, Wire, begin_command, finish_command,
    header, purpose,
};
use locks::lock;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use transport::{Address, Closer, Connection, ConnectionKind};
use worker_link::{CONNECT_TIMEOUT, Caller, Config, Failure, log};

/// How long an attempt to come back to a lost worker may take.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);
/// A worker that was lost is not asked again before this, so that programs that poll are not slowed down by it.
const LOST_PAUSE: Duration = Duration::from_secs(2);
/// No status is longer.
const ANSWER_BYTES_MAX: u32 = 1 << 20;

pub(crate) struct Worker {
    address: Address,
    config: Arc<Config>,
    line: Mutex<Line>,
    /// The closer of the line's connection, for a forked child: it must not wait for the line.
    closer: Mutex<Option<Closer>>,
}

#[derive(Default)]
struct Line {
    connection: Option<Connection>,
    next_call: u32,
    lost_at: Option<Instant>,
}

impl Worker {
    /// A worker without a connection yet.
    pub(crate) fn new(address: Address, config: Arc<Config>) -> Self {
        Self { address, config, line: Mutex::default(), closer: Mutex::default() }
    }

    /// Connects; how many devices it has.
    pub(crate) fn open(&self) -> Result<u32, Failure> {
        let (connection, welcome) = self.connect(CONNECT_TIMEOUT)?;
        self.keep(&mut lock(&self.line), connection);
        Ok(welcome.devices)
    }

    /// For a forked child: the same worker, not connected. Lets go of the parent's connection without a sign to the
    /// worker.
    pub(crate) fn for_child(&self) -> Self {
        if let Ok(closer) = self.closer.try_lock()
            && let Some(closer) = &*closer
        {
            closer.abandon();
        }
        Self::new(self.address.clone(), self.config.clone())
    }

    /// What a device says of itself now.
    pub(crate) fn status(&self, device: u32) -> NvmlResult<DeviceStatus> {
        let mut line = lock(&self.line);
        if let Some(mut connection) = line.connection.take() {
            let asked = ask(&mut connection, &mut line.next_call, device, self.config.stall_timeout);
            match asked {
                Ok(answer) => {
                    line.connection = Some(connection);
                    return answer;
                }
                Err(Fault::Ended(error)) => self.note_loss(&error),
                Err(Fault::Silent) => return Err(self.lose(&mut line, "no answer within DXPU_STALL_TIMEOUT")),
            }
        } else if line.lost_at.is_some_and(|lost_at| lost_at.elapsed() < LOST_PAUSE) {
            return Err(NvmlError::GpuIsLost);
        }
        let mut connection = match self.connect(RETURN_TIMEOUT) {
            Ok((connection, _)) => connection,
            Err(failure) => return Err(self.lose(&mut line, &failure.to_string())),
        };
        match ask(&mut connection, &mut line.next_call, device, self.config.stall_timeout) {
            Ok(answer) => {
                self.keep(&mut line, connection);
                answer
            }
            Err(Fault::Ended(error)) => Err(self.lose(&mut line, &error)),
            Err(Fault::Silent) => Err(self.lose(&mut line, "no answer within DXPU_STALL_TIMEOUT")),
        }
    }

    fn lose(&self, line: &mut Line, error: &str) -> NvmlError {
        self.note_loss(error);
        line.lost_at = Some(Instant::now());
        NvmlError::GpuIsLost
    }

    fn connect(&self, timeout: Duration) -> Result<(Connection, StatusWelcome), Failure> {
        let caller = Caller::knock(&self.address, &self.config, purpose::STATUS, timeout)?;
        let unreachable = |error: String| caller.unreachable(error);
        let mut connection = caller.open(ConnectionKind::Status, 0, timeout)?;
        match caller.greet(&mut connection, self.config.hello(Vec::new(), 0), timeout)? {
            Handshake::StatusWelcome(welcome) => Ok((connection, welcome)),
            _ => Err(unreachable(
                "its answer to the hello is no welcome; install the same dxpu on both machines".to_owned(),
            )),
        }
    }

    fn keep(&self, line: &mut Line, connection: Connection) {
        *lock(&self.closer) = Some(connection.closer.clone());
        line.connection = Some(connection);
        line.lost_at = None;
    }

    fn note_loss(&self, error: &str) {
        log::info(&format!("NVML: worker {} does not answer: {error}", self.address));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut line = lock(&self.line);
        if let Some(connection) = &mut line.connection {
            // A worker that does not hear it sees the connection end.
            let _ = connection.tx.send(&[&question(&Command::Goodbye {}, 0)]);
        }
    }
}

fn question(command: &Command<'_>, call: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    let start = begin_command(&mut frame, command.opcode(), call);
    command.put_body(&mut frame);
    finish_command(&mut frame, start);
    frame
}

/// Why a connection is of no use any more.
enum Fault {
    /// It ended, or what came over it makes no sense.
    Ended(String),
    /// Nothing came over it for too long.
    Silent,
}

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Ended(error.to_string())
    }
}

/// Asks over a connection. The inner error is the worker's answer.
fn ask(
    connection: &mut Connection,
    next_call: &mut u32,
    device: u32,
    patience: Duration,
) -> Result<NvmlResult<DeviceStatus>, Fault> {
    // 0 would mean that no reply is wanted.
    *next_call = next_call.checked_add(1).unwrap_or(1);
    connection.tx.send(&[&question(&Command::DeviceStatus { device }, *next_call)])?;
    if !connection.rx.wait(Some(patience))? {
        return Err(Fault::Silent);
    }
    let mut bytes = [0; ReplyHeader::BYTES];
    connection.rx.recv_exact(&mut bytes)?;
    let head: ReplyHeader = header(&bytes)?;
    if head.call != *next_call || head.bytes > ANSWER_BYTES_MAX {
        let text = format!(
            "it answered call {} with {} bytes, but call {next_call} was asked",
            head.call, head.bytes
        );
        return Err(Fault::Ended(text));
    }
    let mut body = vec![0; head.bytes as usize];
    connection.rx.recv_exact(&mut body)?;
    Ok(match CudaError::from_code(head.status) {
        None => Ok(DeviceStatus::from_bytes(&body)?),
        Some(CudaError::NOT_SUPPORTED) => Err(NvmlError::NotSupported),
        // The worker is there and its device is not.
        Some(CudaError::DEVICE_UNAVAILABLE | CudaError::INVALID_DEVICE) => Err(NvmlError::GpuIsLost),
        Some(_) => Err(NvmlError::Unknown),
    })
}
