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
fn the_scan_sees_every_form_of_a_path() {
    let source = "use crate::{\n    api::{jit::A, module::b},\n    state::{c, d}, link,\n};\n// crate::generated\nlet x = crate::host::y;";
    assert_eq!(named_paths(source), ["crate::api", "crate::state", "crate::link", "crate::host"]);
}
