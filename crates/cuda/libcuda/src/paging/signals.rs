//! SIGSEGV: touches of closed pages become [`Touches`](super::touches::Touches); everything else goes to the handler that the
//! program had.

use super::{TOUCHES, Touch, may_be_managed, runs_host_functions, this_thread};
use std::{
    cell::Cell,
    io, mem, ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// What handled SIGSEGV before us. Never freed: a handler may be running.
static EARLIER: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs our handler in front of the one that is there, unless it is ours.
pub(super) fn install() -> io::Result<()> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut now: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: asks only; the pointer is that of a live variable.
    if unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &mut now) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let ours: Handler = handle;
    if now.sa_sigaction == ours as usize {
        return Ok(());
    }
    EARLIER.store(Box::into_raw(Box::new(now)), Ordering::Release);
    // SAFETY: all zero is a valid value.
    let mut new: libc::sigaction = unsafe { mem::zeroed() };
    new.sa_sigaction = ours as usize;
    // On the alternate stack where a thread has one; other signals may come while a thread waits for bytes.
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler is a function of this library, which is never unloaded.
    if unsafe { libc::sigaction(libc::SIGSEGV, &new, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether the processor wanted to write: bit 1 of its error code.
fn is_write(context: *mut libc::c_void) -> bool {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the context of the thread that it interrupted.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: the kernel gives a handler with SA_SIGINFO what happened.
    let (address, code) = unsafe { ((*info).si_addr() as u64, (*info).si_code) };
    // A code above 0 is the processor's own fault; others were sent by a process.
    if code > 0 && may_be_managed(address) {
        let is_host_function = runs_host_functions(this_thread());
        let touch = Touch { address, is_write: is_write(context), is_host_function };
        if TOUCHES[usize::from(is_host_function)].post_and_wait(touch) {
            // SAFETY: as above.
            unsafe { *errno = saved };
            return;
        }
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
    pass_on(signal, info, context);
}

/// Not our touch. The program's own handler has it, or the process ends as it would have.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    thread_local! {
        /// A handler that the program installed after ours may hand on to ours, which would hand on to it.
        static IS_PASSING: Cell<bool> = const { Cell::new(false) };
    }
    let earlier = EARLIER.load(Ordering::Acquire);
    // SAFETY: `install` put it there before our handler could run, and it is never freed.
    let earlier = unsafe { earlier.as_ref() };
    let handler = earlier.map_or(libc::SIG_DFL, |earlier| earlier.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN || IS_PASSING.replace(true) {
        // SAFETY: the default ends the process when the instruction is tried again.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    if earlier.is_some_and(|earlier| earlier.sa_flags & libc::SA_SIGINFO != 0) {
        // SAFETY: the program registered a function of this type.
        let handler: Handler = unsafe { mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program registered a function of this type.
        let handler: extern "C" fn(i32) = unsafe { mem::transmute(handler) };
        handler(signal);
    }
    IS_PASSING.set(false);
}
