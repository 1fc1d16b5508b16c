//! The heap of device `malloc`, one for each context.

use crate::{context::Context, context::LIMIT_HEAP, ranges::Ranges, session::Session, sync::lock};
use std::{collections::HashMap, sync::Arc};

/// A context's heap: one block of device memory, cut into pieces.
pub(crate) struct Heap {
    start: u64,
    bytes: u64,
    ranges: Ranges,
    taken: HashMap<u64, u64>,
}

/// Pieces are aligned as CUDA's are.
const ALIGN: u64 = 16;

/// Takes memory from the context's heap, which is made when first used; 0 if there is no room.
pub(crate) fn malloc(session: &Session, context: &Arc<Context>, bytes: u64) -> u64 {
    let mut heap = lock(&context.heap);
    if heap.is_none() {
        let size = context.limit(LIMIT_HEAP).max(ALIGN);
        let Some(start) = session.allocate_internal(context, size) else { return 0 };
        *heap = Some(Heap { start, bytes: size, ranges: Ranges::new(start, size), taken: HashMap::new() });
    }
    let Some(heap) = heap.as_mut() else { return 0 };
    let bytes = bytes.max(1).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
    let Some(start) = heap.ranges.take(bytes, ALIGN) else { return 0 };
    heap.taken.insert(start, bytes);
    start
}

/// Gives it back. What was not taken here is left alone.
pub(crate) fn free(context: &Context, address: u64) {
    if let Some(heap) = lock(&context.heap).as_mut()
        && let Some(bytes) = heap.taken.remove(&address)
    {
        heap.ranges.give(address, bytes);
    }
}

/// Takes the heap from a context that ends: where it was and how large.
pub(crate) fn take(context: &Context) -> Option<(u64, u64)> {
    lock(&context.heap).take().map(|heap| (heap.start, heap.bytes))
}
