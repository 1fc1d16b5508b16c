//! Which layer of the library may name which. Arrows point down: api and export_tables use state, state uses link and host.

use std::{fs, path::Path};

/// A layer, and what nothing in it may name.
const FORBIDDEN: [(&str, &[&str]); 3] = [
    ("state", &["crate::api", "crate::export_tables", "crate::generated"]),
    ("link", &["crate::api", "crate::export_tables", "crate::generated", "crate::state"]),
    ("host.rs", &["crate::api", "crate::export_tables", "crate::generated", "crate::state", "crate::link"]),
];

/// The paths that a source names, those inside of `use crate::{…}` written out by their first part.
fn named_paths(source: &str) -> Vec<String> {
    let code: String =
        source.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => found.push(format!("crate::{}", first_word(rest))),
            Some(group) => {
                let mut depth = 1;
                let mut is_start = true;
                for (place, letter) in group.char_indices() {
                    match letter {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                    if is_start && (letter.is_alphanumeric() || letter == '_') {
                        found.push(format!("crate::{}", first_word(&group[place..])));
                        is_start = false;
                    }
                    is_start |= depth == 1 && letter == ',';
                }
            }
        }
    }
    found
}

fn first_word(text: &str) -> &str {
    text.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).next().unwrap_or("")
}

/// How a pointer into the program's memory is made or followed.
const POINTER_SIGNS: [&str; 12] = [
    "as *const",
    "as *mut",
    "from_raw_parts",
    "copy_nonoverlapping",
    "read_unaligned",
    "write_unaligned",
    "read_volatile",
    "write_volatile",
    "CStr::from_ptr",
    "ptr::copy",
    "ptr::read",
    "with_exposed_provenance",
];

/// Where that is allowed: `host` is for memory that a call names, `border` for the arguments of a call.
const POINTER_PLACES: [&str; 4] = ["host.rs", "border", "generated", COPIES_PAGES];

/// Copies pages of the program at once that it cannot reach meanwhile.
const COPIES_PAGES: &str = "paging/pages/own.rs";

/// Where addresses become pointers for the kernel alone, which maps and unmaps them; and tests, which look at tables that
/// the library itself has made.
const NOT_FOLLOWED: [&str; 4] =
    ["reserve.rs", "state/pinned.rs", "paging/pages.rs", "export_tables/tests.rs"];

/// Lines under `path` that make or follow pointers.
fn pointers(path: &Path, found: &mut Vec<String>) {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().for_each(|entry| pointers(&entry.unwrap().path(), found));
    }
    let source = fs::read_to_string(path).unwrap();
    for (at, line) in source.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        if POINTER_SIGNS.iter().any(|sign| code.contains(sign)) {
            found.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
        }
    }
}

fn check(path: &Path, forbidden: &[&str], broken: &mut Vec<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            check(&entry.unwrap().path(), forbidden, broken);
        }
        return;
    }
    let source = fs::read_to_string(path).unwrap();
    for named in named_paths(&source).iter().filter(|named| forbidden.contains(&named.as_str())) {
        broken.push(format!("{} names {named}", path.display()));
    }
}

#[test]
fn arrows_point_down() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut broken = Vec::new();
    for (layer, forbidden) in FORBIDDEN {
        let path = sources.join(layer);
        assert!(path.exists(), "{} is not there any more: name the layer anew here", path.display());
        check(&path, forbidden, &mut broken);
    }
    assert!(broken.is_empty(), "move what is shared down, or hand it in:\n{}", broken.join("\n"));
}

#[test]
fn the_programs_memory_is_touched_by_host_and_border_alone() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    pointers(&sources, &mut found);
    for place in POINTER_PLACES.iter().chain(&NOT_FOLLOWED) {
        let place = sources.join(place).display().to_string();
        let before = found.len();
        found.retain(|line| !line.starts_with(&place));
        assert!(found.len() < before, "{place} makes no pointers any more: take it off the list");
    }
    assert!(found.is_empty(), "use host::HostRegion, host::bytes or border::slice_at:\n{}", found.join("\n"));
}

#[test]
fn the_scan_sees_every_form_of_a_path() {
    let source = "use crate::{\n    api::{jit::A, module::b},\n    state::{c, d}, link,\n};\n// crate::generated\nlet x = crate::host::y;";
    assert_eq!(named_paths(source), ["crate::api", "crate::state", "crate::link", "crate::host"]);
}
