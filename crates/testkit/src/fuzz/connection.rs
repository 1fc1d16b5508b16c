//! The first bytes of a connection, and the texts that say where it goes and which certificates it trusts.

use transport::{Address, Fingerprint, PREAMBLE_BYTES, Preamble, PreambleError};

/// 32-bit FNV-1a, as the preamble ends with: a fuzzer would hardly ever guess it.
fn sealed(bytes: &[u8; PREAMBLE_BYTES]) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = *bytes;
    let (front, checksum) = bytes.split_at_mut(PREAMBLE_BYTES - 4);
    let sum =
        front.iter().fold(0x811c_9dc5u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    checksum.copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The preamble, as it came and with its checksum put right.
pub fn preamble(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<PREAMBLE_BYTES>() else {
        assert_eq!(Preamble::decode(data), Err(PreambleError::Length { have: data.len() }));
        return;
    };
    let sealed = sealed(bytes);
    for bytes in [bytes, &sealed] {
        match Preamble::decode(bytes) {
            Ok(preamble) => assert_eq!(preamble.encode(), *bytes),
            Err(error) => assert!(error.to_string().len() < 200),
        }
    }
    assert_ne!(Preamble::decode(&sealed), Err(PreambleError::Checksum));
}

/// An address as a person writes it; written out it must be read as the same one.
pub fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<Address>() {
        Ok(address) => assert_eq!(address.to_string().parse::<Address>().as_ref(), Ok(&address)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A certificate's fingerprint as a person writes it.
pub fn fingerprint(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(fingerprint) = text.parse::<Fingerprint>() {
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
    }
}
