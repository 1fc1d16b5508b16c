//! `make build` and `make test` build every dependency once.
//!
//! Cargo builds a dependency anew for every set of its features, and everything above it too. A feature that only the tests ask for
//! therefore doubles the time of a first build. Ask for it where the product asks for the dependency.

use crate::tree;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

/// As in the Makefile.
const PACKAGES: &[&str] = &[
    "--package",
    "libcuda",
    "--package",
    "libnvml",
    "--package",
    "cuda-trace",
    "--package",
    "dxpu",
    "--package",
    "dxpu-binary",
];
const BUILD: &[&str] = &["build", "--release"];
const TEST: &[&str] = &["test", "--release", "--workspace", "--lib", "--bins", "--tests"];

/// A library that is built for one purpose: package, target, what for.
type Unit = (String, String, String);

/// The feature sets that cargo would build each library with.
fn libraries(words: &[&str]) -> BTreeMap<Unit, BTreeSet<Vec<String>>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(words)
        .args(["--unit-graph", "-Z", "unstable-options", "--offline"])
        .current_dir(tree::root())
        // A stable cargo prints its plan only if it is told to act as an unstable one.
        .env("RUSTC_BOOTSTRAP", "1")
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo prints no plan: {said}");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("the plan is JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = BTreeMap::<Unit, BTreeSet<Vec<String>>>::new();
    for unit in plan["units"].as_array().expect("the plan has units") {
        // A test is built beside the library that it is in.
        if unit["mode"] != "build" || unit["target"]["kind"][0] != "lib" {
            continue;
        }
        let features = unit["features"].as_array().map_or(&[][..], Vec::as_slice).iter().map(text).collect();
        let name = (text(&unit["pkg_id"]), text(&unit["target"]["name"]), unit["profile"].to_string());
        found.entry(name).or_default().insert(features);
    }
    found
}

#[test]
fn tests_and_product_share_every_dependency() {
    let product = libraries(&[BUILD, PACKAGES].concat());
    let tests = libraries(TEST);
    assert!(product.len() > 100, "the plan has {} libraries", product.len());
    let different: Vec<String> = product
        .iter()
        .filter_map(|(unit, features)| {
            let others = tests.get(unit).filter(|others| features.is_disjoint(others))?;
            Some(format!("{}: {features:?} in the product, {others:?} in tests", unit.0))
        })
        .collect();
    assert!(
        different.is_empty(),
        "built twice, because tests ask for other features:\n{}",
        different.join("\n")
    );
}

#[test]
fn the_makefile_builds_these_packages() {
    let makefile = std::fs::read_to_string(tree::root().join("Makefile")).expect("there is a Makefile");
    assert!(
        makefile.contains(&format!("PACKAGES := {}\n", PACKAGES.join(" "))),
        "the Makefile names other packages"
    );
}
