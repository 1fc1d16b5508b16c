//! The order of classes and the credits, under any schedule: what a model of PCIe allows, and no deadlock.
//!
//! A schedule is a list of moves: send a TLP of some class, let the network carry, lose or delay, let the receiver
//! take some classes and not others. The model knows in which order everything was sent.

mod pair;

use fabric::{Faults, SendError, Willing};
use pair::{Pair, completion, message, read};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use tlp::{Class, Header};

#[derive(Clone, Copy, Debug)]
enum Move {
    /// From the host to the box, or back.
    Send {
        end: usize,
        class: Class,
    },
    /// One TLP, if there is one that it is willing to take.
    Take {
        end: usize,
        willing: Willing,
    },
    Settle,
    Advance,
}

/// Mostly everything; now and then a receiver that is short of room for something.
fn willing() -> impl Strategy<Value = Willing> {
    (0..4u8, any::<bool>(), 0..4u8).prop_map(|(posted, non_posted, completions)| Willing {
        posted: posted > 0,
        non_posted,
        completions: completions > 0,
    })
}

fn a_move() -> impl Strategy<Value = Move> {
    let class =
        prop_oneof![3 => Just(Class::Posted), 3 => Just(Class::NonPosted), 2 => Just(Class::Completion)];
    prop_oneof![
        4 => (0..2usize, class).prop_map(|(end, class)| Move::Send { end, class }),
        3 => (0..2usize, willing()).prop_map(|(end, willing)| Move::Take { end, willing }),
        2 => Just(Move::Settle),
        1 => Just(Move::Advance),
    ]
}

/// What one end has sent, in order: its class, and a number that its TLP carries.
#[derive(Default)]
struct Model {
    sent: VecDeque<(Class, u64)>,
    /// Requests that this end received and has not answered.
    owed: VecDeque<Header>,
    next: u64,
    next_tag: u16,
}

impl Model {
    /// A TLP was received from this end: it must be the oldest of its class, and no posted one may be older.
    fn received(&mut self, class: Class, number: u64) {
        let place = self.sent.iter().position(|sent| *sent == (class, number));
        let place = place.unwrap_or_else(|| panic!("{class:?} {number} was not sent, or came twice"));
        for (earlier, _) in self.sent.range(..place) {
            assert_ne!(*earlier, class, "{class:?} {number} passed one of its own");
            assert_ne!(*earlier, Class::Posted, "{class:?} {number} passed a posted TLP");
        }
        self.sent.remove(place);
    }
}

/// The number that a TLP carries.
fn number(header: &Header) -> u64 {
    match &header.body {
        tlp::Body::Message(it) => u64::from_be_bytes(it.fields),
        tlp::Body::Memory(it) => it.address / 4096,
        tlp::Body::Completion(it) => u64::from(it.id.tag.value()),
        other => panic!("nobody sent {other:?}"),
    }
}

struct World {
    pair: Pair,
    models: [Model; 2],
}

impl World {
    fn send(&mut self, end: usize, class: Class) {
        let (model, link) = (&mut self.models[end], &mut self.pair.ends[end]);
        let number = model.next;
        let sent = match class {
            Class::Posted => link.send(&message(number)).map(|()| number),
            Class::NonPosted => link.send(&read(number, 0x100 + model.next_tag)).map(|()| {
                model.next_tag = (model.next_tag + 1) % 768;
                number
            }),
            Class::Completion => {
                let Some(request) = model.owed.pop_front() else { return };
                let sent =
                    link.send(&completion(&request, &[3; 64])).map(|()| u64::from(request.tag().value()));
                if sent.is_err() {
                    model.owed.push_front(request);
                }
                sent
            }
        };
        // A queue that is full, a tag that is open: the model need not know which.
        if let Ok(number) = sent {
            model.next += 1;
            model.sent.push_back((class, number));
        }
    }

    fn take(&mut self, end: usize, willing: Willing) -> bool {
        let Some(tlp) = self.pair.ends[end].receive(willing) else {
            return false;
        };
        let (class, header) = (tlp.class(), tlp.header);
        let is_willing = [willing.posted, willing.non_posted, willing.completions][class.index()];
        assert!(is_willing, "it was not willing to take {class:?}");
        self.models[1 - end].received(class, number(&header));
        if class == Class::NonPosted {
            self.models[end].owed.push_back(header);
        }
        true
    }

    fn do_it(&mut self, a_move: Move) {
        match a_move {
            Move::Send { end, class } => self.send(end, class),
            Move::Take { end, willing } => {
                self.take(end, willing);
            }
            Move::Settle => self.pair.settle(),
            Move::Advance => {
                self.pair.advance();
            }
        }
    }

    /// From wherever the schedule led: with no end willing to take requests, all posted TLPs and completions arrive
    /// that were sent; then, with both ends willing, the rest.
    fn drain(&mut self) {
        for willing in [Willing::NO_REQUESTS, Willing::ALL] {
            for _ in 0..100_000 {
                self.pair.settle();
                let mut has_moved = false;
                for end in 0..2 {
                    while self.take(end, willing) {
                        has_moved = true;
                    }
                }
                let is_left = |sent: &(Class, u64)| willing.non_posted || sent.0 != Class::NonPosted;
                if !self.models.iter().any(|model| model.sent.iter().any(is_left)) {
                    break;
                }
                assert!(has_moved || self.pair.advance(), "deadlock: {:?}", self.pair.ends);
            }
        }
        for model in &self.models {
            assert!(model.sent.is_empty(), "left: {:?} {:?}", model.sent, self.pair.ends);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn no_schedule_breaks_the_order_or_blocks(
        moves in prop::collection::vec(a_move(), 1..400),
        room in 1..6u32,
        queued_max in 1..64usize,
        seed in any::<u64>(),
        is_bad in any::<bool>(),
    ) {
        let bad = Faults {
            lost: 200,
            repeated: 100,
            damaged: 50,
            late: 300,
            late_by: Duration::from_micros(300),
            delay: Duration::from_micros(5),
        };
        let faults = if is_bad { bad } else { Faults { delay: Duration::from_micros(5), ..Faults::default() } };
        // As little room as a link may have, so that credits run out all the time.
        let mut pair = Pair::new(faults, seed, |config| {
            config.room.headers = [room; 3];
            config.room.data = [256; 3];
            config.queued_max = queued_max;
            config.window = 64;
        });
        pair.establish();
        let mut world = World { pair, models: Default::default() };
        for a_move in moves {
            world.do_it(a_move);
        }
        world.drain();
    }
}

/// The case that credits are for: the box takes no requests, its room for them is full, and still everything else flows.
#[test]
fn requests_that_wait_hold_up_nobody() {
    let mut pair = Pair::new(Faults::default(), 1, |config| config.room.headers = [2; 3]);
    pair.establish();
    let mut world = World { pair, models: Default::default() };
    for _ in 0..50 {
        world.send(0, Class::NonPosted);
        world.send(0, Class::Posted);
    }
    for _ in 0..500 {
        world.pair.settle();
        while world.take(1, Willing::NO_REQUESTS) {}
        world.pair.advance();
    }
    let left: Vec<_> = world.models[0].sent.iter().map(|(class, _)| *class).collect();
    assert_eq!(left, [Class::NonPosted; 50], "every posted TLP has passed the requests");
    world.drain();
}

/// A request was acknowledged and has no answer yet, so a ping is due now and then; at that very moment there is something to
/// send. The link must not stay due for the ping, with nothing to say: time would stand still.
#[test]
fn packets_take_the_place_of_a_ping_that_is_due() {
    let mut pair = Pair::new(Faults { delay: Duration::from_micros(5), ..Faults::default() }, 0, |config| {
        config.room.headers = [1; 3];
    });
    pair.establish();
    let mut world = World { pair, models: Default::default() };
    let take = Move::Take { end: 1, willing: Willing::ALL };
    let send = |class| Move::Send { end: 0, class };
    let (settle, advance) = (Move::Settle, Move::Advance);
    for a_move in [send(Class::NonPosted), settle, advance, settle, take, settle, advance, settle] {
        world.do_it(a_move);
    }
    world.do_it(send(Class::Posted));
    world.do_it(Move::Advance);
    world.drain();
}

/// What waits is bounded by bytes as well as by number, in each class for itself; one more than there is room for is taken.
#[test]
fn a_queue_takes_no_more_payload_than_it_was_told() {
    let mut pair = Pair::new(Faults::default(), 1, |config| config.queued_bytes_max = 10_000);
    pair.establish();
    let link = &mut pair.ends[0];
    let page = pair::payload(1, 4096);
    for number in 0..3 {
        assert_eq!(link.send(&pair::write(number, &page)), Ok(()));
    }
    assert_eq!(link.send(&pair::write(3, &page)), Err(SendError::Full(Class::Posted)));
    assert_eq!(link.send(&message(3)), Err(SendError::Full(Class::Posted)), "it would pass them");
    assert_eq!(link.send(&read(4, 0x100)), Ok(()), "another class");
    pair.settle();
    assert_eq!(pair.ends[0].send(&pair::write(3, &page)), Ok(()));
}

/// A TLP that cannot be written leaves nothing behind: no place, no credit, no order.
#[test]
fn a_malformed_tlp_is_refused_and_forgotten() {
    let mut pair = Pair::new(Faults::default(), 1, |_| {});
    pair.establish();
    let page = pair::payload(1, 64);
    let mut bad = pair::write(1, &page);
    bad.header.traffic_class = 8;
    for _ in 0..3 {
        assert!(matches!(pair.ends[0].send(&bad), Err(SendError::Encode(_))));
    }
    assert!(pair.ends[0].is_idle() && pair.ends[0].in_flight_tlps() == 0);
    pair.ends[0].send(&pair::write(2, &page)).unwrap();
    pair.settle();
    assert_eq!(pair.ends[1].receive(Willing::ALL), Some(pair::write(2, &page)));
}
