//! Functions fit on a screen.

use crate::tree;

/// The most lines of a function, with its signature and its closing brace.
const LINES_MAX: usize = 70;

/// Longer ones, and why they may be: `file: name`.
const EXCEPTIONS: &[&str] = &[
    // One arm for each instruction or each form of it: a table that happens to be written as a match.
    "crates/cuda/ptx/src/engine/step.rs: step",
    "crates/cuda/ptx/src/lower/half.rs: half",
    "crates/cuda/ptx/src/lower/integer.rs: binary",
    "crates/cuda/ptx/src/lower/integer.rs: ternary",
    "crates/cuda/ptx/src/lower/logic.rs: logic",
    "crates/cuda/ptx/src/lower/warp.rs: warp",
    // One line for each attribute, field, sample or message.
    "crates/cuda/driver-soft/src/device_info.rs: attributes",
    "crates/testkit/src/samples/hostile.rs: texts",
    "crates/testkit/src/samples/wire.rs: commands",
    "crates/testkit/src/samples/wire.rs: device_status",
    "crates/pcie/vfio-user/src/message/request.rs: decode_fields",
    "crates/cuda/libnvml/tests/through_c.rs: numbers",
    // Several ideas in one, to be split.
    "apps/dxpu/src/study/model/check.rs: print",
    "apps/dxpu/src/roles/worker.rs: run",
    "apps/binary/tests/manager.rs: a_manager_killed_under_load_loses_nothing_and_lends_nothing_twice",
    "crates/cuda/driver-nvidia/src/graph/build.rs: add",
    "crates/cuda/driver-soft/src/work.rs: execute",
    "crates/cuda/driver-soft/tests/stress.rs: run",
    "crates/pool/manager/src/manager.rs: start",
    "crates/cuda/ptx/src/engine/call.rs: enter",
    "crates/cuda/ptx/src/engine/printf.rs: print",
    "crates/cuda/ptx/src/parse/body.rs: body",
    "crates/cuda/ptx/src/parse.rs: module",
    "crates/pcie/vfio-user/src/session.rs: on_request",
    // A program, or a story, told from its beginning to its end.
    "crates/kube/node/tests/it/pool.rs: join",
    "crates/cuda/driver-nvidia/src/tests/cut_speed.rs: measure",
    "crates/cuda/libcuda/tests/survives/program.rs: main_thread",
    "crates/cuda/worker/tests/support/guardian.rs: answer",
    "crates/pool/core/src/ledger/leases.rs: create_lease",
];

#[test]
fn functions_fit_on_a_screen() {
    let mut found = Vec::new();
    for path in tree::files(&["crates", "apps", "xtask", "fuzz"], ".rs") {
        for (name, lines) in functions(&tree::text(&path)) {
            if lines > LINES_MAX {
                found.push(format!("{}: {name}", path.display()));
            }
        }
    }
    tree::same(&format!("A function has at most {LINES_MAX} lines: split it by idea."), &found, EXCEPTIONS);
}

/// Names and lengths of the functions of a file as rustfmt leaves it: a function ends with a brace of its own indentation.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = name_of(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        if line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        let end = lines[at..].iter().position(|line| {
            line.strip_prefix(indent).is_some_and(|rest| {
                rest == "}"
                    || rest.ends_with("{}") && !rest.starts_with(' ')
                    || rest.starts_with(')') && rest.ends_with(';')
            })
        });
        found.push((name, end.map_or(1, |end| end + 1)));
    }
    found
}

/// The name of the function whose definition begins on this line.
fn name_of(line: &str) -> Option<String> {
    let mut rest = line.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix("fn ") {
            return Some(after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
        let word_end = rest.find(' ')?;
        let word = &rest[..word_end];
        let qualifies = ["pub", "const", "async", "unsafe", "extern", "default"].contains(&word)
            || word.starts_with("pub(")
            || word == "\"C\"";
        if !qualifies {
            return None;
        }
        rest = &rest[word_end + 1..];
    }
}

#[test]
fn lengths_are_counted_right() {
    // An empty arm is no end; a signature without a body is.
    let text = "pub(crate) unsafe extern \"C\" fn a(\n    x: u8,\n) -> u8 {\n    match x {\n        _ => {}\n    }\n    x\n}\n\nfn b() {}\n\ntrait T {\n    fn c(&self);\n    fn d(\n        &self,\n    );\n}\n";
    let found: Vec<(String, usize)> = functions(text);
    assert_eq!(found, [("a".to_owned(), 8), ("d".to_owned(), 3)]);
}
