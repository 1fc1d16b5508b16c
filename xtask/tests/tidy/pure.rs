//! Formats and cores are pure, and say so to clippy.

use crate::tree;
use std::collections::BTreeSet;
use std::path::Path;

/// What makes clippy refuse clocks, threads, sockets, files and the environment (`clippy.toml` has the list).
const ATTRIBUTE: &str = "#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]";

/// The crates that ARCHITECTURE.md calls a format or a core are those that carry the attribute.
#[test]
fn formats_and_cores_are_pure() {
    let mut carriers = BTreeSet::new();
    for manifest in tree::files(&["crates"], "Cargo.toml") {
        let folder = manifest.parent().expect("a folder with a manifest");
        let library = folder.join("src/lib.rs");
        if tree::root().join(&library).exists() && tree::text(&library).lines().any(|line| line == ATTRIBUTE)
        {
            carriers.insert(package(&tree::text(&manifest)));
        }
    }
    let promised = promised(&tree::text(Path::new("ARCHITECTURE.md")));
    assert_eq!(
        carriers, promised,
        "left: crates with {ATTRIBUTE}; right: formats and cores of ARCHITECTURE.md"
    );
}

fn package(manifest: &str) -> String {
    let line = manifest.lines().find(|line| line.starts_with("name = ")).expect("a package has a name");
    line.trim_start_matches("name = ").trim_matches('"').to_owned()
}

/// Names that the code map follows with `(format)` or `(core)`.
fn promised(architecture: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for part in architecture.split("**") {
        let kind = ["(format)", "(core)"].iter().any(|kind| part.trim_start().starts_with(kind));
        if !kind {
            continue;
        }
        let before = architecture.split(&format!("**{part}")).next().unwrap_or_default();
        if let Some(name) = before.rsplit("**").next() {
            found.insert(name.to_owned());
        }
    }
    found
}

#[test]
fn kinds_are_read_right() {
    let text = "- **a** (format): x. **b** (core): y\n- **c** (core and shell): z **d** (shell)";
    assert_eq!(promised(text), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
}
