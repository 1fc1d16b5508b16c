//! Is the worker there, is it the right one, and will it serve us? Asked before a program starts, because a program
//! can only say that it found no GPU.

use crate::support::exit::{Exit, Failure};
use cuda_abi::CudaError;
use cuda_wire::{Handshake, Knock, PROTOCOL_VERSION, purpose};
use std::io;
use std::time::{Duration, Instant};
use transport::{Address, ClientSecurity, ConnectError, ConnectionKind, Preamble, Rx, connect};
use worker_link::BackOff;

/// A worker that answers later than this is not one to run a program on.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A worker whose door is crowded closes connections without a word. So do other servers, and those are not waited for.
const CLOSED_MAX: Duration = Duration::from_secs(5);

/// A user that waits longer than this is told why.
const TOLD_AFTER: Duration = Duration::from_secs(3);

/// How to check that the listener at an address is the worker; `tls` is for addresses of that kind.
pub(crate) fn security_of(address: &Address, tls: ClientSecurity) -> Result<ClientSecurity, Failure> {
    match address {
        Address::Tls(_) => Ok(tls),
        Address::Unix(_) | Address::Shm(_) => worker_link::trusted_users()
            .map(ClientSecurity::Users)
            .map_err(|what| Failure::new(Exit::Usage, what, "write numbers with commas between them")),
        Address::Tcp(_) | Address::Pcie(_) => Ok(ClientSecurity::Plain),
    }
}

/// What a worker that would serve the program says of its GPUs.
pub(crate) struct Seen {
    /// They execute PTX and no machine code.
    pub(crate) executes_ptx_only: bool,
}

/// Asks a worker whether it would serve a program that shows this token. Takes no session of it. One that is busy is asked
/// again for `patience`.
pub(crate) fn check(
    address: &Address,
    security: &ClientSecurity,
    token: &str,
    patience: Duration,
) -> Result<Seen, Failure> {
    let (start, mut back_off, mut is_told) = (Instant::now(), BackOff::default(), false);
    loop {
        let (failure, patience) = match ask(address, security, token) {
            Ok(seen) => return Ok(seen),
            Err(Trouble::Final(failure)) => return Err(failure),
            Err(Trouble::Busy(failure)) => (failure, patience),
            Err(Trouble::Closed(failure)) => (failure, patience.min(CLOSED_MAX)),
        };
        if start.elapsed() >= patience {
            return Err(if patience.is_zero() { failure } else { given_up(failure, start.elapsed()) });
        }
        if start.elapsed() >= TOLD_AFTER && !std::mem::replace(&mut is_told, true) {
            let why = if failure.hint.is_empty() { &failure.what } else { &failure.hint };
            errln!("dxpu: {address} is busy ({why}); trying again for {patience:.0?} at most");
        }
        std::thread::sleep(back_off.pause());
    }
}

/// A failure that was tried to be waited out.
fn given_up(failure: Failure, waited: Duration) -> Failure {
    let hint = format!(
        "{}; given up after {:.1} s: try again later, or set DXPU_PATIENCE to a longer time",
        failure.hint,
        waited.as_secs_f64()
    );
    Failure { hint, ..failure }
}

/// Why a worker did not say yes.
enum Trouble {
    /// It says that it is not ready yet.
    Busy(Failure),
    /// It closed the connection without an answer.
    Closed(Failure),
    Final(Failure),
}

fn ask(address: &Address, security: &ClientSecurity, token: &str) -> Result<Seen, Trouble> {
    let name: [u8; 16] = random().map_err(|error| Trouble::Final(set_up(address, error)))?;
    let preamble = Preamble::new(ConnectionKind::Door, 0, name);
    let mut connection = connect(address, security, preamble, ANSWER_WITHIN).map_err(|error| {
        let kind = match &error {
            ConnectError::Refused { reason, .. } if reason.contains("try again") => Trouble::Busy,
            ConnectError::SetUp { source, .. } if is_closed(source) => Trouble::Closed,
            _ => Trouble::Final,
        };
        kind(explain(address, error))
    })?;
    // A PCI function brings along its own pass, for a guest that has no token.
    let token = match token.is_empty() {
        true => transport::pass_of(address).unwrap_or_default(),
        false => token.to_owned(),
    };
    let knock = Knock { protocol: PROTOCOL_VERSION, token, purpose: purpose::LOOK };
    let sent = connection.tx.send(&[&Handshake::Knock(knock).to_frame()]);
    match sent.and_then(|()| read_answer(&mut connection.rx)) {
        Ok(Handshake::Ticket(ticket)) => Ok(Seen { executes_ptx_only: ticket.executes_ptx_only }),
        Ok(Handshake::Refusal(refusal)) => {
            let what = format!("the worker at {address} will not serve this program");
            let kind = match CudaError::from_code(refusal.code) {
                Some(CudaError::SYSTEM_NOT_READY) => Trouble::Busy,
                _ => Trouble::Final,
            };
            Err(kind(Failure::new(Exit::Refused, what, refusal.text)))
        }
        Ok(_) => Err(Trouble::Final(set_up(address, io::ErrorKind::InvalidData.into()))),
        Err(error) if is_closed(&error) => Err(Trouble::Closed(set_up(address, error))),
        Err(error) => Err(Trouble::Final(set_up(address, error))),
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted)
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

/// What each way to fail means for the user that typed the command.
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
        ConnectError::Owner { uid, .. } => (
            Exit::Refused,
            format!("{address} belongs to a process of user {uid}, who would see this program's token"),
            format!("if that user's worker is the one you mean, set DXPU_WORKER_UID={uid}"),
        ),
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
