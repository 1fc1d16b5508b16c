//! `make demo` makes a quick build where there is no release build, and a quick build goes nowhere else.

use crate::tree;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// An empty directory for builds.
fn no_builds(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("first-look").join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a directory can be made");
    directory
}

fn binary(path: &Path, version: &str) {
    fs::create_dir_all(path.parent().expect("a file lies in a directory")).expect("a directory can be made");
    fs::write(path, format!("#!/bin/sh\necho '{version}'\n")).expect("a file can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a file can be made executable");
}

/// The commands that make would run, without running them.
fn plan(goal: &str, builds: &Path) -> String {
    let output = Command::new("make")
        .args(["--dry-run", goal])
        .current_dir(tree::root())
        .env("CARGO_TARGET_DIR", builds)
        // `make test` runs this test, and its own flags are not meant for this make.
        .env_remove("MAKEFLAGS")
        .env_remove("MAKEOVERRIDES")
        .output()
        .expect("make runs");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).expect("commands are text")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a plan builds or runs what the profile makes. Told by whole paths: the repository may lie in a directory of any name.
fn uses(plan: &str, profile: &str, builds: &Path) -> bool {
    let option = if profile == "release" { "--release" } else { "--profile first" };
    plan.contains(option) || plan.contains(&builds.join(profile).display().to_string())
}

#[test]
fn the_demo_makes_a_quick_build_only_where_there_is_no_release_build() {
    let builds = no_builds("demo");
    let run = |profile: &str| format!("{} demo\n", builds.join(profile).join("dxpu").display());
    let first = plan("demo", &builds);
    assert!(first.contains("--profile first") && first.contains(&run("first")), "{first}");
    assert!(!uses(&first, "release", &builds), "{first}");

    binary(&builds.join("release/dxpu"), "dxpu 1.0.0");
    let later = plan("demo", &builds);
    assert!(later.contains("--release") && later.contains(&run("release")), "{later}");
    assert!(!uses(&later, "first", &builds), "{later}");
}

#[test]
fn only_the_demo_uses_a_quick_build() {
    let builds = no_builds("others");
    binary(&builds.join("first/dxpu"), "dxpu 1.0.0 (quick build)");
    for goal in ["build", "install", "package", "bench", "part-unit", "part-stories"] {
        let plan = plan(goal, &builds);
        assert!(uses(&plan, "release", &builds) && !uses(&plan, "first", &builds), "{goal}: {plan}");
    }
}

#[test]
fn a_quick_build_is_not_shipped() {
    let builds = no_builds("shipped");
    binary(&builds.join("dxpu"), "dxpu 1.0.0 (quick build, slow)");
    let out = builds.join("out");
    for (script, words) in [
        ("scripts/dist", &[builds.join("dxpu").display().to_string(), out.display().to_string()][..]),
        ("deploy/package", &built(&builds, &out)),
        ("deploy/image", &built(&builds, &out)),
    ] {
        let output =
            Command::new(tree::root().join(script)).args(words).output().expect("the script can be started");
        assert!(!output.status.success(), "{script} ships a quick build");
        let said = said(&output);
        assert!(said.contains("is a quick build") && said.contains("make build"), "{script}: {said}");
        assert!(!out.exists(), "{script} writes what it refuses");
    }
}

fn built(builds: &Path, out: &Path) -> [String; 4] {
    let shown = |path: &Path| path.display().to_string();
    ["--built".to_owned(), shown(builds), "--out".to_owned(), shown(out)]
}
