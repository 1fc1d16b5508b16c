//! Random sessions against their image: memory changes, cuts are taken, and everything on the way breaks.
//!
//! A session has memory, a table and an incarnation; the image has what was committed. Whatever is abandoned, lost,
//! changed on the way or said by a writer that was replaced: a committed cut reads as memory was at that cut, and a cut
//! that was not committed whole is not there.

use proptest::prelude::*;
use snapshot::{Block, BlockDigest, Bytes, Delta, EventAge, Extent, Extents, Image, ImageError, Key, Tables};
use std::{collections::BTreeMap, sync::Arc};

/// What happens to a cut on its way.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Whole,
    Abandoned,
    /// The session dies after so many blocks; the next incarnation restores the image.
    Crashed(usize),
    /// The connection breaks after so many blocks; the session lives and asks what is committed.
    Broken(usize),
    /// One bit of one block changes.
    Flipped(usize),
    /// One dirty block is left out.
    Dropped(usize),
    /// Dead blocks are left in.
    Unburied,
    /// It is committed, but the session does not hear of it.
    Unheard,
    /// An older incarnation says the same things again in between.
    Haunted,
}

#[derive(Clone, Debug)]
enum Step {
    Write { place: u64, bytes: u64, value: u8 },
    Map { place: u64, bytes: u64 },
    Unmap { pick: usize },
    Cut(Fate),
    Pin,
    Unpin { pick: usize },
}

const SPACE: u64 = 1 << 20;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fate = prop_oneof![
        4 => Just(Fate::Whole),
        1 => Just(Fate::Abandoned),
        1 => (0..6usize).prop_map(Fate::Crashed),
        1 => (0..6usize).prop_map(Fate::Broken),
        1 => any::<usize>().prop_map(Fate::Flipped),
        1 => any::<usize>().prop_map(Fate::Dropped),
        1 => Just(Fate::Unburied),
        1 => Just(Fate::Unheard),
        1 => Just(Fate::Haunted),
    ];
    let step = prop_oneof![
        6 => (0..SPACE, 1..9000u64, any::<u8>()).prop_map(|(place, bytes, value)| Step::Write { place, bytes, value }),
        3 => (0..SPACE, 1..150_000u64).prop_map(|(place, bytes)| Step::Map { place, bytes }),
        1 => any::<usize>().prop_map(|pick| Step::Unmap { pick }),
        4 => fate.prop_map(Step::Cut),
        1 => Just(Step::Pin),
        1 => any::<usize>().prop_map(|pick| Step::Unpin { pick }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Memory as bytes by extent.
type Memory = BTreeMap<u64, Vec<u8>>;

struct World {
    key: Arc<Key>,
    image: Image,
    tables: Tables,
    memory: Memory,
    incarnation: u64,
    number: u64,
    /// Memory at each committed cut that can be read.
    kept: BTreeMap<u64, Memory>,
    pins: Vec<u64>,
}

impl World {
    fn new() -> Self {
        let key = Arc::new(Key::from_seed(&[9; 32]));
        let mut image = Image::new(key.clone(), 64 << 20);
        image.admit(1).unwrap();
        Self {
            key,
            image,
            tables: Tables::default(),
            memory: Memory::new(),
            incarnation: 1,
            number: 0,
            kept: BTreeMap::new(),
            pins: Vec::new(),
        }
    }

    fn bytes(memory: &Memory, block: Block) -> Vec<u8> {
        let (start, bytes) = memory.range(..=block.address).next_back().unwrap();
        let offset = (block.address - start) as usize;
        bytes[offset..offset + block.bytes as usize].to_vec()
    }

    fn entries(&self) -> Vec<BlockDigest> {
        let extents =
            self.memory.iter().map(|(&address, bytes)| Extent { address, bytes: bytes.len() as u64 });
        let extents = Extents::new(extents).unwrap();
        let digest =
            |block| BlockDigest { block, digest: self.key.digest(&Self::bytes(&self.memory, block)) };
        extents.blocks().map(digest).collect()
    }

    fn put(&mut self, delta: &Delta, index: usize) -> Result<(), ImageError> {
        let entry = delta.dirty[index];
        let bytes = Bytes::copy_of(&Self::bytes(&self.memory, entry.block));
        self.image.put(self.incarnation, delta.number, entry, bytes)
    }

    fn send(&mut self, delta: &Delta, fate: Fate) -> Result<(), ImageError> {
        let me = self.incarnation;
        self.image.begin(me, delta.base, delta.number)?;
        for index in 0..delta.dirty.len() {
            match fate {
                Fate::Dropped(which) if which % delta.dirty.len() == index => continue,
                Fate::Flipped(which) if which % delta.dirty.len() == index => {
                    let entry = delta.dirty[index];
                    let mut bytes = Self::bytes(&self.memory, entry.block);
                    let at = which / 7 % bytes.len();
                    bytes[at] ^= 1 << (which % 8);
                    self.image.put(me, delta.number, entry, Bytes::copy_of(&bytes))?;
                }
                Fate::Haunted => {
                    let late = Bytes::copy_of(&Self::bytes(&self.memory, delta.dirty[index].block));
                    assert!(self.image.put(me - 1, delta.number, delta.dirty[index], late).is_err());
                    assert!(self.image.commit(me - 1, delta.number, delta.seal, vec![]).is_err());
                    assert!(self.image.admit(me - 1).is_err());
                    self.image.leave(me - 1);
                    self.put(delta, index)?;
                }
                _ => self.put(delta, index)?,
            }
        }
        if !matches!(fate, Fate::Unburied) {
            self.image.bury(me, delta.number, &delta.dead)?;
        }
        let events = vec![EventAge { event: 1, age_ns: delta.number }];
        self.image.commit(me, delta.number, delta.seal, events)
    }

    fn cut(&mut self, fate: Fate) {
        self.number += 1;
        let number = self.number;
        let delta = self.tables.take(number, self.entries()).unwrap();
        match fate {
            Fate::Abandoned => self.tables.settle(number, false).unwrap(),
            Fate::Crashed(after) | Fate::Broken(after) => {
                self.image.begin(self.incarnation, delta.base, number).unwrap();
                for index in 0..delta.dirty.len().min(after) {
                    self.put(&delta, index).unwrap();
                }
                self.image.leave(self.incarnation);
                match fate {
                    Fate::Broken(_) => self.tables.settle(number, false).unwrap(),
                    _ => self.restore(),
                }
            }
            Fate::Whole | Fate::Unheard | Fate::Haunted => {
                self.send(&delta, fate).unwrap();
                self.committed(number);
                match fate {
                    Fate::Unheard => self.tables.forget(),
                    _ => self.tables.settle(number, true).unwrap(),
                }
            }
            Fate::Flipped(_) | Fate::Dropped(_) | Fate::Unburied => {
                let is_harmless = match fate {
                    Fate::Unburied => delta.dead.is_empty() || delta.base == 0,
                    _ => delta.dirty.is_empty(),
                };
                let outcome = self.send(&delta, fate);
                assert_eq!(outcome.is_ok(), is_harmless, "{fate:?}: {outcome:?}");
                if is_harmless {
                    self.committed(number);
                }
                self.tables.settle(number, is_harmless).unwrap();
            }
        }
    }

    fn committed(&mut self, number: u64) {
        let pins = &self.pins;
        self.kept.retain(|kept, _| pins.contains(kept));
        self.kept.insert(number, self.memory.clone());
    }

    /// A new incarnation starts from the image.
    fn restore(&mut self) {
        self.incarnation += 1;
        self.image.admit(self.incarnation).unwrap();
        let number = self.image.committed();
        self.tables = Tables::default();
        self.memory = self.kept.get(&number).cloned().unwrap_or_default();
        if number > 0 {
            self.tables = Tables::restored(number, self.image.blocks(number).unwrap()).unwrap();
        }
    }

    fn check(&self) {
        for (&number, memory) in &self.kept {
            let mut found = 0;
            for entry in self.image.blocks(number).unwrap() {
                let bytes = self.image.read(number, entry.block).unwrap();
                assert_eq!(&bytes[..], Self::bytes(memory, entry.block), "cut {number}, {:?}", entry.block);
                found += bytes.len();
            }
            assert_eq!(found, memory.values().map(Vec::len).sum::<usize>(), "cut {number} covers memory");
            assert_eq!(self.image.events(number).unwrap()[0].age_ns, number);
        }
        assert_eq!(self.image.committed(), self.kept.keys().copied().max().unwrap_or(0));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { place, bytes, value } => {
                for (start, kept) in &mut self.memory {
                    let from = place.saturating_sub(*start).min(kept.len() as u64) as usize;
                    let to = (place + bytes).saturating_sub(*start).min(kept.len() as u64) as usize;
                    kept[from..to.max(from)].fill(value);
                }
            }
            Step::Map { place, bytes } => {
                let end = place + bytes;
                let overlaps =
                    |(&start, kept): (&u64, &Vec<u8>)| start < end && place < start + kept.len() as u64;
                if !self.memory.iter().any(overlaps) {
                    self.memory.insert(place, vec![0; bytes as usize]);
                }
            }
            Step::Unmap { pick } => {
                let at = pick % self.memory.len().max(1);
                if let Some(&start) = self.memory.keys().nth(at) {
                    self.memory.remove(&start);
                }
            }
            Step::Cut(fate) => self.cut(fate),
            Step::Pin => {
                let number = self.image.committed();
                if self.image.pin(number).is_ok() {
                    self.pins.push(number);
                }
            }
            Step::Unpin { pick } => {
                if !self.pins.is_empty() {
                    let number = self.pins.swap_remove(pick % self.pins.len());
                    self.image.unpin(number);
                    if number != self.image.committed() && !self.pins.contains(&number) {
                        self.kept.remove(&number);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_committed_cut_reads_as_memory_was(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check();
        }
        // What was pinned goes with its pins, and what is left is one cut.
        for number in std::mem::take(&mut world.pins) {
            world.image.unpin(number);
        }
        let committed = world.image.committed();
        if committed > 0 {
            let blocks = world.image.blocks(committed).unwrap();
            let mut alone = Image::new(world.key.clone(), u64::MAX);
            alone.admit(1).unwrap();
            alone.begin(1, 0, 1).unwrap();
            for entry in &blocks {
                alone.put(1, 1, *entry, world.image.read(committed, entry.block).unwrap()).unwrap();
            }
            alone.commit(1, 1, snapshot::Seal::of(blocks), vec![EventAge { event: 1, age_ns: 1 }]).unwrap();
            prop_assert_eq!(world.image.bytes(), alone.bytes());
        }
    }
}
