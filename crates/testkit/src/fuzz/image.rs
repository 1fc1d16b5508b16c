//! Module images: fatbins, cubins, text behind a pointer.

use cuda_image::{
    Capability, Compression, EntryKind, Fatbin, ImageError, ImageKind, Wants, kind_of, select_usable,
};

/// Entries that unpack to more than this are not unpacked here: that they may take up to the decoder's own bound is
/// its promise, and a fuzzer that fills a gibibyte for each input finds nothing else.
const UNPACKED_BYTES_MAX: u64 = 16 << 20;

/// Compute capabilities that select differently: old, of today, newest, absurd.
const CAPABILITIES: [(u32, u32); 5] = [(7, 5), (9, 0), (10, 3), (12, 1), (u32::MAX / 16, 9)];

fn measure(image: &[u8]) -> Result<u64, ImageError> {
    cuda_image::image_length(|offset, bytes| {
        let start = usize::try_from(offset).ok()?;
        image.get(start..start.checked_add(bytes)?)
    })
}

/// How long an image is. The length cannot depend on what lies behind it.
pub fn image_length(data: &[u8]) {
    let Ok(length) = measure(data) else { return };
    assert!(length > 0);
    if let Some(image) = usize::try_from(length).ok().and_then(|length| data.get(..length)) {
        assert_eq!(measure(image), Ok(length));
    }
}

/// The length of an ELF file; the magic is put there, so that every input gets past it.
pub fn elf_length(data: &[u8]) {
    let mut image = b"\x7fELF\x02\x01".to_vec();
    image.extend_from_slice(data.get(6..).unwrap_or_default());
    image_length(&image);
}

/// A fatbin: its entries, their contents, what a device would choose.
pub fn fatbin(data: &[u8]) {
    if let Ok(container) = Fatbin::parse(data) {
        let rebuilt = Fatbin::build(&container.entries);
        let again = Fatbin::parse(&rebuilt).expect("what was built from entries can be read");
        assert_eq!(again.entries, container.entries);
        for entry in &container.entries {
            let unpacks = entry.compression() != Ok(Compression::Zstd)
                || !(UNPACKED_BYTES_MAX..=1 << 30).contains(&entry.unpacked_bytes);
            if !unpacks {
                continue;
            }
            if let Ok(contents) = entry.contents() {
                assert!(entry.kind != EntryKind::Ptx || contents.last() != Some(&0));
                let _ = kind_of(&contents);
            }
        }
    }
    for (major, minor) in CAPABILITIES {
        for (sass, ptx) in [(true, true), (false, true), (true, false)] {
            let capability = Capability { major, minor };
            let Ok(selected) = select_usable(data, capability, Wants { sass, ptx }) else { continue };
            if kind_of(data) == Some(ImageKind::Fatbin) {
                let chosen = Fatbin::parse(&selected).expect("a selection is a fatbin");
                assert!(selected.len() <= data.len());
                assert!(chosen.entries.iter().all(|entry| capability.runs(entry)));
                assert_eq!(measure(&selected), Ok(selected.len() as u64));
            }
        }
    }
}

/// One compressed entry: a byte that says how, then the payload. A well-formed container is built around it, so that
/// every input reaches the decompressors.
pub fn fatbin_entry(data: &[u8]) {
    let Some((&[how, claim], payload)) = data.split_first_chunk::<2>() else { return };
    let flags: u64 = if how & 1 == 0 { 0x2000 } else { 0x8000 };
    let kind: u16 = if how & 2 == 0 { 1 } else { 2 };
    // The claimed length: a multiple of the real one, or a power of two.
    let unpacked = if how & 4 == 0 { payload.len() as u64 * u64::from(claim) } else { 1 << (claim % 21) };
    let mut header = [0; 64];
    header[..2].copy_from_slice(&kind.to_le_bytes());
    header[4..8].copy_from_slice(&64u32.to_le_bytes());
    header[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[28..32].copy_from_slice(&90u32.to_le_bytes());
    header[40..48].copy_from_slice(&flags.to_le_bytes());
    header[56..64].copy_from_slice(&unpacked.to_le_bytes());
    let mut image = cuda_image::FATBIN_MAGIC.to_le_bytes().to_vec();
    image.extend_from_slice(&[1, 0, 16, 0]);
    image.extend_from_slice(&(64 + payload.len() as u64).to_le_bytes());
    image.extend_from_slice(&header);
    image.extend_from_slice(payload);
    let container = Fatbin::parse(&image).expect("the container is well-formed");
    assert_eq!(container.entries.len(), 1);
    if let Ok(contents) = container.entries[0].contents() {
        assert!(contents.len() as u64 <= unpacked);
    }
}
