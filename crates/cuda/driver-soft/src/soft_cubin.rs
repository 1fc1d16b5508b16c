//! The image our linker makes: an ELF file whose sections hold PTX texts.
//!
//! Programs treat what cuLinkComplete returns as a cubin: they measure it as an ELF file, keep it, load it. A soft
//! device executes PTX, so the file holds the PTX text of each input in a section.

use cuda_image::ImageError;

/// `EM_CUDA`.
const MACHINE_CUDA: u16 = 190;
const HEADER_BYTES: usize = 64;
const SECTION_HEADER_BYTES: usize = 64;
/// Name of the sections with PTX.
const PTX_SECTION: &[u8] = b".dxpu.ptx\0";
const NAMES_SECTION: &[u8] = b".shstrtab\0";

/// The most texts in one image: ELF counts sections in 16 bits, and two are not ours.
pub(crate) const TEXTS_MAX: usize = u16::MAX as usize - 2;

/// Wraps at most [`TEXTS_MAX`] PTX texts.
pub(crate) fn build(texts: &[Vec<u8>], architecture: u32) -> Vec<u8> {
    // The table of names: an empty one, then ours.
    let names = [&b"\0"[..], PTX_SECTION, NAMES_SECTION].concat();
    let mut image = vec![0; HEADER_BYTES];
    let mut headers = vec![0u8; SECTION_HEADER_BYTES];
    let mut section = |image: &mut Vec<u8>, name: u32, kind: u32, bytes: &[u8]| {
        image.resize(image.len().next_multiple_of(16), 0);
        let mut header = [0u8; SECTION_HEADER_BYTES];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(image.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        header[48..56].copy_from_slice(&1u64.to_le_bytes());
        image.extend_from_slice(bytes);
        headers.extend_from_slice(&header);
    };
    for text in texts {
        section(&mut image, 1, 1, text);
    }
    section(&mut image, 1 + PTX_SECTION.len() as u32, 3, &names);
    image.resize(image.len().next_multiple_of(16), 0);
    let sections_at = image.len() as u64;
    image.extend_from_slice(&headers);

    image[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\x33");
    image[16..18].copy_from_slice(&2u16.to_le_bytes());
    image[18..20].copy_from_slice(&MACHINE_CUDA.to_le_bytes());
    image[20..24].copy_from_slice(&1u32.to_le_bytes());
    image[40..48].copy_from_slice(&sections_at.to_le_bytes());
    image[48..52].copy_from_slice(&architecture.to_le_bytes());
    image[52..54].copy_from_slice(&(HEADER_BYTES as u16).to_le_bytes());
    image[58..60].copy_from_slice(&(SECTION_HEADER_BYTES as u16).to_le_bytes());
    image[60..62].copy_from_slice(&(texts.len() as u16 + 2).to_le_bytes());
    image[62..64].copy_from_slice(&(texts.len() as u16 + 1).to_le_bytes());
    image
}

/// The PTX texts in an ELF image; none when our linker did not make it.
pub(crate) fn texts(image: &[u8]) -> Result<Vec<Vec<u8>>, ImageError> {
    let texts = sections(image)?
        .into_iter()
        .filter(|(name, _)| *name == PTX_SECTION.strip_suffix(b"\0").unwrap_or_default());
    Ok(texts.map(|(_, bytes)| bytes.to_vec()).collect())
}

/// Name and bytes of every section.
pub(crate) fn sections(image: &[u8]) -> Result<Vec<(&[u8], &[u8])>, ImageError> {
    const WHAT: &str = "ELF section headers";
    let truncated = ImageError::Truncated { what: WHAT };
    let word = |at: usize, bytes: usize| -> Option<u64> {
        let field = image.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    let read = || -> Option<Vec<(u64, &[u8])>> {
        let (at, size, count) = (word(40, 8)?, word(58, 2)?, word(60, 2)?);
        if count > 0 && size < SECTION_HEADER_BYTES as u64 {
            return None;
        }
        let mut sections = Vec::new();
        for index in 0..count {
            let header = usize::try_from(at.checked_add(index * size)?).ok()?;
            let (name, kind) = (word(header, 4)?, word(header.checked_add(4)?, 4)?);
            let start = usize::try_from(word(header.checked_add(24)?, 8)?).ok()?;
            let bytes = usize::try_from(word(header.checked_add(32)?, 8)?).ok()?;
            // Sections without bytes in the file (type 8) and the null section have none here either.
            let bytes = if matches!(kind, 0 | 8) { 0 } else { bytes };
            let start = if bytes == 0 { 0 } else { start };
            sections.push((name, image.get(start..start.checked_add(bytes)?)?));
        }
        Some(sections)
    };
    let found = read().ok_or(truncated.clone())?;
    let names = word(62, 2)
        .and_then(|index| found.get(usize::try_from(index).ok()?))
        .map_or(&[][..], |names| names.1);
    let name = |at: u64| {
        let from = usize::try_from(at).ok().and_then(|at| names.get(at..)).unwrap_or_default();
        from.split(|&byte| byte == 0).next().unwrap_or_default()
    };
    Ok(found.iter().map(|&(at, bytes)| (name(at), bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_goes_in_comes_out_and_its_length_can_be_measured() {
        let inputs = vec![b".version 8.0\n".to_vec(), b"// second".to_vec()];
        let image = build(&inputs, 90);
        assert_eq!(texts(&image), Ok(inputs));
        let mut followed = image.clone();
        followed.extend_from_slice(&[1; 64]);
        let read = |offset: u64, bytes: usize| followed.get(offset as usize..offset as usize + bytes);
        assert_eq!(cuda_image::image_length(read), Ok(image.len() as u64));
    }

    proptest! {
        #[test]
        fn hostile_files_never_panic(at in 0usize..400, to: u8, cut in 0usize..400) {
            let mut image = build(&[b".version 8.0".to_vec()], 90);
            if let Some(byte) = image.get_mut(at) { *byte = to; }
            let _ = texts(&image);
            let _ = texts(&image[..cut.min(image.len())]);
        }
    }
}
