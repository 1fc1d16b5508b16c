//! The pages by which a controller introduces itself.

use super::admin::EVENT_REQUESTS_MAX;
use super::{BLOCK_BYTES, TRANSFER_LOG_PAGES, VERSION};

fn text(page: &mut [u8], at: usize, len: usize, text: &str) {
    let field = &mut page[at..at + len];
    field.fill(b' ');
    let ascii = text.bytes().filter(|byte| (0x20..0x7f).contains(byte));
    field.iter_mut().zip(ascii).for_each(|(place, byte)| *place = byte);
}

/// The controller.
pub(super) fn controller(serial: &str) -> [u8; 4096] {
    let mut page = [0; 4096];
    page[0..2].copy_from_slice(&0x1b36u16.to_le_bytes());
    page[2..4].copy_from_slice(&0x1af4u16.to_le_bytes());
    text(&mut page, 4, 20, serial);
    text(&mut page, 24, 40, "dxpu NVMe endpoint");
    text(&mut page, 64, 8, env!("CARGO_PKG_VERSION"));
    page[77] = TRANSFER_LOG_PAGES;
    page[80..84].copy_from_slice(&VERSION.to_le_bytes());
    // An I/O controller.
    page[111] = 1;
    page[258] = 3;
    page[259] = EVENT_REQUESTS_MAX as u8 - 1;
    // One read-only firmware slot.
    page[260] = 0x03;
    // Warning and critical temperature, in kelvin.
    page[266..268].copy_from_slice(&343u16.to_le_bytes());
    page[268..270].copy_from_slice(&353u16.to_le_bytes());
    // Entries of 64 and 16 bytes.
    page[512] = 0x66;
    page[513] = 0x44;
    page[516..520].copy_from_slice(&1u32.to_le_bytes());
    // Write zeroes.
    page[520..522].copy_from_slice(&(1u16 << 3).to_le_bytes());
    // What is written may sit in the host's cache until a flush.
    page[525] = 1;
    let name = format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid_text(&identifier(serial)));
    page[768..768 + name.len()].copy_from_slice(name.as_bytes());
    page
}

/// The namespace: one format, of 512-byte blocks.
pub(super) fn namespace(blocks: u64) -> [u8; 4096] {
    let mut page = [0; 4096];
    for at in [0, 8, 16] {
        page[at..at + 8].copy_from_slice(&blocks.to_le_bytes());
    }
    page[130] = BLOCK_BYTES.trailing_zeros() as u8;
    page
}

/// The namespaces above `after`: there is one.
pub(super) fn active_namespaces(after: u32) -> [u8; 4096] {
    let mut page = [0; 4096];
    page[0] = u8::from(after == 0);
    page
}

/// The namespace's identifiers: a UUID.
pub(super) fn descriptors(serial: &str) -> [u8; 4096] {
    let mut page = [0; 4096];
    (page[0], page[1]) = (3, 16);
    page[4..20].copy_from_slice(&identifier(serial));
    page
}

/// A UUID that follows from the serial number, so that a namespace keeps its identity between boxes.
fn identifier(serial: &str) -> [u8; 16] {
    // FNV-1a over 128 bits: a disk's name is no secret, it only has to differ.
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let hash = serial.bytes().fold(start, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    let mut bytes = hash.to_be_bytes();
    // Version 8 (custom), variant 1.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The health log: healthy, 300 K.
pub(super) fn health() -> [u8; 512] {
    let mut page = [0; 512];
    page[1..3].copy_from_slice(&300u16.to_le_bytes());
    // Spare left, and the threshold below which it would be a warning, in percent.
    (page[3], page[4]) = (100, 10);
    page
}

/// The firmware log: slot 1 is active.
pub(super) fn firmware_slots() -> [u8; 512] {
    let mut page = [0; 512];
    page[0] = 1;
    text(&mut page, 8, 8, env!("CARGO_PKG_VERSION"));
    page
}
