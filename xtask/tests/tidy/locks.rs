//! One way to take a lock.

use crate::tree;

/// A helper that ignores poison has one home, which says why that is sound.
#[test]
fn locks_are_taken_by_one_function() {
    let mut found: Vec<String> = Vec::new();
    for path in tree::files(&["crates", "apps"], ".rs") {
        let is_home = path.starts_with("crates/locks");
        if !is_home && tree::text(&path).lines().any(is_helper) {
            found.push(path.display().to_string());
        }
    }
    tree::same(
        "A mutex is taken with locks::lock; a crate has no helper of its own for it.",
        &found,
        EXCEPTIONS,
    );
}

/// Where a helper is still defined.
const EXCEPTIONS: &[&str] = &[];

fn is_helper(line: &str) -> bool {
    ["fn lock<T", "fn try_lock<T"].iter().any(|helper| line.contains(helper))
}

#[test]
fn helpers_are_seen() {
    assert!(is_helper("pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {"));
    assert!(!is_helper("    fn lock(&self) -> MutexGuard<'_, State> {"));
}
