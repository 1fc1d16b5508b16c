//! Bringing an image to where the program will go, while it still works where it is.
//!
//! A session of its own at the target has the guardian there fetch the image beside its writer. It is not the session in which
//! the program goes on: that one is opened when nothing is left to be done here.

use super::{
    connect::{Opened, open_session},
    guard::frame,
    places::Place,
    survival::Shared,
};
use crate::log;
use cuda_wire::Command;
use std::time::Duration;
use worker_link::CONNECT_TIMEOUT;

/// How long a large image over a slow network may take.
const FETCH_MAX: Duration = Duration::from_secs(600);

/// A session at the target, while there is something to bring.
pub(super) struct Ahead {
    session: Option<Opened>,
    /// The guardian that the place names; empty: the one that has the last safe cut.
    guardian: String,
}

impl Ahead {
    pub(super) fn new(shared: &Shared, target: &Place) -> Self {
        let guardian = target.guardian.clone();
        if shared.core().cuts.guard.is_none() {
            return Self { session: None, guardian };
        }
        let ranges = vec![shared.welcome.va];
        let session = open_session(&target.address, &target.config, ranges, CONNECT_TIMEOUT);
        // The program may go on there all the same: then the whole image travels while its commands wait.
        let session = session.inspect_err(|failure| {
            log::info(&format!("worker {}: no image goes ahead: {failure}", target.address));
        });
        Self { session: session.ok(), guardian }
    }

    /// Has the guardian there fetch what it does not have of the last safe cut. Whether that is so now.
    pub(super) fn bring(&mut self, shared: &Shared) -> bool {
        let Some(session) = &mut self.session else { return false };
        let from = match self.guardian.as_str() {
            "" => shared.core().guardians(),
            named => named.to_owned(),
        };
        match shared.fetch_image(&mut session.command, from, FETCH_MAX) {
            Ok(()) => true,
            Err(error) => {
                log::info(&format!("no image goes ahead: {error}"));
                self.session = None;
                false
            }
        }
    }

    /// Nothing more is brought.
    pub(super) fn end(self) {
        if let Some(mut session) = self.session {
            // A session that is gone needs no goodbye.
            let _ = session.command.tx.send(&[&frame(&Command::Goodbye {}, 0)]);
        }
    }
}
