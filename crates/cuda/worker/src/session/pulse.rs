//! Whether the session's context lives, where contexts are merged: the fault of one session ends those of all.
//!
//! ```text
//!   spare        its process ends, and the front makes another one: no client gets a context that is dead
//!   attaching    the client is told to come again
//!   served       a protected client goes on in another session; any other one has a moment to hear of the error, then the session ends
//! ```
//!
//! A session with a client notes the fault ([`FaultNote`]): here, or before its client hears of it.
//!
//! A session whose context is dead must go in any case: the server takes new clients only when those of before the fault have left.

use crate::{
    end::{EndKind, Ending},
    session::{fault_note::FaultNote, replies::Replies, spawn},
};
use cuda_abi::CudaError;
use cuda_driver::Driver;
use locks::lock;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a client that is not protected has to hear of the error by its own calls.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// A client asks for protection before all else.
const PROTECTED_WITHIN: Duration = Duration::from_secs(1);
/// How long a sign of life takes at most to come back from a device on which this session has no other work.
const SIGN_WITHIN: Duration = Duration::from_millis(5);

pub(crate) struct Pulse {
    stage: Mutex<Stage>,
    fault: Arc<FaultNote>,
}

enum Stage {
    /// The front's socket, whose end ends a process that has no client.
    Spare(UnixStream),
    Attaching,
    Served {
        replies: Arc<Replies>,
        ending: Arc<Ending>,
        /// When it is told that an online program should be protected here.
        advice_due: Option<Instant>,
    },
}

impl Pulse {
    /// Begins to look after the context of a session that has no client yet.
    pub(crate) fn start(driver: &Arc<dyn Driver>, control: UnixStream) -> Arc<Self> {
        let (stage, fault) = (Mutex::new(Stage::Spare(control)), Arc::new(FaultNote::new(driver.page())));
        let pulse = Arc::new(Self { stage, fault });
        let (kept, driver) = (pulse.clone(), driver.clone());
        spawn("dxpu-context", move || {
            loop {
                std::thread::sleep(LOOK_EVERY);
                kept.advise(Instant::now());
                let Some(error) = driver.fault() else { continue };
                if kept.is_served() {
                    kept.fault.note();
                }
                if kept.ended(error) {
                    return;
                }
            }
        });
        pulse
    }

    /// Where the session notes its fault.
    pub(crate) fn fault(&self) -> Arc<FaultNote> {
        self.fault.clone()
    }

    /// A client has come.
    pub(crate) fn attach(&self) {
        *lock(&self.stage) = Stage::Attaching;
    }

    /// The client's commands are executed from now on.
    pub(crate) fn serve(&self, replies: Arc<Replies>, ending: Arc<Ending>, is_online: bool) {
        let advice_due = is_online.then(|| Instant::now() + PROTECTED_WITHIN);
        *lock(&self.stage) = Stage::Served { replies, ending, advice_due };
    }

    fn is_served(&self) -> bool {
        matches!(&*lock(&self.stage), Stage::Served { .. })
    }

    /// Says once that an online program without protection ends with the fault of another one.
    fn advise(&self, now: Instant) {
        if let Stage::Served { replies, advice_due, .. } = &mut *lock(&self.stage)
            && advice_due.take_if(|due| now >= *due).is_some()
            && !replies.is_protected()
        {
            tracing::warn!(
                "an online program is not protected, and contexts are merged here: a fault of an offline program ends it, too; start it \
                 with `dxpu run --survive`, at a worker or box with --guard-memory"
            );
        }
    }

    /// The context has ended. False: what to do about it will be known soon.
    fn ended(&self, error: CudaError) -> bool {
        let stage = lock(&self.stage);
        match &*stage {
            Stage::Spare(control) => drop(control.shutdown(Shutdown::Both)),
            Stage::Attaching => return false,
            Stage::Served { replies, ending, .. } => {
                let (replies, ending) = (replies.clone(), ending.clone());
                drop(stage);
                if !replies.context_ended(error) {
                    std::thread::sleep(HEARD_WITHIN);
                    ending.end(EndKind::Stopped, words(error));
                }
            }
        }
        true
    }
}

fn words(error: CudaError) -> String {
    format!(
        "a fault, of this program or of another one beside it, ended the contexts of all ({error}): this worker merges them; start the \
         program again, and run one that must not notice with `dxpu run --survive`"
    )
}

/// Whether the context of a session without work lives. Waits for a sign of it.
pub(crate) fn is_alive(driver: &dyn Driver) -> bool {
    if driver.fault().is_some() {
        return false;
    }
    std::thread::sleep(SIGN_WITHIN);
    driver.fault().is_none()
}
