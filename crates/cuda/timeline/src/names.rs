//! Names of kernels as people read them.

/// The qualified name in a mangled C++ name, without template arguments and parameters: `at::native::sum` of
/// `_ZN2at6native3sumIfEEvPT_`. A name that is not mangled, or in a way that this does not know, is returned as it is.
pub(crate) fn readable(mangled: &str) -> String {
    let Some(rest) = mangled.strip_prefix("_Z") else { return mangled.to_owned() };
    let (mut rest, is_nested) = match rest.strip_prefix('N') {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let mut parts = Vec::new();
    while let Some((part, after)) = source_name(rest) {
        // What compilers call namespaces without a name.
        parts.push(if part.starts_with("_GLOBAL__N_") { "(anonymous)" } else { part });
        rest = after;
        if !is_nested {
            break;
        }
    }
    if parts.is_empty() { mangled.to_owned() } else { parts.join("::") }
}

/// A name with its length in front, and what follows it.
fn source_name(text: &str) -> Option<(&str, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let length: usize = text.get(..digits)?.parse().ok()?;
    let end = digits.checked_add(length)?;
    let name = text.get(digits..end).filter(|name| !name.is_empty())?;
    Some((name, text.get(end..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_names_become_qualified_ones() {
        for (mangled, name) in [
            ("scale", "scale"),
            ("_Z5scalePfi", "scale"),
            ("_ZN2at6native3sumIfEEvPT_", "at::native::sum"),
            ("_ZN12_GLOBAL__N_13addEPf", "(anonymous)::add"),
            ("_Z", "_Z"),
            ("_Z9short", "_Z9short"),
            ("_Z99999999999999999999999x", "_Z99999999999999999999999x"),
            ("_ZSt4sortv", "_ZSt4sortv"),
            ("", ""),
        ] {
            assert_eq!(readable(mangled), name);
        }
    }
}
