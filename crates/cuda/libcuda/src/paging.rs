//! Pages of managed memory in this process: mapping them, closing them to the program, hearing of touches.
//!
//! ```text
//!   a thread of the program touches a closed page
//!     │ SIGSEGV (`signals`), or an event of a userfaultfd (`userfault`)
//!     ▼
//!   touches ── `dxpu-pages` asks the resolver: bytes are fetched, the page is opened ──▶ the thread goes on
//! ```
//!
//! With a userfaultfd the kernel waits for pages, too: read(2) into managed memory works. Where the system does not give
//! one to this process, page protection and a handler of SIGSEGV do the same for the program's own instructions.
//!
//! Touches by the program's host functions are served by a thread of their own, `dxpu-pages-fn`: the other one may be waiting
//! for a stream that waits for such a function.

#![allow(unsafe_code)]

mod pages;
mod signals;
mod touches;
mod userfault;

pub(crate) use pages::{Access, Pages, is_adoptable};
pub(crate) use touches::Touch;

use std::{
    io,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
};
use touches::Touches;
use userfault::Userfault;

/// What touches are for.
pub(crate) struct Resolver {
    /// Opens what was touched and then calls the function: with false if there is nothing at the address, or it cannot be
    /// had. It may do more afterwards, while the program goes on.
    pub(crate) touched: fn(Touch, &mut dyn FnMut(bool)),
    /// Does some work ahead, if there is any, and says whether there may be more.
    pub(crate) idle: fn() -> bool,
}

/// How touches are heard of.
enum Way {
    Userfault(Userfault),
    Signals,
}

static WAY: OnceLock<Way> = OnceLock::new();
/// Touches by the program's threads, and by its host functions.
static TOUCHES: [Touches; 2] = [Touches::new(), Touches::new()];

/// All managed memory so far lay from `!BELOW` up to `END`.
static BELOW: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

/// Set in a forked child, which has no threads to serve its touches.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Threads that run the program's host functions, one for each worker. Beyond these many, touches are served as others are.
static HOST_FUNCTION_THREADS: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];

/// Variable that chooses: `signals`, or whatever else for the best there is.
const CHOICE: &str = "DXPU_MANAGED_PAGES";

/// Gets ready to hear of touches. Later calls only see to it that the program has not taken the signal.
pub(crate) fn start(resolver: &'static Resolver) -> io::Result<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = locks::lock(&STARTING);
    if WAY.get().is_none() {
        let wants_signals = std::env::var(CHOICE).is_ok_and(|choice| choice == "signals");
        let way = match if wants_signals { Err(io::ErrorKind::Unsupported.into()) } else { Userfault::open() }
        {
            Ok(userfault) => Way::Userfault(userfault),
            Err(error) => {
                crate::log::debug(|| format!("managed memory without userfaultfd ({error}): by SIGSEGV"));
                Way::Signals
            }
        };
        crate::threads::spawn("dxpu-pages", move || serve(&TOUCHES[0], resolver, true))?;
        crate::threads::spawn("dxpu-pages-fn", move || serve(&TOUCHES[1], resolver, false))?;
        let way = WAY.get_or_init(|| way);
        if let Way::Userfault(userfault) = way {
            crate::threads::spawn("dxpu-userfault", move || userfault.listen(announce))?;
        }
    }
    if matches!(WAY.get(), Some(Way::Signals)) { signals::install() } else { Ok(()) }
}

/// Whether the program has had managed memory, so that what it touches may have to be sent or fetched.
pub(crate) fn is_started() -> bool {
    WAY.get().is_some()
}

/// Called when pages are closed: a program may have installed a handler of its own since.
pub(crate) fn keep_ready() {
    if matches!(WAY.get(), Some(Way::Signals)) {
        let _ = signals::install();
    }
}

/// Whether system calls may use managed memory, for the log.
pub(crate) fn serves_system_calls() -> bool {
    matches!(WAY.get(), Some(Way::Userfault(userfault)) if userfault.serves_kernel)
}

fn userfault() -> Option<&'static Userfault> {
    match WAY.get() {
        Some(Way::Userfault(userfault)) => Some(userfault),
        _ => None,
    }
}

/// This thread runs the program's host functions.
pub(crate) fn note_host_function_thread() {
    let me = this_thread();
    let free =
        |place: &&AtomicI32| place.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let _ = HOST_FUNCTION_THREADS.iter().find(free);
}

/// In the child of a fork.
pub(crate) fn forked() {
    IS_FORKED.store(true, Ordering::SeqCst);
}

fn this_thread() -> i32 {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

fn runs_host_functions(thread: i32) -> bool {
    HOST_FUNCTION_THREADS.iter().any(|place| place.load(Ordering::Acquire) == thread)
}

fn may_be_managed(address: u64) -> bool {
    address < END.load(Ordering::Acquire)
        && address >= !BELOW.load(Ordering::Acquire)
        && !IS_FORKED.load(Ordering::Acquire)
}

fn note_managed(base: u64, bytes: u64) {
    BELOW.fetch_max(!base, Ordering::AcqRel);
    END.fetch_max(base + bytes, Ordering::AcqRel);
}

/// An event of the userfaultfd becomes a touch.
fn announce(address: u64, is_write: bool, thread: i32) {
    let is_host_function = runs_host_functions(thread);
    TOUCHES[usize::from(is_host_function)].post_owned(Touch { address, is_write, is_host_function });
}

/// The life of a serving thread.
fn serve(touches: &Touches, resolver: &Resolver, does_idle_work: bool) {
    loop {
        let bell = touches.bell();
        let mut any = false;
        touches.serve(|touch, done| {
            any = true;
            (resolver.touched)(touch, done);
        });
        any = any || (does_idle_work && (resolver.idle)());
        if !any {
            touches.sleep(bell);
        }
    }
}

/// Work ahead is there for the serving thread.
pub(crate) fn ring() {
    TOUCHES[0].ring();
}
