//! The process's graphs and captures, under one lock.

use super::{GraphMemory, Handles, Item};
use cuda_client::graph::{Graphs, capture::Captures};
use std::{
    ops::{Deref, DerefMut},
    sync::{
        LazyLock, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

/// Everything that is known about graphs, instantiated ones aside.
#[derive(Default)]
pub(crate) struct GraphStore {
    /// Graphs, nodes and edges.
    pub(crate) graphs: Graphs<Item>,
    /// Streams that capture.
    pub(crate) captures: Captures,
    /// Handles of conditional nodes.
    pub(crate) handles: Handles,
    /// Memory of allocation nodes.
    pub(crate) memory: GraphMemory,
}

static STORE: LazyLock<Mutex<GraphStore>> = LazyLock::new(Mutex::default);

/// Whether calls must ask the rules of captures. While it is false, capture costs a call one load.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// Whether any stream captures, or any event was last recorded in a capture.
#[inline]
pub(crate) fn captures_exist() -> bool {
    CAPTURES.load(Ordering::Acquire)
}

/// The store, locked. The program's code must not run meanwhile, and no executable graph may be locked: code that needs
/// both locks the executable graph first.
pub(crate) fn graphs() -> GraphGuard {
    GraphGuard(super::lock(&STORE))
}

/// The locked store.
pub(crate) struct GraphGuard(MutexGuard<'static, GraphStore>);

impl Deref for GraphGuard {
    type Target = GraphStore;

    fn deref(&self) -> &GraphStore {
        &self.0
    }
}

impl DerefMut for GraphGuard {
    fn deref_mut(&mut self) -> &mut GraphStore {
        &mut self.0
    }
}

impl Drop for GraphGuard {
    fn drop(&mut self) {
        CAPTURES.store(!self.0.captures.is_quiet(), Ordering::Release);
    }
}
