//! The bodies that libcuda must have: a list to read when one is added.

use cuda_table::{Argument, Kind, Row};

/// Rust signatures by body path, one a line.
pub(super) fn list(rows: &[Row<'_>]) -> String {
    let mut lines: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let path = row.body?;
            let module = path.split_once("::").map_or(path, |(module, _)| module);
            Some(format!("{module}: {}  // {}", signature(row), names(row)))
        })
        .collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

fn names(row: &Row<'_>) -> String {
    row.symbols().into_iter().map(|symbol| symbol.name).collect::<Vec<_>>().join(" ")
}

fn signature(row: &Row<'_>) -> String {
    let function = row.body.and_then(|path| path.split_once("::")).map_or("", |(_, function)| function);
    let mut parameters: Vec<String> =
        row.arguments.iter().map(|argument| format!("{}: {}", argument.name, safe_type(argument))).collect();
    if row.takes_default_stream() {
        parameters.push("default_stream: StreamArg".to_owned());
    }
    format!("pub(crate) fn {function}({}) -> CuResult<()>", parameters.join(", "))
}

/// What a body takes for the argument.
fn safe_type(argument: &Argument<'_>) -> String {
    let maybe = |optional: bool, ty: String| if optional { format!("Option<{ty}>") } else { ty };
    match argument.kind {
        Kind::In(ty) => ty.rust_name().to_owned(),
        Kind::Stream => "StreamArg".to_owned(),
        Kind::Handle(_) => argument.kind.handle_type().unwrap_or_default().to_owned(),
        Kind::Out { ty, optional } => maybe(optional, format!("Out<'_, {}>", ty.rust_name())),
        Kind::InOut { ty, optional } => maybe(optional, format!("InOut<'_, {}>", ty.rust_name())),
        Kind::Ref { ty, optional } => maybe(optional, format!("&{}", ty.rust_name())),
        Kind::Slice { ty, optional, .. } => maybe(optional, format!("&[{}]", ty.rust_name())),
        Kind::Array(ty) => format!("Array<'_, {}>", ty.rust_name()),
        Kind::Outs { ty, optional, .. } => maybe(optional, format!("OutSlice<'_, {}>", ty.rust_name())),
        Kind::InOuts { ty, .. } => format!("InOutSlice<'_, {}>", ty.rust_name()),
        Kind::Upload { .. } => "HostSource".to_owned(),
        Kind::Download { .. } => "HostTarget".to_owned(),
        Kind::Text { optional } => maybe(optional, "&CStr".to_owned()),
        Kind::Opaque | Kind::Image => "u64".to_owned(),
        Kind::OutAny => "OutAny<'_>".to_owned(),
        Kind::InAny => "InAny<'_>".to_owned(),
        Kind::Callback { ty, optional } => maybe(optional, ty.to_owned()),
    }
}
