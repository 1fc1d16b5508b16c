//! Where nothing lives in the pools of a worker: what a cut of live memory alone leaves out.

use super::{MemoryPool, all_pools, client, pools_are_used};
use crate::link::{Link, PoolMemory};
use cuda_client::pool::Still;
use cuda_wire::VaRange;
use std::sync::{Arc, Weak};

/// Images are made of blocks of this size, at multiples of it. A block that lives in part is saved.
const BLOCK_BYTES: u64 = 64 << 10;
/// More pieces than this are not named: the smallest of them are saved.
const PIECES_MAX: usize = 1 << 16;

/// The pools whose memory is at the worker of a link.
pub(super) struct PoolsAt {
    link: Weak<Link>,
}

impl PoolsAt {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self { link: Arc::downgrade(link) }
    }

    fn pools(&self) -> Vec<Arc<MemoryPool>> {
        let Ok(client) = client() else { return Vec::new() };
        if !pools_are_used() {
            return Vec::new();
        }
        let is_here = |pool: &Arc<MemoryPool>| {
            client
                .devices
                .get(pool.device)
                .is_some_and(|device| Arc::as_ptr(&device.link) == self.link.as_ptr())
        };
        let mut pools = all_pools();
        pools.retain(is_here);
        pools
    }
}

impl PoolMemory for PoolsAt {
    fn used(&self, forget: bool) -> (u64, u64) {
        self.pools().iter().fold((0, 0), |(live, lowest), pool| {
            let (now, low) = pool.books.used(forget);
            (live + now, lowest + low)
        })
    }

    fn while_still(&self, act: &mut dyn FnMut(Vec<VaRange>)) {
        let mut pools = self.pools();
        // Streams of another device may be at another worker, and do not stand still at this one's cut.
        pools.retain(|pool| !pool.has_peers());
        let still: Vec<Still<'_>> = pools.iter().map(|pool| pool.books.stand_still()).collect();
        let mut free = Vec::new();
        still.iter().for_each(|pool| pool.free_ranges(BLOCK_BYTES, &mut free));
        if free.len() > PIECES_MAX {
            free.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
            free.truncate(PIECES_MAX);
        }
        act(free.into_iter().map(|(base, bytes)| VaRange { base, bytes }).collect());
    }
}
