//! Waiting for GPUs, and saying why.

use super::program::Signals;
use crate::support::exit::{Exit, Failure};
use crate::support::log;
use crate::support::pool_access::failure;
use pool_api::{ErrorCode, Explanation, Lease, LeaseId, LeaseState};
use pool_client::{Client, ClientError};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How long one question waits, and so at most a user that pressed Ctrl-C.
const ASK_FOR: Duration = Duration::from_millis(500);
/// How often the reason is asked for.
const EXPLAIN_EVERY: Duration = Duration::from_secs(2);

/// A lease that is given back when this goes, however it goes.
pub(super) struct Held<'a> {
    client: &'a Client,
    id: LeaseId,
    is_held: bool,
}

impl<'a> Held<'a> {
    pub(super) fn new(client: &'a Client, id: LeaseId) -> Self {
        Self { client, id, is_held: true }
    }

    pub(super) fn give_back(mut self) {
        self.release();
    }

    fn release(&mut self) {
        if !std::mem::replace(&mut self.is_held, false) {
            return;
        }
        match self.client.release_lease(self.id) {
            Ok(_) => {}
            // It has ended already, and the user was told.
            Err(ClientError::Refused(detail))
                if matches!(detail.code, ErrorCode::Gone | ErrorCode::NotFound) => {}
            Err(error) => {
                log::say(format_args!(
                    "dxpu: lease {} could not be given back ({error}); it ends by itself soon",
                    self.id
                ));
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

/// Waits until the lease has its GPUs.
pub(super) fn until_granted(
    client: &Client,
    mut lease: Lease,
    patience: Option<Duration>,
    signals: &Signals,
) -> anyhow::Result<Lease> {
    let began = Instant::now();
    let mut line = ProgressLine::default();
    let mut explained: Option<Instant> = None;
    loop {
        match lease.state {
            LeaseState::Granted => {
                line.clear();
                return Ok(lease);
            }
            LeaseState::Pending => {}
            LeaseState::Parked => {
                let what = format!("lease {} is suspended and has no GPUs", lease.id);
                let hint = format!("dxpu lease resume {}", lease.id);
                return Err(Failure::new(Exit::Refused, what, hint).into());
            }
            LeaseState::Releasing | LeaseState::Ended => {
                let reason = lease
                    .ended
                    .map_or_else(|| "the manager does not say why".to_owned(), |ended| ended.reason);
                let what = format!("lease {} ended before it had its GPUs: {reason}", lease.id);
                return Err(Failure::new(Exit::Refused, what, "ask again").into());
            }
        }
        if let Some(signal) = signals.stop_wanted() {
            let what = format!("stopped by signal {signal} while waiting for GPUs");
            return Err(Failure::new(Exit::Failure, what, "").into());
        }
        if patience.is_some_and(|patience| began.elapsed() >= patience) {
            let why = client.get::<Explanation>(&format!("/v1/leases/{}/explain", lease.id), Duration::ZERO);
            let why = why.map(|why| in_words(&why)).unwrap_or_default();
            let what = format!(
                "no GPUs after {:.0?}{}{why}",
                began.elapsed(),
                if why.is_empty() { "" } else { ": " }
            );
            return Err(Failure::new(Exit::Unreachable, what, "wait longer (--wait), or ask for less").into());
        }
        if explained.is_none_or(|at| at.elapsed() >= EXPLAIN_EVERY) {
            explained = Some(Instant::now());
            let asked =
                client.get::<Explanation>(&format!("/v1/leases/{}/explain", lease.id), Duration::ZERO);
            if let Ok(explanation) = asked {
                line.show(&format!("waiting for GPUs (lease {}): {}", lease.id, in_words(&explanation)));
            }
        }
        lease = client.wait_for_lease(lease.id, lease.version, ASK_FOR).map_err(failure)?;
    }
}

/// Why, and what would help.
fn in_words(explanation: &Explanation) -> String {
    let mut words = match explanation.reasons.is_empty() {
        true => "it is being looked at".to_owned(),
        false => explanation.reasons.join("; "),
    };
    if explanation.ahead > 0 {
        words += &format!(" ({} ahead)", explanation.ahead);
    }
    words
}

/// One line on a terminal that changes in place; elsewhere a line for each change.
#[derive(Default)]
struct ProgressLine {
    shown: String,
}

impl ProgressLine {
    fn show(&mut self, text: &str) {
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        if text == self.shown {
            return;
        }
        let mut out = std::io::stderr();
        let _ = match out.is_terminal() {
            true => write!(out, "\r\x1b[Kdxpu: {text}").and_then(|()| out.flush()),
            false => writeln!(out, "dxpu: {text}"),
        };
        self.shown = text;
    }

    fn clear(&mut self) {
        let mut out = std::io::stderr();
        if !self.shown.is_empty() && out.is_terminal() {
            let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
        }
    }
}
