//! The table behind cuGetProcAddress.

use super::MARK;
use anyhow::{Result, bail};
use cuda_table::{ProcAddressStep, Row};
use std::{collections::BTreeSet, fmt::Write};

const HEAD: &str = r"
use super::*;

/// What cuGetProcAddress finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The address of the function.
    Found(u64),
    /// There is no such name.
    NotFound,
    /// The name is newer than the version asked for.
    VersionNotSufficient,
}

/// From `version` on, `name` asked with one of `flags` is `function`.
struct Step {
    name: &'static str,
    /// Bit 0: default, bit 1: legacy stream, bit 2: per-thread default stream.
    flags: u8,
    version: u32,
    function: Function,
}

/// The address of an exported function.
struct Function(*const ());

// SAFETY: the address of code, never written through.
unsafe impl Sync for Function {}

/// The function that `name` means for a program of CUDA `version` (12030 for 12.3) with `flags` 0, 1 or 2.
/// The driver accepts 3 too, which is read as 2: whoever asks for a per-thread default stream relies on having it.
pub(crate) fn find(name: &[u8], version: u32, flags: u64) -> Lookup {
    let asked = 1 << flags.min(2);
    let start = STEPS.partition_point(|step| step.name.as_bytes() < name);
    let mut found = Lookup::NotFound;
    for step in STEPS[start..].iter().take_while(|step| step.name.as_bytes() == name) {
        if step.flags & asked == 0 {
            continue;
        }
        if step.version <= version {
            found = Lookup::Found(step.function.0 as usize as u64);
        } else if found == Lookup::NotFound {
            found = Lookup::VersionNotSufficient;
        }
    }
    found
}

/// Ascending by name, then version.
static STEPS: &[Step] = &[
";

const TESTS: &str = r#"
#[cfg(test)]
mod tests {
    use super::*;

    fn address(function: *const ()) -> Lookup {
        Lookup::Found(function as usize as u64)
    }

    #[test]
    fn the_version_decides_which_function_a_name_means() {
        assert_eq!(find(b"cuCtxGetDevice", 13000, 0), address(thunks_context::cuCtxGetDevice_v2 as *const ()));
        assert_eq!(find(b"cuCtxGetDevice", 12080, 0), address(thunks_context::cuCtxGetDevice as *const ()));
        assert_eq!(find(b"cuCtxGetDevice", 1000, 0), Lookup::VersionNotSufficient);
        assert_eq!(find(b"cuNoSuchFunction", 13000, 0), Lookup::NotFound);
    }

    #[test]
    fn the_flags_decide_which_default_stream_it_means() {
        let name = b"cuMemcpyAsync";
        assert_eq!(find(name, 13000, 1), address(thunks_copy::cuMemcpyAsync as *const ()));
        assert_eq!(find(name, 13000, 2), address(thunks_copy::cuMemcpyAsync_ptsz as *const ()));
        assert_eq!(find(name, 13000, 3), find(name, 13000, 2));
    }
}
"#;

/// The file.
pub(super) fn file(rows: &[Row<'_>]) -> Result<String> {
    let mut text = format!("{MARK}{HEAD}");
    for (step, flags) in merged(&cuda_table::proc_address_steps()?) {
        let ProcAddressStep { name, version, symbol, .. } = step;
        let Some(row) = rows.iter().find(|row| row.symbols().iter().any(|other| other.name == symbol)) else {
            bail!("cuGetProcAddress answers {name} with {symbol}, which has no row");
        };
        let group = row.group;
        writeln!(
            text,
            "Step {{ name: {name:?}, flags: {flags}, version: {version}, \
             function: Function(thunks_{group}::{symbol} as *const ()) }},"
        )?;
    }
    text.push_str("];\n");
    text.push_str(TESTS);
    Ok(text)
}

/// Steps that differ only in flags, as one with a set of flags; ascending by name, then version.
fn merged(steps: &[ProcAddressStep]) -> Vec<(ProcAddressStep, u8)> {
    let keys: BTreeSet<(&str, u32, &str)> =
        steps.iter().map(|step| (step.name, step.version, step.symbol)).collect();
    keys.into_iter()
        .map(|(name, version, symbol)| {
            let same =
                |step: &&ProcAddressStep| (step.name, step.version, step.symbol) == (name, version, symbol);
            let flags = steps.iter().filter(same).fold(0, |flags, step| flags | 1 << step.flags);
            (ProcAddressStep { name, flags: 0, version, symbol }, flags)
        })
        .collect()
}
