use super::*;
use crate::protocol::Mode;
use cuda_wire::ImageName;
use snapshot::{Block, BlockDigest, Bytes, ImageError, Key, Seal};
use zeroize::Zeroizing;

const MIB: u64 = 1 << 20;
const KEEP: Keep = Keep { plain: Duration::from_secs(600), leased: Duration::from_secs(6000) };

fn open(name: u8, secret: u8, incarnation: u64) -> Open {
    Open {
        mode: Mode::Write,
        name: ImageName { bytes: [name; 16] },
        secret: Zeroizing::new([secret; 32]),
        incarnation,
        from: String::new(),
        lease: String::new(),
    }
}

fn blocks(secret: u8, fill: u8, count: u64) -> Vec<(BlockDigest, Bytes)> {
    let key = Key::from_seed(&blake3::derive_key("dxpu survival image digest v1", &[secret; 32]));
    let block = |index: u64| {
        let bytes = Bytes::copy_of(&vec![fill; 65536]);
        let block = Block { address: index * 65536, bytes: 65536 };
        (BlockDigest { block, digest: key.digest(&bytes) }, bytes)
    };
    (0..count).map(block).collect()
}

fn write(writer: &Writer, base: u64, number: u64, blocks: &[(BlockDigest, Bytes)]) -> Result<(), Refusal> {
    writer.begin(base, number)?;
    blocks.iter().try_for_each(|(entry, bytes)| writer.put(number, *entry, bytes.clone()))?;
    writer.commit(number, Seal::of(blocks.iter().map(|(entry, _)| *entry)), Vec::new())
}

#[test]
fn memory_is_charged_for_all_images_together_and_comes_back() {
    let shelf = Shelf::new(2 * MIB, u64::MAX);
    let (one, other) =
        (shelf.open_to_write(&open(1, 1, 1)).unwrap(), shelf.open_to_write(&open(2, 2, 1)).unwrap());
    write(&one, 0, 1, &blocks(1, 1, 16)).unwrap();
    let refused = write(&other, 0, 1, &blocks(2, 1, 16)).unwrap_err();
    assert!(matches!(refused, Refusal::MemoryFull { bytes_max, .. } if bytes_max == 2 * MIB), "{refused}");
    assert!(refused.to_string().contains("--guard-memory"), "{refused}");
    // The delta is gone, and with it its memory; the other image is as it was.
    assert_eq!(other.state().unwrap().image_bytes, 0);
    assert_eq!(one.state().unwrap().committed, 1);
    write(&other, 0, 2, &blocks(2, 1, 4)).unwrap();
    let used = shelf.budget().used();
    one.end().unwrap();
    assert!(shelf.budget().used() < used - 16 * 65536);
    other.end().unwrap();
    assert_eq!((shelf.budget().used(), shelf.len()), (0, 0));
}

#[test]
fn a_shelf_that_is_full_takes_no_more_images() {
    let shelf = Shelf::new(MIB, u64::MAX);
    let kept: Vec<_> = (0..4).map(|name| shelf.open_to_write(&open(name, 1, 1)).unwrap()).collect();
    assert!(matches!(shelf.open_to_write(&open(9, 1, 1)), Err(Refusal::MemoryFull { .. })));
    kept.into_iter().for_each(|writer| writer.end().unwrap());
    assert!(shelf.open_to_write(&open(9, 1, 1)).is_ok());
}

#[test]
fn a_newer_writer_shuts_the_older_out_between_two_blocks() {
    let shelf = Shelf::new(64 * MIB, u64::MAX);
    let old = shelf.open_to_write(&open(1, 1, 1)).unwrap();
    let first = blocks(1, 1, 4);
    write(&old, 0, 1, &first).unwrap();
    let next = blocks(1, 2, 4);
    old.begin(1, 2).unwrap();
    old.put(2, next[0].0, next[0].1.clone()).unwrap();
    let new = shelf.open_to_write(&open(1, 1, 2)).unwrap();
    assert!(matches!(old.put(2, next[1].0, next[1].1.clone()), Err(Refusal::Replaced)));
    assert!(matches!(old.commit(2, Seal::default(), Vec::new()), Err(Refusal::Replaced)));
    // What the old one says at its end does not concern the new one.
    new.begin(1, 3).unwrap();
    old.leave(Instant::now());
    new.put(3, next[0].0, next[0].1.clone()).unwrap();
    let mut whole: Vec<_> = first.iter().map(|(entry, _)| *entry).collect();
    whole[0] = next[0].0;
    new.commit(3, Seal::of(whole), Vec::new()).unwrap();
    let lower = shelf.open_to_write(&open(1, 1, 1)).err().expect("refused");
    assert!(
        matches!(lower, Refusal::Image(ImageError::Superseded { incarnation: 1, current: 2 })),
        "{lower}"
    );
    // The same again, after its connection broke.
    let again = shelf.open_to_write(&open(1, 1, 2)).unwrap();
    assert!(matches!(new.begin(3, 4), Err(Refusal::Replaced)));
    again.begin(3, 4).unwrap();
}

#[test]
fn a_stranger_learns_nothing() {
    let shelf = Shelf::new(64 * MIB, u64::MAX);
    let now = Instant::now();
    let writer = shelf.open_to_write(&open(1, 1, 1)).unwrap();
    write(&writer, 0, 1, &blocks(1, 1, 1)).unwrap();
    let wrong = shelf.open_to_read(&open(1, 2, 9), true, now).err().expect("refused");
    let absent = shelf.open_to_read(&open(7, 2, 9), true, now).err().expect("refused");
    assert_eq!(wrong.to_string(), absent.to_string());
    assert!(matches!(shelf.open_to_write(&open(1, 2, 9)), Err(Refusal::NoSuchImage)));
    write(&writer, 1, 2, &blocks(1, 2, 1)).expect("the writer was not disturbed");
}

#[test]
fn an_image_without_a_writer_has_its_time() {
    let shelf = Shelf::new(64 * MIB, u64::MAX);
    let start = Instant::now();
    let writer = shelf.open_to_write(&open(1, 1, 1)).unwrap();
    write(&writer, 0, 1, &blocks(1, 1, 4)).unwrap();
    assert_eq!(shelf.reap(start + KEEP.plain * 100, KEEP), 0, "it has a writer");
    writer.leave(start);
    assert_eq!(shelf.reap(start + KEEP.plain / 2, KEEP), 0);
    let back = shelf.open_to_write(&open(1, 1, 2)).unwrap();
    assert_eq!((shelf.reap(start + KEEP.plain * 2, KEEP), back.state().unwrap().committed), (0, 1));
    back.leave(start);
    let leased = shelf.open_to_write(&Open { lease: "l-7".to_owned(), ..open(2, 2, 1) }).unwrap();
    leased.leave(start);
    assert_eq!(shelf.reap(start + KEEP.plain, KEEP), 1);
    assert_eq!(shelf.len(), 1, "a lease's image has the longer time");
    assert_eq!((shelf.end_lease("l-8"), shelf.end_lease(""), shelf.end_lease("l-7")), (0, 0, 1));
    assert_eq!((shelf.budget().used(), shelf.len()), (0, 0));
}

#[test]
fn the_cut_before_stays_until_a_delta_is_relative_to_a_later_one() {
    let shelf = Shelf::new(64 * MIB, u64::MAX);
    let writer = shelf.open_to_write(&open(1, 1, 1)).unwrap();
    let first_byte = |number: u64| {
        let mut reader = shelf.open_to_read(&open(1, 1, 1), false, Instant::now()).unwrap();
        let (entries, _) = reader.list(number).ok()?;
        Some(reader.read(number, entries[0].block).unwrap()[0])
    };
    write(&writer, 0, 1, &blocks(1, 1, 4)).unwrap();
    write(&writer, 1, 2, &blocks(1, 2, 4)).unwrap();
    assert_eq!((first_byte(1), first_byte(2)), (Some(1), Some(2)), "the client may not have heard of 2");
    let refused = writer.begin(7, 8).unwrap_err();
    assert!(matches!(refused, Refusal::Image(ImageError::OtherBase { .. })), "{refused}");
    assert_eq!(first_byte(1), Some(1), "a refused delta says nothing");
    let two = writer.state().unwrap().image_bytes;
    writer.begin(2, 3).unwrap();
    assert_eq!((first_byte(1), first_byte(2)), (None, Some(2)));
    assert!(writer.state().unwrap().image_bytes <= two / 2, "its memory is given back before blocks come");
    // A commit that fails keeps what there was, and takes no memory.
    assert!(writer.commit(3, Seal::default(), Vec::new()).is_err());
    writer.begin(2, 4).unwrap();
    writer.abandon(4).unwrap();
    assert!(writer.state().unwrap().image_bytes <= two / 2);
    // Whole images, because the answers to their commits were lost: the client may be at any of them.
    for number in 5..9 {
        write(&writer, 0, number, &blocks(1, number as u8, 4)).unwrap();
    }
    assert_eq!([2, 5, 6, 7, 8].map(first_byte), [Some(2), Some(5), Some(6), Some(7), Some(8)]);
    // A writer that never says what it has let go of does not fill the memory.
    for number in 9..20 {
        write(&writer, 0, number, &blocks(1, number as u8, 4)).unwrap();
    }
    assert!(writer.state().unwrap().image_bytes < 5 * 4 * (65536 + 256));
    // The next session may need the older one too.
    writer.leave(Instant::now());
    let next = shelf.open_to_write(&open(1, 1, 2)).unwrap();
    assert_eq!((first_byte(18), first_byte(19)), (Some(18), Some(19)));
    next.end().unwrap();
    assert_eq!(shelf.budget().used(), 0);
}

#[test]
fn a_reader_keeps_its_cut_and_a_fetch_shuts_the_writer_out() {
    let shelf = Shelf::new(64 * MIB, u64::MAX);
    let writer = shelf.open_to_write(&open(1, 1, 1)).unwrap();
    let first = blocks(1, 1, 3);
    write(&writer, 0, 1, &first).unwrap();
    let mut reader = shelf.open_to_read(&open(1, 1, 1), false, Instant::now()).unwrap();
    assert_eq!(reader.list(1).unwrap().0.len(), 3);
    write(&writer, 0, 2, &blocks(1, 2, 3)).unwrap();
    assert_eq!(reader.read(1, first[2].0.block).unwrap()[0], 1, "the older cut is pinned");
    let both = writer.state().unwrap().image_bytes;
    drop(reader);
    writer.begin(2, 3).unwrap();
    writer.abandon(3).unwrap();
    assert!(writer.state().unwrap().image_bytes <= both / 2, "and goes when nothing needs it");
    let fetch = shelf.open_to_read(&open(1, 1, 2), true, Instant::now()).unwrap();
    assert!(matches!(writer.begin(2, 3), Err(Refusal::Replaced)));
    assert_eq!(fetch.state().unwrap().committed, 2);
    shelf.end_all();
    assert!(matches!(fetch.read(2, first[0].0.block), Err(Refusal::Ended)));
}

#[test]
fn a_large_delta_of_a_lost_writer_is_charged_until_it_is_zeroed() {
    let shelf = Shelf::new(256 * MIB, u64::MAX);
    let old = shelf.open_to_write(&open(1, 1, 1)).unwrap();
    write(&old, 0, 1, &blocks(1, 1, 4)).unwrap();
    let kept = shelf.budget().used();
    let next = blocks(1, 2, 640);
    old.begin(1, 2).unwrap();
    next.iter().try_for_each(|(entry, bytes)| old.put(2, *entry, bytes.clone())).unwrap();
    assert!(shelf.budget().used() > kept + 40 * MIB);
    let reader = shelf.open_to_read(&open(1, 1, 2), true, Instant::now()).unwrap();
    drop(next);
    let until = Instant::now() + Duration::from_secs(20);
    while shelf.budget().used() != kept {
        assert!(Instant::now() < until, "{} of {kept}", shelf.budget().used());
        std::thread::yield_now();
    }
    assert_eq!(old.state().unwrap().committed, 1);
    drop(reader);
}
