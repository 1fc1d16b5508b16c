//! Between a session's command stream and the driver: what the worker adds to commands.
//!
//! ```text
//!   command ─▶ before: find its image, spend credit, check for room ─▶ driver ─▶ after: write down what it made or ended
//! ```
//!
//! A command that is named in neither [`Gate::before`] nor [`Gate::settle`] goes to the driver as it came.

use crate::{
    images::ImageCache,
    session::{
        ahead::{Ahead, Found, Load},
        cuts::Refusal,
        faults::Origin,
        holdings::{Claim, GraphChange, Holdings, Thing},
        link::Link,
        place::{Place, Telling},
        presence::WhenRested,
        timeline::Timeline,
    },
};
use cuda_abi::{CuResult, CudaError};
use cuda_driver::Driver;
use cuda_wire::{Bytes, ContextId, DriverCommand, HostData, ImageSource, Op, Subject, TransferId};
use locks::lock;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// No real module is near this; a hostile client might claim to have one.
const IMAGE_BYTES_MAX: u64 = 1 << 30;

/// The longest message: a compiler's log, not a book.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

pub(crate) struct Gate {
    driver: Arc<dyn Driver>,
    link: Arc<Link>,
    images: Option<Arc<ImageCache>>,
    holdings: Holdings,
    /// First error of one-way commands by context, oldest first, not reported yet.
    deferred: Mutex<Vec<(ContextId, CudaError)>>,
    /// Memory the client may still allocate without asking.
    credit_bytes: AtomicU64,
    /// Below this the client is given more.
    credit_low_bytes: u64,
    /// The session's place among those that share its GPU; none for one that has it for itself.
    sharer: Option<Place>,
    /// In a session whose client wished for one.
    timeline: Option<Arc<Timeline>>,
    /// In a session that loads modules before they are asked for.
    ahead: Mutex<Option<Ahead>>,
}

/// An error that no reply has carried yet.
#[derive(Clone, Copy)]
pub(crate) struct Deferred {
    pub(crate) context: ContextId,
    pub(crate) error: CudaError,
    pub(crate) origin: Origin,
}

/// What is left to do when the driver has answered.
enum After {
    Nothing,
    /// Count what the driver made.
    Keep(Claim),
    /// Count a graph by its new nodes.
    Change(GraphChange),
    /// Count a thing no more.
    Remove(Thing),
    /// Count nothing of a context any more, except the context.
    Empty(ContextId),
    /// Count neither a context nor anything in it any more.
    End(ContextId),
    /// Throw away what was pushed for a copy, if the driver did not take the copy.
    Pushed {
        transfer: TransferId,
        bytes: u64,
    },
}

impl Gate {
    /// `credit_bytes`: what the welcome has granted; `host_bytes_max`: how much of this machine's memory the client's things
    /// may take.
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        link: Arc<Link>,
        images: Option<Arc<ImageCache>>,
        credit_bytes: u64,
        host_bytes_max: u64,
    ) -> Self {
        Self {
            driver,
            link,
            images,
            holdings: Holdings::new(host_bytes_max),
            deferred: Mutex::default(),
            credit_bytes: AtomicU64::new(credit_bytes),
            credit_low_bytes: credit_bytes / 2,
            sharer: None,
            timeline: None,
            ahead: Mutex::default(),
        }
    }

    /// The same for a session that shares its GPU.
    pub(crate) fn sharing(self, sharer: Option<Place>) -> Self {
        Self { sharer, ..self }
    }

    /// The same for a session with a timeline.
    pub(crate) fn timed_by(self, timeline: Option<Arc<Timeline>>) -> Self {
        Self { timeline, ..self }
    }

    /// The same for a session that loads modules before they are asked for.
    pub(crate) fn loading_ahead(self, ahead: Option<Ahead>) -> Self {
        Self { ahead: Mutex::new(ahead), ..self }
    }

    /// A read of device memory begins. An online session closes its gate first.
    pub(crate) fn telling_of_read(&self) -> Option<Telling<'_>> {
        self.sharer.as_ref().and_then(|sharer| sharer.tell_of_read())
    }

    /// A replay begins.
    pub(crate) fn replays(&self) {
        if let Some(sharer) = &self.sharer {
            sharer.replays();
        }
    }

    /// It has ended. `when_rested` is called when all work so far has ended well.
    pub(crate) fn has_replayed(&self, when_rested: WhenRested) {
        if let Some(sharer) = &self.sharer {
            sharer.has_replayed(when_rested);
        }
    }

    /// A wait of the program has ended.
    pub(crate) fn waited(&self) {
        if let Some(sharer) = &self.sharer {
            sharer.waited();
        }
    }

    /// The program has the answer to its wait. `is_called`: a command has come.
    pub(crate) fn open_soon(&self, is_called: impl FnMut() -> bool) {
        if let Some(sharer) = &self.sharer {
            sharer.open_soon(is_called);
        }
    }

    /// Has the driver execute `command`, whose answer is appended to `answer`.
    pub(crate) fn execute(&self, command: DriverCommand<'_>, answer: &mut Vec<u8>) -> CuResult<()> {
        match &command {
            DriverCommand::ModuleLoad { .. } => return self.load(command, answer),
            DriverCommand::ContextDestroy { context } | DriverCommand::ContextReset { context } => {
                if let Some(ahead) = &mut *lock(&self.ahead) {
                    ahead.forget(*context);
                }
            }
            _ => {}
        }
        self.execute_now(command, answer)
    }

    /// Loads a module, unless it is loaded already.
    fn load(&self, command: DriverCommand<'_>, answer: &mut Vec<u8>) -> CuResult<()> {
        let DriverCommand::ModuleLoad { module, context, hash, image, options } = &command else {
            return self.execute_now(command, answer);
        };
        let (module, is_on_its_way) = (*module, matches!(image, ImageSource::Pushed { .. }));
        let load = Load { module, context: *context, hash: *hash, options: options.clone() };
        let found = lock(&self.ahead).as_mut().map_or(Found::Nothing, |ahead| ahead.asked(&load));
        match found {
            // Bytes that the client sends unasked must be taken.
            Found::Ready(ready) if !is_on_its_way => answer.extend(ready),
            Found::Nothing => self.load_image(command, answer)?,
            Found::Ready(_) | Found::InTheWay => {
                self.execute_now(DriverCommand::ModuleUnload { module }, &mut Vec::new())?;
                self.load_image(command, answer)?;
            }
        }
        if let Some(ahead) = &mut *lock(&self.ahead) {
            ahead.loaded(load);
        }
        Ok(())
    }

    fn load_image(&self, command: DriverCommand<'_>, answer: &mut Vec<u8>) -> CuResult<()> {
        let image;
        let mut command = command;
        if let DriverCommand::ModuleLoad { hash, image: source, .. } = &mut command {
            image = self.image(hash, source)?;
            *source = ImageSource::Inline { bytes: Bytes(&image) };
        }
        self.execute_now(command, answer)
    }

    /// Whether there is a module to load before it is asked for.
    pub(crate) fn plans_ahead(&self) -> bool {
        lock(&self.ahead).as_ref().is_some_and(Ahead::has_next)
    }

    /// Loads one module that the program will ask for, if one is planned. Called when there is nothing else to do.
    pub(crate) fn load_next_ahead(&self) {
        let Some(load) = lock(&self.ahead).as_mut().and_then(Ahead::next) else { return };
        let mut answer = Vec::new();
        match self.load_image(load.command(), &mut answer) {
            Ok(()) => {
                if let Some(ahead) = &mut *lock(&self.ahead) {
                    ahead.prepared(load, answer);
                }
            }
            // The program asks for it itself, and hears then what is wrong. Its words are not for the next command.
            Err(_) => drop(self.driver.take_message()),
        }
    }

    /// Nothing is loaded ahead from now on: the session is protected, or loads what another one has made.
    pub(crate) fn load_nothing_ahead(&self) {
        *lock(&self.ahead) = None;
    }

    /// The session is over.
    pub(crate) fn remember_loads(&self) {
        if let Some(ahead) = &*lock(&self.ahead) {
            ahead.remember();
        }
    }

    fn execute_now(&self, command: DriverCommand<'_>, answer: &mut Vec<u8>) -> CuResult<()> {
        let after = self.before(&command)?;
        let _telling = self.sharer.as_ref().and_then(|sharer| sharer.tell(&command));
        let result = match &self.timeline {
            None => self.driver.execute(command, answer),
            Some(timeline) => timeline.execute(command, answer),
        };
        self.settle(after, &result);
        result
    }

    /// Checks what must be checked before the driver sees the command.
    fn before(&self, command: &DriverCommand<'_>) -> CuResult<After> {
        use DriverCommand as C;
        let make =
            |thing, context, data_bytes| self.holdings.claim(thing, context, data_bytes).map(After::Keep);
        match command {
            C::Enqueue { op, .. } => return Ok(self.before_work(op)),
            C::MemoryAllocate { bytes, .. } => self.spend(*bytes),

            C::ContextCreate { context, .. } => return make(Thing::Context(*context), None, 0),
            C::PhysicalCreate { handle, bytes, .. } => {
                self.spend(*bytes);
                return make(Thing::Physical(*handle), None, 0);
            }
            C::StreamCreate { stream, context, .. } | C::GreenStreamCreate { stream, context, .. } => {
                return make(Thing::Stream(*stream), Some(*context), 0);
            }
            C::EventCreate { event, context, .. } => return make(Thing::Event(*event), Some(*context), 0),
            C::ArrayCreate { array, context, .. } => return make(Thing::Array(*array), Some(*context), 0),
            C::GreenCreate { green, context, .. } => return make(Thing::Green(*green), Some(*context), 0),
            C::TextureCreate { sampler, context, .. } | C::SurfaceCreate { sampler, context, .. } => {
                return make(Thing::Sampler(*sampler), Some(*context), 0);
            }
            C::ModuleLoad { module, context, image: ImageSource::Inline { bytes }, .. } => {
                return make(Thing::Module(*module), Some(*context), bytes.0.len() as u64);
            }
            C::GraphInstantiate { exec, context, nodes } => {
                return self.holdings.claim_graph(*exec, *context, nodes).map(After::Keep);
            }

            C::GraphUpdate { exec, nodes } => {
                return self.holdings.claim_nodes(*exec, nodes).map(After::Change);
            }
            C::GraphSetNode { exec, index, op, .. } => {
                return self.holdings.claim_node(*exec, *index, op).map(After::Change);
            }

            C::ContextDestroy { context } => return Ok(After::End(*context)),
            C::ContextReset { context } => return Ok(After::Empty(*context)),
            C::PhysicalRelease { handle } => return Ok(After::Remove(Thing::Physical(*handle))),
            C::StreamDestroy { stream } => return Ok(After::Remove(Thing::Stream(*stream))),
            C::EventDestroy { event } => return Ok(After::Remove(Thing::Event(*event))),
            C::ArrayDestroy { array } => return Ok(After::Remove(Thing::Array(*array))),
            C::GreenDestroy { green } => return Ok(After::Remove(Thing::Green(*green))),
            C::SamplerDestroy { sampler } => return Ok(After::Remove(Thing::Sampler(*sampler))),
            C::ModuleUnload { module } => return Ok(After::Remove(Thing::Module(*module))),
            C::GraphDestroy { exec } => return Ok(After::Remove(Thing::Exec(*exec))),
            _ => {}
        }
        Ok(After::Nothing)
    }

    #[inline]
    fn before_work(&self, op: &Op<'_>) -> After {
        match op {
            Op::Allocate { bytes, .. } => self.spend(*bytes),
            Op::CopyIn { data: HostData::Pushed { transfer }, shape, .. } => {
                if let Some(bytes) = shape.bytes() {
                    return After::Pushed { transfer: *transfer, bytes };
                }
            }
            _ => {}
        }
        After::Nothing
    }

    /// Has `make` make a thing that no driver command makes, within what the client may have.
    pub(crate) fn count<T>(
        &self,
        thing: Thing,
        context: Option<ContextId>,
        make: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let claim = self.holdings.claim(thing, context, 0)?;
        let made = make()?;
        self.holdings.keep(claim);
        Ok(made)
    }

    /// Writes down what the driver did. What it refused changed nothing: a thing that it did not end still takes memory.
    fn settle(&self, after: After, result: &CuResult<()>) {
        match (after, result) {
            (After::Nothing, _) => {}
            // The bytes are on their way, and no stream will take them.
            (After::Pushed { transfer, bytes }, Err(_)) => self.link.discard(transfer, bytes),
            (After::Keep(claim), Ok(())) => self.holdings.keep(claim),
            (After::Change(change), Ok(())) => self.holdings.change(change),
            (After::Remove(thing), Ok(())) => self.holdings.remove(thing),
            (After::Empty(context), Ok(())) => self.holdings.forget_context(context),
            (After::End(context), Ok(())) => {
                self.holdings.forget_context(context);
                self.holdings.remove(Thing::Context(context));
            }
            (_, _) => {}
        }
    }

    /// Remembers the failure of a one-way command, if it is the first of its context.
    pub(crate) fn defer(&self, subject: Subject, error: CudaError) {
        let context = self.holdings.context_of(subject);
        let mut deferred = lock(&self.deferred);
        if deferred.iter().all(|(known, _)| *known != context) {
            deferred.push((context, error));
        }
    }

    /// The driver's words about the command that just failed, cut to what a reply may carry.
    pub(crate) fn take_message(&self) -> String {
        let mut message = self.driver.take_message().unwrap_or_default();
        let mut end = message.len().min(MESSAGE_BYTES_MAX);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message
    }

    /// The next error that a reply should carry.
    pub(crate) fn take_deferred(&self) -> Option<Deferred> {
        let mut deferred = lock(&self.deferred);
        if deferred.is_empty() {
            drop(deferred);
            let (context, error) = self.driver.take_deferred()?;
            return Some(Deferred { context, error, origin: Origin::Work });
        }
        let (context, error) = deferred.remove(0);
        Some(Deferred { context, error, origin: Origin::Command })
    }

    /// Further credit for the next reply.
    pub(crate) fn memory_credit(&self) -> u64 {
        if self.credit_bytes.load(Ordering::Relaxed) >= self.credit_low_bytes {
            return 0;
        }
        let granted = self.driver.grant_memory_credit();
        self.credit_bytes.fetch_add(granted, Ordering::Relaxed);
        granted
    }

    fn spend(&self, bytes: u64) {
        let spent = |credit: u64| Some(credit.saturating_sub(bytes));
        // Never fails: the closure always gives a value.
        let _ = self.credit_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
    }

    /// The bytes of a module image, from the cache, the command or a push. Their hash is `hash`.
    fn image<'a>(&self, hash: &[u8; 32], source: &ImageSource<'a>) -> CuResult<Cow<'a, [u8]>> {
        let bytes = match *source {
            ImageSource::Known {} => {
                let known = self.images.as_ref().and_then(|images| images.get(hash));
                return known.map(Cow::Owned).ok_or(CudaError::NOT_FOUND);
            }
            ImageSource::Inline { bytes } => Cow::Borrowed(bytes.0),
            ImageSource::Pushed { bytes, .. } if bytes > IMAGE_BYTES_MAX => {
                return Err(CudaError::INVALID_VALUE);
            }
            ImageSource::Pushed { transfer, bytes } => Cow::Owned(self.pushed_image(transfer, bytes)?),
        };
        if blake3::hash(&bytes).as_bytes() != hash {
            return Err(CudaError::INVALID_IMAGE);
        }
        if let Some(images) = &self.images
            && let Err(error) = images.put(hash, &bytes)
        {
            // The client must send the image again for its next load; nothing else is lost.
            tracing::warn!(%error, "cannot store a module image; the client sends it again at the next load");
        }
        Ok(bytes)
    }

    fn pushed_image(&self, transfer: TransferId, bytes: u64) -> CuResult<Vec<u8>> {
        let image = Mutex::new(vec![0; bytes as usize]);
        self.link.receive_plain(transfer, bytes, &|offset, piece: &[u8]| {
            let at = offset as usize;
            lock(&image)[at..at + piece.len()].copy_from_slice(piece);
        })?;
        Ok(image.into_inner().unwrap_or_default())
    }
}
