//! A small asynchronous runtime of our own, so that callers need none.

use std::future::Future;
use std::sync::mpsc::sync_channel;

use tokio::runtime::{Builder, Handle};

use crate::error::OpenError;

/// One thread that moves bytes.
pub(super) struct Runtime {
    /// Taken when dropped.
    inner: Option<tokio::runtime::Runtime>,
    handle: Handle,
}

impl Runtime {
    pub(super) fn start() -> Result<Self, OpenError> {
        let inner =
            Builder::new_multi_thread().worker_threads(1).thread_name("etcd").enable_all().build().map_err(
                |error| OpenError::Setting {
                    what: "cannot start a thread for etcd".into(),
                    source: Some(error.into()),
                },
            )?;
        Ok(Self { handle: inner.handle().clone(), inner: Some(inner) })
    }

    /// Runs something that expects to be called inside a runtime.
    pub(super) fn enter<T>(&self, act: impl FnOnce() -> T) -> T {
        let _inside = self.handle.enter();
        act()
    }

    /// Blocks this thread until the work is done. Unlike `block_on`, this may be called from inside another runtime.
    pub(super) fn wait_for<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (sender, receiver) = sync_channel(1);
        self.handle.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver.recv().expect("the work does not panic, and the runtime outlives it")
    }

    /// Runs work on this thread, which may block it between its steps. The thread belongs to no runtime.
    pub(super) fn run_here<T>(&self, work: impl Future<Output = T>) -> T {
        self.handle.block_on(work)
    }
}

impl Drop for Runtime {
    /// Waits for nothing, so that it may happen inside another runtime.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.shutdown_background();
        }
    }
}
