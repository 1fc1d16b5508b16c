//! How long a session may have the device before the device's scheduler looks whether another context waits for it.
//!
//! The gate keeps offline work from beginning. It does not end a kernel that has begun: such a kernel runs on for as long as it
//! takes, and the device gives it and the online program slices of some milliseconds in turn. With a short slice for the offline
//! session the online one has the device soon, whatever runs. With a long slice for itself it is not interrupted again.
//!
//! What is left of an interrupted kernel costs a switch there and back in each pause. So slices are as the driver gives them while the
//! offline session's groups are short.

use crate::{Page, Part};

/// An online session's: longer than a request takes, and no longer than another program may be kept waiting.
const ONLINE_US: u64 = 20_000;
/// Groups that take longer are interrupted. A switch there and back costs 0.26 ms.
const LONG_US: u64 = 300;

/// What a session's slice should be now, in microseconds; `None`: what the driver gave it. `offline_us`: an offline session's.
///
/// Two offline sessions with short slices would switch all the time, and two online ones with long slices would wait for each
/// other. So those keep what they have.
pub fn slice_us(part: Part, page: Page<'_>, offline_us: u64) -> Option<u64> {
    let (online, guests) = (page.present().count_ones(), page.guests().count_ones());
    if page.longest_group_us() < LONG_US {
        return None;
    }
    match part {
        Part::Offline if online > 0 && guests == 1 => Some(offline_us),
        Part::Online if online == 1 && guests > 0 => Some(ONLINE_US),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, Field, Owner, PAGE_WORDS, Share};
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_lone_pair_has_slices_of_its_own() {
        let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let page = Page::create(&words, 1).unwrap();
        let slices = || (slice_us(Part::Online, page, 100), slice_us(Part::Offline, page, 100));
        let claim = |pid, class| page.claim(Owner::new(pid, 1).unwrap(), class, 1).unwrap();
        let offline = claim(1, Class::Offline);
        page.set(offline, Field::GroupUs, LONG_US);
        assert_eq!(slices().1, None, "no online program is there to be protected");
        let online = claim(2, Class::Online);
        assert_eq!(slices(), (Some(ONLINE_US), Some(100)));
        page.set(offline, Field::GroupUs, LONG_US - 1);
        assert_eq!(slices(), (None, None), "no group is worth a switch");
        page.set(offline, Field::GroupUs, u64::MAX);
        assert_eq!(page.longest_group_us(), 500_000, "no session is left for longer at a closed gate");
        page.set(offline, Field::GroupUs, 1_400);
        let second = claim(3, Class::Offline);
        assert_eq!(slices(), (Some(ONLINE_US), None), "two offline ones would switch all the time");
        page.release(second);
        let second = claim(4, Class::Online);
        assert_eq!(slices(), (None, Some(100)), "two online ones would wait for each other");
        page.release(second);
        page.release(offline);
        assert_eq!(slices().0, None, "alone");
        page.release(online);
    }

    #[test]
    fn sessions_that_take_turns_keep_what_they_have() {
        let words: Vec<AtomicU64> = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let page = Page::create(&words, 1).unwrap();
        let owner = |pid| Owner::new(pid, 1).unwrap();
        let offline = page.claim(owner(1), Class::Offline, 1).unwrap();
        page.set(offline, Field::GroupUs, 1_400);
        page.claim(owner(2), Class::Online, 1).unwrap();
        let share = Share::new(500, 1);
        assert_eq!(slice_us(Part::Equal(share), page, 100), None);
    }
}
