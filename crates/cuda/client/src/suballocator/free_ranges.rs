//! What of a heap's mapped memory is free: bytes that nobody needs.

use super::{
    Heap,
    nodes::{NONE, State},
};

impl Heap {
    /// Appends the free ranges, each shrunk to multiples of `align`, ascending within an arena. What only a part of is free
    /// between two multiples is left out.
    ///
    /// A range is free from the call of its free on, before the stream comes to it. So its bytes are dead wherever all work
    /// that was given before that call is done.
    pub fn free_ranges(&self, align: u64, out: &mut Vec<(u64, u64)>) {
        for (_, first) in self.arenas.values() {
            let mut at = *first;
            let mut run: Option<(u64, u64)> = None;
            loop {
                let node = (at != NONE).then(|| &self.nodes[at]);
                match node.map(|node| (node.state, node.start, node.end())) {
                    // Neighbours of different lanes are free together. No block is in a piece that is on its way, and the
                    // worker may have it mapped.
                    Some((State::Free { .. } | State::Moving, start, end)) => {
                        run = Some((run.map_or(start, |(start, _)| start), end));
                    }
                    _ => out.extend(run.take().and_then(|run| shrunk(run, align))),
                }
                let Some(node) = node else { break };
                at = node.after;
            }
        }
    }
}

/// First address and bytes of the whole multiples of `align` in a range.
fn shrunk((start, end): (u64, u64), align: u64) -> Option<(u64, u64)> {
    let start = start.checked_next_multiple_of(align)?;
    let end = end - end % align;
    (start < end).then(|| (start, end - start))
}
