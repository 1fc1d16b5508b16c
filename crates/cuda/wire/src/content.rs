//! Copies by content: how a transfer is cut into blocks that have names.
//!
//! A block's name is its BLAKE3 with the key that the worker told ([`crate::Notice::ContentKept`]): one key for each tenant of a
//! worker. The number of a block counts from the start of its transfer.

/// Bytes of a block; the last one of a transfer may be shorter. One chunk of the lanes.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// The most names in one notice, so that the worker copies while the client still hashes.
pub const NAMES_MAX: usize = 64;

/// How many blocks a transfer has.
pub const fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// Where a block of a transfer of `bytes` begins, and how long it is. `None`: the transfer has no such block.
pub fn block_of(bytes: u64, number: u32) -> Option<(u64, u32)> {
    let start = u64::from(number) * BLOCK_BYTES;
    let length = bytes.checked_sub(start).filter(|left| *left > 0)?.min(BLOCK_BYTES);
    Some((start, length as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_a_transfer_once() {
        for bytes in [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 77] {
            let blocks: Vec<_> = (0..).map_while(|number| block_of(bytes, number)).collect();
            assert_eq!(blocks.len() as u64, blocks_of(bytes));
            let mut end = 0;
            for (start, length) in blocks {
                assert_eq!(start, end);
                end += u64::from(length);
            }
            assert_eq!(end, bytes);
        }
        assert_eq!(block_of(0, 0), None);
        assert_eq!(block_of(BLOCK_BYTES, u32::MAX), None);
    }
}
