//! The fault that ended a session's context, where contexts are merged: noted once in the page of its GPU, which outlives the session.
//! Offline programs that come later wait for it ([`sharing::FaultBackoff`]).

use cuda_driver::PageHandle;
use shared_words::process;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

pub(crate) struct FaultNote {
    page: Option<PageHandle>,
    is_noted: AtomicBool,
}

impl FaultNote {
    pub(crate) fn new(page: Option<PageHandle>) -> Self {
        Self { page, is_noted: AtomicBool::new(false) }
    }

    /// The session has met the fault. Several of its threads may find that.
    pub(crate) fn note(&self) {
        if let Some(page) = &self.page
            && !self.is_noted.swap(true, SeqCst)
        {
            page.page().met_fault(process::now_ns());
        }
    }
}
