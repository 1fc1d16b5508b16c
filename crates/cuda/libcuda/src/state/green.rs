//! Green contexts. One is a primary context seen through a part of its multiprocessors: memory, modules and events are the primary
//! context's, only streams are its own. So a thread that has one has the primary context, and a mark that says which default stream
//! it means.

use super::{Context, LocalStorage, Stream, StreamKind, client, context_event::Gathering};
use cuda_abi::{CuResult, CudaError};
use cuda_client::green::Multiprocessors;
use cuda_wire::{Command, GreenId, SmInfo, SmPart};
use std::sync::{
    Arc, OnceLock, RwLock, Weak,
    atomic::{AtomicBool, Ordering},
};

/// A green context.
pub(crate) struct Green {
    /// Its handle as a `CUgreenCtx`.
    pub(crate) handle: u64,
    /// Its handle as a `CUcontext`.
    view: OnceLock<u64>,
    /// Its name on the worker.
    pub(crate) id: GreenId,
    /// The primary context.
    pub(crate) context: Arc<Context>,
    /// What it runs on.
    pub(crate) runs_on: Multiprocessors,
    /// Events over all its streams.
    pub(super) gathering: Gathering,
    /// What libraries keep in it.
    pub(crate) local_storage: LocalStorage,
    legacy: RwLock<Option<Arc<Stream>>>,
    is_alive: AtomicBool,
    me: OnceLock<Weak<Green>>,
}

impl Green {
    /// Makes one on a device whose primary context the caller has retained.
    pub(crate) fn create(context: &Arc<Context>, parts: Vec<SmPart>, flags: u32) -> CuResult<Arc<Self>> {
        context.link.unprotect("it has green contexts, whose multiprocessors another GPU may not have");
        let client = client()?;
        let id = GreenId(client.next_id());
        let make = Command::GreenCreate { green: id, context: context.id, parts, flags };
        let info = context.settle(context.link.ask::<SmInfo>(&make))?;
        let part = SmPart { of: Some(id), split: None, group: None };
        let mut made = None;
        client.greens.insert_with(|handle| {
            let green = Arc::new(Self {
                handle,
                view: OnceLock::new(),
                id,
                context: Arc::clone(context),
                runs_on: Multiprocessors { device: context.device as u32, part, info },
                gathering: Gathering::default(),
                local_storage: LocalStorage::default(),
                legacy: RwLock::new(None),
                is_alive: AtomicBool::new(true),
                me: OnceLock::new(),
            });
            let _ = green.me.set(Arc::downgrade(&green));
            made = Some(Arc::clone(&green));
            green
        })?;
        let made = made.ok_or(CudaError::UNKNOWN)?;
        let _ = made.view.set(client.green_views.insert(Arc::clone(&made))?);
        Ok(made)
    }

    /// The green context of a `CUgreenCtx`.
    pub(crate) fn find(handle: u64) -> CuResult<Arc<Self>> {
        client()?.greens.get(handle).ok_or(CudaError::INVALID_CONTEXT)
    }

    /// The green context of a `CUcontext`, if it is one's.
    pub(crate) fn of_view(handle: u64) -> CuResult<Arc<Self>> {
        client()?.green_views.get(handle).ok_or(CudaError::INVALID_CONTEXT)
    }

    /// Its handle as a `CUcontext`.
    pub(crate) fn view(&self) -> u64 {
        self.view.get().copied().unwrap_or(0)
    }

    /// An error once it is destroyed, or its primary context cannot be used.
    pub(crate) fn check(&self) -> CuResult<()> {
        if !self.is_alive.load(Ordering::Acquire) {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        self.context.check()
    }

    /// The stream that stands for 0 while it is current. What orders it against other streams only the worker knows.
    pub(crate) fn legacy_stream(&self) -> CuResult<Arc<Stream>> {
        self.check()?;
        if let Some(stream) = &*locks::read(&self.legacy) {
            return Ok(Arc::clone(stream));
        }
        let mut legacy = locks::write(&self.legacy);
        if let Some(stream) = &*legacy {
            return Ok(Arc::clone(stream));
        }
        let me = self.me.get().and_then(Weak::upgrade).ok_or(CudaError::CONTEXT_IS_DESTROYED)?;
        let stream = Stream::create_green(&me, StreamKind::Legacy, 0, 0)?;
        *legacy = Some(Arc::clone(&stream));
        Ok(stream)
    }

    /// Ends it. Its streams go on until the program destroys them.
    pub(crate) fn destroy(&self) -> CuResult<()> {
        self.end()?;
        if let Some(stream) = locks::write(&self.legacy).take() {
            stream.destroy()?;
        }
        self.gathering.end()?;
        self.context.post(&Command::GreenDestroy { green: self.id })?;
        self.context.device()?.release_primary()
    }

    /// Takes it from the tables.
    fn end(&self) -> CuResult<()> {
        let client = client()?;
        client.greens.remove(self.handle).ok_or(CudaError::INVALID_CONTEXT)?;
        client.green_views.remove(self.view());
        self.is_alive.store(false, Ordering::Release);
        self.local_storage.clear(self.view());
        Ok(())
    }
}

/// Forgets the green contexts of a primary context that has ended.
pub(super) fn forget_greens(context: &Context) -> CuResult<()> {
    let all = client()?.greens.snapshot();
    all.iter().filter(|(_, green)| std::ptr::eq(&*green.context, context)).try_for_each(|(_, green)| {
        *locks::write(&green.legacy) = None;
        green.gathering.clear();
        green.end()
    })
}
