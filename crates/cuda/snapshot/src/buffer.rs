//! A program's bytes, which leave nothing behind.

use std::{fmt, ops::Deref, sync::Arc};

/// Bytes of a program. Handles share them; the last one that goes overwrites them with zeros.
#[derive(Clone)]
pub struct Bytes(Arc<Buffer>);

struct Buffer(Box<[u8]>);

impl Bytes {
    /// A copy of these bytes.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self(Arc::new(Buffer(bytes.into())))
    }

    /// How many handles there are.
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl From<Box<[u8]>> for Bytes {
    fn from(bytes: Box<[u8]>) -> Self {
        Self(Arc::new(Buffer(bytes)))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // `Zeroize` would write each byte by itself, at a tenth of this speed, and images have gigabytes.
        self.0.fill(0);
        zeroize::optimization_barrier(&*self.0);
        #[cfg(test)]
        graves::look(&self.0);
    }
}

/// What buffers held when they went, for tests.
#[cfg(test)]
pub(crate) mod graves {
    use std::cell::Cell;

    thread_local! {
        static GONE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    pub(super) fn look(bytes: &[u8]) {
        let left = bytes.iter().filter(|&&byte| byte != 0).count();
        GONE.set((GONE.get().0 + bytes.len(), GONE.get().1 + left));
    }

    /// Bytes that went in this thread since the last call, and those of them that were not zero.
    pub(crate) fn take() -> (usize, usize) {
        GONE.replace((0, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_handle_zeroes() {
        graves::take();
        let bytes = Bytes::copy_of(&[7; 100]);
        let other = bytes.clone();
        assert_eq!(bytes.handles(), 2);
        drop(bytes);
        assert_eq!(graves::take(), (0, 0));
        assert_eq!(&other[..], [7; 100]);
        assert_eq!(format!("{other:?}"), "Bytes(100)", "contents are not printed");
        drop(other);
        assert_eq!(graves::take(), (100, 0));
    }
}
