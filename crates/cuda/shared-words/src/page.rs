//! The page of `sharing` in a memory file.

use crate::{SharedWords, process};
use rustix::fs::{Mode, OFlags};
use sharing::{Class, Life, PAGE_WORDS, Page, PageHandle, SLOTS, SlotOwner, Words};
use std::{io, os::fd::OwnedFd, path::Path, sync::Arc, sync::atomic::AtomicU64};

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

/// Makes a page at a path that other processes of this user open, and no other user can. What is there already is replaced: a
/// process that has mapped it keeps what it has.
pub fn make_at(path: &Path) -> io::Result<()> {
    let unfinished = path.with_extension(format!("{}.new", std::process::id()));
    let _ = std::fs::remove_file(&unfinished);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&unfinished, flags, Mode::RUSR | Mode::WUSR)?;
    let made = rustix::fs::ftruncate(&fd, PAGE_WORDS as u64 * 8).map_err(io::Error::from).and_then(|()| {
        let words = SharedWords::open(fd)?;
        Page::create(words.words(), 1).map_err(io::Error::other)?;
        std::fs::rename(&unfinished, path)
    });
    if made.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    made
}

/// Opens the page at a path, if it is this user's alone. The words' descriptor is what other processes open it
/// with.
pub fn open_at(path: &Path) -> io::Result<(Arc<SharedWords>, PageHandle)> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let status = rustix::fs::fstat(&fd)?;
    let is_ours = status.st_uid == rustix::process::geteuid().as_raw() && status.st_mode & 0o077 == 0;
    if !is_ours || rustix::fs::FileType::from_raw_mode(status.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not this user's alone"));
    }
    let words = Arc::new(SharedWords::open(fd)?);
    let page = PageHandle::open(words.clone()).map_err(io::Error::other)?;
    Ok((words, page))
}

/// Empties the slots of processes that are gone.
pub fn sweep(page: Page<'_>) {
    for slot in 0..SLOTS {
        if let SlotOwner::Process(owner) = page.owner(slot)
            && process::life(owner) == Life::Dead
            && let Ok(this) = process::this_process()
            && page.take_over(slot, owner, this)
        {
            let was_guest = page.class(slot) == Some(Class::Offline);
            page.reclaim(slot);
            if was_guest {
                page.memory_returns(process::now_ns());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sharing::Owner;
    use std::os::fd::AsFd;

    #[test]
    fn a_page_with_a_name_is_one_page_for_all_that_open_it() {
        let folder = std::env::temp_dir().join(format!("dxpu-page-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("page");
        assert_eq!(open_at(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        make_at(&path).unwrap();
        let ((_words, one), (_, two)) = (open_at(&path).unwrap(), open_at(&path).unwrap());
        let own = process::this_process().unwrap();
        let ticket = one.page().claim(own, Class::Online, 1).unwrap();
        assert!(one.page().close(ticket, 1));
        assert_eq!(two.page().closers(), 1 << ticket.slot());
        // A new page is another one; a process that has the old one keeps it.
        make_at(&path).unwrap();
        assert_eq!(open_at(&path).unwrap().1.page().closers(), 0);
        assert_eq!(two.page().closers(), 1 << ticket.slot());
        // What is no page, or what others can write to, is not opened.
        std::fs::write(&path, vec![7; PAGE_WORDS * 8]).unwrap();
        assert!(open_at(&path).is_err());
        make_at(&path).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        assert_eq!(open_at(&path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        std::fs::remove_dir_all(&folder).unwrap();
    }

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
