//! What must never be on the parts of a GPU.

use super::checker::Checker;
use pool_api::{Class, Gpu, GpuId, GpuState, Lease, Name};
use std::collections::BTreeMap;

impl Checker {
    /// After each commit: parts have leases with shares alone, none that is larger than its part, and those of one GPU have not
    /// more than the GPU together.
    pub(super) fn check_parts(&mut self) {
        let mut wrong = Vec::new();
        let mut sums: BTreeMap<(&Name, u8), (u32, u64, u64)> = BTreeMap::new();
        for gpu in self.gpus.values().filter(|gpu| gpu.state == GpuState::Leased) {
            let Some(part) = gpu.part else { continue };
            for holder in &gpu.holders {
                if !self.leases.get(&holder.lease).is_some_and(|lease| may_have(lease, gpu)) {
                    wrong.push(format!("{} is a part, and no place for {}", gpu.id, holder.lease));
                }
                let of_gpu = gpu.memory_bytes * u64::from(part.count());
                let sum = sums.entry((&gpu.box_name, part.of)).or_insert((0, 0, of_gpu));
                *sum = (sum.0 + holder.share_milli, sum.1 + holder.memory_bytes, of_gpu);
            }
        }
        for ((box_name, of), (milli, bytes, of_gpu)) in sums {
            if milli > crate::GPU_MILLI || bytes > of_gpu {
                wrong.push(format!(
                    "GPU {of} of {box_name} is lent as {milli}/1000 and {bytes} of {of_gpu} bytes"
                ));
            }
        }
        wrong.into_iter().for_each(|what| self.violation(what));
    }

    /// A box has let a lease in: counts those on parts, and those that are not alone on their GPU.
    pub(super) fn count_parts(&mut self, gpu: &GpuId) {
        let Some(part) = self.gpus.get(gpu).and_then(|gpu| gpu.part) else { return };
        self.parts += 1;
        let mut others = part.slots().filter(|slot| *slot != gpu.slot);
        let is_in = |slot: u8| self.sessions.contains_key(&GpuId { slot, ..gpu.clone() });
        self.crowds += u64::from(others.any(is_in));
    }
}

fn may_have(lease: &Lease, gpu: &Gpu) -> bool {
    let (class, share, part) = (lease.request.class, lease.request.share, gpu.part);
    let fits = share
        .zip(part)
        .is_some_and(|(share, part)| share.milli <= part.milli && share.memory_bytes <= gpu.memory_bytes);
    class == Class::Dedicated && fits
}
