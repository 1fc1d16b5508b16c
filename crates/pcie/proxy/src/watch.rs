//! Devices that another program serves say by file descriptors that they have something to say.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A descriptor stays readable until the proxy's thread has looked at it: it is given this long before it is called
/// again.
const BETWEEN_CALLS: Duration = Duration::from_micros(200);

/// Calls `wake` whenever one of `fds` can be read, as long as what this gives is kept.
pub fn watch(fds: &[BorrowedFd<'_>], wake: impl Fn() + Send + 'static) -> io::Result<Arc<dyn Send + Sync>> {
    let fds: Vec<OwnedFd> = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?;
    let kept: Arc<dyn Send + Sync> = Arc::new(());
    let wanted: Weak<dyn Send + Sync> = Arc::downgrade(&kept);
    let thread = std::thread::Builder::new().name("dxpu-watch".to_owned());
    thread.spawn(move || {
        let moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        while wanted.strong_count() > 0 {
            let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let found = poll(&mut polled, Some(&moment));
            let has_ended = polled.iter().any(|fd| fd.revents().contains(PollFlags::HUP));
            match found {
                Ok(0) | Err(_) => continue,
                Ok(_) => wake(),
            }
            if has_ended {
                return;
            }
            std::thread::sleep(BETWEEN_CALLS);
        }
    })?;
    Ok(kept)
}
