//! A TLP that owns its payload, as queues and state machines pass it around. [`Tlp`] borrows it. (A *packet* is what the
//! fabric cuts TLPs into.)

use tlp::{Bdf, CompletionPieces, Header, ReadCompletionBoundary, SizeLimit, Span, Status, Tlp};

/// A transaction layer packet (TLP) with its payload: whole double words, in the order of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlpBuf {
    /// What it is and where it goes.
    pub header: Header,
    /// As long as the header says.
    pub payload: Vec<u8>,
}

impl TlpBuf {
    /// A packet without payload.
    pub fn bare(header: Header) -> Self {
        Self { header, payload: Vec::new() }
    }

    /// A posted write of `data` at any address; it must not cross a page.
    pub fn memory_write(requester: Bdf, address: u64, data: &[u8]) -> Option<Self> {
        let span = Span::of_bytes(address, u32::try_from(data.len()).ok()?)?;
        let skipped = (address - span.address) as usize;
        let mut payload = vec![0; usize::from(span.length_dw) * 4];
        payload[skipped..skipped + data.len()].copy_from_slice(data);
        Some(Self { header: Header::memory_write(requester, span), payload })
    }

    /// The completion that ends `request` without data.
    pub fn completion(request: &Header, completer: Bdf, status: Status) -> Self {
        Self::bare(request.completion(completer, status))
    }

    /// The completions that answer a read of `data.len()` bytes from `first_byte` on.
    pub fn completions<'a>(
        request: &'a Header,
        completer: Bdf,
        first_byte: u64,
        data: &'a [u8],
        limit: SizeLimit,
        boundary: ReadCompletionBoundary,
    ) -> impl Iterator<Item = Self> + 'a {
        let pieces: CompletionPieces =
            tlp::split_completion(first_byte, data.len().min(4096) as u16, limit, boundary);
        pieces.map(move |piece| {
            let mut payload = vec![0; usize::from(piece.length_dw) * 4];
            payload[piece.skipped..piece.skipped + piece.bytes]
                .copy_from_slice(&data[piece.offset..piece.offset + piece.bytes]);
            Self { header: request.completion_data(completer, &piece), payload }
        })
    }

    /// Borrows it for the codec.
    pub fn as_tlp(&self) -> Tlp<'_> {
        Tlp::new(self.header, &self.payload)
    }
}

/// The runs of enabled bytes in a write: each is an offset into the payload and a length.
pub fn enabled_runs(span: &Span) -> impl Iterator<Item = (usize, usize)> {
    let last_dw = usize::from(span.length_dw) - 1;
    let (first, last) = (span.enables.first, span.enables.last);
    let is_enabled = move |at: usize| match at / 4 {
        0 => first >> (at % 4) & 1 != 0,
        dw if dw == last_dw => last >> (at % 4) & 1 != 0,
        _ => true,
    };
    let total = (last_dw + 1) * 4;
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < total && !is_enabled(at) {
            at += 1;
        }
        let start = at;
        while at < total && is_enabled(at) {
            // Whole double words in the middle need not be looked at byte by byte.
            at = if at / 4 > 0 && at / 4 < last_dw { last_dw * 4 } else { at + 1 };
        }
        (at > start).then_some((start, at - start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlp::ByteEnables;

    fn runs(length_dw: u16, first: u8, last: u8) -> Vec<(usize, usize)> {
        enabled_runs(&Span { address: 0, length_dw, enables: ByteEnables { first, last } }).collect()
    }

    #[test]
    fn enables_become_runs_of_bytes() {
        assert_eq!(runs(1, 0b1111, 0), [(0, 4)]);
        assert_eq!(runs(1, 0b0110, 0), [(1, 2)]);
        assert_eq!(runs(1, 0b1001, 0), [(0, 1), (3, 1)]);
        assert_eq!(runs(1, 0, 0), []);
        assert_eq!(runs(2, 0b1100, 0b0001), [(2, 3)]);
        assert_eq!(runs(2, 0b0101, 0b1010), [(0, 1), (2, 1), (5, 1), (7, 1)]);
        assert_eq!(runs(1024, 0b1000, 0b0111), [(3, 4092)]);
    }

    #[test]
    fn a_write_at_an_odd_address_is_padded_to_double_words() {
        let packet = TlpBuf::memory_write(Bdf::new(1, 0, 0), 0x1003, &[1, 2, 3]).unwrap();
        assert_eq!(packet.payload, [0, 0, 0, 1, 2, 3, 0, 0]);
        assert_eq!(packet.as_tlp().encoded_bytes(), 12 + 8);
    }
}
