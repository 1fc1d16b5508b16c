//! Pointers of a caller: places for results, structures, arrays and strings.
//!
//! Single values are read and written without regard to alignment, which costs nothing here and is one promise less
//! that a program can break. Arrays are borrowed, so a misaligned one is refused.

#![allow(unsafe_code)]

use core::{
    ffi::{CStr, c_char},
    marker::PhantomData,
    ptr::NonNull,
};
use cuda_abi::{CuResult, CudaError};

/// A type of C for which every bit pattern is a value.
///
/// # Safety
/// Implementors are numbers, or `#[repr(C)]` structures and arrays of them.
pub(crate) unsafe trait CType: Copy + 'static {}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        // SAFETY: a plain number.
        unsafe impl CType for $ty {}
    )*};
}

numbers!(u8 u16 u32 u64 usize i32 f32);

// SAFETY: an array of numbers.
unsafe impl CType for [f32; 4] {}

/// An argument that holds a length.
pub(crate) trait Length: Copy {
    /// As a size; negative is CUDA_ERROR_INVALID_VALUE.
    fn length(self) -> CuResult<usize>;
}

impl Length for usize {
    #[inline]
    fn length(self) -> CuResult<usize> {
        Ok(self)
    }
}

impl Length for u32 {
    #[inline]
    fn length(self) -> CuResult<usize> {
        Ok(self as usize)
    }
}

impl Length for i32 {
    #[inline]
    fn length(self) -> CuResult<usize> {
        usize::try_from(self).map_err(|_| CudaError::INVALID_VALUE)
    }
}

/// A length that the caller keeps behind a pointer; 0 when there is none, since that pointer is checked in its turn.
///
/// # Safety
/// `pointer` is null or points to a size.
#[inline]
pub(crate) unsafe fn length_behind<L: Length + Default>(pointer: *const L) -> L {
    // SAFETY: not null, and the caller promises the rest.
    if pointer.is_null() { L::default() } else { unsafe { pointer.read_unaligned() } }
}

#[inline]
fn not_null<T>(pointer: *mut T) -> CuResult<NonNull<T>> {
    NonNull::new(pointer).ok_or(CudaError::INVALID_VALUE)
}

/// A place for one result.
#[derive(Debug)]
pub(crate) struct Out<'a, T>(NonNull<T>, PhantomData<&'a mut T>);

#[allow(dead_code)]
impl<T: CType> Out<'_, T> {
    /// Where it is, for a place that must be aligned.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// Writes the result.
    #[inline]
    pub(crate) fn set(&mut self, value: T) {
        // SAFETY: made from a caller's pointer that is good for writing a `T`.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}

/// A place that is read and written.
#[derive(Debug)]
pub(crate) struct InOut<'a, T>(NonNull<T>, PhantomData<&'a mut T>);

#[allow(dead_code)]
impl<T: CType> InOut<'_, T> {
    /// Where it is, for a place that must be aligned.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// What is there.
    #[inline]
    pub(crate) fn get(&self) -> T {
        // SAFETY: made from a caller's pointer that is good for reading a `T`.
        unsafe { self.0.as_ptr().read_unaligned() }
    }

    /// Writes the result.
    #[inline]
    pub(crate) fn set(&mut self, value: T) {
        // SAFETY: made from a caller's pointer that is good for writing a `T`.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}

/// An array to fill. What it held before may be uninitialised, so it can only be written.
#[derive(Debug)]
pub(crate) struct OutSlice<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut T>,
}

#[allow(dead_code)]
impl<T: CType> OutSlice<'_, T> {
    /// How many elements there is room for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes one element; panics past the end.
    pub(crate) fn set(&mut self, index: usize, value: T) {
        assert!(index < self.len, "write past the caller's array");
        // SAFETY: within the array the caller promised.
        unsafe { self.start.add(index).write_unaligned(value) }
    }

    /// Writes as many of `values` as there is room for, and says how many that were.
    pub(crate) fn fill(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        let mut count = 0;
        for value in values.into_iter().take(self.len) {
            self.set(count, value);
            count += 1;
        }
        count
    }
}

#[allow(dead_code)]
impl OutSlice<'_, u8> {
    /// Writes text and a final zero, cut to the room there is.
    pub(crate) fn set_text(&mut self, text: &[u8]) {
        let room = self.len.saturating_sub(1);
        let count = self.fill(text.iter().copied().take(room));
        if count < self.len {
            self.set(count, 0);
        }
    }
}

/// An array that is read and written.
#[derive(Debug)]
pub(crate) struct InOutSlice<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut T>,
}

#[allow(dead_code)]
impl<T: CType> InOutSlice<'_, T> {
    /// Where it starts, for an array that the API has the program keep after the call.
    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// How many elements there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// One element; panics past the end.
    pub(crate) fn get(&self, index: usize) -> T {
        assert!(index < self.len, "read past the caller's array");
        // SAFETY: within the array the caller promised.
        unsafe { self.start.add(index).read_unaligned() }
    }

    /// Replaces one element; panics past the end.
    pub(crate) fn set(&mut self, index: usize, value: T) {
        assert!(index < self.len, "write past the caller's array");
        // SAFETY: within the array the caller promised.
        unsafe { self.start.add(index).write_unaligned(value) }
    }
}

/// A place for a result whose type another argument decides.
#[derive(Debug)]
pub(crate) struct OutAny<'a>(NonNull<u8>, PhantomData<&'a mut u8>);

#[allow(dead_code)]
impl OutAny<'_> {
    /// The place at an address that an array of the caller holds; null is `None`.
    ///
    /// # Safety
    /// The address is null or good for writing a value of the type that belongs to it.
    pub(crate) unsafe fn at(address: u64) -> Option<Self> {
        NonNull::new(address as usize as *mut u8).map(|pointer| Self(pointer, PhantomData))
    }

    /// Writes the result. The body knows from the other argument that `T` is the right type.
    #[inline]
    pub(crate) fn set<T: CType>(&mut self, value: T) {
        // SAFETY: the API has the caller provide room for the type that the other argument names.
        unsafe { self.0.as_ptr().cast::<T>().write_unaligned(value) }
    }

    /// Where it is, for a result of several values.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr() as usize as u64
    }
}

/// A value whose type another argument decides.
#[derive(Debug)]
pub(crate) struct InAny<'a>(NonNull<u8>, PhantomData<&'a u8>);

#[allow(dead_code)]
impl InAny<'_> {
    /// Reads it. The body knows from the other argument that `T` is the right type.
    #[inline]
    pub(crate) fn get<T: CType>(&self) -> T {
        // SAFETY: the API has the caller provide a value of the type that the other argument names.
        unsafe { self.0.as_ptr().cast::<T>().read_unaligned() }
    }
}

/// An array to read whose length follows from other arguments in a way that only the body knows.
#[derive(Debug)]
pub(crate) struct Array<'a, T>(NonNull<T>, PhantomData<&'a T>);

impl<'a, T: CType> Array<'a, T> {
    /// Its elements. The body knows from the other arguments that there are so many.
    pub(crate) fn elements(&self, len: usize) -> CuResult<&'a [T]> {
        // SAFETY: the API has the caller provide as many elements as the other arguments say.
        unsafe { slice(self.0.as_ptr(), len) }
    }
}

/// An array that must be there, even without elements.
///
/// # Safety
/// `pointer` is null or good for reading as many elements as the API demands; no thread writes them while the call
/// lasts.
#[inline]
pub(crate) unsafe fn array<'a, T: CType>(pointer: *const T) -> CuResult<Array<'a, T>> {
    Ok(Array(not_null(pointer.cast_mut())?, PhantomData))
}

/// A place for a result that must be there.
///
/// # Safety
/// `pointer` is null or good for writing a `T` while the call lasts.
#[inline]
pub(crate) unsafe fn out<'a, T: CType>(pointer: *mut T) -> CuResult<Out<'a, T>> {
    Ok(Out(not_null(pointer)?, PhantomData))
}

/// A place for a result that may be missing.
///
/// # Safety
/// As [`out`].
#[inline]
pub(crate) unsafe fn out_optional<'a, T: CType>(pointer: *mut T) -> Option<Out<'a, T>> {
    NonNull::new(pointer).map(|pointer| Out(pointer, PhantomData))
}

/// A place that is read and written.
///
/// # Safety
/// `pointer` is null or good for reading and writing a `T` while the call lasts.
#[inline]
pub(crate) unsafe fn in_out<'a, T: CType>(pointer: *mut T) -> CuResult<InOut<'a, T>> {
    Ok(InOut(not_null(pointer)?, PhantomData))
}

/// A place that is read and written, if the caller gives one.
///
/// # Safety
/// `pointer` is null or good for reading and writing a `T` while the call lasts.
#[inline]
pub(crate) unsafe fn in_out_optional<'a, T: CType>(pointer: *mut T) -> Option<InOut<'a, T>> {
    NonNull::new(pointer).map(|pointer| InOut(pointer, PhantomData))
}

/// A copy of a structure, so that the program cannot change it while it is checked.
///
/// # Safety
/// `pointer` is null or good for reading a `T`.
#[inline]
pub(crate) unsafe fn reference<T: CType>(pointer: *const T) -> CuResult<T> {
    let pointer = not_null(pointer.cast_mut())?;
    // SAFETY: not null, and the caller promises the rest.
    Ok(unsafe { pointer.as_ptr().read_unaligned() })
}

/// A copy of a structure that may be missing.
///
/// # Safety
/// As [`reference`].
#[inline]
pub(crate) unsafe fn reference_optional<T: CType>(pointer: *const T) -> Option<T> {
    // SAFETY: not null, and the caller promises the rest.
    if pointer.is_null() { None } else { Some(unsafe { pointer.read_unaligned() }) }
}

/// The length of an array if it can exist: with elements it is somewhere, aligned, and fits memory.
#[inline]
fn array_length<T>(pointer: *const T, len: impl Length) -> CuResult<usize> {
    let len = len.length()?;
    let fits = len.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if len != 0 && (pointer.is_null() || !pointer.is_aligned() || !fits) {
        return Err(CudaError::INVALID_VALUE);
    }
    Ok(len)
}

/// An array to read; without elements it may be null.
///
/// # Safety
/// `pointer` is good for reading `len` elements that no thread writes while the call lasts.
#[inline]
pub(crate) unsafe fn slice<'a, T: CType>(pointer: *const T, len: impl Length) -> CuResult<&'a [T]> {
    match array_length(pointer, len)? {
        0 => Ok(&[]),
        // SAFETY: not null, aligned, no longer than memory; the caller promises the rest.
        len => Ok(unsafe { core::slice::from_raw_parts(pointer, len) }),
    }
}

/// An array to read at an address that a structure of the caller holds.
///
/// # Safety
/// As [`slice`].
#[allow(dead_code)]
#[inline]
pub(crate) unsafe fn slice_at<'a, T: CType>(address: u64, len: impl Length) -> CuResult<&'a [T]> {
    // SAFETY: handed on from the caller.
    unsafe { slice(address as usize as *const T, len) }
}

/// An array to read that may be missing.
///
/// # Safety
/// As [`slice`], or null.
#[inline]
pub(crate) unsafe fn slice_optional<'a, T: CType>(
    pointer: *const T,
    len: impl Length,
) -> CuResult<Option<&'a [T]>> {
    // SAFETY: handed on from the caller.
    if pointer.is_null() { Ok(None) } else { unsafe { slice(pointer, len) }.map(Some) }
}

/// An array to fill; without elements it may be null.
///
/// # Safety
/// `pointer` is good for writing `len` elements while the call lasts.
#[inline]
pub(crate) unsafe fn out_slice<'a, T: CType>(pointer: *mut T, len: impl Length) -> CuResult<OutSlice<'a, T>> {
    Ok(OutSlice { start: pointer, len: array_length(pointer, len)?, borrow: PhantomData })
}

/// An array to fill that may be missing.
///
/// # Safety
/// As [`out_slice`], or null.
#[inline]
pub(crate) unsafe fn out_slice_optional<'a, T: CType>(
    pointer: *mut T,
    len: impl Length,
) -> CuResult<Option<OutSlice<'a, T>>> {
    // SAFETY: handed on from the caller.
    if pointer.is_null() { Ok(None) } else { unsafe { out_slice(pointer, len) }.map(Some) }
}

/// An array that is read and written; without elements it may be null.
///
/// # Safety
/// `pointer` is good for reading and writing `len` elements while the call lasts.
#[inline]
pub(crate) unsafe fn in_out_slice<'a, T: CType>(
    pointer: *mut T,
    len: impl Length,
) -> CuResult<InOutSlice<'a, T>> {
    Ok(InOutSlice { start: pointer, len: array_length(pointer, len)?, borrow: PhantomData })
}

/// The same at an address that the caller keeps.
///
/// # Safety
/// As [`in_out_slice`].
#[inline]
pub(crate) unsafe fn in_out_slice_at<'a, T: CType>(
    address: u64,
    len: impl Length,
) -> CuResult<InOutSlice<'a, T>> {
    // SAFETY: handed on from the caller.
    unsafe { in_out_slice(address as usize as *mut T, len) }
}

/// A C string that must be there.
///
/// # Safety
/// `pointer` is null or a string that ends in a zero and stays while the call lasts.
#[inline]
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> CuResult<&'a CStr> {
    let pointer = not_null(pointer.cast_mut())?;
    // SAFETY: not null, and the caller promises the rest.
    Ok(unsafe { CStr::from_ptr(pointer.as_ptr()) })
}

/// A C string that may be missing.
///
/// # Safety
/// As [`text`].
#[inline]
pub(crate) unsafe fn text_optional<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null, and the caller promises the rest.
    if pointer.is_null() { None } else { Some(unsafe { CStr::from_ptr(pointer) }) }
}

/// A place for a result of a type that another argument decides.
///
/// # Safety
/// `pointer` is null or good for writing that type while the call lasts.
#[inline]
pub(crate) unsafe fn out_any<'a>(pointer: *mut u8) -> CuResult<OutAny<'a>> {
    Ok(OutAny(not_null(pointer)?, PhantomData))
}

/// A value of a type that another argument decides.
///
/// # Safety
/// `pointer` is null or good for reading that type while the call lasts.
#[inline]
pub(crate) unsafe fn in_any<'a>(pointer: *const u8) -> CuResult<InAny<'a>> {
    Ok(InAny(not_null(pointer.cast_mut())?, PhantomData))
}

/// The address of a module image, which must be there.
#[inline]
pub(crate) fn image(pointer: *const u8) -> CuResult<u64> {
    Ok(not_null(pointer.cast_mut())?.as_ptr() as usize as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_place_is_an_invalid_value() {
        // SAFETY: null is never followed.
        assert_eq!(unsafe { out::<u32>(core::ptr::null_mut()) }.map(|_| ()), Err(CudaError::INVALID_VALUE));
        // SAFETY: null is never followed.
        assert!(unsafe { out_optional::<u32>(core::ptr::null_mut()) }.is_none());
    }

    #[test]
    fn an_array_needs_a_place_only_when_it_has_elements() {
        // SAFETY: null is never followed.
        assert_eq!(unsafe { slice::<u64>(core::ptr::null(), 0u32) }, Ok(&[][..]));
        // SAFETY: null is never followed.
        assert_eq!(unsafe { slice::<u64>(core::ptr::null(), 1u32) }, Err(CudaError::INVALID_VALUE));
        let words = [1u64, 2];
        // SAFETY: a negative or absurd length is refused before anything is read.
        assert_eq!(unsafe { slice(words.as_ptr(), -1) }, Err(CudaError::INVALID_VALUE));
        // SAFETY: as above.
        assert_eq!(unsafe { slice(words.as_ptr(), usize::MAX) }, Err(CudaError::INVALID_VALUE));
        // SAFETY: the array is there.
        assert_eq!(unsafe { slice(words.as_ptr(), 2) }, Ok(&words[..]));
    }

    #[test]
    fn an_array_of_unsaid_length_must_be_there() {
        let words = [1u64, 2];
        // SAFETY: null is never followed.
        assert_eq!(unsafe { array::<u64>(core::ptr::null()) }.map(|_| ()), Err(CudaError::INVALID_VALUE));
        // SAFETY: the array is there, and two elements of it are read.
        let array = unsafe { array(words.as_ptr()) }.expect("not null");
        assert_eq!((array.elements(0), array.elements(2)), (Ok(&[][..]), Ok(&words[..])));
    }

    #[test]
    fn a_misaligned_array_is_refused() {
        let words = [0u64; 2];
        let odd = words.as_ptr().cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: refused before anything is read.
        assert_eq!(unsafe { slice(odd, 1u32) }, Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn text_is_cut_to_the_room_there_is() {
        let mut room = [b'#'; 4];
        // SAFETY: the array is there.
        let mut out = unsafe { out_slice(room.as_mut_ptr(), 4) }.expect("not null");
        out.set_text(b"H200 SXM");
        assert_eq!(&room, b"H20\0");
    }

    #[test]
    fn a_structure_is_copied_from_any_address() {
        let bytes = [0u8, 1, 0, 0, 0];
        let odd = bytes.as_ptr().wrapping_add(1).cast::<u32>();
        // SAFETY: four bytes are there; alignment does not matter.
        assert_eq!(unsafe { reference(odd) }, Ok(1));
    }
}
