//! Replies: each leaves at once, in one piece. A thread of the client waits for it, and the command loop's next command
//! may take long.

use crate::{
    end::{EndKind, Ending},
    session::{
        cuts::Refusal,
        fault_note::FaultNote,
        faults::{Origin, is_devices, may_be_anothers},
        gate::Gate,
        link::Link,
        timeline::Timeline,
    },
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::LinkLost;
use cuda_wire::{Bytes, Notice, ReplyHeader, Subject};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

pub(crate) struct Replies {
    gate: Arc<Gate>,
    link: Arc<Link>,
    ending: Arc<Ending>,
    timeline: Option<Arc<Timeline>>,
    /// The client goes on elsewhere when the device fails.
    is_protected: AtomicBool,
    /// Where contexts are merged: a fault of another session ends this one's context.
    merged: Option<Arc<FaultNote>>,
}

impl Replies {
    pub(crate) fn new(
        gate: Arc<Gate>,
        link: Arc<Link>,
        ending: Arc<Ending>,
        timeline: Option<Arc<Timeline>>,
    ) -> Self {
        Self { gate, link, ending, timeline, is_protected: AtomicBool::new(false), merged: None }
    }

    /// The same for a session whose context may be merged with those of others.
    pub(crate) fn merged(self, merged: Option<Arc<FaultNote>>) -> Self {
        Self { merged, ..self }
    }

    /// From now on no reply carries an error that is the device's.
    pub(crate) fn protect(&self) {
        self.is_protected.store(true, Ordering::SeqCst);
    }

    /// Sends the reply to a command. Small transfers whose streams got there go ahead of it in the same piece.
    pub(crate) fn send(&self, call: u32, result: CuResult<()>, body: &[u8]) -> Result<(), LinkLost> {
        self.dispatch(call, Origin::Command, result, body, None)
    }

    /// The same for the result of a wait.
    pub(crate) fn send_awaited(&self, call: u32, result: CuResult<()>, body: &[u8]) -> Result<(), LinkLost> {
        self.dispatch(call, Origin::Work, result, body, None)
    }

    /// The same for a command that was refused. Without a reply (`call` 0) the error is deferred as any other.
    pub(crate) fn refuse(&self, call: u32, refusal: &Refusal) -> Result<(), LinkLost> {
        if call == 0 {
            self.gate.defer(Subject::Nothing, refusal.error);
            return Ok(());
        }
        self.dispatch(call, Origin::Command, Err(refusal.error), &[], refusal.own_words())
    }

    /// Sends a reply. A failure carries `words`, or the driver's, instead of an answer.
    fn dispatch(
        &self,
        call: u32,
        origin: Origin,
        result: CuResult<()>,
        body: &[u8],
        words: Option<&str>,
    ) -> Result<(), LinkLost> {
        let piece = self.link.outgoing.begin();
        // Under the lock of the piece: so each error is in one reply only, and counts never go back from a reply to the
        // next.
        let deferred = self.gate.take_deferred();
        if result.is_err() || deferred.is_some() {
            let of_result = result.err().map(|error| (error, origin));
            let of_work = deferred.map(|deferred| (deferred.error, deferred.origin));
            let errors = || of_result.into_iter().chain(of_work);
            self.note_fault(errors());
            if let Some((error, _)) = errors().find(|(error, origin)| self.is_lost(*error, *origin)) {
                drop(piece);
                return Err(self.end_device_lost(error));
            }
        }
        let (deferred_context, deferred) = match deferred {
            Some(deferred) => (deferred.context.0, deferred.error.code()),
            None => (0, 0),
        };
        let message = match words {
            _ if result.is_ok() => String::new(),
            Some(words) => words.to_owned(),
            None => self.gate.take_message(),
        };
        let body = if result.is_ok() { body } else { message.as_bytes() };
        if let Some(timeline) = &self.timeline {
            timeline.answered(call);
        }
        let header = ReplyHeader {
            bytes: body.len() as u32,
            call,
            status: result.err().map_or(0, |error| error.code()),
            deferred,
            deferred_context,
            notices: self.link.events.sent(),
            chunks: self.link.lanes.chunks_sent(),
            memory_credit_bytes: self.gate.memory_credit(),
        };
        piece.send(&header, body)
    }

    /// Notes a fault before the client hears of it: the client may leave at once, and the next one come.
    fn note_fault(&self, mut errors: impl Iterator<Item = (CudaError, Origin)>) {
        if let Some(fault) = &self.merged
            && errors.any(|(error, origin)| may_be_anothers(error, origin))
        {
            fault.note();
        }
    }

    /// Whether an error means that this protected session has lost its device.
    fn is_lost(&self, error: CudaError, origin: Origin) -> bool {
        // A transfer that the client broke off ends with the same code as a device that is gone.
        let is_clients = || {
            error == CudaError::DEVICE_UNAVAILABLE
                && (self.link.has_failed_pull() || self.ending.get().is_some())
        };
        let is_anothers = || self.merged.is_some() && may_be_anothers(error, origin);
        self.is_protected() && (is_devices(error, origin) && !is_clients() || is_anothers())
    }

    /// Whether the client goes on in another session when its device fails.
    pub(crate) fn is_protected(&self) -> bool {
        self.is_protected.load(Ordering::SeqCst)
    }

    /// The session's context has ended, whichever session's fault it was. A protected client goes on in another session. Returns whether
    /// the client is one.
    pub(crate) fn context_ended(&self, error: CudaError) -> bool {
        let is_protected = self.is_protected();
        if is_protected {
            self.end_device_lost(error);
        }
        is_protected
    }

    /// Ends the session. The client hears why before it can hear anything else of it.
    fn end_device_lost(&self, error: CudaError) -> LinkLost {
        let text = match self.merged.is_some() && error.ends_merged_contexts() {
            true => format!(
                "a fault, of this program or of another one beside it, ended their merged contexts: {error}"
            ),
            false => format!("the GPU failed, not the program: {error}"),
        };
        let _ =
            self.link.events.send(&Notice::DeviceLost { code: error.code(), text: Bytes(text.as_bytes()) });
        self.ending.end(EndKind::DeviceLost, text);
        LinkLost
    }

    /// The same as [`Self::send_awaited`] for a thread that is not the command loop. If it fails, the connection closes,
    /// which the loop notices.
    pub(crate) fn send_or_close(&self, call: u32, result: CuResult<()>, body: &[u8]) {
        if self.send_awaited(call, result, body).is_err() {
            self.link.outgoing.close();
        }
    }
}
