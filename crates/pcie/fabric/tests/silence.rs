//! When a link calls the other end silent, and when it must not.

mod pair;

use fabric::{Event, Faults, PathId, Time};
use pair::{ALL, Pair, payload, read, two_paths, write};
use std::time::Duration;

const DELAY: Duration = Duration::from_micros(5);
const HOST: usize = 0;
const BOX: usize = 1;

fn established(silent_after: Duration, change: impl Fn(&mut fabric::LinkConfig)) -> Pair {
    let mut pair = Pair::new(Faults { delay: DELAY, ..Faults::default() }, 1, |config| {
        config.silent_after = silent_after;
        change(config);
    });
    pair.establish();
    while pair.ends.iter_mut().any(|end| end.next_event().is_some()) {}
    pair
}

/// Lets time pass until `until`, with both ends at work.
fn pass(pair: &mut Pair, until: Time) {
    loop {
        pair.settle();
        let before = pair.now;
        if !pair.advance() || pair.now > until {
            pair.now = until.max(before);
            return;
        }
    }
}

/// Lets time pass while one end does nothing at all: its process is stopped.
fn pass_without(pair: &mut Pair, stopped: usize, until: Time) {
    let other = 1 - stopped;
    let mut datagram = vec![0; 65_536];
    while pair.now < until {
        while let Some(arrived) = pair.nets[stopped].receive(pair.now) {
            pair.ends[other].on_datagram(pair.now, arrived);
        }
        while let Some(transmit) = pair.ends[other].transmit(pair.now, &mut datagram) {
            pair.nets[other].send(pair.now, transmit.path, &datagram[..transmit.bytes]);
            pair.datagrams += 1;
        }
        let due = [pair.ends[other].wake_at(), pair.nets[stopped].next_at()];
        let next = due.into_iter().flatten().min().unwrap_or(until);
        pair.now = next.max(Time(pair.now.0 + 1)).min(until);
    }
}

fn after(pair: &Pair, wait: Duration) -> Time {
    pair.now.after(wait)
}

fn silent(pair: &mut Pair, end: usize) -> usize {
    std::iter::from_fn(|| pair.ends[end].next_event()).filter(|event| *event == Event::Silent).count()
}

/// The bug that lost a disk: the link was idle for longer than it may be silent, then its first answer came a little late.
#[test]
fn an_idle_link_survives_a_late_answer() {
    for idle in [0, 300, 600, 2_000, 3_600_000] {
        for stopped in [BOX, HOST] {
            let mut pair = established(Duration::from_millis(500), |_| {});
            let until = after(&pair, Duration::from_millis(idle));
            pass(&mut pair, until);
            pair.now = until;
            pair.ends[1 - stopped].send(&write(1, &payload(1, 64))).unwrap();
            let until = after(&pair, Duration::from_millis(40));
            pass_without(&mut pair, stopped, until);
            let until = after(&pair, Duration::from_secs(1));
            pass(&mut pair, until);
            assert!(pair.ends[stopped].receive(ALL).is_some(), "it arrives");
            for end in [HOST, BOX] {
                assert_eq!(silent(&mut pair, end), 0, "idle for {idle} ms, {stopped} stopped: {end}");
            }
        }
    }
}

#[test]
fn a_pause_below_the_patience_is_no_silence_and_one_above_it_is() {
    let patience = Duration::from_secs(8);
    for (pause_ms, is_silence) in
        [(5, false), (40, false), (600, false), (2_000, false), (7_900, false), (8_200, true), (20_000, true)]
    {
        let mut pair = established(patience, |_| {});
        let until = after(&pair, Duration::from_secs(2));
        pass(&mut pair, until);
        pair.now = until;
        pair.ends[HOST].send(&write(1, &payload(1, 64))).unwrap();
        let until = after(&pair, Duration::from_millis(pause_ms));
        pass_without(&mut pair, BOX, until);
        assert_eq!(silent(&mut pair, HOST) == 1, is_silence, "a pause of {pause_ms} ms");
        // It goes on either way; what to do about silence is for others to decide.
        let until = after(&pair, Duration::from_secs(1));
        pass(&mut pair, until);
        assert!(pair.ends[BOX].receive(ALL).is_some());
    }
}

/// A process that was stopped itself has not listened: what it missed is no silence of the other end.
#[test]
fn the_own_pause_is_not_the_others_silence() {
    let mut pair = established(Duration::from_millis(500), |_| {});
    pair.ends[HOST].send(&write(1, &payload(1, 64))).unwrap();
    let mut datagram = vec![0; 65_536];
    let sent = pair.ends[HOST].transmit(pair.now, &mut datagram).unwrap();
    pair.nets[HOST].send(pair.now, sent.path, &datagram[..sent.bytes]);
    let until = after(&pair, Duration::from_secs(60));
    pass_without(&mut pair, HOST, until);
    let until = after(&pair, Duration::from_secs(1));
    pass(&mut pair, until);
    assert_eq!(silent(&mut pair, HOST), 0);
    assert!(pair.ends[HOST].is_idle(), "its answer was there all the time");
}

/// Ten seconds of a paused box cost a probe in each of the longest timeouts, not the whole window in each.
#[test]
fn a_silent_peer_is_probed_not_flooded() {
    // As many pages wait as there may be TLPs in a queue.
    let mut pair = established(Duration::from_secs(15), |config| config.queued_bytes_max = usize::MAX);
    let bytes = payload(1, 4096);
    while pair.ends[HOST].send(&write(1, &bytes)).is_ok() {}
    let before = pair.datagrams;
    let until = after(&pair, Duration::from_secs(10));
    pass_without(&mut pair, BOX, until);
    let sent = pair.datagrams - before;
    assert!(sent < 2_500, "{sent} datagrams to a box that is paused");
    let until = after(&pair, Duration::from_secs(2));
    let mut arrived = 0;
    while pair.now < until {
        pair.settle();
        while pair.ends[BOX].receive(ALL).is_some() {
            arrived += 1;
        }
        if !pair.advance() {
            break;
        }
    }
    assert!(arrived > 500 && pair.ends[HOST].is_idle(), "{arrived} arrived");
    assert_eq!(silent(&mut pair, HOST), 0);
}

/// The other end has got a request, says so, and is gone: the answer is owed all the same.
#[test]
fn a_request_that_arrived_and_is_not_answered_is_owed() {
    for (pause_ms, is_silence) in [(1_900, false), (2_200, true)] {
        let mut pair = established(Duration::from_secs(2), |_| {});
        pair.ends[HOST].send(&read(1, 5)).unwrap();
        let until = after(&pair, Duration::from_micros(100));
        pass(&mut pair, until);
        assert!(pair.ends[HOST].is_idle() && pair.ends[HOST].open_requests() == 1, "it has arrived");
        let until = after(&pair, Duration::from_millis(pause_ms));
        pass_without(&mut pair, BOX, until);
        assert_eq!(silent(&mut pair, HOST) == 1, is_silence, "a pause of {pause_ms} ms");
    }
    // One that takes its time and is there all the while is not silent.
    let mut pair = established(Duration::from_millis(500), |_| {});
    pair.ends[HOST].send(&read(1, 5)).unwrap();
    let until = after(&pair, Duration::from_secs(60));
    pass(&mut pair, until);
    assert_eq!(silent(&mut pair, HOST), 0);
}

/// Failing over from path to path is not hearing: silence is found however many paths there are, and as late.
#[test]
fn several_paths_make_silence_neither_earlier_nor_later() {
    let mut pair = established(Duration::from_secs(2), two_paths);
    pair.nets[HOST].cut(PathId(1), pair.now, Time(u64::MAX));
    pair.nets[HOST].cut(PathId(2), pair.now, Time(u64::MAX));
    pair.ends[HOST].send(&write(1, &payload(1, 64))).unwrap();
    let until = after(&pair, Duration::from_millis(1_900));
    pass(&mut pair, until);
    assert_eq!(silent(&mut pair, HOST), 0);
    let until = after(&pair, Duration::from_millis(200));
    pass(&mut pair, until);
    assert_eq!(silent(&mut pair, HOST), 1);
}
