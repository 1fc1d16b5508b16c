//! The same program, written differently. Advice is only given with the figure that a replay of the changed program shows.

use crate::profile::{Action, Direction, Profile, Record};

/// A change that a programmer could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Launches in a row become one graph launch.
    Graphs,
    /// Nine of ten small read-backs are left out: the loss printed every tenth step.
    FewerReadBacks,
    /// Nine of ten waits are left out.
    FewerWaits,
    /// Host memory is page-locked, and copies from it are not waited for.
    PinnedUploads,
}

impl Change {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Graphs, Self::FewerReadBacks, Self::FewerWaits, Self::PinnedUploads];
}

/// Read-backs up to this size are looked at, not computed with: a loss, a flag, a token.
pub(super) const SMALL_READ_BACK_BYTES: u64 = 4096;
/// One in this many stays.
const KEPT_ONE_IN: usize = 10;

/// `profile` after a change, or `None` where there is nothing to change.
pub fn changed(profile: &Profile, change: Change) -> Option<Profile> {
    let records = match change {
        Change::Graphs => with_graphs(&profile.records),
        Change::FewerReadBacks => thinned(&profile.records, |action| {
            matches!(action, Action::Copy { direction: Direction::DeviceToHost, bytes, waits: true, .. }
                if *bytes <= SMALL_READ_BACK_BYTES)
        }),
        Change::FewerWaits => thinned(&profile.records, |action| matches!(action, Action::Wait { .. })),
        Change::PinnedUploads => pinned(&profile.records),
    }?;
    // The program still ends as long after its last call as it did.
    let returned = |records: &[Record]| records.iter().map(Record::returned_us).fold(0.0, f64::max);
    let tail_us = (profile.wall_us - returned(&profile.records)).max(0.0);
    let wall_us = returned(&records) + tail_us;
    Some(Profile { records, wall_us, ..profile.clone() })
}

/// Leaves out all but one in ten of the records that `is_one` picks. The time around them stays: the program still thinks.
fn thinned(records: &[Record], is_one: impl Fn(&Action) -> bool) -> Option<Vec<Record>> {
    let mut seen = 0;
    let kept: Vec<Record> = records
        .iter()
        .map(|record| {
            if !is_one(&record.action) {
                return *record;
            }
            seen += 1;
            if seen % KEPT_ONE_IN == 0 {
                *record
            } else {
                // A group of no calls: it takes the place of the record on the program's clock and costs nothing.
                Record { action: Action::Local { calls: 0 }, call_us: 0.0, ..*record }
            }
        })
        .collect();
    // What the recorded call took was waiting, not thinking: later records move up by it.
    (seen > 0).then(|| closed_up(records, kept))
}

/// Moves records up so that the time between the end of one and the start of the next is what it was.
fn closed_up(before: &[Record], mut after: Vec<Record>) -> Vec<Record> {
    let mut gained_us = 0.0;
    for (record, old) in after.iter_mut().zip(before) {
        record.at_us = (old.at_us - gained_us).max(0.0);
        gained_us += (old.call_us - record.call_us).max(0.0);
    }
    after
}

fn pinned(records: &[Record]) -> Option<Vec<Record>> {
    let mut changes = 0;
    let pinned: Vec<Record> = records
        .iter()
        .map(|record| {
            let Action::Copy { direction: Direction::HostToDevice, pinned, waits, .. } = record.action else {
                return *record;
            };
            if pinned && !waits {
                return *record;
            }
            changes += 1;
            let mut record = *record;
            if let Action::Copy { pinned, waits, gpu_us, .. } = &mut record.action {
                (*pinned, *waits) = (true, false);
                // What the call spent beyond the copy itself was staging and waiting.
                record.call_us = (record.call_us - *gpu_us).max(0.0);
            }
            record
        })
        .collect();
    (changes > 0).then(|| closed_up(records, pinned))
}

/// Launches and memsets of one stream that follow each other, with nothing but state queries between, become one graph launch of
/// the same GPU time. The program's time between them is gone too: it is spent once, when the graph is made.
fn with_graphs(records: &[Record]) -> Option<Vec<Record>> {
    let mut graphs: Vec<Record> = Vec::new();
    let mut gained_us = 0.0;
    let mut saved = 0usize;
    for record in records {
        let (stream, count, own_us) = match record.action {
            Action::Launch { stream, kernels, gpu_us, .. } => (stream, kernels, gpu_us),
            Action::Memset { stream, gpu_us, .. } => (stream, 1, gpu_us),
            Action::Local { .. }
                if matches!(graphs.last(), Some(Record { action: Action::Launch { .. }, .. })) =>
            {
                // Asked while the graph was made.
                gained_us += record.call_us;
                continue;
            }
            _ => {
                graphs.push(Record { at_us: (record.at_us - gained_us).max(0.0), ..*record });
                continue;
            }
        };
        if let Some(last) = graphs.last_mut()
            && let Action::Launch { stream: last_stream, kernels, gpu_us, .. } = &mut last.action
            && *last_stream == stream
        {
            *kernels = kernels.saturating_add(count);
            *gpu_us += own_us;
            saved += 1;
            // The record that follows comes right after the graph.
            gained_us = record.returned_us() - last.returned_us();
            continue;
        }
        graphs.push(Record { at_us: (record.at_us - gained_us).max(0.0), ..*record });
    }
    (saved > 0).then_some(graphs)
}
