//! Makes what the binary carries inside: the client library, and the programs of `demo` and `bench`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    client_library(&root, &out);
    c_program(&root, &out, "demo/mandelbrot.c", "demo");
    c_program(&root, &out, "bench/bench.c", "bench");
    println!("cargo::rerun-if-changed=build.rs");
}

/// The client library: the file that DXPU_LIBCUDA_SO names, or the workspace's own `libcuda`, built apart because
/// cargo cannot depend on a cdylib's file.
fn client_library(root: &Path, out: &Path) {
    println!("cargo::rerun-if-env-changed=DXPU_LIBCUDA_SO");
    let library = match env::var_os("DXPU_LIBCUDA_SO").filter(|path| !path.is_empty()) {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", Path::new(&path).display());
            PathBuf::from(path)
        }
        None => build_library(root, out),
    };
    let target = out.join("libcuda.so.1");
    std::fs::copy(&library, &target)
        .unwrap_or_else(|error| panic!("cannot copy {} to {}: {error}", library.display(), target.display()));
}

fn build_library(root: &Path, out: &Path) -> PathBuf {
    let workspace = root.join("../..");
    for crate_name in ["libcuda", "cuda-client", "cuda-wire", "cuda-abi", "cuda-image", "bulk", "transport", "worker-link"] {
        println!("cargo::rerun-if-changed={}", workspace.join("crates").join(crate_name).display());
    }
    let profile = env::var("PROFILE").expect("cargo sets PROFILE");
    let target_dir = out.join("libcuda-target");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo
        .current_dir(&workspace)
        .args(["build", "--package", "libcuda", "--lib", "--target-dir"])
        .arg(&target_dir);
    if profile == "release" {
        cargo.arg("--release");
    }
    // Flags meant for the outer build (coverage, sanitizers) have no place in a library that other programs load.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
        cargo.env_remove(variable);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the client library (package libcuda) does not build; see above");
    target_dir.join(if profile == "release" { "release" } else { "debug" }).join("libcuda.so")
}

/// The demo and the benchmark are ordinary C programs: they have never heard of dxpu.
fn c_program(root: &Path, out: &Path, source: &str, name: &str) {
    let source = root.join(source);
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=gnu11", "-O2", "-ffp-contract=off", "-Wall", "-o"]).arg(out.join(name)).arg(&source);
    let status = command.arg("-ldl").status();
    let good = status.is_ok_and(|status| status.success());
    assert!(
        good,
        "{} needs a C compiler: {} failed (set CC to choose another)",
        source.display(),
        compiler.display()
    );
}
