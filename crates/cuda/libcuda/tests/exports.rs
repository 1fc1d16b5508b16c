//! The built library exports exactly what the real driver does, under its name.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

const EXPORTS: &str = include_str!("../../table/data/exports-580.txt");

/// The shared library that cargo built beside this test: tests are in `deps`, the library above them.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent).expect("tests are built in target/profile/deps");
    folder.join("libcuda.so")
}

fn output(program: &str, arguments: &[&str]) -> String {
    let library = library();
    assert!(library.exists(), "{} is not there; cargo builds it with this test", library.display());
    let output = Command::new(program).args(arguments).arg(&library).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {program} (part of binutils): {error}"));
    assert!(output.status.success(), "{program} failed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_symbols_are_those_of_the_driver() {
    let listing = output("nm", &["-D", "--defined-only", "--format=posix"]);
    let ours: BTreeSet<&str> = listing.lines().filter_map(|line| line.split(' ').next()).collect();
    let theirs: BTreeSet<&str> = EXPORTS.lines().collect();
    assert_eq!(theirs.difference(&ours).collect::<Vec<_>>(), Vec::<&&str>::new(), "missing");
    assert_eq!(ours.difference(&theirs).collect::<Vec<_>>(), Vec::<&&str>::new(), "too many");
}

#[test]
fn programs_find_it_by_its_soname() {
    let listing = output("readelf", &["-d", "-W"]);
    assert!(listing.contains("soname: [libcuda.so.1]"), "{listing}");
}
