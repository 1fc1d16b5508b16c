//! What the legacy default stream does to other streams: it waits for them, and they for it, without a call that says
//! so. A profile has only explicit waits, so this module writes them.

use std::collections::BTreeMap;

/// The legacy default stream's handle in a log.
const LEGACY: u64 = 0;
/// Handles from here up are the default streams of threads, which wait for the legacy one.
const PER_THREAD: u64 = 1 << 63;

#[derive(Debug, Default)]
struct Blocking {
    /// It has work that the legacy stream has not waited for.
    is_ahead: bool,
    /// The legacy stream has work that it has not waited for.
    is_behind: bool,
}

#[derive(Debug, Default)]
pub(super) struct Joins {
    /// Streams that wait for the legacy one.
    streams: BTreeMap<u64, Blocking>,
}

impl Joins {
    /// A stream was made, one that waits for the legacy stream or not.
    pub(super) fn made(&mut self, stream: u64, is_blocking: bool) {
        if is_blocking {
            self.streams.insert(stream, Blocking::default());
        } else {
            self.streams.remove(&stream);
        }
    }

    /// An operation goes to a stream; the waits that come with it: of the second for the first.
    pub(super) fn operation(&mut self, stream: u64) -> Vec<(u64, u64)> {
        if stream == LEGACY {
            let mut waits = Vec::new();
            for (&other, state) in &mut self.streams {
                if std::mem::take(&mut state.is_ahead) {
                    waits.push((other, LEGACY));
                }
                state.is_behind = true;
            }
            return waits;
        }
        if stream >= PER_THREAD {
            self.streams.entry(stream).or_default();
        }
        let Some(state) = self.streams.get_mut(&stream) else { return Vec::new() };
        state.is_ahead = true;
        if std::mem::take(&mut state.is_behind) { vec![(LEGACY, stream)] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
        let mut joins = Joins::default();
        joins.made(7, true);
        joins.made(8, false);
        assert_eq!(joins.operation(7), []);
        assert_eq!(joins.operation(8), []);
        assert_eq!(joins.operation(LEGACY), [(7, LEGACY)]);
        assert_eq!(joins.operation(LEGACY), [], "nothing new to wait for");
        assert_eq!(joins.operation(8), []);
        assert_eq!(joins.operation(7), [(LEGACY, 7)]);
        assert_eq!(joins.operation(7), []);
    }
}
