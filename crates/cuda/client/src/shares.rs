//! Handles that the program's processes give each other: 64 bytes that name what a worker keeps.
//!
//! ```text
//! 0    4       5    6      8        16       32    48     56       64
//! | dxpu | version | what | pieces | worker | session | key | bytes | offset |
//! ```
//!
//! Whoever has the bytes may change them. A changed name opens nothing, and a changed size harms its own process only.

use cuda_wire::ShareName;

/// Bytes of a handle: what CUDA has for them.
pub const HANDLE_BYTES: usize = 64;

const MAGIC: [u8; 4] = *b"dxpu";
const VERSION: u8 = 1;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// Memory of cuMemAlloc.
    Memory = 1,
    /// An event.
    Event = 2,
    /// Physical memory of cuMemCreate.
    Physical = 3,
    /// A pool: nothing but that it is one, and its device.
    Pool = 4,
    /// An address in a pool.
    PoolPointer = 5,
}

/// A handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// What it names.
    pub what: What,
    /// Pieces that the memory lies in.
    pub pieces: u16,
    /// What the worker knows it by.
    pub name: ShareName,
    /// Bytes of the memory; for a pool the number of its device on the worker.
    pub bytes: u64,
    /// Where the memory begins in its first piece.
    pub offset: u64,
}

impl Handle {
    /// As the program sees it.
    pub fn to_bytes(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.what as u8;
        bytes[6..8].copy_from_slice(&self.pieces.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.name.worker.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.name.session);
        bytes[32..48].copy_from_slice(&self.name.key);
        bytes[48..56].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[56..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// The handle of a kind in these bytes. `None`: they are no such handle.
    pub fn from_bytes(bytes: &[u8; HANDLE_BYTES], wanted: What) -> Option<Self> {
        let is_ours = bytes[..4] == MAGIC && bytes[4] == VERSION && bytes[5] == wanted as u8;
        let part = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        let name = |at: usize| bytes[at..at + 16].try_into().unwrap_or_default();
        is_ours.then(|| Self {
            what: wanted,
            pieces: u16::from_le_bytes([bytes[6], bytes[7]]),
            name: ShareName { worker: part(8), session: name(16), key: name(32) },
            bytes: part(48),
            offset: part(56),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> Handle {
        let name = ShareName { worker: 0x0102_0304_0506_0708, session: [7; 16], key: [9; 16] };
        Handle { what: What::Memory, pieces: 0x1234, name, bytes: 3 << 40, offset: 512 }
    }

    #[test]
    fn what_goes_in_comes_out() {
        assert_eq!(Handle::from_bytes(&handle().to_bytes(), What::Memory), Some(handle()));
    }

    #[test]
    fn other_bytes_are_no_handle() {
        assert_eq!(Handle::from_bytes(&handle().to_bytes(), What::Event), None);
        assert_eq!(Handle::from_bytes(&[0; 64], What::Memory), None);
        assert_eq!(Handle::from_bytes(&[0xff; 64], What::Memory), None);
        for place in 0..6 {
            let mut bytes = handle().to_bytes();
            bytes[place] ^= 0x40;
            assert_eq!(Handle::from_bytes(&bytes, What::Memory), None, "byte {place}");
        }
    }
}
