//! Gives the shared library the name that programs link against.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Our threads run this library's code: it must stay when a program closes it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
