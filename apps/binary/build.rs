//! Makes what the binary carries inside: the client libraries.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let files = LIBRARIES.each_ref().map(|library| client_library(&root, &out, library));
    pack(&out, &files);
    println!("cargo::rerun-if-changed=build.rs");
}

/// A library that programs load: the variable that names its file, the package it is made of, what cargo calls the
/// file, and what programs call it.
struct Library {
    variable: &'static str,
    package: &'static str,
    built: &'static str,
    name: &'static str,
}

const LIBRARIES: [Library; 3] = [
    Library { variable: "DXPU_LIBCUDA_SO", package: "libcuda", built: "libcuda.so", name: "libcuda.so.1" },
    Library {
        variable: "DXPU_LIBNVML_SO",
        package: "libnvml",
        built: "libnvidia_ml.so",
        name: "libnvidia-ml.so.1",
    },
    Library {
        variable: "DXPU_LIBCUDA_TRACE_SO",
        package: "cuda-trace",
        built: "libcuda_trace.so",
        name: "libcuda-trace.so.1",
    },
];

/// What the libraries are made of.
const LIBRARY_CRATES: [&str; 16] = [
    "cuda/libcuda",
    "cuda/libnvml",
    "cuda/client",
    "cuda/wire",
    "cuda/abi",
    "cuda/image",
    "cuda/journal",
    "cuda/kept-files",
    "locks",
    "net/bulk",
    "net/keeper",
    "net/transport",
    "net/worker-link",
    "study/cuda-trace",
    "cuda/table",
    "study/trace-log",
];

/// A client library: the file that its variable names, or the workspace's own package, built apart because cargo cannot
/// depend on a cdylib's file.
fn client_library(root: &Path, out: &Path, library: &Library) -> PathBuf {
    println!("cargo::rerun-if-env-changed={}", library.variable);
    let file = match env::var_os(library.variable).filter(|path| !path.is_empty()) {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", Path::new(&path).display());
            PathBuf::from(path)
        }
        None => build_library(root, out, library),
    };
    let target = out.join(library.name);
    std::fs::copy(&file, &target)
        .unwrap_or_else(|error| panic!("cannot copy {} to {}: {error}", file.display(), target.display()));
    without_debug_data(&target);
    target
}

/// How hard zstd tries: the libraries become a quarter of their size in some seconds. A binary is downloaded more often than it is built.
const LEVEL: i32 = 19;
/// A quick build is not downloaded, and its build script is not optimised: at the level above it would take most of a minute.
const QUICK_LEVEL: i32 = 1;
/// The logarithm of how far back zstd looks: as far as the libraries are long, because they have much code in common.
const WINDOW: u32 = 24;

/// Packs the libraries for the binary: all of them, one behind the other, as one frame in `libraries.zst`, and `carried.rs`, which says
/// where each lies in it and, because a copy that is there already is compared by it, its hash.
fn pack(out: &Path, files: &[PathBuf]) {
    let write = |name: &str, content: &[u8]| {
        let path = out.join(name);
        std::fs::write(&path, content)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    };
    let (mut all, mut places) = (Vec::new(), Vec::new());
    for file in files {
        let content =
            std::fs::read(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        let (start, bytes, hash) = (all.len(), content.len(), blake3::hash(&content).to_hex());
        places.push(format!("Packed {{ hash: \"{hash}\", start: {start}, bytes: {bytes} }}"));
        all.extend_from_slice(&content);
    }
    let packed = compressed(&all).unwrap_or_else(|error| panic!("cannot pack the libraries: {error}"));
    write("libraries.zst", &packed);
    let [driver, nvml, trace] = &places[..] else { panic!("{} libraries", places.len()) };
    let frame = "include_bytes!(concat!(env!(\"OUT_DIR\"), \"/libraries.zst\"))";
    let carried = format!("Carried {{ frame: {frame}, driver: {driver}, nvml: {nvml}, trace: {trace} }}\n");
    write("carried.rs", carried.as_bytes());
}

fn compressed(content: &[u8]) -> std::io::Result<Vec<u8>> {
    let level = if profile() == "release" { LEVEL } else { QUICK_LEVEL };
    let mut compressor = zstd::bulk::Compressor::new(level)?;
    compressor.window_log(WINDOW)?;
    compressor.long_distance_matching(true)?;
    compressor.compress(content)
}

/// Nine tenths of a library are debug data, which stay in the file that cargo built. The names of functions are kept.
fn without_debug_data(file: &Path) {
    println!("cargo::rerun-if-env-changed=STRIP");
    let strip = env::var_os("STRIP").unwrap_or_else(|| "strip".into());
    if !Command::new(&strip).arg("--strip-debug").arg(file).status().is_ok_and(|status| status.success()) {
        println!(
            "cargo::warning={} failed (install binutils, or set STRIP): dxpu becomes 60 MB larger",
            strip.display()
        );
    }
}

fn build_library(root: &Path, out: &Path, library: &Library) -> PathBuf {
    let workspace = root.join("../..");
    for folder in LIBRARY_CRATES {
        println!("cargo::rerun-if-changed={}", workspace.join("crates").join(folder).display());
    }
    let profile = profile();
    let target_dir = out.join("library-target");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo
        .current_dir(&workspace)
        .args(["build", "--package", library.package, "--lib", "--target-dir"])
        .arg(&target_dir);
    if profile == "release" {
        cargo.arg("--release");
    }
    // Flags meant for the outer build (coverage, sanitizers) have no place in a library that other programs load.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
        cargo.env_remove(variable);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the client library (package {}) does not build; see above", library.package);
    target_dir.join(if profile == "release" { "release" } else { "debug" }).join(library.built)
}

/// `release`, or `debug` for a profile that inherits from `dev`, as that of `make demo` does.
fn profile() -> String {
    env::var("PROFILE").expect("cargo sets PROFILE")
}
