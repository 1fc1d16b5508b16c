use super::*;
use crate::{BLOCK_BYTES, buffer::graves};

const ME: u64 = 1;

fn image(bytes_max: u64) -> Image {
    let mut image = Image::new(Arc::new(Key::from_seed(&[3; 32])), bytes_max);
    image.admit(ME).unwrap();
    image
}

fn block(image: &Image, address: u64, bytes: &[u8]) -> BlockDigest {
    BlockDigest { block: Block { address, bytes: bytes.len() as u32 }, digest: image.key.digest(bytes) }
}

fn put(image: &mut Image, number: u64, address: u64, bytes: &[u8]) -> Result<BlockDigest, ImageError> {
    let entry = block(image, address, bytes);
    image.put(image.incarnation, number, entry, Bytes::copy_of(bytes))?;
    Ok(entry)
}

/// Commits a cut of these blocks alone.
fn cut(image: &mut Image, number: u64, blocks: &[(u64, &[u8])]) {
    image.begin(image.incarnation, 0, number).unwrap();
    let entries: Vec<BlockDigest> =
        blocks.iter().map(|(address, bytes)| put(image, number, *address, bytes).unwrap()).collect();
    image.commit(image.incarnation, number, Seal::of(entries), Vec::new()).unwrap();
}

fn contents(image: &Image, number: u64) -> Vec<(u64, Vec<u8>)> {
    let blocks = image.blocks(number).unwrap();
    let read = |entry: &BlockDigest| image.read(number, entry.block).unwrap().to_vec();
    blocks.iter().map(|entry| (entry.block.address, read(entry))).collect()
}

#[test]
fn a_delta_is_seen_only_when_it_is_committed() {
    let mut image = image(1 << 20);
    assert_eq!(image.blocks(1), Err(ImageError::NotKept { number: 1, committed: 0 }));
    image.begin(ME, 0, 1).unwrap();
    let first = put(&mut image, 1, 0x1000, b"one").unwrap();
    assert!(image.read(1, first.block).is_err());
    let events = vec![EventAge { event: 4, age_ns: 12 }];
    image.commit(ME, 1, Seal::of([first]), events.clone()).unwrap();
    assert_eq!(contents(&image, 1), [(0x1000, b"one".to_vec())]);
    assert_eq!(image.events(1).unwrap(), events);
    image.begin(ME, 1, 2).unwrap();
    put(&mut image, 2, 0x1000, b"two").unwrap();
    put(&mut image, 2, 0x2000, b"new").unwrap();
    assert_eq!(contents(&image, 1), [(0x1000, b"one".to_vec())]);
    image.abandon(ME, 2).unwrap();
    assert_eq!(contents(&image, 1), [(0x1000, b"one".to_vec())]);
    assert_eq!(image.commit(ME, 2, Seal::default(), vec![]), Err(ImageError::NoDelta { number: 2 }));
}

#[test]
fn half_a_delta_is_not_committed() {
    let mut image = image(1 << 20);
    cut(&mut image, 1, &[(0, b"a"), (16, b"b")]);
    let [a, b] = [block(&image, 0, b"A"), block(&image, 16, b"B")];
    // One of two dirty blocks is missing: as many blocks as expected, but not those.
    image.begin(ME, 1, 2).unwrap();
    put(&mut image, 2, 0, b"A").unwrap();
    let refused = image.commit(ME, 2, Seal::of([a, b]), vec![]);
    assert_eq!(refused, Err(ImageError::OtherSeal { number: 2, blocks: 2, found: 2 }));
    assert_eq!(contents(&image, 1), [(0, b"a".to_vec()), (16, b"b".to_vec())]);
    // A dead block is left over.
    image.begin(ME, 1, 2).unwrap();
    put(&mut image, 2, 0, b"A").unwrap();
    let refused = image.commit(ME, 2, Seal::of([a]), vec![]);
    assert_eq!(refused, Err(ImageError::OtherSeal { number: 2, blocks: 1, found: 2 }));
    image.begin(ME, 1, 2).unwrap();
    put(&mut image, 2, 0, b"A").unwrap();
    image.bury(ME, 2, &[16]).unwrap();
    image.commit(ME, 2, Seal::of([a]), vec![]).unwrap();
    assert_eq!(contents(&image, 2), [(0, b"A".to_vec())]);
}

#[test]
fn a_changed_block_is_refused_and_ends_its_delta() {
    let mut image = image(1 << 20);
    cut(&mut image, 1, &[(0, b"good")]);
    image.begin(ME, 1, 2).unwrap();
    let entry = block(&image, 0, b"sent");
    let refused = image.put(ME, 2, entry, Bytes::copy_of(b"seNt"));
    assert_eq!(refused, Err(ImageError::Corrupted { address: 0 }));
    let after = image.put(ME, 2, entry, Bytes::copy_of(b"sent"));
    assert_eq!(after, Err(ImageError::NoDelta { number: 2 }));
    assert_eq!(contents(&image, 1), [(0, b"good".to_vec())]);
    for (entry, bytes) in [(entry, &b"sen"[..]), (block(&image, 0, b""), b"")] {
        image.begin(ME, 1, 2).unwrap();
        let refused = image.put(ME, 2, entry, Bytes::copy_of(bytes));
        assert_eq!(refused, Err(ImageError::BadBlock { address: 0 }));
    }
    image.begin(ME, 1, 2).unwrap();
    put(&mut image, 2, 0, b"x").unwrap();
    assert_eq!(put(&mut image, 2, 0, b"y"), Err(ImageError::Twice { address: 0 }));
    image.begin(ME, 1, 2).unwrap();
    assert_eq!(image.bury(ME, 2, &[8]), Err(ImageError::BadBlock { address: 8 }));
}

#[test]
fn a_late_writer_is_refused_whatever_it_says() {
    let mut image = image(1 << 20);
    cut(&mut image, 1, &[(0, b"good")]);
    image.begin(ME, 1, 2).unwrap();
    put(&mut image, 2, 0, b"late").unwrap();
    image.admit(2).unwrap();
    let late = Err(ImageError::Superseded { incarnation: ME, current: 2 });
    let entry = block(&image, 0, b"late");
    assert_eq!(image.put(ME, 2, entry, Bytes::copy_of(b"late")), late);
    assert_eq!(image.commit(ME, 2, Seal::of([entry]), vec![]), late);
    assert_eq!(image.begin(ME, 1, 3), late);
    assert_eq!(image.bury(ME, 2, &[0]), late);
    assert_eq!(image.abandon(ME, 2), late);
    assert_eq!(image.admit(ME), late);
    // Its delta went with it, and it cannot end that of the new writer.
    image.begin(2, 1, 2).unwrap();
    put(&mut image, 2, 0, b"next").unwrap();
    image.leave(ME);
    image.commit(2, 2, Seal::of([block(&image, 0, b"next")]), vec![]).unwrap();
    assert_eq!(contents(&image, 2), [(0, b"next".to_vec())]);
}

#[test]
fn a_writer_that_goes_takes_its_delta_along() {
    let mut image = image(1 << 20);
    cut(&mut image, 1, &[(0, b"good")]);
    let before = image.bytes();
    image.begin(ME, 1, 2).unwrap();
    put(&mut image, 2, 0, b"half").unwrap();
    assert!(image.bytes() > before);
    image.leave(ME);
    assert_eq!(image.bytes(), before);
    assert_eq!(contents(&image, 1), [(0, b"good".to_vec())]);
    image.begin(ME, 1, 2).unwrap();
}

#[test]
fn deltas_are_relative_to_what_is_committed() {
    let mut image = image(1 << 20);
    cut(&mut image, 4, &[(0, b"good")]);
    assert_eq!(image.begin(ME, 3, 5), Err(ImageError::OtherBase { base: 3, committed: 4 }));
    assert_eq!(image.begin(ME, 4, 4), Err(ImageError::NotLater { number: 4, committed: 4 }));
    image.begin(ME, 4, 5).unwrap();
    assert_eq!(image.begin(ME, 4, 6), Err(ImageError::Busy { pending: 5 }));
    // A whole image replaces everything.
    image.abandon(ME, 5).unwrap();
    cut(&mut image, 6, &[(32, b"other")]);
    assert_eq!(contents(&image, 6), [(32, b"other".to_vec())]);
}

#[test]
fn an_image_that_would_grow_too_large_keeps_the_last_good_one() {
    let mut image = image(3 * BLOCK_BYTES as u64);
    cut(&mut image, 1, &[(0, &[1; BLOCK_BYTES])]);
    let before = image.bytes();
    image.begin(ME, 1, 2).unwrap();
    put(&mut image, 2, 0, &[2; BLOCK_BYTES]).unwrap();
    let full = put(&mut image, 2, 1 << 20, &[3; BLOCK_BYTES]);
    assert_eq!(full, Err(ImageError::Full { bytes_max: 3 * BLOCK_BYTES as u64 }));
    assert_eq!(image.bytes(), before);
    assert_eq!(contents(&image, 1)[0].1, [1; BLOCK_BYTES]);
    // Tiny blocks cost more than their bytes.
    image.begin(ME, 1, 2).unwrap();
    let refused = (0..10_000).find_map(|index| put(&mut image, 2, 1 << 30 | index, b"x").err());
    assert!(matches!(refused, Some(ImageError::Full { .. })));
    let many = vec![EventAge { event: 0, age_ns: 0 }; 100_000];
    image.begin(ME, 1, 2).unwrap();
    let entry = block(&image, 0, &[1; BLOCK_BYTES]);
    assert!(matches!(image.commit(ME, 2, Seal::of([entry]), many), Err(ImageError::Full { .. })));
    assert_eq!((image.committed(), image.bytes()), (1, before));
}

#[test]
fn a_pinned_cut_stays_readable_and_goes_when_it_is_let_go() {
    let mut image = image(1 << 20);
    cut(&mut image, 1, &[(0, b"one"), (16, b"gone")]);
    image.pin(1).unwrap();
    cut(&mut image, 2, &[(0, b"two")]);
    cut(&mut image, 3, &[(0, b"three"), (16, b"back")]);
    assert_eq!(contents(&image, 1), [(0, b"one".to_vec()), (16, b"gone".to_vec())]);
    assert_eq!(contents(&image, 3), [(0, b"three".to_vec()), (16, b"back".to_vec())]);
    assert_eq!(image.pin(2), Err(ImageError::NotKept { number: 2, committed: 3 }));
    image.unpin(1);
    assert!(image.blocks(1).is_err());
    let alone = {
        let mut image = super::Image::new(image.key.clone(), 1 << 20);
        image.admit(1).unwrap();
        cut(&mut image, 1, &[(0, b"three"), (16, b"back")]);
        image.bytes()
    };
    assert_eq!(image.bytes(), alone, "nothing of the older cuts is left");
}

#[test]
fn nothing_is_left_behind_in_memory() {
    let mut image = image(1 << 20);
    graves::take();
    cut(&mut image, 1, &[(0, &[1; 1000]), (4096, &[2; 500])]);
    assert_eq!(graves::take(), (0, 0));
    cut(&mut image, 2, &[(0, &[3; 1000])]);
    assert_eq!(graves::take(), (0, 0), "they wait until the image's lock is free");
    let gone = image.take_gone();
    assert!(gone.bytes() >= 1500 && gone.len() == 2);
    drop(gone);
    assert_eq!(graves::take(), (1500, 0), "the versions before");
    image.begin(ME, 2, 3).unwrap();
    put(&mut image, 3, 0, &[4; 100]).unwrap();
    image.leave(ME);
    drop(image.take_gone());
    assert_eq!(graves::take(), (100, 0), "the uncommitted delta");
    image.begin(ME, 2, 3).unwrap();
    put(&mut image, 3, 0, &[4; 100]).unwrap();
    let reader = image.read(2, Block { address: 0, bytes: 1000 }).unwrap();
    assert_eq!(image.end(), 1, "one block is being read");
    assert_eq!(graves::take(), (100, 0));
    drop(reader);
    assert_eq!(graves::take(), (1000, 0));
}
