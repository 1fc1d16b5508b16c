//! What the sessions of one worker share with each other: memory and events of a program's processes.
//!
//! ```text
//!   A's command loop ── share ──▶ table: key ▸ thing          B's command loop ── fetch(name) ─┐
//!                                   ▲                                                          │
//!                     A's thread ───┘ key, piece, proof ◀────── a Unix socket ◀────────────────┘
//!                         └─ parcel: bytes and a descriptor ──────────────────────────────────▶ B's driver
//! ```
//!
//! The front has no part in it: a session listens at an abstract address from its first share on. The address and the key
//! are 128 random bits each. The caller proves that its client has the same lease, or the same token, by a keyed hash: it
//! never says which. Processes of other users are not heard.

use crate::session::cuts::Refusal;
use cuda_abi::{CuResult, CudaError};
use cuda_driver::{Driver, Exported, Exports, Parcel};
use cuda_wire::{ShareName, Shared};
use locks::lock;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use subtle::ConstantTimeEq;

/// The most things that a session shares at a time.
const SHARES_MAX: usize = 1 << 16;
/// Things that have ended are looked for when so many were shared since the last time.
const SWEEP_EVERY: usize = 256;
/// How long one session waits for another. The other one answers on a thread of its own, within microseconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A question: key, piece, proof.
const QUESTION_BYTES: usize = 16 + 4 + 32;
/// Answers: a parcel without a descriptor, one with it, none.
const BYTES: u8 = 0;
const DESCRIPTOR: u8 = 1;
const REFUSED: u8 = 2;

const NOT_FOUND: &str = "the handle opens nothing: its owner has freed it or ended, or it belongs to another \
                         lease; both processes must run under the same lease";
const OTHER_WORKER: &str = "the handle belongs to another worker: memory and events can only be shared between \
                            processes that use the same GPU of the same worker";

/// What this session shares, and its way to what others share.
pub(crate) struct Exchange {
    worker: u64,
    /// The tenant that the client was let in as.
    tenant: String,
    table: Arc<Table>,
    /// The name of the socket, once there is one.
    session: Mutex<Option<[u8; 16]>>,
}

#[derive(Default)]
struct Table {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    things: HashMap<[u8; 16], Arc<dyn Exported>>,
    since_sweep: usize,
}

impl Exchange {
    pub(crate) fn new(worker: u64, tenant: String) -> Self {
        Self { worker, tenant, table: Arc::default(), session: Mutex::default() }
    }

    /// Shares what `what` names.
    pub(crate) fn share(
        &self,
        driver: &dyn Driver,
        what: impl FnOnce(&dyn Exports) -> CuResult<Arc<dyn Exported>>,
    ) -> Result<Shared, Refusal> {
        let thing = what(exports_of(driver)?)?;
        let session = self.listen()?;
        let (pieces, offset) = (thing.pieces(), thing.offset());
        let key = self.table.add(thing)?;
        Ok(Shared { name: ShareName { worker: self.worker, session, key }, pieces, offset })
    }

    /// Asks the session that shares it for a piece.
    pub(crate) fn fetch(&self, name: &ShareName, piece: u32) -> Result<Parcel, Refusal> {
        if name.worker != self.worker {
            return Err(Refusal::new(CudaError::INVALID_VALUE, OTHER_WORKER));
        }
        let proof = proof(name.session, name.key, &self.tenant);
        match ask(name, piece, &proof) {
            Ok(Some(parcel)) => Ok(parcel),
            Ok(None) => Err(Refusal::new(CudaError::INVALID_VALUE, NOT_FOUND)),
            Err(error) => {
                tracing::debug!(%error, "a shared handle was not answered");
                Err(Refusal::new(CudaError::INVALID_VALUE, NOT_FOUND))
            }
        }
    }

    /// The name of this session's socket. The first call makes it, and the thread that answers there.
    fn listen(&self) -> Result<[u8; 16], Refusal> {
        let mut session = lock(&self.session);
        if let Some(name) = *session {
            return Ok(name);
        }
        let start = || {
            let name = random()?;
            let listener = UnixListener::bind_addr(&address(&name)?)?;
            let (table, tenant) = (self.table.clone(), self.tenant.clone());
            let thread = std::thread::Builder::new().name("dxpu-exchange".to_owned()).stack_size(256 << 10);
            thread.spawn(move || answer_all(&listener, &name, &table, &tenant))?;
            Ok(name)
        };
        let name = start().map_err(|error: io::Error| {
            tracing::warn!(%error, "cannot share memory with other sessions");
            Refusal::new(CudaError::OPERATING_SYSTEM, format!("the worker cannot share memory: {error}"))
        })?;
        *session = Some(name);
        Ok(name)
    }
}

/// What a driver shares with.
pub(crate) fn exports_of(driver: &dyn Driver) -> Result<&dyn Exports, Refusal> {
    let words = "this worker's driver shares nothing between processes";
    driver.exports().ok_or_else(|| Refusal::new(CudaError::NOT_SUPPORTED, words))
}

impl Table {
    fn add(&self, thing: Arc<dyn Exported>) -> Result<[u8; 16], Refusal> {
        let key = random().map_err(|_| Refusal::from(CudaError::OPERATING_SYSTEM))?;
        let mut state = lock(&self.state);
        state.since_sweep += 1;
        if state.since_sweep >= SWEEP_EVERY {
            state.since_sweep = 0;
            state.things.retain(|_, thing| thing.is_alive());
        }
        if state.things.len() >= SHARES_MAX {
            let words = "the program shares more allocations and events than a session may";
            return Err(Refusal::new(CudaError::OUT_OF_MEMORY, words));
        }
        state.things.insert(key, thing);
        Ok(key)
    }

    fn find(&self, key: &[u8; 16]) -> Option<Arc<dyn Exported>> {
        lock(&self.state).things.get(key).cloned()
    }
}

fn random() -> io::Result<[u8; 16]> {
    crate::front::random_name().ok_or_else(|| io::Error::other("no randomness"))
}

/// An address without a file: it goes with the last descriptor of the socket.
fn address(session: &[u8; 16]) -> io::Result<SocketAddr> {
    let hex: String = session.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("dxpu-exchange-{hex}"))
}

/// What only a session whose client was let in as `tenant` can say about a key.
fn proof(session: [u8; 16], key: [u8; 16], tenant: &str) -> [u8; 32] {
    let mut name = [0; 32];
    name[..16].copy_from_slice(&session);
    name[16..].copy_from_slice(&key);
    *blake3::keyed_hash(&name, tenant.as_bytes()).as_bytes()
}

/// `None`: the other session refused.
fn ask(name: &ShareName, piece: u32, proof: &[u8; 32]) -> io::Result<Option<Parcel>> {
    let mut stream = UnixStream::connect_addr(&address(&name.session)?)?;
    if !is_ours(&stream)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    let mut question = [0; QUESTION_BYTES];
    question[..16].copy_from_slice(&name.key);
    question[16..20].copy_from_slice(&piece.to_le_bytes());
    question[20..].copy_from_slice(proof);
    stream.write_all(&question)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    match kind[0] {
        BYTES => {
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            if length > Parcel::BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut words = vec![0; length];
            stream.read_exact(&mut words)?;
            Ok(Some(Parcel { words, fd: None }))
        }
        DESCRIPTOR => {
            let (fd, words) = transport::fd::recv_fd(stream.as_fd())?;
            Ok(Some(Parcel { words, fd: Some(fd) }))
        }
        _ => Ok(None),
    }
}

/// Answers one session after the other, until this process ends.
fn answer_all(listener: &UnixListener, session: &[u8; 16], table: &Table, tenant: &str) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // No descriptor is left for it, say. It is there again at the next try.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if let Err(error) = answer(stream, session, table, tenant) {
            tracing::debug!(%error, "a session asked for a shared handle and went away");
        }
    }
}

fn answer(mut stream: UnixStream, session: &[u8; 16], table: &Table, tenant: &str) -> io::Result<()> {
    if !is_ours(&stream)? {
        return Ok(());
    }
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    let mut question = [0; QUESTION_BYTES];
    stream.read_exact(&mut question)?;
    let (key, rest) = question.split_at(16);
    let key: [u8; 16] = key.try_into().unwrap_or_default();
    let (piece, shown) = rest.split_at(4);
    let piece = u32::from_le_bytes(piece.try_into().unwrap_or_default());
    let is_same: bool = proof(*session, key, tenant).ct_eq(shown).into();
    let thing = table.find(&key).filter(|thing| is_same && piece < thing.pieces());
    let parcel = thing.and_then(|thing| thing.parcel(piece).ok());
    match parcel {
        None => stream.write_all(&[REFUSED]),
        Some(Parcel { words, fd: None }) => {
            let mut message = vec![BYTES];
            message.extend((words.len() as u32).to_le_bytes());
            message.extend(words);
            stream.write_all(&message)
        }
        Some(Parcel { words, fd: Some(fd) }) => {
            stream.write_all(&[DESCRIPTOR])?;
            transport::fd::send_fd(stream.as_fd(), fd.as_fd(), &words)
        }
    }
}

/// Whether the other end belongs to the user that this process belongs to.
fn is_ours(stream: &UnixStream) -> io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(peer.uid == rustix::process::geteuid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Thing(AtomicBool);

    impl Exported for Thing {
        fn pieces(&self) -> u32 {
            2
        }

        fn offset(&self) -> u64 {
            512
        }

        fn is_alive(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }

        fn parcel(&self, piece: u32) -> CuResult<Parcel> {
            if !self.is_alive() {
                return Err(CudaError::INVALID_VALUE);
            }
            let fd = (piece == 1).then(|| std::fs::File::open("/dev/null").unwrap().into());
            Ok(Parcel { words: vec![piece as u8; 3], fd })
        }
    }

    fn shared(of: &Exchange) -> (Arc<Thing>, ShareName) {
        let thing = Arc::new(Thing(AtomicBool::new(true)));
        let session = of.listen().unwrap();
        let key = of.table.add(thing.clone()).unwrap();
        (thing, ShareName { worker: of.worker, session, key })
    }

    #[test]
    fn another_session_of_the_same_tenant_gets_every_piece_until_the_thing_ends() {
        let (a, b) = (Exchange::new(7, "lease 1".into()), Exchange::new(7, "lease 1".into()));
        let (thing, name) = shared(&a);
        let parcel = b.fetch(&name, 0).unwrap();
        assert_eq!((parcel.words, parcel.fd.is_none()), (vec![0; 3], true));
        let parcel = b.fetch(&name, 1).unwrap();
        assert_eq!((parcel.words, parcel.fd.is_some()), (vec![1; 3], true));
        assert!(b.fetch(&name, 2).is_err(), "there is no third piece");
        assert!(a.fetch(&name, 0).is_ok(), "a session may import what it shares");
        thing.0.store(false, Ordering::SeqCst);
        assert!(b.fetch(&name, 0).is_err());
    }

    #[test]
    fn strangers_open_nothing() {
        let owner = Exchange::new(7, "lease 1".into());
        let (_, name) = shared(&owner);
        let refused = |of: &Exchange, name: ShareName| {
            let refusal = of.fetch(&name, 0).unwrap_err();
            assert_eq!(refusal.error, CudaError::INVALID_VALUE);
            refusal.own_words().unwrap().to_owned()
        };
        let same = Exchange::new(7, "lease 1".into());
        assert_eq!(refused(&Exchange::new(7, "lease 2".into()), name), NOT_FOUND);
        assert_eq!(refused(&same, ShareName { key: [1; 16], ..name }), NOT_FOUND);
        assert_eq!(refused(&same, ShareName { session: [1; 16], ..name }), NOT_FOUND);
        assert_eq!(refused(&Exchange::new(8, "lease 1".into()), name), OTHER_WORKER);
        assert!(same.fetch(&name, 0).is_ok());
    }

    #[test]
    fn a_session_shares_a_bounded_number_of_things_and_forgets_dead_ones() {
        let table = Table::default();
        let dead = Arc::new(Thing(AtomicBool::new(false)));
        for _ in 0..4 * SHARES_MAX {
            table.add(dead.clone()).unwrap();
        }
        assert!(lock(&table.state).things.len() <= SWEEP_EVERY);
        let live = Arc::new(Thing(AtomicBool::new(true)));
        let made = (0..SHARES_MAX + SWEEP_EVERY).take_while(|_| table.add(live.clone()).is_ok()).count();
        assert!((SHARES_MAX - SWEEP_EVERY..=SHARES_MAX).contains(&made), "{made}");
    }

    #[test]
    fn a_caller_that_says_nothing_or_too_little_harms_nobody() {
        let (a, b) = (Exchange::new(7, String::new()), Exchange::new(7, String::new()));
        let (_, name) = shared(&a);
        let mut half = UnixStream::connect_addr(&address(&name.session).unwrap()).unwrap();
        half.write_all(&[0; 5]).unwrap();
        drop(half);
        drop(UnixStream::connect_addr(&address(&name.session).unwrap()).unwrap());
        assert!(b.fetch(&name, 0).is_ok());
    }
}
