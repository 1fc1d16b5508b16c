//! The end of the program: what is still under way is collected, and the log gets its end.

use crate::{context, log, state};

/// Runs before the driver's own end, which was registered before this.
pub(crate) extern "C" fn at_exit() {
    if state::mode().is_off() {
        return;
    }
    state::range(false);
    // The thread-local storage of the ending thread is gone, and some drivers keep state there. So a new thread asks
    // them.
    if let Ok(asking) = std::thread::Builder::new().spawn(context::settle_all) {
        let _ = asking.join();
    }
    state::stop();
    log::end();
}
