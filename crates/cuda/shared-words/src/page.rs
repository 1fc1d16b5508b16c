//! The page of `sharing` in a memory file.

use crate::{SharedWords, process};
use sharing::{Life, PAGE_WORDS, Page, PageHandle, SLOTS, SlotOwner, Words};
use std::{io, os::fd::OwnedFd, sync::Arc, sync::atomic::AtomicU64};

impl Words for SharedWords {
    fn words(&self) -> &[AtomicU64] {
        Self::words(self)
    }
}

/// Makes a page. The words' descriptor is what other processes open it with.
pub fn create() -> io::Result<(Arc<SharedWords>, PageHandle)> {
    let words = Arc::new(SharedWords::create(PAGE_WORDS)?);
    Page::create(words.words(), 1).map_err(io::Error::other)?;
    let page = PageHandle::open(words.clone()).map_err(io::Error::other)?;
    Ok((words, page))
}

/// Opens the page that another process made.
pub fn open(fd: OwnedFd) -> io::Result<PageHandle> {
    PageHandle::open(Arc::new(SharedWords::open(fd)?)).map_err(io::Error::other)
}

/// Empties the slots of processes that are gone.
pub fn sweep(page: Page<'_>) {
    for slot in 0..SLOTS {
        if let SlotOwner::Process(owner) = page.owner(slot)
            && process::life(owner) == Life::Dead
        {
            page.reclaim(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sharing::{Class, Owner};
    use std::os::fd::AsFd;

    #[test]
    fn a_page_is_shared_and_the_slots_of_the_dead_are_swept() {
        let (words, page) = create().unwrap();
        let other = open(words.fd().as_fd().try_clone_to_owned().unwrap()).unwrap();
        let own = process::this_process().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = Owner::new(child.id(), 1).unwrap();
        child.wait().unwrap();
        let live = page.page().claim(own, Class::Online, 1).unwrap();
        let dead = other.page().claim(gone, Class::Online, 1).unwrap();
        assert!(page.page().close(live, 1) && other.page().close(dead, 1));
        sweep(other.page());
        assert_eq!(page.page().closers(), 1 << live.slot());
        assert_eq!(page.page().owner(dead.slot()), SlotOwner::Nobody);
        let small = SharedWords::create(8).unwrap();
        assert!(open(small.fd().try_clone_to_owned().unwrap()).is_err());
    }
}
