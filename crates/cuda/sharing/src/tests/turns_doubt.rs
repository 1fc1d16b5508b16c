//! Damaged pages and lost slots: a session that takes turns goes on or ends, and never hangs.

use super::is_found;
use crate::{Class, Field, Life, Owner, PAGE_WORDS, Page, Share, Standing, Turns, mutant::Mutant};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const MS: u64 = 1_000_000;
/// The word that names the holder of the turn.
const TURN: usize = 5;

fn words() -> Vec<AtomicU64> {
    let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    Page::create(&words, 1).unwrap();
    words
}

fn page(words: &[AtomicU64]) -> Page<'_> {
    Page::open(words).unwrap()
}

fn join(page: Page<'_>, pid: u32) -> Turns {
    let owner = Owner::new(pid, 1).unwrap();
    let turns = Turns::new(page, page.claim_share(owner, Share::new(500, pid.into()), 1).unwrap()).unwrap();
    assert!(!page.is_open(turns.ticket().slot()));
    turns
}

fn look(turns: &mut Turns, page: Page<'_>, now_ns: u64) -> Standing {
    turns.look(page, now_ns, |_| Life::Alive, || true)
}

#[test]
fn on_a_damaged_page_a_session_goes_on_without_turns_and_takes_part_again_when_it_is_whole() {
    let words = words();
    let page = page(&words);
    let (mut one, mut two) = (join(page, 1), join(page, 2));
    one.begin(page, 1);
    two.begin(page, 2);
    assert_eq!((look(&mut one, page, 3), look(&mut two, page, 3)), (Standing::Holds, Standing::Waits));
    let magic = words[0].swap(7, SeqCst);
    assert_eq!((look(&mut one, page, 4), look(&mut two, page, 4)), (Standing::Alone, Standing::Alone));
    assert!(page.is_open(0) && page.is_open(1), "the device's own slices divide the time");
    words[0].store(magic, SeqCst);
    assert_eq!((look(&mut one, page, 5), look(&mut two, page, 5)), (Standing::Holds, Standing::Waits));
    assert!(page.is_open(0) && !page.is_open(1));
}

#[test]
fn beside_an_online_session_a_damaged_page_ends_it() {
    let words = words();
    let page = page(&words);
    let mut one = join(page, 1);
    let online = page.claim(Owner::new(9, 1).unwrap(), Class::Online, 1).unwrap();
    assert!(page.close(online, 1));
    one.begin(page, 1);
    assert_eq!((look(&mut one, page, 2), page.is_open(0)), (Standing::Holds, false), "online comes first");
    words[0].store(7, SeqCst);
    assert_eq!((look(&mut one, page, 3), page.is_open(0)), (Standing::Lost, false));
}

#[test]
fn a_session_whose_slot_is_another_s_ends_and_writes_nothing_there() {
    let words = words();
    let page = page(&words);
    let mut one = join(page, 1);
    one.begin(page, 1);
    page.reclaim(0);
    let mut other = join(page, 2);
    other.begin(page, 3);
    let gate = page.is_open(0);
    one.end(page, 4);
    one.begin(page, 5);
    assert_eq!((look(&mut one, page, 6), page.is_open(0), page.wants()), (Standing::Lost, gate, 1));
    assert_eq!(look(&mut other, page, 7), Standing::Holds);
}

/// Whatever the words of the turn, the gates and the virtual times hold, a session with work has it within a second or so.
fn heals(seed: u64) -> Result<(), String> {
    let mut dice = super::Dice::new(seed);
    let words = words();
    let page = page(&words);
    let (mut one, mut two) = (join(page, 1), join(page, 2));
    one.begin(page, 1);
    two.begin(page, 2);
    let of_slots = [&one, &two].map(|turns| Page::gate_word(turns.ticket()));
    let virtual_times = of_slots.map(|gate| gate - Field::Gate as usize + Field::Virtual as usize);
    for at in (TURN..8).chain(of_slots).chain(virtual_times) {
        words[at].store(dice.next() >> dice.below(64), SeqCst);
    }
    let (mut now, mut has_held) = (10, [false; 2]);
    while now < 3_000 * MS && has_held != [true; 2] {
        now += MS / 5;
        for (turns, has_held) in [&mut one, &mut two].into_iter().zip(&mut has_held) {
            page.beat_and_hold(turns.ticket(), false);
            *has_held |= look(turns, page, now) == Standing::Holds && page.is_open(turns.ticket().slot());
        }
    }
    match (has_held, page.is_open(0) && page.is_open(1)) {
        ([true, true], false) => Ok(()),
        state => Err(format!("{state:?}, turn {:?}, wants {:#x}", page.holding(), page.wants())),
    }
}

#[test]
fn damaged_words_of_the_turn_heal() {
    assert_eq!(super::first_failure(0..500, heals), None);
    assert!(is_found(Mutant::NeverSeizes, 0..100, heals), "a word that names no session keeps the turn");
}
