//! Recognises programs that go through memory in order.

/// The most blocks that one fault opens at once: 16 MiB. As many again are fetched ahead, while the program uses the first.
pub const WINDOW_BLOCKS_MAX: usize = 256;
/// Blocks after which a walk is worth fetching ahead for.
const SURE_BLOCKS: usize = 8;
/// Walks that are followed at once: threads that share one allocation, or arrays inside of it.
const WALKS_MAX: usize = 16;

/// Blocks to open from the one that was touched, and blocks to fetch ahead behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) now: usize,
    pub(super) ahead: usize,
}

#[derive(Clone, Copy, Debug)]
struct Walk {
    /// The block whose touch continues the walk.
    next: usize,
    /// Blocks it has gone through.
    walked: usize,
    /// When it was last continued, in steps.
    last: u64,
}

/// The walks through one allocation.
#[derive(Debug, Default)]
pub(super) struct Walks {
    walks: Vec<Walk>,
    steps: u64,
}

impl Walks {
    /// What a touch of `block` should open. [`Walks::went`] must follow, with what was opened.
    pub(super) fn window(&self, block: usize) -> Window {
        let walked = self.walks.iter().find(|walk| walk.next == block).map_or(0, |walk| walk.walked);
        // Both together are never more than what the program has gone through.
        let now = (walked / 2).clamp(1, WINDOW_BLOCKS_MAX);
        Window { now, ahead: if walked >= SURE_BLOCKS { now } else { 0 } }
    }

    /// A touch of `block` opened everything up to `end`. What is fetched ahead is not open, so the next touch is there.
    pub(super) fn went(&mut self, block: usize, end: usize) {
        self.steps += 1;
        let (last, opened) = (self.steps, end.saturating_sub(block));
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.next == block) {
            *walk = Walk { next: end, walked: walk.walked + opened, last };
            return;
        }
        let new = Walk { next: end, walked: opened, last };
        if self.walks.len() < WALKS_MAX {
            self.walks.push(new);
        } else if let Some(oldest) = self.walks.iter_mut().min_by_key(|walk| walk.last) {
            *oldest = new;
        }
    }
}
