//! Thunks: for each symbol a C function that does nothing but cross the border.

use super::MARK;
use cuda_table::{Argument, Class, Kind, Length, Row, Symbol};
use std::fmt::Write;

/// The thunks of one group.
pub(super) fn file(rows: &[&Row<'_>]) -> String {
    let mut text = format!(
        "{MARK}\n#![allow(missing_docs, non_snake_case, unreachable_pub, unused_imports)]\n\
         #![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]\n\n\
         use crate::{{api, border::{{self, *}}}};\nuse core::{{ffi::c_char, sync::atomic::AtomicBool}};\n\
         use cuda_abi::*;\n"
    );
    for row in rows {
        for symbol in row.symbols() {
            match row.class {
                Class::Refused { code, reason } => refused(&mut text, row.symbol, code, reason),
                _ => thunk(&mut text, row, &symbol),
            }
        }
    }
    text
}

fn refused(text: &mut String, symbol: &str, code: &str, reason: &str) {
    let code = code.strip_prefix("CUDA_ERROR_").unwrap_or(code);
    write!(
        text,
        "\n#[unsafe(no_mangle)]\npub extern \"C\" fn {symbol}() -> u32 {{\n\
         static TOLD: AtomicBool = AtomicBool::new(false);\n\
         border::refuse(&TOLD, {symbol:?}, {reason:?}, CudaError::{code})\n}}\n"
    )
    .expect("writing to a string succeeds");
}

fn thunk(text: &mut String, row: &Row<'_>, symbol: &Symbol) {
    let parameters: Vec<String> =
        row.arguments.iter().map(|argument| format!("{}: {}", argument.name, c_type(argument))).collect();
    let default = if symbol.per_thread { "StreamArg::PerThread" } else { "StreamArg::Legacy" };

    let mut names = Vec::new();
    let mut values = Vec::new();
    let mut passed = Vec::new();
    for argument in &row.arguments {
        passed.push(pass(argument, default));
        if let Some(conversion) = conversion(argument) {
            names.push(argument.name);
            values.push(conversion);
        }
    }
    if row.takes_default_stream() {
        passed.push(default.to_owned());
    }

    let mut body = String::new();
    if !names.is_empty() {
        let (names, values) = match (&names[..], &values[..]) {
            ([name], [value]) => ((*name).to_owned(), value.clone()),
            _ => (format!("({})", names.join(", ")), format!("({})", values.join(", "))),
        };
        if row.arguments.iter().any(|argument| trusts_the_caller(&argument.kind)) {
            body.push_str("// SAFETY: pointers are null or good for their C types, as the API demands.\n");
            body.push_str(&format!("let {names} = unsafe {{ {values} }};\n"));
        } else {
            body.push_str(&format!("let {names} = {values};\n"));
        }
    }
    let enter = if row.preinit { "enter_before_init" } else { "enter" };
    let path = row.body.unwrap_or_default();
    // A call without arguments needs no closure around its body.
    let body = if passed.is_empty() {
        format!("api::{path}")
    } else {
        format!("|| {{\n{body}api::{path}({})\n}}", passed.join(", "))
    };
    write!(
        text,
        "\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {name}({parameters}) -> u32 {{\n\
         border::{enter}({name:?}, {body})\n}}\n",
        name = symbol.name,
        parameters = parameters.join(", "),
    )
    .expect("writing to a string succeeds");
}

/// The type of C, in Rust's words.
fn c_type(argument: &Argument<'_>) -> String {
    match argument.kind {
        Kind::In(ty) => ty.rust_name().to_owned(),
        Kind::Stream => "StreamHandle".to_owned(),
        Kind::Handle(_) => argument.kind.handle_type().unwrap_or_default().to_owned(),
        Kind::Out { ty, .. } | Kind::InOut { ty, .. } | Kind::Outs { ty, .. } | Kind::InOuts { ty, .. } => {
            format!("*mut {}", ty.rust_name())
        }
        Kind::Ref { ty, .. } | Kind::Slice { ty, .. } | Kind::Array(ty) => {
            format!("*const {}", ty.rust_name())
        }
        Kind::Upload { .. } | Kind::Opaque | Kind::Image | Kind::InAny => "*const u8".to_owned(),
        Kind::Download { .. } | Kind::OutAny => "*mut u8".to_owned(),
        Kind::Text { .. } => "*const c_char".to_owned(),
        Kind::Callback { ty, .. } => format!("Option<<{ty} as Callback>::C>"),
    }
}

/// Whether the conversion follows a pointer, now or later.
fn trusts_the_caller(kind: &Kind<'_>) -> bool {
    !matches!(
        kind,
        Kind::In(_) | Kind::Stream | Kind::Handle(_) | Kind::Opaque | Kind::Image | Kind::Callback { .. }
    )
}

/// How a pointer becomes a safe value; none for what is passed as it is.
fn conversion(argument: &Argument<'_>) -> Option<String> {
    let name = argument.name;
    let array =
        |function: &str, length: Length<'_>| format!("border::{function}({name}, {})?", length_of(length));
    Some(match argument.kind {
        Kind::In(_) | Kind::Stream | Kind::Handle(_) | Kind::Opaque => return None,
        Kind::Out { optional: false, .. } => format!("border::out({name})?"),
        Kind::Out { optional: true, .. } => format!("border::out_optional({name})"),
        Kind::InOut { optional: false, .. } => format!("border::in_out({name})?"),
        Kind::InOut { optional: true, .. } => format!("border::in_out_optional({name})"),
        Kind::Ref { optional: false, .. } => format!("border::reference({name})?"),
        Kind::Ref { optional: true, .. } => format!("border::reference_optional({name})"),
        Kind::Slice { length, optional: false, .. } => array("slice", length),
        Kind::Slice { length, optional: true, .. } => array("slice_optional", length),
        Kind::Array(_) => format!("border::array({name})?"),
        Kind::Outs { length, optional: false, .. } => array("out_slice", length),
        Kind::Outs { length, optional: true, .. } => array("out_slice_optional", length),
        Kind::InOuts { length, .. } => array("in_out_slice", length),
        Kind::Upload { length } => array("upload", length),
        Kind::Download { length } => array("download", length),
        Kind::Text { optional: false } => format!("border::text({name})?"),
        Kind::Text { optional: true } => format!("border::text_optional({name})"),
        Kind::Image => format!("border::image({name})?"),
        Kind::OutAny => format!("border::out_any({name})?"),
        Kind::InAny => format!("border::in_any({name})?"),
        Kind::Callback { ty, optional: false } => format!("border::callback::<{ty}>({name})?"),
        Kind::Callback { ty, optional: true } => format!("border::callback_optional::<{ty}>({name})"),
    })
}

fn length_of(length: Length<'_>) -> String {
    if length.behind_pointer {
        format!("border::length_behind({})", length.argument)
    } else {
        length.argument.to_owned()
    }
}

/// What the body is given.
fn pass(argument: &Argument<'_>, default: &str) -> String {
    let name = argument.name;
    match argument.kind {
        Kind::Stream => format!("StreamArg::new({name}, {default})"),
        Kind::Opaque => format!("{name} as usize as u64"),
        Kind::Ref { optional: false, .. } => format!("&{name}"),
        Kind::Ref { optional: true, .. } => format!("{name}.as_ref()"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(table: &str) -> String {
        let rows = cuda_table::parse("memory", table).unwrap_or_else(|error| panic!("{error}"));
        file(&rows.iter().collect::<Vec<_>>())
    }

    #[test]
    fn null_checks_come_in_the_order_of_the_arguments() {
        let text =
            generated("cuX local a::x\n    cstr name\n    in n: u32\n    out a: u64\n    outs? b[n]: u8\n");
        let conversions = "(border::text(name)?, border::out(a)?, border::out_slice_optional(b, n)?)";
        assert!(text.contains(conversions), "{text}");
        assert!(text.contains("api::a::x(name, n, a, b)"), "{text}");
    }

    #[test]
    fn a_variant_means_the_default_stream_of_its_thread() {
        let text = generated("cuX one-way a::x\n    variants ptsz\n    stream s\n");
        assert!(text.contains("fn cuX(s: StreamHandle)"), "{text}");
        assert!(text.contains("api::a::x(StreamArg::new(s, StreamArg::Legacy))"), "{text}");
        assert!(text.contains("fn cuX_ptsz(s: StreamHandle)"), "{text}");
        assert!(text.contains("api::a::x(StreamArg::new(s, StreamArg::PerThread))"), "{text}");
    }

    #[test]
    fn a_function_without_stream_is_told_its_default_stream() {
        let text = generated("cuX one-way a::x\n    variants ptds\n    in n: u32\n");
        assert!(text.contains("api::a::x(n, StreamArg::Legacy)"), "{text}");
        assert!(text.contains("api::a::x(n, StreamArg::PerThread)"), "{text}");
    }

    #[test]
    fn a_refusal_says_which_symbol_and_why() {
        let text = generated("refused CUDA_ERROR_NOT_SUPPORTED \"because it is so\"\n    cuX\n");
        assert!(
            text.contains("refuse(&TOLD, \"cuX\", \"because it is so\", CudaError::NOT_SUPPORTED)"),
            "{text}"
        );
    }

    #[test]
    fn only_what_the_table_says_runs_before_init() {
        assert!(
            generated("cuX local a::x\n    flags preinit\n").contains("border::enter_before_init(\"cuX\"")
        );
        assert!(generated("cuX local a::x\n").contains("border::enter(\"cuX\", api::a::x)"));
    }
}
