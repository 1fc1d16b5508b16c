//! Datagrams that wait for company, one behind the other in the buffer that they leave from.

/// The longest datagram of any port.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;
/// What stands in front of each datagram where a network does not keep them apart.
pub(crate) const LENGTH_BYTES: usize = 4;

/// Bytes at the front of a buffer that only grows: a writer behind them finds room that was made before.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    filled: usize,
}

impl Batch {
    /// Where the next datagram is to be written, `gap` bytes behind what is there.
    pub(crate) fn place(&mut self, gap: usize) -> &mut [u8] {
        &mut self.room(gap + DATAGRAM_BYTES_MAX)[gap..]
    }

    /// The datagram that was written at [`Batch::place`] is `bytes` long.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// The same for one with its length in front, in the gap that was left for it.
    pub(crate) fn add_with_length(&mut self, bytes: usize) {
        self.bytes[self.filled..][..LENGTH_BYTES].copy_from_slice(&(bytes as u32).to_le_bytes());
        self.filled += LENGTH_BYTES + bytes;
    }

    /// Adds what waits in another one.
    pub(crate) fn extend(&mut self, more: &[u8]) {
        self.room(more.len()).copy_from_slice(more);
        self.filled += more.len();
    }

    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.filled + bytes;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.filled..end]
    }

    /// Forgets what is there, but keeps a datagram of `bytes` that was written behind it: now it is the first.
    pub(crate) fn restart_with(&mut self, gap: usize, bytes: usize) {
        if self.filled > 0 {
            self.bytes.copy_within(self.filled..self.filled + gap + bytes, 0);
            self.filled = 0;
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.filled]
    }

    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }
}
