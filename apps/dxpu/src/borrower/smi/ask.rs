//! Asks workers for the state of their devices, and finds the programs of this user that use them.

use crate::support::exit::{Exit, Failure};
use cuda_abi::CudaError;
use cuda_wire::{
    Command, DeviceStatus, Handshake, ReplyHeader, Wire, begin_command, finish_command, header, purpose,
};
use serde::Serialize;
use std::time::Duration;
use transport::{Address, Connection, ConnectionKind};
use worker_link::{CONNECT_TIMEOUT, Caller, Config};

/// A worker that takes longer to answer is not one to wait for.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// No status is longer.
const ANSWER_BYTES_MAX: u32 = 1 << 20;

/// A device of a worker; no status if the worker says that the device is gone.
pub(super) struct Gpu {
    pub(super) worker: Address,
    pub(super) status: Option<DeviceStatus>,
}

/// Every device of every worker, in the order of CUDA's ordinals.
pub(super) fn all(config: &Config) -> Result<Vec<Gpu>, Failure> {
    let mut gpus = Vec::new();
    for (config, address) in config.each().into_iter().zip(&config.workers) {
        let (mut connection, devices) = worker_link::patiently(&config, || connect(address, &config))
            .map_err(|failure| {
                let exit = match failure.code() {
                    CudaError::NOT_PERMITTED => Exit::Refused,
                    _ => Exit::Unreachable,
                };
                Failure::new(exit, failure.to_string(), "check the worker, its address and the token")
            })?;
        for device in 0..devices {
            let status = status(&mut connection, device).map_err(|why| {
                let what = format!("the worker at {address} does not tell how its GPU {device} is: {why}");
                Failure::new(Exit::Unreachable, what, "install the same dxpu on both machines, or try again")
            })?;
            gpus.push(Gpu { worker: address.clone(), status });
        }
        let _ = connection.tx.send(&[&frame(&Command::Goodbye {}, 0)]);
    }
    Ok(gpus)
}

fn connect(address: &Address, config: &Config) -> Result<(Connection, u32), worker_link::Failure> {
    let caller = Caller::knock(address, config, purpose::STATUS, CONNECT_TIMEOUT)?;
    let mut connection = caller.open(ConnectionKind::Status, 0, CONNECT_TIMEOUT)?;
    match caller.greet(&mut connection, config.hello(Vec::new(), 0), CONNECT_TIMEOUT)? {
        Handshake::StatusWelcome(welcome) => Ok((connection, welcome.devices)),
        _ => Err(caller.unreachable("its answer to the hello is no welcome".to_owned())),
    }
}

fn frame(command: &Command<'_>, call: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    let start = begin_command(&mut frame, command.opcode(), call);
    command.put_body(&mut frame);
    finish_command(&mut frame, start);
    frame
}

fn status(connection: &mut Connection, device: u32) -> anyhow::Result<Option<DeviceStatus>> {
    // 0 would mean that no reply is wanted.
    let call = device + 1;
    connection.tx.send(&[&frame(&Command::DeviceStatus { device }, call)])?;
    anyhow::ensure!(connection.rx.wait(Some(ANSWER_WITHIN))?, "no answer within {ANSWER_WITHIN:?}");
    let mut bytes = [0; ReplyHeader::BYTES];
    connection.rx.recv_exact(&mut bytes)?;
    let head: ReplyHeader = header(&bytes)?;
    anyhow::ensure!(head.call == call && head.bytes <= ANSWER_BYTES_MAX, "its answer makes no sense");
    let mut body = vec![0; head.bytes as usize];
    connection.rx.recv_exact(&mut body)?;
    match CudaError::from_code(head.status) {
        None => Ok(Some(DeviceStatus::from_bytes(&body)?)),
        Some(_) => Ok(None),
    }
}

/// A program of this user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
}

/// Programs on this machine that were started with these workers and have the client library loaded. Those of other users
/// cannot be seen.
pub(super) fn processes(workers: &str) -> Vec<Process> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Process> = pids
        .filter(|pid| *pid != own)
        .filter_map(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            is_user_of(workers, &environment, &maps).then(|| Process { pid, name: name.trim().to_owned() })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Whether a process with this environment and these mappings uses these workers.
fn is_user_of(workers: &str, environment: &[u8], maps: &str) -> bool {
    let wanted = format!("DXPU_WORKER={workers}");
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        && maps.contains("libcuda.so.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_apart_by_its_workers_and_its_library() {
        let environment = b"HOME=/root\0DXPU_WORKER=unix:/w,unix:/v\0";
        let maps = "7f00-7f10 r-xp 00000000 00:01 7 /cache/lib-1/libcuda.so.1\n";
        assert!(is_user_of("unix:/w,unix:/v", environment, maps));
        assert!(!is_user_of("unix:/w", environment, maps), "another worker");
        assert!(!is_user_of("unix:/w,unix:/v", environment, "7f00 /usr/lib/libc.so.6"), "a shell around it");
    }
}
