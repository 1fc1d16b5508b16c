//! Refusals are limited for each actor: a caller that tries tokens in a loop costs a few entries a second,
//! and one more that counts the others.

use std::collections::HashMap;

use pool::AuditDraft;

/// Refusals of one action of one actor that are written in full within [`WINDOW_MS`].
const IN_FULL: u32 = 5;
const WINDOW_MS: u64 = 1_000;

/// Refusals that are counted apart for each stranger. Those of authenticated actors always are.
const STRANGERS_MAX: usize = 10_000;

/// What was refused just now.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    windows: HashMap<String, Window>,
}

#[derive(Debug)]
struct Window {
    began_ms: u64,
    count: u32,
    last: AuditDraft,
}

impl Window {
    fn is_over(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.began_ms) >= WINDOW_MS
    }

    /// What tells of those that were not written: under the actor's name, with the last of them.
    fn counted(self) -> Option<AuditDraft> {
        let more = self.count.checked_sub(IN_FULL).filter(|more| *more > 0)?;
        let detail = format!("{more} more refusals within {WINDOW_MS} ms, the last: {}", self.last.detail);
        Some(AuditDraft { detail, ..self.last })
    }
}

impl Refusals {
    /// What is to be written when a caller is refused.
    pub(super) fn take(&mut self, deed: AuditDraft, now_ms: u64) -> Vec<AuditDraft> {
        let mut written = Vec::new();
        let who = self.who(&deed);
        if self.windows.get(&who).is_some_and(|window| window.is_over(now_ms)) {
            written.extend(self.windows.remove(&who).and_then(Window::counted));
        }
        let window = self.windows.entry(who).or_insert_with(|| Window {
            began_ms: now_ms,
            count: 0,
            last: deed.clone(),
        });
        window.count = window.count.saturating_add(1);
        if window.count <= IN_FULL {
            written.push(deed);
        } else {
            window.last = deed;
        }
        written
    }

    /// What is to be written because time has passed.
    pub(super) fn over(&mut self, now_ms: u64) -> Vec<AuditDraft> {
        let over = self.windows.extract_if(|_, window| window.is_over(now_ms));
        let mut counted: Vec<AuditDraft> = over.filter_map(|(_, window)| window.counted()).collect();
        counted.sort_by(|one, other| (&one.actor, &one.address).cmp(&(&other.actor, &other.address)));
        counted
    }

    /// The key of a window. It has the action in it, so that an actor that repeats one thing is still written
    /// down when it tries another. Strangers are told apart by their machine, not by their port.
    fn who(&self, deed: &AuditDraft) -> String {
        let machine = deed.address.rsplit_once(':').map_or(deed.address.as_str(), |(machine, _)| machine);
        let who = format!("{} {machine} {}", deed.actor, deed.action);
        let is_stranger = !deed.actor.starts_with("spiffe://");
        if is_stranger && self.windows.len() >= STRANGERS_MAX && !self.windows.contains_key(&who) {
            return format!("{} {}", deed.actor, deed.action);
        }
        who
    }
}
