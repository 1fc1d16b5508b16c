//! Mistakes made on purpose, to see that the tests find them.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The turnstile puts the wait behind the work that exceeds the budget.
    WaitBehindTheKernel,
    /// A new stream passes without a wait.
    NewStreamPasses,
    /// A kernel without a known cost counts as nothing.
    UnknownCostsNothing,
    /// Each stream has the whole budget, however many there are.
    BudgetPerStream,
    /// A graph has no gates inside.
    GraphWithoutGates,
    /// A kernel that runs long while no online session has work is taken for an offender.
    OverstayAtAnOpenGate,
    /// The sentry clears the bit of an owner that lives and beats.
    StrangerClears,
    /// The sentry counts the time in which it did not look itself.
    SentryTrustsItsPauses,
    /// The sentry believes a process number without the start time.
    SentryIgnoresStartTime,
    /// The sentry never looks at beats, so a frozen owner holds the gate for good.
    SentryIgnoresBeats,
    /// The gate opens as soon as the work is done.
    OpenWithoutLinger,
    /// The driver is asked whether all work is done while it is being told of more.
    AsksWhileTelling,
    /// An answer of the driver counts although a command began since the question.
    OldAnswerCounts,
    /// The bit of a slot stays when its owner is gone and the slot is reclaimed.
    ReclaimKeepsBit,
    /// A page whose magic is damaged counts as open.
    DamagedIsOpen,
    /// An owner closes the gate through a slot that is another's by now.
    CloseWithoutOwning,
    /// The owner of a busy slot does not set its bit again when it was cleared.
    ForgetsToCloseAgain,
    /// The gate of a session that lost the turn because it died or froze stays open.
    SeizedGateStaysOpen,
    /// A session opens its gate although the turn is not its own any more.
    OpensWithoutTheTurn,
    /// A gate is opened although it was closed since the session looked.
    OpensWhatWasClosedMeanwhile,
    /// The turn stays with a slot that is reclaimed.
    ReclaimKeepsTurn,
    /// The turn is given to a session whose work has ended meanwhile.
    GivesToTheIdle,
    /// A session that hands the turn on leaves its gate open.
    PassKeepsGateOpen,
    /// A session hands the turn on while its work still runs.
    PassesWhileItRuns,
    /// A session keeps the turn for as long as it has work.
    NeverPasses,
    /// A session keeps the turn when its work is done.
    IdleKeepsTurn,
    /// A session that was idle keeps the time that it did not use.
    IdleSavesTime,
    /// A session that pauses for a moment loses what it is behind.
    PauseForfeits,
    /// All shares count alike.
    IgnoresShares,
    /// Each program of a lease has the lease's whole share.
    SharePerProgram,
    /// The turn of the dead is never taken.
    NeverSeizes,
    /// A session that was taken for frozen does not ask for the turn again.
    ForgetsToWantAgain,
    /// Memory is taken without a look at what others have announced.
    TakesWithoutASum,
    /// What a session that is gone had of the memory counts on.
    ReclaimKeepsMemory,
    /// A want stays when its wait is over.
    WantStays,
    /// A session waits for memory although no guest has any.
    WaitsForNoGuest,
    /// A session waits for memory without a bound.
    WaitsForEver,
    /// A want of a process that is gone counts.
    WantOfTheDead,
    /// A want of a process that stands still counts for good.
    WantOfTheFrozen,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether this thread makes that mistake. Never, outside of tests.
#[inline(always)]
pub(crate) fn is_planted(mutant: Mutant) -> bool {
    #[cfg(test)]
    return PLANTED.get() == Some(mutant);
    #[cfg(not(test))]
    {
        let _ = mutant;
        false
    }
}

/// Plants a mistake in this thread, or takes it away.
#[cfg(test)]
pub(crate) fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}

#[cfg(test)]
thread_local! {
    static INTERRUPT: std::cell::Cell<Option<fn()>> = const { std::cell::Cell::new(None) };
}

/// A process may stand still between any two steps on the page. Tests have others go on here.
#[inline(always)]
pub(crate) fn between_steps() {
    #[cfg(test)]
    if let Some(interrupt) = INTERRUPT.get() {
        interrupt();
    }
}

/// What happens in this thread between two steps.
#[cfg(test)]
pub(crate) fn interrupt_with(interrupt: Option<fn()>) {
    INTERRUPT.set(interrupt);
}
