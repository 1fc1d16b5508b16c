//! The program that uses the GPUs, while the lease is kept alive.

use super::attach::Keeper;
use crate::support::exit::{self, Exit, Failure, Outcome};
use crate::support::{library, log};
use anyhow::Context;
use pool_api::{Lease, LeaseState};
use pool_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How soon the end of the program is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Signals to this process: they go on to the program, or end the waiting for GPUs.
pub(super) struct Signals {
    program: Arc<AtomicU32>,
    stop: Arc<AtomicI32>,
}

impl Signals {
    pub(super) fn take() -> anyhow::Result<Self> {
        let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
        let mut signals = signal_hook::iterator::Signals::new(all).context("signals")?;
        let (program, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicI32::new(0)));
        let taken = Self { program: program.clone(), stop: stop.clone() };
        let pass_on = move || {
            for number in signals.forever() {
                let pid = i32::try_from(program.load(Ordering::SeqCst)).ok().and_then(Pid::from_raw);
                match pid {
                    // A terminal has told the whole group already.
                    Some(_) if matches!(number, SIGINT | SIGQUIT) && is_at_a_terminal() => {}
                    Some(pid) => {
                        if let Some(signal) = Signal::from_named_raw(number) {
                            let _ = kill_process(pid, signal);
                        }
                    }
                    None if matches!(number, SIGUSR1 | SIGUSR2) => {}
                    None => stop.store(number, Ordering::SeqCst),
                }
            }
        };
        std::thread::Builder::new().name("dxpu-signals".to_owned()).spawn(pass_on)?;
        Ok(taken)
    }

    /// From now on signals go to this program, also one that came just before.
    fn goes_to(&self, child: &Child) {
        self.program.store(child.id(), Ordering::SeqCst);
        let missed = self.stop.swap(0, Ordering::SeqCst);
        if let (Some(signal), pid) = (Signal::from_named_raw(missed), Pid::from_child(child)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// The signal that says to stop, if one came before there was a program.
    pub(super) fn stop_wanted(&self) -> Option<i32> {
        Some(self.stop.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }
}

fn is_at_a_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdin())
}

/// Runs the program to its end.
pub(super) fn run(
    program: &[OsString],
    settings: Vec<(&'static str, OsString)>,
    keeper: &Keeper,
    client: &Client,
    lease: &Lease,
    signals: &Signals,
) -> Outcome {
    let library = library::extract()?;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    for unset in
        ["DXPU_FINGERPRINT", "DXPU_TOKEN", "DXPU_DELAY", "DXPU_LANES", "DXPU_STALL_TIMEOUT", "DXPU_SURVIVE"]
    {
        command.env_remove(unset);
    }
    command.envs(library.environment(&keeper.addresses())).envs(keeper.environment()).envs(settings);
    if let Some(signal) = signals.stop_wanted() {
        return Err(Failure::new(Exit::Failure, format!("stopped by signal {signal}"), "").into());
    }
    let mut child = command.spawn().map_err(|error| exit::not_started(&program[0], error))?;
    signals.goes_to(&child);
    let status = attend(&mut child, keeper, client, lease);
    signals.program.store(0, Ordering::SeqCst);
    Ok(Exit::Program(code_of(status?)))
}

/// As shells say it.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code & 0xff).ok()).unwrap_or(1)
}

/// Waits for the program's end and renews the lease meanwhile.
fn attend(child: &mut Child, keeper: &Keeper, client: &Client, lease: &Lease) -> std::io::Result<ExitStatus> {
    let (done, is_over) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || renew(&is_over, keeper, client, lease));
        let status = loop {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                Ok(Some(status)) => break Ok(status),
                Err(error) => break Err(error),
            }
        };
        drop(done);
        status
    })
}

/// Renews until the program is over.
fn renew(is_over: &std::sync::mpsc::Receiver<()>, keeper: &Keeper, client: &Client, lease: &Lease) {
    let every = Duration::from_millis(lease.request.ttl_ms / 3);
    let mut known = lease.clone();
    let mut silent_since: Option<Instant> = None;
    while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = is_over.recv_timeout(every) {
        match client.renew_lease(lease.id) {
            Ok(now) => {
                if silent_since.take().is_some() {
                    log::say(format_args!("dxpu: the pool answers again"));
                }
                tell_changes(&known, &now);
                if now.state == LeaseState::Granted && now.grants == known.grants {
                    let written = client.lease_tokens(lease.id).ok().map(|tokens| keeper.renew(&tokens));
                    if let Some(Err(error)) = written {
                        log::say(format_args!("dxpu: new tokens cannot be written: {error:#}"));
                    }
                }
                known = now;
            }
            Err(error) => {
                if silent_since.is_none() {
                    log::say(format_args!(
                        "dxpu: lease {} cannot be renewed now ({error}); the program goes on",
                        lease.id
                    ));
                    silent_since = Some(Instant::now());
                }
            }
        }
    }
}

/// Says what happened to the GPUs, and what to do.
fn tell_changes(before: &Lease, now: &Lease) {
    for moved in now.moves.iter().skip(before.moves.len()) {
        let instead = match &moved.to {
            Some(gpu) => format!("the lease has {gpu} instead"),
            None => "the lease waits for another".to_owned(),
        };
        log::say(format_args!(
            "dxpu: GPU {} is lost: {}; {instead}. The program sees CUDA errors; let it end and start it again",
            moved.from, moved.reason
        ));
    }
    if before.state.is_live() && !now.state.is_live() {
        let reason = now.ended.as_ref().map_or("nobody says why", |ended| ended.reason.as_str());
        log::say(format_args!(
            "dxpu: lease {} is over: {reason}. The program sees CUDA errors; start it again",
            now.id
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_end_is_told_as_shells_do() {
        for (raw, code) in [(0, 0), (7 << 8, 7), (9, 137), (15, 143), (255 << 8, 255)] {
            assert_eq!(code_of(ExitStatus::from_raw(raw)), code);
        }
    }
}
