//! Stands between the program and a worker, counts whole frames of each session, and cuts all its connections after one.

use cuda_wire::{ChunkHeader, CommandHeader, NoticeHeader, ReplyHeader};
use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

/// When a session is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Behind this frame, counted over all its connections.
    After(u64),
    /// The same, and no session comes after it.
    ForGood(u64),
}

const PREAMBLE_BYTES: usize = 64;
const KIND_AT: usize = 10;
const SESSION_AT: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Command,
    Events,
    Lane,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToWorker,
    ToClient,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    worker: PathBuf,
    plan: Vec<Cut>,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Sessions by name, in the order in which they came.
    order: HashMap<[u8; 16], usize>,
    sessions: Vec<Session>,
    is_closed: bool,
    /// Clients that asked to be let in.
    knocks: u64,
}

#[derive(Default)]
struct Session {
    frames: u64,
    is_cut: bool,
    streams: Vec<UnixStream>,
}

impl Proxy {
    /// Listens at `path` for programs that want the worker at `worker`.
    pub(crate) fn start(path: &Path, worker: &Path, plan: &[Cut]) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let books = Mutex::default();
        let shared = Arc::new(Shared { worker: worker.to_owned(), plan: plan.to_vec(), books });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), shared) = (stream, Arc::clone(&serving)) else { return };
                thread::spawn(move || shared.serve(stream));
            }
        });
        Self { shared }
    }

    /// Frames of each session.
    pub(crate) fn frames(&self) -> Vec<u64> {
        self.shared.books.lock().unwrap().sessions.iter().map(|session| session.frames).collect()
    }

    /// How often a client has asked to be let in.
    pub(crate) fn knocks(&self) -> u64 {
        self.shared.books.lock().unwrap().knocks
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: UnixStream) -> Option<()> {
        let mut preamble = [0; PREAMBLE_BYTES];
        (&client).read_exact(&mut preamble).ok()?;
        let kind = match preamble[KIND_AT] {
            0 => Kind::Command,
            1 => Kind::Events,
            2 => Kind::Lane,
            _ => Kind::Other,
        };
        let name: [u8; 16] = preamble[SESSION_AT..SESSION_AT + 16].try_into().ok()?;
        let worker = UnixStream::connect(&self.worker).ok()?;
        let session = {
            let mut books = self.books.lock().unwrap();
            if books.is_closed {
                return None;
            }
            match kind {
                Kind::Other => {
                    books.knocks += 1;
                    None
                }
                _ => {
                    let Books { order, sessions, .. } = &mut *books;
                    let place = *order.entry(name).or_insert_with(|| {
                        sessions.push(Session::default());
                        sessions.len() - 1
                    });
                    let session = &mut sessions[place];
                    if session.is_cut {
                        return None;
                    }
                    session.streams.extend([client.try_clone().ok()?, worker.try_clone().ok()?]);
                    Some(place)
                }
            }
        };
        (&worker).write_all(&preamble).ok()?;
        let (client_too, worker_too) = (client.try_clone().ok()?, worker.try_clone().ok()?);
        let shared = Arc::clone(self);
        thread::spawn(move || shared.pump(client, worker, session, kind, Way::ToWorker));
        self.pump(worker_too, client_too, session, kind, Way::ToClient);
        Some(())
    }

    fn pump(&self, from: UnixStream, to: UnixStream, session: Option<usize>, kind: Kind, way: Way) {
        let _ = match session {
            Some(session) => self.pump_frames(&from, &to, session, kind, way),
            None => io::copy(&mut &from, &mut &to).map(drop),
        };
        let _ = to.shutdown(Shutdown::Write);
    }

    fn pump_frames(
        &self,
        mut from: &UnixStream,
        mut to: &UnixStream,
        session: usize,
        kind: Kind,
        way: Way,
    ) -> io::Result<()> {
        let mut frame = Vec::new();
        let mut pass = |head: usize, length: &dyn Fn(&[u8]) -> usize| -> io::Result<()> {
            frame.resize(head, 0);
            from.read_exact(&mut frame)?;
            let body = length(&frame);
            frame.resize(head + body, 0);
            from.read_exact(&mut frame[head..])?;
            to.write_all(&frame)
        };
        let word =
            |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        // What comes before the session itself is not counted: a connection that is cut there was never one of it.
        if way == Way::ToClient {
            pass(PREAMBLE_BYTES, &|_| 0)?;
        }
        if way == Way::ToWorker || kind == Kind::Command {
            pass(4, &|head| word(head, 0))?;
        }
        loop {
            match (kind, way) {
                (Kind::Command, Way::ToWorker) => pass(CommandHeader::BYTES, &|head| word(head, 0))?,
                (Kind::Command, Way::ToClient) => pass(ReplyHeader::BYTES, &|head| word(head, 0))?,
                (Kind::Events, _) => pass(NoticeHeader::BYTES, &|head| word(head, 0))?,
                (Kind::Lane, _) => pass(ChunkHeader::BYTES, &|head| word(head, 16))?,
                (Kind::Other, _) => return Ok(()),
            }
            self.count(session);
        }
    }

    /// A frame has passed.
    fn count(&self, place: usize) {
        let mut books = self.books.lock().unwrap();
        let session = &mut books.sessions[place];
        session.frames += 1;
        let (frames, cut) = (session.frames, self.plan.get(place).copied());
        let is_due = matches!(cut, Some(Cut::After(nth) | Cut::ForGood(nth)) if frames >= nth);
        if is_due && !session.is_cut {
            session.is_cut = true;
            for stream in &session.streams {
                let _ = stream.shutdown(Shutdown::Both);
            }
            books.is_closed |= matches!(cut, Some(Cut::ForGood(_)));
        }
    }
}
