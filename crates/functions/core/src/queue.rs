//! A queue that is fair to tenants.
//!
//! Each tenant has a count of turns. The tenant with the fewest is served next, and one that comes back from a pause begins
//! where the others are: it neither pays for its pause nor saves turns up. Within a tenant the oldest goes first, except that
//! one whose function has no room does not hold up the others.

use crate::record::FunctionKey;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug, Default)]
struct Tenant {
    turns: u64,
    /// By function, oldest first, each with the number of its arrival.
    waiting: BTreeMap<String, VecDeque<(u64, String)>>,
}

impl Tenant {
    fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}

/// Who waits for an instance.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    tenants: BTreeMap<String, Tenant>,
    arrivals: u64,
}

impl FairQueue {
    /// Adds an invocation at the end.
    pub(crate) fn push(&mut self, key: &FunctionKey, id: String) {
        let least = self.tenants.values().filter(|tenant| tenant.len() > 0).map(|tenant| tenant.turns).min();
        let tenant = self.tenants.entry(key.tenant.clone()).or_default();
        if tenant.len() == 0 {
            tenant.turns = tenant.turns.max(least.unwrap_or(0));
        }
        self.arrivals += 1;
        tenant.waiting.entry(key.name.clone()).or_default().push_back((self.arrivals, id));
    }

    /// Takes the next one whose function has room.
    pub(crate) fn pop(
        &mut self,
        mut has_room: impl FnMut(&FunctionKey) -> bool,
    ) -> Option<(FunctionKey, String)> {
        let mut order: Vec<(u64, u64, String)> = Vec::new();
        for (name, tenant) in &self.tenants {
            if let Some(oldest) = tenant.waiting.values().filter_map(|ids| Some(ids.front()?.0)).min() {
                order.push((tenant.turns, oldest, name.clone()));
            }
        }
        order.sort_unstable();
        for (_, _, name) in order {
            let tenant = &self.tenants[&name];
            let mut heads: Vec<(u64, FunctionKey)> = Vec::new();
            for (function, ids) in &tenant.waiting {
                if let Some((arrival, _)) = ids.front() {
                    heads.push((*arrival, FunctionKey { tenant: name.clone(), name: function.clone() }));
                }
            }
            heads.sort_unstable();
            if let Some((_, key)) = heads.into_iter().find(|(_, key)| has_room(key)) {
                let id = self.pop_of(&key)?;
                if let Some(tenant) = self.tenants.get_mut(&name) {
                    tenant.turns += 1;
                }
                return Some((key, id));
            }
        }
        None
    }

    /// Takes the oldest of one function.
    pub(crate) fn pop_of(&mut self, key: &FunctionKey) -> Option<String> {
        let tenant = self.tenants.get_mut(&key.tenant)?;
        let ids = tenant.waiting.get_mut(&key.name)?;
        let (_, id) = ids.pop_front()?;
        if ids.is_empty() {
            tenant.waiting.remove(&key.name);
        }
        Some(id)
    }

    /// Takes one out that will not be served.
    pub(crate) fn remove(&mut self, key: &FunctionKey, id: &str) -> bool {
        let Some(tenant) = self.tenants.get_mut(&key.tenant) else { return false };
        let Some(ids) = tenant.waiting.get_mut(&key.name) else { return false };
        let before = ids.len();
        ids.retain(|(_, waiting)| waiting != id);
        let is_found = ids.len() < before;
        if ids.is_empty() {
            tenant.waiting.remove(&key.name);
        }
        is_found
    }

    /// How many wait for one function.
    pub(crate) fn count_of(&self, key: &FunctionKey) -> usize {
        self.tenants
            .get(&key.tenant)
            .and_then(|tenant| tenant.waiting.get(&key.name))
            .map_or(0, VecDeque::len)
    }

    /// How many of a tenant wait.
    pub(crate) fn count_of_tenant(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).map_or(0, Tenant::len)
    }

    /// How many wait at all.
    pub(crate) fn len(&self) -> usize {
        self.tenants.values().map(Tenant::len).sum()
    }

    /// The functions that invocations wait for, oldest first.
    pub(crate) fn functions(&self) -> Vec<FunctionKey> {
        let mut found = Vec::new();
        for (name, tenant) in &self.tenants {
            for (function, ids) in &tenant.waiting {
                let arrival = ids.front().map_or(u64::MAX, |(arrival, _)| *arrival);
                found.push((
                    tenant.turns,
                    arrival,
                    FunctionKey { tenant: name.clone(), name: function.clone() },
                ));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, _, key)| key).collect()
    }

    /// The oldest of one function.
    pub(crate) fn oldest_of(&self, key: &FunctionKey) -> Option<&str> {
        let (_, id) = self.tenants.get(&key.tenant)?.waiting.get(&key.name)?.front()?;
        Some(id)
    }

    /// How many would be served before a new one of this tenant.
    pub(crate) fn position_of_next(&self, tenant: &str) -> usize {
        self.before(tenant, self.count_of_tenant(tenant))
    }

    /// How many are served before one that waits.
    pub(crate) fn position_of(&self, key: &FunctionKey, id: &str) -> usize {
        let Some(tenant) = self.tenants.get(&key.tenant) else { return 0 };
        let own = tenant.waiting.get(&key.name).and_then(|ids| ids.iter().find(|(_, waiting)| waiting == id));
        let Some((arrival, _)) = own else { return 0 };
        let earlier = tenant.waiting.values().flatten().filter(|(other, _)| other < arrival).count();
        self.before(&key.tenant, earlier)
    }

    /// How many are served before the one of this tenant that has so many of its own before it. Tenants take turns: each
    /// other has had as many turns by then, or all that it has.
    fn before(&self, tenant: &str, own: usize) -> usize {
        let least = self.tenants.values().filter(|tenant| tenant.len() > 0).map(|tenant| tenant.turns).min();
        let (turns, count) = self.tenants.get(tenant).map_or((0, 0), |tenant| (tenant.turns, tenant.len()));
        let turns = if count == 0 { turns.max(least.unwrap_or(0)) } else { turns };
        let served = |other: &Tenant| {
            let until = (turns + own as u64 + 1).saturating_sub(other.turns);
            other.len().min(usize::try_from(until).unwrap_or(usize::MAX))
        };
        let others = self.tenants.iter().filter(|(name, _)| name.as_str() != tenant);
        own + others.map(|(_, other)| served(other)).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, name: &str) -> FunctionKey {
        FunctionKey { tenant: tenant.to_owned(), name: name.to_owned() }
    }

    fn served(queue: &mut FairQueue) -> String {
        let mut order = Vec::new();
        while let Some((_, id)) = queue.pop(|_| true) {
            order.push(id);
        }
        order.join(" ")
    }

    #[test]
    fn a_tenant_that_floods_waits_for_itself_alone() {
        let mut queue = FairQueue::default();
        for n in 0..4 {
            queue.push(&key("flood", "f"), format!("f{n}"));
        }
        queue.push(&key("calm", "g"), "c0".to_owned());
        queue.push(&key("calm", "g"), "c1".to_owned());
        assert_eq!(queue.position_of_next("calm"), 2 + 3);
        assert_eq!(queue.position_of_next("new"), 2);
        assert_eq!(queue.position_of(&key("calm", "g"), "c1"), 1 + 2);
        assert_eq!(queue.position_of(&key("flood", "f"), "f3"), 3 + 2);
        assert_eq!(served(&mut queue), "f0 c0 f1 c1 f2 f3");
    }

    #[test]
    fn a_pause_saves_no_turns() {
        let mut queue = FairQueue::default();
        for n in 0..3 {
            queue.push(&key("busy", "f"), format!("b{n}"));
        }
        assert_eq!(served(&mut queue), "b0 b1 b2");
        queue.push(&key("busy", "f"), "b3".to_owned());
        queue.push(&key("late", "f"), "l0".to_owned());
        queue.push(&key("late", "f"), "l1".to_owned());
        queue.push(&key("busy", "f"), "b4".to_owned());
        assert_eq!(served(&mut queue), "b3 l0 l1 b4");
    }

    #[test]
    fn a_function_without_room_holds_nobody_up() {
        let mut queue = FairQueue::default();
        queue.push(&key("a", "full"), "1".to_owned());
        queue.push(&key("a", "free"), "2".to_owned());
        assert_eq!(queue.pop(|key| key.name == "free").unwrap().1, "2");
        assert!(queue.pop(|key| key.name == "free").is_none());
        assert!(queue.remove(&key("a", "full"), "1"));
        assert!(!queue.remove(&key("a", "full"), "1"));
        assert_eq!(queue.len(), 0);
    }
}
