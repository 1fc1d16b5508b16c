//! Watches: a thread each, that reads etcd's stream and takes it up again on another member when it breaks.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::kv::{Kv, from_revision, to_revision};
use super::proto::{Event, EventType, WatchCreateRequest, WatchRequest, WatchResponse};
use super::runtime::Runtime;
use crate::error::StoreError;
use crate::record::Revision;
use crate::watch::{Change, Changes, UNREAD_MAX, Watch, WatchError};

/// Before the next member is asked.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn start(kv: &Kv, runtime: &Arc<Runtime>, prefix: &str, from: Revision) -> Watch {
    let (sender, receiver) = sync_channel(UNREAD_MAX);
    // Nothing is ever sent: that the other end is dropped says that the watch was dropped.
    let (hangup, hung_up) = oneshot::channel::<()>();
    let (start, end) = kv.range_of(prefix);
    let follower = Follower { kv: kv.clone(), start, end, sender, next: from };
    let runtime = runtime.clone();
    std::thread::Builder::new()
        .name("store-watch".into())
        .spawn(move || {
            runtime.run_here(async move {
                tokio::select! {
                    () = follower.run() => {}
                    _ = hung_up => {}
                }
            });
        })
        .expect("a thread can be started");
    Watch::new(receiver, Some(Box::new(hangup)))
}

struct Follower {
    kv: Kv,
    start: Vec<u8>,
    end: Vec<u8>,
    /// The thread waits here when the reader is slow.
    sender: SyncSender<Result<Changes, WatchError>>,
    next: Revision,
}

/// What follows a message of the stream.
enum Then {
    ReadOn,
    AskAgain,
    /// The watch is over, for this reason if the reader is to be told one.
    End(Option<WatchError>),
}

impl Follower {
    async fn run(mut self) {
        loop {
            if let Then::End(reason) = self.follow().await {
                if let Some(reason) = reason {
                    let _ = self.sender.send(Err(reason));
                }
                return;
            }
            self.kv.members.on();
            sleep(PAUSE).await;
        }
    }

    /// Reads one stream until it breaks.
    async fn follow(&mut self) -> Then {
        let request = WatchCreateRequest {
            key: self.start.clone(),
            range_end: self.end.clone(),
            // One earlier than wanted: a member that has compacted exactly up to the start would take it, though it
            // no longer knows what was deleted then. Zero would mean now.
            start_revision: from_revision(self.next).saturating_sub(1).max(1),
        };
        let mut stream = match self.kv.members.watch(WatchRequest { create: Some(request) }).await {
            Ok(stream) => stream,
            Err(failure) => {
                tracing::debug!(?failure, "cannot watch");
                return Then::AskAgain;
            }
        };
        loop {
            let then = match stream.message().await {
                Ok(Some(message)) => self.take(message),
                Ok(None) => Then::AskAgain,
                Err(status) => {
                    tracing::debug!(%status, "watch broken");
                    Then::AskAgain
                }
            };
            if !matches!(then, Then::ReadOn) {
                return then;
            }
        }
    }

    fn take(&mut self, message: WatchResponse) -> Then {
        if message.compact_revision > 0 {
            let oldest = to_revision(message.compact_revision).next();
            return Then::End(Some(WatchError::TooOld { oldest }));
        }
        if message.canceled {
            tracing::debug!(reason = message.cancel_reason, created = message.created, "watch cancelled");
            return Then::AskAgain;
        }
        let all = match self.group(message.events) {
            Ok(all) => all,
            Err(error) => return Then::End(Some(WatchError::Broken { source: error.into() })),
        };
        for changes in all {
            let revision = changes.revision;
            if self.sender.send(Ok(changes)).is_err() {
                return Then::End(None);
            }
            self.next = revision.next();
        }
        Then::ReadOn
    }

    /// Events by their transaction. A member never splits one.
    fn group(&self, events: Vec<Event>) -> Result<Vec<Changes>, StoreError> {
        let mut all: Vec<Changes> = Vec::new();
        for event in events {
            let kind = event.kind();
            let Some(kv) = event.kv else { continue };
            let revision = to_revision(kv.mod_revision);
            if revision < self.next {
                continue;
            }
            let change = match kind {
                EventType::Put => Change::Put(self.kv.record(kv)?),
                EventType::Delete => Change::Deleted { key: self.kv.key(&kv.key)? },
            };
            match all.last_mut() {
                Some(changes) if changes.revision == revision => changes.changes.push(change),
                _ => all.push(Changes { revision, changes: vec![change] }),
            }
        }
        Ok(all)
    }
}
