//! Makes the programs of `demo`, of `bench` and of the check of a GPU.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    c_program(&root, &out, "demo/mandelbrot.c", "demo");
    c_program(&root, &out, "bench/bench.c", "bench");
    c_program(&root, &out, "demo/gpucheck.c", "gpucheck");
    // Where Debian keeps the libraries of this architecture.
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    println!("cargo::rustc-env=DXPU_TRIPLET={architecture}-linux-gnu");
    // `debug` also for the profile `first` of `make demo`, which inherits from `dev`.
    println!("cargo::rustc-check-cfg=cfg(quick_build)");
    if env::var("PROFILE").expect("cargo sets PROFILE") != "release" {
        println!("cargo::rustc-cfg=quick_build");
    }
    println!("cargo::rerun-if-changed=build.rs");
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
