//! The program's own memory: the one place where host bytes are read and written on the program's behalf.
//!
//! `border` reads and writes the arguments of a call. Everything else that a call names by its address goes through here;
//! `tests/arrows.rs` refuses pointers made anywhere else.

#![allow(unsafe_code)]

use cuda_wire::Shape;
use std::io::Write;

/// A piece of the program's memory that takes part in a copy: rows of bytes at a pitch, as CUDA describes them.
///
/// Offsets count packed bytes: row after row without the gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostRegion {
    address: usize,
    shape: Shape,
    row_pitch: u64,
    slice_pitch: u64,
}

impl HostRegion {
    /// # Safety
    ///
    /// The program owns the region and keeps it valid as CUDA demands of the call that names it: until the call
    /// returns for pageable memory, until the copy is done for pinned memory, for as long as a graph may run. It is
    /// readable for copies to the device and writable for copies from it.
    pub(crate) unsafe fn new(address: u64, shape: Shape, row_pitch: u64, slice_pitch: u64) -> Self {
        Self { address: address as usize, shape, row_pitch, slice_pitch }
    }

    /// A plain run of bytes.
    ///
    /// # Safety
    ///
    /// As [`HostRegion::new`].
    pub(crate) unsafe fn line(address: u64, bytes: u64) -> Self {
        // SAFETY: our caller's promise is the same.
        unsafe { Self::new(address, Shape::line(bytes), 0, 0) }
    }

    /// Its packed bytes. Shapes are checked for overflow before a region is made.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.bytes().unwrap_or(0)
    }

    /// First address and span, gaps included.
    pub(crate) fn span(&self) -> (u64, u64) {
        let Shape { width, height, depth } = self.shape;
        let rows = height.saturating_sub(1) * self.row_pitch;
        let slices = depth.saturating_sub(1) * self.slice_pitch;
        (self.address as u64, slices + rows + width)
    }

    /// Bytes from a row to the next, and from a slice to the next.
    pub(crate) fn pitches(&self) -> (u64, u64) {
        (self.row_pitch, self.slice_pitch)
    }

    /// Copies packed bytes from `offset` on out of the program's memory.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.for_each_run(offset, out.len(), |at, address, bytes| {
            let target = &mut out[at..at + bytes];
            // SAFETY: `new` was promised that the region is readable, and `for_each_run` stays inside it. `target` is
            // ours. The program may race with us only where CUDA already calls that a bug of the program.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, target.as_mut_ptr(), bytes) };
        });
    }

    /// Copies packed bytes from `offset` on into the program's memory.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        self.for_each_run(offset, data.len(), |at, address, bytes| {
            let source = &data[at..at + bytes];
            // SAFETY: as in `read`, for writing.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), address as *mut u8, bytes) };
        });
    }

    /// The same, of those parts of each run that `choose` has written: it is given a run's address and length, and a function that
    /// writes a part of it by address and length.
    pub(crate) fn write_parts(
        &self,
        offset: u64,
        data: &[u8],
        choose: &mut dyn FnMut(u64, u64, &mut dyn FnMut(u64, u64)),
    ) {
        self.for_each_run(offset, data.len(), |at, address, bytes| {
            let source = &data[at..at + bytes];
            choose(address as u64, bytes as u64, &mut |part, count| {
                let from = (part - address as u64) as usize;
                let part = &source[from..from + count as usize];
                // SAFETY: as in `read`, for writing; the part was found inside of the run's bytes just now.
                unsafe {
                    std::ptr::copy_nonoverlapping(part.as_ptr(), (address + from) as *mut u8, part.len())
                };
            });
        });
    }

    /// All packed bytes.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut out = vec![0; self.bytes() as usize];
        self.read(0, &mut out);
        out
    }

    /// Calls `run(place in the packed bytes, address, count)` for each run of bytes that lie together, never leaving
    /// the region whatever `offset` and `count` say.
    fn for_each_run(&self, offset: u64, count: usize, mut run: impl FnMut(usize, usize, usize)) {
        let width = self.shape.width;
        let end = (offset + count as u64).min(self.bytes());
        let mut at = offset;
        while at < end {
            let (row, column) = (at / width, at % width);
            let (slice, row) = (row / self.shape.height, row % self.shape.height);
            let together =
                if self.shape.height == 1 && self.shape.depth == 1 { width } else { width - column };
            let bytes = together.min(end - at);
            let place = slice * self.slice_pitch + row * self.row_pitch + column;
            run((at - offset) as usize, self.address + place as usize, bytes as usize);
            at += bytes;
        }
    }
}

impl bulk::Source for HostRegion {
    fn fill(&self, offset: u64, target: &mut [u8]) {
        self.read(offset, target);
    }

    fn view(&self, offset: u64, bytes: usize, send: &mut dyn FnMut(&[u8])) -> bool {
        self.for_each_run(offset, bytes, |_, address, bytes| {
            // SAFETY: `new` was promised that the region is readable, and `for_each_run` stays inside it. A program
            // that writes it meanwhile breaks CUDA's own rule, and then sends bytes of either write, as CUDA does.
            send(unsafe { std::slice::from_raw_parts(address as *const u8, bytes) });
        });
        true
    }
}

impl bulk::Sink for HostRegion {
    fn take(&self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes);
    }

    fn target(&self, offset: u64, bytes: usize, read: &mut dyn FnMut(&mut [u8])) -> bool {
        self.for_each_run(offset, bytes, |_, address, bytes| {
            // SAFETY: `new` was promised that the region is writable, and `for_each_run` stays inside it. CUDA forbids
            // the program to look at it before the copy is done.
            read(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) });
        });
        true
    }
}

/// The `index`-th word of an array of words in the program's memory.
///
/// # Safety
///
/// The array has more than `index` words.
#[inline]
pub(crate) unsafe fn word(array: u64, index: usize) -> u64 {
    // SAFETY: our caller's promise.
    unsafe { (array as *const u64).add(index).read_unaligned() }
}

/// Copies the bytes at `address` to `out`.
///
/// # Safety
///
/// The program has as many bytes there.
#[inline]
pub(crate) unsafe fn copy_out(address: u64, out: &mut [u8]) {
    // SAFETY: our caller's promise; `out` is ours, so it does not overlap the program's bytes.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), out.len()) };
}

/// The `count` bytes at `address`, as they lie there.
///
/// # Safety
///
/// The program has as many bytes there and does not change them while `'a` lasts.
pub(crate) unsafe fn bytes<'a>(address: u64, count: usize) -> &'a [u8] {
    // SAFETY: our caller's promise.
    unsafe { std::slice::from_raw_parts(address as *const u8, count) }
}

/// Writes the device's printf text to the program's standard output, after what C's stdio still holds.
pub(crate) fn print(text: &[u8]) {
    // SAFETY: a null stream asks for all output streams; that is always allowed.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    let _ = std::io::stdout().write_all(text);
    let _ = std::io::stdout().flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_packed_and_unpacked() {
        let mut memory: Vec<u8> = (0..24).collect();
        let shape = Shape { width: 3, height: 2, depth: 2 };
        // SAFETY: 2 slices of 12 bytes, 2 rows of 5 each: the last byte read is 12 + 5 + 3 = 20 < 24.
        let region = unsafe { HostRegion::new(memory.as_mut_ptr() as u64, shape, 5, 12) };
        assert_eq!(region.to_vec(), [0, 1, 2, 5, 6, 7, 12, 13, 14, 17, 18, 19]);
        region.write(2, &[102, 105]);
        assert_eq!((memory[2], memory[5], memory[6]), (102, 105, 6));
        assert_eq!(region.span().1, 20);
    }

    #[test]
    fn words_and_bytes_are_read_where_they_lie() {
        let words = [1u64, 0x0807_0605_0403_0201, 3];
        let at = words.as_ptr() as u64;
        // SAFETY: three words, the second is read.
        assert_eq!(unsafe { word(at, 1) }, words[1]);
        // SAFETY: a word that is not aligned, within the second and third.
        assert_eq!(unsafe { word(at + 9, 0) }, 0x0308_0706_0504_0302);
        let mut out = [0; 3];
        // SAFETY: 24 bytes, three are read from the ninth on.
        unsafe { copy_out(at + 8, &mut out) };
        assert_eq!(out, [1, 2, 3]);
        // SAFETY: as before.
        assert_eq!(unsafe { bytes(at + 8, 3) }, out);
    }

    #[test]
    fn nothing_outside_is_touched() {
        let mut memory = [7u8; 8];
        // SAFETY: 4 of 8 bytes.
        let region = unsafe { HostRegion::line(memory.as_mut_ptr() as u64, 4) };
        region.write(2, &[1, 2, 3, 4]);
        assert_eq!(memory, [7, 7, 1, 2, 7, 7, 7, 7]);
    }
}
