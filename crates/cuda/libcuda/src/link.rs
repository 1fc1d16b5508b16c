//! The way to one worker: commands out, replies back, host data in lanes, notices from the worker.
//!
//! ```text
//!   calling threads ── post, call ──▶ queue ──▶ command connection ──▶ worker
//!   calling threads ◀── replies (read by the first thread that waits) ◀── worker
//!   events thread   ◀── notices: run a host function, send pulled data, print ── worker
//!   lanes           ◀── bulk bytes, straight from and to the program's memory ──▶ worker
//! ```
//!
//! Invariants: a command whose `post` or `call` returned before another's began is executed before it. A lost worker
//! wakes all waiting threads, and every later call fails at once. No lock is held while the program's code runs.
//!
//! A link that survives (`survival`) outlives its session: when the session is lost, a thread opens another one and
//! tells it what the first one was told. Calls wait meanwhile; the program sees no error.

mod ahead;
mod connect;
mod content;
mod credit;
mod cuts;
mod digest;
mod drill;
mod end;
mod events;
mod expected;
mod faults;
mod guard;
mod guard_thread;
mod keeper_line;
mod places;
mod planned;
mod pool_memory;
mod queue;
mod replies;
mod reply_reader;
mod resume;
mod shared;
mod survival;
#[cfg(test)]
mod wired;
mod wires;

pub(crate) use connect::{Session, connect};
pub(crate) use pool_memory::PoolMemory;
pub(crate) use worker_link::Config;

use crate::{host::HostRegion, log, timeline::LinkTimeline};
use credit::Credit;
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{Command, ModuleId, ModuleInfo, Notice, TransferId, Wire};
use end::{Breach, LinkEnd};
use events::Events;
use locks::lock;
use queue::Queue;
use replies::Replies;
use reply_reader::Reply;
use shared::Sharing;
use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering},
        mpsc,
    },
};
use survival::Survival;
use wires::{SessionNumber, Wires};

/// What every call returns once the worker is lost, as for a device that fell off its bus.
pub(crate) const WORKER_LOST: CudaError = CudaError::DEVICE_UNAVAILABLE;

/// More than the connections of a session have.
const DESCRIPTORS_MAX: usize = 64;
/// Stands for no descriptor.
const NO_DESCRIPTOR: i32 = -1;
/// The name of the call that restores an image; the program's calls never have it, as they never have [`FENCE_CALL`].
const RESTORE_CALL: u32 = u32::MAX - 1;
/// The name of a call that only makes the worker speak. A worker keeps small transfers until the client hears something.
const NUDGE_CALL: u32 = u32::MAX - 2;

/// An error of one-way work, with the context it happened in.
type OnDeferred = Box<dyn Fn(u32, CudaError) + Send + Sync>;

thread_local! {
    /// What the worker said about the last failed call of this thread, for logs the program asked for.
    static LAST_MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Takes the worker's words about this thread's last failed call.
pub(crate) fn take_last_message() -> String {
    LAST_MESSAGE.with(|message| message.take())
}

/// One worker, from this process's side.
pub(crate) struct Link {
    me: Weak<Link>,
    queue: Queue,
    replies: Replies,
    events: Events,
    /// The present session's.
    wires: Mutex<Arc<Wires>>,
    /// What a forked child must close, or the worker would take the child for the parent. The child can take no lock.
    descriptors: [AtomicI32; DESCRIPTORS_MAX],
    /// In a link that outlives its session.
    survival: Option<Survival>,
    lost: AtomicBool,
    next_call: AtomicU32,
    next_transfer: AtomicU64,
    credit: Credit,
    /// Bytes that may still be pushed before the worker consumed others.
    push_window: AtomicI64,
    /// All that the worker keeps before it is consumed.
    push_window_bytes: u64,
    on_deferred: OnceLock<OnDeferred>,
    /// The program's memory pools, for cuts of live memory alone.
    pools: OnceLock<Box<dyn PoolMemory>>,
    /// None where the transport has no way for memory, and in a link that survives: its journal must see the bytes.
    sharing: Option<Sharing>,
    /// Where what threads wait for, and what the worker says has run, is written down.
    timeline: Option<LinkTimeline>,
    /// Await every command: slow, but an error is returned by the call that caused it.
    await_all: bool,
    address: String,
}

impl Link {
    /// Whether the program goes on in another session if this one is lost: then results must not depend on chance.
    pub(crate) fn survives(&self) -> bool {
        self.survival.is_some()
    }

    /// The program makes what no image holds: from now on a loss of the worker is an error, and the program is told so.
    pub(crate) fn unprotect(&self, why: &'static str) {
        if let Some(survival) = &self.survival {
            survival.unprotect(why);
        }
    }

    /// Whether the worker is gone.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Ends the link: all waiting threads wake with an error.
    pub(crate) fn lose(&self, why: &LinkEnd) {
        if self.lost.swap(true, Ordering::SeqCst) {
            return;
        }
        if !crate::process::is_ending() {
            let address = match &self.survival {
                Some(survival) => survival.address(),
                None => self.address.clone(),
            };
            log::warn(&format!(
                "your GPU is lost (worker {address}): {why}. Every CUDA call fails from now on; start the program again"
            ));
        }
        let wires = self.wires();
        wires.close();
        self.replies.lose();
        self.queue.lose();
        self.events.wake();
        if let Some(survival) = &self.survival {
            survival.end(&wires);
        }
    }

    /// Session `number` broke. A link that survives goes on in another session; any other is lost.
    fn broke(&self, number: SessionNumber, why: &LinkEnd) {
        let resumes = self.survival.as_ref().is_some_and(|survival| survival.broke(self, number, why));
        if !resumes {
            match self.survival.as_ref().and_then(Survival::own_fault) {
                Some(error) => self.lose(&LinkEnd::OwnFault(error.code())),
                None => self.lose(why),
            }
        }
    }

    /// What every call returns once the worker is lost: the error of the program itself, if that is the reason.
    #[cold]
    fn lost_error(&self) -> CudaError {
        self.survival.as_ref().and_then(Survival::own_fault).unwrap_or(WORKER_LOST)
    }

    /// The connections of the present session.
    fn wires(&self) -> Arc<Wires> {
        Arc::clone(&lock(&self.wires))
    }

    /// Sets the function that is told about errors of one-way work.
    pub(crate) fn on_deferred(&self, tell: OnDeferred) {
        let _ = self.on_deferred.set(tell);
    }

    /// Sets what knows the program's memory pools.
    pub(crate) fn know_pools(&self, pools: Box<dyn PoolMemory>) {
        let _ = self.pools.set(pools);
    }

    /// Sends a command without waiting for a reply.
    #[inline]
    pub(crate) fn post(&self, command: &Command<'_>) -> CuResult<()> {
        if self.await_all {
            return self.call(command).map(drop);
        }
        if self.is_lost() {
            return Err(self.lost_error());
        }
        self.queue.append(command, 0).map_err(|error| self.broken(error))
    }

    #[cold]
    fn broken(&self, error: std::io::Error) -> CudaError {
        self.lose(&error.into());
        self.lost_error()
    }

    /// Waits for the answer to `call`, and for the bytes and notices that were sent before it. In a link that survives,
    /// the answer may be that of a later session. `None`: the worker is lost.
    fn answer(&self, call: u32, opcode: u16) -> Option<Reply> {
        loop {
            let (number, end) = match self.answer_of_one_session(call, opcode) {
                Ok(reply) => return Some(reply),
                Err(end) => end,
            };
            self.broke(number, &end);
            let goes_on = self.survival.as_ref().is_some_and(|survival| survival.wait_for_next(number));
            if !goes_on {
                self.replies.forget(call);
                return None;
            }
        }
    }

    fn answer_of_one_session(&self, call: u32, opcode: u16) -> Result<Reply, (SessionNumber, LinkEnd)> {
        let (number, reply) = self.replies.wait(call)?;
        let wires = self.wires();
        let arrived = wires.number == number
            && wires.lanes.wait_landed(&reply.0.chunks, None).is_ok()
            && self.events.wait_handled(&wires, reply.0.notices).is_ok();
        // From here on the program knows the answer, and another session must give the same one.
        if !arrived
            || !self.survival.as_ref().is_none_or(|survival| survival.answered(number, opcode, &reply))
        {
            return Err((number, LinkEnd::Undelivered));
        }
        if self.survival.is_some() {
            self.replies.forget(call);
        }
        Ok(reply)
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn call(&self, command: &Command<'_>) -> CuResult<Vec<u8>> {
        self.call_and(command, || ())
    }

    /// The same; `appended` runs when the command is among those that are sent.
    fn call_and(&self, command: &Command<'_>, appended: impl FnOnce()) -> CuResult<Vec<u8>> {
        if self.is_lost() {
            return Err(self.lost_error());
        }
        let call = self.next_call();
        let waiting = self.timeline.as_ref().map(LinkTimeline::begin);
        self.replies.expect(call);
        if let Err(error) = self.queue.append_and_flush(command, call) {
            self.lose(&error.into());
        }
        appended();
        let answer = self.answer(call, command.opcode());
        if let Some((timeline, waiting)) = self.timeline.as_ref().zip(waiting) {
            timeline.called(waiting, command.name(), call);
        }
        let (header, body) = answer.ok_or_else(|| self.lost_error())?;
        self.credit.grant(header.memory_credit_bytes);
        if let Some(error) = CudaError::from_code(header.deferred)
            && let Some(tell) = self.on_deferred.get()
        {
            tell(header.deferred_context, error);
        }
        match CudaError::from_code(header.status) {
            None => Ok(body),
            Some(error) => {
                LAST_MESSAGE
                    .with(|message| *message.borrow_mut() = String::from_utf8_lossy(&body).into_owned());
                Err(error)
            }
        }
    }

    /// Sends a command, waits for its answer and reads it.
    pub(crate) fn ask<T: for<'a> Wire<'a>>(&self, command: &Command<'_>) -> CuResult<T> {
        let body = self.call(command)?;
        T::from_bytes(&body).map_err(|source| {
            self.lose(&Breach::Answer { command: command.name(), source }.into());
            self.lost_error()
        })
    }

    /// A name for a new transfer.
    fn next_transfer(&self) -> TransferId {
        TransferId(self.next_transfer.fetch_add(1, Ordering::Relaxed))
    }

    fn next_call(&self) -> u32 {
        loop {
            let call = self.next_call.fetch_add(1, Ordering::Relaxed);
            // 0 means that no reply is wanted.
            if call != 0 && call < NUDGE_CALL {
                return call;
            }
        }
    }

    /// A name for bytes that will be pushed: the command that uses them goes first, so that they find their place
    /// prepared. `None`: the window is full, let the worker pull them.
    pub(crate) fn announce_push(&self, bytes: u64) -> Option<TransferId> {
        match &self.survival {
            None => self.take_push_window(bytes).then(|| self.next_transfer()),
            Some(survival) => {
                survival.announce_push(bytes, || self.take_push_window(bytes).then(|| self.next_transfer()))
            }
        }
    }

    /// [`Link::announce_push`], but waits while copies under way fill the window. `None`: it never holds that much.
    pub(crate) fn announce_push_soon(&self, bytes: u64) -> Option<TransferId> {
        if bytes > self.push_window_bytes {
            return None;
        }
        let announced = self.announce_push(bytes).or_else(|| {
            // The worker gives room back with a notice (`PushConsumed`).
            self.events.wait_until(|| self.announce_push(bytes), || self.is_lost()).ok()
        });
        // Lost: the push that follows says so.
        Some(announced.unwrap_or_else(|| self.next_transfer()))
    }

    /// Sends the bytes of an announced push and returns when they are out of the program's memory.
    pub(crate) fn push(&self, transfer: TransferId, region: &HostRegion) -> CuResult<()> {
        if let Some(survival) = &self.survival {
            survival.push(self, transfer, region);
            return Ok(());
        }
        let waiting = self.timeline.as_ref().map(LinkTimeline::begin);
        // The lane threads read the program's memory themselves; waiting for them here keeps it valid.
        let (done, wait) = mpsc::sync_channel(1);
        let tell = Box::new(move |result| {
            let _ = done.send(result);
        });
        self.wires().lanes.send_later(transfer, region.bytes(), Box::new(*region), tell);
        let sent = wait.recv();
        if let Some((timeline, waiting)) = self.timeline.as_ref().zip(waiting) {
            timeline.pushed(waiting, region.bytes());
        }
        match sent {
            Ok(Ok(())) => Ok(()),
            _ => Err(self.lost_error()),
        }
    }

    /// The program has loaded a module: its kernels have these names.
    pub(crate) fn loaded(&self, module: ModuleId, info: &ModuleInfo) {
        if let Some(timeline) = &self.timeline {
            timeline.module(module, info.kernels.iter().map(|kernel| kernel.name.clone()).collect());
        }
    }

    /// Whether the worker says what runs on its GPU.
    pub(crate) fn keeps_timeline(&self) -> bool {
        self.timeline.as_ref().is_some_and(LinkTimeline::is_kept)
    }

    /// Asks the worker for the time of its timeline, or for everything. False: it keeps none, or is lost.
    pub(crate) fn ask_timeline(&self, nonce: u64, flush: bool) -> bool {
        self.keeps_timeline()
            && !self.is_lost()
            && self.wires().send(&Notice::TimelineAsk { nonce, flush }).is_ok()
    }

    /// Sends the bytes of an announced push, which stay as they are until the copy is done, and returns at once.
    pub(crate) fn push_later(&self, transfer: TransferId, region: &HostRegion) {
        if let Some(survival) = &self.survival {
            return survival.push(self, transfer, region);
        }
        self.wires().lanes.send_later(transfer, region.bytes(), Box::new(*region), Box::new(|_| {}));
    }

    fn take_push_window(&self, bytes: u64) -> bool {
        let Ok(bytes) = i64::try_from(bytes) else { return false };
        self.push_window
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| (room >= bytes).then(|| room - bytes))
            .is_ok()
    }

    /// The worker of session `number` has consumed pushed bytes.
    fn push_consumed(&self, number: SessionNumber, bytes: u64) {
        let bytes = bytes.min(i64::MAX as u64) as i64;
        let add = || {
            self.push_window.fetch_add(bytes, Ordering::Relaxed);
        };
        match &self.survival {
            None => add(),
            Some(survival) => survival.if_present(number, add),
        }
    }

    /// Lets the worker ask for `region` as often as it needs it, until [`Link::withdraw`]; with `once`, one time.
    pub(crate) fn offer(&self, region: &HostRegion, once: bool) -> TransferId {
        let transfer = self.next_transfer();
        self.events.offer(transfer, *region, once);
        transfer
    }

    /// Whether the worker may have the bytes of a large copy already: they had better be pulled then.
    pub(crate) fn asks_by_name(&self, bytes: u64) -> bool {
        bytes >= cuda_wire::content::BLOCK_BYTES && self.wires().content.asks(bytes)
    }

    /// Takes an offer or an expectation back.
    pub(crate) fn withdraw(&self, transfer: TransferId) {
        self.events.withdraw(transfer);
        self.give_up(transfer);
    }

    /// Takes an offer back; its memory is the program's again when this returns.
    pub(crate) fn withdraw_and_wait(&self, transfer: TransferId) {
        self.events.withdraw_and_wait(transfer);
    }

    /// Gives up an expectation, if its bytes are not there yet. `landed` still runs, when no lane writes the memory any
    /// more.
    pub(crate) fn give_up(&self, transfer: TransferId) {
        let wires = self.wires();
        match &self.survival {
            None => wires.lanes.cancel(transfer),
            Some(survival) => survival.expectations().give_up(&wires, transfer),
        }
    }

    /// Gets ready to receive a transfer into `region`; `landed` runs when its last byte is there, or never will be.
    pub(crate) fn expect(&self, region: &HostRegion, landed: Box<dyn FnOnce() + Send>) -> TransferId {
        self.expect_by(region.bytes(), Box::new(*region), landed)
    }

    /// Gets ready to receive a transfer that `sink` takes piece by piece; `landed` as for [`Link::expect`].
    pub(crate) fn expect_by(
        &self,
        bytes: u64,
        sink: Box<dyn bulk::Sink + Send + Sync>,
        landed: Box<dyn FnOnce() + Send>,
    ) -> TransferId {
        let transfer = self.next_transfer();
        self.expect_named(transfer, bytes, sink, landed);
        transfer
    }

    /// The same for a transfer whose name is known already.
    pub(crate) fn expect_named(
        &self,
        transfer: TransferId,
        bytes: u64,
        sink: Box<dyn bulk::Sink + Send + Sync>,
        landed: Box<dyn FnOnce() + Send>,
    ) {
        match &self.survival {
            None => {
                self.wires().lanes.expect_later(transfer, bytes, sink, Box::new(move |_| landed()));
            }
            Some(survival) => survival.expect(self, transfer, bytes, sink, landed),
        }
    }

    /// The program loads an image: a link that survives can load it again at a worker that does not know it.
    pub(crate) fn keep_image(&self, hash: [u8; 32], bytes: &[u8]) {
        if let Some(survival) = &self.survival {
            survival.keep_image(hash, bytes);
        }
    }

    /// A name for a transfer that a graph makes at each of its launches.
    pub(crate) fn name_repeated(&self) -> TransferId {
        self.next_transfer()
    }

    /// Registers what a host function of the stream runs; `once` forgets it afterwards.
    pub(crate) fn offer_host_call(&self, run: Box<dyn FnMut() + Send>, once: bool) -> u64 {
        self.events.offer_host_call(run, once)
    }

    /// Whether a host function of the program may still run.
    pub(crate) fn host_calls_left(&self) -> bool {
        self.events.host_calls_left()
    }

    /// Forgets a host function.
    pub(crate) fn withdraw_host_call(&self, token: u64) {
        self.events.withdraw_host_call(token);
    }

    /// A name for this link that keeps nothing alive.
    fn shared(&self) -> Weak<Link> {
        self.me.clone()
    }

    /// Tells the worker that the process ends well.
    pub(crate) fn say_goodbye(&self) {
        let is_between_sessions = self.survival.as_ref().is_some_and(|survival| !survival.is_live());
        if !self.is_lost() && !is_between_sessions {
            // Without it the worker takes the end for a crash, which changes nothing but its log.
            let _ = self.queue.append_last(&Command::Goodbye {});
        }
    }

    /// Descriptors that a forked child closes.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = i32> {
        let all = self.descriptors.iter().map(|descriptor| descriptor.load(Ordering::SeqCst));
        all.filter(|descriptor| *descriptor != NO_DESCRIPTOR)
    }

    /// Makes a session the present one.
    fn install(&self, wires: Arc<Wires>) {
        if let Some(timeline) = &self.timeline {
            timeline.begin_session();
        }
        let keeper = self.survival.as_ref().and_then(Survival::keeper_descriptor);
        let numbers = wires.descriptors().iter().copied().chain(keeper);
        let numbers = numbers.chain(std::iter::repeat(NO_DESCRIPTOR));
        for (place, descriptor) in self.descriptors.iter().zip(numbers) {
            place.store(descriptor, Ordering::SeqCst);
        }
        *lock(&self.wires) = wires;
    }
}

/// A link, shared by all that use it.
pub(crate) type SharedLink = Arc<Link>;

#[cfg(test)]
mod tests;
