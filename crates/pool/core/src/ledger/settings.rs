//! Numbers an operator may change, each with its reason.

/// How patient the ledger is, and how much it remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A box that is silent for so long gets nothing new. Three reports may be lost.
    pub suspect_after_ms: u64,
    /// A box that is silent for so long is given up, and its leases move. Longer than a reboot of its network switch
    /// takes, shorter than a user waits.
    pub dead_after_ms: u64,
    /// How long a box waits for a host to unplug before it cleans. A guest's driver lets go in a second or two; one that
    /// does not by then sees its device vanish.
    pub unplug_patience_ms: u64,
    /// How long a program may take to go on at a second place, or to drill there, before the lease gives the second place
    /// back. Twice the time in which the memory of a large GPU, 141 GB, passes a link of 20 Gbit/s.
    pub move_grace_ms: u64,
    /// How long a guest may take to be suspended when its seat is needed, before it is evicted. A program with 8 GB lets go
    /// within a second; a lease that needs the whole GPU waits so long at most, and for the cleaning.
    pub seat_grace_ms: u64,
    /// How often boxes and hosts report.
    pub report_after_ms: u64,
    /// After a change of leader no lease expires sooner than this, or its own time to live if that is less: its
    /// borrower may have renewed it with a manager that is gone, and whose clock was another. So leases that live no
    /// longer need not be written when they are renewed. A borrower should renew more often than this.
    pub grace_ms: u64,
    /// A lease that has waited for so long is no longer overtaken by smaller ones.
    pub patience_ms: u64,
    /// A lease within its tenant's guarantee that has waited for so long gets what others have beyond theirs:
    /// leases of those are ended for it. Long enough for a borrower to release a lease, and for a box to clean.
    pub reclaim_after_ms: u64,
    /// Leases that are pending, granted or releasing.
    pub leases_max: usize,
    /// Pending leases of one tenant.
    pub pending_per_tenant_max: usize,
    /// How long leases that are over are shown.
    pub ended_keep_ms: u64,
    /// How many of them at most.
    pub ended_keep_max: usize,
    /// How long idempotency keys are known.
    pub keys_keep_ms: u64,
    /// How many of them at most; those of live leases stay.
    pub keys_keep_max: usize,
    /// How many records of events are kept.
    pub events_keep_max: usize,
    /// A mistake made on purpose, to see that it is found.
    #[cfg(test)]
    pub(crate) mutation: Option<crate::simulation::Mutation>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            suspect_after_ms: 3_000,
            dead_after_ms: 15_000,
            unplug_patience_ms: 10_000,
            move_grace_ms: 120_000,
            seat_grace_ms: 8_000,
            report_after_ms: 1_000,
            grace_ms: 3_600_000,
            patience_ms: 60_000,
            reclaim_after_ms: 60_000,
            leases_max: 250_000,
            pending_per_tenant_max: 10_000,
            ended_keep_ms: 3_600_000,
            ended_keep_max: 20_000,
            keys_keep_ms: 24 * 3_600_000,
            keys_keep_max: 300_000,
            events_keep_max: 20_000,
            #[cfg(test)]
            mutation: None,
        }
    }
}
