//! The socket, and the threads behind it.

use crate::links::{LINKS_MAX, Link, State, protection_of};
use crate::watch;
use keeper::{FromProgram, ToProgram, What};
use locks::lock;
use pool_api::{Lease, LeaseId, SignedGrant};
use pool_client::Client;
use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A program that reads nothing for so long is told nothing.
const TELL_WITHIN: Duration = Duration::from_secs(5);

/// What a keeper needs to know.
pub struct Settings {
    /// A folder that only this user can enter: the socket and the tokens of new places are there.
    pub directory: PathBuf,
    /// How long a lost program waits for a place.
    pub patience: Duration,
    /// A program that sends nothing for so long gives its GPUs back.
    pub suspend_when_idle: Option<Duration>,
    /// Where the user is told what happens.
    pub say: Box<dyn Fn(String) + Send + Sync>,
}

/// A way to a GPU that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The worker's address.
    pub address: String,
    /// The name in its certificate.
    pub name: String,
}

/// Finds ways to GPUs.
pub trait Ways: Send + Sync {
    /// The best way to a GPU, tried; or why there is none now.
    fn way_to(&self, grant: &SignedGrant, authority: &str) -> Result<Way, String>;
}

/// Serves one program that has one lease. It ends when this goes.
pub struct Keeper {
    shared: Arc<Shared>,
    socket: PathBuf,
}

pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) id: LeaseId,
    pub(crate) ways: Box<dyn Ways>,
    pub(crate) settings: Settings,
    pub(crate) state: Mutex<State>,
    /// The lease is another than it was.
    pub(crate) changed: Condvar,
    pub(crate) is_over: AtomicBool,
    /// Counts files of tokens.
    pub(crate) files: AtomicU64,
    /// What was said last: the same loss may be told at each of many attempts.
    said: Mutex<String>,
    began: Instant,
}

impl Shared {
    /// Milliseconds since the keeper began.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Tells the user, unless it is what was told last.
    pub(crate) fn say(&self, text: impl Into<String>) {
        let text = text.into();
        let mut said = lock(&self.said);
        if *said != text {
            said.clone_from(&text);
            drop(said);
            (self.settings.say)(text);
        }
    }

    /// Takes what a manager says of the lease, and wakes the threads that wait for it.
    pub(crate) fn learn(&self, lease: &Lease) {
        if lock(&self.state).learn(lease) {
            self.changed.notify_all();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

impl Keeper {
    /// Begins to serve. `workers` are the addresses that the program finds in `DXPU_WORKER`, in the order of the lease's
    /// GPUs.
    pub fn start(
        client: Client,
        lease: Lease,
        workers: &[String],
        ways: Box<dyn Ways>,
        settings: Settings,
    ) -> io::Result<Self> {
        let socket = settings.directory.join("keeper");
        let listener = UnixListener::bind(&socket)?;
        let shared = Arc::new(Shared {
            client,
            id: lease.id,
            ways,
            state: Mutex::new(State::new(lease, workers)),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
            files: AtomicU64::new(0),
            said: Mutex::default(),
            settings,
            began: Instant::now(),
        });
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
        };
        let of = shared.clone();
        spawn("dxpu-keeper", Box::new(move || accept(&of, &listener)))?;
        let of = shared.clone();
        spawn("dxpu-lease", Box::new(move || watch::follow(&of)))?;
        let of = shared.clone();
        spawn("dxpu-protection", Box::new(move || watch::report(&of)))?;
        Ok(Self { shared, socket })
    }

    /// The socket's path, for `DXPU_KEEPER`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Keeper {
    /// The threads end by themselves: the one that accepts is woken, the others look at least every few seconds.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.changed.notify_all();
        let _ = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    for stream in listener.incoming() {
        if shared.is_over() {
            return;
        }
        let Ok(stream) = stream else { continue };
        if lock(&shared.state).links.len() >= LINKS_MAX {
            continue;
        }
        let of = shared.clone();
        let serve = move || serve(&of, stream);
        let _ = std::thread::Builder::new().name("dxpu-keeper-link".to_owned()).spawn(serve);
    }
}

/// One connection, from its first word to its end.
fn serve(shared: &Arc<Shared>, stream: UnixStream) {
    let Ok(out) = stream.try_clone() else { return };
    let _ = out.set_write_timeout(Some(TELL_WITHIN));
    let mut words = BufReader::new(stream);
    let Ok(Some(FromProgram::Attached { worker, pid, .. })) = keeper::read_line(&mut words) else { return };
    let Some(id) = attach(shared, &worker, pid, out) else {
        return shared.say(format!("the program uses {worker}, which is no GPU of lease {}", shared.id));
    };
    watch::act(shared);
    loop {
        match keeper::read_line::<FromProgram>(&mut words) {
            Ok(Some(word)) => hear(shared, id, &word),
            Ok(None) => break,
            Err(error) => {
                if !shared.is_over() {
                    shared.say(format!("the program's library cannot be understood: {error}"));
                }
                break;
            }
        }
    }
    let mut state = lock(&shared.state);
    state.links.remove(&id);
    state.is_protection_new = true;
    drop(state);
    // What the program was asked for may have waited for this link alone.
    watch::answered(shared);
}

fn attach(shared: &Shared, worker: &str, pid: u32, out: UnixStream) -> Option<u64> {
    let now_ms = shared.now_ms();
    let mut state = lock(&shared.state);
    let index = *state.addresses.get(worker)?;
    let at = state.spot(index)?;
    let id = state.next_link;
    state.next_link += 1;
    state.links.insert(id, Link::new(index, at, pid, now_ms, out));
    state.is_protection_new = true;
    Some(id)
}

fn hear(shared: &Arc<Shared>, id: u64, word: &FromProgram) {
    match word {
        FromProgram::Attached { .. } => {}
        FromProgram::Lost { why, is_device, .. } => crate::recover::lost(shared, id, why, *is_device),
        FromProgram::Unpark {} => crate::recover::unpark(shared, id),
        FromProgram::Resumed { worker, gap_ms, .. } => {
            shared.say(format!("the program goes on at {worker}; it waited for {gap_ms} ms"));
        }
        FromProgram::Moved { .. } => {
            if let Some(link) = lock(&shared.state).links.get_mut(&id) {
                link.has_moved = true;
            }
            watch::answered(shared);
        }
        FromProgram::Parked { image_bytes } => {
            if let Some(link) = lock(&shared.state).links.get_mut(&id) {
                link.parked = Some(*image_bytes);
            }
            watch::answered(shared);
        }
        FromProgram::Refused { what, why } => {
            let what_in_words = match what {
                What::Move => "moved",
                What::Suspend => "suspended",
                What::Drill => "drilled",
            };
            shared.say(format!("the program cannot be {what_in_words} now: {why}"));
            watch::refused(shared, *what, why);
        }
        FromProgram::Protection { .. } => {
            let now_ms = shared.now_ms();
            let mut state = lock(&shared.state);
            let gpu = state.links.get(&id).map(|link| link.at.0.clone());
            if let Some(said) = gpu.and_then(|gpu| protection_of(word, &gpu)) {
                state.protect(id, said, now_ms);
            }
        }
        FromProgram::Drilled { took_ms, difference } => watch::drilled(shared, *took_ms, difference.clone()),
    }
}

/// Tells one link something; whether it could be told.
pub(crate) fn tell(shared: &Shared, id: u64, word: &ToProgram) -> bool {
    lock(&shared.state).links.get(&id).is_some_and(|link| link.tell(word).is_ok())
}
