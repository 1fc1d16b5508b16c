//! What must hold for the rows as a whole.

use crate::{
    argument::{Kind, Type},
    data::exports,
    parse::TableError,
    row::{Class, Flavour, Row},
};
use std::collections::{BTreeMap, BTreeSet};

fn error(row: &Row<'_>, what: String) -> TableError {
    TableError { group: row.group.to_owned(), line: row.line, what: format!("{}: {what}", row.symbol) }
}

/// Each row by itself: lengths exist, body paths have the right form, classes and commands fit.
pub fn check_rows(rows: &[Row<'_>]) -> Vec<TableError> {
    rows.iter().flat_map(|row| row_faults(row).into_iter().map(|what| error(row, what))).collect()
}

fn row_faults(row: &Row<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    for argument in &row.arguments {
        if let Some(length) = argument.kind.length() {
            let holder = row.arguments.iter().find(|other| other.name == length.argument);
            let fits = match holder.map(|holder| holder.kind) {
                Some(Kind::In(Type::Scalar("u32" | "i32" | "usize" | "u64"))) => !length.behind_pointer,
                Some(Kind::InOut { ty: Type::Scalar("usize" | "u32"), optional: false }) => {
                    length.behind_pointer
                }
                _ => false,
            };
            if !fits {
                faults.push(format!("{} has no length argument {}", argument.name, length.argument));
            }
        }
        if row.arguments.iter().filter(|other| other.name == argument.name).count() > 1 {
            faults.push(format!("two arguments are called {}", argument.name));
        }
    }
    if let Some(body) = row.body
        && !is_body_path(body)
    {
        faults.push(format!("{body} is not of the form module::function"));
    }
    let has_stream = row.arguments.iter().any(|argument| argument.kind == Kind::Stream);
    if row.variant == Some(Flavour::Ptds) && has_stream {
        faults.push("a ptds function takes no stream".to_owned());
    }
    match row.class {
        Class::Local if !row.via.is_empty() => faults.push("a local row sends nothing".to_owned()),
        Class::OneWay | Class::Awaited if row.via.is_empty() => {
            faults.push("a row that is not local says what it sends".to_owned());
        }
        Class::Refused { reason, .. } if reason.len() < 10 => {
            faults.push("the reason says nothing".to_owned())
        }
        _ => {}
    }
    let downloads = row.arguments.iter().any(|argument| matches!(argument.kind, Kind::Download { .. }));
    if downloads && row.class != Class::Awaited {
        faults.push("bytes come back only to one who waits".to_owned());
    }
    faults
}

fn is_body_path(path: &str) -> bool {
    let word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    path.split_once("::").is_some_and(|(module, function)| word(module) && word(function))
}

/// Every export has exactly one row, and no row names anything else. Rows that share a body agree on arguments.
pub fn check_exports(rows: &[Row<'_>]) -> Vec<TableError> {
    let mut faults = Vec::new();
    let mut seen = BTreeMap::new();
    let mut bodies: BTreeMap<&str, &Row<'_>> = BTreeMap::new();
    for row in rows {
        for symbol in row.symbols() {
            if let Some(other) = seen.insert(symbol.name.clone(), row.symbol) {
                faults.push(error(row, format!("{} is already a symbol of {other}", symbol.name)));
            }
        }
        if let Some(body) = row.body
            && let Some(other) = bodies.insert(body, row)
        {
            faults.push(error(row, format!("its body is already that of {}", other.symbol)));
        }
    }
    let known: BTreeSet<&str> = exports().collect();
    for symbol in seen.keys().filter(|symbol| !known.contains(symbol.as_str())) {
        faults.push(whole(format!("{symbol} is no export of the driver")));
    }
    for symbol in known.iter().filter(|symbol| !seen.contains_key(**symbol)) {
        faults.push(whole(format!("{symbol} has no row")));
    }
    faults
}

fn whole(what: String) -> TableError {
    TableError { group: "exports-580.txt".to_owned(), line: 0, what }
}

/// What rows send exists. `commands` are names with whether they have an answer, `ops` the work an `Enqueue`
/// can carry. The handshake is no command: it opens the stream that carries them.
pub fn check_commands(rows: &[Row<'_>], commands: &[(&str, bool)], ops: &[&str]) -> Vec<TableError> {
    let mut faults = Vec::new();
    for row in rows {
        for via in &row.via {
            if via.command == "Handshake" {
                continue;
            }
            let Some((_, has_answer)) = commands.iter().find(|(name, _)| *name == via.command) else {
                faults.push(error(row, format!("there is no command {}", via.command)));
                continue;
            };
            if *has_answer && row.class == Class::OneWay {
                faults.push(error(row, format!("nobody waits for the answer of {}", via.command)));
            }
            match via.op {
                Some(op) if !ops.contains(&op) => faults.push(error(row, format!("there is no work {op}"))),
                None if via.command == "Enqueue" => {
                    faults.push(error(row, "Enqueue needs the work it carries in brackets".to_owned()));
                }
                _ => {}
            }
        }
    }
    faults
}
