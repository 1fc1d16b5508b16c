//! One channel's connection to the worker, and the two threads that wait for it.
//!
//! The reader connects, then reads until the end; the writer writes what the guest sent. Both end when the connection
//! does, or when the bridge is dropped.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Bytes of the worker that wait for room in the guest's ring. More is left in the socket.
const INBOX_BYTES_MAX: usize = 256 << 10;
/// What one read takes at most.
const READ_BYTES: usize = 64 << 10;

/// What has happened since the last look.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The worker has taken the connection, or no worker is there; said once.
    pub(crate) connected: Option<bool>,
    /// Bytes of the guest that the worker's socket has taken.
    pub(crate) taken: usize,
    /// The worker takes no more; said once.
    pub(crate) deserted: bool,
    /// The worker's bytes, as many as were asked for.
    pub(crate) bytes: Vec<u8>,
    /// Nothing comes behind those; said once.
    pub(crate) finished: bool,
    /// There are more bytes than were asked for.
    pub(crate) has_more: bool,
}

#[derive(Default)]
struct State {
    stream: Option<UnixStream>,
    news: News,
    inbox: VecDeque<u8>,
    /// The worker's end was read; it is news when the inbox is empty.
    at_end: bool,
    outbox: VecDeque<Vec<u8>>,
    finish: bool,
    /// The bridge is gone.
    is_over: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    notify: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready`, or until the bridge is gone: then there is nothing to hold.
    fn when(&self, ready: impl Fn(&State) -> bool) -> Option<MutexGuard<'_, State>> {
        let state = self.changed.wait_while(self.lock(), |state| !state.is_over && !ready(state));
        let state = state.unwrap_or_else(PoisonError::into_inner);
        (!state.is_over).then_some(state)
    }

    /// Changes what others look at, and tells them.
    fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
        (self.notify)();
    }
}

/// The connection of one channel. Dropping it ends connection and threads.
pub(crate) struct Bridge {
    shared: Arc<Shared>,
}

impl Bridge {
    /// Begins to connect; `notify` is called whenever there is news.
    pub(crate) fn open(worker: PathBuf, notify: Box<dyn Fn() + Send + Sync>) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), notify });
        for (name, run) in [("gpu-fn-read", read as fn(&Shared, PathBuf)), ("gpu-fn-write", write)] {
            let (theirs, worker) = (shared.clone(), worker.clone());
            let started = thread::Builder::new().name(name.to_owned()).spawn(move || run(&theirs, worker));
            if let Err(error) = started {
                tracing::warn!(%error, "no thread for a guest's connection");
                shared.lock().news.connected = Some(false);
            }
        }
        Self { shared }
    }

    /// Bytes for the worker. The function lets no more be sent than its window, so this queue is bounded.
    pub(crate) fn send(&self, bytes: Vec<u8>) {
        self.shared.lock().outbox.push_back(bytes);
        self.shared.changed.notify_all();
    }

    /// Nothing more is sent.
    pub(crate) fn finish(&self) {
        self.shared.lock().finish = true;
        self.shared.changed.notify_all();
    }

    /// What has happened, with at most `room` of the worker's bytes.
    pub(crate) fn news(&self, room: usize) -> News {
        let mut state = self.shared.lock();
        let mut news = std::mem::take(&mut state.news);
        let count = room.min(state.inbox.len());
        let (front, back) = state.inbox.as_slices();
        let from_front = count.min(front.len());
        news.bytes.extend_from_slice(&front[..from_front]);
        news.bytes.extend_from_slice(&back[..count - from_front]);
        state.inbox.drain(..count);
        news.has_more = !state.inbox.is_empty();
        if state.at_end && state.inbox.is_empty() {
            (state.at_end, news.finished) = (false, true);
        }
        drop(state);
        if count > 0 {
            self.shared.changed.notify_all();
        }
        news
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        if let Some(stream) = &state.stream {
            // Wakes a thread that is blocked in it.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

fn read(shared: &Shared, worker: PathBuf) {
    let connected = UnixStream::connect(&worker).and_then(|stream| Ok((stream.try_clone()?, stream)));
    let mut stream = match connected {
        Ok((ours, stream)) => {
            shared.tell(|state| {
                if state.is_over {
                    // The channel was closed meanwhile: this connection has no user.
                    let _ = stream.shutdown(Shutdown::Both);
                }
                (state.stream, state.news.connected) = (Some(stream), Some(true));
            });
            ours
        }
        Err(error) => {
            tracing::warn!(%error, worker = %worker.display(), "a guest found no worker");
            return shared.tell(|state| state.news.connected = Some(false));
        }
    };
    let mut buffer = vec![0; READ_BYTES];
    while let Some(state) = shared.when(|state| state.inbox.len() < INBOX_BYTES_MAX) {
        drop(state);
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => shared.tell(|state| state.inbox.extend(&buffer[..count])),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) => return shared.tell(|state| state.at_end = true),
            // The worker went away with bytes of ours unread: it takes no more of them.
            _ => {
                return shared.tell(|state| (state.at_end, state.news.deserted) = (true, true));
            }
        }
    }
}

fn write(shared: &Shared, _worker: PathBuf) {
    let is_ready = |state: &State| state.stream.is_some() && (!state.outbox.is_empty() || state.finish);
    while let Some(mut state) = shared.when(is_ready) {
        let bytes = state.outbox.pop_front();
        let Some(Ok(mut stream)) = state.stream.as_ref().map(UnixStream::try_clone) else {
            drop(state);
            return shared.tell(|state| state.news.deserted = true);
        };
        drop(state);
        let Some(bytes) = bytes else {
            let _ = stream.shutdown(Shutdown::Write);
            return;
        };
        if stream.write_all(&bytes).is_err() {
            return shared.tell(|state| state.news.deserted = true);
        }
        shared.tell(|state| state.news.taken += bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(10);

    fn socket() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker");
        (folder, path)
    }

    /// A bridge, and what tells of news.
    fn bridge(worker: PathBuf) -> (Bridge, Receiver<()>) {
        let (tell, told) = channel();
        let notify = move || {
            // The receiver is gone at the end of a test.
            let _ = tell.send(());
        };
        (Bridge::open(worker, Box::new(notify)), told)
    }

    /// Collects news until `enough`.
    fn until(bridge: &Bridge, told: &Receiver<()>, room: usize, enough: impl Fn(&News) -> bool) -> News {
        let mut all = News::default();
        while !enough(&all) {
            told.recv_timeout(SOON).expect("news");
            let news = bridge.news(room);
            all.connected = all.connected.or(news.connected);
            all.taken += news.taken;
            all.bytes.extend(news.bytes);
            (all.deserted, all.finished) = (all.deserted | news.deserted, all.finished | news.finished);
        }
        all
    }

    #[test]
    fn bytes_pass_and_the_end_comes_behind_them() {
        let (_folder, path) = socket();
        let listener = UnixListener::bind(&path).unwrap();
        let (bridge, told) = bridge(path);
        bridge.send(b"hello ".to_vec());
        bridge.send(b"worker".to_vec());
        bridge.finish();
        let (mut worker, _) = listener.accept().unwrap();
        let mut text = String::new();
        worker.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello worker");
        worker.write_all(b"hello guest").unwrap();
        drop(worker);
        let news = until(&bridge, &told, 100, |news| news.finished);
        assert_eq!(
            (news.connected, news.taken, news.bytes.as_slice()),
            (Some(true), 12, &b"hello guest"[..])
        );
    }

    #[test]
    fn nobody_there_is_news() {
        let (_folder, path) = socket();
        let (bridge, told) = bridge(path);
        assert_eq!(until(&bridge, &told, 0, |news| news.connected.is_some()).connected, Some(false));
    }

    #[test]
    fn a_guest_without_room_leaves_bytes_where_they_are() {
        let (_folder, path) = socket();
        let listener = UnixListener::bind(&path).unwrap();
        let (bridge, told) = bridge(path);
        let (worker, _) = listener.accept().unwrap();
        worker.set_nonblocking(true).unwrap();
        let mut sent = 0;
        let pause = Duration::from_millis(100);
        // As long as something still drains what was sent, a moment later there is space again.
        loop {
            match (&worker).write(&[7; 65536]) {
                Ok(count) => sent += count,
                Err(_) => {
                    thread::sleep(pause);
                    match (&worker).write(&[7; 1]) {
                        Ok(count) => sent += count,
                        Err(_) => break,
                    }
                }
            }
        }
        assert!(sent < 4 << 20, "{sent} bytes went somewhere");
        drop(worker);
        assert_eq!(until(&bridge, &told, usize::MAX, |news| news.finished).bytes.len(), sent);
    }

    #[test]
    fn a_bridge_that_is_dropped_ends_although_the_worker_reads_nothing() {
        let (_folder, path) = socket();
        let listener = UnixListener::bind(&path).unwrap();
        let (bridge, _told) = bridge(path);
        let (mut worker, _) = listener.accept().unwrap();
        bridge.send(vec![1; 8 << 20]);
        thread::sleep(Duration::from_millis(50));
        let shared = Arc::downgrade(&bridge.shared);
        drop(bridge);
        let mut rest = Vec::new();
        worker.read_to_end(&mut rest).unwrap();
        assert!(rest.len() < 8 << 20);
        let deadline = std::time::Instant::now() + SOON;
        while shared.strong_count() > 0 {
            assert!(std::time::Instant::now() < deadline, "a thread lives on");
            thread::yield_now();
        }
    }
}
