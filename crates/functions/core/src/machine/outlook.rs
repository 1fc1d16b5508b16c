//! What those who wait are told: how many are before them, and for about how long.

use super::{Instance, InstanceState, Machine, Outlook, Stage, Whereabouts};
use crate::record::FunctionKey;

impl Machine {
    /// What a client that would invoke this function now can expect.
    pub fn outlook(&self, key: &FunctionKey, now_ms: u64) -> Outlook {
        let ahead = self.queue.position_of_next(&key.tenant);
        Outlook { ahead, wait_ms: self.wait_of(key, ahead, now_ms) }
    }

    /// Where an invocation is; none if it is not known or over.
    pub fn whereabouts(&self, id: &str, now_ms: u64) -> Option<Whereabouts> {
        let invocation = self.invocations.get(id)?;
        Some(match invocation.stage {
            Stage::Running => Whereabouts::Running,
            Stage::Delayed { until_ms } => Whereabouts::Delayed { until_ms },
            Stage::Queued => {
                let ahead = self.queue.position_of(&invocation.key, id);
                Whereabouts::Queued(Outlook { ahead, wait_ms: self.wait_of(&invocation.key, ahead, now_ms) })
            }
        })
    }

    /// Those that wait are served by all instances together, each for as long as its kind took lately. Where this function can
    /// have one more instance at once, its start is all that is waited for.
    fn wait_of(&self, key: &FunctionKey, ahead: usize, now_ms: u64) -> u64 {
        let Some(function) = self.functions.get(key) else { return 0 };
        if ahead == 0 && !function.idle.is_empty() {
            return 0;
        }
        if ahead == 0 && self.could_start(key) {
            return function.start_ms;
        }
        let mean_of = |key: &FunctionKey| self.functions.get(key).map_or(0, |function| function.mean_ms);
        let is_there = |instance: &&Instance| instance.state != InstanceState::Ending;
        let serving = self.instances.values().filter(is_there).count().max(1) as u64;
        // Those that are served now take as long as they did lately, or already longer.
        let served: Vec<u64> = self
            .instances
            .values()
            .filter_map(|instance| match instance.state {
                InstanceState::Busy { since_ms, .. } => {
                    Some(mean_of(&instance.key).max(now_ms.saturating_sub(since_ms)))
                }
                _ => None,
            })
            .collect();
        let typical_ms =
            served.iter().sum::<u64>().checked_div(served.len() as u64).unwrap_or_else(|| mean_of(key));
        let (mut count, mut sum_ms) = (0, 0);
        for key in self.queue.functions() {
            let of_it = self.queue.count_of(&key) as u64;
            count += of_it;
            // One that never ran is taken for a typical one.
            sum_ms += of_it * if mean_of(&key) == 0 { typical_ms } else { mean_of(&key) };
        }
        let mean_ms = sum_ms.checked_div(count).unwrap_or(typical_ms);
        // Of what is served now, half is over as often as not.
        (ahead as u64 * mean_ms + typical_ms / 2) / serving
    }

    fn could_start(&self, key: &FunctionKey) -> bool {
        let Some(function) = self.functions.get(key) else { return false };
        let spec = &function.spec;
        let of_it = self.instances.values().filter(|instance| instance.key == *key).count();
        self.instances.len() < self.settings.instances_max
            && spec.concurrency.is_none_or(|limit| of_it < limit as usize)
            && spec.gpu_mb.is_none_or(|declared_mb| self.has_gpu_for(key, declared_mb))
    }
}
