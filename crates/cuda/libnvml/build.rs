//! Gives the shared library the name that programs look for.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // The handlers for forks are this library's code: it must stay when a program closes it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
