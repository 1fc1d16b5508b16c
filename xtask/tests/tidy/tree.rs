//! The files of the repository.

use std::path::{Path, PathBuf};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// Files below the given folders whose names end so, with paths relative to the root, sorted.
pub(crate) fn files(folders: &[&str], ending: &str) -> Vec<PathBuf> {
    let root = root();
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("a directory entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                // Neither what git keeps nor what builds and installs leave behind.
                if !name.starts_with('.') && name != "target" && name != "node_modules" {
                    open.push(path);
                }
            } else if name.ends_with(ending) {
                found.push(path.strip_prefix(&root).expect("a path below the root").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The text of a file, by its path relative to the root.
pub(crate) fn text(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares what breaks a rule with the list of what may: panics with a line for each difference.
pub(crate) fn same(rule: &str, found: &[String], allowed: &[&str]) {
    let mut lines: Vec<String> = found
        .iter()
        .filter(|entry| !allowed.contains(&entry.as_str()))
        .map(|entry| format!("breaks the rule: {entry}"))
        .collect();
    let stale = allowed.iter().filter(|entry| !found.iter().any(|have| have == *entry));
    lines.extend(stale.map(|entry| format!("no longer breaks the rule, take it off the list: {entry}")));
    assert!(lines.is_empty(), "{rule}\n  {}", lines.join("\n  "));
}
