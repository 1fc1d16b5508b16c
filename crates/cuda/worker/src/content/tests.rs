use super::*;

fn memory(sets: u64) -> Memory {
    Memory::new(make(sets * WAYS * BLOCK_BYTES).unwrap().unwrap())
}

fn block(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn name(store: &Store, block: &[u8]) -> Name {
    *blake3::keyed_hash(store.key(), block).as_bytes()
}

/// The bytes under a name, read in two pieces.
fn read(store: &mut Store, name: &Name, bytes: usize, now: u64) -> Option<Vec<u8>> {
    store
        .read(name, bytes as u32, now, |fill| {
            let mut out = vec![0; bytes];
            let (first, rest) = out.split_at_mut(bytes / 3);
            fill(first);
            fill(rest);
            out
        })
        .unwrap()
}

#[test]
fn a_block_comes_back_to_its_tenant_in_another_process_and_to_no_other() {
    let memory = memory(2);
    let (mut one, mut same) = (memory.open("ada").unwrap(), memory.open("ada").unwrap());
    let mut other = memory.open("bob").unwrap();
    let kept = block(1, 70_000);
    assert!(one.put(&kept, 1).unwrap());
    assert!(!one.put(&kept, 2).unwrap(), "it is there");
    let name_of_ada = name(&one, &kept);
    assert_eq!(read(&mut same, &name_of_ada, kept.len(), 3), Some(kept.clone()));
    assert_eq!(read(&mut same, &name_of_ada, kept.len() + 1, 3), None, "another length is another block");
    assert_ne!(name(&other, &kept), name_of_ada, "names of one tenant mean nothing to another");
    assert_eq!(read(&mut other, &name_of_ada, kept.len(), 3), None, "not even a name that leaked");
    assert_eq!((same.count().unwrap(), other.count().unwrap()), (1, 0));
}

#[test]
fn in_a_full_set_the_block_that_was_not_used_for_longest_goes() {
    let memory = memory(1);
    let mut store = memory.open("ada").unwrap();
    let blocks: Vec<Vec<u8>> = (0..WAYS).map(|seed| block(seed + 1, 5000)).collect();
    for (now, block) in blocks.iter().enumerate() {
        assert!(store.put(block, now as u64 + 10).unwrap());
    }
    let first = name(&store, &blocks[0]);
    assert!(read(&mut store, &first, 5000, 100).is_some());
    assert!(store.put(&block(77, 5000), 101).unwrap());
    let is_there: Vec<bool> = blocks
        .iter()
        .map(|block| {
            let name = name(&store, block);
            read(&mut store, &name, 5000, 102).is_some()
        })
        .collect();
    assert_eq!(is_there.iter().filter(|there| !**there).count(), 1);
    assert!(is_there[0] && !is_there[1], "the first was used since");
    assert_eq!(store.count().unwrap(), WAYS);
}

/// Random blocks, names and lengths, against a plain map that never forgets: a block is its bytes, or is not there.
#[test]
fn what_comes_back_is_what_was_put_whatever_was_put_since() {
    let memory = memory(2);
    let mut stores = [memory.open("ada").unwrap(), memory.open("ada").unwrap(), memory.open("bob").unwrap()];
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut found, mut gone) = (0, 0);
    for now in 0..4000 {
        let bytes = [1, 4096, 70_001][random(3) as usize];
        let block = block(random(60) + 1, bytes);
        let store = &mut stores[random(3) as usize];
        if random(2) == 0 {
            store.put(&block, now).unwrap();
            let name = name(store, &block);
            assert_eq!(read(store, &name, bytes, now), Some(block), "it was put just now");
            continue;
        }
        let name = name(store, &block);
        match read(store, &name, bytes, now) {
            Some(kept) => {
                assert_eq!(kept, block);
                found += 1;
            }
            None => gone += 1,
        }
    }
    assert!(found > 100 && gone > 100, "{found} found, {gone} gone");
}

#[test]
fn a_writer_that_dies_leaves_no_name_without_its_bytes() {
    let memory = memory(1);
    let mut store = memory.open("ada").unwrap();
    let (old, new) = (block(1, 5000), block(2, 5000));
    store.put(&old, 1).unwrap();
    let (name_of_old, name_of_new) = (name(&store, &old), name(&store, &new));
    // The first half of `put_locked`, by a process that is killed then: its lock goes with its descriptor.
    let dying = memory.open("ada").unwrap();
    dying.file.lock().unwrap();
    dying.write_entry(0, Entry { tag: [0; 16], name: [0; 32], used: 0, bytes: 0 }).unwrap();
    dying.file.write_all_at(&new[..2000], dying.layout.place_of(0)).unwrap();
    drop(dying);
    assert_eq!(read(&mut store, &name_of_old, 5000, 2), None);
    assert_eq!(read(&mut store, &name_of_new, 5000, 2), None);
    assert!(store.put(&new, 3).unwrap());
    assert_eq!(read(&mut store, &name_of_new, 5000, 4), Some(new));
}

#[test]
fn a_writer_waits_for_a_reader_and_too_little_memory_is_none() {
    assert!(make(WAYS * BLOCK_BYTES - 1).unwrap().is_none());
    let memory = memory(1);
    let (mut reader, mut writer) = (memory.open("ada").unwrap(), memory.open("ada").unwrap());
    let kept = block(1, 3000);
    writer.put(&kept, 1).unwrap();
    let name = name(&reader, &kept);
    let writer = std::thread::scope(|scope| {
        let (begun, has_begun) = std::sync::mpsc::channel();
        let thread = reader
            .read(&name, 3000, 2, |fill| {
                let thread = scope.spawn(move || {
                    begun.send(()).unwrap();
                    // Everything else goes, if it may.
                    for seed in 2..40 {
                        writer.put(&block(seed, 3000), 10 + seed).unwrap();
                    }
                });
                has_begun.recv().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(50));
                let mut out = vec![0; 3000];
                fill(&mut out);
                assert_eq!(out, kept, "no writer came between");
                thread
            })
            .unwrap()
            .unwrap();
        thread.join()
    });
    assert!(writer.is_ok());
    assert_eq!(read(&mut reader, &name, 3000, 99), None, "then it went");
}
