//! The program that uses the GPUs, while the lease is kept alive.

use super::attach::Keeper;
use crate::support::exit::{self, Exit, Failure};
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
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How soon the end of the program is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Signals to this process: they go on to the program, or end the waiting for GPUs.
pub(super) struct Signals {
    program: Arc<AtomicU32>,
    stop: Arc<AtomicI32>,
    /// The user was told that the time limit is near, and that it is reached.
    is_limit_near_told: AtomicBool,
    is_limit_told: AtomicBool,
}

impl Signals {
    pub(super) fn take() -> anyhow::Result<Self> {
        let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
        let mut signals = signal_hook::iterator::Signals::new(all).context("signals")?;
        let (program, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicI32::new(0)));
        let taken = Self {
            program: program.clone(),
            stop: stop.clone(),
            is_limit_near_told: AtomicBool::new(false),
            is_limit_told: AtomicBool::new(false),
        };
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

/// One run of the program.
pub(super) struct Run<'a> {
    pub(super) client: &'a Client,
    pub(super) lease: &'a Lease,
    pub(super) keeper: &'a Keeper,
    pub(super) signals: &'a Signals,
    /// When the program is ended.
    pub(super) until: Option<Instant>,
}

impl Run<'_> {
    /// Runs the program to its end. Also returns the lease as it is afterwards, if a manager tells.
    pub(super) fn to_the_end(
        &self,
        program: &[OsString],
        settings: &[(&'static str, OsString)],
    ) -> anyhow::Result<(Exit, Option<Lease>)> {
        let library = library::extract()?;
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]);
        for unset in [
            "DXPU_FINGERPRINT",
            "DXPU_TOKEN",
            "DXPU_DELAY",
            "DXPU_LANES",
            "DXPU_STALL_TIMEOUT",
            "DXPU_SURVIVE",
            "DXPU_SURVIVE_ACCEPT",
            "DXPU_KEEPER",
            "DXPU_CLASS",
            "DXPU_CONTENT",
        ] {
            command.env_remove(unset);
        }
        command.envs(library.environment(&self.keeper.addresses())).envs(self.keeper.environment());
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        if let Some(signal) = self.signals.stop_wanted() {
            return Err(Failure::new(Exit::Failure, format!("stopped by signal {signal}"), "").into());
        }
        let mut child = command.spawn().map_err(|error| exit::not_started(&program[0], error))?;
        self.signals.goes_to(&child);
        let ended = self.attend(&mut child);
        self.signals.program.store(0, Ordering::SeqCst);
        let (status, known) = ended?;
        let exit = Exit::Program(code_of(status));
        Ok((exit, self.tell_the_end(exit, known)))
    }

    /// A program that failed is told what became of its GPUs. A box or GPU that fails is noticed by the manager a moment after
    /// the program has noticed, so the manager is asked for that long.
    fn tell_the_end(&self, exit: Exit, known: Lease) -> Option<Lease> {
        if exit == Exit::Program(0) {
            return None;
        }
        let until = Instant::now() + TOLD_WITHIN;
        let mut now = known.clone();
        loop {
            match self.client.wait_for_lease(now.id, now.version, Duration::from_millis(500)) {
                Ok(later) => now = later,
                Err(_) => return None,
            }
            let is_changed = now.moves.len() > self.lease.moves.len() || !now.state.is_live();
            // Where every worker still answers, the program has failed by itself.
            let is_settled = is_changed || self.keeper.is_reachable(self.client, &now);
            if is_settled || Instant::now() >= until || self.signals.stop_wanted().is_some() {
                tell_changes(&known, &now);
                return Some(now);
            }
        }
    }
}

/// A GPU that fails is reported within a second, and its lease has moved by then.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// A program that is asked to end at its time limit has so long.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A program is told of the end of its time so long before it.
const WARNED_BEFORE: Duration = Duration::from_secs(60);

/// Whether the limit is near, and not so near that the warning would come with the end.
fn is_near(left: Duration) -> bool {
    (Duration::from_secs(2)..=WARNED_BEFORE).contains(&left)
}

/// As shells say it.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code & 0xff).ok()).unwrap_or(1)
}

impl Run<'_> {
    /// Waits for the program's end and renews the lease meanwhile. Returns how it ended, and the lease as it was last told.
    fn attend(&self, child: &mut Child) -> std::io::Result<(ExitStatus, Lease)> {
        let (done, is_over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let renewing = scope.spawn(move || self.renew(&is_over));
            let status = loop {
                self.end_at_the_limit(child);
                match child.try_wait() {
                    Ok(None) => std::thread::sleep(LOOK_EVERY),
                    Ok(Some(status)) => break Ok(status),
                    Err(error) => break Err(error),
                }
            };
            drop(done);
            let known = renewing.join().unwrap_or_else(|_| self.lease.clone());
            status.map(|status| (status, known))
        })
    }

    fn end_at_the_limit(&self, child: &Child) {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if is_near(left) && !self.signals.is_limit_near_told.swap(true, Ordering::SeqCst) {
                errln!("dxpu: the time limit is over in {left:.0?}; then the program is asked to end");
            }
        }
        let Some(until) = self.until.filter(|until| Instant::now() >= *until) else { return };
        if until.elapsed() >= END_WITHIN {
            let _ = kill_process(Pid::from_child(child), Signal::KILL);
        } else if !self.signals.is_limit_told.swap(true, Ordering::SeqCst) {
            errln!("dxpu: the time limit is reached; the program is asked to end");
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }

    /// Renews until the program is over. Returns the lease as it was last told.
    fn renew(&self, is_over: &std::sync::mpsc::Receiver<()>) -> Lease {
        let Self { client, lease, keeper, .. } = self;
        let every = Duration::from_millis(lease.request.ttl_ms / 3);
        let mut known = Lease::clone(lease);
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
        known
    }
}

/// Says what happened to the GPUs, and what to do.
fn tell_changes(before: &Lease, now: &Lease) {
    changes(before, now).iter().for_each(|line| log::say(format_args!("dxpu: {line}")));
}

fn changes(before: &Lease, now: &Lease) -> Vec<String> {
    let mut lines = Vec::new();
    for moved in now.moves.iter().skip(before.moves.len()) {
        if let (true, Some(to)) = (moved.planned, &moved.to) {
            lines.push(format!("your program moved from {} to {to}: {}", moved.from, moved.reason));
            continue;
        }
        if moved.planned {
            let what = "it is kept as an image, waits for another seat, and goes on there";
            lines.push(format!("your program has left {}: {}; {what}", moved.from, moved.reason));
            continue;
        }
        let then = match &moved.to {
            Some(gpu) => {
                format!("the lease moved to {gpu}. Start the program again, or use `dxpu run --retry N`")
            }
            None => "no other is free, so the lease waits for one. Start the program again later".to_owned(),
        };
        let then = if now.request.survive.is_none() {
            then
        } else {
            match &moved.to {
                Some(gpu) => {
                    format!("the lease moved to {gpu}, and a program that is protected goes on there")
                }
                None => "no other is free, so the lease waits for one, and its program with it".to_owned(),
            }
        };
        lines.push(format!("your GPU {} is lost: {}; {then}", moved.from, moved.reason));
    }
    if before.state.is_live() && !now.state.is_live() {
        let reason = now.ended.as_ref().map_or("the manager does not say why", |ended| ended.reason.as_str());
        lines.push(format!(
            "your lease {} is over: {reason}. CUDA calls of the program fail; start it again for a new lease",
            now.id
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool_api::{Ended, LeaseId, Move, Name};

    fn lease() -> Lease {
        Lease {
            id: LeaseId(7),
            tenant: Name::new("t").unwrap(),
            owner: "spiffe://dxpu/tenant/t/ada".to_owned(),
            token: None,
            request: pool_api::LeaseRequest::default(),
            state: LeaseState::Granted,
            grants: Vec::new(),
            model: None,
            created_ms: 0,
            granted_ms: Some(0),
            expires_ms: 0,
            ended: None,
            moves: Vec::new(),
            moving: None,
            suspend_wanted: false,
            parking: None,
            version: 1,
        }
    }

    #[test]
    fn the_borrower_is_told_in_its_own_words() {
        let before = lease();
        let gpu = |text: &str| text.parse().unwrap();
        let moved = |to| Move {
            from: gpu("box-1/1"),
            to,
            at_ms: 0,
            reason: "it fell off the bus".to_owned(),
            said_by_borrower: false,
            planned: false,
        };
        let now = Lease { moves: vec![moved(Some(gpu("box-1/0")))], ..lease() };
        assert_eq!(
            changes(&before, &now),
            [
                "your GPU box-1/1 is lost: it fell off the bus; the lease moved to box-1/0. Start the program again, or use \
              `dxpu run --retry N`"
            ]
        );
        assert!(changes(&now, &now).is_empty(), "once");
        let planned =
            Move { planned: true, reason: "ann asked for it".to_owned(), ..moved(Some(gpu("box-1/0"))) };
        let now = Lease { moves: vec![planned], ..lease() };
        assert_eq!(changes(&before, &now), ["your program moved from box-1/1 to box-1/0: ann asked for it"]);
        let unseated = Move { planned: true, ..moved(None) };
        let now = Lease { state: LeaseState::Pending, moves: vec![unseated], ..lease() };
        assert!(changes(&before, &now)[0].contains("kept as an image, waits for another seat"));
        let now = Lease { state: LeaseState::Pending, moves: vec![moved(None)], ..lease() };
        assert!(changes(&before, &now)[0].contains("the lease waits for one"));
        let ended = Some(Ended { at_ms: 0, reason: "released by spiffe://dxpu/admin/first".to_owned() });
        let now = Lease { state: LeaseState::Releasing, ended, ..lease() };
        let told = &changes(&before, &now)[0];
        assert!(told.contains("is over: released by") && told.contains("start it again"), "{told}");
    }

    #[test]
    fn a_program_is_warned_a_minute_before_its_time_is_over() {
        let near = [61, 60, 2, 1, 0].map(|seconds| is_near(Duration::from_secs(seconds)));
        assert_eq!(near, [false, true, true, false, false]);
    }

    #[test]
    fn a_program_s_end_is_told_as_shells_do() {
        for (raw, code) in [(0, 0), (7 << 8, 7), (9, 137), (15, 143), (255 << 8, 255)] {
            assert_eq!(code_of(ExitStatus::from_raw(raw)), code);
        }
    }
}
