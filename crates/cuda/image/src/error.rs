//! Why bytes are no image we can use.

use thiserror::Error;

/// Why bytes are no image we can use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// Neither a fatbin, nor a 64-bit little-endian ELF file, nor text that ends with NUL.
    #[error("the image starts like no fatbin, cubin or PTX")]
    UnknownKind,
    /// The image goes on where nothing can be read.
    #[error("the {what} ends early")]
    Truncated {
        /// What was being read.
        what: &'static str,
    },
    /// A field contradicts the rest.
    #[error("the {what} is malformed")]
    Malformed {
        /// What was being read.
        what: &'static str,
    },
    /// Longer than anything we take.
    #[error("the {what} has {bytes} bytes, more than the bound of {bound}")]
    TooLong {
        /// What was being measured.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// The bound.
        bound: u64,
    },
    /// A compression that no published toolkit of the last ten years writes.
    #[error("an entry is compressed in an unknown way (flags {flags:#x})")]
    UnknownCompression {
        /// The entry's flags.
        flags: u64,
    },
    /// The compressed bytes are broken.
    #[error("the compressed entry cannot be unpacked: {why}")]
    Unpack {
        /// What the decoder said.
        why: String,
    },
}
