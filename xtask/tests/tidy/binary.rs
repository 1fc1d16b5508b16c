//! The folders of the binary use each other in one direction.

use crate::tree;
use std::collections::BTreeSet;

/// Which folder of `apps/dxpu/src` uses which. Read from left to right there is no way back: `support` is for all.
const ARROWS: &[&str] = &[
    // `dxpu run --lease` names a lease as `dxpu lease` does.
    "borrower -> operate",
    "borrower -> support",
    "operate -> support",
    // `dxpu functions` borrows GPUs, as `dxpu run` does.
    "roles -> borrower",
    "roles -> operate",
    "roles -> support",
    // `bench api` starts a worker, as `dxpu worker` does.
    "study -> roles",
    "study -> support",
    // A configuration file has the options of the command line, so its tests read the command line's definition.
    "support -> cli",
];

#[test]
fn folders_of_the_binary_use_each_other_in_one_direction() {
    let source = "apps/dxpu/src/";
    let mut found = BTreeSet::new();
    for path in tree::files(&["apps/dxpu/src"], ".rs") {
        let shown = path.display().to_string();
        let Some((folder, _)) = shown.trim_start_matches(source).split_once('/') else { continue };
        for used in uses(&tree::text(&path)) {
            if used != folder {
                found.insert(format!("{folder} -> {used}"));
            }
        }
    }
    let found: Vec<String> = found.into_iter().collect();
    tree::same(
        "A folder of the binary uses only those below it; move what both need to `support`.",
        &found,
        ARROWS,
    );
}

/// The modules at the root of the crate that a file names.
fn uses(text: &str) -> BTreeSet<String> {
    let named = text.split("crate::").skip(1);
    let word =
        |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    named.map(word).filter(|word| !word.is_empty()).collect()
}

#[test]
fn uses_are_read_right() {
    let text = "use crate::support::log;\nfn f() { crate::roles::up::start() }\n";
    assert_eq!(uses(text), BTreeSet::from(["support".to_owned(), "roles".to_owned()]));
}
