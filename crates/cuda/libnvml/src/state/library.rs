//! nvmlInit and nvmlShutdown, counted.

use super::{device::Session, fork};
use crate::abi::{NvmlError, NvmlResult};
use std::sync::{Arc, Mutex, MutexGuard};

/// Held while the first nvmlInit connects, so that no thread sees half of it. A fork waits for it as well.
static LIBRARY: Mutex<Library> = Mutex::new(Library { references: 0, session: None });

pub(super) struct Library {
    /// How many nvmlInit are not shut down yet.
    references: u64,
    pub(super) session: Option<Arc<Session>>,
}

pub(super) fn lock() -> MutexGuard<'static, Library> {
    locks::lock(&LIBRARY)
}

/// nvmlInit: the first one connects.
pub(crate) fn initialise() -> NvmlResult<()> {
    fork::watch();
    let mut library = lock();
    if library.session.is_none() {
        library.session = Some(Arc::new(Session::open()?));
    }
    library.references += 1;
    Ok(())
}

/// nvmlShutdown: the last one closes.
pub(crate) fn shut_down() -> NvmlResult<()> {
    let mut library = lock();
    if library.references == 0 {
        return Err(NvmlError::Uninitialized);
    }
    library.references -= 1;
    if library.references == 0 {
        let session = library.session.take();
        drop(library);
        // Not under the lock: it says goodbye to the workers.
        drop(session);
    }
    Ok(())
}

/// What was initialised.
pub(crate) fn current() -> NvmlResult<Arc<Session>> {
    lock().session.clone().ok_or(NvmlError::Uninitialized)
}
