//! Defects that tests plant to see that the tests find them. Outside of tests there is none, and nothing is looked up.

/// A defect of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Mutant {
    /// Frames up to the next mark but one are sent before a mark has come again.
    GateOneMarkTooLate,
    /// A mark of a reply stands where the call was sent.
    MarkAtTheAskingPosition,
    /// What is observed while a buffer is written stands before that buffer's frames.
    AnnouncementIgnored,
    /// A host function that ran before the loss runs again.
    HostFunctionTwice,
    /// A truncation takes one frame more than lies before the cut.
    FrameLostAtTruncation,
    /// A truncation leaves the last frame before the cut.
    FrameDoubledAtTruncation,
    /// Text that was printed before the loss is printed again.
    TextTwice,
    /// A pull that was served before is served from the program's memory as it is now.
    PullFromThePresent,
    /// Servings of before a cut are counted as those behind it.
    ServingsKeptAtTruncation,
    /// Marks of what was asked before a cut stay in the journal.
    MarksKeptAtTruncation,
    /// A query that said yes is sent as a query.
    QueryAsQuery,
    /// A push whose command was not sent before the loss is not made again.
    UnsentPushForgotten,
    /// The manifest makes released physical memory and does not release it.
    ReleaseForgotten,
    /// A changed node of a graph is not folded.
    NodeNotFolded,
    /// A command that was answered with an error is folded.
    RefusedIsFolded,
    /// The end of a context leaves its memory.
    MemoryOutlivesContext,
    /// The replay ends with the last mark, whatever the old worker had done beyond it.
    ReplayForgottenWhenDone,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether a test has planted this defect.
#[inline]
pub(crate) fn is_planted(mutant: Mutant) -> bool {
    #[cfg(test)]
    return PLANTED.get() == Some(mutant);
    #[cfg(not(test))]
    {
        let _ = mutant;
        false
    }
}

/// Plants a defect for this thread, or none.
#[cfg(test)]
pub(crate) fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}
