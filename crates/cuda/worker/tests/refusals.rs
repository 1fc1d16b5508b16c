//! What a worker says when it refuses a connection.

use std::{fs, path::Path};
use transport::REFUSAL_TEXT_BYTES_MAX;

/// The sentences in `.refuse("…")` of all sources below `path`.
fn refusals(path: &Path, found: &mut Vec<String>) {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().for_each(|entry| refusals(&entry.unwrap().path(), found));
    }
    let source = fs::read_to_string(path).unwrap();
    let texts = source.split(".refuse(\"").skip(1);
    found.extend(texts.map(|text| text.split('"').next().unwrap_or_default().to_owned()));
}

/// A refusal travels in a frame of 64 bytes. A longer sentence would reach its reader without its end.
#[test]
fn every_refusal_fits_its_frame() {
    let mut found = Vec::new();
    refusals(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() >= 7, "the scan finds refusals: {found:?}");
    for text in found {
        assert!(
            text.len() <= REFUSAL_TEXT_BYTES_MAX,
            "{} bytes, at most {REFUSAL_TEXT_BYTES_MAX}: {text}",
            text.len()
        );
    }
}
