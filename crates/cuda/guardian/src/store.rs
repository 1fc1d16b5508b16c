//! A worker's way to the guardian of its box.

mod image;
mod restore;

use crate::error::Broken;
use crate::protocol::{Mode, Open};
use crate::stream::Stream;
use crate::talk::Talk;
use cuda_driver::{Blocks, ImageStore, KeptImage, StoreError};
use cuda_wire::ImageName;
use image::OpenImage;
use restore::StoredCut;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

pub use crate::talk::{Census, ImageState};

/// A guardian that says nothing for this long is lost. Longer than a fetch from another box takes to its first word,
/// short enough that a client still gets its word before it gives the session up.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long an answer may take that waits for another box: a fetch of a large image.
const FETCH_PATIENCE: Duration = Duration::from_secs(120);

/// The guardian behind a Unix socket.
#[derive(Clone, Debug)]
pub struct GuardianStore {
    path: PathBuf,
    patience: Duration,
    address: String,
    copy_at: String,
    bytes_max: u64,
    lease: String,
}

impl GuardianStore {
    /// Finds the guardian at this socket. Each image that is opened has a connection of its own.
    pub fn connect(path: &Path) -> Result<Self, StoreError> {
        let mut store = Self {
            path: path.to_owned(),
            patience: PATIENCE,
            address: String::new(),
            copy_at: String::new(),
            bytes_max: 0,
            lease: String::new(),
        };
        (store.bytes_max, store.address, store.copy_at) =
            store.talk(PATIENCE)?.hello().map_err(store_error)?;
        Ok(store)
    }

    /// The images that are opened from now on belong to a lease: they stay until [`Self::end_lease`].
    #[must_use]
    pub fn for_lease(self, lease: &str) -> Self {
        Self { lease: lease.to_owned(), ..self }
    }

    /// A guardian that says nothing for this long is lost.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The memory of all images of the guardian together.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The lease has ended: the guardian zeroes its images before this returns.
    pub fn end_lease(&self, lease: &str) -> Result<(), StoreError> {
        self.talk(self.patience)?.end_lease(lease).map_err(store_error)
    }

    /// Which leases have images at the guardian, and what memory they take; 0 for those that are on its disk.
    pub fn census(&self) -> Result<Census, StoreError> {
        self.talk(self.patience)?.census().map_err(store_error)
    }

    /// Opens an image as [`ImageStore::open`] does, with the methods that only a guardian has.
    pub fn open_image(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        incarnation: u64,
        from: &str,
    ) -> Result<OpenImage, StoreError> {
        if incarnation == 0 {
            return Err(StoreError::Refused("the first incarnation of a session is 1".to_owned()));
        }
        let open = self.opening(Mode::Write, name, secret, incarnation, from);
        // While the guardian fetches the image from another box it cannot answer.
        let mut talk = self.talk(if from.is_empty() { self.patience } else { FETCH_PATIENCE })?;
        let (bytes_max, _) = talk.open(open).map_err(store_error)?;
        talk.set_patience(self.patience).map_err(store_error)?;
        Ok(OpenImage::new(self.clone(), talk, (name, secret, incarnation), bytes_max))
    }

    /// Reads a cut here, or through this guardian at the one that `from` names.
    fn read_from(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        number: u64,
        from: &str,
    ) -> Result<Box<dyn Blocks>, StoreError> {
        let connect = || {
            let mut talk = self.talk(self.patience)?;
            // A reader has no incarnation of its own: it shuts nothing out.
            talk.open(self.opening(Mode::Read, name, secret, 1, from)).map_err(store_error)?;
            Ok::<Talk, StoreError>(talk)
        };
        Ok(Box::new(StoredCut::list(connect()?, number, connect).map_err(store_error)?))
    }

    fn opening(&self, mode: Mode, name: ImageName, secret: &[u8; 32], incarnation: u64, from: &str) -> Open {
        let mut kept = Zeroizing::new([0; 32]);
        kept.copy_from_slice(secret);
        let (from, lease) = (from.to_owned(), self.lease.clone());
        Open { mode, name, secret: kept, incarnation, from, lease }
    }

    fn talk(&self, patience: Duration) -> Result<Talk, StoreError> {
        let stream = connect(&self.path, patience).and_then(|socket| Stream::unix(socket, patience));
        let lost = |error| StoreError::Lost(format!("{}: {error}", self.path.display()));
        stream.map(Talk::new).map_err(lost)
    }
}

impl ImageStore for GuardianStore {
    fn open(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        incarnation: u64,
        from: &str,
    ) -> Result<Box<dyn KeptImage>, StoreError> {
        Ok(Box::new(self.open_image(name, secret, incarnation, from)?))
    }

    fn read(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        number: u64,
        from: &str,
    ) -> Result<Box<dyn Blocks>, StoreError> {
        match self.read_from(name, secret, number, "") {
            Err(StoreError::Refused(_)) if !from.is_empty() => self.read_from(name, secret, number, from),
            read => read,
        }
    }

    fn fetch(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        incarnation: u64,
        from: &str,
    ) -> Result<(), StoreError> {
        let mut talk = self.talk(FETCH_PATIENCE)?;
        // Its writer comes later. Until then the image is one without a writer, which the guardian keeps for a while.
        talk.open(self.opening(Mode::Ahead, name, secret, incarnation, from)).map(drop).map_err(store_error)
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn copy_at(&self) -> String {
        self.copy_at.clone()
    }
}

pub use image::OpenImage as GuardedImage;

/// Connects without blocking: a guardian that is frozen accepts nothing, and its queue may be full.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(1);
    let until = Instant::now() + patience;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    while let Err(error) = socket.connect(&SockAddr::unix(path)?) {
        if error.kind() != io::ErrorKind::WouldBlock || Instant::now() >= until {
            return Err(error);
        }
        std::thread::sleep(FULL_QUEUE_PAUSE);
    }
    socket.set_nonblocking(false)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

fn store_error(broken: Broken) -> StoreError {
    match broken {
        Broken::Refused(text) => StoreError::Refused(text),
        broken => StoreError::Lost(broken.to_string()),
    }
}
