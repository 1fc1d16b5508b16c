//! The table against a model with bytes on two sides.

use super::*;
use proptest::prelude::*;
use std::ops::Range;

const BLOCKS: u64 = 12;
/// The last block is not whole.
const BYTES: u64 = BLOCKS * BLOCK_BYTES - 100;

/// One byte stands for each block on each side; the truth is what a program on one machine would see.
struct Model {
    table: Table,
    host: Vec<u32>,
    device: Vec<u32>,
    truth: Vec<u32>,
    /// What page protection allows the program.
    may: Vec<May>,
    moved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum May {
    Nothing,
    Read,
    Write,
}

fn indices(range: &Range<u64>) -> Range<usize> {
    (range.start / BLOCK_BYTES) as usize..range.end.div_ceil(BLOCK_BYTES) as usize
}

impl Model {
    fn new(bytes: u64) -> Self {
        let count = bytes.div_ceil(BLOCK_BYTES) as usize;
        Self {
            table: Table::new(bytes),
            host: vec![0; count],
            device: vec![0; count],
            truth: vec![0; count],
            may: vec![May::Read; count],
            moved: 0,
        }
    }

    fn fetch(&mut self, range: &Range<u64>, state: Block) {
        self.moved += range.end - range.start;
        assert!(self.table.arrived(range, state));
        for at in indices(range) {
            self.host[at] = self.device[at];
            self.may[at] = match state {
                Block::HostNewer => May::Write,
                Block::Same => May::Read,
                Block::Ready | Block::DeviceNewer => May::Nothing,
            };
        }
    }

    fn fetch_ahead(&mut self, now: &Range<u64>, ahead: &Range<u64>) {
        if !ahead.is_empty() {
            assert_eq!(ahead.start, now.end);
            self.fetch(ahead, Block::Ready);
        }
    }

    /// The program touches a byte as a processor does: again until protection allows it.
    fn touch(&mut self, offset: u64, write: Option<u32>) {
        let at = (offset / BLOCK_BYTES) as usize;
        let need = if write.is_some() { May::Write } else { May::Read };
        for _ in 0..3 {
            if self.may[at] >= need {
                break;
            }
            match self.table.fault(offset, write.is_some()) {
                Fault::Late => panic!("block {at} is not open"),
                Fault::MakeWritable { now, .. } => {
                    assert!(now.contains(&offset));
                    indices(&now).for_each(|at| self.may[at] = May::Write);
                }
                Fault::Open { now, ahead } => {
                    assert!(now.contains(&offset));
                    indices(&now).for_each(|at| self.may[at] = need);
                    self.fetch_ahead(&now, &ahead);
                }
                Fault::Fetch { now, ahead } => {
                    assert!(now.contains(&offset));
                    self.fetch(&now, opened(write.is_some()));
                    self.fetch_ahead(&now, &ahead);
                }
            }
        }
        assert!(self.may[at] >= need, "a touch needs three faults");
        match write {
            Some(value) => (self.host[at], self.truth[at]) = (value, value),
            None => assert_eq!(self.host[at], self.truth[at], "the program reads an old byte"),
        }
    }

    fn send(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            self.moved += range.end - range.start;
            for at in indices(range) {
                assert!(self.may[at] < May::Write, "what is sent may change meanwhile");
                self.device[at] = self.host[at];
            }
        }
    }

    /// Work of the device that reads and writes some blocks of what it was lent.
    fn work(&mut self, lent: Range<u64>, writes: &[(usize, u32)]) {
        let Lent { close, send } = self.table.lend(&lent);
        indices(&close).for_each(|at| self.may[at] = May::Nothing);
        self.send(&send);
        for at in indices(&lent) {
            assert_eq!(self.device[at], self.truth[at], "the device reads an old byte");
            assert_eq!(self.may[at], May::Nothing, "the program may touch what the device changes");
        }
        for (at, value) in writes.iter().filter(|(at, _)| indices(&lent).contains(at)) {
            (self.device[*at], self.truth[*at]) = (*value, *value);
        }
    }

    /// Work of the device that only reads.
    fn look(&mut self, range: Range<u64>) {
        let Lent { send, .. } = self.table.share(&range);
        send.iter().flat_map(indices).for_each(|at| self.may[at] = May::Read);
        self.send(&send);
        indices(&range).for_each(|at| assert_eq!(self.device[at], self.truth[at], "an old byte"));
    }
}

#[derive(Clone, Debug)]
enum Action {
    Touch(u64, Option<u32>),
    Work(u64, u64, Vec<(usize, u32)>),
    Launch(Vec<(usize, u32)>),
    Look(u64, u64),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let writes = || prop::collection::vec((0..BLOCKS as usize, 1u32..1000), 0..4);
    let action = prop_oneof![
        6 => (0..BYTES, prop::option::of(1u32..1000)).prop_map(|(at, write)| Action::Touch(at, write)),
        2 => writes().prop_map(Action::Launch),
        1 => (0..BYTES, 1..BYTES, writes()).prop_map(|(at, n, writes)| Action::Work(at, n, writes)),
        1 => (0..BYTES, 1..BYTES).prop_map(|(at, n)| Action::Look(at, n)),
    ];
    prop::collection::vec(action, 1..60)
}

proptest! {
    #[test]
    fn no_side_ever_reads_an_old_byte(actions in actions()) {
        let mut model = Model::new(BYTES);
        for action in actions {
            match action {
                Action::Touch(at, write) => model.touch(at, write),
                Action::Launch(writes) => model.work(0..BYTES, &writes),
                Action::Work(at, n, writes) => model.work(at..(at + n).min(BYTES), &writes),
                Action::Look(at, n) => model.look(at..(at + n).min(BYTES)),
            }
        }
        // At the end everything is read on both sides.
        (0..BLOCKS).for_each(|at| model.touch(at * BLOCK_BYTES, None));
        model.work(0..BYTES, &[]);
    }

    /// Walks of any lengths from any places, reading or writing, move at most twice what they touch.
    #[test]
    fn walks_move_at_most_twice_what_they_touch(
        walks in prop::collection::vec((0u64..4000, 1u64..300, any::<bool>()), 1..8),
    ) {
        let bytes = 5000 * BLOCK_BYTES;
        let mut model = Model::new(bytes);
        for (first, count, is_write) in walks {
            model.work(0..bytes, &[]);
            model.moved = 0;
            for at in first..first + count {
                model.touch(at * BLOCK_BYTES + 5, is_write.then_some(1));
            }
            prop_assert!(model.moved <= 2 * count * BLOCK_BYTES, "{} for {count} blocks", model.moved / BLOCK_BYTES);
            model.moved = 0;
            model.work(0..bytes, &[]);
            prop_assert!(model.moved <= 2 * count * BLOCK_BYTES, "{} sent", model.moved / BLOCK_BYTES);
        }
    }
}

#[test]
fn one_percent_of_8_gib_moves_at_most_two_percent() {
    let bytes = 8u64 << 30;
    let mut model = Model::new(bytes);
    model.work(0..bytes, &[]);
    model.moved = 0;
    let hundredth = bytes / 100;
    (0..hundredth / 4096).for_each(|page| model.touch(bytes / 2 + page * 4096, None));
    assert!(model.moved <= bytes / 50, "{} MiB in order", model.moved >> 20);

    // Scattered: a hundredth of the blocks, each once.
    model.work(0..bytes, &[]);
    model.moved = 0;
    let blocks = bytes / BLOCK_BYTES;
    (0..blocks / 100).for_each(|k| model.touch((k * 7919 * 13 % blocks) * BLOCK_BYTES, None));
    assert!(model.moved <= bytes / 100, "{} MiB scattered", model.moved >> 20);
}

#[test]
fn a_walk_through_1_gib_takes_few_faults_and_a_random_touch_one_block() {
    let bytes = 1u64 << 30;
    let mut table = Table::new(bytes);
    let (mut at, mut faults) = (0, 0);
    while at < bytes {
        let Fault::MakeWritable { now, .. } = table.fault(at, true) else { panic!("no fill") };
        (at, faults) = (now.end, faults + 1);
    }
    assert!(faults <= 150, "{faults} faults of a fill");
    let lent = table.lend(&(0..bytes));
    assert_eq!((lent.close, lent.send.as_slice()), (0..bytes, std::slice::from_ref(&(0..bytes))));
    let (mut at, mut faults, mut waits) = (0, 0, 0);
    while at < bytes {
        let (now, ahead) = match table.fault(at, false) {
            Fault::Open { now, ahead } => (now, ahead),
            Fault::Fetch { now, ahead } => {
                assert!(table.arrived(&now, Block::Same));
                waits += 1;
                (now, ahead)
            }
            other => panic!("{other:?}"),
        };
        assert!(ahead.is_empty() || table.arrived(&ahead, Block::Ready));
        (at, faults) = (now.end, faults + 1);
    }
    assert!(faults <= 150, "{faults} faults of a walk");
    assert!(waits <= 10, "{waits} times the program waits for a whole round trip");
    let _ = table.lend(&(0..bytes));
    for k in 0..1000 {
        let at = (k * 7919 % 16384) * BLOCK_BYTES + 77;
        let Fault::Fetch { now, ahead } = table.fault(at, false) else { panic!("no fetch") };
        assert!(now.end - now.start == BLOCK_BYTES && ahead.is_empty());
        assert!(table.arrived(&now, Block::Same));
    }
}

#[test]
fn what_changed_meanwhile_is_not_noted_as_fetched() {
    let mut table = Table::new(BYTES);
    let _ = table.lend(&(0..BYTES));
    let Fault::Fetch { now, .. } = table.fault(0, false) else { panic!("no fetch") };
    assert!(table.arrived(&now, Block::Same));
    assert!(!table.arrived(&now, Block::HostNewer), "it is here already");
    assert_eq!(table.fault(0, false), Fault::Late);
    assert_eq!(table.only_on_device(&(0..BYTES)), std::slice::from_ref(&(BLOCK_BYTES..BYTES)));
}
