//! Is the worker there, is it the right one, and will it serve us? Asked before a program starts, because a program
//! can only say that it found no GPU.

use crate::exit::{Exit, Failure};
use cuda_wire::{DeviceInfo, Handshake, Hello, PROTOCOL_VERSION, VaRange};
use std::io;
use std::time::Duration;
use transport::{Address, ClientSecurity, ConnectError, ConnectionKind, Preamble, Rx, connect};

/// A worker that answers later than this is not one to run a program on.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Says hello to a worker and goodbye again. Returns its devices.
pub(crate) fn check(
    address: &Address,
    security: &ClientSecurity,
    token: &str,
) -> Result<Vec<DeviceInfo>, Failure> {
    let name: [u8; 16] = random().map_err(|error| set_up(address, error))?;
    let preamble = Preamble::new(ConnectionKind::Command, 0, name);
    let mut connection =
        connect(address, security, preamble, ANSWER_WITHIN).map_err(|error| explain(address, error))?;
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        token: token.to_owned(),
        program: "dxpu run (looks whether the worker is there)".to_owned(),
        pid: std::process::id(),
        va_candidates: candidates(),
        lanes: 1,
    };
    let sent = connection.tx.send(&[&Handshake::Hello(hello).to_frame()]);
    match sent.and_then(|()| read_answer(&mut connection.rx)) {
        Ok(Handshake::Welcome(welcome)) => Ok(welcome.devices),
        Ok(Handshake::Refusal(refusal)) => {
            let what = format!("the worker at {address} will not serve this program");
            Err(Failure::new(Exit::Refused, what, refusal.text))
        }
        Ok(_) => Err(set_up(address, io::ErrorKind::InvalidData.into())),
        Err(error) => Err(set_up(address, error)),
    }
}

/// Whether some of these are GPUs in software, which execute PTX and nothing else.
pub(crate) fn are_soft(devices: &[DeviceInfo]) -> bool {
    devices.iter().any(|device| device.name == driver_soft::DEVICE_NAME)
}

/// Ranges such as a program would reserve; which of them is free does not matter here.
fn candidates() -> Vec<VaRange> {
    const FIRST: u64 = 0x6000_0000_0000;
    const BYTES: u64 = 1 << 40;
    (0..16).map(|at| VaRange { base: FIRST + at * BYTES, bytes: BYTES }).collect()
}

fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

fn read_answer(rx: &mut Rx) -> io::Result<Handshake> {
    let invalid = |error: cuda_wire::DecodeError| io::Error::new(io::ErrorKind::InvalidData, error);
    if !rx.wait(Some(ANSWER_WITHIN))? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut prefix = [0; 4];
    rx.recv_exact(&mut prefix)?;
    let mut body = vec![0; Handshake::body_length(prefix).map_err(invalid)?];
    rx.recv_exact(&mut body)?;
    Handshake::from_body(&body).map_err(invalid)
}

fn set_up(address: &Address, error: io::Error) -> Failure {
    let what = format!("the worker at {address} went away while it was asked who it is");
    let hint = "look at what the worker has printed; it says why it ended the session";
    Failure::new(Exit::Unreachable, what, hint).because(error)
}

/// What each way to fail means for the person who typed the command.
fn explain(address: &Address, error: ConnectError) -> Failure {
    let (exit, what, hint) = match &error {
        ConnectError::Security { .. } => (
            Exit::Usage,
            format!("{address} needs other security options"),
            match address {
                Address::Tls(_) => {
                    "give the --fingerprint that `dxpu worker` printed when it started, or --ca FILE".to_owned()
                }
                _ => "--fingerprint and --ca are for tls: addresses; leave them out".to_owned(),
            },
        ),
        ConnectError::Resolve { .. } => {
            (Exit::Unreachable, format!("the host of {address} is not known"), "check its name, or use its IP address".to_owned())
        }
        ConnectError::Connect { source, .. } => (
            Exit::Unreachable,
            match source.kind() {
                _ if matches!(address, Address::Pcie(_)) => format!("{address} cannot be used"),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => format!("nobody listens at {address}"),
                io::ErrorKind::PermissionDenied => format!("{address} belongs to another user"),
                _ => format!("{address} cannot be reached"),
            },
            match address {
                Address::Pcie(_) => "lspci -Dd 1b36:d804 lists the functions of this machine; docs/pcie-gpu-function.md \
                                     says what they need"
                    .to_owned(),
                _ => format!("start a worker there (dxpu worker --listen {address}), and check address and firewall"),
            },
        ),
        ConnectError::SetUp { .. } => (
            Exit::Unreachable,
            format!("{address} accepts connections but does not finish them"),
            "look at what the worker has printed; is something else listening there?".to_owned(),
        ),
        ConnectError::Answer { .. } => (
            Exit::Refused,
            format!("what listens at {address} is no dxpu worker, or one of another version"),
            "check the port, and install the same dxpu on both machines".to_owned(),
        ),
        ConnectError::Refused { reason, .. } => {
            let hint = match reason {
                reason if reason.contains("speaks") => "use the kind of address (tls:, tcp:, unix:, shm:) that the worker printed",
                _ => "try again in a moment, or look at what the worker has printed",
            };
            (Exit::Refused, format!("{address} refused the connection"), hint.to_owned())
        }
        ConnectError::Tls(_) | ConnectError::ServerName { .. } => (
            Exit::Refused,
            format!("{address} is not the worker that you trust"),
            "compare --fingerprint with the one that `dxpu worker` printed; if they differ and nobody renewed the \
             worker's identity, somebody else answers at this address"
                .to_owned(),
        ),
        _ => (Exit::Failure, format!("cannot connect to {address}"), String::new()),
    };
    Failure::new(exit, what, hint).because(error)
}
