//! The place at which libcuda calls the kernel.
//!
//! A library calls a function of another one through a word of its own, into which the loader writes the function's address. We
//! find libcuda's words for `ioctl` in its table of relocations, and write the address of a function of ours, which makes the same
//! call and notes what it was. Nothing else of the process is touched: other libraries call `ioctl` as before.

#![allow(unsafe_code)]

use super::call::{self, CONTROL_REQUEST, Control, Name};
use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The function whose calls we look at.
const NAME: &CStr = c"ioctl";

/// What relocations of functions are called by this machine's processors: with and without a table of jumps.
#[cfg(target_arch = "x86_64")]
const RELOCATIONS: [u32; 2] = [7, 6];
#[cfg(target_arch = "aarch64")]
const RELOCATIONS: [u32; 2] = [1026, 1025];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const RELOCATIONS: [u32; 2] = [u32::MAX; 2];

/// `Elf64_Dyn`
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: i64,
    value: u64,
}

const TAG_NULL: i64 = 0;
const TAG_JUMP_BYTES: i64 = 2;
const TAG_STRINGS: i64 = 5;
const TAG_SYMBOLS: i64 = 6;
const TAG_RELOCATIONS: i64 = 7;
const TAG_RELOCATION_BYTES: i64 = 8;
const TAG_JUMPS: i64 = 23;

/// `Elf64_Rela`
#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// A library in memory.
struct Object {
    base: u64,
    entries: *const Entry,
    /// What the loader has made read-only.
    sealed: std::ops::Range<u64>,
}

/// Has the object that holds this code call us instead of `ioctl`. Returns in how many places it does.
pub(super) fn install(code: usize) -> usize {
    let Some(object) = find(code as u64) else { return 0 };
    // SAFETY: the object is loaded for good, and its tables are as the loader has read them.
    let places = unsafe { object.places() };
    // SAFETY: each is a word of the object that holds the address of `ioctl`, and `watched` is called like it.
    places
        .iter()
        .filter(|&&place| unsafe { replace(place, watched as *const () as usize, &object.sealed) })
        .count()
}

/// The object that holds this code.
fn find(code: u64) -> Option<Object> {
    struct Search {
        code: u64,
        found: Option<Object>,
    }

    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader gives a valid description, and `find` its own search.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: so many headers lie there.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let of = |kind| headers.iter().filter(move |header| header.p_type == kind);
        let range = |header: &libc::Elf64_Phdr| {
            let begin = info.dlpi_addr + header.p_vaddr;
            begin..begin + header.p_memsz
        };
        if !of(libc::PT_LOAD).any(|header| range(header).contains(&search.code)) {
            return 0;
        }
        search.found = of(libc::PT_DYNAMIC).next().map(|header| Object {
            base: info.dlpi_addr,
            entries: range(header).start as *const Entry,
            sealed: of(libc::PT_GNU_RELRO).next().map_or(0..0, range),
        });
        1
    }

    let mut search = Search { code, found: None };
    // SAFETY: `look` is called before this returns, with a pointer to `search`.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

impl Object {
    /// The words that hold the address of [`NAME`].
    ///
    /// # Safety
    ///
    /// The object stays loaded.
    unsafe fn places(&self) -> Vec<u64> {
        let value = |tag| {
            let mut entry = self.entries;
            loop {
                // SAFETY: the table ends with `TAG_NULL`, and no step goes beyond that.
                let Entry { tag: found, value } = unsafe { entry.read() };
                match found {
                    TAG_NULL => return None,
                    _ if found == tag => return Some(value),
                    // SAFETY: as above.
                    _ => entry = unsafe { entry.add(1) },
                }
            }
        };
        // Some loaders write addresses into the table, others leave offsets.
        let at = |value: u64| if value < self.base { self.base + value } else { value };
        let (Some(strings), Some(symbols)) = (value(TAG_STRINGS).map(at), value(TAG_SYMBOLS).map(at)) else {
            return Vec::new();
        };
        let tables = [(TAG_JUMPS, TAG_JUMP_BYTES), (TAG_RELOCATIONS, TAG_RELOCATION_BYTES)];
        let tables =
            tables.iter().filter_map(|(table, bytes)| Some((value(*table).map(at)?, value(*bytes)?)));
        let relocations = tables.flat_map(|(table, bytes)| {
            let count = bytes as usize / size_of::<Relocation>();
            // SAFETY: the object says that so many relocations lie there.
            unsafe { std::slice::from_raw_parts(table as *const Relocation, count) }
        });
        let is_ours = |relocation: &&Relocation| {
            let (kind, symbol) = (relocation.info as u32, relocation.info >> 32);
            if !RELOCATIONS.contains(&kind) || relocation.addend != 0 {
                return false;
            }
            // SAFETY: the relocation names a symbol of the object's table, and that a name in its strings.
            unsafe {
                let symbol = (symbols as *const libc::Elf64_Sym).add(symbol as usize).read();
                CStr::from_ptr((strings as *const std::ffi::c_char).add(symbol.st_name as usize)) == NAME
            }
        };
        relocations.filter(is_ours).map(|relocation| self.base + relocation.offset).collect()
    }
}

/// Writes a function's address into a word.
///
/// # Safety
///
/// The word is one that a loaded object calls a function through, and `function` may be called in its place.
unsafe fn replace(place: u64, function: usize, sealed: &std::ops::Range<u64>) -> bool {
    // SAFETY: asks for a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
    let page = (place & !(page_bytes - 1)) as *mut c_void;
    // SAFETY: the page belongs to a loaded object, and becomes writable as well as readable.
    if unsafe { libc::mprotect(page, page_bytes as usize, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return false;
    }
    // SAFETY: our caller's promise; a word for an address is aligned, and other threads that call through it see one or the
    // other function.
    unsafe { (*(place as *const AtomicUsize)).store(function, Ordering::SeqCst) };
    if sealed.contains(&place) {
        // SAFETY: as the loader had it.
        unsafe { libc::mprotect(page, page_bytes as usize, libc::PROT_READ) };
    }
    true
}

/// What is called instead of `ioctl`.
///
/// # Safety
///
/// As for `ioctl`, with at most one argument more, which is all that libcuda gives.
unsafe extern "C" fn watched(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: our caller's promise. Not `libc::ioctl`: in a test that would lead here again.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) } as c_int;
    if result == 0
        && let Some(bytes) = call::bytes_of_interest(request)
    {
        // SAFETY: the kernel has read and written so many bytes there.
        let argument = unsafe { std::slice::from_raw_parts(argument.cast::<u8>(), bytes) };
        if let Some(event) = call::event(request, argument) {
            super::groups().note(fd, event, control);
        }
    }
    #[cfg(test)]
    tests::SEEN.fetch_add(1, Ordering::SeqCst);
    result
}

/// Asks the kernel for a group's slice, or sets it.
pub(super) fn control(fd: i32, name: Name, set_us: Option<u64>) -> Option<u64> {
    let mut slice_us = set_us.unwrap_or(0);
    let mut control = Control::new(name, set_us.is_some(), (&raw mut slice_us) as u64);
    // SAFETY: the request reads and writes a `Control` and the eight bytes that it points to; both are there.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, fd, CONTROL_REQUEST, &raw mut control) };
    (result == 0 && control.status == 0).then_some(slice_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many calls came to us.
    pub(super) static SEEN: AtomicUsize = AtomicUsize::new(0);

    /// How many bytes wait in a pipe, by a call of this program's.
    fn waiting(fd: c_int) -> c_int {
        let mut count = 0;
        // SAFETY: the call writes one number.
        assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut count) }, 0);
        count
    }

    #[test]
    fn calls_of_one_object_come_to_us_and_are_made() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        writer.write_all(b"seven b").unwrap();
        let before = SEEN.load(Ordering::SeqCst);
        assert_eq!(waiting(reader.as_raw_fd()), 7);
        assert_eq!(SEEN.load(Ordering::SeqCst), before, "nothing is replaced yet");
        assert!(install(waiting as *const () as usize) > 0, "this program calls ioctl");
        assert_eq!(waiting(reader.as_raw_fd()), 7);
        assert!(SEEN.load(Ordering::SeqCst) > before);
        reader.read_exact(&mut [0; 7]).unwrap();
        assert_eq!(waiting(reader.as_raw_fd()), 0);
        // An error of the kernel's is the caller's, as it was.
        // SAFETY: the descriptor is closed, and nothing is written.
        let failed = unsafe { libc::ioctl(-1, libc::FIONREAD, std::ptr::null_mut::<c_int>()) };
        assert_eq!((failed, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EBADF)));
    }

    #[test]
    fn an_object_that_is_not_there_has_no_place() {
        assert_eq!(install(1), 0);
    }

    #[test]
    fn what_is_no_gpu_has_no_slice() {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(control(file.as_raw_fd(), Name { client: 1, object: 2 }, None), None);
    }
}
