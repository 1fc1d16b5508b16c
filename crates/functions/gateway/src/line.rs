//! The line between the service and the CUDA library of an instance that survives.
//!
//! ```text
//!   library ── attached, protection, lost, resumed, moved, refused ──▶ line ──▶ desk
//!   library ◀── place, nowhere, move ───────────────────────────────── line ◀── desk
//! ```
//!
//! The words are those of the crate `keeper`, as `dxpu run --survive` speaks them. Each instance has a socket of its own, in
//! the folder of its token, and only its own user is let in.

use crate::desk::Desk;
use functions::{InstanceId, Link};
use keeper::{FromProgram, LINE_BYTES_MAX, State, ToProgram, What};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};

/// Links of one instance at a time. A part of a GPU has one session, so more are leftovers of ended processes.
const LINKS_MAX: usize = 8;
/// A program that reads nothing for so long is told nothing.
const TELL_WITHIN: Duration = Duration::from_secs(5);

/// The line of one instance.
pub(crate) struct Line {
    instance: InstanceId,
    desk: Weak<Desk>,
    state: Mutex<Links>,
}

#[derive(Default)]
struct Links {
    next: u64,
    links: BTreeMap<u64, (mpsc::UnboundedSender<ToProgram>, Link)>,
    /// The GPU at which the program was last told to be.
    spot: String,
    places: u32,
}

impl Line {
    /// Listens at this path until `stop`'s sender is gone.
    pub(crate) fn listen(
        desk: &Arc<Desk>,
        instance: InstanceId,
        path: &Path,
        stop: watch::Receiver<bool>,
    ) -> io::Result<Arc<Self>> {
        let listener = UnixListener::bind(path)?;
        // The folder gives the socket its group, which is the tenant's.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
        let line = Arc::new(Self { instance, desk: Arc::downgrade(desk), state: Mutex::default() });
        tokio::spawn(accept(line.clone(), listener, desk.users.user(instance), stop));
        Ok(line)
    }

    /// The next place of the instance has this number.
    pub(crate) fn next_place(&self) -> u32 {
        let mut state = locks::lock(&self.state);
        state.places += 1;
        state.places
    }

    /// The GPU at which the program was last told to be.
    pub(crate) fn spot(&self) -> String {
        locks::lock(&self.state).spot.clone()
    }

    pub(crate) fn is_at(&self, spot: String) {
        locks::lock(&self.state).spot = spot;
    }

    /// Tells all links something; false if there is none.
    pub(crate) fn tell(&self, word: &ToProgram) -> bool {
        let state = locks::lock(&self.state);
        state.links.values().filter(|(out, _)| out.send(word.clone()).is_ok()).count() > 0
    }

    fn add(&self, out: mpsc::UnboundedSender<ToProgram>) -> Option<u64> {
        let mut state = locks::lock(&self.state);
        if state.links.len() >= LINKS_MAX {
            return None;
        }
        state.next += 1;
        let id = state.next;
        state.links.insert(id, (out, Link::Attached));
        Some(id)
    }

    fn set(&self, id: u64, link: Link) {
        if let Some(found) = locks::lock(&self.state).links.get_mut(&id) {
            found.1 = link;
        }
    }

    fn remove(&self, id: u64) {
        locks::lock(&self.state).links.remove(&id);
    }

    /// How well the instance is protected. With several links a move would have to be one of all, so none is made.
    fn link(&self) -> Link {
        let state = locks::lock(&self.state);
        let mut links = state.links.values().map(|(_, link)| *link);
        match (links.next(), links.next()) {
            (None, _) => Link::None,
            (Some(link), None) => link,
            (Some(_), Some(_)) => Link::Attached,
        }
    }

    fn tell_desk(&self) {
        if let Some(desk) = self.desk.upgrade() {
            desk.linked(self.instance, self.link());
        }
    }
}

async fn accept(line: Arc<Line>, listener: UnixListener, user: Option<u32>, mut stop: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let is_own = user.is_none() || stream.peer_cred().is_ok_and(|peer| Some(peer.uid()) == user);
        if is_own {
            let (line, mut stop) = (line.clone(), stop.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = serve(line, stream) => {}
                    _ = stop.wait_for(|stop| *stop) => {}
                }
            });
        }
    }
}

/// One connection, from its first word to its end.
async fn serve(line: Arc<Line>, stream: UnixStream) {
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    let Some(FromProgram::Attached { .. }) = read(&mut from).await else { return };
    let (out, mut words) = mpsc::unbounded_channel();
    let Some(id) = line.add(out) else { return };
    let writer = tokio::spawn(async move {
        while let Some(word) = words.recv().await {
            let Ok(text) = keeper::encode(&word) else { return };
            if !matches!(tokio::time::timeout(TELL_WITHIN, to.write_all(&text)).await, Ok(Ok(()))) {
                return;
            }
        }
    });
    line.tell_desk();
    while let Some(word) = read(&mut from).await {
        hear(&line, id, word);
    }
    line.remove(id);
    line.tell_desk();
    // A move that this link was asked for has no other answer.
    if let Some(desk) = line.desk.upgrade() {
        desk.not_moved(line.instance, "its program has closed the line");
    }
    writer.abort();
}

async fn read(from: &mut BufReader<OwnedReadHalf>) -> Option<FromProgram> {
    let mut text = Vec::new();
    // One byte more than the bound tells a line that is too long from one that is as long as can be.
    from.take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut text).await.ok()?;
    keeper::decode(&text).ok()
}

fn hear(line: &Arc<Line>, id: u64, word: FromProgram) {
    let Some(desk) = line.desk.upgrade() else { return };
    let instance = line.instance;
    match word {
        FromProgram::Protection { state, why, .. } => {
            line.set(id, link_of(state));
            if state == State::Unprotected {
                tracing::warn!(%instance, why, "the program of an instance is not protected");
            }
            line.tell_desk();
        }
        FromProgram::Lost { why, is_device, .. } => desk.find_place(instance, line.clone(), why, is_device),
        FromProgram::Resumed { worker, gap_ms, .. } => desk.resumed(instance, &worker, gap_ms),
        FromProgram::Moved { .. } => desk.moved(instance),
        FromProgram::Refused { what: What::Move, why } => desk.not_moved(instance, &why),
        // What this service never asks for.
        FromProgram::Refused { .. }
        | FromProgram::Attached { .. }
        | FromProgram::Parked { .. }
        | FromProgram::Unpark {}
        | FromProgram::Drilled { .. } => {}
    }
}

fn link_of(state: State) -> Link {
    match state {
        State::Protected => Link::Protected,
        // The journal may still have everything since the program's start.
        State::Starting | State::Degraded => Link::Attached,
        State::Unprotected => Link::None,
    }
}
