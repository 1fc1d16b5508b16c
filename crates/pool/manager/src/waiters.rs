//! Requests that wait for a change: a long poll costs an entry here, not a thread.

use std::collections::HashMap;

use pool_api::{LeaseId, Name};
use tokio::sync::oneshot;

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// A lease changes.
    Lease(LeaseId),
    /// A box or one of its GPUs changes, and so perhaps its orders.
    Box(Name),
    /// A host changes, and so perhaps its orders.
    Host(Name),
    /// Anything changes.
    Anything,
}

/// The waiting requests, by topic.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: HashMap<Topic, Vec<oneshot::Sender<()>>>,
    added: usize,
}

/// How many are added before those that have hung up are forgotten.
const SWEEP_EVERY: usize = 4096;

impl Waiters {
    /// What is returned comes true with the next change, or fails when this manager leads no longer.
    pub(crate) fn add(&mut self, topic: Topic) -> oneshot::Receiver<()> {
        self.added += 1;
        if self.added.is_multiple_of(SWEEP_EVERY) {
            self.waiting.retain(|_, waiting| {
                waiting.retain(|waiter| !waiter.is_closed());
                !waiting.is_empty()
            });
        }
        let (wake, woken) = oneshot::channel();
        self.waiting.entry(topic).or_default().push(wake);
        woken
    }

    /// How many requests wait now.
    pub(crate) fn len(&self) -> usize {
        self.waiting.values().flatten().filter(|waiter| !waiter.is_closed()).count()
    }

    /// Wakes the requests that wait for one of these keys. Called after their commit.
    pub(crate) fn wake<'a>(&mut self, keys: impl Iterator<Item = &'a str>) {
        if self.waiting.is_empty() {
            return;
        }
        let mut is_change = false;
        for key in keys {
            // An identity was revoked: every waiting request is authenticated again.
            if key.starts_with(crate::access::DENIED_PREFIX) {
                self.wake_all();
                return;
            }
            is_change |= topic_of(key).is_some();
            if let Some(topic) = topic_of(key) {
                self.wake_topic(&topic);
            }
        }
        if is_change {
            self.wake_topic(&Topic::Anything);
        }
    }

    fn wake_all(&mut self) {
        for waiter in self.waiting.drain().flat_map(|(_, waiting)| waiting) {
            let _ = waiter.send(());
        }
    }

    fn wake_topic(&mut self, topic: &Topic) {
        for waiter in self.waiting.remove(topic).into_iter().flatten() {
            let _ = waiter.send(());
        }
    }
}

fn topic_of(key: &str) -> Option<Topic> {
    let (kind, rest) = key.split_once('/')?;
    match kind {
        "lease" => rest.parse().ok().map(Topic::Lease),
        "box" => Name::new(rest).ok().map(Topic::Box),
        "host" => Name::new(rest).ok().map(Topic::Host),
        "gpu" => Name::new(rest.split_once('/')?.0).ok().map(Topic::Box),
        "tenant" | "spare" | "event" => Some(Topic::Anything),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_wake_whom_it_concerns() {
        let mut waiters = Waiters::default();
        let lease: LeaseId = "l-00c0ffee00c0ffee".parse().unwrap();
        let mut of_lease = waiters.add(Topic::Lease(lease));
        let mut of_box = waiters.add(Topic::Box(Name::new("rack1-a").unwrap()));
        let mut of_all = waiters.add(Topic::Anything);
        waiters.wake(["auth/token/1", "audit/2"].into_iter());
        assert!(of_all.try_recv().is_err());
        waiters.wake(["gpu/rack1-a/3"].into_iter());
        assert!(of_lease.try_recv().is_err());
        assert!(of_box.try_recv().is_ok() && of_all.try_recv().is_ok());
        waiters.wake(["lease/l-00c0ffee00c0ffee"].into_iter());
        assert!(of_lease.try_recv().is_ok());
        let mut of_other = waiters.add(Topic::Host(Name::new("hv-7").unwrap()));
        waiters.wake(["auth/denied/token/3f2a90c1d4e5b677"].into_iter());
        assert!(of_other.try_recv().is_ok(), "it may be the one who was revoked");
    }
}
