//! Makes what the binary carries inside: the client libraries.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    for library in &LIBRARIES {
        client_library(&root, &out, library);
    }
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
fn client_library(root: &Path, out: &Path, library: &Library) {
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
    pack(&target);
}

/// How hard zstd tries: a library becomes a third of its size in two seconds. A binary is downloaded more often than it is built.
const LEVEL: i32 = 19;

/// Packs a library for the binary: `FILE.zst` and, because a copy that is there already is compared by it, `FILE.hash`.
fn pack(file: &Path) {
    let content =
        std::fs::read(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
    let beside = |ending: &str| PathBuf::from(format!("{}.{ending}", file.display()));
    let write = |path: PathBuf, content: &[u8]| {
        std::fs::write(&path, content)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    };
    let packed = zstd::bulk::compress(&content, LEVEL)
        .unwrap_or_else(|error| panic!("cannot pack {}: {error}", file.display()));
    write(beside("zst"), &packed);
    write(beside("hash"), blake3::hash(&content).to_hex().as_bytes());
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
    let profile = env::var("PROFILE").expect("cargo sets PROFILE");
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
