//! Machines that are no members any more, and what else operators must hear of.

use super::boxes::Presence;
use super::command::{About, Answer};
use super::{Ledger, Note};
use pool_api::{EventKind, Name, Taint};

impl Ledger {
    /// A box is out at once: its leases move as if it had died. Its GPUs are remembered with their epochs, so that
    /// nothing old counts should it join again.
    pub(super) fn revoke_box(&mut self, name: &Name, reason: &str, by: &str) -> Answer {
        let since_ms = self.now_ms;
        let Some(entry) = self.boxes.get_mut(name) else { return Answer::Work };
        self.silences.remove(&(entry.silent_at_ms, name.clone()));
        entry.presence = Presence::Dead;
        entry.record.revoked =
            Some(Taint { reason: reason.to_owned(), by: by.to_owned(), since_ms, drain: false });
        self.draft.boxes.insert(name.clone());
        let message = format!("box {name} is no member any more; revoked by {by}: {reason}");
        self.note(Note::new(EventKind::BoxRevoked, message).of_box(name));
        self.restand_box(name);
        self.lose_holders_of_box(name);
        Answer::Work
    }

    /// A host is out at once: boxes no longer wait for it to unplug. Its leases are for the caller to end.
    pub(super) fn revoke_host(&mut self, name: &Name, reason: &str, by: &str) -> Answer {
        let since_ms = self.now_ms;
        if !self.hosts.contains_key(name) {
            return Answer::Work;
        }
        self.give_up_host(name);
        let entry = self.hosts.get_mut(name).expect("it was there just now");
        entry.record.revoked =
            Some(Taint { reason: reason.to_owned(), by: by.to_owned(), since_ms, drain: false });
        let message = format!("host {name} is no member any more; revoked by {by}: {reason}");
        self.note(Note::new(EventKind::HostRevoked, message).of_host(name));
        Answer::Work
    }

    /// Writes down what a caller of the ledger has seen.
    pub(super) fn tell(&mut self, kind: EventKind, about: &About, message: &str) -> Answer {
        let note = Note::new(kind, message);
        self.note(match about {
            About::Pool => note,
            About::Box(name) => note.of_box(name),
            About::Host(name) => note.of_host(name),
        });
        Answer::Work
    }
}
