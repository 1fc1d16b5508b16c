//! The built library exports exactly what the real one does, under its name.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

const EXPORTS: &str = include_str!("../data/exports-580.txt");

/// The shared library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.parent().expect("tests are built in a folder").join("libnvidia_ml.so")
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
fn no_symbol_is_missing_and_none_is_too_many() {
    let listing = output("nm", &["-D", "--defined-only", "--format=posix"]);
    let ours: BTreeSet<&str> = listing.lines().filter_map(|line| line.split(' ').next()).collect();
    let theirs: BTreeSet<&str> = EXPORTS.lines().collect();
    assert_eq!(theirs.difference(&ours).collect::<Vec<_>>(), Vec::<&&str>::new(), "missing");
    assert_eq!(ours.difference(&theirs).collect::<Vec<_>>(), Vec::<&&str>::new(), "too many");
}

#[test]
fn programs_find_it_by_its_soname() {
    let listing = output("readelf", &["-d", "-W"]);
    assert!(listing.contains("soname: [libnvidia-ml.so.1]"), "{listing}");
}
