//! One layout of modules everywhere.

use crate::tree;

/// A module with parts is `name.rs` beside a folder `name/`. (Below `tests/` cargo itself asks for `mod.rs`, because it takes
/// every file there for a test program.)
#[test]
fn modules_are_named_after_themselves() {
    let found: Vec<String> = tree::files(&["crates", "apps", "xtask"], "mod.rs")
        .iter()
        .filter(|path| path.file_name().is_some_and(|name| name == "mod.rs"))
        .filter(|path| path.components().any(|part| part.as_os_str() == "src"))
        .map(|path| path.display().to_string())
        .collect();
    tree::same("A module lies in name.rs, its parts in name/; git mv name/mod.rs name.rs.", &found, &[]);
}
