//! Which shadows there are, which streams may be using them, and what a stream has to wait for.

use super::SIGNAL_BYTES_MAX;
use std::collections::BTreeMap;

/// A shadow stands for one pinned range in one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShadowKey {
    /// First address of the pinned memory.
    pub base: u64,
    /// The context.
    pub context: u64,
}

/// A moment between launches, taken before a wait: what was launched later may still run when the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// All shadows. `S` is a stream and `M` a shadow, as the owner holds them; streams are told apart by a number that no two
/// of them ever share.
#[derive(Debug)]
pub struct Book<S, M> {
    shadows: BTreeMap<ShadowKey, Entry<M>>,
    /// Sends so far, to whatever shadow.
    sends: u64,
    /// How far each stream waits for sends.
    ordered: BTreeMap<u64, Ordered>,
    /// Launches so far that were lent a shadow.
    launches: u64,
    /// Shadows that kernels may have written since they were last fetched.
    unfetched: Vec<Use<S>>,
    /// Small shadows that kernels may be looking at now.
    watched: Vec<Use<S>>,
}

#[derive(Debug)]
struct Entry<M> {
    shadow: M,
    bytes: u64,
    /// Number of the last send to it.
    sent: u64,
}

/// A stream waits, or has waited, for this many sends.
#[derive(Debug)]
struct Ordered {
    context: u64,
    sends: u64,
}

/// Kernels of a stream use a shadow.
#[derive(Clone, Debug)]
struct Use<S> {
    stream: S,
    number: u64,
    key: ShadowKey,
    /// The last such launch.
    launch: u64,
}

impl<S, M> Default for Book<S, M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S, M> Book<S, M> {
    /// Without any shadow.
    pub const fn new() -> Self {
        Self {
            shadows: BTreeMap::new(),
            sends: 0,
            ordered: BTreeMap::new(),
            launches: 0,
            unfetched: Vec::new(),
            watched: Vec::new(),
        }
    }

    /// Notes a new shadow. What fills it first counts as a send.
    pub fn insert(&mut self, key: ShadowKey, bytes: u64, shadow: M) {
        self.shadows.insert(key, Entry { shadow, bytes, sent: 0 });
        self.note_sent(key);
    }

    /// Notes that something was sent to a shadow.
    pub fn note_sent(&mut self, key: ShadowKey) {
        if let Some(entry) = self.shadows.get_mut(&key) {
            self.sends += 1;
            entry.sent = self.sends;
        }
    }

    /// Whether a stream must wait for the side stream before it uses a shadow.
    pub fn is_behind(&self, stream: u64, key: ShadowKey) -> bool {
        let ordered = self.ordered.get(&stream).map_or(0, |ordered| ordered.sends);
        self.shadows.get(&key).is_some_and(|entry| entry.sent > ordered)
    }

    /// Notes that a stream's later work waits for all sends so far.
    pub fn note_ordered(&mut self, stream: u64, context: u64) {
        self.ordered.insert(stream, Ordered { context, sends: self.sends });
    }

    /// Whether kernels may be looking at a small shadow.
    pub fn is_any_watched(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Whether kernels may have written a shadow since it was last fetched.
    pub fn is_any_unfetched(&self) -> bool {
        !self.unfetched.is_empty()
    }

    /// Now.
    pub fn mark(&self) -> Mark {
        Mark(self.launches)
    }

    /// All work that streams had at `mark` is done: those kernels look at nothing any more.
    pub fn at_rest(&mut self, mark: Mark, is_at_rest: impl Fn(&S) -> bool) {
        self.watched.retain(|used| used.launch > mark.0 || !is_at_rest(&used.stream));
    }

    /// A stream ends. It was fetched from before.
    pub fn forget_stream(&mut self, stream: u64) {
        self.ordered.remove(&stream);
    }

    /// A context ends, and with it its streams and the device memory that was made in it.
    pub fn forget_context(&mut self, context: u64) {
        self.ordered.retain(|_, ordered| ordered.context != context);
        self.forget_uses(|key| key.context == context);
        self.shadows.retain(|key, _| key.context != context);
    }

    /// Memory is unpinned: gives its shadows up.
    pub fn forget_memory(&mut self, base: u64) -> Vec<M> {
        self.forget_uses(|key| key.base == base);
        let all = ShadowKey { base, context: 0 }..=ShadowKey { base, context: u64::MAX };
        let keys: Vec<ShadowKey> = self.shadows.range(all).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.shadows.remove(key)).map(|entry| entry.shadow).collect()
    }

    fn forget_uses(&mut self, is_gone: impl Fn(&ShadowKey) -> bool) {
        self.unfetched.retain(|used| !is_gone(&used.key));
        self.watched.retain(|used| !is_gone(&used.key));
    }
}

impl<S: Clone, M: Clone> Book<S, M> {
    /// A shadow, if there is one.
    pub fn find(&self, key: ShadowKey) -> Option<M> {
        self.shadows.get(&key).map(|entry| entry.shadow.clone())
    }

    /// Notes that a kernel was launched which may read and write a shadow.
    pub fn note_lent(&mut self, stream: &S, number: u64, key: ShadowKey) {
        let Some(entry) = self.shadows.get(&key) else { return };
        self.launches += 1;
        let used = Use { stream: stream.clone(), number, key, launch: self.launches };
        if entry.bytes <= SIGNAL_BYTES_MAX {
            note(&mut self.watched, &used);
        }
        note(&mut self.unfetched, &used);
    }

    /// What is to be fetched now, behind the kernels that may have written it.
    pub fn take_unfetched(&mut self) -> Vec<(S, M)> {
        let noted = std::mem::take(&mut self.unfetched);
        self.with_shadows(&noted)
    }

    /// What kernels may be looking at now.
    pub fn watched(&self) -> Vec<(S, M)> {
        self.with_shadows(&self.watched)
    }

    fn with_shadows(&self, uses: &[Use<S>]) -> Vec<(S, M)> {
        uses.iter().filter_map(|used| Some((used.stream.clone(), self.find(used.key)?))).collect()
    }
}

/// Notes each stream and shadow once.
fn note<S: Clone>(uses: &mut Vec<Use<S>>, new: &Use<S>) {
    match uses.iter_mut().find(|used| used.number == new.number && used.key == new.key) {
        Some(known) => known.launch = new.launch,
        None => uses.push(new.clone()),
    }
}
