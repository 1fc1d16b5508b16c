//! Cuts at any position, safe or abandoned in any order, lose no frame and double none. Sent buffers come back.

use crate::{
    CutRefused, Journal, Observation, Step,
    manifest::frame,
    mutant::{Mutant, plant},
};
use cuda_wire::{Command, CommandHeader, ContextId, Op, Plane, Shape, StreamId, TransferId, header};
use proptest::prelude::*;

/// What a random client does.
#[derive(Clone, Debug)]
enum Act {
    /// Sends so many frames in a buffer with so much room beyond them.
    Send {
        frames: usize,
        room: usize,
    },
    Cut,
    /// The cut of this number, if it is under way.
    Safe(u64),
    Abandon(u64),
    /// Begins a replay, which is read at the end.
    Replay,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1..40usize, prop_oneof![Just(0usize), Just(10_000), Just(3 << 20)])
            .prop_map(|(frames, room)| Act::Send { frames, room }),
        2 => Just(Act::Cut),
        2 => (0..12u64).prop_map(Act::Safe),
        1 => (0..12u64).prop_map(Act::Abandon),
        1 => Just(Act::Replay),
    ]
}

/// A frame that is told by its number. It names an address that nothing lies at.
fn numbered(number: u64) -> Vec<u8> {
    frame(&Command::MemoryFree { address: 1 << 40 | number }, 0)
}

/// The numbers of the frames that a replay sends.
fn numbers(mut replay: crate::Replay) -> Vec<u64> {
    let mut found = Vec::new();
    loop {
        match replay.step().unwrap() {
            Step::Send(mut bytes) => {
                while !bytes.is_empty() {
                    let head: CommandHeader = header(&bytes[..CommandHeader::BYTES]).unwrap();
                    let (frame, rest) = bytes.split_at(CommandHeader::BYTES + head.bytes as usize);
                    let command = Command::decode(head.opcode, &frame[CommandHeader::BYTES..]).unwrap();
                    let Command::MemoryFree { address } = command else { panic!("{command:?}") };
                    found.push(address & !(1 << 40));
                    bytes = rest;
                }
            }
            Step::Restore(_) => {}
            Step::Done => return found,
            other => panic!("{other:?}"),
        }
    }
}

fn holds(acts: &[Act]) -> Result<(), TestCaseError> {
    let mut journal = Journal::new(u64::MAX);
    let (mut sent, mut cuts, mut base) = (0u64, Vec::<(u64, u64)>::new(), 0u64);
    let mut next_cut = 0;
    let mut replays = Vec::new();
    for act in acts {
        match act {
            Act::Send { frames, room } => {
                let mut bytes = Vec::with_capacity(*room);
                for _ in 0..*frames {
                    bytes.extend(numbered(sent));
                    sent += 1;
                }
                let back = journal.sent(bytes);
                prop_assert!(back.is_empty());
            }
            Act::Cut => {
                journal.cut_sent(next_cut);
                journal.cut_taken(next_cut);
                cuts.push((next_cut, sent));
                next_cut += 1;
            }
            Act::Safe(number) => {
                let known = cuts.iter().position(|(cut, _)| cut == number);
                match (journal.cut_safe(*number), known) {
                    (Ok(_), Some(place)) => {
                        base = cuts[place].1;
                        // Those before it are of no use any more.
                        cuts.drain(..=place);
                    }
                    (Err(CutRefused::Unknown(_)), None) => {}
                    (other, known) => prop_assert!(false, "{other:?} for {known:?}"),
                }
            }
            Act::Abandon(number) => {
                journal.cut_abandoned(*number);
                cuts.retain(|(cut, _)| cut != number);
            }
            Act::Replay => replays.push((journal.replay(), base..sent)),
        }
        let all: Vec<u64> = (base..sent).collect();
        prop_assert_eq!(numbers(journal.replay()), all);
    }
    // A replay that began earlier is as it was, whatever was sent and truncated since.
    for (replay, range) in replays {
        prop_assert_eq!(numbers(replay), range.collect::<Vec<u64>>());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_is_lost_or_doubled(acts in prop::collection::vec(act(), 0..30)) {
        holds(&acts)?;
    }
}

#[test]
fn a_truncation_that_loses_or_doubles_a_frame_is_found() {
    let acts = [Act::Send { frames: 3, room: 0 }, Act::Cut, Act::Send { frames: 3, room: 0 }, Act::Safe(0)];
    holds(&acts).unwrap();
    for mutant in [Mutant::FrameLostAtTruncation, Mutant::FrameDoubledAtTruncation] {
        plant(Some(mutant));
        let found = holds(&acts);
        plant(None);
        assert!(found.is_err(), "{mutant:?} was not found");
    }
}

#[test]
fn sent_buffers_come_back_after_a_cut() {
    let mut journal = Journal::new(u64::MAX);
    let mut buffer = Vec::with_capacity(4096);
    let mut places = std::collections::BTreeSet::new();
    let mut seen = Vec::new();
    for round in 0..100u64 {
        for number in 0..10 {
            places.insert(buffer.as_ptr());
            while buffer.len() < 3000 {
                buffer.extend(numbered(round * 10 + number));
            }
            buffer = journal.sent(buffer);
        }
        journal.cut_sent(round);
        journal.cut_taken(round);
        journal.cut_safe(round).unwrap();
        seen.push(places.len());
    }
    // The client's own, and one for each send between two cuts.
    assert_eq!((seen[1], seen[99]), (11, 11));
}

#[test]
fn a_small_write_does_not_cost_its_whole_buffer() {
    let mut journal = Journal::new(4 << 20);
    let mut buffer = Vec::with_capacity(1 << 20);
    for number in 0..10_000 {
        buffer.extend(numbered(number));
        let place = buffer.as_ptr();
        buffer = journal.sent(buffer);
        assert_eq!(buffer.as_ptr(), place, "the same buffer is used again");
    }
    assert!(!journal.is_full(), "{} bytes for {}", journal.bytes_held(), journal.position());
}

#[test]
fn a_full_journal_says_so_and_a_cut_empties_it() {
    let mut journal = Journal::new(100_000);
    assert_eq!(journal.budget_bytes(), 100_000);
    journal.pushed(TransferId(1), vec![0; 200_000].into());
    let (stream, transfer) = (StreamId(0), TransferId(1));
    let data = cuda_wire::HostData::Pushed { transfer };
    let op = Op::CopyIn { target: Plane::line(0), shape: Shape::line(200_000), data };
    journal.sent(frame(&Command::Enqueue { stream, op }, 0));
    assert!(journal.is_full());
    journal.cut_sent(1);
    journal.cut_taken(1);
    journal.cut_safe(1).unwrap();
    assert!(!journal.is_full());
    assert_eq!((journal.base(), journal.manifest().allocated_bytes()), (Some(1), 0));
}

#[test]
fn a_cut_is_not_used_while_a_call_before_it_has_no_answer() {
    let mut journal = Journal::new(u64::MAX);
    let wait = Command::ContextSynchronize { context: ContextId(0) };
    journal.sent(frame(&wait, 5));
    journal.cut_sent(1);
    assert_eq!(journal.cut_safe(1), Err(CutRefused::NotTaken(1)));
    journal.cut_taken(1);
    assert_eq!(journal.cut_safe(1), Err(CutRefused::Unanswered { number: 1, call: 5 }));
    journal.sent(numbered(7));
    journal.observed(Observation::reply(5, wait.opcode(), 0, &[]));
    assert!(journal.cut_safe(1).is_ok());
    // The answer came behind the cut, its question lies before it: a replay must not wait for it.
    assert_eq!(numbers(journal.replay()), [7]);
}

/// Bytes that are in a lane when the image is safe would be lost with the frames that asked for them.
#[test]
fn a_fold_waits_for_what_was_asked_for_before_the_cut_and_for_nothing_else() {
    let copy_out = |transfer| {
        let op =
            Op::CopyOut { source: Plane::line(0), shape: Shape::line(4), transfer: TransferId(transfer) };
        frame(&Command::Enqueue { stream: StreamId(1), op }, 0)
    };
    let mut journal = Journal::new(1 << 20);
    journal.sent(copy_out(7));
    journal.cut_sent(1);
    journal.sent(copy_out(8));
    journal.cut_taken(1);
    let fold = |journal: &Journal, expected: &[u64]| {
        let expected = expected.iter().copied().map(TransferId).collect();
        journal.begin_fold(1, expected).unwrap().run()
    };
    let waits = CutRefused::NotLanded { number: 1, transfer: TransferId(7) };
    let refused = fold(&journal, &[7, 8]);
    assert_eq!(journal.end_fold(refused), Err(waits));
    assert_eq!(journal.base(), None, "nothing has changed");
    let folded = fold(&journal, &[8, 9]);
    assert!(journal.end_fold(folded).is_ok());
    assert_eq!(journal.base(), Some(1));
    assert_eq!(journal.end_fold(Err(CutRefused::Unknown(1))), Err(CutRefused::Unknown(1)));
}
