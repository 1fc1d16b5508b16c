//! Accepting connections at an address, and surviving what comes.

use locks::lock;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket as Socket2, Type};

use crate::address::{Address, HostPort, Scheme};
use crate::connect::resolve;
use crate::fd::{self, Interest};
use crate::raw::{Origin, RawConnection};
use crate::socket::Socket;

/// How many connections may wait to be accepted; the kernel cuts it to its own limit.
const BACKLOG: i32 = 1024;
/// A pause when the system has no memory or descriptors for one more connection, so as not to spin.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(10);
/// How long another process may hold the directory's lock while it binds.
const DIRECTORY_LOCK_WAIT: Duration = Duration::from_secs(2);

/// Accepts connections at one address. Dropping it stops that, and removes its socket file.
#[derive(Debug)]
pub struct Listener {
    socket: Socket2,
    address: Address,
    stop: Arc<OwnedFd>,
    _file: Option<SocketFile>,
    /// A descriptor to give up when there are none left, so that a waiting client can at least be turned away.
    reserve: Mutex<Option<File>>,
    shortage: Mutex<Shortage>,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Clients that met a system without descriptors or memory, and when that was last said.
#[derive(Debug, Default)]
struct Shortage {
    clients: u64,
    told: Option<Instant>,
}

/// Makes [`Listener::accept`] return `None`, from any thread, now and ever after.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<OwnedFd>,
}

impl Stopper {
    /// Stops the listener.
    pub fn stop(&self) {
        fd::eventfd_signal(self.stop.as_fd());
    }
}

impl Listener {
    /// Listens at `address`. A port of 0 becomes a free one (see [`Self::address`]). A socket file at which no process
    /// listens is replaced; one that is in use, or any other file, is left alone (`AddrInUse`). A new socket file is
    /// for its owner only; the caller may open it to others.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let (socket, address, file) = match address {
            Address::Tcp(at) | Address::Tls(at) => {
                let (socket, port) = bind_tcp(at)?;
                let at = HostPort { host: at.host.clone(), port };
                let tls = address.scheme() == Scheme::Tls;
                (socket, if tls { Address::Tls(at) } else { Address::Tcp(at) }, None)
            }
            Address::Pcie(_) => {
                let text = "a pcie: address is for clients; let the worker behind the PCI function listen at unix:/path";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
            Address::Unix(path) | Address::Shm(path) => {
                let (socket, file) = bind_unix(path)?;
                (socket, address.clone(), Some(file))
            }
        };
        socket.set_nonblocking(true)?;
        let stop = Arc::new(fd::eventfd()?);
        Ok(Self {
            socket,
            address,
            stop,
            _file: file,
            reserve: Mutex::new(open_reserve()),
            shortage: Mutex::default(),
        })
    }

    /// Where it listens, with the port that the kernel chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Stops it from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone() }
    }

    /// Waits for the next connection; `None` once stopped. Clients that give up while they wait, and a system that is
    /// out of descriptors or memory for the moment, are survived: only an error that will not pass is returned. Read
    /// the preamble in another thread, so that one silent client does not hold the next one up.
    pub fn accept(&self) -> io::Result<Option<RawConnection>> {
        loop {
            let fds = [(self.stop.as_fd(), Interest::Readable), (self.socket.as_fd(), Interest::Readable)];
            if fd::poll(fds, None)?[0] {
                return Ok(None);
            }
            if let Some(raw) = self.accept_now()? {
                return Ok(Some(raw));
            }
        }
    }

    /// The next connection if one is there; `None` also when one was and could not be had. Survives what
    /// [`Self::accept`] survives. Poll the listener for more, and [`Self::stop_fd`] for the end.
    pub fn accept_now(&self) -> io::Result<Option<RawConnection>> {
        match self.socket.accept() {
            Ok((socket, from)) => match self.prepare(socket, &from) {
                Ok(raw) => return Ok(Some(raw)),
                Err(error) => tracing::debug!(%error, "a client went away while it was accepted"),
            },
            Err(error) => self.survive(error)?,
        }
        Ok(None)
    }

    /// What becomes readable when the listener is stopped.
    pub fn stop_fd(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    fn prepare(&self, socket: Socket2, from: &SockAddr) -> io::Result<RawConnection> {
        // Linux does not hand O_NONBLOCK on, but POSIX lets a kernel do so.
        socket.set_nonblocking(false)?;
        let socket = Socket::from(OwnedFd::from(socket));
        let (peer, origin) = match from.as_socket() {
            Some(from) => {
                socket.set_no_delay()?;
                (from.to_string(), Origin::from(from.ip()))
            }
            None => {
                let (pid, uid) = fd::peer_credentials(socket.as_fd())?;
                (format!("process {pid} of user {uid}"), Origin::User(uid))
            }
        };
        Ok(RawConnection::from_fd(socket.into(), self.address.scheme(), peer, None).coming_from(origin))
    }

    /// Says that the system is short of something, but not for every client that notices.
    fn complain(&self, error: &io::Error) {
        const COMPLAIN_EVERY: Duration = Duration::from_secs(5);
        let mut shortage = lock(&self.shortage);
        shortage.clients += 1;
        if shortage.told.is_none_or(|told| told.elapsed() >= COMPLAIN_EVERY) {
            let clients = std::mem::take(&mut shortage.clients);
            shortage.told = Some(Instant::now());
            tracing::warn!(%error, address = %self.address, clients, "short of descriptors or memory: clients must wait or are turned away");
        }
    }

    fn survive(&self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => {
                self.complain(&error);
                self.turn_one_away();
            }
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                self.complain(&error);
                std::thread::sleep(EXHAUSTED_PAUSE);
            }
            // accept(2): errors of the new connection, not of the listener, and a client that is gone already.
            Some(
                libc::EAGAIN
                | libc::EINTR
                | libc::ECONNABORTED
                | libc::EPERM
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH,
            ) => {}
            _ => return Err(error),
        }
        Ok(())
    }

    /// With every descriptor in use a waiting client would keep the listener readable and busy. So the reserve is
    /// given up for a moment: accept, close, take it back.
    fn turn_one_away(&self) {
        let mut reserve = lock(&self.reserve);
        drop(reserve.take());
        drop(self.socket.accept());
        *reserve = open_reserve();
        if reserve.is_none() {
            std::thread::sleep(EXHAUSTED_PAUSE);
        }
    }
}

fn open_reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

fn bind_tcp(at: &HostPort) -> io::Result<(Socket2, u16)> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for place in resolve(at)? {
        match listen_at(&place) {
            Ok(socket) => {
                let port = socket.local_addr()?.as_socket().map_or(at.port, |local| local.port());
                return Ok((socket, port));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen_at(place: &SockAddr) -> io::Result<Socket2> {
    let socket = Socket2::new(place.domain(), Type::STREAM, None)?;
    // A restarted server must not wait for the old connections' TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(place)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn bind_unix(path: &Path) -> io::Result<(Socket2, SocketFile)> {
    // Two servers that find the same stale file must not remove each other's new one.
    let _lock = lock_directory(path.parent().unwrap_or(Path::new("/")))?;
    remove_if_stale(path)?;
    let socket = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Before listen: no client can have connected yet.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let file = SocketFile::new(path)?;
    socket.listen(BACKLOG)?;
    Ok((socket, file))
}

/// Held until dropped. Waits at most `DIRECTORY_LOCK_WAIT`, then goes on without the lock: a process that never gives
/// it back must not keep a server from starting.
fn lock_directory(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    let deadline = Instant::now() + DIRECTORY_LOCK_WAIT;
    while file.try_lock().is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(file)
}

fn remove_if_stale(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    };
    let in_use =
        |what: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{} {what}", path.display())));
    if !metadata.file_type().is_socket() {
        return in_use("exists and is not a socket");
    }
    let probe = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        // Bound, but no process listens any more.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Accepted, or queued, or not even allowed to ask: a process listens there.
        _ => in_use("belongs to a server that is running"),
    }
}

/// The file of a Unix socket, removed at the end if it is still ours.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|now| now.dev() == self.device && now.ino() == self.inode);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}
