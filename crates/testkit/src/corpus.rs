//! Where seeds are kept: `fuzz/corpus/TARGET`, and the samples beside the crates that read them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Samples of other crates that are seeds as they are: target, folder below the root of the repository, ending.
const SAMPLES: &[(&str, &str, &str)] = &[
    ("elf_length", "crates/cuda/image/samples", "cubin"),
    ("fatbin", "crates/cuda/image/samples", "fatbin"),
    ("image_length", "crates/cuda/image/samples", "fatbin"),
    ("image_length", "crates/cuda/image/samples", "cubin"),
    ("ptx_load", "crates/cuda/ptx/tests/samples", "ptx"),
    ("ptx_run", "crates/cuda/ptx/tests/samples", "ptx"),
    ("ptx_run", "crates/cuda/driver-soft/tests/samples", "ptx"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder with the corpus of `target`.
pub fn folder(target: &str) -> PathBuf {
    root().join("fuzz/corpus").join(target)
}

/// Every seed of `target` as `(name, bytes)`, in the order of their names.
pub fn seeds(target: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut paths = files(&folder(target), "")?;
    for (_, samples, ending) in SAMPLES.iter().filter(|(of, ..)| *of == target) {
        paths.extend(files(&root().join(samples), ending)?);
    }
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, fs::read(path)?))
    };
    paths.into_iter().map(read).collect()
}

fn files(folder: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && (ending.is_empty() || path.extension().is_some_and(|found| found == ending)) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
