//! Which reports are news.

use std::collections::VecDeque;

/// Runs of an agent that are remembered. One that starts more often while a message is on its way has other troubles.
const AGENTS_MAX: usize = 8;

/// The last report this leader has heard from each run of an agent.
///
/// Which run is the latest cannot be known: a late report of an earlier one may be the first that a new leader hears of
/// it. It does no harm: what an agent says is gone never comes back, and the next report corrects the rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Agents {
    heard: VecDeque<(String, u64)>,
}

impl Agents {
    /// Whether a report is news. Remembers that it was heard.
    pub(super) fn hear(&mut self, agent: &str, sequence: u64) -> bool {
        let known = self.heard.iter().position(|(known, _)| known == agent);
        let last = known.and_then(|at| self.heard.remove(at)).map_or(0, |(_, last)| last);
        self.heard.push_back((agent.to_owned(), last.max(sequence)));
        if self.heard.len() > AGENTS_MAX {
            self.heard.pop_front();
        }
        known.is_none() || sequence > last
    }
}
