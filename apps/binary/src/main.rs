//! The binary `dxpu`: the library of that name, and the client libraries that programs load, packed.

#![forbid(unsafe_code)]

use dxpu::{Carried, Packed};

/// A library as `build.rs` packs it.
macro_rules! packed {
    ($file:literal) => {
        Packed {
            hash: include_str!(concat!(env!("OUT_DIR"), "/", $file, ".hash")),
            content: include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".zst")),
        }
    };
}

static CARRIED: Carried = Carried {
    driver: packed!("libcuda.so.1"),
    nvml: packed!("libnvidia-ml.so.1"),
    trace: packed!("libcuda-trace.so.1"),
};

fn main() -> std::process::ExitCode {
    dxpu::main(&CARRIED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_this_binary_carries_is_what_its_hashes_say() {
        for (name, library) in [("driver", CARRIED.driver), ("nvml", CARRIED.nvml), ("trace", CARRIED.trace)]
        {
            let mut unpacked = Vec::new();
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(library.content).unwrap();
            decoder.read_to_end(&mut unpacked).unwrap();
            assert_eq!(blake3::hash(&unpacked).to_hex().as_str(), library.hash, "{name}");
            assert!(unpacked.starts_with(b"\x7fELF"), "{name} is no library");
        }
    }
}
