//! The binary `dxpu`: the library of that name, and the client libraries that programs load, packed.

#![forbid(unsafe_code)]

use dxpu::{Carried, Packed};

/// As `build.rs` packs them.
static CARRIED: Carried = include!(concat!(env!("OUT_DIR"), "/carried.rs"));

fn main() -> std::process::ExitCode {
    dxpu::main(&CARRIED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_this_binary_carries_is_what_its_hashes_say() {
        let mut unpacked = Vec::new();
        ruzstd::decoding::StreamingDecoder::new(CARRIED.frame).unwrap().read_to_end(&mut unpacked).unwrap();
        for (name, library) in [("driver", CARRIED.driver), ("nvml", CARRIED.nvml), ("trace", CARRIED.trace)]
        {
            let library_bytes = &unpacked[library.start..][..library.bytes];
            assert_eq!(blake3::hash(library_bytes).to_hex().as_str(), library.hash, "{name}");
            assert!(library_bytes.starts_with(b"\x7fELF"), "{name} is no library");
        }
    }
}
