//! Reads the text of a table.
//!
//! ```text
//! # a comment
//! cuMemFreeAsync one-way pool::free_async      symbol, class, body
//!     variants ptsz                            also exported as cuMemFreeAsync_ptsz
//!     via Enqueue(Free)                        what it sends
//!     in device_pointer: u64                   the arguments, in the order of C
//!     stream stream
//!
//! refused CUDA_ERROR_NOT_SUPPORTED "reason"    every symbol below gives this answer
//!     cuTexRefCreate
//! ```

use crate::{
    argument::{Argument, CALLBACKS, HANDLE_KINDS, Kind, Length, Type},
    row::{Class, Flavour, Row, Via},
};
use core::fmt;

/// Why a table cannot be read, or what is wrong in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError {
    /// The group, or what was checked.
    pub group: String,
    /// The line, from 1; 0 when it is about no single line.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.group, self.line, self.what)
    }
}

impl core::error::Error for TableError {}

/// The rows of one file.
pub fn parse<'a>(group: &'a str, text: &'a str) -> Result<Vec<Row<'a>>, TableError> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    let mut refusal: Option<Class<'a>> = None;
    for (index, raw) in text.lines().enumerate() {
        let line = index + 1;
        let fail = |what: String| TableError { group: group.to_owned(), line, what };
        let content = raw.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if raw.starts_with(' ') {
            match refusal {
                Some(class) => rows.push(refused_row(group, line, content, class)),
                None => {
                    let row = rows.last_mut().ok_or_else(|| fail("an argument before any row".to_owned()))?;
                    detail(row, content).map_err(fail)?;
                }
            }
        } else if let Some(rest) = content.strip_prefix("refused ") {
            refusal = Some(refused(rest).map_err(fail)?);
        } else {
            refusal = None;
            rows.push(head(group, line, content).map_err(fail)?);
        }
    }
    Ok(rows)
}

fn refused(rest: &str) -> Result<Class<'_>, String> {
    let (code, reason) = rest.split_once(' ').ok_or("a refusal needs a code and a reason")?;
    Ok(Class::Refused { code, reason: quoted(reason)? })
}

fn quoted(text: &str) -> Result<&str, String> {
    text.trim()
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .filter(|text| !text.is_empty())
        .ok_or_else(|| format!("expected a sentence in quotes, found {text}"))
}

fn refused_row<'a>(group: &'a str, line: usize, symbol: &'a str, class: Class<'a>) -> Row<'a> {
    Row {
        group,
        line,
        symbol,
        also: Vec::new(),
        variant: None,
        class,
        preinit: false,
        body: None,
        via: Vec::new(),
        note: None,
        arguments: Vec::new(),
    }
}

fn head<'a>(group: &'a str, line: usize, content: &'a str) -> Result<Row<'a>, String> {
    let words: Vec<&str> = content.split_whitespace().collect();
    let [symbol, class, body] = words[..] else {
        return Err("a row begins with symbol, class and body".to_owned());
    };
    let class = match class {
        "local" => Class::Local,
        "one-way" => Class::OneWay,
        "awaited" => Class::Awaited,
        _ => return Err(format!("unknown class {class}")),
    };
    Ok(Row { body: Some(body), ..refused_row(group, line, symbol, class) })
}

/// A line under a row: a property of it, or its next argument.
fn detail<'a>(row: &mut Row<'a>, content: &'a str) -> Result<(), String> {
    let (word, rest) = content.split_once(' ').ok_or_else(|| format!("cannot read {content}"))?;
    let rest = rest.trim();
    match word {
        "flags" if rest == "preinit" => row.preinit = true,
        "also" => row.also = rest.split_whitespace().collect(),
        "variants" if rest == "ptsz" => row.variant = Some(Flavour::Ptsz),
        "variants" if rest == "ptds" => row.variant = Some(Flavour::Ptds),
        "via" => row.via = rest.split_whitespace().map(via).collect::<Result<_, _>>()?,
        "note" => row.note = Some(quoted(rest)?),
        _ => row.arguments.push(argument(word, rest)?),
    }
    Ok(())
}

fn via(word: &str) -> Result<Via<'_>, String> {
    match word.split_once('(') {
        None => Ok(Via { command: word, op: None }),
        Some((command, op)) => {
            let op = op.strip_suffix(')').ok_or_else(|| format!("unclosed bracket in {word}"))?;
            Ok(Via { command, op: Some(op) })
        }
    }
}

fn argument<'a>(word: &'a str, rest: &'a str) -> Result<Argument<'a>, String> {
    let (word, optional) = match word.strip_suffix('?') {
        Some(word) => (word, true),
        None => (word, false),
    };
    if let Some(kind) = word.strip_prefix("handle(").and_then(|word| word.strip_suffix(')')) {
        if !HANDLE_KINDS.iter().any(|(known, _)| *known == kind) {
            return Err(format!("unknown kind of handle {kind}"));
        }
        return Ok(Argument { name: rest, kind: Kind::Handle(kind) });
    }
    let bare = |kind| Ok(Argument { name: rest, kind });
    match word {
        "stream" => return bare(Kind::Stream),
        "cstr" => return bare(Kind::Text { optional }),
        "opaque" => return bare(Kind::Opaque),
        "image" => return bare(Kind::Image),
        "outany" => return bare(Kind::OutAny),
        "inany" => return bare(Kind::InAny),
        "upload" | "download" => {
            let (name, length) = array(rest)?;
            let kind = if word == "upload" { Kind::Upload { length } } else { Kind::Download { length } };
            return Ok(Argument { name, kind });
        }
        _ => {}
    }
    let (name, ty) = rest.split_once(": ").ok_or_else(|| format!("{word} {rest} needs a type"))?;
    if word == "callback" {
        if !CALLBACKS.contains(&ty) {
            return Err(format!("unknown function type {ty}"));
        }
        return Ok(Argument { name, kind: Kind::Callback { ty, optional } });
    }
    let ty = Type::from_word(ty).ok_or_else(|| format!("unknown type {ty}"))?;
    let kind = match word {
        "in" => Kind::In(ty),
        "out" => Kind::Out { ty, optional },
        "inout" => Kind::InOut { ty, optional },
        "ref" => Kind::Ref { ty, optional },
        "array" => Kind::Array(ty),
        "slice" | "outs" | "inouts" => {
            let (name, length) = array(name)?;
            let kind = match word {
                "slice" => Kind::Slice { length, ty, optional },
                "outs" => Kind::Outs { length, ty, optional },
                _ => Kind::InOuts { length, ty },
            };
            return Ok(Argument { name, kind });
        }
        _ => return Err(format!("unknown direction {word}")),
    };
    Ok(Argument { name, kind })
}

/// `name[length]` or `name[*length]`.
fn array(text: &str) -> Result<(&str, Length<'_>), String> {
    let (name, length) = text
        .strip_suffix(']')
        .and_then(|text| text.split_once('['))
        .ok_or_else(|| format!("{text} needs a length in brackets"))?;
    let (argument, behind_pointer) = match length.strip_prefix('*') {
        Some(argument) => (argument, true),
        None => (length, false),
    };
    Ok((name, Length { argument, behind_pointer }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_as_it_is_written() {
        let text = "cuX_v2 one-way pool::x\n    also cuX\n    variants ptsz\n    via Enqueue(Free)\n    \
                    out? p: u64\n    slice list[*count]: graphnode\n    inout count: usize\n    stream s\n";
        let rows = parse("pool", text).expect("readable");
        let names: Vec<_> = rows[0].symbols().into_iter().map(|symbol| symbol.name).collect();
        assert_eq!(names, ["cuX_v2", "cuX_v2_ptsz", "cuX", "cuX_ptsz"]);
        assert_eq!(rows[0].via, [Via { command: "Enqueue", op: Some("Free") }]);
        assert_eq!(rows[0].arguments[0].kind, Kind::Out { ty: Type::Scalar("u64"), optional: true });
        let length = rows[0].arguments[1].kind.length().expect("an array has a length");
        assert_eq!(length, Length { argument: "count", behind_pointer: true });
    }

    #[test]
    fn a_refusal_covers_the_symbols_below_it() {
        let text = "refused CUDA_ERROR_NOT_SUPPORTED \"because\"\n    cuA\n    cuB\ncuC local init::c\n";
        let rows = parse("misc", text).expect("readable");
        assert_eq!(rows[1].class, Class::Refused { code: "CUDA_ERROR_NOT_SUPPORTED", reason: "because" });
        assert_eq!(rows[2].class, Class::Local);
    }

    #[test]
    fn nonsense_is_named_with_its_line() {
        let error = parse("misc", "cuA local a::a\n    in x: u33\n").expect_err("no such type");
        assert_eq!(error.to_string(), "misc:2: unknown type u33");
    }
}
