//! One look at the pool, in pieces: the thread that owns the books does one at each tick, and serves requests in between.

use pool::Ledger;
use pool_api::{Gpu, GpuId, GpuState, Lease, LeaseId, LeaseState};

use super::{Reason, Sample};

/// GPUs in one piece: half a millisecond. A hundred ticks between two samples are enough for 100,000 GPUs.
const GPUS_AT_ONCE: usize = 1000;

/// Leases of the queue that are explained at each look. An explanation looks at every GPU.
const EXPLAINED_MAX: usize = 16;

/// A sample on its way.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    sample: Sample,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The GPUs after this one are still to come.
    Gpus(Option<GpuId>),
    Queue,
    /// These are still to be explained.
    Reasons(Vec<LeaseId>),
}

impl Default for Stage {
    fn default() -> Self {
        Self::Gpus(None)
    }
}

impl Gathering {
    /// Does the next piece. Returns the sample after the last one.
    pub(super) fn go_on(&mut self, ledger: &Ledger) -> Option<Sample> {
        match &mut self.stage {
            Stage::Gpus(after) => {
                let chunk: Vec<Gpu> = ledger.gpus(after.as_ref()).take(GPUS_AT_ONCE).collect();
                chunk.iter().for_each(|gpu| add_gpu(&mut self.sample, ledger, gpu));
                self.stage = match chunk.into_iter().next_back() {
                    Some(last) => Stage::Gpus(Some(last.id)),
                    None => Stage::Queue,
                };
                None
            }
            Stage::Queue => {
                let is_pending = |lease: &&Lease| lease.state == LeaseState::Pending;
                let mut waiting: Vec<&Lease> = ledger.leases(None).filter(is_pending).collect();
                waiting.sort_by_key(|lease| (std::cmp::Reverse(lease.request.priority), lease.created_ms));
                let examined = waiting.len().min(EXPLAINED_MAX);
                for lease in &waiting[examined..] {
                    add_waiting(&mut self.sample, lease, Reason::NotExamined);
                }
                let mut rest: Vec<LeaseId> = waiting[..examined].iter().map(|lease| lease.id).collect();
                rest.reverse();
                self.next_reason(ledger, rest)
            }
            Stage::Reasons(rest) => {
                let rest = std::mem::take(rest);
                self.next_reason(ledger, rest)
            }
        }
    }

    fn next_reason(&mut self, ledger: &Ledger, mut rest: Vec<LeaseId>) -> Option<Sample> {
        if let Some(id) = rest.pop() {
            // The lease may have been granted since: then it does not wait.
            let lease = ledger.lease(id).filter(|lease| lease.state == LeaseState::Pending);
            if let (Some(lease), Ok(why)) = (lease, ledger.explain(id)) {
                add_waiting(&mut self.sample, lease, Reason::of(&why));
            }
        }
        if rest.is_empty() {
            return Some(std::mem::take(&mut self.sample));
        }
        self.stage = Stage::Reasons(rest);
        None
    }
}

fn add_waiting(sample: &mut Sample, lease: &Lease, reason: Reason) {
    sample.pool.add_waiting(reason);
    sample.tenants.entry(lease.tenant.clone()).or_default().add_waiting(reason);
}

/// A GPU that several leases share gives each of them its part of the GPU's activity and memory: what each of them
/// really uses, boxes do not say.
fn add_gpu(sample: &mut Sample, ledger: &Ledger, gpu: &Gpu) {
    let is_free = gpu.state == GpuState::Free && !gpu.spare && gpu.taint.is_none();
    // A seat for guests is no GPU of its own: what its guest does shows in the counters of its host.
    if gpu.guest.is_some() {
        return;
    }
    // All parts of a GPU are one GPU together.
    let of_gpu = gpu.part.map_or(1.0, |part| 1.0 / f32::from(part.count()));
    let pool = &mut sample.pool;
    pool.gpus += of_gpu;
    pool.free += if is_free { of_gpu } else { 0.0 };
    measure(pool, of_gpu, gpu);
    for holder in &gpu.holders {
        let part = holder.share_milli as f32 / 1000.0;
        sample.pool.leased += part;
        let Some(lease) = ledger.lease(holder.lease) else { continue };
        let sums = sample.tenants.entry(lease.tenant.clone()).or_default();
        sums.gpus += part;
        sums.leased += part;
        measure(sums, part, gpu);
    }
}

fn measure(sums: &mut super::Sums, part: f32, gpu: &Gpu) {
    let Some(counters) = &gpu.counters else { return };
    if let Some(busy) = counters.utilization_pct {
        sums.busy_pct += busy as f32 * part;
        sums.busy_of += part;
    }
    if let Some(active) = counters.sm_activity_pct {
        sums.sm_pct += active as f32 * part;
        sums.sm_of += part;
    }
    if let Some(used) = counters.memory_used_bytes {
        // The memory of a part is its own already.
        let part = if gpu.part.is_some() { 1.0 } else { part };
        sums.memory_used += used as f32 * part;
        sums.memory_of += gpu.memory_bytes as f32 * part;
    }
}
