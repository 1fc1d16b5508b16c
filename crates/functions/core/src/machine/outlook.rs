//! What those who wait are told: how many are before them, and for about how long.

use super::{InstanceState, Machine, Outlook, Stage, Whereabouts};
use crate::record::FunctionKey;

impl Machine {
    /// What a client that would invoke this function now can expect.
    pub fn outlook(&self, key: &FunctionKey) -> Outlook {
        let ahead = self.queue.position_of_next(&key.tenant);
        Outlook { ahead, wait_ms: self.wait_of(key, ahead) }
    }

    /// Where an invocation is; none if it is not known or over.
    pub fn whereabouts(&self, id: &str) -> Option<Whereabouts> {
        let invocation = self.invocations.get(id)?;
        Some(match invocation.stage {
            Stage::Running => Whereabouts::Running,
            Stage::Delayed { until_ms } => Whereabouts::Delayed { until_ms },
            Stage::Queued => {
                let ahead = self.queue.position_of(&invocation.key, id);
                Whereabouts::Queued(Outlook { ahead, wait_ms: self.wait_of(&invocation.key, ahead) })
            }
        })
    }

    /// Those that wait are served by all instances together, each for as long as its kind took lately. Where this function can
    /// have one more instance at once, its start is all that is waited for.
    fn wait_of(&self, key: &FunctionKey, ahead: usize) -> u64 {
        let Some(function) = self.functions.get(key) else { return 0 };
        if ahead == 0 && !function.idle.is_empty() {
            return 0;
        }
        if ahead == 0 && self.could_start(key) {
            return function.start_ms;
        }
        let busy = |state: &InstanceState| !matches!(state, InstanceState::Ending);
        let serving = self.instances.values().filter(|instance| busy(&instance.state)).count().max(1) as u64;
        let waiting = self.queue.functions();
        let mean_of = |key: &FunctionKey| self.functions.get(key).map_or(0, |function| function.mean_ms);
        let (mut count, mut sum_ms) = (0, 0);
        for key in &waiting {
            let of_it = self.queue.count_of(key) as u64;
            count += of_it;
            sum_ms += of_it * mean_of(key);
        }
        let mean_ms = sum_ms.checked_div(count).unwrap_or_else(|| mean_of(key));
        // And the one that is served now, of which half is over as often as not.
        (ahead as u64 * mean_ms + mean_ms / 2) / serving
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
