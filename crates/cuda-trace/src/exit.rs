//! The end of the program: what is still under way is collected, and the log gets its end.

use crate::{context, log, state};

/// Runs before the driver's own end, which was registered before this.
pub(crate) extern "C" fn at_exit() {
    if state::mode().is_off() {
        return;
    }
    state::range(false);
    // The ending thread's own storage is gone by now, and with it what some drivers keep there: a fresh thread asks them.
    if let Ok(asking) = std::thread::Builder::new().spawn(context::settle_all) {
        let _ = asking.join();
    }
    state::stop();
    log::end();
}
